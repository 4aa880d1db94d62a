/* SEND_ZC and SENDMSG_ZC: a completion, and a notice that the memory is not needed any more. */
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* No probe shows whether a kernel sends lists of buffers (VECTORED). Kernels with PIPE, which is
 * newer, all send them, so the test needs PIPE. */
enum { PIPE = 62, SEND_ZC = 47, SENDMSG_ZC, POLL_FIRST = 1, FIXED = 4, REPORTS = 8, VECTORED = 32 };

static struct io_uring ring;
static int ends[2], pair[2], udp[2];
static struct sockaddr_in to;
static char *memory;

static struct io_uring_sqe *send_(int opcode, int fd, const void *from, unsigned length, int flags,
                                  int priority)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->addr = (unsigned long)from;
    sqe->len = length;
    sqe->msg_flags = flags;
    sqe->ioprio = priority;
    sqe->user_data = 1;
    return sqe;
}

static int socket_at(int type)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof name;
    int fd = socket(AF_INET, type, 0);
    MUST(fd >= 0 && bind(fd, (void *)&name, size) == 0);
    MUST(getsockname(fd, (void *)&to, &size) == 0);
    return fd;
}

static void connect_all(void)
{
    int listener = socket_at(SOCK_STREAM);
    MUST(listen(listener, 1) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(ends[0], (void *)&to, sizeof to) == 0);
    ends[1] = accept(listener, NULL, NULL);
    MUST(ends[1] >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    close(listener);
    udp[0] = socket(AF_INET, SOCK_DGRAM, 0);
    udp[1] = socket_at(SOCK_DGRAM);
}

/* Prints completions until one without IORING_CQE_F_MORE. */
static void told(const char *what)
{
    MUST(io_uring_submit(&ring) >= 0);
    for (int more = 1; more;) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        more = cqe->flags & IORING_CQE_F_MORE;
        printf("%s: %llu gives %d, flags %u\n", what, (unsigned long long)cqe->user_data, cqe->res,
               cqe->flags);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: %u more\n", what, io_uring_cq_ready(&ring));
}

static void got(int fd)
{
    char text[64] = { 0 };
    ssize_t length = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    printf("received %zd: %s\n", length, text);
}

static void sends(void)
{
    send_(SEND_ZC, ends[0], "hello", 5, 0, 0);
    told("plain");
    got(ends[1]);
    send_(SEND_ZC, ends[0], "hello", 5, 0, POLL_FIRST);
    told("polled first");
    got(ends[1]);
    send_(SEND_ZC, ends[0], "hello", 5, MSG_ZEROCOPY | MSG_WAITALL, REPORTS);
    told("with a report");
    got(ends[1]);
    memcpy(memory, "registered", 10);
    send_(SEND_ZC, ends[0], memory, 10, 0, FIXED);
    told("a registered buffer");
    got(ends[1]);
    send_(SEND_ZC, ends[0], memory + 4090, 10, 0, FIXED);
    told("beyond its end");
    send_(SEND_ZC, ends[0], memory, 10, 0, FIXED)->buf_index = 1;
    told("no such buffer");
    struct iovec parts[2] = { { "one ", 4 }, { "two", 3 } };
    send_(SEND_ZC, ends[0], parts, 2, 0, VECTORED);
    told("a list");
    got(ends[1]);
    struct sockaddr_in name = to;
    struct io_uring_sqe *sqe = send_(SEND_ZC, udp[0], "named", 5, 0, 0);
    sqe->addr2 = (unsigned long)&name;
    sqe->splice_fd_in = sizeof name;
    told("to a name");
    got(udp[1]);
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    send_(SENDMSG_ZC, ends[0], &message, 1, 0, 0);
    told("a message");
    got(ends[1]);
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    send_(SENDMSG_ZC, udp[0], &message, 1, 0, 0);
    told("a message to a name");
    got(udp[1]);
    struct iovec in_buffer[2] = { { memory, 4 }, { memory + 4, 6 } };
    message = (struct msghdr){ .msg_iov = in_buffer, .msg_iovlen = 2 };
    send_(SENDMSG_ZC, ends[0], &message, 1, 0, FIXED);
    told("a message in a registered buffer");
    got(ends[1]);
    in_buffer[1].iov_base = parts;
    send_(SENDMSG_ZC, ends[0], &message, 1, 0, FIXED);
    told("a message beside it");
    send_(IORING_OP_SEND, ends[0], parts, 2, 0, VECTORED);
    told("SEND of a list");
    got(ends[1]);
}

static void refused(void)
{
    struct msghdr message = { .msg_iov = NULL };
    send_(SEND_ZC, pair[0], "hello", 5, 0, 0);
    told("a pair");
    send_(SENDMSG_ZC, pair[0], &message, 1, 0, 0);
    told("a message of a pair");
    send_(SEND_ZC, 0, "hello", 5, 0, 0)->fd = scratch();
    told("a file");
    send_(SEND_ZC, -1, "hello", 5, 0, 0);
    told("no descriptor");
    /* An error of the file takes precedence over an address outside of the registered buffer. */
    send_(SEND_ZC, pair[0], "hello", 5, 0, FIXED);
    told("a pair, beside the buffer");
    send_(SEND_ZC, 0, "hello", 5, 0, FIXED)->fd = scratch();
    told("a file, beside the buffer");
    send_(SEND_ZC, -1, "hello", 5, 0, FIXED);
    told("no descriptor, beside the buffer");
    struct iovec beside = { &message, 1 };
    struct msghdr of_beside = { .msg_iov = &beside, .msg_iovlen = 1 };
    send_(SENDMSG_ZC, pair[0], &of_beside, 1, 0, FIXED);
    told("a message of a pair, beside the buffer");
    send_(SEND_ZC, ends[0], "hello", 5, 0, 0)->flags |= IOSQE_CQE_SKIP_SUCCESS;
    told("without a completion");
    send_(SEND_ZC, ends[0], (void *)8, 5, 0, 0);
    told("from nowhere");
    send_(SENDMSG_ZC, ends[0], (void *)8, 1, 0, 0);
    told("a message nowhere");
    for (int bit = 1; bit < 16; bit++) {
        if (1 << bit & (FIXED | REPORTS | VECTORED))
            continue;
        send_(SEND_ZC, ends[0], "hello", 5, 0, 1 << bit);
        told("a priority");
    }
    send_(SEND_ZC, ends[0], "hello", 5, 0, 0)->splice_fd_in = 1 << 16;
    told("padding");
    send_(SENDMSG_ZC, ends[0], &message, 1, 0, 0)->splice_fd_in = 1;
    told("a message with a slot");
    send_(SENDMSG_ZC, ends[0], &message, 1, 0, 0)->addr2 = 1;
    told("a message with an offset");
    send_(SEND_ZC, ends[0], "hello", 5, 0, 0)->flags |= IOSQE_BUFFER_SELECT;
    told("selects a buffer");
    send_(IORING_OP_SEND, ends[0], "hello", 5, 0, FIXED);
    told("SEND of a registered buffer");
}

/* Has the other end not acknowledged all data yet? An acknowledgement may give a full socket
 * room. */
static int is_unanswered(int fd)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    return info.tcpi_unacked > 0;
}

