/* The child of a fork: it cannot submit to its parent's ring while that ring has requests in
 * flight. The child's own ring works, and its parent's ring goes on. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/wait.h>

static void nop(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = entry(ring, 1);
    io_uring_prep_nop(sqe);
    MUST(io_uring_submit_and_wait(ring, 1) == 1);
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(ring, &cqe) == 0);
    io_uring_cqe_seen(ring, cqe);
}

int main(void)
{
    struct io_uring ring, own;
    int ends[2], status;
    char byte;
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && pipe(ends) == 0);
    nop(&ring);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    MUST(io_uring_submit(&ring) == 1);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(io_uring_enter(ring.ring_fd, 0, 0, 0, NULL) == 0);
        MUST(io_uring_register(ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) == -EBADFD);
        MUST(io_uring_enter(ring.ring_fd, 1, 0, 0, NULL) == -EEXIST);
        MUST(io_uring_queue_init(8, &own, 0) == 0);
        nop(&own);
        sqe = entry(&own, 1);
        io_uring_prep_poll_add(sqe, ends[1], POLLOUT);
        MUST(io_uring_submit_and_wait(&own, 1) == 1);
        io_uring_queue_exit(&own);
        MUST(close(ring.ring_fd) == 0);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(write(ends[1], "x", 1) == 1);
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == POLLIN);
    io_uring_cqe_seen(&ring, cqe);
    nop(&ring);
    MUST(read(ends[0], &byte, 1) == 1);
    io_uring_queue_exit(&ring);
    printf("done\n");
    return 0;
}
