/* A process submits buffered writes, and then ends or executes another program, in one of many
 * ways. The data of the writes are in the file afterwards. */
#include "common.h"
#include <pty.h>
#include <spawn.h>

enum { BLOCKS = 32 };

extern char **environ;

static unsigned char block[BLOCKS][PAGE];
static int fd;
static char *self;
static io_context_t ctx;

static int written(void)
{
    static unsigned char back[PAGE];
    int right = 0;
    for (int i = 0; i < BLOCKS; i++)
        right += pread(fd, back, PAGE, i * PAGE) == PAGE && !memcmp(back, block[i], PAGE);
    return right;
}

/* Submits all writes. Those of the second half append, so they have to be executed in order. */
static void submits(void)
{
    static struct iocb iocbs[BLOCKS];
    struct iocb *list[BLOCKS];
    ctx = setup(BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], fd, block[i], PAGE, i * PAGE);
        if (i >= BLOCKS / 2)
            iocbs[i].aio_rw_flags = RWF_APPEND;
    }
    /* The first four requests are submitted one by one, the rest together. */
    for (int i = 0; i < 4; i++)
        if (io_submit(ctx, 1, list + i) != 1)
            die("io_submit");
    if (io_submit(ctx, BLOCKS - 4, list + 4) != BLOCKS - 4)
        die("io_submit");
}

static void ended(pid_t pid)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        die("no child");
    if (!WIFEXITED(status) || WEXITSTATUS(status) > BLOCKS)
        die("status %x", status);
}

/* Ends this process, with status 0 if the child, which reads the file, has found the data of all
 * writes. */
static void by_child(pid_t pid)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        die("no child");
    _exit(WEXITSTATUS(status) == BLOCKS ? 0 : 1);
}

static void by_exit(void) { exit(0); }
static void by_Exit(void) { _Exit(0); }
static void by__exit(void) { _exit(0); }
static void by_quick_exit(void) { quick_exit(0); }
static void by_number(void) { syscall(SYS_exit_group, 0); }
static void by_return(void) {}

static char *const true_program[] = {"true", NULL};

static void by_execv(void) { execv("/bin/true", true_program); }
static void by_execve(void) { execve("/bin/true", true_program, environ); }
static void by_execvp(void) { execvp("true", true_program); }
static void by_execvpe(void) { execvpe("true", true_program, environ); }
static void by_execl(void) { execl("/bin/true", "true", "1", "2", "3", "4", "5", "6", "7", NULL); }
static void by_execlp(void) { execlp("true", "true", "1", NULL); }
static void by_execle(void) { execle("/bin/true", "true", "1", NULL, environ); }
static void by_fexecve(void) { fexecve(open("/bin/true", O_RDONLY), true_program, environ); }

static void by_execveat(void)
{
    execveat(AT_FDCWD, "/bin/true", true_program, environ, 0);
}

static void by_execve_number(void) { syscall(SYS_execve, "/bin/true", true_program, environ); }

static void by_fork(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(written());
    by_child(pid);
}

static void by_vfork(void)
{
    pid_t pid = vfork();
    if (pid == 0)
        execl("/proc/self/exe", self, "count", NULL);
    by_child(pid);
}

static void by_forkpty(void)
{
    int master;
    pid_t pid = forkpty(&master, NULL, NULL, NULL);
    if (pid == 0)
        _exit(written());
    by_child(pid);
}

static void by_daemon(void) { daemon(1, 1); }

static void by_posix_spawn(void)
{
    pid_t pid;
    char *const arguments[] = {self, "count", NULL};
    by_child(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) ? -1 : pid);
}

static void by_posix_spawnp(void)
{
    pid_t pid;
    char *const arguments[] = {self, "count", NULL};
    by_child(posix_spawnp(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) ? -1 : pid);
}

static const char *command(void)
{
    static char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "'%s' count", self);
    return line;
}

static void by_system(void)
{
    _exit(WEXITSTATUS(system(command())) == BLOCKS ? 0 : 1);
}

static void by_popen(void)
{
    _exit(WEXITSTATUS(pclose(popen(command(), "r"))) == BLOCKS ? 0 : 1);
}

static void by_signal_handler(int number)
{
    (void)number;
    _exit(0);
}

static void by_handler(void)
{
    signal(SIGUSR1, by_signal_handler);
    raise(SIGUSR1);
}

static void by_kill(void) { kill(getpid(), SIGKILL); }
static void by_reading(void) { _exit(written()); }

