/* SOCKET, BIND, LISTEN, ACCEPT, CONNECT and SHUTDOWN: their results, which requests wait, what
 * ends them, and what is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { BIND = 56, LISTEN = 57, DONTWAIT = 2, POLL_FIRST = 4 };

static struct io_uring ring;

static struct io_uring_sqe *new_entry(int opcode, int fd, const void *addr, unsigned len,
                                      unsigned long off, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_rw(opcode, sqe, fd, addr, len, off);
    sqe->user_data = user_data;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    io_uring_submit(&ring);
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    int res = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return res;
}

static int waits(int fd)
{
    return !(fcntl(fd, F_GETFL) & O_NONBLOCK);
}

/* A listening socket on this machine, made by the ring's own operations. */
static int listener(int type, struct sockaddr_in *name)
{
    *name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof *name;
    new_entry(IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM | type, 1);
    int fd = result();
    MUST(fd >= 0 && waits(fd) == !(type & SOCK_NONBLOCK));
    new_entry(BIND, fd, name, 0, sizeof *name, 1);
    printf("bind: %d\n", result());
    new_entry(LISTEN, fd, NULL, 8, 0, 1);
    printf("listen: %d\n", result());
    MUST(getsockname(fd, (void *)name, &len) == 0);
    return fd;
}

static int client(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fd >= 0);
    return fd;
}

static struct io_uring_sqe *accept_(int fd, struct sockaddr *name, socklen_t *len, int flags,
                                    unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_accept(sqe, fd, name, len, flags);
    sqe->user_data = user_data;
    return sqe;
}

static struct io_uring_sqe *connect_(int fd, const void *name, unsigned len,
                                     unsigned long long user_data)
{
    return new_entry(IORING_OP_CONNECT, fd, name, 0, len, user_data);
}

