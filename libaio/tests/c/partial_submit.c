/* io_submit in part: up to the first bad request, or up to the available room. */
#include "common.h"

#define MANY 1000

static struct iocb iocbs[MANY], *list[MANY];
static struct io_event events[MANY];

static void stop_at(io_context_t ctx, int fd, const char *what, int bad, struct iocb *replacement)
{
    static unsigned char buf[4][512];
    char name[96];
    struct io_event got[4];
    for (int i = 0; i < 4; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], 512, i * 512);
    }
    list[bad] = replacement;
    long first = io_submit(ctx, 4, list);
    snprintf(name, sizeof name, "%s at %d of 4", what, bad);
    answer(name, first);
    if (first > 0)
        reap(ctx, first, got);
    if (first < 0)
        first = 0;
    snprintf(name, sizeof name, "%s at %d of 4, the rest", what, bad);
    long rest = io_submit(ctx, 4 - first, list + first);
    answer(name, rest);
    if (rest > 0)
        reap(ctx, rest, got);
    snprintf(name, sizeof name, "%s at %d of 4, behind it", what, bad);
    rest = io_submit(ctx, 3 - bad, list + bad + 1);
    answer(name, rest);
    if (rest > 0)
        reap(ctx, rest, got);
}

/* Fills a context with polls on an empty pipe, empties it, and fills it again. */
static void fill(int size, int at_once)
{
    int ends[2];
    char name[96];
    if (pipe(ends))
        die("pipe");
    io_context_t ctx = setup(size);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            list[i] = &iocbs[i];
            io_prep_poll(list[i], ends[0], POLLIN);
        }
        long taken = 0, got;
        do {
            got = io_submit(ctx, at_once, list + taken);
            taken += got > 0 ? got : 0;
        } while (got > 0 && taken + at_once <= MANY);
        snprintf(name, sizeof name, "setup of %d, %d at once, round %d", size, at_once, round);
        say(name, "%ld in flight, then %s", taken, code(got));
        if (write(ends[1], "x", 1) != 1)
            die("write");
        reap(ctx, taken, events);
        int right = 0;
        for (long i = 0; i < taken; i++)
            right += (events[i].res & POLLIN) != 0;
        snprintf(name, sizeof name, "setup of %d, %d at once, round %d, all fire", size, at_once,
                 round);
        yes(name, right == taken);
        char byte;
        if (read(ends[0], &byte, 1) != 1)
            die("read");
    }
    io_destroy(ctx);
    close(ends[0]);
    close(ends[1]);
}

/* Finished requests that were not reaped keep their room. */
static void unreaped(void)
{
    static unsigned char buf[512];
    int fd = temp_file(PAGE);
    io_context_t ctx = setup(4);
    long taken = 0, got = 1;
    while (got == 1 && taken < MANY) {
        io_prep_pread(&iocbs[taken], fd, buf, sizeof buf, 0);
        got = submit1(ctx, &iocbs[taken]);
        taken += got == 1;
    }
    say("reads until the ring is full", "%ld, then %s", taken, code(got));
    answer("once more", submit1(ctx, &iocbs[taken]));
    answer("and two", io_submit(ctx, 2, (struct iocb *[]){&iocbs[taken], &iocbs[taken]}));
    reap(ctx, taken, events);
    answer("after all are reaped", submit1(ctx, &iocbs[0]));
    reap(ctx, 1, events);
    io_destroy(ctx);
    close(fd);
}

int main(void)
{
    stay_on_one_cpu();
    io_context_t ctx = setup(16);
    int fd = temp_file(PAGE);
    struct iocb closed, noop;
    static unsigned char buf[512];
    io_prep_pread(&closed, 900, buf, sizeof buf, 0);
    io_prep_pread(&noop, fd, buf, sizeof buf, 0);
    noop.aio_lio_opcode = IO_CMD_NOOP;
    for (int bad = 0; bad < 4; bad++) {
        stop_at(ctx, fd, "closed descriptor", bad, &closed);
        stop_at(ctx, fd, "noop", bad, &noop);
        stop_at(ctx, fd, "NULL", bad, NULL);
        stop_at(ctx, fd, "bad address", bad, UNMAPPED);
    }
    io_destroy(ctx);
    fill(4, 1);
    fill(4, 500);
    fill(64, 7);
    fill(256, 1);
    unreaped();
    return 0;
}
