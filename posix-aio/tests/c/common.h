/* What the POSIX AIO programs share beyond answers.h: functions that make and end requests.
 *
 * Each program is built twice, the second time with -D_FILE_OFFSET_BITS=64, where every function
 * is its 64 variant. */
#ifndef COMMON_H
#define COMMON_H

#include "../../../libaio/tests/support/answers.h"
#include <aio.h>
#include <dirent.h>

/* The time limit of a program that hangs; a child has a limit of its own. It is long, because
 * programs run many times longer on a busy machine. */
#define SECONDS_MAX 300

__attribute__((constructor)) static void start(void)
{
    the_right_library("POSIX_AIO_EXPECTED", "aio_read", "/libc.so.6");
    alarm(SECONDS_MAX);
}

/* A request without notification: a block of zeroes would ask for signal 0. */
UNUSED static struct aiocb block(int fd, volatile void *buf, size_t n, off_t offset)
{
    struct aiocb cb;
    memset(&cb, 0, sizeof cb);
    cb.aio_fildes = fd;
    cb.aio_buf = buf;
    cb.aio_nbytes = n;
    cb.aio_offset = offset;
    cb.aio_sigevent.sigev_notify = SIGEV_NONE;
    return cb;
}

/* The answer of a call as text: its value, or -1 and errno. */
UNUSED static const char *call(long result)
{
    return code(result == -1 ? -errno : result);
}

/* Waits until a request is done, for 20 s at most, and returns its error. */
UNUSED static int finish(struct aiocb *cb)
{
    double end = now() + 20;
    int error;
    while ((error = aio_error(cb)) == EINPROGRESS) {
        const struct aiocb *list[] = {cb};
        struct timespec second = {1, 0};
        if (now() > end)
            die("a request does not end");
        aio_suspend(list, 1, &second);
    }
    return error;
}

/* The state of a request: "EINPROGRESS", "return 4096", "error EBADF, return -1". */
UNUSED static const char *state(struct aiocb *cb)
{
    static __thread char text[4][64];
    static __thread int turn;
    char *out = text[turn = (turn + 1) % 4];
    int error = aio_error(cb);
    if (error == EINPROGRESS)
        snprintf(out, sizeof text[0], "EINPROGRESS");
    else if (error == 0)
        snprintf(out, sizeof text[0], "return %ld", (long)aio_return(cb));
    else
        snprintf(out, sizeof text[0], "error %s, return %ld", strerrorname_np(error),
                 (long)aio_return(cb));
    return out;
}

/* Submits one request, waits for it, and prints its outcome. */
UNUSED static void request(const char *name, int (*submit)(struct aiocb *), struct aiocb *cb)
{
    if (submit(cb)) {
        say(name, "refused %s", call(-1));
        return;
    }
    finish(cb);
    say(name, "%s", state(cb));
}

UNUSED static void cancelled(const char *name, int fd, struct aiocb *cb)
{
    int got = aio_cancel(fd, cb);
    say(name, "%s",
        got == AIO_CANCELED      ? "AIO_CANCELED"
        : got == AIO_NOTCANCELED ? "AIO_NOTCANCELED"
        : got == AIO_ALLDONE     ? "AIO_ALLDONE"
                                 : call(got));
}

UNUSED static void make_pipe(int ends[2])
{
    if (pipe(ends))
        die("pipe");
}

UNUSED static void put(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        die("write");
}

/* Waits until all other threads of this process sleep. Natively, these are helper threads inside
 * the system calls of their requests. */
UNUSED static void until_others_sleep(void)
{
    for (int quiet = 0, i = 0; quiet < 20; i++) {
        DIR *tasks = opendir("/proc/self/task");
        int awake = 0;
        if (!tasks || i == 20000)
            die("the other threads never sleep");
        for (struct dirent *entry; (entry = readdir(tasks));) {
            char path[300], text[512];
            snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
            int fd = entry->d_name[0] == '.' || atoi(entry->d_name) == gettid()
                         ? -1
                         : open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                continue;
            ssize_t n = read(fd, text, sizeof text - 1);
            text[n > 0 ? n : 0] = 0;
            const char *after = strrchr(text, ')');
            awake += after && after[2] != 'S';
            close(fd);
        }
        closedir(tasks);
        quiet = awake ? 0 : quiet + 1;
        usleep(1000);
    }
}

/* Runs `body` in a child that has not used aio before, and so has no idle helper thread. Natively,
 * an idle helper thread may begin the first request on a descriptor only after aio_read has
 * returned. */
UNUSED static void in_child(void (*body)(void))
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        alarm(SECONDS_MAX);
        body();
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP)
        exit(SKIP);
    if (status)
        die("a child ends with status 0x%x", status);
}

/* Polls until `*value` is at least `least`, for 20 s at most. */
UNUSED static void until(const volatile int *value, int least)
{
    for (int i = 0; __atomic_load_n(value, __ATOMIC_ACQUIRE) < least; i++) {
        if (i == 20000)
            die("%d of %d", *value, least);
        usleep(1000);
    }
}

#endif