static void connections(int type)
{
    struct sockaddr_in here, from;
    socklen_t len = sizeof from;
    printf("[ACCEPT, CONNECT] %s\n", type ? "not blocking" : "blocking");
    int fd = listener(type, &here), ends[2];
    /* Accepts before a client connects, and after. */
    for (int round = 0; round < 2; round++) {
        ends[0] = client();
        if (type)
            MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
        struct io_uring_cqe *cqe;
        memset(&from, 0, sizeof from);
        len = sizeof from;
        if (round == 0) {
            accept_(fd, (void *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK, 1);
            io_uring_submit(&ring);
            printf("waits: %u\n", io_uring_cq_ready(&ring));
            connect_(ends[0], &here, sizeof here, 2);
            io_uring_submit(&ring);
        } else {
            connect_(ends[0], &here, sizeof here, 2);
            printf("connect: %d\n", result());
            accept_(fd, (void *)&from, &len, 0, 1);
            io_uring_submit(&ring);
        }
        for (int at = 0; at < 2 - round; at++) {
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            if (cqe->user_data == 1)
                ends[1] = cqe->res;
            else
                printf("connect: %d\n", cqe->res);
            io_uring_cqe_seen(&ring, cqe);
        }
        MUST(ends[1] >= 0);
        struct sockaddr_in name;
        socklen_t name_len = sizeof name;
        MUST(getsockname(ends[0], (void *)&name, &name_len) == 0);
        printf("accepted: waits %d, cloexec %d, name %d, length %u; the client's waits %d\n",
               waits(ends[1]), fcntl(ends[1], F_GETFD) & FD_CLOEXEC,
               memcmp(&name, &from, sizeof name) == 0, len, waits(ends[0]));
        connect_(ends[0], &here, sizeof here, 3);
        printf("once more: %d\n", result());
        new_entry(IORING_OP_SHUTDOWN, ends[0], NULL, SHUT_WR, 0, 4);
        printf("shutdown: %d\n", result());
        char byte;
        if (round == 0)
            MUST(fcntl(ends[1], F_SETFL, 0) == 0);
        printf("the end: %zd\n", read(ends[1], &byte, 1));
        new_entry(IORING_OP_SHUTDOWN, ends[0], NULL, 17, 0, 4);
        printf("shutdown: %d\n", result());
        close(ends[0]);
        close(ends[1]);
    }
    struct io_uring_sqe *sqe = accept_(fd, NULL, NULL, 0, 5);
    sqe->ioprio = DONTWAIT;
    printf("not to wait: %d\n", result());
    for (int flags = 0; flags <= POLL_FIRST; flags += POLL_FIRST) {
        accept_(fd, NULL, NULL, 0, 5)->ioprio = flags;
        io_uring_submit(&ring);
        io_uring_prep_cancel(entry(&ring, 0), (void *)5, 0);
        io_uring_submit(&ring);
        sorted(&ring, "cancelled", 2);
        struct __kernel_timespec soon = { 0, 20000000 };
        sqe = accept_(fd, NULL, NULL, 0, 5);
        sqe->flags |= IOSQE_IO_LINK;
        sqe->ioprio = flags;
        sqe = entry(&ring, 0);
        io_uring_prep_link_timeout(sqe, &soon, 0);
        sqe->user_data = 6;
        io_uring_submit(&ring);
        sorted(&ring, "by time", 2);
        accept_(fd, NULL, NULL, 0, 5)->ioprio = flags;
        io_uring_submit(&ring);
        io_uring_prep_cancel_fd(entry(&ring, 0), fd, 0);
        io_uring_submit(&ring);
        sorted(&ring, "by descriptor", 2);
    }
    /* Several clients and several accepts. */
    int clients[4], accepted = 0;
    for (int at = 0; at < 4; at++)
        accept_(fd, NULL, NULL, 0, 7);
    io_uring_submit(&ring);
    for (int at = 0; at < 4; at++) {
        clients[at] = client();
        MUST(connect(clients[at], (void *)&here, sizeof here) == 0);
    }
    for (int at = 0; at < 4; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        accepted += cqe->res >= 0;
        close(cqe->res);
        io_uring_cqe_seen(&ring, cqe);
        close(clients[at]);
    }
    printf("accepted: %d of 4\n", accepted);
    close(fd);
    int nobody = client();
    if (type)
        MUST(fcntl(nobody, F_SETFL, O_NONBLOCK) == 0);
    connect_(nobody, &here, sizeof here, 8)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    io_uring_submit(&ring);
    sorted(&ring, "nobody listens", 2);
    printf("waits: %d\n", waits(nobody));
    close(nobody);
}

/* Accepts into slots of registered files. */
static void direct(void)
{
    int none[4] = { -1, -1, -1, -1 };
    struct sockaddr_in here;
    printf("[direct descriptors]\n");
    MUST(io_uring_register_files(&ring, none, 4) == 0);
    int fd = listener(0, &here);
    for (int at = 0; at < 3; at++) {
        int to = client();
        MUST(connect(to, (void *)&here, sizeof here) == 0);
        struct io_uring_sqe *sqe = accept_(fd, NULL, NULL, at == 2 ? SOCK_CLOEXEC : 0, 1);
        sqe->file_index = at == 0 ? 2 + 1 : IORING_FILE_INDEX_ALLOC;
        int slot = result();
        printf("accept into a slot: %d\n", slot);
        if (at < 2) {
            sqe = new_entry(IORING_OP_SEND, at == 0 ? 2 : slot, "hi", 2, 0, 2);
            sqe->flags |= IOSQE_FIXED_FILE;
            printf("sent: %d\n", result());
            char got[2];
            MUST(read(to, got, 2) == 2);
        }
        close(to);
    }
    struct io_uring_sqe *sqe = new_entry(IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM, 3);
    sqe->file_index = 1 + 1;
    printf("socket into a slot: %d\n", result());
    sqe = connect_(1, &here, sizeof here, 4);
    sqe->flags |= IOSQE_FIXED_FILE;
    printf("connect: %d\n", result());
    for (int at = 0; at < 2; at++) {
        sqe = new_entry(IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM, 3);
        sqe->file_index = at ? 200 : IORING_FILE_INDEX_ALLOC;
        printf("socket into a slot: %d\n", result());
    }
    sqe = new_entry(IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM, 3);
    sqe->file_index = IORING_FILE_INDEX_ALLOC;
    printf("no slot is free: %d\n", result());
    close(fd);
    MUST(io_uring_unregister_files(&ring) == 0);
}

static void in_file_system(void)
{
    struct sockaddr_un here = { AF_UNIX, "listener" };
    printf("[AF_UNIX]\n");
    unlink(here.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), to = socket(AF_UNIX, SOCK_STREAM, 0);
    connect_(to, &here, sizeof here, 1);
    printf("no file: %d\n", result());
    new_entry(BIND, fd, &here, 0, sizeof here, 1);
    printf("bind: %d\n", result());
    connect_(to, &here, sizeof here, 1);
    printf("no listener: %d\n", result());
    new_entry(LISTEN, fd, NULL, 1, 0, 1);
    printf("listen: %d\n", result());
    connect_(to, &here, sizeof here, 1);
    printf("connect: %d\n", result());
    accept_(fd, NULL, NULL, 0, 1);
    int accepted = result();
    MUST(accepted >= 0);
    close(accepted);
    close(to);
    close(fd);
    unlink(here.sun_path);
}

static void refused(void)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int file = scratch(), fd = client(), message = socket(AF_INET, SOCK_DGRAM, 0);
    int ends[2];
    MUST(pipe(ends) == 0);
    const int numbers[] = { -1, 1000, file, ends[0], message, fd };
    printf("[EBADF, ENOTSOCK, EINVAL, EFAULT]\n");
    for (unsigned at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        int of = numbers[at];
        accept_(of, NULL, NULL, 0, 1);
        printf("%u: accept %d", at, result());
        connect_(of, (void *)8, sizeof here, 1);
        printf(", connect to nowhere %d", result());
        connect_(of, &here, 200, 1);
        printf(", to a long name %d", result());
        connect_(of, &here, 3, 1);
        printf(", to a short name %d", result());
        new_entry(LISTEN, of, NULL, 1, 0, 1);
        printf(", listen %d", result());
        new_entry(BIND, of, (void *)8, 0, sizeof here, 1);
        printf(", bind %d", result());
        new_entry(IORING_OP_SHUTDOWN, of, NULL, SHUT_RD, 0, 1);
        printf(", shutdown %d\n", result());
    }
    accept_(fd, NULL, NULL, 1, 1);
    printf("accept with a flag: %d\n", result());
    connect_(message, &here, sizeof here, 1);
    printf("connect for messages: %d\n", result());
    const int domains[] = { -1, AF_INET, AF_INET, AF_INET };
    const int types[] = { SOCK_STREAM, 9, SOCK_STREAM | 1 << 20, 0 };
    for (int at = 0; at < 4; at++) {
        new_entry(IORING_OP_SOCKET, domains[at], NULL, 0, types[at], 1);
        printf("socket: %d\n", result());
    }
    new_entry(IORING_OP_SOCKET, AF_INET, NULL, 250, SOCK_STREAM, 1);
    printf("protocol: %d\n", result());
    close(file);
    close(fd);
    close(message);
    close(ends[0]);
    close(ends[1]);
}

