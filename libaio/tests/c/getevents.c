/* io_getevents: counts, addresses, time. */
#include "common.h"

static unsigned char buf[16][PAGE];
static struct iocb iocbs[16], *list[16];

/* Puts `n` events into the ring. */
static void have(io_context_t ctx, int fd, int n)
{
    for (int i = 0; i < n; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], PAGE, (long long)i * PAGE);
    }
    if (io_submit(ctx, n, list) != n)
        die("submit");
    while (ready(ctx) < (unsigned)n)
        usleep(1000);
}

static void handler(int signal)
{
    (void)signal;
}

/* Readable memory that is no context: libaio looks there for a ring's magic number. */
static _Alignas(8) char no_ring[64];

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(16 * PAGE);
    static struct io_event events[64];
    struct timespec zero = {0, 0}, fifth = {0, 200000000}, tenth = {0, 100000000}, hour = {3600, 0};

    answer("empty, min 0, no time", io_getevents(ctx, 0, 8, events, &zero));
    answer("empty, min 1, no time", io_getevents(ctx, 1, 8, events, &zero));
    double start = now();
    answer("empty, min 0, an hour", io_getevents(ctx, 0, 8, events, &hour));
    yes("that took less than 5 s", now() - start < 5);
    answer("empty, min 0, forever", io_getevents(ctx, 0, 8, events, NULL));
    answer("empty, 0 of 0, forever", io_getevents(ctx, 0, 0, events, NULL));
    answer("empty, 0 of 0 to NULL", io_getevents(ctx, 0, 0, NULL, NULL));
    start = now();
    answer("empty, min 1, 200 ms", io_getevents(ctx, 1, 8, events, &fifth));
    double took = now() - start;
    yes("that took 200 ms", took >= 0.2 && took < 5);
    answer("empty, min 8, 200 ms", io_getevents(ctx, 8, 8, events, &fifth));
    answer("empty, to NULL, 200 ms", io_getevents(ctx, 1, 1, NULL, &fifth));
    /* A negative time means no timeout: only the alarm ends the wait. */
    struct timespec past = {-1, 0}, odd = {-1, 1100000000}, negative = {0, -1};
    struct sigaction action = {.sa_handler = handler};
    struct itimerval timer = {{0, 20000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    answer("empty, a negative second", io_getevents(ctx, 1, 1, events, &past));
    answer("empty, a negative nanosecond", io_getevents(ctx, 1, 1, events, &negative));
    setitimer(ITIMER_REAL, &never, NULL);
    /* The kernel's nanoseconds overflow to 0, or to a second. */
    struct timespec least = {LLONG_MIN, 0}, half = {LLONG_MIN / 2, 0}, second = {LLONG_MIN + 1, 0};
    answer("empty, the most negative second", io_getevents(ctx, 1, 1, events, &least));
    answer("empty, half of it", io_getevents(ctx, 1, 1, events, &half));
    answer("empty, one more than it", io_getevents(ctx, 1, 1, events, &second));
    answer("empty, too many nanoseconds", io_getevents(ctx, 1, 1, events, &odd));

    answer("min above nr", io_getevents(ctx, 2, 1, events, &fifth));
    answer("min above nr, no time", io_getevents(ctx, 2, 1, events, &zero));
    answer("min 1 of 0", io_getevents(ctx, 1, 0, events, &fifth));
    answer("min -1", io_getevents(ctx, -1, 1, events, &fifth));
    answer("nr -1", io_getevents(ctx, 0, -1, events, &fifth));
    answer("both -1", io_getevents(ctx, -1, -1, events, &fifth));
    answer("min -1, no time", io_getevents(ctx, -1, 1, events, &zero));
    answer("min -1, forever", io_getevents(ctx, -1, 1, events, NULL));
    answer("min LONG_MIN", io_getevents(ctx, LONG_MIN, 1, events, &fifth));
    answer("bad context", io_getevents((io_context_t)no_ring, 1, 1, events, &fifth));
    answer("NULL context", io_getevents(NULL, 1, 1, events, &fifth));
    answer("bad context, no time", io_getevents((io_context_t)no_ring, 1, 1, events, &zero));
    answer("bad context, min above nr", io_getevents((io_context_t)no_ring, 2, 1, events, &fifth));

    have(ctx, fd, 3);
    answer("3 there, min 0 of 0", io_getevents(ctx, 0, 0, events, &zero));
    answer("3 there, min above nr", io_getevents(ctx, 2, 1, events, &zero));
    answer("3 there, min -1", io_getevents(ctx, -1, 1, events, &zero));
    answer("3 there, to NULL", io_getevents(ctx, 1, 1, NULL, &zero));
    answer("3 there, to NULL, forever", io_getevents(ctx, 1, 1, NULL, NULL));
    answer("3 there, to a bad address", io_getevents(ctx, 1, 3, UNMAPPED, &zero));
    struct io_event *frozen = pages(PAGE);
    mprotect(frozen, PAGE, PROT_READ);
    answer("3 there, to read-only memory", io_getevents(ctx, 1, 3, frozen, &zero));
    unsigned char *edge = last_page();
    struct io_event *two = (struct io_event *)(edge + PAGE) - 2;
    answer("3 there, 2 fit", io_getevents(ctx, 1, 3, two, &zero));
    say("still there", "%u", ready(ctx));
    answer("3 there, 2 taken to where 2 fit", io_getevents(ctx, 1, 2, two, &zero));
    answer("1 there, min 1 of 64", io_getevents(ctx, 1, 64, events, NULL));
    answer("none there", io_getevents(ctx, 1, 64, events, &zero));

    have(ctx, fd, 5);
    answer("5 there, min 1 of 2", io_getevents(ctx, 1, 2, events, NULL));
    answer("3 there, min 0 of 1", io_getevents(ctx, 0, 1, events, &zero));
    start = now();
    answer("2 there, min 4, 100 ms", io_getevents(ctx, 4, 8, events, &tenth));
    took = now() - start;
    yes("that took 100 ms", took >= 0.1 && took < 5);
    have(ctx, fd, 8);
    answer("8 there, min 0, forever", io_getevents(ctx, 0, 64, events, NULL));
    have(ctx, fd, 8);
    answer("8 there, a negative second", io_getevents(ctx, 1, 64, events, &past));
    have(ctx, fd, 8);
    answer("8 there, min 8, an hour", io_getevents(ctx, 8, 8, events, &hour));
    have(ctx, fd, 4);
    answer("4 there, nr LONG_MAX", io_getevents(ctx, 4, LONG_MAX, events, NULL));

    /* Each event comes once, in portions of any size. */
    int seen = 0;
    have(ctx, fd, 16);
    for (int portion = 1, left = 16; left > 0; portion = portion % 3 + 1) {
        long got = io_getevents(ctx, 1, portion, events, NULL);
        for (long i = 0; i < got; i++)
            seen ^= 1 << (events[i].obj - iocbs);
        left -= got > 0 ? (int)got : left;
    }
    yes("16 in portions, each once", seen == 0xffff);
    answer("destroy", io_destroy(ctx));
    return 0;
}
