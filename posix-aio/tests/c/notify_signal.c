/* SIGEV_NONE and SIGEV_SIGNAL: which thread gets which signal, and when. */
#include "common.h"

static unsigned char buf[4][PAGE];
static sigset_t set;

static struct sigevent signal_event(int number, int value)
{
    return (struct sigevent){
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = number, .sigev_value.sival_int = value};
}

static const char *next_signal(int milliseconds)
{
    static char text[128];
    siginfo_t info;
    struct timespec while_ = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    memset(&info, 0, sizeof info);
    int got = sigtimedwait(&set, &info, &while_);
    if (got < 0)
        return "none";
    snprintf(text, sizeof text, "%s, %s, value %d, %s, %s",
             got == SIGRTMIN  ? "SIGRTMIN"
             : got == SIGUSR2 ? "SIGUSR2"
                              : "another",
             info.si_code == SI_ASYNCIO ? "SI_ASYNCIO"
             : info.si_code == SI_USER  ? "SI_USER"
                                        : "another code",
             info.si_value.sival_int, info.si_pid == getpid() ? "this process" : "another process",
             info.si_uid == getuid() ? "this user" : "another user");
    return text;
}

/* Submits a request, and prints its signal and its state when the signal comes. */
static void signalled(const char *name, int (*submit)(struct aiocb *), struct aiocb *cb)
{
    if (submit(cb)) {
        const char *why = call(-1);
        say(name, "refused %s, signal %s", why, next_signal(50));
        return;
    }
    const char *text = next_signal(10000);
    say(name, "%s; %s", text, state(cb));
}

static int sync_it(struct aiocb *cb)
{
    return aio_fsync(O_SYNC, cb);
}

static int datasync_it(struct aiocb *cb)
{
    return aio_fsync(O_DSYNC, cb);
}

static void basics(void)
{
    int fd = temp_file(PAGE);
    struct aiocb cb = block(fd, buf[0], 16, 0);
    request("[aio_read SIGEV_NONE] a read", aio_read, &cb);
    request("[aio_write SIGEV_NONE] a write", aio_write, &cb);
    request("[aio_fsync SIGEV_NONE] a sync", sync_it, &cb);
    say("signals of SIGEV_NONE", "%s", next_signal(50));
    cb.aio_sigevent = signal_event(SIGRTMIN, 4711);
    signalled("[aio_read SIGEV_SIGNAL] a read's", aio_read, &cb);
    cb.aio_sigevent = signal_event(SIGUSR2, -1);
    signalled("[aio_write SIGEV_SIGNAL] a write's", aio_write, &cb);
    signalled("[aio_fsync SIGEV_SIGNAL] a sync's", sync_it, &cb);
    cb.aio_sigevent = signal_event(SIGRTMIN, 5);
    signalled("[aio_fsync SIGEV_SIGNAL] a data sync's", datasync_it, &cb);
    cb = block(-1, buf[0], 16, 0);
    cb.aio_sigevent = signal_event(SIGRTMIN, 1);
    signalled("[aio_read SIGEV_SIGNAL] a failed read's", aio_read, &cb);
    signalled("[aio_write SIGEV_SIGNAL] a failed write's", aio_write, &cb);
    signalled("[aio_fsync SIGEV_SIGNAL] a refused sync's", sync_it, &cb);
    cb = block(fd, buf[0], 16, 0);
    cb.aio_sigevent = signal_event(SIGRTMIN, 2);
    cb.aio_reqprio = 21;
    signalled("[aio_read SIGEV_SIGNAL] a refused read's", aio_read, &cb);
    /* The signal's value has all bits of a pointer. */
    cb.aio_reqprio = 0;
    cb.aio_sigevent.sigev_value.sival_ptr = &cb;
    siginfo_t info;
    if (aio_read(&cb))
        die("aio_read");
    yes("[aio_read SIGEV_SIGNAL] a pointer in the value",
        sigwaitinfo(&set, &info) == SIGRTMIN && info.si_ptr == &cb);
    /* An unknown value of sigev_notify means no notification. */
    cb.aio_sigevent = signal_event(SIGRTMIN, 3);
    cb.aio_sigevent.sigev_notify = SIGEV_THREAD_ID;
    request("[aio_read unknown sigev_notify] SIGEV_THREAD_ID", aio_read, &cb);
    cb.aio_sigevent.sigev_notify = 77;
    request("[aio_read unknown sigev_notify] 77", aio_read, &cb);
    cb.aio_sigevent = signal_event(999, 3);
    /* The failure to send the signal comes when the request is done, and becomes its outcome. */
    if (aio_read(&cb))
        die("aio_read");
    for (int i = 0; i < 2000 && aio_error(&cb) != EINVAL; i++)
        usleep(1000);
    say("[aio_read SIGEV_SIGNAL of no signal] signal 999", "%s", state(&cb));
    cb.aio_sigevent = signal_event(0, 3);
    request("[aio_read SIGEV_SIGNAL of no signal] signal 0", aio_read, &cb);
    memset(&cb.aio_sigevent, 0, sizeof cb.aio_sigevent);
    request("[aio_read SIGEV_SIGNAL of no signal] a zeroed sigevent", aio_read, &cb);
    say("signals of those", "%s", next_signal(50));
    close(fd);
}

