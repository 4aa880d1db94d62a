/* The calls on the smallest stack that a thread can have. */
#include "../../../libaio/tests/support/small_stack.h"
#include <aio.h>

#define READS 40

static unsigned char *blocks;

static int right(int fd, int count)
{
    static struct aiocb cbs[READS], *list[READS];
    int right = 0;
    memset(blocks, 0, READS * PAGE);
    for (int i = 0; i < count; i++) {
        cbs[i] = (struct aiocb){.aio_fildes = fd, .aio_buf = blocks + i * PAGE};
        cbs[i].aio_nbytes = PAGE;
        cbs[i].aio_offset = i * PAGE;
        cbs[i].aio_lio_opcode = LIO_READ;
        cbs[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        list[i] = &cbs[i];
    }
    if (count > 1 ? lio_listio(LIO_WAIT, list, count, NULL) : aio_read(list[0]))
        return 0;
    for (int i = 0; i < count; i++) {
        const struct aiocb *one = list[i];
        while (aio_error(one) == EINPROGRESS)
            (void)aio_suspend(&one, 1, NULL);
        right += aio_return(list[i]) == PAGE && holds(blocks + i * PAGE, PAGE, (size_t)i * PAGE);
    }
    return right;
}

static void *body(void *unused)
{
    int fd = temp_file(READS * PAGE);
    for (int direct = 0; direct < 2; direct++) {
        int file = cached_or_not(fd, direct);
        say(direct ? "direct" : "cached", "%d and %d right", right(file, 1), right(file, READS));
    }
    return unused;
}

int main(int count, char **arguments)
{
    (void)count;
    blocks = pages(READS * PAGE);
    on_a_small_stack(arguments, body);
    return 0;
}
