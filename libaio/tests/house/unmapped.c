/* Buffers that are unmapped while their requests are in flight: later mappings are not written
 * to. */
#include "../support/answers.h"
#include <libaio.h>

#define HOLES 32
#define CONTEXTS 96

/* Lengths in bytes of what the library may map: threads' stacks, requests, rings. */
static const size_t sizes[] = {
    1 << 20, 264 << 10, 256 << 10, 320 << 10, 260 << 10, 128 << 10, 64 << 10, 16 << 10,
};

static io_context_t contexts[CONTEXTS];
static unsigned char blocks[4][PAGE], noise[1 << 20];

static int right_reads(io_context_t ctx, int fd)
{
    struct iocb iocbs[5], *list[5];
    struct io_event events[5];
    int right = 0;
    for (int i = 0; i < 4; i++)
        io_prep_pread(list[i] = &iocbs[i], fd, blocks[i], PAGE, i * PAGE);
    io_prep_fsync(list[4] = &iocbs[4], fd);
    memset(blocks, 0, sizeof blocks);
    if (io_submit(ctx, 5, list) != 5 || io_getevents(ctx, 5, 5, events, NULL) != 5)
        return 0;
    for (int i = 0; i < 4; i++)
        right += holds(blocks[i], PAGE, i * PAGE);
    for (int i = 0; i < 5; i++)
        right += events[i].res == (events[i].obj == list[4] ? 0 : PAGE);
    return right == 9;
}

int main(void)
{
    static struct iocb iocbs[HOLES];
    static int ends[HOLES][2];
    struct io_event events[HOLES];
    void *buffers[HOLES];
    io_context_t ctx = NULL;
    int fd = temp_file(4 * PAGE), before = 0, after = 0, destroyed = 0, ended = 0, got;
    memset(noise, 0xff, sizeof noise);
    if (io_setup(HOLES, &ctx))
        die("io_setup");
    for (int i = 0; i < HOLES; i++) {
        size_t size = sizes[i % COUNT(sizes)];
        struct iocb *list = &iocbs[i];
        if (pipe2(ends[i], O_CLOEXEC | O_NONBLOCK) || fcntl(ends[i][0], F_SETFL, 0))
            die("pipe");
        (void)fcntl(ends[i][1], F_SETPIPE_SZ, (int)size);
        buffers[i] = pages(size);
        /* One page more, so that this buffer is not adjacent to the next one. */
        pages(PAGE);
        io_prep_pread(list, ends[i][0], buffers[i], size, 0);
        if (io_submit(ctx, 1, &list) != 1)
            die("submit");
    }
    for (int i = 0; i < HOLES; i++)
        munmap(buffers[i], sizes[i % COUNT(sizes)]);
    for (int i = 0; i < CONTEXTS; i++) {
        if (io_setup(1 << i % 13, &contexts[i]))
            die("io_setup %d", i);
        before += right_reads(contexts[i], fd);
    }
    say("contexts that are made and work", "%d of %d", before, CONTEXTS);
    for (int i = 0; i < HOLES; i++)
        if (write(ends[i][1], noise, sizes[i % COUNT(sizes)]) <= 0)
            die("write");
    struct timespec long_enough = {20, 0};
    while (ended < HOLES && (got = io_getevents(ctx, 1, HOLES, events, &long_enough)) > 0)
        for (int i = 0; i < got; i++)
            ended += (long)events[i].res == -EFAULT;
    say("requests that end with EFAULT", "%d of %d", ended, HOLES);
    for (int i = 0; i < CONTEXTS; i++) {
        after += right_reads(contexts[i], fd);
        destroyed += !io_destroy(contexts[i]);
    }
    say("contexts that work and go", "%d and %d of %d", after, destroyed, CONTEXTS);
    return 0;
}
