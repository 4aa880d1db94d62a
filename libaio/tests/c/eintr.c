/* io_getevents and signals: a signal interrupts the call if there are no events. Handlers run on
 * the waiting thread. */
#include "common.h"

static volatile sig_atomic_t handled, elsewhere;
static pid_t main_thread;

static void handler(int signal)
{
    (void)signal;
    handled = 1;
    elsewhere |= gettid() != main_thread;
}

static io_context_t ended;
static volatile long ended_how = 1;

/* A signal handler that destroys the context, as the handler of SIGTERM in a program may. */
static void end(int signal)
{
    (void)signal;
    if (ended_how == 1)
        ended_how = io_destroy(ended);
}

static void ring_in(long milliseconds)
{
    struct itimerval timer = {{0, 20000}, {0, milliseconds * 1000}};
    handled = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void quiet(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
}

int main(void)
{
    main_thread = gettid();
    io_context_t ctx = setup(64);
    int fd = temp_file(64 * PAGE), ends[2];
    static unsigned char buf[64][PAGE];
    struct iocb iocb, poll;
    struct io_event events[64];
    struct timespec minute = {60, 0};
    if (pipe(ends))
        die("pipe");
    io_prep_pread(&iocb, fd, buf[0], PAGE, 0);
    io_prep_poll(&poll, ends[0], POLLIN);

    for (int restart = 0; restart < 2; restart++) {
        char name[96];
        struct sigaction action = {.sa_handler = handler, .sa_flags = restart ? SA_RESTART : 0};
        sigaction(SIGALRM, &action, NULL);
        const char *kind = restart ? "SA_RESTART" : "plain";
        ring_in(50);
        long got = io_getevents(ctx, 1, 4, events, NULL);
        quiet();
        snprintf(name, sizeof name, "%s, empty, forever", kind);
        say(name, "%s, handled %d", code(got), (int)handled);
        ring_in(50);
        got = io_getevents(ctx, 1, 4, events, &minute);
        quiet();
        snprintf(name, sizeof name, "%s, empty, a minute", kind);
        say(name, "%s, handled %d", code(got), (int)handled);

        if (submit1(ctx, &poll) != 1)
            die("submit");
        ring_in(50);
        got = io_getevents(ctx, 1, 4, events, NULL);
        quiet();
        snprintf(name, sizeof name, "%s, a poll in flight", kind);
        say(name, "%s, handled %d", code(got), (int)handled);
        io_cancel(ctx, &poll, &events[0]);
        reap(ctx, 1, events);

        if (submit1(ctx, &iocb) != 1)
            die("submit");
        ring_in(50);
        got = io_getevents(ctx, 2, 4, events, NULL);
        quiet();
        snprintf(name, sizeof name, "%s, one there, two wanted", kind);
        say(name, "%s, handled %d", code(got), (int)handled);
        ring_in(50);
        if (submit1(ctx, &iocb) != 1)
            die("submit");
        while (!handled)
            usleep(1000);
        quiet();
        got = io_getevents(ctx, 1, 4, events, &minute);
        snprintf(name, sizeof name, "%s, signal long over", kind);
        answer(name, got);
    }

    /* Reads go on under a storm of signals, and none of them is affected. */
    struct itimerval storm = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &storm, NULL);
    static struct iocb many[64];
    struct iocb *list[64];
    long right = 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 64; i++) {
            list[i] = &many[i];
            if (round % 2)
                io_prep_pwrite(list[i], fd, buf[i], PAGE, (long long)i * PAGE);
            else
                io_prep_pread(list[i], fd, buf[i], PAGE, (long long)i * PAGE);
        }
        for (long sent = 0; sent < 64;) {
            long got = io_submit(ctx, 64 - sent, list + sent);
            if (got < 0)
                die("io_submit: %s", code(got));
            sent += got;
        }
        reap(ctx, 64, events);
        for (int i = 0; i < 64; i++)
            right += events[i].res == PAGE;
    }
    quiet();
    say("under a storm of signals", "%ld right", right);
    yes("no handler ran on another thread", !elsewhere);

    struct sigaction action = {.sa_handler = end};
    sigaction(SIGALRM, &action, NULL);
    ended = setup(8);
    ring_in(50);
    long got = io_getevents(ended, 1, 4, events, NULL);
    quiet();
    say("destroyed by a handler", "%s", code(ended_how));
    answer("io_getevents that it has interrupted", got);
    answer("destroy", io_destroy(ctx));
    return 0;
}
