/* Accepts, receives and reads that go on after a completion, and what ends them. */
#define _GNU_SOURCE
#include "common.h"
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { SIZE = 64, COUNT = 8, ACCEPT_MORE = 1, MORE = 2, READ_MORE = 49, GROUP = 3 };

#include "group.h"

static void give(int id)
{
    io_uring_buf_ring_add(provided, memory[id], SIZE, id, COUNT - 1, 0);
    io_uring_buf_ring_advance(provided, 1);
}

/* Makes a group with `count` buffers. */
static void make_group(int count)
{
    struct group reg = { (unsigned long)provided, COUNT, GROUP, 0, { 0 } };
    memset(provided, 0, 4096);
    for (int id = 0; id < count; id++)
        give(id);
    MUST(io_uring_register_buf_ring(&ring, (struct io_uring_buf_reg *)&reg, 0) == 0);
}

static void end_group(void)
{
    MUST(io_uring_unregister_buf_ring(&ring, GROUP) == 0);
}

static struct io_uring_sqe *request(int opcode, int fd, int priority, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_rw(opcode, sqe, fd, NULL, 0, opcode == READ_MORE ? (__u64)-1 : 0);
    sqe->ioprio = priority;
    if (opcode != IORING_OP_ACCEPT) {
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = GROUP;
    }
    sqe->user_data = user_data;
    return sqe;
}

static void show(const char *what, struct io_uring_cqe *cqe)
{
    unsigned flags = cqe->flags;
    int is_new = cqe->user_data >= 100 && cqe->user_data < 200 && cqe->res > 0;
    printf("%s: %llu gives %d, flags %x", what, (unsigned long long)cqe->user_data,
           is_new ? 99 : cqe->res, flags);
    if (flags & IORING_CQE_F_BUFFER && cqe->res > 0 && flags >> 16 < COUNT)
        printf(", %.*s", cqe->res < SIZE ? cqe->res : SIZE, memory[flags >> 16]);
    printf("\n");
    if (is_new)
        close(cqe->res);
}

static void results(const char *what, int count)
{
    io_uring_submit(&ring);
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        show(what, cqe);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: %u more\n", what, io_uring_cq_ready(&ring));
}

static void cancel(unsigned long long user_data)
{
    io_uring_prep_cancel(entry(&ring, 0), (void *)(unsigned long)user_data, 0);
    results("cancelled", 2);
}

static void say(int fd, const char *text)
{
    MUST(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
}

static int listener(int flags, struct sockaddr_in *name)
{
    socklen_t size = sizeof *name;
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    *name = (struct sockaddr_in){ .sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    MUST(fd >= 0 && bind(fd, (struct sockaddr *)name, sizeof *name) == 0 && listen(fd, 8) == 0 &&
         getsockname(fd, (struct sockaddr *)name, &size) == 0);
    return fd;
}

static int caller(const struct sockaddr_in *name)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fd >= 0 && connect(fd, (const struct sockaddr *)name, sizeof *name) == 0);
    return fd;
}

static void accepts(int flags)
{
    struct sockaddr_in name;
    int calls[8], fd = listener(flags, &name);
    printf("[ACCEPT] %s\n", flags ? "SOCK_NONBLOCK" : "blocking");
    calls[0] = caller(&name);
    calls[1] = caller(&name);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 100);
    results("two were there", 2);
    calls[2] = caller(&name);
    results("one comes", 1);
    calls[3] = caller(&name);
    results("one more", 1);
    cancel(100);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 101);
    results("waits", 0);
    MUST(shutdown(fd, SHUT_RDWR) == 0);
    results("shut down", 1);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 102);
    results("no listener", 1);
    close(fd);
    fd = listener(flags, &name);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 1)->file_index = 1;
    results("into one slot", 1);
    MUST(io_uring_register_files_sparse(&ring, 2) == 0);
    calls[4] = caller(&name);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 2)->file_index = 0xffffffff;
    results("into slots", 1);
    calls[5] = caller(&name);
    results("into slots", 1);
    calls[6] = caller(&name);
    results("all slots are full", 1);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE | 8, 3);
    results("an unknown flag", 1);
    /* The linked NOP has no completion before the whole multishot has ended. */
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 103)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    results("in a chain", 0);
    calls[7] = caller(&name);
    results("in a chain", 1);
    io_uring_prep_cancel(entry(&ring, 0), (void *)103, 0);
    results("cancelled in a chain", 3);
    for (int at = 0; at < 8; at++)
        close(calls[at]);
    close(fd);
    MUST(io_uring_unregister_files(&ring) == 0);
}

/* A timeout ends a multishot that has posted completions before. */
static void timed(void)
{
    struct __kernel_timespec soon = { 0, 50000000 };
    struct sockaddr_in name;
    int fd = listener(0, &name), call = caller(&name);
    printf("[ACCEPT] with a timeout\n");
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 100)->flags |= IOSQE_IO_LINK;
    io_uring_prep_link_timeout(entry(&ring, 0), &soon, 0);
    results("one, then the end", 3);
    close(call);
    close(fd);
}

