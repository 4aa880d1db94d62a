/* Sends from buffers of a group, transfers of several buffers at once (bundles), and buffers that
 * are used up piece by piece. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { SIZE = 32, COUNT = 8, BUNDLE = 1 << 4, PIECES = 2, GROUP = 3 };

#include "group.h"

static int pair[2];

static void give(int id, unsigned len)
{
    io_uring_buf_ring_add(provided, memory[id], len, id, COUNT - 1, 0);
    io_uring_buf_ring_advance(provided, 1);
}

/* Registers the group anew, with `count` buffers of `len` bytes, and fills the memory with
 * letters. */
static int make(unsigned flags, int count, unsigned len)
{
    struct group reg = { (unsigned long)provided, COUNT, GROUP, flags, { 0 } }, gone = { 0 };
    gone.id = GROUP;
    registers(IORING_UNREGISTER_PBUF_RING, &gone, 1);
    memset(provided, 0, 4096);
    int answer = registers(IORING_REGISTER_PBUF_RING, &reg, 1);
    if (answer < 0)
        return answer;
    for (int id = 0; id < COUNT; id++)
        memset(memory[id], 'a' + id, SIZE);
    for (int id = 0; id < count; id++)
        give(id, len);
    return 0;
}

static struct io_uring_sqe *request(int opcode, int fd, unsigned length, unsigned priority,
                                    unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_rw(opcode, sqe, fd, NULL, length, 0);
    sqe->ioprio = priority;
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    sqe->user_data = user_data;
    return sqe;
}

static void told(const char *what, int count)
{
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("%s: %llu gives %d, flags %x\n", what, (unsigned long long)cqe->user_data, cqe->res,
               cqe->flags);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: %u more, head %d\n", what, io_uring_cq_ready(&ring), head(GROUP));
}

static void results(const char *what, int count)
{
    io_uring_submit(&ring);
    told(what, count);
}

static void feed(int bytes)
{
    char text[512];
    for (int at = 0; at < bytes; at++)
        text[at] = 'A' + at % 26;
    MUST(send(pair[1], text, bytes, 0) == bytes);
}

/* Prints how many bytes have come to the other end of the pair, and every eighth of them. */
static void came(const char *what)
{
    char text[512];
    int bytes = recv(pair[1], text, sizeof text, MSG_DONTWAIT);
    printf("%s: %d came", what, bytes);
    if (bytes > 0) {
        printf(": ");
        for (int at = 0; at < bytes; at += 8)
            putchar(text[at]);
    }
    printf("\n");
}

static void contents(const char *what)
{
    printf("%s:", what);
    for (int id = 0; id < COUNT; id++)
        printf(" %.4s..%.4s", memory[id], memory[id] + SIZE - 4);
    printf("\n");
}

/* Prints the offsets and lengths of the buffers in the ring. */
static void lengths(const char *what)
{
    printf("%s: lengths", what);
    for (int at = 0; at < COUNT; at++) {
        unsigned long address = provided->bufs[at].addr;
        printf(" %ld+%u", address ? (long)(address - (unsigned long)memory) : -1,
               provided->bufs[at].len);
    }
    printf("\n");
}

static void open_pair(int kind)
{
    MUST(socketpair(AF_UNIX, kind, 0, pair) == 0);
}

static void close_pair(void)
{
    close(pair[0]);
    close(pair[1]);
}

