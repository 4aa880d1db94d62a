/* A program with an allocator of its own, which makes system calls by number and is used from
 * the first instruction on. */
#include "common.h"
#include "../support/own_malloc.h"

int main(void)
{
    int fd = temp_file(64 * PAGE), direct = reopen(fd, O_RDWR | O_DIRECT);
    static struct iocb iocbs[64];
    struct iocb *list[64];
    struct io_event events[64];
    unsigned char *buf = pages(64 * PAGE);
    io_context_t ctx = setup(64);
    long right = 0, before = 0;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < 64; i++) {
            list[i] = &iocbs[i];
            io_prep_pread(list[i], direct >= 0 && round % 2 ? direct : fd, buf + i * PAGE, PAGE,
                          i * PAGE);
        }
        if (io_submit(ctx, 64, list) != 64)
            die("submit");
        reap(ctx, 64, events);
        for (int i = 0; i < 64; i++)
            right += events[i].res == PAGE && holds(buf + (events[i].obj - iocbs) * PAGE, PAGE,
                                                    (size_t)(events[i].obj - iocbs) * PAGE);
        if (round == 199) {
            allocations();
            before = right;
        }
    }
    say("right", "%ld", right);
    /* Requests themselves allocate nothing. */
    yes("under one allocation in 64 requests", allocations() * 64 < right - before);
    answer("destroy", io_destroy(ctx));
    yes("it was used", calls > 0);
    say("freed what was not its own", "%ld", foreign);
    return 0;
}