static void pair(int kind, int ends[2])
{
    if (kind >= 0) {
        MUST(socketpair(AF_UNIX, kind, 0, ends) == 0);
        return;
    }
    struct sockaddr_in name;
    int fd = listener(0, &name);
    ends[1] = caller(&name);
    ends[0] = accept(fd, NULL, NULL);
    MUST(ends[0] >= 0);
    close(fd);
}

static void receives(int kind, const char *what)
{
    int ends[2];
    pair(kind, ends);
    int is_stream = kind != SOCK_DGRAM && kind != SOCK_SEQPACKET;
    printf("[RECV] %s\n", what);
    make_group(2);
    request(IORING_OP_RECV, ends[0], MORE, 1)->flags = 0;
    results("without a buffer of a group", 1);
    request(IORING_OP_RECV, ends[0], MORE, 1)->msg_flags = MSG_WAITALL;
    results("MSG_WAITALL", 1);
    say(ends[1], "first");
    request(IORING_OP_RECV, ends[0], MORE, 2);
    results("data there", 1);
    say(ends[1], "second");
    /* Only for a stream is it known that no more data is there. On other sockets, the multishot
     * tries another receive, and finds no buffer. */
    results("the last buffer", is_stream ? 1 : 2);
    if (is_stream) {
        say(ends[1], "third");
        results("none is left", 1);
        recv(ends[0], memory[7], 5, 0);
    }
    for (int id = 2; id < 7; id++)
        give(id);
    request(IORING_OP_RECV, ends[0], MORE, 3);
    results("waits", 0);
    for (int at = 0; at < 3; at++) {
        say(ends[1], "again");
        results("comes", 1);
    }
    cancel(3);
    request(IORING_OP_RECV, ends[0], MORE, 4);
    results("waits", 0);
    if (kind == SOCK_DGRAM) {
        MUST(send(ends[1], "", 0, 0) == 0);
        results("an empty one", 1);
    } else {
        say(ends[1], "last");
        results("comes", 1);
        shutdown(ends[1], SHUT_RDWR);
        results("closed", 1);
    }
    end_group();
    close(ends[0]);
    close(ends[1]);
    pair(kind, ends);
    make_group(4);
    /* A multishot with MSG_DONTWAIT does not wait. */
    request(IORING_OP_RECV, ends[0], MORE, 5)->msg_flags = MSG_DONTWAIT;
    results("not to wait, nothing there", 1);
    say(ends[1], "there");
    request(IORING_OP_RECV, ends[0], MORE, 6)->msg_flags = MSG_DONTWAIT;
    results("not to wait", 1);
    if (is_stream || kind == SOCK_SEQPACKET || kind == SOCK_DGRAM) {
        io_uring_prep_cancel(entry(&ring, 0), (void *)6, 0);
        results("is it there?", 2);
    }
    end_group();
    close(ends[0]);
    close(ends[1]);
}

/* Length limits, and how many bytes a receive takes at a time. */
static void lengths(void)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    printf("[RECV] lengths\n");
    make_group(6);
    say(ends[1], "abcdefghij");
    request(IORING_OP_RECV, ends[0], MORE, 1)->len = 4;
    results("four at a time", 3);
    cancel(1);
    end_group();
    /* Two receives on two sockets share the buffers of a group. */
    int others[2];
    pair(SOCK_STREAM, others);
    make_group(3);
    request(IORING_OP_RECV, ends[0], MORE, 2);
    request(IORING_OP_RECV, others[0], MORE, 3);
    results("both wait", 0);
    say(ends[1], "one");
    results("one", 1);
    say(others[1], "two");
    results("the other", 1);
    say(ends[1], "three");
    results("one", 1);
    say(others[1], "four");
    results("no buffer", 1);
    say(ends[1], "five");
    results("no buffer", 1);
    end_group();
    close(others[0]);
    close(others[1]);
    close(ends[0]);
    close(ends[1]);
}

