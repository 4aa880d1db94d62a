/* The child of a fork: its own requests, and what it sees of its parent's requests. */
#include "common.h"

static unsigned char buf[4][PAGE];
static int fd, ends[2];
static struct aiocb blocked, queued;

/* A read in a child, with a limit of two seconds: natively it may never end. */
static void bounded_read(const char *name)
{
    static struct aiocb cb;
    static unsigned char bytes[16];
    cb = block(fd, bytes, 16, 0);
    if (aio_read(&cb)) {
        say(name, "refused %s", call(-1));
        return;
    }
    for (int i = 0; i < 2000 && aio_error(&cb) == EINPROGRESS; i++)
        usleep(1000);
    say(name, "%s", state(&cb));
}

static void unused(void)
{
    bounded_read("[aio_read in a child] a child before any aio");
}

static void sees(void)
{
    say("[aio_error in a child] the parent's running request", "%s", state(&blocked));
    say("[aio_error in a child] the parent's queued request", "%s", state(&queued));
    struct timespec moment = {0, 50000000};
    cancelled("[aio_cancel in a child] cancel the parent's running request", ends[0], &blocked);
    cancelled("[aio_cancel in a child] cancel the parent's queued request", ends[0], &queued);
    const struct aiocb *list[] = {&blocked};
    say("[aio_suspend in a child] a wait for the parent's", "%s",
        call(aio_suspend(list, 1, &moment)));
    /* No helper of the parent was idle: natively, the child starts a thread. */
    bounded_read("[aio_read in a child] a child while a request of the parent's runs");
    say("[aio_write in a child; aio_fsync in a child] its sync", "%s",
        call(aio_fsync(
            O_SYNC, &(struct aiocb){.aio_fildes = fd, .aio_sigevent.sigev_notify = SIGEV_NONE})));
}

static void idle(void)
{
    bounded_read("[aio_read in a child] a child while the parent's helper idles");
}

static void busy_parent(void)
{
    make_pipe(ends);
    blocked = block(ends[0], buf[0], 16, 0);
    queued = block(ends[0], buf[1], 16, 0);
    if (aio_read(&blocked) || aio_read(&queued))
        die("aio_read");
    in_child(sees);
    say("the parent's running request after a child", "%s", state(&blocked));
    put(ends[1], "hello");
    finish(&blocked);
    say("it completes in the parent", "%s", state(&blocked));
    yes("with its bytes", memcmp(buf[0], "hello", 5) == 0);
    put(ends[1], "world");
    finish(&queued);
    say("the queued one", "%s", state(&queued));
    struct aiocb cb = block(fd, buf[2], 16, 0);
    request("[aio_read success] the parent's next read", aio_read, &cb);
}

/* Makes the parent's helper idle. Natively, the helper sends the notification under a lock, and
 * is idle once the lock is free again. So this calls aio_cancel, which takes the lock. */
static void idle_parent(void)
{
    struct aioinit init = {.aio_threads = 1, .aio_num = 32, .aio_idle_time = 20};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    aio_init(&init);
    struct aiocb cb = block(fd, buf[0], 16, 0);
    cb.aio_sigevent = (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    if (aio_read(&cb) || sigwaitinfo(&set, NULL) != SIGRTMIN || finish(&cb))
        die("aio_read");
    aio_cancel(fd, NULL);
    in_child(idle);
    request("[aio_read success] the parent after such a child", aio_read, &cb);
}

static void many(void)
{
    int right = 0;
    for (int i = 0; i < 100; i++) {
        struct aiocb cb = block(fd, buf[0], 16, 0);
        if (aio_read(&cb))
            die("aio_read");
        pid_t pid = fork();
        if (pid == 0)
            /* Natively, even aio_error may hang here: it takes a lock that the parent's helper
             * may have held. */
            _exit(0);
        int status;
        right += finish(&cb) == 0 && aio_return(&cb) == 16 && waitpid(pid, &status, 0) == pid &&
                 status == 0;
    }
    say("[aio_read success] 100 forks with a read in flight", "%d right", right);
    pid_t pid = vfork();
    if (pid == 0)
        _exit(7);
    int status;
    waitpid(pid, &status, 0);
    say("vfork", "%d", WEXITSTATUS(status));
    say("a child through system", "%d", system("exit 5") >> 8);
}

static void grandchild(void)
{
    bounded_read("[aio_read in a child] grandchild");
}

static void with_child(void)
{
    make_pipe(ends);
    blocked = block(ends[0], buf[0], 16, 0);
    if (aio_read(&blocked))
        die("aio_read");
    in_child(grandchild);
}

/* A child may call exit(3) while its parent has requests in flight. */
static void leaves(void)
{
    exit(0);
}

static void leaving(void)
{
    make_pipe(ends);
    blocked = block(ends[0], buf[0], 16, 0);
    if (aio_read(&blocked))
        die("aio_read");
    in_child(leaves);
    put(ends[1], "x");
    finish(&blocked);
    say("the parent's request after a child's exit", "%s", state(&blocked));
}

int main(void)
{
    fd = temp_file(PAGE);
    in_child(unused);
    in_child(busy_parent);
    in_child(idle_parent);
    in_child(with_child);
    in_child(leaving);
    many();
    return 0;
}
