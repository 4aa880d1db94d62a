/* Flags and offsets of reads and writes, on files of many kinds. Requests that are wrong in two
 * ways are left out: the kernel's io_uring checks in another order than preadv2(2). */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { HIPRI = 1, DSYNC = 2, SYNC = 4, NOWAIT = 8, APPEND = 0x10, NOAPPEND = 0x20 };
enum { LEN = 8, BLOCK = 4096 };

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const int FLAGS[] = { 0, HIPRI, DSYNC, SYNC, NOWAIT, APPEND, NOAPPEND, 0x40, 0x80, 0x100,
                             0x200, NOWAIT | SYNC, NOWAIT | APPEND, APPEND | NOAPPEND };
static const long long OFFSETS[] = { 0, -1, 5, -2 };
static const char *const OPS[] = { "read", "write", "readv", "writev" };

enum kind {
    PIPE, NONBLOCKING_PIPE, BROKEN_PIPE, SOCKET, NONBLOCKING_SOCKET, DATAGRAMS, LISTENER, EVENTFD,
    NONBLOCKING_EVENTFD, TIMERFD, EPOLL, EMPTY, ZEROES, FULL, TERMINAL, BUFFERED, APPENDED, KINDS
};
static const char *const NAMES[] = {
    "pipe", "nonblocking pipe", "broken pipe", "socket", "nonblocking socket", "datagrams",
    "listener", "eventfd", "nonblocking eventfd", "timerfd", "epoll", "/dev/null", "/dev/zero",
    "/dev/full", "terminal", "file", "appended file",
};

static char block[BLOCK];

static void open_file(const char *path, int flags, int ends[2])
{
    MUST((ends[0] = open(path, O_RDWR | flags, 0600)) >= 0);
    ends[1] = dup(ends[0]);
}

static void open_regular(int flags, int ends[2])
{
    open_file(".", O_TMPFILE | flags, ends);
    MUST(write(ends[0], block, BLOCK) == BLOCK && lseek(ends[0], 0, SEEK_SET) == 0);
}

static void listener(int ends[2])
{
    struct sockaddr_un any = { .sun_family = AF_UNIX };
    ends[0] = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(bind(ends[0], (void *)&any, sizeof any.sun_family) == 0 && listen(ends[0], 1) == 0);
    ends[1] = dup(ends[0]);
}

static void terminal(int ends[2])
{
    MUST((ends[1] = posix_openpt(O_RDWR | O_NOCTTY)) >= 0);
    MUST(grantpt(ends[1]) == 0 && unlockpt(ends[1]) == 0);
    MUST((ends[0] = open(ptsname(ends[1]), O_RDWR | O_NOCTTY)) >= 0);
}

/* `ends[0]` is read, and `ends[1]` is written. */
static void open_kind(enum kind kind, int is_write, int ends[2])
{
    switch (kind) {
    case PIPE: MUST(pipe(ends) == 0); break;
    case NONBLOCKING_PIPE: MUST(pipe2(ends, O_NONBLOCK) == 0); break;
    case BROKEN_PIPE:
        MUST(pipe(ends) == 0);
        close(ends[!is_write]);
        ends[!is_write] = -1;
        break;
    case SOCKET: MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); break;
    case NONBLOCKING_SOCKET:
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        break;
    case DATAGRAMS: MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0); break;
    case LISTENER: listener(ends); break;
    case EVENTFD: ends[1] = dup(ends[0] = eventfd(0, 0)); break;
    case NONBLOCKING_EVENTFD: ends[1] = dup(ends[0] = eventfd(0, EFD_NONBLOCK)); break;
    case TIMERFD: ends[1] = dup(ends[0] = timerfd_create(CLOCK_MONOTONIC, 0)); break;
    case EPOLL: ends[1] = dup(ends[0] = epoll_create1(0)); break;
    case EMPTY: open_file("/dev/null", 0, ends); break;
    case ZEROES: open_file("/dev/zero", 0, ends); break;
    case FULL: open_file("/dev/full", 0, ends); break;
    case TERMINAL: terminal(ends); break;
    case BUFFERED: open_regular(0, ends); break;
    case APPENDED: open_regular(O_APPEND, ends); break;
    case KINDS: break;
    }
}