/* Each child leaves in a signal handler, at any moment of its calls. The test checks only that the
 * child ends. */
static void at_any_moment(void)
{
    static struct iocb iocb;
    struct iocb *list = &iocb;
    struct io_event event;
    int over = 0;
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct itimerval soon = {{0, 0}, {0, 1000 + 37 * i}};
            ctx = setup(4);
            signal(SIGALRM, by_signal_handler);
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                io_prep_pwrite(&iocb, fd, block[0], PAGE, 0);
                if (io_submit(ctx, 1, &list) == 1)
                    io_getevents(ctx, 1, 1, &event, NULL);
            }
        }
        int status;
        over += waitpid(pid, &status, 0) == pid && status == 0;
    }
    say("[io_submit leaves] _exit in a signal handler, at any moment", "%d of 100 end", over);
}

/* If a child ends, or an exec fails, each request of the parent is still executed only once. */
static void once_only(void)
{
    struct io_event events[BLOCKS];
    submits();
    pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    ended(pid);
    pid = fork();
    if (pid == 0)
        exit(0);
    ended(pid);
    execl("/nowhere", "nothing", NULL);
    reap(ctx, BLOCKS, events);
    int right = 0;
    for (int i = 0; i < BLOCKS; i++)
        right += events[i].res == PAGE;
    struct timespec none = {0, 0};
    say("[io_submit leaves] each has completed once after a vfork, a fork and an exec that fails",
        "%d, and %d more", right, io_getevents(ctx, 0, BLOCKS, events, &none));
    say("[io_submit leaves] and each is written once", "%d, %ld", written(),
        (long)lseek(fd, 0, SEEK_END) / PAGE);
}

static const struct {
    const char *name;
    void (*leave)(void);
} ways[] = {
    {"_exit", by__exit},
    {"_Exit", by_Exit},
    {"exit", by_exit},
    {"quick_exit", by_quick_exit},
    {"exit_group by number", by_number},
    {"the end of main", by_return},
    {"_exit in a signal handler", by_handler},
    {"execv", by_execv},
    {"execve", by_execve},
    {"execvp", by_execvp},
    {"execvpe", by_execvpe},
    {"execl", by_execl},
    {"execlp", by_execlp},
    {"execle", by_execle},
    {"fexecve", by_fexecve},
    {"execveat", by_execveat},
    {"execve by number", by_execve_number},
    {"fork", by_fork},
    {"vfork", by_vfork},
    {"forkpty", by_forkpty},
    {"daemon", by_daemon},
    {"posix_spawn", by_posix_spawn},
    {"posix_spawnp", by_posix_spawnp},
    {"system", by_system},
    {"popen", by_popen},
    {"SIGKILL", by_kill},
    {"a read(2) of the same process", by_reading},
};

int main(int argc, char **argv)
{
    static char path[PATH_MAX], name[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    self = length > 0 ? path : argv[0];
    for (int i = 0; i < BLOCKS; i++)
        memset(block[i], 'A' + i, PAGE);
    if (argc > 1) {
        fd = 100;
        return written();
    }
    if (dup2(temp_file(0), 100) != 100)
        die("dup2");
    fd = 100;
    for (size_t i = 0; i < COUNT(ways); i++) {
        if (ftruncate(fd, 0))
            die("ftruncate");
        /* The first half of the blocks exists, so that writes to it do not sleep. The second half
         * is appended. */
        static unsigned char zeros[BLOCKS / 2 * PAGE];
        if (pwrite(fd, zeros, sizeof zeros, 0) != sizeof zeros)
            die("pwrite");
        pid_t pid = fork();
        if (pid == 0) {
            submits();
            ways[i].leave();
            return 0;
        }
        int status;
        if (waitpid(pid, &status, 0) != pid)
            die("waitpid");
        snprintf(name, sizeof name, "[io_submit leaves] %s", ways[i].name);
        if (ways[i].leave == by_reading)
            yes(name, WEXITSTATUS(status) == BLOCKS);
        else if (ways[i].leave == by_kill)
            yes(name, written() == BLOCKS);
        else
            say(name, "%d%s", written(),
                WIFEXITED(status) && WEXITSTATUS(status) ? ", and the child found fewer" : "");
    }
    at_any_moment();
    if (ftruncate(fd, BLOCKS / 2 * PAGE))
        die("ftruncate");
    once_only();
    return 0;
}