static void sends(void)
{
    printf("[sends]\n");
    open_pair(SOCK_STREAM);
    for (unsigned length = 0; length <= 2 * SIZE; length += 16) {
        MUST(make(0, 2, SIZE) == 0);
        request(IORING_OP_SEND, pair[0], length, 0, length);
        results("one", 1);
        came("one");
    }
    request(IORING_OP_SEND, pair[0], 0, 0, 1);
    request(IORING_OP_SEND, pair[0], 0, 0, 2);
    results("none left", 2);
    came("none left");
    /* A list of buffers (PROVIDE_BUFFERS) in place of a buffer ring. */
    struct io_uring_sqe *sqe = entry(&ring, 3);
    io_uring_prep_provide_buffers(sqe, memory[2], SIZE, 2, 9, 40);
    sqe->user_data = 3;
    results("provided", 1);
    request(IORING_OP_SEND, pair[0], 0, 0, 4)->buf_group = 9;
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 5)->buf_group = 9;
    results("of a list", 2);
    came("of a list");
    request(IORING_OP_SEND, pair[0], 0, 0, 6)->buf_group = 77;
    results("no such group", 1);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE, 6)->buf_group = 77;
    results("no such group", 1);
    request(IORING_OP_RECV, pair[0], 0, 0, 6)->buf_group = 77;
    results("no such group", 1);
    request(IORING_OP_SEND, 1000, 0, 0, 7);
    results("no such file", 1);
    request(IORING_OP_SENDMSG, pair[0], 0, 0, 8);
    results("a message", 1);
    request(IORING_OP_SEND_ZC, pair[0], 0, 0, 9);
    results("uncopied", 1);
    /* A receive with MSG_WAITALL, whose data comes in parts. */
    MUST(make(0, 4, SIZE) == 0);
    request(IORING_OP_RECV, pair[0], 24, 0, 12)->msg_flags = MSG_WAITALL;
    io_uring_submit(&ring);
    feed(16);
    feed(8);
    told("whole", 1);
    close_pair();
    open_pair(SOCK_DGRAM);
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, 0, 10);
    request(IORING_OP_SEND, pair[0], 8, 0, 11);
    results("datagrams", 2);
    came("datagrams");
    came("datagrams");
    close_pair();
}

static void sends_of_bundles(void)
{
    printf("[sends of bundles]\n");
    open_pair(SOCK_STREAM);
    for (unsigned length = 0; length <= 4 * SIZE; length += 24) {
        MUST(make(0, 4, SIZE) == 0);
        request(IORING_OP_SEND, pair[0], length, BUNDLE, length);
        io_uring_submit(&ring);
        printf("%u bytes: %u are there\n", length, io_uring_cq_ready(&ring));
        told("bundle", io_uring_cq_ready(&ring));
        lengths("bundle");
        came("bundle");
    }
    MUST(make(0, 0, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 1);
    results("none", 1);
    request(IORING_OP_SENDMSG, pair[0], 0, BUNDLE, 2);
    results("a message", 1);
    request(IORING_OP_SEND_ZC, pair[0], 0, BUNDLE, 3);
    results("uncopied", 1);
    /* A bundle with a linked entry behind it, and a bundle without a completion. */
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 4)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 5));
    results("linked", 2);
    came("linked");
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 6)->flags |= IOSQE_CQE_SKIP_SUCCESS;
    io_uring_submit(&ring);
    told("skipped", io_uring_cq_ready(&ring));
    came("skipped");
    /* The socket is full at first. */
    char block[4096] = { 0 };
    while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0)
        ;
    for (unsigned priority = 0; priority <= BUNDLE; priority += BUNDLE) {
        MUST(make(0, 3, SIZE) == 0);
        request(IORING_OP_SEND, pair[0], 0, priority, 7);
        io_uring_submit(&ring);
        io_uring_prep_cancel(entry(&ring, 0), (void *)7, 0);
        results("cancelled", 2);
        request(IORING_OP_SEND, pair[0], 0, priority, 7)->msg_flags = MSG_DONTWAIT;
        results("not to wait", 1);
    }
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 7);
    io_uring_submit(&ring);
    printf("full: %u are there\n", io_uring_cq_ready(&ring));
    int bytes = 0, got;
    while ((got = recv(pair[1], block, sizeof block, MSG_DONTWAIT)) > 0)
        bytes += got;
    told("full", 1);
    while ((got = recv(pair[1], block, sizeof block, MSG_DONTWAIT)) > 0)
        bytes += got;
    printf("full: a multiple of 4096 and %d\n", bytes % 4096);
    close(pair[1]);
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 8);
    results("no peer", 1);
    close(pair[0]);
    open_pair(SOCK_DGRAM);
    MUST(make(0, 3, SIZE) == 0);
    request(IORING_OP_SEND, pair[0], 0, BUNDLE, 9);
    results("datagram", 1);
    came("datagram");
    close_pair();
}

