/* Data comes and is read at once: the polls report it all the same. */
#include "common.h"
#include <sys/socket.h>
#include <sys/uio.h>

#define ROUNDS 200

static struct io_uring ring;

/* The functions of the C library that take the place of read, recv and recvfrom with
 * _FORTIFY_SOURCE. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, void *, socklen_t *);

enum how { READ, READV, RECV, RECVFROM, RECVMSG, READ_CHK, RECV_CHK, RECVFROM_CHK, HOWS };

static const char *const names[HOWS] = {"read",    "readv",      "recv",       "recvfrom",
                                        "recvmsg", "__read_chk", "__recv_chk", "__recvfrom_chk"};

static void take(enum how how, int fd)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    switch (how) {
    case READ:
        MUST(read(fd, &byte, 1) == 1);
        break;
    case READV:
        MUST(readv(fd, &part, 1) == 1);
        break;
    case RECV:
        MUST(recv(fd, &byte, 1, 0) == 1);
        break;
    case RECVFROM:
        MUST(recvfrom(fd, &byte, 1, 0, NULL, NULL) == 1);
        break;
    case READ_CHK:
        MUST(__read_chk(fd, &byte, 1, 1) == 1);
        break;
    case RECV_CHK:
        MUST(__recv_chk(fd, &byte, 1, 1, 0) == 1);
        break;
    case RECVFROM_CHK:
        MUST(__recvfrom_chk(fd, &byte, 1, 1, 0, NULL, NULL) == 1);
        break;
    default:
        MUST(recvmsg(fd, &message, 0) == 1);
    }
}

static void pulses(enum how how, int many)
{
    int ends[2], told = 0;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct io_uring_cqe *cqe;
        if (many && round == 0)
            io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), ends[0], POLLIN);
        if (!many)
            io_uring_prep_poll_add(io_uring_get_sqe(&ring), ends[0], POLLIN);
        MUST(io_uring_submit(&ring) >= 0);
        MUST(write(ends[1], "x", 1) == 1);
        take(how, ends[0]);
        /* Another thread may post the completion. */
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        told += cqe->res & POLLIN && !(cqe->flags & IORING_CQE_F_MORE) == !many;
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s, %s: %d of %d\n", names[how], many ? "many times" : "once", told, ROUNDS);
    io_uring_queue_exit(&ring);
    close(ends[0]);
    close(ends[1]);
}

/* More events than the ring has room for: a multishot poll ends then. */
static void too_many(void)
{
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = 2};
    struct io_uring_cqe *cqe;
    int ends[2];
    MUST(pipe(ends) == 0 && io_uring_queue_init_params(2, &ring, &params) == 0);
    io_uring_prep_poll_multishot(io_uring_get_sqe(&ring), ends[0], POLLIN);
    MUST(io_uring_submit(&ring) == 1);
    for (int at = 0; at < 8; at++) {
        MUST(write(ends[1], "x", 1) == 1);
        take(READ, ends[0]);
    }
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
        printf("no room: %d, flags %u\n", cqe->res, cqe->flags);
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
}

int main(void)
{
    for (enum how how = 0; how < HOWS; how++) {
        pulses(how, 0);
        pulses(how, 1);
    }
    too_many();
    return 0;
}
