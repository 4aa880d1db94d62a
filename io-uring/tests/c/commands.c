/* URING_CMD: what sockets answer, what other files do, and what is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { URING_CMD = 46, SIOCINQ_, SIOCOUTQ_, GET = 2, SET = 3 };

static struct io_uring ring;

static struct io_uring_sqe *command(int fd, unsigned what, int level, int option, void *value,
                                    unsigned length)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = URING_CMD;
    sqe->fd = fd;
    sqe->off = what;
    sqe->addr = (unsigned)level | (unsigned long long)option << 32;
    sqe->splice_fd_in = length;
    sqe->addr3 = (unsigned long)value;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    if (cqe->flags)
        printf("flags %u\n", cqe->flags);
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static void connected(int ends[2])
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(listener >= 0 && bind(listener, (void *)&name, size) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (void *)&name, &size) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(ends[0], (void *)&name, size) == 0);
    ends[1] = accept(listener, NULL, NULL);
    MUST(ends[1] >= 0);
    close(listener);
}

static void queues(const char *what, int fd)
{
    for (unsigned command_ = 0; command_ < 2; command_++) {
        command(fd, command_, 0, 0, NULL, 0);
        printf("%s, queue %u: %d\n", what, command_, result());
    }
}

static void options(const char *what, int fd)
{
    int value = 1, got[4] = { -1, -1, -1, -1 };
    command(fd, SET, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value);
    printf("%s, set: %d\n", what, result());
    command(fd, GET, SOL_SOCKET, SO_KEEPALIVE, got, sizeof got);
    printf("%s, get: %d, ", what, result());
    printf("%d %d\n", got[0], got[1]);
    got[0] = -1;
    command(fd, GET, SOL_SOCKET, SO_TYPE, got, 1);
    printf("%s, get a part: %d, ", what, result());
    printf("%x\n", got[0]);
    command(fd, SET, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value);
    printf("%s, set of the protocol: %d\n", what, result());
    command(fd, GET, IPPROTO_TCP, TCP_NODELAY, got, sizeof got);
    printf("%s, get of the protocol: %d\n", what, result());
    command(fd, SET, SOL_SOCKET, SO_KEEPALIVE, (void *)8, sizeof value);
    printf("%s, set from nowhere: %d\n", what, result());
    command(fd, GET, SOL_SOCKET, SO_KEEPALIVE, (void *)8, sizeof value);
    printf("%s, get to nowhere: %d\n", what, result());
    command(fd, SET, SOL_SOCKET, SO_KEEPALIVE, &value, 1);
    printf("%s, set too little: %d\n", what, result());
    command(fd, SET, SOL_SOCKET, SO_KEEPALIVE, &value, -1);
    printf("%s, set less than nothing: %d\n", what, result());
    command(fd, GET, SOL_SOCKET, SO_KEEPALIVE, &value, -1);
    printf("%s, get less than nothing: %d\n", what, result());
    command(fd, SET, SOL_SOCKET, 4711, &value, sizeof value);
    printf("%s, set what is none: %d\n", what, result());
}

static void refused(int fd)
{
    command(fd, 4711, 0, 0, NULL, 0);
    printf("no command: %d\n", result());
    command(fd, 0, 0, 0, NULL, 0)->off |= 1ull << 32;
    printf("with padding: %d\n", result());
    command(fd, 0, 0, 0, NULL, 0)->ioprio = 1;
    printf("with a priority: %d\n", result());
    for (int bit = 1; bit < 32; bit++) {
        command(fd, 0, 0, 0, NULL, 0)->rw_flags = 1u << bit;
        printf("flag %d: %d\n", bit, result());
    }
    command(fd, 0, 0, 0, NULL, 0)->len = 1;
    command(fd, 0, 0, 0, NULL, 0)->buf_index = 1;
    io_uring_submit(&ring);
    sorted(&ring, "fields that are not looked at", 2);
    command(-1, 0, 0, 0, NULL, 0);
    printf("no descriptor: %d\n", result());
    command(0, 0, 0, 0, NULL, 0)->flags |= IOSQE_FIXED_FILE;
    printf("no registered file: %d\n", result());
    command(0, 0, 0, 0, NULL, 0)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
}

/* The command is in a chain, and names its file by the index of a registered file. */
static void chained(int fd)
{
    int value = 1, got = -1;
    MUST(io_uring_register_files(&ring, &fd, 1) == 0);
    struct io_uring_sqe *sqe = command(0, SET, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value);
    sqe->flags = IOSQE_FIXED_FILE | IOSQE_IO_LINK;
    sqe = command(0, GET, SOL_SOCKET, SO_REUSEADDR, &got, sizeof got);
    sqe->flags = IOSQE_FIXED_FILE | IOSQE_IO_LINK;
    sqe->user_data = 1;
    sqe = command(0, 77, 0, 0, NULL, 0);
    sqe->flags = IOSQE_FIXED_FILE | IOSQE_IO_LINK;
    sqe->user_data = 2;
    sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->user_data = 3;
    io_uring_submit(&ring);
    sorted(&ring, "chain", 4);
    printf("got %d\n", got);
    MUST(io_uring_unregister_files(&ring) == 0);
}

int main(void)
{
    int ends[2], pair[2], pipes[2], file = scratch();
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    connected(ends);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipes) == 0);
    int udp = socket(AF_INET6, SOCK_DGRAM, 0);
    needs(&ring, URING_CMD);
    queues("TCP", ends[1]);
    MUST(write(ends[0], "hello", 5) == 5);
    struct pollfd poll_ = { .fd = ends[1], .events = POLLIN };
    MUST(poll(&poll_, 1, -1) == 1);
    queues("TCP with data", ends[1]);
    queues("UDP", udp);
    queues("a pair", pair[0]);
    queues("a pipe", pipes[0]);
    queues("a file", file);
    options("TCP", ends[0]);
    options("UDP", udp);
    options("a pair", pair[0]);
    options("a pipe", pipes[0]);
    refused(ends[0]);
    chained(ends[0]);
    io_uring_queue_exit(&ring);
    return 0;
}
