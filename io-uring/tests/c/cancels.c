/* Cancels by user_data, descriptor, all and any. */
#define _GNU_SOURCE
#include "common.h"

static struct io_uring ring;
static char bytes[8];

static void reads(int fd, int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_read(sqe, fd, &bytes[user_data % 8], 1, 0);
    sqe->user_data = user_data;
    printf("submit %d\n", io_uring_submit(&ring));
}

static void cancels(int user_data, unsigned long long which, int fd, unsigned flags)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    sqe->opcode = IORING_OP_ASYNC_CANCEL;
    sqe->addr = which;
    sqe->fd = fd;
    sqe->cancel_flags = flags;
    sqe->user_data = user_data;
    printf("submit %d\n", io_uring_submit(&ring));
}

int main(void)
{
    int one[2], other[2];
    MUST(io_uring_queue_init(32, &ring, 0) == 0 && pipe(one) == 0 && pipe(other) == 0);
    reads(one[0], 1);
    cancels(2, 1, -1, 0);
    sorted(&ring, "by user_data", 2);
    cancels(2, 1, -1, 0);
    completions(&ring, "not there", 1);
    reads(one[0], 1), reads(other[0], 2);
    cancels(3, 0, other[0], IORING_ASYNC_CANCEL_FD);
    sorted(&ring, "by descriptor", 2);
    cancels(4, 0, -1, IORING_ASYNC_CANCEL_ANY);
    sorted(&ring, "any", 2);
    for (int at = 0; at < 3; at++)
        reads(one[0], 5);
    cancels(6, 5, -1, IORING_ASYNC_CANCEL_ALL);
    sorted(&ring, "all", 4);
    cancels(7, 5, -1, 1 << 20);
    completions(&ring, "unknown flags", 1);
    struct io_uring_sync_cancel_reg reg = { .addr = 1, .timeout = { -1, -1 } };
    reads(one[0], 1);
    printf("synchronous %d\n", io_uring_register_sync_cancel(&ring, &reg));
    completions(&ring, "synchronous", 1);
    printf("synchronous %d\n", io_uring_register_sync_cancel(&ring, &reg));
    /* Closing the ring ends what waits. */
    reads(one[0], 1);
    io_uring_queue_exit(&ring);
    MUST(write(one[1], "x", 1) == 1);
    printf("still there %zd\n", read(one[0], bytes, 1));
    return 0;
}
