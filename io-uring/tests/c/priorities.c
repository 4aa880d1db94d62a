/* Every priority of a transfer: its class, its level and its hints (ioprio_set(2)). */
#define _GNU_SOURCE
#include "common.h"

static struct io_uring ring;

static int result_of(int fd, int is_write, int priority)
{
    static char buf[4];
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    if (is_write)
        io_uring_prep_write(sqe, fd, buf, sizeof buf, 0);
    else
        io_uring_prep_read(sqe, fd, buf, sizeof buf, 0);
    sqe->ioprio = priority;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

int main(void)
{
    int fd = scratch();
    MUST(write(fd, "four", 4) == 4 && io_uring_queue_init(8, &ring, 0) == 0);
    for (int is_write = 0; is_write < 2; is_write++) {
        int before = 1, changes = 0;
        for (int priority = 0; priority <= 0xffff; priority++) {
            int result = result_of(fd, is_write, priority);
            if (result == before)
                continue;
            before = result;
            changes++;
            /* Without a class, the answer changes with each level and hint. */
            if (priority < 32 || priority >= 0x1ff0)
                printf("%s from %#x: %d\n", is_write ? "write" : "read", priority, result);
        }
        printf("%s: %d changes\n", is_write ? "write" : "read", changes);
    }
    io_uring_queue_exit(&ring);
    return 0;
}
