/* IORING_CQE_F_SOCK_NONEMPTY (4): which completions say that the socket has more. */
#define _GNU_SOURCE
#include "common.h"
#include "tcp.h"
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { SIZE = 16, COUNT = 8, GROUP = 5, MULTISHOT = 2, BUNDLE = 16, POLL_FIRST = 1 };

#include "group.h"

static char got[256];

static void udp(int ends[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    ends[1] = socket(AF_INET, SOCK_DGRAM, 0), ends[0] = socket(AF_INET, SOCK_DGRAM, 0);
    MUST(bind(ends[1], (void *)&at, len) == 0);
    MUST(getsockname(ends[1], (void *)&at, &len) == 0);
    MUST(connect(ends[0], (void *)&at, len) == 0);
}

static const char *const KINDS[] = { "tcp", "unix stream", "unix datagram", "unix seqpacket",
                                     "udp" };

static void open_pair(int kind, int ends[2])
{
    static const int TYPES[] = { 0, SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
    if (kind == 0)
        tcp(ends);
    else if (kind == 4)
        udp(ends);
    else
        MUST(socketpair(AF_UNIX, TYPES[kind], 0, ends) == 0);
}

/* The data of a send over loopback is there when the send returns. The end of the stream may come
 * later, so this function waits for it. */
static void end_of(int fd, int other)
{
    struct pollfd ready = { .fd = other, .events = POLLRDHUP };
    MUST(shutdown(fd, SHUT_WR) == 0);
    poll(&ready, 1, 1000);
}

enum how { RECV, RECVMSG, READ, RECV_POLL_FIRST, HOWS };
static const char *const HOW[] = { "recv", "recvmsg", "read", "recv after a poll" };

static void receive(int how, int fd, int len, int flags, const char *what)
{
    static struct iovec part;
    static struct msghdr header;
    /* A READ has no flags for messages. A request that polls first has to wait, which MSG_DONTWAIT
     * forbids. */
    if (flags && (how == READ || (how == RECV_POLL_FIRST && flags & MSG_DONTWAIT)))
        return;
    struct io_uring_sqe *sqe = entry(&ring, 1);
    part = (struct iovec){ got, len };
    header = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 };
    if (how == READ)
        io_uring_prep_read(sqe, fd, got, len, 0);
    else if (how == RECVMSG)
        io_uring_prep_recvmsg(sqe, fd, &header, flags);
    else
        io_uring_prep_recv(sqe, fd, got, len, flags);
    if (how == RECV_POLL_FIRST)
        sqe->ioprio = POLL_FIRST;
    sqe->user_data = 1;
    MUST(io_uring_submit(&ring) == 1);
    char line[100];
    snprintf(line, sizeof line, "%s of %d, flags %d, %s", HOW[how], len, flags, what);
    completions(&ring, line, 1);
}

static void plain(int kind, int how)
{
    int ends[2];
    open_pair(kind, ends);
    printf("[%s]\n", KINDS[kind]);
    MUST(send(ends[0], "0123456789", 10, 0) == 10);
    receive(how, ends[1], 4, MSG_PEEK, "10 there");
    receive(how, ends[1], 4, 0, "10 there");
    if (kind < 2) {
        receive(how, ends[1], 6, 0, "6 there");
        MUST(send(ends[0], "0123456789", 10, 0) == 10);
        receive(how, ends[1], 20, MSG_PEEK, "10 there");
        receive(how, ends[1], 20, 0, "10 there");
        MUST(send(ends[0], "0123456789", 10, 0) == 10);
        receive(how, ends[1], 10, MSG_WAITALL, "10 there");
    }
    MUST(send(ends[0], "01", 2, 0) == 2 && send(ends[0], "23", 2, 0) == 2);
    receive(how, ends[1], 2, 0, "2 and 2 there");
    receive(how, ends[1], 8, MSG_TRUNC, "2 there");
    receive(how, ends[1], 8, MSG_DONTWAIT, "nothing there");
    if (kind == 1 || kind == 0) {
        MUST(send(ends[0], "0123", 4, 0) == 4);
        end_of(ends[0], ends[1]);
        receive(how, ends[1], 2, 0, "4 and the end there");
        receive(how, ends[1], 2, 0, "2 and the end there");
        receive(how, ends[1], 2, 0, "the end there");
        receive(how, ends[1], 2, 0, "the end again");
    }
    close(ends[0]);
    close(ends[1]);
}

/* A receive ends behind data that carries descriptors. It gets less than it has asked for, although
 * more data may be there. */
static void with_descriptors(int how)
{
    int ends[2];
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { "0123", 4 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = sizeof control };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    open_pair(1, ends);
    memcpy(CMSG_DATA(rights), &ends[0], sizeof(int));
    printf("[descriptors]\n");
    MUST(sendmsg(ends[0], &message, 0) == 4 && send(ends[0], "456789", 6, 0) == 6);
    receive(how, ends[1], 20, 0, "4 with a descriptor, 6 there");
    receive(how, ends[1], 20, 0, "6 there");
    close(ends[0]);
    close(ends[1]);
}

/* Receives before the end of the stream, after shutdown(2), below a low-water mark, and before
 * urgent data. */
static void ends(int kind, int how)
{
    int ends[2], small = 100;
    open_pair(kind, ends);
    printf("[ends of %s]\n", KINDS[kind]);
    MUST(send(ends[0], "0123", 4, 0) == 4);
    end_of(ends[0], ends[1]);
    receive(how, ends[1], 20, 0, "4 and the end there");
    close(ends[0]);
    close(ends[1]);
    open_pair(kind, ends);
    MUST(send(ends[0], "0123", 4, 0) == 4);
    MUST(shutdown(ends[1], SHUT_RD) == 0);
    receive(how, ends[1], 2, 0, "4 there, shut down here");
    receive(how, ends[1], 20, 0, "2 there, shut down here");
    receive(how, ends[1], 20, 0, "shut down here");
    close(ends[0]);
    close(ends[1]);
    open_pair(kind, ends);
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &small, sizeof small) == 0);
    MUST(send(ends[0], "0123", 4, 0) == 4);
    receive(how, ends[1], 2, MSG_DONTWAIT, "4 there, fewer than the low water");
    close(ends[0]);
    close(ends[1]);
    open_pair(kind, ends);
    MUST(send(ends[0], "0123", 4, 0) == 4 && send(ends[0], "!", 1, MSG_OOB) == 1);
    receive(how, ends[1], 2, 0, "4 and urgent data there");
    receive(how, ends[1], 20, 0, "2 and urgent data there");
    receive(how, ends[1], 1, MSG_OOB, "urgent data there");
    close(ends[0]);
    close(ends[1]);
}

