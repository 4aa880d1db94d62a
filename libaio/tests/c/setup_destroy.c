/* io_setup and io_destroy: arguments, forged and stale handles, nothing left behind. */
#include "common.h"

static long lines(const char *path)
{
    FILE *file = fopen(path, "r");
    long n = 0;
    for (int c; (c = getc(file)) != EOF;)
        n += c == '\n';
    fclose(file);
    return n;
}

static void cycle(int times)
{
    for (int i = 0; i < times; i++) {
        io_context_t ctx = setup(32);
        int got = io_destroy(ctx);
        if (got)
            die("io_destroy: %s", code(got));
    }
}

int main(void)
{
    io_context_t ctx = NULL;
    answer("setup of 0", io_setup(0, &ctx));
    answer("setup of -1", io_setup(-1, &ctx));
    answer("setup of INT_MAX", io_setup(INT_MAX, &ctx));
    answer("setup of INT_MIN", io_setup(INT_MIN, &ctx));
    answer("setup of INT_MIN and 2^22", io_setup(INT_MIN + (1 << 22), &ctx));
    answer("setup of INT_MIN and more than 2^22", io_setup(INT_MIN + (1 << 22) + 1, &ctx));
    answer("setup of more than 2^22", io_setup((1 << 22) + 1, &ctx));
    yes("a failed setup leaves the handle alone", ctx == NULL);
    answer("setup to NULL", io_setup(1, NULL));
    answer("setup to a bad address", io_setup(1, UNMAPPED));
    ctx = (io_context_t)1;
    answer("setup over a handle", io_setup(1, &ctx));
    yes("the handle is kept", ctx == (io_context_t)1);

    ctx = NULL;
    answer("setup of 1", set_up(1, &ctx));
    yes("a handle is an address", ctx != NULL && ((uintptr_t)ctx & 7) == 0);
    answer("destroy", io_destroy(ctx));
    answer("destroy again", io_destroy(ctx));
    answer("destroy NULL", io_destroy(NULL));
    answer("destroy an unmapped address", io_destroy((io_context_t)0x5000));
    answer("destroy an odd address", io_destroy((io_context_t)0x5001));
    answer("destroy a kernel address", io_destroy((io_context_t)KERNEL_ADDRESS));
    int local = 0;
    answer("destroy an address of no ring", io_destroy((io_context_t)&local));

    /* Stale: the context was destroyed, and its ring is unmapped. io_getevents is not called: the
     * original's would read the ring and crash. */
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    struct timespec short_time = {0, 1000000};
    int fd = temp_file(PAGE);
    char buf[PAGE];
    io_prep_pread(&iocb, fd, buf, sizeof buf, 0);
    answer("submit to a destroyed context", io_submit(ctx, 1, &list));
    answer("submit of 0 to a destroyed context", io_submit(ctx, 0, &list));
    answer("cancel in a destroyed context", io_cancel(ctx, &iocb, &event));
    answer("submit to NULL", io_submit(NULL, 1, &list));
    answer("getevents of NULL", io_getevents(NULL, 1, 1, &event, &short_time));
    answer("cancel in NULL", io_cancel(NULL, &iocb, &event));

    /* Forged: a copy of a real ring elsewhere is not the context. */
    ctx = setup(8);
    struct ring *copy = pages(PAGE);
    memcpy(copy, ctx, sizeof *copy);
    io_context_t forged = (io_context_t)copy;
    answer("submit to a copy", io_submit(forged, 1, &list));
    answer("getevents of a copy", io_getevents(forged, 1, 1, &event, &short_time));
    answer("destroy a copy", io_destroy(forged));
    copy->id = 0x7fffffff;
    answer("submit to a copy with a wild id", io_submit(forged, 1, &list));
    request(ctx, "the real one still works", &iocb);
    answer("destroy the real one", io_destroy(ctx));

    io_context_t many[64];
    int distinct = 1;
    for (size_t i = 0; i < COUNT(many); i++) {
        many[i] = setup(4);
        for (size_t j = 0; j < i; j++)
            distinct &= many[j] != many[i];
    }
    yes("64 contexts are 64 handles", distinct);
    request(many[0], "first of 64", &iocb);
    request(many[63], "last of 64", &iocb);
    for (size_t i = 0; i < COUNT(many); i += 2)
        io_destroy(many[i]);
    request(many[63], "last after every second is gone", &iocb);
    answer("submit to one that is gone", io_submit(many[62], 1, &list));
    for (size_t i = 1; i < COUNT(many); i += 2)
        io_destroy(many[i]);

    cycle(10);
    long maps = lines("/proc/self/maps");
    int open_before = open_descriptors();
    cycle(100);
    say("descriptors left by 100 cycles", "%d", open_descriptors() - open_before);
    long grown = lines("/proc/self/maps") - maps;
    yes("mappings left by 100 cycles are under 20", grown < 20);
    return 0;
}
