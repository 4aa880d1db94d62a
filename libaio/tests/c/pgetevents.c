/* io_pgetevents: the signal mask applies while the call waits, and only then. */
#include "common.h"

static volatile sig_atomic_t handled;
static pid_t handler_thread;

static void handler(int signal)
{
    (void)signal;
    handled++;
    handler_thread = gettid();
}

static int blocked(int signal)
{
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    return sigismember(&set, signal);
}

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(4 * PAGE);
    static unsigned char buf[PAGE];
    struct iocb iocb;
    struct io_event events[4];
    struct timespec zero = {0, 0}, fifth = {0, 200000000}, minute = {60, 0};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t usr1, none, all;
    sigemptyset(&none);
    sigfillset(&all);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);

    answer("empty, no mask, 200 ms", io_pgetevents(ctx, 1, 4, events, &fifth, NULL));
    answer("empty, no mask, no time", io_pgetevents(ctx, 1, 4, events, &zero, NULL));
    answer("empty, with a mask, 200 ms", io_pgetevents(ctx, 1, 4, events, &fifth, &all));
    answer("min above nr", io_pgetevents(ctx, 2, 1, events, &fifth, &none));
    answer("nr -1", io_pgetevents(ctx, 0, -1, events, &fifth, &none));
    answer("NULL context", io_pgetevents(NULL, 1, 1, events, &fifth, &none));
    answer("mask at a bad address", io_pgetevents(ctx, 1, 1, events, &fifth, UNMAPPED));

    /* The signal is blocked and pending: it is delivered only if the mask allows it. */
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    raise(SIGUSR1);
    answer("pending, no mask, 200 ms", io_pgetevents(ctx, 1, 4, events, &fifth, NULL));
    say("handled so far", "%d", (int)handled);
    answer("pending, mask that blocks it", io_pgetevents(ctx, 1, 4, events, &fifth, &all));
    say("handled still", "%d", (int)handled);
    answer("pending, empty mask, no time", io_pgetevents(ctx, 1, 4, events, &zero, &none));
    say("handled without a wait", "%d", (int)handled);
    answer("pending, empty mask, a minute", io_pgetevents(ctx, 1, 4, events, &minute, &none));
    say("handled", "%d", (int)handled);
    yes("by this thread", handler_thread == gettid());
    yes("the mask is restored", blocked(SIGUSR1) == 1);

    handled = 0;
    raise(SIGUSR1);
    answer("pending, empty mask, forever", io_pgetevents(ctx, 1, 4, events, NULL, &none));
    say("handled, forever", "%d", (int)handled);

    /* An event in the ring comes before a pending signal. */
    handled = 0;
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    answer("submit", submit1(ctx, &iocb));
    while (ready(ctx) == 0)
        usleep(1000);
    raise(SIGUSR1);
    answer("pending and an event, empty mask", io_pgetevents(ctx, 1, 4, events, &minute, &none));
    yes("the mask is restored again", blocked(SIGUSR1) == 1);
    sigprocmask(SIG_UNBLOCK, &usr1, NULL);
    say("handled in the end", "%d", (int)handled);

    /* The alarm is unblocked outside of the call and blocked in it: it arrives after the call. */
    handled = 0;
    sigset_t inside = usr1;
    struct itimerval timer = {{0, 0}, {0, 50000}};
    struct sigaction alarm_action = {.sa_handler = handler};
    sigaction(SIGALRM, &alarm_action, NULL);
    sigaddset(&inside, SIGALRM);
    setitimer(ITIMER_REAL, &timer, NULL);
    answer("alarm blocked inside, 200 ms", io_pgetevents(ctx, 1, 4, events, &fifth, &inside));
    say("handled after it", "%d", (int)handled);
    handled = 0;
    setitimer(ITIMER_REAL, &timer, NULL);
    answer("alarm let through", io_pgetevents(ctx, 1, 4, events, &minute, &none));
    say("handled during it", "%d", (int)handled);

    request(ctx, "a read afterwards", &iocb);
    answer("one event by pgetevents", submit1(ctx, &iocb));
    answer("it comes", io_pgetevents(ctx, 1, 4, events, &minute, &all));
    answer("destroy", io_destroy(ctx));
    return 0;
}