/* Sends that wait are cancelled, and chains go on or break. */
static void ended(void)
{
    static char much[65536];
    int size = 4096;
    MUST(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    do {
        while (send(ends[0], much, sizeof much, MSG_DONTWAIT) > 0)
            ;
        sched_yield();
    } while (is_unanswered(ends[0]) || send(ends[0], much, 1, MSG_DONTWAIT) > 0);
    send_(SEND_ZC, ends[0], much, 1, MSG_DONTWAIT, 0);
    told("not to wait");
    struct io_uring_sqe *sqe = send_(SEND_ZC, ends[0], much, 1, 0, 0);
    sqe->flags |= IOSQE_IO_LINK;
    sqe = send_(SEND_ZC, ends[0], much, 1, 0, 0);
    sqe->user_data = 2;
    io_uring_submit(&ring);
    io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
    io_uring_submit(&ring);
    struct io_uring_cqe all[5];
    for (int at = 0; at < 5; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        all[at] = *cqe;
        io_uring_cqe_seen(&ring, cqe);
    }
    for (int user_data = 0; user_data < 3; user_data++)
        for (int at = 0; at < 5; at++)
            if ((int)all[at].user_data == user_data)
                printf("cancelled: %d gives %d, flags %u\n", user_data, all[at].res, all[at].flags);
    close(ends[1]);
    send_(SEND_ZC, ends[0], much, 1, 0, 0);
    told("its peer has gone");
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, PIPE);
    MUST(posix_memalign((void **)&memory, 4096, 4096) == 0);
    struct iovec buffer = { memory, 4096 };
    MUST(io_uring_register_buffers(&ring, &buffer, 1) == 0);
    connect_all();
    sends();
    refused();
    ended();
    io_uring_queue_exit(&ring);
    return 0;
}
