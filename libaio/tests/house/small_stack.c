/* The calls on the smallest stack that a thread can have. */
#include "../support/small_stack.h"
#include <libaio.h>

#define READS 40

static unsigned char *blocks;

static int right(io_context_t ctx, int fd, int count)
{
    static struct iocb iocbs[READS + 1], *list[READS + 1];
    static struct io_event events[READS + 1];
    int right = 0;
    memset(blocks, 0, READS * PAGE);
    for (int i = 0; i < count; i++)
        io_prep_pread(list[i] = &iocbs[i], fd, blocks + i * PAGE, PAGE, i * PAGE);
    io_prep_fsync(list[count] = &iocbs[count], fd);
    if (io_submit(ctx, count + 1, list) != count + 1
        || io_getevents(ctx, count + 1, count + 1, events, NULL) != count + 1)
        return 0;
    for (int i = 0; i < count; i++)
        right += holds(blocks + i * PAGE, PAGE, (size_t)i * PAGE);
    return right;
}

static void *body(void *unused)
{
    io_context_t ctx = NULL;
    int fd = temp_file(READS * PAGE);
    answer("io_setup", io_setup(READS + 1, &ctx));
    for (int direct = 0; direct < 2; direct++) {
        int file = cached_or_not(fd, direct);
        say(direct ? "direct" : "cached", "%d and %d right", right(ctx, file, 1),
            right(ctx, file, READS));
    }
    answer("io_destroy", io_destroy(ctx));
    return unused;
}

int main(int count, char **arguments)
{
    (void)count;
    blocks = pages(READS * PAGE);
    on_a_small_stack(arguments, body);
    return 0;
}
