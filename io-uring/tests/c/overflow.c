/* More completions than the ring has room for: none is lost, and they keep their order. */
#define _GNU_SOURCE
#include "common.h"

int main(void)
{
    struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 8 };
    struct io_uring ring;
    MUST(io_uring_queue_init_params(8, &ring, &params) == 0);
    for (int at = 0; at < 40; at++) {
        struct io_uring_sqe *sqe = entry(&ring, at);
        io_uring_prep_nop(sqe);
        sqe->user_data = at;
        if (at % 8 == 7)
            printf("submit %d\n", io_uring_submit(&ring));
    }
    printf("ready %u, overflow %d, lost %u\n", io_uring_cq_ready(&ring),
           io_uring_cq_has_overflow(&ring), *ring.cq.koverflow);
    completions(&ring, "one after the other", 40);
    printf("overflow %d\n", io_uring_cq_has_overflow(&ring));
    struct io_uring_cqe *cqe;
    printf("peek %d\n", io_uring_peek_cqe(&ring, &cqe));
    io_uring_queue_exit(&ring);
    return 0;
}