/* Makes the group anew, with buffers of these lengths, and sends from them or receives into
 * them. */
static void with_unequal(int opcode, unsigned flags, unsigned length, unsigned priority,
                         const int lens[COUNT])
{
    MUST(make(flags, 0, 0) == 0);
    open_pair(SOCK_STREAM);
    for (int id = 0; id < COUNT && lens[id] >= 0; id++)
        give(id, lens[id]);
    feed(40);
    request(opcode, pair[0], length, priority, length);
    io_uring_submit(&ring);
    told("unequal", io_uring_cq_ready(&ring));
    lengths("unequal");
    came("unequal");
    close_pair();
}

static void sends_of_unequal_buffers(void)
{
    static const int empty[COUNT] = { 0, 32, 32, -1 }, middle[COUNT] = { 32, 0, 32, 8, -1 },
                     short_ones[COUNT] = { 32, 8, 8, 8, 8, 8, 24, 32 };
    printf("[sends of unequal buffers]\n");
    for (unsigned length = 0; length <= 80; length += 40)
        for (unsigned priority = 0; priority <= BUNDLE; priority += BUNDLE) {
            for (unsigned flags = 0; flags <= PIECES; flags += PIECES) {
                with_unequal(IORING_OP_SEND, flags, length, priority, empty);
                with_unequal(IORING_OP_RECV, flags, length, priority, empty);
                with_unequal(IORING_OP_SEND, flags, length, priority, short_ones);
            }
            with_unequal(IORING_OP_SEND, 0, length, priority, middle);
        }
    /* A receive of a bundle also fills buffers behind an empty one. */
    with_unequal(IORING_OP_RECV, 0, 80, BUNDLE, middle);
    /* Provided buffers without a ring are used one at a time: their numbers may have any order. */
    open_pair(SOCK_STREAM);
    for (unsigned length = 0; length <= 80; length += 16) {
        io_uring_prep_provide_buffers(entry(&ring, 1), memory[0], SIZE, 4, 9, 40);
        results("provided", 1);
        request(IORING_OP_SEND, pair[0], length, BUNDLE, 2)->buf_group = 9;
        io_uring_submit(&ring);
        told("of a list", io_uring_cq_ready(&ring));
        came("of a list");
    }
    /* The entry has a list of buffers, and uses buffers of the group in place of these. */
    for (unsigned priority = 0; priority <= BUNDLE; priority += BUNDLE) {
        struct iovec parts[2] = { { memory[6], 20 }, { memory[7], 10 } };
        MUST(make(0, 4, SIZE) == 0);
        feed(40);
        request(IORING_OP_SEND, pair[0], 2, priority | 1 << 5, 3)->addr = (unsigned long)parts;
        io_uring_submit(&ring);
        told("in place of a list", io_uring_cq_ready(&ring));
        came("in place of a list");
        contents("in place of a list");
    }
    close_pair();
}

