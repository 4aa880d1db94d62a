/* Timeouts: plain, counting, absolute, removed, updated and linked ones; waits with a timeout. */
#define _GNU_SOURCE
#include "common.h"
#include <time.h>

static struct io_uring ring;
static struct __kernel_timespec soon = { 0, 20000000 }, late = { 100, 0 };

static void timeout(int user_data, struct __kernel_timespec *time, unsigned count, unsigned flags)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_timeout(sqe, time, count, flags);
    sqe->user_data = user_data;
}

static void nop(int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_nop(sqe);
    sqe->user_data = user_data;
}

int main(void)
{
    MUST(io_uring_queue_init(32, &ring, 0) == 0);
    timeout(1, &soon, 0, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "pure", 1);
    timeout(1, &late, 2, 0), nop(2), nop(3);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "counting", 3);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct __kernel_timespec then = { now.tv_sec, now.tv_nsec };
    timeout(1, &then, 0, IORING_TIMEOUT_ABS);
    clock_gettime(CLOCK_REALTIME, &now);
    struct __kernel_timespec real = { now.tv_sec, now.tv_nsec };
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "absolute", 1);
    timeout(2, &real, 0, IORING_TIMEOUT_ABS | IORING_TIMEOUT_REALTIME);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "real", 1);
    timeout(1, &late, 0, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    struct io_uring_sqe *sqe = entry(&ring, 2);
    io_uring_prep_timeout_remove(sqe, 1, 0);
    sqe->user_data = 2;
    printf("submit %d\n", io_uring_submit(&ring));
    sorted(&ring, "removed", 2);
    sqe = entry(&ring, 3);
    io_uring_prep_timeout_remove(sqe, 77, 0);
    sqe->user_data = 3;
    io_uring_submit(&ring);
    completions(&ring, "not there", 1);
    timeout(1, &late, 0, 0);
    sqe = entry(&ring, 2);
    io_uring_prep_timeout_update(sqe, &soon, 1, 0);
    sqe->user_data = 2;
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "updated", 2);
    int ends[2];
    char byte;
    MUST(pipe(ends) == 0);
    for (int at = 0; at < 2; at++) {
        if (at)
            MUST(write(ends[1], "x", 1) == 1);
        sqe = entry(&ring, 1);
        io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
        sqe->user_data = 1;
        sqe->flags |= IOSQE_IO_LINK;
        sqe = entry(&ring, 2);
        io_uring_prep_link_timeout(sqe, at ? &late : &soon, 0);
        sqe->user_data = 2;
        printf("submit %d\n", io_uring_submit(&ring));
        sorted(&ring, at ? "outrun" : "linked", 2);
    }
    sqe = entry(&ring, 1);
    io_uring_prep_link_timeout(sqe, &soon, 0);
    sqe->user_data = 1;
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "without a target", 1);
    struct __kernel_timespec bad = { -1, 0 };
    timeout(1, &bad, 0, 0);
    io_uring_submit(&ring);
    completions(&ring, "negative", 1);
    struct io_uring_cqe *cqe;
    printf("wait: %d\n", io_uring_wait_cqe_timeout(&ring, &cqe, &soon));
    printf("submit and wait: %d\n", io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &soon, NULL));
    io_uring_queue_exit(&ring);
    return 0;
}
