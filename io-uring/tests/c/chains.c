/* Links, hard links, drains and skipped completions. */
#define _GNU_SOURCE
#include "common.h"

static struct io_uring ring;

static struct io_uring_sqe *nop(int user_data, unsigned flags)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_nop(sqe);
    sqe->user_data = user_data;
    sqe->flags |= flags;
    return sqe;
}

static void fails(int user_data, unsigned flags)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_read(sqe, -1, NULL, 1, 0);
    sqe->user_data = user_data;
    sqe->flags |= flags;
}

int main(void)
{
    MUST(io_uring_queue_init(32, &ring, 0) == 0);
    nop(1, IOSQE_IO_LINK), nop(2, IOSQE_IO_LINK), nop(3, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "chain", 3);
    fails(1, IOSQE_IO_LINK), nop(2, IOSQE_IO_LINK), nop(3, 0), nop(4, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    sorted(&ring, "broken", 4);
    fails(1, IOSQE_IO_HARDLINK), nop(2, IOSQE_IO_LINK), nop(3, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "hard", 3);
    /* A chain whose last entry has a link ends with its batch. */
    nop(1, IOSQE_IO_LINK), nop(2, IOSQE_IO_LINK);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "open end", 2);
    /* A chain with an entry that cannot be prepared. */
    nop(1, IOSQE_IO_LINK), nop(2, IOSQE_IO_LINK)->opcode = 200, nop(3, IOSQE_IO_LINK), nop(4, 0),
                                  nop(5, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    sorted(&ring, "malformed", 5);
    /* A short transfer breaks its chain. */
    int fd = scratch();
    char buffer[16];
    MUST(write(fd, "12345678", 8) == 8);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_read(sqe, fd, buffer, 16, 0);
    sqe->user_data = 1;
    sqe->flags |= IOSQE_IO_LINK;
    nop(2, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "short", 2);
    /* A drain waits for all requests before it, and all requests behind it wait for the drain. */
    int ends[2];
    MUST(pipe(ends) == 0);
    sqe = entry(&ring, 1);
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    sqe->user_data = 1;
    nop(2, IOSQE_IO_DRAIN), nop(3, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    printf("before: %u\n", io_uring_cq_ready(&ring));
    MUST(write(ends[1], "x", 1) == 1);
    completions(&ring, "drained", 3);
    nop(1, IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK), nop(2, IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK),
        nop(3, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "skipped", 1);
    fails(1, IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK),
        nop(2, IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK), nop(3, 0);
    printf("submit %d\n", io_uring_submit(&ring));
    completions(&ring, "skipped and failed", 1);
    io_uring_queue_exit(&ring);
    return 0;
}
