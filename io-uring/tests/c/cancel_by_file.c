/* A cancel by descriptor means the open file, whichever number or slot the request used. It does
 * not mean an earlier file of the same number. */
#include "common.h"
#include <sys/socket.h>

static struct io_uring ring;
static char bytes[8][8];

static void reads(int fd, int fixed, int user_data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_read(sqe, fd, bytes[user_data], 8, 0);
    sqe->flags |= fixed ? IOSQE_FIXED_FILE : 0;
    sqe->user_data = user_data;
    MUST(io_uring_submit(&ring) == 1);
}

static void polls(int fd, int user_data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_poll_add(sqe, fd, POLLIN);
    sqe->user_data = user_data;
    MUST(io_uring_submit(&ring) == 1);
}

static void cancels(int fd, unsigned flags, int user_data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_cancel_fd(sqe, fd, flags);
    sqe->user_data = user_data;
    MUST(io_uring_submit(&ring) == 1);
}

/* Makes a number stand for another file, as a program does that closes and opens. */
static void reuse(int number, int with)
{
    MUST(close(number) == 0 && dup2(with, number) == number);
}

int main(void)
{
    int one[2], other[2], pair[2], none[1] = {-1};
    MUST(io_uring_queue_init(32, &ring, 0) == 0 && pipe(one) == 0 && pipe(other) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int table[] = {one[0], -1}, copy = dup(one[0]);
    MUST(copy >= 0 && io_uring_register_files(&ring, table, 2) == 0);

    reads(one[0], 0, 1), cancels(copy, 0, 9);
    sorted(&ring, "a read, by another number", 2);
    reads(0, 1, 1), cancels(one[0], 0, 9);
    sorted(&ring, "a read of a slot, by a number", 2);
    reads(one[0], 0, 1), cancels(0, IORING_ASYNC_CANCEL_FD_FIXED, 9);
    sorted(&ring, "a read of a number, by a slot", 2);
    polls(one[0], 1), cancels(copy, 0, 9);
    sorted(&ring, "a poll, by another number", 2);
    cancels(1, IORING_ASYNC_CANCEL_FD_FIXED, 9);
    completions(&ring, "by an empty slot", 1);
    cancels(7, IORING_ASYNC_CANCEL_FD_FIXED, 9);
    completions(&ring, "by a slot that there is not", 1);
    cancels(1000, 0, 9);
    completions(&ring, "by a number that is not open", 1);
    /* Both ends of a pipe have the same identity in stat(2). */
    reads(one[0], 0, 1), cancels(one[1], 0, 9);
    completions(&ring, "by the other end", 1);
    /* A timeout has no file, so a cancel of all requests on descriptor 0 does not find it. */
    struct __kernel_timespec late = {1000, 0};
    io_uring_prep_timeout(io_uring_get_sqe(&ring), &late, 0, 0);
    MUST(io_uring_submit(&ring) == 1);
    cancels(0, IORING_ASYNC_CANCEL_ALL, 9);
    completions(&ring, "what is on no file", 1);
    cancels(copy, IORING_ASYNC_CANCEL_ALL, 9);
    sorted(&ring, "all of one file", 2);

    /* From here on, a number is used again for another file before the cancel. */
    reads(pair[0], 0, 1);
    int number = pair[0];
    reuse(number, other[0]);
    reads(number, 0, 2), cancels(number, 0, 9);
    sorted(&ring, "by a number that is used again", 2);
    MUST(write(pair[1], "old", 3) == 3);
    completions(&ring, "the file that had the number", 1);
    printf("it has read %.3s\n", bytes[1]);

    polls(one[0], 1);
    number = dup(one[0]);
    polls(number, 2);
    reuse(number, other[0]);
    cancels(number, 0, 9);
    completions(&ring, "polls, by a number that is used again", 1);
    cancels(one[0], IORING_ASYNC_CANCEL_ALL, 9);
    sorted(&ring, "polls, by the file", 3);

    /* A file that was put into the slot later is another file, too. */
    reads(0, 1, 1);
    MUST(io_uring_register_files_update(&ring, 0, &other[0], 1) == 1);
    cancels(0, IORING_ASYNC_CANCEL_FD_FIXED, 9);
    completions(&ring, "by a slot that is used again", 1);
    MUST(io_uring_register_files_update(&ring, 0, none, 1) == 1);
    struct io_uring_sync_cancel_reg sync = {
        .fd = copy, .flags = IORING_ASYNC_CANCEL_FD, .timeout = {-1, -1}};
    printf("synchronous: %d\n", io_uring_register_sync_cancel(&ring, &sync));
    completions(&ring, "synchronous", 1);
    sync.fd = 1000;
    printf("synchronous, not open: %d\n", io_uring_register_sync_cancel(&ring, &sync));
    io_uring_queue_exit(&ring);
    return 0;
}
