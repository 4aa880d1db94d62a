/* The library in a program that does other things: it exits with requests in flight, closes
 * descriptors, and starts and ends threads. */
#include "common.h"

static unsigned char buf[128][512];
static struct aiocb cbs[128];
static int fd;

static void submit_all(void)
{
    for (int i = 0; i < 128; i++) {
        cbs[i] = i % 4 == 3 ? block(fd, buf[i], 512, 1 << 20) : block(fd, buf[i], 512, i * 512);
        if (i % 4 == 3 ? aio_write(&cbs[i]) : aio_read(&cbs[i]))
            die("submit");
    }
}

static void ended(const char *name, int how)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(SECONDS_MAX);
        if (how == 3) {
            int ends[2];
            make_pipe(ends);
            cbs[0] = block(ends[0], buf[0], 512, 0);
            if (aio_read(&cbs[0]))
                die("aio_read");
            exit(6);
        }
        submit_all();
        if (how == 0)
            exit(4);
        if (how == 1)
            _exit(5);
        execl("/bin/sh", "sh", "-c", "exit 3", NULL);
        _exit(99);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    say(name, "%s %d", WIFEXITED(status) ? "exit" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* A descriptor is closed while requests wait in its queue: the running request goes on, and the
 * queued ones find the descriptor closed. */
static void closed_while_queued(void)
{
    int ends[2];
    make_pipe(ends);
    cbs[0] = block(ends[0], buf[0], 5, 0);
    cbs[1] = block(ends[0], buf[1], 5, 0);
    if (aio_read(&cbs[0]) || aio_read(&cbs[1]))
        die("aio_read");
    cancelled("[aio_cancel AIO_NOTCANCELED] it runs", ends[0], &cbs[0]);
    until_others_sleep();
    close(ends[0]);
    cancelled("[aio_cancel EBADF] closed with requests in flight", ends[0], NULL);
    cancelled("[aio_cancel EBADF] closed with this one queued", ends[0], &cbs[1]);
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignored, NULL);
    ssize_t got = write(ends[1], "hello", 5);
    say("[aio_read closed descriptor] a write to the pipe then", "%s", call(got));
    finish(&cbs[0]);
    say("[aio_read closed descriptor] closed while it waits", "%s", state(&cbs[0]));
    finish(&cbs[1]);
    say("[aio_read closed descriptor] closed while queued", "%s", state(&cbs[1]));
}

/* 63 requests that wait for data must not delay a request on a file. In the original, 20 such
 * requests delay the request on the file. */
static void blocked(void)
{
    enum { N = 63 };
    static int ends[N][2];
    for (int i = 0; i < N; i++) {
        make_pipe(ends[i]);
        cbs[i] = block(ends[i][0], buf[i], 5, 0);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    cbs[N] = block(fd, buf[N], 512, 0);
    if (aio_read(&cbs[N]))
        die("aio_read");
    for (int i = 0; i < 1000 && aio_error(&cbs[N]) == EINPROGRESS; i++)
        usleep(1000);
    say("[aio_read 63 blocked] a read of a file behind 63 reads of empty pipes", "%s",
        state(&cbs[N]));
    int right = 0;
    for (int i = 0; i < N; i++)
        put(ends[i][1], "hello");
    for (int i = 0; i <= N; i++)
        right += finish(&cbs[i]) == 0 && aio_return(&cbs[i]) == (i < N ? 5 : 512);
    say("all of them in the end", "%d", right);
}

static void closed_behind_the_back(void)
{
    submit_all();
    for (int i = 0; i < 128; i++)
        finish(&cbs[i]);
    int folder = open(getenv("TMPDIR"), O_RDONLY | O_DIRECTORY);
    for (int other = 3; other < 1024; other++)
        if (other != fd && other != folder)
            close(other);
    request("[aio_read success] a read after all other descriptors are closed", aio_read, &cbs[0]);
    int counters[32], touched = 0, right = 0;
    for (int i = 0; i < 32; i++)
        counters[i] = eventfd(0, EFD_NONBLOCK);
    for (int round = 0; round < 20; round++) {
        submit_all();
        for (int i = 0; i < 128; i++)
            right += finish(&cbs[i]) == 0 && aio_return(&cbs[i]) == 512;
    }
    say("[aio_read success] 20 times 128 requests after that", "%d right", right);
    for (int i = 0; i < 32; i++) {
        uint64_t value;
        touched += read(counters[i], &value, sizeof value) >= 0 || errno != EAGAIN;
    }
    say("foreign descriptors touched", "%d", touched);
}

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    while (tasks && readdir(tasks))
        n++;
    closedir(tasks);
    return n - 2;
}

static volatile int caught_elsewhere, caught;
static pthread_t program;

static void handler(int number)
{
    (void)number;
    if (pthread_equal(pthread_self(), program))
        caught++;
    else
        caught_elsewhere++;
}

/* Signals to the process go to the program's threads, never to the library's. */
static void signals(void)
{
    struct sigaction action = {.sa_handler = handler};
    sigset_t set, old;
    program = pthread_self();
    sigaction(SIGUSR1, &action, NULL);
    submit_all();
    for (int i = 0; i < 128; i++)
        finish(&cbs[i]);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    for (int i = 0; i < 50; i++) {
        kill(getpid(), SIGUSR1);
        submit_all();
        for (int j = 0; j < 128; j++)
            finish(&cbs[j]);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    say("signals to the process", "%s by the program's thread, %d by others",
        caught ? "taken" : "not taken", caught_elsewhere);
}

int main(void)
{
    fd = temp_file(64 * PAGE);
    ended("[aio_read exit] exit with 128 in flight", 0);
    ended("[aio_read exit] _exit with 128 in flight", 1);
    ended("[aio_read exit] exec with 128 in flight", 2);
    ended("[aio_read exit] exit with one blocked on a pipe", 3);
    in_child(closed_while_queued);
    in_child(blocked);
    in_child(signals);
    in_child(closed_behind_the_back);
    yes("no threads before any use", threads() == 1);
    return 0;
}
