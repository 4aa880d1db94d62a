/* aio_suspend: what it waits for, and what ends it. */
#include "common.h"

static unsigned char buf[4][PAGE];
static volatile int caught;
static const struct aiocb *const *volatile no_list;

static void handler(int number)
{
    (void)number;
    __atomic_add_fetch(&caught, 1, __ATOMIC_RELEASE);
}

static void lists(void)
{
    int fd = temp_file(4 * PAGE), ends[2];
    make_pipe(ends);
    const struct aiocb *none[3] = {NULL, NULL, NULL};
    struct timespec soon = {0, 50000000};
    double begin = now();
    say("[aio_suspend NULL entries] all NULL, 50 ms", "%s", call(aio_suspend(none, 3, &soon)));
    say("[aio_suspend NULL entries] all NULL, no timeout", "%s", call(aio_suspend(none, 3, NULL)));
    say("[aio_suspend empty list] no entries, 50 ms", "%s", call(aio_suspend(none, 0, &soon)));
    say("[aio_suspend empty list] no entries, no timeout", "%s", call(aio_suspend(none, 0, NULL)));
    say("[aio_suspend empty list] no entries, no list", "%s", call(aio_suspend(no_list, 0, NULL)));
    say("[aio_suspend EINVAL] -1 entries", "%s", call(aio_suspend(none, -1, &soon)));
    say("[aio_suspend EINVAL] the smallest number of entries", "%s",
        call(aio_suspend(no_list, INT_MIN, NULL)));
    yes("none of them waits", now() - begin < 10);

    struct aiocb blocked = block(ends[0], buf[0], 16, 0), quick = block(fd, buf[1], 16, 0);
    if (aio_read(&blocked) || aio_read(&quick))
        die("aio_read");
    finish(&quick);
    const struct aiocb *mixed[] = {NULL, &blocked, &quick, NULL};
    say("[aio_suspend success] one of two done", "%s", call(aio_suspend(mixed, 4, NULL)));
    say("the other one then", "%s", state(&blocked));
    struct timespec zero = {0, 0}, past = {-1, 0}, odd = {0, 1000000000}, negative = {0, -1};
    const struct aiocb *one[] = {&blocked};
    const struct aiocb *done[] = {&quick};
    say("[aio_suspend success] done, timeout 0", "%s", call(aio_suspend(done, 1, &zero)));
    say("[aio_suspend success] done, bad timeout", "%s", call(aio_suspend(done, 1, &odd)));
    say("[aio_suspend EAGAIN] timeout 0", "%s", call(aio_suspend(one, 1, &zero)));
    begin = now();
    say("[aio_suspend EAGAIN] timeout 50 ms", "%s", call(aio_suspend(one, 1, &soon)));
    yes("at least 50 ms", now() - begin >= 0.05);
    const struct aiocb *holes[] = {NULL, &blocked, NULL};
    say("[aio_suspend EAGAIN] timeout with NULL entries", "%s", call(aio_suspend(holes, 3, &soon)));
    const struct aiocb *twice[] = {&blocked, &blocked};
    say("[aio_suspend EAGAIN] timeout, the same twice", "%s", call(aio_suspend(twice, 2, &soon)));
    say("[aio_suspend timeout out of range] negative seconds", "%s",
        call(aio_suspend(one, 1, &past)));
    say("[aio_suspend timeout out of range] too many nanoseconds", "%s",
        call(aio_suspend(one, 1, &odd)));
    say("[aio_suspend timeout out of range] negative nanoseconds", "%s",
        call(aio_suspend(one, 1, &negative)));
    put(ends[1], "x");
    say("[aio_suspend success] the pipe has something", "%s", call(aio_suspend(one, 1, NULL)));
    say("what it read", "%s", state(&blocked));
    say("[aio_suspend success] the same twice", "%s", call(aio_suspend(twice, 2, NULL)));

    struct aiocb never = block(ends[0], buf[0], 16, 0), bad = block(-1, buf[2], 16, 0);
    if (aio_read(&blocked) || aio_read(&bad))
        die("aio_read");
    const struct aiocb *failed[] = {&blocked, &bad};
    say("[aio_suspend success] one that fails", "%s", call(aio_suspend(failed, 2, NULL)));
    const struct aiocb *fresh[] = {&blocked, &never};
    say("[aio_suspend success] one never submitted", "%s", call(aio_suspend(fresh, 2, NULL)));
    put(ends[1], "x");
    finish(&blocked);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

static pthread_t waiting;
static int pipe_of_it[2];

/* Sends three signals to the sleeping waiter. Once it sleeps again, writes data for the read. */
static void *disturb(void *tid)
{
    for (int i = 0; i < 3; i++) {
        int before = caught;
        until_asleep((pid_t)(intptr_t)tid);
        pthread_kill(waiting, SIGUSR1);
        until(&caught, before + 1);
    }
    until_asleep((pid_t)(intptr_t)tid);
    put(pipe_of_it[1], "x");
    return NULL;
}

static void signals(const char *name, int flags, const struct timespec *timeout)
{
    pthread_t thread;
    make_pipe(pipe_of_it);
    struct aiocb blocked = block(pipe_of_it[0], buf[0], 16, 0);
    const struct aiocb *list[] = {&blocked};
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
    if (aio_read(&blocked))
        die("aio_read");
    waiting = pthread_self();
    int before = caught, interrupted = 0;
    if (pthread_create(&thread, NULL, disturb, (void *)(intptr_t)getpid()))
        die("pthread_create");
    while (aio_suspend(list, 1, timeout)) {
        if (errno != EINTR)
            die("aio_suspend");
        interrupted++;
    }
    say(name, "%d signals, %d times EINTR", caught - before, interrupted);
    pthread_join(thread, NULL);
    if (strcmp(state(&blocked), "return 1"))
        die("the read: %s", state(&blocked));
    close(pipe_of_it[0]);
    close(pipe_of_it[1]);
}

/* The library waits for direct reads in another way than for pipes; programs must not see a
 * difference. */
static void direct_signals(void)
{
    enum { N = 1000 };
    int fd = temp_file(PAGE), direct = reopen(fd, O_RDWR | O_DIRECT), interrupted = 0,
        before = caught;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    unsigned char *page = pages(PAGE);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < N || caught == before; i++) {
        struct aiocb cb = block(direct < 0 ? fd : direct, page, PAGE, 0), other = cb;
        const struct aiocb *list[] = {&cb};
        if (aio_read(&cb) || aio_read(&other))
            die("aio_read");
        while (aio_suspend(list, 1, NULL))
            interrupted += errno == EINTR;
        finish(&cb);
        finish(&other);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    alarm(SECONDS_MAX);
    say("[aio_suspend EINTR] 1000 waits for direct reads among signals, SA_RESTART",
        "%d times EINTR", interrupted);
    close(direct);
    close(fd);
}

/* aio_suspend returns at once if a request is done, however many others are pending. */
static void many(void)
{
    enum { N = 200 };
    static struct aiocb cbs[N];
    static char bytes[N];
    const struct aiocb *list[N];
    int fd = temp_file(PAGE), left = N, calls = 0;
    for (int i = 0; i < N; i++) {
        cbs[i] = block(fd, &bytes[i], 1, i);
        list[i] = &cbs[i];
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    while (left) {
        if (aio_suspend(list, N, NULL))
            die("aio_suspend");
        for (int i = 0; i < N; i++)
            if (list[i] && aio_error(list[i]) != EINPROGRESS) {
                list[i] = NULL;
                left--;
            }
        if (++calls > N)
            die("aio_suspend returns for nothing");
    }
    int right = 0;
    for (int i = 0; i < N; i++)
        right += aio_return(&cbs[i]) == 1 && bytes[i] == (char)(i % 251);
    say("[aio_suspend success] 200 reads reaped as they come", "%d right", right);
    close(fd);
}

int main(void)
{
    lists();
    struct timespec half_minute = {30, 0};
    signals("[aio_suspend EINTR] signals", 0, NULL);
    signals("[aio_suspend EINTR] signals within the timeout", 0, &half_minute);
    /* Natively, aio_suspend sleeps in a futex call, which the kernel restarts unless the call has a
     * timeout. */
    signals("[aio_suspend EINTR] signals, SA_RESTART", SA_RESTART, NULL);
    signals("[aio_suspend EINTR] signals within the timeout, SA_RESTART", SA_RESTART, &half_minute);
    many();
    direct_signals();
    return 0;
}