/* Makes the file ready for a read. For a write, fills a pipe. */
static void prepare(enum kind kind, int is_write, int ends[2])
{
    static const char one[LEN] = { 1 };
    if (!is_write && kind != BROKEN_PIPE && kind <= NONBLOCKING_EVENTFD && kind != LISTENER)
        MUST(write(ends[1], one, LEN) == LEN);
    if (!is_write && kind == TERMINAL)
        MUST(write(ends[1], "abcdefg\n", LEN) == LEN);
    if (is_write && kind <= NONBLOCKING_PIPE) {
        int flags = fcntl(ends[1], F_GETFL);
        fcntl(ends[1], F_SETFL, flags | O_NONBLOCK);
        while (write(ends[1], block, BLOCK) > 0)
            ;
        fcntl(ends[1], F_SETFL, flags);
    }
}

/* Are the flags wrong for the file, and the offset as well? */
static int is_wrong_twice(enum kind kind, int is_write, int flags, long long offset)
{
    int is_unusual = flags & ~0x137;
    int is_odd = offset != 0 && offset != -1;
    /* A write to a timerfd, and all transfers of an epoll, are refused anyway. */
    int has_none = kind == EPOLL || (kind == TIMERFD && is_write);
    if (offset == -2 && (flags & NOWAIT))
        return 1;
    /* The kernel does not check the offset before a terminal is ready. */
    return (is_unusual && (has_none || is_odd)) || (offset == -2 && (has_none || kind == TERMINAL));
}

struct request {
    int ends[2], result, has_ended;
    char bytes[LEN];
    struct iovec part;
};

static void submit(struct io_uring *ring, struct request *request, int op, int flags,
                   long long offset)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    int fd = request->ends[op & 1];
    char *bytes = request->bytes;
    memset(bytes, 0, LEN);
    bytes[0] = 1;
    request->part = (struct iovec){ bytes, LEN };
    switch (op) {
    case 0: io_uring_prep_read(sqe, fd, bytes, LEN, offset); break;
    case 1: io_uring_prep_write(sqe, fd, bytes, LEN, offset); break;
    case 2: io_uring_prep_readv(sqe, fd, &request->part, 1, offset); break;
    default: io_uring_prep_writev(sqe, fd, &request->part, 1, offset); break;
    }
    sqe->rw_flags = flags;
    io_uring_sqe_set_data(sqe, request);
    MUST(io_uring_submit(ring) == 1);
}

static void end(struct io_uring *ring, struct io_uring_cqe *cqe)
{
    struct request *request = io_uring_cqe_get_data(cqe);
    if (request)
        request->result = cqe->res, request->has_ended = 1;
    io_uring_cqe_seen(ring, cqe);
}

/* Waits for `count` requests. Requests that have not ended after a while are cancelled. */
static void finish(struct io_uring *ring, struct request *all, int count)
{
    struct __kernel_timespec time = { .tv_nsec = 200000000 };
    struct io_uring_cqe *cqe;
    int left = count;
    while (left && io_uring_wait_cqe_timeout(ring, &cqe, &time) == 0)
        end(ring, cqe), left--;
    for (int at = 0; left && at < count; at++)
        if (!all[at].has_ended) {
            struct io_uring_sqe *sqe = entry(ring, 0);
            io_uring_prep_cancel(sqe, &all[at], 0);
            MUST(io_uring_submit(ring) == 1);
            for (int both = 0; both < 2; both++) {
                MUST(io_uring_wait_cqe(ring, &cqe) == 0);
                end(ring, cqe);
            }
        }
}