static void ends_of_sent_bundles(void)
{
    printf("[ends of sent bundles]\n");
    open_pair(SOCK_STREAM);
    for (unsigned length = 0; length <= 3 * SIZE; length += 16)
        /* With POLL_FIRST, and without. */
        for (unsigned priority = BUNDLE; priority <= (BUNDLE | 1); priority++)
            for (int count = 1; count <= 3; count++) {
                MUST(make(count == 2 ? PIECES : 0, count, SIZE) == 0);
                request(IORING_OP_SEND, pair[0], length, priority, length);
                results("ends", 1);
                told("ends", io_uring_cq_ready(&ring));
                came("ends");
            }
    MUST(make(0, 4, SIZE) == 0);
    feed(8);
    for (unsigned priority = 1; priority <= (BUNDLE | 1); priority += BUNDLE) {
        request(IORING_OP_SEND, pair[0], 0, priority, 1)->msg_flags = MSG_DONTWAIT;
        request(IORING_OP_RECV, pair[0], 0, priority, 2)->msg_flags = MSG_DONTWAIT;
        results("not to wait, and to poll first", 2);
        came("not to wait, and to poll first");
        for (int fd = fileno(stdin); fd <= 1000; fd += 1000) {
            request(IORING_OP_RECV, fd, 0, priority, 3)->msg_flags = MSG_DONTWAIT;
            results("no socket", 1);
        }
        struct io_uring_sqe *sqe = entry(&ring, 4);
        io_uring_prep_send_zc(sqe, pair[0], memory[0], 8, MSG_DONTWAIT, 0);
        sqe->ioprio = 1;
        results("uncopied, and to poll first", 2);
    }
    close_pair();
}

static void connect_pair(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t len = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(listener >= 0 && bind(listener, (void *)&name, len) == 0);
    MUST(listen(listener, 1) == 0 && getsockname(listener, (void *)&name, &len) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(pair[0], (void *)&name, len) == 0);
    pair[1] = accept(listener, NULL, NULL);
    MUST(pair[1] >= 0);
    close(listener);
}

/* Feeds bytes, and receives them with as many completions and requests as it takes: the kernel
 * chooses where a completion ends. The completions must use the buffers of the group in order. */
static void stream(const char *what, unsigned length, unsigned priority, int bytes)
{
    char peeked[512];
    int got = 0, next = 0, wrong = 0, ends = 0, most = 0;
    MUST(make(0, COUNT, SIZE) == 0);
    feed(bytes);
    MUST(recv(pair[0], peeked, bytes, MSG_PEEK | MSG_WAITALL) == bytes);
    request(IORING_OP_RECV, pair[0], length, priority, 1);
    io_uring_submit(&ring);
    while (got < bytes) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        int res = cqe->res, flags = cqe->flags & ~IORING_CQE_F_SOCK_NONEMPTY;
        io_uring_cqe_seen(&ring, cqe);
        if (res <= 0) {
            printf("%s: %d, flags %x\n", what, res, flags);
            break;
        }
        wrong += !(flags & IORING_CQE_F_BUFFER) || flags >> 16 != next || (flags & 0x10);
        for (int at = 0; at < res && next + at / SIZE < COUNT; at++)
            wrong += memory[next + at / SIZE][at % SIZE] != 'A' + (got + at) % 26;
        next += (res + SIZE - 1) / SIZE;
        got += res;
        most = res > most ? res : most;
        if (got < bytes && !(flags & IORING_CQE_F_MORE)) {
            request(IORING_OP_RECV, pair[0], length, priority, 1);
            io_uring_submit(&ring);
        }
        ends += !(flags & IORING_CQE_F_MORE);
    }
    printf("%s: %d of %d in bundles of %u, %d wrong, head is right: %d, %s, %s\n", what, got, bytes,
           length, wrong, head(GROUP) == next, most > SIZE ? "several" : "one at a time",
           ends > 0 && priority & 2 ? "ends" : "as expected");
}

