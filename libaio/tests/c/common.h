/* The common part of the differential programs beside answers.h: the layout of the ring, and
 * functions that make and reap requests. */
#ifndef COMMON_H
#define COMMON_H

#include "../support/answers.h"
#include <libaio.h>

/* The ring that an io_context_t points to (fs/aio.c, struct aio_ring). */
struct ring {
    unsigned id, nr, head, tail;
    unsigned magic, compat_features, incompat_features, header_length;
    struct io_event events[];
};

__attribute__((constructor)) static void check_library(void)
{
    the_right_library("LIBAIO_EXPECTED", "io_setup", "/libaio.so.1");
}

UNUSED static int is_original(void)
{
    const char *expected = getenv("LIBAIO_EXPECTED");
    return expected && !strcmp(expected, "original");
}

/* The original's contexts count against a limit of the machine (aio-max-nr), which other
 * programs exhaust for moments. The drop-in makes contexts beyond that limit, too. */
UNUSED static int set_up(int events, io_context_t *ctx)
{
    for (int tries = 0;; tries++) {
        int got = io_setup(events, ctx);
        if (got != -EAGAIN || !is_original() || tries == 10000)
            return got;
        usleep(1000);
    }
}

UNUSED static io_context_t setup(int events)
{
    io_context_t ctx = NULL;
    int got = set_up(events, &ctx);
    if (got)
        die("io_setup(%d): %s", events, code(got));
    return ctx;
}

UNUSED static int submit1(io_context_t ctx, struct iocb *iocb)
{
    return io_submit(ctx, 1, &iocb);
}

/* Reaps exactly `n` events within 20 s, or ends the program. */
UNUSED static void reap(io_context_t ctx, long n, struct io_event *events)
{
    for (long got = 0; got < n;) {
        struct timespec timeout = {20, 0};
        long more = io_getevents(ctx, n - got, n - got, events + got, &timeout);
        if (more == -EINTR)
            continue;
        if (more <= 0)
            die("io_getevents: %s after %ld of %ld events", code(more), got, n);
        got += more;
    }
}

/* Submits one request, reaps it, and prints its result. */
UNUSED static long request(io_context_t ctx, const char *name, struct iocb *iocb)
{
    static uintptr_t tag = 0x5eed;
    struct io_event event;
    iocb->data = (void *)++tag;
    long got = submit1(ctx, iocb);
    if (got != 1) {
        say(name, "submit %s", code(got));
        return got;
    }
    reap(ctx, 1, &event);
    long res = (long)event.res;
    say(name, "res %s%s%s%s", code(res), event.obj == iocb ? "" : ", foreign obj",
        event.data == (void *)tag ? "" : ", foreign data", event.res2 == 0 ? "" : ", res2 not 0");
    return res;
}

/* The number of events in the ring. */
UNUSED static unsigned ready(io_context_t ctx)
{
    struct ring *ring = (struct ring *)ctx;
    unsigned head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    return (tail + ring->nr - head) % ring->nr;
}

#endif
