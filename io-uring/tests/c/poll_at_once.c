/* The event of a poll is posted by the call that causes it, or else by the next call for the ring.
 * Other threads do not delay the event. */
#include "common.h"

#define ROUNDS 2000

static struct io_uring ring, other;

static unsigned reaped(struct io_uring *of)
{
    unsigned count = io_uring_cq_ready(of);
    io_uring_cq_advance(of, count);
    return count;
}

static void poll_many_times(struct io_uring *of, int fd)
{
    io_uring_prep_poll_multishot(io_uring_get_sqe(of), fd, POLLIN);
    MUST(io_uring_submit(of) == 1);
}

/* The thread that submits to the ring asks for completions: each of two pipes has an event for
 * each write. */
static void comes_for_events(void)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    };
    int ends[2][2], missed = 0;
    char byte;
    MUST(io_uring_queue_init_params(8, &ring, &params) == 0);
    for (int at = 0; at < 2; at++) {
        MUST(pipe(ends[at]) == 0);
        poll_many_times(&ring, ends[at][0]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < 2; at++)
            MUST(write(ends[at][1], "x", 1) == 1);
        MUST(io_uring_get_events(&ring) == 0);
        missed += reaped(&ring) != 2;
        for (int at = 0; at < 2; at++)
            MUST(read(ends[at][0], &byte, 1) == 1);
    }
    printf("events of pipes: %d missed\n", missed);
    io_uring_queue_exit(&ring);
}

/* A ring polls another ring, which completes a request. */
static void rings_poll_rings(void)
{
    int missed = 0;
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && io_uring_queue_init(8, &other, 0) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        io_uring_prep_poll_add(io_uring_get_sqe(&other), ring.ring_fd, POLLIN);
        MUST(io_uring_submit(&other) == 1 && reaped(&other) == 0);
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        MUST(io_uring_submit(&ring) == 1);
        if (reaped(&other) != 1) {
            /* The event comes late. */
            struct io_uring_cqe *cqe;
            missed++;
            MUST(io_uring_wait_cqe(&other, &cqe) == 0 && reaped(&other) == 1);
        }
        MUST(reaped(&ring) == 1);
    }
    printf("a ring that is polled: %d missed\n", missed);
    io_uring_queue_exit(&other);
    io_uring_queue_exit(&ring);
}

/* The thread that looks for events ends when there are no polls. Another thread replaces it
 * later. */
static void again(void)
{
    int ends[2];
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && pipe(ends) == 0);
    for (int at = 0; at < 2; at++) {
        struct io_uring_sqe *sqe = entry(&ring, 0);
        io_uring_prep_poll_add(sqe, ends[0], POLLIN);
        sqe->user_data = 1;
        MUST(io_uring_submit(&ring) == 1);
        io_uring_prep_poll_remove(io_uring_get_sqe(&ring), 1);
        MUST(io_uring_submit(&ring) == 1);
        sorted(&ring, "taken back", 2);
    }
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    sqe->user_data = 3;
    MUST(io_uring_submit(&ring) == 1 && write(ends[1], "x", 1) == 1);
    completions(&ring, "polled again", 1);
    io_uring_queue_exit(&ring);
}

int main(void)
{
    comes_for_events();
    rings_poll_rings();
    again();
    return 0;
}