static void receives(const char *domain)
{
    printf("[receives, %s]\n", domain);
    /* At most six buffers of data. The group of eight has room even if a completion ends inside a
     * buffer. */
    for (unsigned length = 0; length <= 3 * SIZE; length += SIZE)
        for (int bytes = 16; bytes <= 6 * SIZE; bytes += 16)
            stream("bundle", length, BUNDLE, bytes);
    /* A receive that has to wait. */
    MUST(make(0, COUNT, SIZE) == 0);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE, 1);
    io_uring_submit(&ring);
    feed(SIZE / 2);
    told("waits", 1);
    request(IORING_OP_RECVMSG, pair[0], 0, BUNDLE, 2);
    results("a message", 1);
    /* A bundle without a group of buffers. */
    feed(8);
    struct io_uring_sqe *sqe = entry(&ring, 3);
    io_uring_prep_recv(sqe, pair[0], memory[0], SIZE, 0);
    sqe->ioprio = BUNDLE;
    sqe->user_data = 3;
    results("without a group", 1);
    MUST(make(0, 0, SIZE) == 0);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE, 4);
    results("no buffer", 1);
    /* A receive that is cancelled while it waits uses no buffer. */
    MUST(make(0, COUNT, SIZE) == 0);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE, 5);
    io_uring_submit(&ring);
    io_uring_prep_cancel(entry(&ring, 6), (void *)5, 0);
    results("cancelled", 2);
    close(pair[1]);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE, 7);
    io_uring_submit(&ring);
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("ended: %d, head %d\n", cqe->res, head(GROUP));
    io_uring_cqe_seen(&ring, cqe);
    close(pair[0]);
}

static void multishots(void)
{
    printf("[multishots]\n");
    char peeked[512];
    for (unsigned length = 0; length <= 2 * SIZE; length += SIZE)
        for (int bytes = 16; bytes <= 7 * SIZE; bytes += 48) {
            open_pair(SOCK_STREAM);
            stream("multishot", length, BUNDLE | 2, bytes);
            close_pair();
            /* After the close, takes the last completion of the multishot, if there is one. */
            struct io_uring_cqe *cqe;
            struct __kernel_timespec soon = {.tv_nsec = 1000000};
            while (io_uring_wait_cqe_timeout(&ring, &cqe, &soon) == 0)
                io_uring_cqe_seen(&ring, cqe);
        }
    /* The socket has more data than the buffers hold. */
    open_pair(SOCK_STREAM);
    MUST(make(0, 4, SIZE) == 0);
    feed(6 * SIZE);
    request(IORING_OP_RECV, pair[0], 0, BUNDLE | 2, 1);
    io_uring_submit(&ring);
    told("more than all", io_uring_cq_ready(&ring));
    printf("left: %zd\n", recv(pair[0], peeked, sizeof peeked, MSG_DONTWAIT));
    close_pair();
    /* A multishot that ends after a number of bytes, with any number of completions. */
    open_pair(SOCK_STREAM);
    for (unsigned most = 16; most <= 3 * SIZE; most += 40) {
        MUST(make(0, COUNT, SIZE) == 0);
        feed(4 * SIZE);
        request(IORING_OP_RECV, pair[0], 0, 2, most)->splice_fd_in = most;
        io_uring_submit(&ring);
        told("bounded", io_uring_cq_ready(&ring));
        printf("left: %zd\n", recv(pair[0], peeked, sizeof peeked, MSG_DONTWAIT));
        MUST(make(0, COUNT, SIZE) == 0);
        feed(4 * SIZE);
        request(IORING_OP_RECV, pair[0], 0, BUNDLE | 2, most)->splice_fd_in = most;
        io_uring_submit(&ring);
        int got = 0, last = IORING_CQE_F_MORE;
        while (io_uring_cq_ready(&ring) > 0) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            got += cqe->res;
            last = cqe->flags;
            io_uring_cqe_seen(&ring, cqe);
        }
        printf("a bounded bundle: %d, ends: %d\n", got, !(last & IORING_CQE_F_MORE));
        printf("left: %zd\n", recv(pair[0], peeked, sizeof peeked, MSG_DONTWAIT));
    }
    request(IORING_OP_RECV, pair[0], 0, 0, 2)->splice_fd_in = 8;
    results("bounded, and no multishot", 1);
    close_pair();
}

