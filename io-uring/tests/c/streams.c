/* Pipes and sockets. A write returns the number of bytes that fitted, and sockets have no
 * offsets. A poll reports data even if a read takes it. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/socket.h>

static struct io_uring ring;
static char big[200000], sink[200000];

static void writes(int fd, unsigned length, unsigned flags, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_write(sqe, fd, big, length, -1);
    sqe->flags = flags;
    sqe->user_data = user_data;
}

static void empty(int fd)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (read(fd, sink, sizeof sink) > 0)
        ;
    fcntl(fd, F_SETFL, 0);
}

static void short_writes(int ends[2])
{
    writes(ends[1], 100000, 0, 1);
    io_uring_submit(&ring);
    completions(&ring, "more than the pipe takes", 1);
    empty(ends[0]);
    writes(ends[1], 100000, IOSQE_IO_LINK, 1);
    io_uring_prep_nop(entry(&ring, 2));
    io_uring_submit(&ring);
    sorted(&ring, "a short write in a chain", 2);
    empty(ends[0]);
    struct iovec parts[2] = { { big, 60000 }, { big, 60000 } };
    io_uring_prep_writev(entry(&ring, 3), ends[1], parts, 2, 0);
    io_uring_submit(&ring);
    completions(&ring, "two parts", 1);
    /* The pipe is full: a write waits until part of it fits. */
    writes(ends[1], 20000, 0, 4);
    io_uring_submit(&ring);
    MUST(read(ends[0], sink, 8192) == 8192);
    completions(&ring, "into a full pipe", 1);
    empty(ends[0]);
}

static void offsets(int pipe_ends[2], int sockets[2])
{
    int *const all[] = { pipe_ends, sockets };
    for (int at = 0; at < 2; at++) {
        io_uring_prep_write(entry(&ring, 0), all[at][1], big, 10, 7);
        io_uring_submit(&ring);
        completions(&ring, "write at an offset", 1);
        MUST(write(all[at][1], big, 10) == 10);
        io_uring_prep_read(entry(&ring, 0), all[at][0], sink, 10, 7);
        io_uring_submit(&ring);
        completions(&ring, "read at an offset", 1);
        empty(all[at][0]);
    }
}

static void polls(void)
{
    struct __kernel_timespec while_ = { 0, 300000000 };
    struct io_uring_cqe *cqe;
    int told = 0;
    for (int round = 0; round < 50; round++) {
        int ends[2];
        MUST(pipe(ends) == 0);
        io_uring_prep_read(entry(&ring, 1), ends[0], sink, 3, 0);
        io_uring_prep_poll_add(entry(&ring, 2), ends[0], POLLIN);
        io_uring_submit(&ring);
        MUST(write(ends[1], "abc", 3) == 3);
        int left = 2;
        for (; left > 0 && io_uring_wait_cqe_timeout(&ring, &cqe, &while_) == 0; left--)
            io_uring_cqe_seen(&ring, cqe);
        told += left == 0;
        close(ends[1]);
        /* Closing the write end of the pipe ends the requests that are left. */
        for (; left > 0 && io_uring_wait_cqe(&ring, &cqe) == 0; left--)
            io_uring_cqe_seen(&ring, cqe);
        close(ends[0]);
    }
    printf("polls beside reads: %d of 50 told\n", told);
}

/* Reads and writes of a listening socket fail at once. */
static void listener(void)
{
    struct sockaddr any = { .sa_family = AF_UNIX };
    struct iovec part = { sink, 1 };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(bind(fd, &any, sizeof any.sa_family) == 0 && listen(fd, 1) == 0);
    io_uring_prep_read(entry(&ring, 0), fd, sink, 1, 0);
    io_uring_prep_readv(entry(&ring, 0), fd, &part, 1, 0);
    writes(fd, 1, 0, 2);
    io_uring_submit(&ring);
    sorted(&ring, "read, readv and write of a listening socket", 3);
    close(fd);
}

int main(void)
{
    int ends[2], sockets[2];
    MUST(io_uring_queue_init(16, &ring, 0) == 0 && pipe(ends) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    short_writes(ends);
    offsets(ends, sockets);
    polls();
    listener();
    io_uring_queue_exit(&ring);
    return 0;
}