static void give(int count)
{
    for (int id = 0; id < count; id++)
        io_uring_buf_ring_add(provided, memory[id], SIZE, id, COUNT - 1, id);
    io_uring_buf_ring_advance(provided, count);
}

/* Prints completions until they have this number of bytes, or until one is the last. */
static void bytes(const char *what, int count)
{
    for (int more = 1; count > 0 && more;) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("%s: %d, flags %x\n", what, cqe->res, cqe->flags);
        count -= cqe->res;
        more = cqe->flags & IORING_CQE_F_MORE;
        io_uring_cqe_seen(&ring, cqe);
    }
}

/* Receives into buffers of a group: into one buffer, in bundles, and by multishots. */
static void into_groups(int kind, int priority, const char *what)
{
    struct group reg = { (unsigned long)provided, COUNT, GROUP, 0, { 0 } };
    /* A bundle of the kernel's fills whole buffers first, and may leave the rest of the data. */
    int first = priority & BUNDLE ? 3 * SIZE : 40, second = priority & BUNDLE ? SIZE : 20;
    int ends[2], is_stream = kind < 2;
    printf("[%s, %s]\n", what, KINDS[kind]);
    open_pair(kind, ends);
    memset(provided, 0, 4096);
    give(COUNT);
    MUST(io_uring_register_buf_ring(&ring, (struct io_uring_buf_reg *)&reg, 0) == 0);
    MUST(send(ends[0], memory, first, 0) == first);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_recv(sqe, ends[1], NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    sqe->ioprio = priority;
    sqe->user_data = 1;
    MUST(io_uring_submit(&ring) == 1);
    bytes(what, is_stream ? first : SIZE);
    if (priority & MULTISHOT) {
        MUST(send(ends[0], memory, second, 0) == second);
        bytes(what, is_stream ? second : SIZE);
        MUST(send(ends[0], memory, 3, 0) == 3);
        bytes(what, 3);
        if (is_stream) {
            end_of(ends[0], ends[1]);
            bytes(what, 1);
        }
        sqe = entry(&ring, 2);
        io_uring_prep_cancel64(sqe, 1, 0);
        sqe->user_data = 2;
        MUST(io_uring_submit(&ring) == 1);
        sorted(&ring, "cancel", is_stream ? 1 : 2);
    }
    close(ends[0]);
    MUST(io_uring_unregister_buf_ring(&ring, GROUP) == 0);
    close(ends[1]);
}

static void accepts(int is_unix, int priority, const char *what)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr_un path = { .sun_family = AF_UNIX };
    socklen_t len = is_unix ? sizeof(sa_family_t) : sizeof at;
    struct sockaddr *name = is_unix ? (void *)&path : (void *)&at;
    int listener = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0), clients[3];
    printf("[%s, %s]\n", what, KINDS[is_unix]);
    MUST(bind(listener, name, len) == 0 && listen(listener, 8) == 0);
    len = is_unix ? sizeof path : sizeof at;
    MUST(getsockname(listener, name, &len) == 0);
    for (int at = 0; at < 3; at++) {
        clients[at] = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        MUST(connect(clients[at], name, len) == 0);
    }
    for (int left = 3, more = 0; left > 0;) {
        struct io_uring_cqe *cqe;
        struct io_uring_sqe *sqe = more ? NULL : entry(&ring, 1);
        if (sqe) {
            io_uring_prep_accept(sqe, listener, NULL, NULL, 0);
            sqe->ioprio = priority;
            sqe->user_data = 1;
            MUST(io_uring_submit(&ring) == 1);
        }
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("%s, %d left: %d, flags %u\n", what, --left, cqe->res < 0 ? cqe->res : 0,
               cqe->flags);
        more = cqe->flags & IORING_CQE_F_MORE;
        close(cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
    struct io_uring_sqe *sqe = entry(&ring, 2);
    io_uring_prep_cancel64(sqe, 1, 0);
    sqe->user_data = 2;
    MUST(io_uring_submit(&ring) == 1);
    sorted(&ring, "cancel", priority ? 2 : 1);
    for (int at = 0; at < 3; at++)
        close(clients[at]);
    close(listener);
}

int main(void)
{
    MUST(io_uring_queue_init(32, &ring, 0) == 0);
    needs(&ring, IORING_OP_SOCKET);
    MUST(posix_memalign((void **)&provided, 4096, 4096) == 0);
    for (int kind = 0; kind < 5; kind++)
        for (int how = 0; how < HOWS; how++)
            plain(kind, how);
    for (int kind = 0; kind < 2; kind++)
        for (int how = 0; how < HOWS; how++)
            ends(kind, how);
    for (int how = 0; how < HOWS; how++)
        with_descriptors(how);
    for (int kind = 0; kind < 5; kind++) {
        into_groups(kind, 0, "one buffer");
        into_groups(kind, MULTISHOT, "multishot");
        if (kind < 2) {
            into_groups(kind, BUNDLE, "bundle");
            into_groups(kind, MULTISHOT | BUNDLE, "multishot of bundles");
        }
    }
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        accepts(is_unix, 0, "accept");
        accepts(is_unix, 1, "multishot accept");
    }
    return 0;
}