/* Two rings accept on one listening socket, and one client connects. */
static void two_rings(void)
{
    enum { ROUNDS = 100 };
    struct sockaddr_in here;
    puts("[ACCEPT of two rings]");
    int fd = listener(0, &here), accepted = 0, canceled = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct io_uring rings[2];
        struct io_uring_cqe *cqe = NULL;
        int to = client(), first = 0;
        for (int i = 0; i < 2; i++) {
            MUST(io_uring_queue_init(4, &rings[i], 0) == 0);
            struct io_uring_sqe *sqe = entry(&rings[i], 1);
            io_uring_prep_accept(sqe, fd, NULL, NULL, 0);
            sqe->user_data = 1;
            MUST(io_uring_submit(&rings[i]) == 1);
        }
        MUST(connect(to, (void *)&here, sizeof here) == 0);
        while (io_uring_peek_cqe(&rings[first], &cqe))
            first = !first;
        accepted += cqe->res >= 0;
        close(cqe->res);
        close(to);
        struct io_uring *other = &rings[!first];
        struct io_uring_sqe *cancel = entry(other, 2);
        io_uring_prep_cancel(cancel, (void *)1, 0);
        cancel->user_data = 2;
        MUST(io_uring_submit(other) == 1);
        for (int i = 0; i < 2; i++) {
            MUST(io_uring_wait_cqe(other, &cqe) == 0);
            canceled += cqe->res == (cqe->user_data == 1 ? -ECANCELED : 0);
            io_uring_cqe_seen(other, cqe);
        }
        for (int i = 0; i < 2; i++)
            io_uring_queue_exit(&rings[i]);
    }
    close(fd);
    printf("accepted: %d\n", accepted);
    printf("answers of the others: %d\n", canceled);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    connections(0);
    connections(SOCK_NONBLOCK);
    direct();
    two_rings();
    in_file_system();
    refused();
    io_uring_queue_exit(&ring);
    return 0;
}
