/* Cancels by user_data and by descriptor, also with the flags ALL and ANY. */
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

/* A batch submits a read of cached data, and in every second round also cancels it. If the cancel
 * finds the read, the cancel completes first. If the cancel finds nothing, the read completes
 * first, because a program may then free the memory of the request. */
static void cached(unsigned flags)
{
    enum { ROUNDS = 200 };
    struct io_uring many;
    char block[64] = "cached";
    int fd = scratch(), wrong = 0;
    MUST(io_uring_queue_init(8, &many, flags) == 0 && write(fd, block, sizeof block) > 0);
    for (int round = 0; round < ROUNDS; round++) {
        /* Only every other read has a cancel. */
        int count = 1 + round % 2;
        struct io_uring_cqe *seen[2];
        struct io_uring_sqe *sqe = entry(&many, 1);
        io_uring_prep_read(sqe, fd, block, sizeof block, 0);
        sqe->user_data = 1;
        if (count == 2) {
            sqe = entry(&many, 2);
            sqe->opcode = IORING_OP_ASYNC_CANCEL;
            sqe->fd = -1;
            sqe->addr = 1;
            sqe->user_data = 2;
        }
        MUST(io_uring_submit_and_wait(&many, count) == count);
        MUST(io_uring_peek_batch_cqe(&many, seen, count) == (unsigned)count);
        int ended = seen[0]->user_data == 1 && seen[0]->res == 64;
        if (count == 2) {
            int found = seen[0]->user_data == 2 && seen[0]->res == 0;
            ended = (ended && seen[1]->res == -ENOENT) || (found && seen[1]->res == -ECANCELED);
        }
        wrong += !ended;
        io_uring_cq_advance(&many, count);
    }
    printf("cached reads, flags 0x%x: %d of %d in the wrong order\n", flags, wrong, ROUNDS);
    io_uring_queue_exit(&many);
    close(fd);
}

int main(void)
{
    int one[2], other[2];
    cached(0);
    cached(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
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
    /* Closing the ring ends the requests that wait. */
    reads(one[0], 1);
    io_uring_queue_exit(&ring);
    MUST(write(one[1], "x", 1) == 1);
    printf("still there %zd\n", read(one[0], bytes, 1));
    return 0;
}