static void pieces(void)
{
    printf("[pieces]\n");
    int answer = make(PIECES, 2, SIZE);
    printf("made: %d\n", answer);
    if (answer < 0)
        return;
    open_pair(SOCK_STREAM);
    for (int bytes = 8; bytes < 4 * SIZE; bytes += 12) {
        MUST(make(PIECES, 2, SIZE) == 0);
        for (int round = 0; round < 4; round++) {
            feed(bytes);
            request(IORING_OP_RECV, pair[0], 0, 0, bytes);
            results("a piece", 1);
            lengths("a piece");
            char rest[512];
            while (recv(pair[0], rest, sizeof rest, MSG_DONTWAIT) > 0)
                ;
        }
        contents("pieces");
    }
    for (int bytes = 8; bytes < 4 * SIZE; bytes += 28) {
        MUST(make(PIECES, 3, SIZE) == 0);
        for (int round = 0; round < 3; round++) {
            feed(bytes);
            request(IORING_OP_RECV, pair[0], 0, BUNDLE, bytes);
            results("a bundle of pieces", 1);
            lengths("a bundle of pieces");
            char rest[512];
            while (recv(pair[0], rest, sizeof rest, MSG_DONTWAIT) > 0)
                ;
        }
        MUST(make(PIECES, 3, SIZE) == 0);
        request(IORING_OP_SEND, pair[0], bytes, 0, bytes);
        request(IORING_OP_SEND, pair[0], bytes, 0, bytes);
        results("sends of pieces", 2);
        lengths("sends of pieces");
        came("sends of pieces");
        MUST(make(PIECES, 3, SIZE) == 0);
        request(IORING_OP_SEND, pair[0], bytes, BUNDLE, bytes);
        io_uring_submit(&ring);
        told("a bundle is sent", io_uring_cq_ready(&ring));
        lengths("a bundle is sent");
        came("a bundle is sent");
    }
    MUST(make(PIECES, 2, SIZE) == 0);
    request(IORING_OP_RECV, pair[0], 0, 2, 1);
    io_uring_submit(&ring);
    for (int round = 0; round < 3; round++) {
        feed(8);
        told("multishot", 1);
    }
    close(pair[1]);
    told("multishot", 1);
    close(pair[0]);
    /* Files and pipes. */
    int file = scratch(), pipes[2];
    MUST(pwrite(file, "0123456789abcdefghijklmnopqrstuvwxyz0123456789", 46, 0) == 46);
    MUST(pipe(pipes) == 0 && write(pipes[1], "0123456789", 10) == 10);
    MUST(make(PIECES, 3, SIZE) == 0);
    request(IORING_OP_READ, file, 12, 0, 1);
    results("a file", 1);
    lengths("a file");
    request(IORING_OP_READ, file, 12, 0, 2)->off = 34;
    results("the end of a file", 1);
    lengths("the end of a file");
    request(IORING_OP_READ, file, 0, 0, 3);
    results("a file, any length", 1);
    lengths("a file, any length");
    request(IORING_OP_READ, pipes[0], 0, 0, 4);
    results("a pipe", 1);
    lengths("a pipe");
    close(file);
    /* A file that a worker has to read. */
    MUST((file = open("/proc/self/status", O_RDONLY)) >= 0);
    for (int round = 0; round < 2; round++) {
        request(IORING_OP_READ, file, 12, 0, 5);
        results("a file of the kernel's", 1);
        lengths("a file of the kernel's");
    }
    close(pipes[0]);
    close(pipes[1]);
    close(file);
    for (unsigned flags = 0; flags < 16; flags++)
        if (flags != 1 && flags != 3)
            printf("flags %x: %d\n", flags, make(flags, 1, SIZE));
}

int main(void)
{
    struct io_uring_params params = { 0 };
    MUST(io_uring_queue_init_params(64, &ring, &params) == 0);
    provided = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(provided != MAP_FAILED);
    printf("bundles: %d\n", !!(params.features & 1 << 14));
    sends();
    sends_of_bundles();
    sends_of_unequal_buffers();
    ends_of_sent_bundles();
    open_pair(SOCK_STREAM);
    receives("unix");
    connect_pair();
    receives("inet");
    multishots();
    pieces();
    io_uring_queue_exit(&ring);
    return 0;
}
