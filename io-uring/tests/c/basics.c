/* Set-up, submit and wait, with NOP, transfers of all kinds and fsyncs. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/uio.h>

int main(void)
{
    struct io_uring ring;
    struct io_uring_sqe *sqe;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    printf("entries %u and %u\n", *ring.sq.kring_entries, *ring.cq.kring_entries);
    for (int at = 0; at < 20; at++) {
        sqe = entry(&ring, at);
        io_uring_prep_nop(sqe);
        sqe->user_data = at;
        printf("submit %d\n", io_uring_submit(&ring));
        completions(&ring, "nop", 1);
    }
    int fd = scratch();
    char out[3][16] = { "first part, ", "second part, ", "third" }, in[64] = { 0 };
    struct iovec parts[3];
    for (int at = 0; at < 3; at++)
        parts[at] = (struct iovec){ out[at], strlen(out[at]) };
    sqe = entry(&ring, 1);
    io_uring_prep_writev(sqe, fd, parts, 3, 0);
    sqe->user_data = 1;
    printf("submit %d\n", io_uring_submit(&ring));
    /* After the submit, the program may reuse the list of buffers that an entry points to. */
    memset(parts, 0, sizeof parts);
    completions(&ring, "writev", 1);
    sqe = entry(&ring, 2);
    io_uring_prep_fsync(sqe, fd, 0);
    sqe->user_data = 2;
    sqe = entry(&ring, 3);
    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    sqe->user_data = 3;
    printf("submit and wait %d\n", io_uring_submit_and_wait(&ring, 2));
    sorted(&ring, "fsync", 2);
    sqe = entry(&ring, 4);
    io_uring_prep_read(sqe, fd, in, sizeof in, 6);
    sqe->user_data = 4;
    io_uring_submit_and_wait(&ring, 1);
    completions(&ring, "read", 1);
    printf("%s\n", in);
    char left[8] = { 0 }, right[8] = { 0 };
    struct iovec two[2] = { { left, 5 }, { right, 7 } };
    sqe = entry(&ring, 5);
    io_uring_prep_readv(sqe, fd, two, 2, 0);
    sqe->user_data = 5;
    io_uring_submit_and_wait(&ring, 1);
    completions(&ring, "readv", 1);
    printf("%s|%s\n", left, right);
    /* Transfers at the file position. */
    MUST(lseek(fd, 3, SEEK_SET) == 3);
    memset(in, 0, sizeof in);
    sqe = entry(&ring, 6);
    io_uring_prep_read(sqe, fd, in, 4, -1);
    sqe->user_data = 6;
    io_uring_submit_and_wait(&ring, 1);
    completions(&ring, "at the position", 1);
    printf("%s, then at %ld\n", in, (long)lseek(fd, 0, SEEK_CUR));
    /* Requests that fail. */
    sqe = entry(&ring, 7);
    io_uring_prep_read(sqe, -1, in, 4, 0);
    sqe->user_data = 7;
    sqe = entry(&ring, 8);
    io_uring_prep_read(sqe, fd, (void *)8, 4, 0);
    sqe->user_data = 8;
    sqe = entry(&ring, 9);
    io_uring_prep_writev(sqe, fd, (void *)16, 2, 0);
    sqe->user_data = 9;
    printf("submit and wait %d\n", io_uring_submit_and_wait(&ring, 3));
    sorted(&ring, "error", 3);
    sqe = entry(&ring, 10);
    sqe->opcode = 200;
    sqe->user_data = 10;
    sqe = entry(&ring, 11);
    io_uring_prep_nop(sqe);
    sqe->user_data = 11;
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "unknown", 1);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "the one behind", 1);
    struct io_uring_cqe *cqe;
    printf("peek %d\n", io_uring_peek_cqe(&ring, &cqe));
    io_uring_queue_exit(&ring);
    return 0;
}