/* Prints the results of all flags and offsets for one operation. */
static void print_all(struct io_uring *ring, enum kind kind, int op, int is_ready)
{
    static struct request all[COUNT(FLAGS) * COUNT(OFFSETS)];
    int count = 0, is_write = op & 1;
    for (int which = 0; which < COUNT(all); which++) {
        int flags = FLAGS[which / COUNT(OFFSETS)];
        long long offset = OFFSETS[which % COUNT(OFFSETS)];
        if (is_wrong_twice(kind, is_write, flags, offset))
            continue;
        struct request *request = &all[count++];
        *request = (struct request){ .ends = { -1, -1 } };
        open_kind(kind, is_write, request->ends);
        if (is_ready)
            prepare(kind, is_write, request->ends);
        submit(ring, request, op, flags, offset);
    }
    finish(ring, all, count);
    for (int which = 0, at = 0; which < COUNT(all); which++) {
        int flags = FLAGS[which / COUNT(OFFSETS)];
        long long offset = OFFSETS[which % COUNT(OFFSETS)];
        if (is_wrong_twice(kind, is_write, flags, offset))
            continue;
        printf("%s, %s: %s, flags %x, offset %lld: %d\n", NAMES[kind], is_ready ? "ready" : "not",
               OPS[op], flags, offset, all[at].result);
        close(all[at].ends[0]);
        close(all[at++].ends[1]);
    }
}

/* The signals of writes to pipes without a reader. */
static volatile int signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void print_signals(struct io_uring *ring)
{
    signal(SIGPIPE, count_signal);
    for (int flags = 0; flags <= NOWAIT; flags += NOWAIT) {
        int ends[2];
        struct io_uring_sqe *sqe;
        open_kind(BROKEN_PIPE, 1, ends);
        sqe = entry(ring, 0);
        io_uring_prep_write(sqe, ends[1], block, LEN, 0);
        sqe->rw_flags = flags;
        MUST(io_uring_submit_and_wait(ring, 1) == 1);
        printf("flags %x: %d signals, ", flags, signals);
        completions(ring, "broken pipe", 1);
        close(ends[1]);
    }
}

/* Entries of one batch that depend on each other. A cancel names a read that follows in the batch.
 * A read and a write use descriptors that the entry before them closes. */
static void print_batches(struct io_uring *ring)
{
    int full[2], empty[2], closed[2];
    struct io_uring_sqe *sqe;
    MUST(pipe(full) == 0 && pipe(empty) == 0 && pipe(closed) == 0);
    MUST(write(full[1], block, LEN) == LEN);
    sqe = entry(ring, 0);
    io_uring_prep_read(sqe, full[0], block, LEN, 0);
    sqe->user_data = 1;
    sqe->flags = IOSQE_IO_LINK;
    sqe = entry(ring, 0);
    io_uring_prep_cancel64(sqe, 3, 0);
    sqe->user_data = 2;
    sqe = entry(ring, 0);
    io_uring_prep_read(sqe, empty[0], block, LEN, 0);
    sqe->user_data = 3;
    MUST(io_uring_submit(ring) == 3);
    /* The cancel may come before the read that it names: then that read ends by data. */
    if (io_uring_cq_ready(ring) < 3)
        MUST(write(empty[1], block, LEN) == LEN);
    struct io_uring_cqe *cqe;
    for (int at = 0; at < 3; at++) {
        MUST(io_uring_wait_cqe(ring, &cqe) == 0);
        int is_fair = cqe->res == (int[]){ 0, LEN, 0, -ECANCELED }[cqe->user_data]
                      || (cqe->user_data == 2 && cqe->res == -ENOENT)
                      || (cqe->user_data == 3 && cqe->res == LEN);
        if (!is_fair)
            printf("batch: %d gives %d\n", (int)cqe->user_data, cqe->res);
        io_uring_cqe_seen(ring, cqe);
    }
    MUST(write(closed[1], block, LEN) == LEN);
    for (int end = 0; end < 2; end++) {
        io_uring_prep_close(entry(ring, 0), closed[end]);
        sqe = entry(ring, 0);
        if (end)
            io_uring_prep_write(sqe, closed[end], block, LEN, 0);
        else
            io_uring_prep_read(sqe, closed[end], block, LEN, 0);
        sqe->user_data = 1;
        MUST(io_uring_submit(ring) == 2);
        sorted(ring, "closed", 2);
    }
}

int main(void)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(64, &ring, 0) == 0);
    signal(SIGPIPE, SIG_IGN);
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int op = 0; op < 4; op++)
            for (int is_ready = 0; is_ready < 2; is_ready++)
                print_all(&ring, kind, op, is_ready);
    print_signals(&ring);
    print_batches(&ring);
    io_uring_queue_exit(&ring);
    return 0;
}