static void messages(void)
{
    int ends[2];
    char control[64], carried[CMSG_SPACE(sizeof(int))] = { 0 };
    printf("[RECVMSG]\n");
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int kind = 0; kind < 3; kind++) {
        struct msghdr header = { .msg_namelen = kind ? 8 : 0,
                                 .msg_controllen = kind == 2 ? 24 : 0 };
        memset(memory, 0, sizeof memory);
        make_group(5);
        say(ends[1], "message");
        struct io_uring_sqe *sqe = request(IORING_OP_RECVMSG, ends[0], MORE, kind + 1);
        sqe->addr = (unsigned long)&header;
        sqe->len = 1;
        io_uring_submit(&ring);
        for (int at = 0; at < 3; at++) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            printf("%d: gives %d, flags %x", kind, cqe->res, cqe->flags);
            if (cqe->res >= 16) {
                unsigned *out = (unsigned *)memory[cqe->flags >> 16];
                printf(", %u %u %u %x, %.7s", out[0], out[1], out[2], out[3],
                       (char *)out + 16 + header.msg_namelen + header.msg_controllen);
            }
            printf("\n");
            io_uring_cqe_seen(&ring, cqe);
            if (at == 0) {
                struct iovec part = { "carries", 7 };
                struct msghdr carrier = { .msg_iov = &part, .msg_iovlen = 1,
                                          .msg_control = carried,
                                          .msg_controllen = sizeof carried };
                struct cmsghdr *first = CMSG_FIRSTHDR(&carrier);
                first->cmsg_level = SOL_SOCKET;
                first->cmsg_type = SCM_RIGHTS;
                first->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(first), &ends[0], sizeof(int));
                MUST(sendmsg(ends[1], &carrier, 0) == 7);
            } else if (at == 1) {
                char large[SIZE] = "large";
                MUST(send(ends[1], large, sizeof large, 0) == SIZE);
            }
        }
        cancel(kind + 1);
        end_group();
        if (kind == 2)
            for (int fd = ends[1] + 1; fd < ends[1] + 9; fd++)
                if (fd != ring.ring_fd)
                    close(fd);
    }
    /* An empty message ends the multishot. */
    struct msghdr empty = { .msg_namelen = 8 };
    make_group(2);
    struct io_uring_sqe *last = request(IORING_OP_RECVMSG, ends[0], MORE, 6);
    last->addr = (unsigned long)&empty;
    last->len = 1;
    MUST(send(ends[1], "", 0, 0) == 0);
    results("an empty one", 1);
    end_group();
    /* The buffer has no room for the name and the control data. */
    struct msghdr header = { .msg_namelen = 40, .msg_controllen = 40 };
    make_group(2);
    struct io_uring_sqe *sqe = request(IORING_OP_RECVMSG, ends[0], MORE, 7);
    sqe->addr = (unsigned long)&header;
    sqe->len = 1;
    say(ends[1], "message");
    results("no room", 1);
    struct iovec part = { control, 8 };
    header = (struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 };
    sqe = request(IORING_OP_RECVMSG, ends[0], MORE, 8);
    sqe->addr = (unsigned long)&header;
    sqe->len = 1;
    say(ends[1], "message");
    results("a part", 1);
    end_group();
    close(ends[0]);
    close(ends[1]);
}

static void reads(void)
{
    int ends[2], file = scratch();
    printf("[READ_MULTISHOT]\n");
    MUST(pipe(ends) == 0 && write(file, "abc", 3) == 3);
    make_group(4);
    request(READ_MORE, ends[0], 0, 1)->flags = 0;
    results("without a buffer of a group", 1);
    request(READ_MORE, file, 0, 2);
    results("a file", 1);
    request(READ_MORE, -1, 0, 3);
    results("no file", 1);
    request(READ_MORE, ends[0], 0, 4)->addr = 8;
    results("an address", 1);
    request(READ_MORE, ends[0], 0, 5);
    results("waits", 0);
    MUST(write(ends[1], "one", 3) == 3);
    results("comes", 1);
    MUST(write(ends[1], "two", 3) == 3);
    results("comes", 1);
    cancel(5);
    request(READ_MORE, ends[0], 0, 6);
    results("waits", 0);
    close(ends[1]);
    results("closed", 1);
    request(READ_MORE, ends[0], 0, 7);
    results("closed", 1);
    end_group();
    close(ends[0]);
    close(file);
}

/* The completion that finds the queue full is the last one of the multishot. */
static void full(void)
{
    struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 4 };
    struct io_uring before = ring;
    struct sockaddr_in name;
    int calls[6], ends[2], fd = listener(SOCK_NONBLOCK, &name);
    printf("[a full queue]\n");
    MUST(io_uring_queue_init_params(2, &ring, &params) == 0);
    for (int at = 0; at < 6; at++)
        calls[at] = caller(&name);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 100);
    io_uring_submit(&ring);
    results("accepted", 5);
    request(IORING_OP_ACCEPT, fd, ACCEPT_MORE, 101);
    results("the sixth", 1);
    cancel(101);
    make_group(6);
    pair(SOCK_STREAM, ends);
    say(ends[1], "abcdef");
    request(IORING_OP_RECV, ends[0], MORE, 1)->len = 1;
    io_uring_submit(&ring);
    results("received", 5);
    end_group();
    for (int at = 0; at < 6; at++)
        close(calls[at]);
    close(fd);
    close(ends[0]);
    close(ends[1]);
    io_uring_queue_exit(&ring);
    ring = before;
}

int main(void)
{
    MUST(io_uring_queue_init(16, &ring, 0) == 0);
    provided = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(provided != MAP_FAILED);
    accepts(0);
    accepts(SOCK_NONBLOCK);
    timed();
    receives(-1, "TCP");
    receives(SOCK_STREAM, "stream");
    receives(SOCK_SEQPACKET, "packets");
    receives(SOCK_DGRAM, "datagrams");
    lengths();
    messages();
    reads();
    full();
    /* Multishots are in flight when the ring ends. */
    int ends[2];
    pair(SOCK_STREAM, ends);
    make_group(2);
    request(IORING_OP_RECV, ends[0], MORE, 1);
    results("to the end", 0);
    io_uring_queue_exit(&ring);
    return 0;
}
