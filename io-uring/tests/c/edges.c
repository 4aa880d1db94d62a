/* Waits for a ring by edge-triggered events of its descriptor, and reaps from memory. Each
 * completion makes an edge, even one that overflowed before. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/epoll.h>

enum { COUNT = 50, LIMIT_MS = 10000 };

static void once(void)
{
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = 4};
    struct io_uring ring;
    MUST(io_uring_queue_init_params(2, &ring, &params) == 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll = epoll_create1(0);
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
    for (int at = 0; at < COUNT; at++) {
        io_uring_prep_nop(entry(&ring, 1));
        MUST(io_uring_submit(&ring) == 1);
    }
    int seen = 0, waits = 0;
    while (seen < COUNT) {
        if (epoll_wait(epoll, &event, 1, LIMIT_MS) != 1) {
            printf("no edge after %d\n", seen);
            break;
        }
        waits++;
        unsigned head = *ring.cq.khead;
        while (head != __atomic_load_n(ring.cq.ktail, __ATOMIC_ACQUIRE)) {
            head++;
            seen++;
        }
        __atomic_store_n(ring.cq.khead, head, __ATOMIC_RELEASE);
        /* Moves overflowed completions into the ring, as a runtime does before it sleeps. */
        if (__atomic_load_n(ring.sq.kflags, __ATOMIC_ACQUIRE) & IORING_SQ_CQ_OVERFLOW)
            io_uring_get_events(&ring);
    }
    printf("%d seen, more than one wait: %d\n", seen, waits > 1);
    close(epoll);
    io_uring_queue_exit(&ring);
}

int main(void)
{
    for (int round = 0; round < 5; round++)
        once();
    return 0;
}
