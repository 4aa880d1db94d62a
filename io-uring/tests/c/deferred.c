/* A read of an empty nonblocking pipe waits, and does not fail with EAGAIN. A ring with deferred
 * task work posts completions when it is asked to. */
#define _GNU_SOURCE
#include "common.h"

int main(void)
{
    struct io_uring ring;
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER |
                                              IORING_SETUP_DEFER_TASKRUN |
                                              IORING_SETUP_TASKRUN_FLAG};
    struct __kernel_timespec soon = { 0, 20000000 };
    struct io_uring_cqe *cqe;
    int ends[2];
    char byte;
    MUST(io_uring_queue_init_params(8, &ring, &params) == 0 && pipe2(ends, O_NONBLOCK) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
    sqe->user_data = 1;
    printf("submit %d\n", io_uring_submit(&ring));
    printf("wait %d\n", io_uring_wait_cqe_timeout(&ring, &cqe, &soon));
    MUST(write(ends[1], "x", 1) == 1);
    completions(&ring, "not blocking", 1);
    sqe = entry(&ring, 2);
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    sqe->user_data = 2;
    printf("submit %d\n", io_uring_submit(&ring));
    printf("flags %u\n", *ring.sq.kflags);
    MUST(write(ends[1], "x", 1) == 1);
    struct pollfd set = { ring.ring_fd, POLLIN, 0 };
    printf("readable %d\n", poll(&set, 1, -1));
    printf("flags %u, ready %u\n", *ring.sq.kflags, io_uring_cq_ready(&ring));
    printf("get %d\n", io_uring_get_events(&ring));
    printf("flags %u, ready %u\n", *ring.sq.kflags, io_uring_cq_ready(&ring));
    completions(&ring, "deferred", 1);
    printf("flags %u\n", *ring.sq.kflags);
    sqe = entry(&ring, 3);
    io_uring_prep_nop(sqe);
    sqe->user_data = 3;
    printf("submit %d\n", io_uring_submit(&ring));
    printf("flags %u, ready %u\n", *ring.sq.kflags, io_uring_cq_ready(&ring));
    completions(&ring, "at once", 1);
    io_uring_queue_exit(&ring);
    return 0;
}
