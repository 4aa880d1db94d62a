/* A buffered request that does not sleep is complete for the very next io_getevents, even if the
 * timeout is zero. */
#include "common.h"

#define ROUNDS 200
#define BATCH 8

static unsigned char *buf;
static int fd;

static void rounds(io_context_t ctx, const char *kind, int write, int batch,
                   struct timespec *timeout)
{
    struct iocb iocbs[BATCH], *list[BATCH];
    struct io_event events[BATCH];
    int visible = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < batch; i++) {
            list[i] = &iocbs[i];
            long long offset = (long long)(round + i) % 64 * PAGE;
            if (write)
                io_prep_pwrite(list[i], fd, buf + i * PAGE, PAGE, offset);
            else
                io_prep_pread(list[i], fd, buf + i * PAGE, PAGE, offset);
        }
        if (io_submit(ctx, batch, list) != batch)
            die("submit");
        long got = io_getevents(ctx, 0, batch, events, timeout);
        visible += got == batch;
        if (got < batch)
            reap(ctx, batch - (got > 0 ? got : 0), events);
    }
    /* On a busy machine a thread may lose its CPU during a batch, and seem to sleep. So one round
     * in twenty may miss requests. */
    if (visible >= ROUNDS - ROUNDS / 20)
        say(kind, "there");
    else
        say(kind, "%d of %d", visible, ROUNDS);
}

int main(void)
{
    io_context_t ctx = setup(16);
    struct timespec zero = {0, 0}, millisecond = {0, 1000000};
    buf = pages(BATCH * PAGE);
    fd = temp_file(64 * PAGE);
    rounds(ctx, "reads, no time", 0, 1, &zero);
    rounds(ctx, "reads, 1 ms", 0, 1, &millisecond);
    rounds(ctx, "reads, forever", 0, 1, NULL);
    rounds(ctx, "8 reads, no time", 0, 8, &zero);
    rounds(ctx, "writes, no time", 1, 1, &zero);
    rounds(ctx, "writes, forever", 1, 1, NULL);
    rounds(ctx, "8 writes, no time", 1, 8, &zero);
    rounds(ctx, "8 writes, forever", 1, 8, NULL);
    /* The same check of the first request of each fresh context. */
    int first = 0;
    for (int round = 0; round < 50; round++) {
        io_context_t fresh = setup(4);
        struct iocb iocb;
        struct io_event event;
        io_prep_pread(&iocb, fd, buf, PAGE, 0);
        if (submit1(fresh, &iocb) != 1)
            die("submit");
        first += io_getevents(fresh, 0, 1, &event, &zero) == 1;
        io_destroy(fresh);
    }
    say("first read of a fresh context", "%d of 50", first);
    answer("destroy", io_destroy(ctx));
    return 0;
}