/* When aio_cancel returns, the notification of the cancelled request has been sent. */
static void of_cancelled(void)
{
    int ends[2];
    make_pipe(ends);
    struct aiocb first = block(ends[0], buf[0], 16, 0), second = first, third = first;
    second.aio_sigevent = signal_event(SIGRTMIN, 2);
    third.aio_sigevent = signal_event(SIGRTMIN, 3);
    if (aio_read(&first) || aio_read(&second) || aio_read(&third))
        die("aio_read");
    cancelled("[aio_cancel AIO_CANCELED] the third", ends[0], &third);
    say("[aio_cancel notifies] the third's signal", "%s", next_signal(0));
    cancelled("[aio_cancel AIO_NOTCANCELED] all", ends[0], NULL);
    say("[aio_cancel notifies] the second's signal", "%s", next_signal(0));
    say("no more signals", "%s", next_signal(50));
    put(ends[1], "x");
    finish(&first);
}

/* Real-time signals queue, in the order of completion. */
static void queueing(void)
{
    enum { N = 100 };
    static struct aiocb cbs[N];
    int fd = temp_file(PAGE), ends[2], all = 0, ordered = 0;
    siginfo_t info;
    struct timespec while_ = {10, 0};
    char seen[N] = "";
    for (int i = 0; i < N; i++) {
        cbs[i] = block(fd, buf[i % 4], 16, 0);
        cbs[i].aio_sigevent = signal_event(SIGRTMIN, i);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = 0; i < N; i++)
        if (sigtimedwait(&set, &info, &while_) == SIGRTMIN && info.si_int >= 0 && info.si_int < N &&
            !seen[info.si_int]) {
            seen[info.si_int] = 1;
            all++;
        }
    say("[aio_read SIGEV_SIGNAL] 100 reads", "%d signals, then %s", all, next_signal(50));
    make_pipe(ends);
    for (int i = 0; i < N; i++) {
        cbs[i] = block(ends[0], buf[i % 4], 1, 0);
        cbs[i].aio_sigevent = signal_event(SIGRTMIN, i);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = 0; i < N; i++)
        put(ends[1], "x");
    for (int i = 0; i < N; i++)
        ordered += sigtimedwait(&set, &info, &while_) == SIGRTMIN && info.si_int == i;
    say("[aio_read SIGEV_SIGNAL] 100 reads of a pipe, in order", "%d", ordered);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

/* A handler that submits the next request, as the manual page of aio(7) suggests. */
static struct aiocb chained;
static volatile int rounds, failures;

static void handler(int number, siginfo_t *info, void *context)
{
    struct aiocb *cb = info->si_value.sival_ptr;
    (void)number;
    (void)context;
    int kept = errno;
    if (info->si_code != SI_ASYNCIO || cb != &chained || aio_error(cb) || aio_return(cb) != 16)
        failures++;
    if (__atomic_add_fetch(&rounds, 1, __ATOMIC_RELEASE) < 200 && aio_read(cb))
        failures++;
    errno = kept;
}

static void chain(void)
{
    int fd = temp_file(PAGE);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    chained = block(fd, buf[0], 16, 0);
    chained.aio_sigevent = signal_event(SIGUSR1, 0);
    chained.aio_sigevent.sigev_value.sival_ptr = &chained;
    if (aio_read(&chained))
        die("aio_read");
    until(&rounds, 200);
    say("[aio_read SIGEV_SIGNAL; aio_error in a handler; aio_return in a handler] "
        "a handler that submits the next",
        "%d times, %d failures", rounds, failures);
    close(fd);
}

/* The signal goes to a thread of the program that has it unblocked, never to the library's
 * threads. */
static void *other_thread(void *argument)
{
    sigset_t one;
    siginfo_t info;
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN + 3);
    *(int *)argument = sigwaitinfo(&one, &info) == SIGRTMIN + 3 ? info.si_int : -1;
    return NULL;
}

static void to_the_process(void)
{
    int fd = temp_file(PAGE), value = 0;
    pthread_t thread;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &one, NULL);
    if (pthread_create(&thread, NULL, other_thread, &value))
        die("pthread_create");
    struct aiocb cb = block(fd, buf[0], 16, 0);
    cb.aio_sigevent = signal_event(SIGRTMIN + 3, 9);
    request("a read for another thread", aio_read, &cb);
    pthread_join(thread, NULL);
    say("[aio_read SIGEV_SIGNAL] another thread gets it", "%d", value);
    close(fd);
}

int main(void)
{
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    in_child(of_cancelled);
    basics();
    queueing();
    chain();
    to_the_process();
    return 0;
}
