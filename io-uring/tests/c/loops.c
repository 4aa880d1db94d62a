/* A multishot poll of an epoll that watches the ring itself, or of the ring's eventfd. Each
 * completion would be an event of the polled file, and so cause the next one. The poll ends
 * instead. */
#include "common.h"
#include <sys/epoll.h>

static void polls(int is_eventfd)
{
    struct io_uring ring;
    struct io_uring_cqe *cqe;
    int watched = is_eventfd ? eventfd(0, 0) : epoll_create1(0), nops = 0, events = 0, last = 0;
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && watched >= 0);
    struct epoll_event event = { .events = EPOLLIN };
    if (is_eventfd)
        MUST(io_uring_register_eventfd(&ring, watched) == 0);
    else
        MUST(epoll_ctl(watched, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_poll_multishot(sqe, watched, POLLIN);
    sqe->user_data = 1;
    MUST(io_uring_submit(&ring) == 1);
    io_uring_prep_nop(entry(&ring, 2));
    MUST(io_uring_submit(&ring) == 1);
    while (nops == 0 || !last) {
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        nops += cqe->user_data == 0;
        events += cqe->user_data == 1;
        last |= cqe->user_data == 1 && !(cqe->flags & IORING_CQE_F_MORE);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("nops %d, events %d, %u more\n", nops, events, io_uring_cq_ready(&ring));
    io_uring_queue_exit(&ring);
    close(watched);
}

int main(void)
{
    for (int round = 0; round < 40; round++)
        polls(round % 2);
    return 0;
}
