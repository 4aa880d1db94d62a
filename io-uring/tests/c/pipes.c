/* PIPE: two descriptors, or two slots, and what is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/resource.h>

enum { PIPE = 62, ANY = -1 };

static struct io_uring ring;

static struct io_uring_sqe *pipe_(int *ends, int flags, int slot)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = PIPE;
    sqe->addr = (unsigned long)ends;
    sqe->rw_flags = flags;
    sqe->splice_fd_in = slot;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

/* Checks that bytes written to one end are read from the other. */
static void goes_through(int ends[2], int flags)
{
    char got[4] = { 0 };
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_write(sqe, ends[1], "abc", 3, 0);
    sqe->flags |= flags | IOSQE_IO_LINK;
    sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, ends[0], got, 3, 0);
    sqe->flags |= flags;
    sqe->user_data = 1;
    io_uring_submit(&ring);
    sorted(&ring, "through", 2);
    printf("text %s\n", got);
}

static void numbers(void)
{
    for (int at = 0; at < 4; at++) {
        static const int flags[] = { 0, O_CLOEXEC, O_NONBLOCK | O_CLOEXEC, O_DIRECT };
        int ends[2] = { -1, -1 };
        pipe_(ends, flags[at], 0);
        printf("flags %x: %d, ", flags[at], result());
        printf("lowest numbers %d, close on exec %d, status %x\n", ends[1] == ends[0] + 1,
               fcntl(ends[0], F_GETFD), fcntl(ends[0], F_GETFL));
        goes_through(ends, 0);
        close(ends[0]);
        close(ends[1]);
    }
}

static void slots(void)
{
    int ends[2] = { -1, -1 };
    pipe_(ends, 0, ANY);
    printf("without a table: %d, ", result());
    printf("%d %d\n", ends[0], ends[1]);
    MUST(io_uring_register_files_sparse(&ring, 5) == 0);
    pipe_(ends, 0, ANY);
    printf("any: %d, ", result());
    printf("%d %d\n", ends[0], ends[1]);
    goes_through(ends, IOSQE_FIXED_FILE);
    pipe_(ends, O_NONBLOCK, 3);
    printf("the third: %d, ", result());
    printf("%d %d\n", ends[0], ends[1]);
    goes_through((int[2]){ 2, 3 }, IOSQE_FIXED_FILE);
    pipe_(ends, 0, ANY);
    printf("one is left: %d, ", result());
    printf("%d %d\n", ends[0], ends[1]);
    pipe_(ends, 0, ANY);
    printf("again: %d\n", result());
    pipe_(ends, 0, 5);
    printf("the last: %d, ", result());
    printf("%d %d\n", ends[0], ends[1]);
    pipe_(ends, 0, 6);
    printf("one that is none: %d\n", result());
    pipe_(ends, O_CLOEXEC, 1);
    printf("closed on exec: %d\n", result());
    /* For slots, the library moves the ends to numbers from 40 on, and refuses to register these
     * numbers. After a refused PIPE, descriptors of the program with such numbers can be
     * registered. */
    for (int at = 0; at < 4; at++) {
        pipe_(ends, at % 2 ? O_CLOEXEC : 0, at % 2 ? 1 : 6);
        result();
    }
    for (int number = 40; number < 60; number++) {
        int fd = fcntl(0, F_DUPFD, number);
        if (io_uring_register_files_update(&ring, 0, &fd, 1) != 1)
            printf("%d cannot be registered\n", fd);
        close(fd);
    }
    pipe_((int *)8, 0, 1);
    printf("to nowhere: %d\n", result());
    for (int at = 0; at < 5; at++) {
        char byte;
        struct io_uring_sqe *sqe = entry(&ring, 0);
        io_uring_prep_read(sqe, at, &byte, 0, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
        printf("slot %d: %d\n", at, result());
    }
    MUST(io_uring_unregister_files(&ring) == 0);
}

static void refused(void)
{
    int ends[2] = { -1, -1 };
    pipe_((int *)8, 0, 0);
    printf("to nowhere: %d\n", result());
    int next = dup(0);
    printf("none is left open: %d\n", next);
    close(next);
    for (int bit = 0; bit < 32; bit++) {
        pipe_(ends, 1u << bit, 0);
        int got = result();
        printf("flag %d: %d\n", bit, got);
        if (got == 0) {
            close(ends[0]);
            close(ends[1]);
        }
    }
    pipe_(ends, 0, 0)->fd = 1;
    printf("a descriptor: %d\n", result());
    pipe_(ends, 0, 0)->off = 1;
    printf("an offset: %d\n", result());
    pipe_(ends, 0, 0)->addr3 = 1;
    printf("an address: %d\n", result());
    pipe_(ends, 0, 0)->ioprio = 1;
    printf("a priority: %d\n", result());
    pipe_(ends, 0, 0)->len = 1;
    printf("a length: %d\n", result());
    pipe_(ends, 0, 0)->buf_index = 1;
    printf("a buffer: %d\n", result());
    pipe_(ends, 0, 0)->flags |= IOSQE_FIXED_FILE;
    printf("a registered file: %d\n", result());
    pipe_(ends, 0, 0)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
    struct rlimit limit, less;
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    less = limit;
    less.rlim_cur = 3;
    MUST(setrlimit(RLIMIT_NOFILE, &less) == 0);
    pipe_(ends, 0, 0);
    printf("too many files: %d\n", result());
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, PIPE);
    numbers();
    slots();
    refused();
    io_uring_queue_exit(&ring);
    return 0;
}
