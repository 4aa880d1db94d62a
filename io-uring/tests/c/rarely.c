/* Values of fields, arguments and times that programs rarely use: are they refused, and how? */
#define _GNU_SOURCE
#include "common.h"
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct io_uring ring;
static char bytes[64];
static int file, sockets[2];

/* Submits an entry, and prints its completions. */
static void show(const char *what, struct io_uring_sqe *sqe, int count)
{
    sqe->user_data = 7;
    MUST(io_uring_submit(&ring) == 1);
    completions(&ring, what, count);
}

static struct io_uring_sqe *of(int opcode, int fd, const void *addr, unsigned len,
                               unsigned long long off)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_rw(opcode, sqe, fd, addr, len, off);
    return sqe;
}

static void last_words(void)
{
    struct __kernel_timespec hour = { 3600, 0 };
    struct iovec part = { bytes, 1 };
    const struct {
        const char *name;
        int opcode, fd;
        void *addr;
        unsigned len;
    } all[] = {
        { "read", IORING_OP_READ, file, bytes, 1 },
        { "write", IORING_OP_WRITE, file, bytes, 1 },
        { "readv", IORING_OP_READV, file, &part, 1 },
        { "writev", IORING_OP_WRITEV, file, &part, 1 },
        { "timeout", IORING_OP_TIMEOUT, -1, &hour, 1 },
        { "limit", IORING_OP_LINK_TIMEOUT, -1, &hour, 1 },
        { "remove", IORING_OP_TIMEOUT_REMOVE, -1, NULL, 0 },
        { "send", IORING_OP_SEND_ZC, sockets[0], bytes, 1 },
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        struct io_uring_sqe *sqe = of(all[at].opcode, all[at].fd, all[at].addr, all[at].len, 0);
        sqe->__pad2[0] = 2;
        show(all[at].name, sqe, 1);
    }
}

static void lengths(void)
{
    struct msghdr header = { .msg_iov = &(struct iovec){ bytes, 1 }, .msg_iovlen = 1 };
    for (unsigned high = 0; high < 2; high++) {
        unsigned len = high ? 1u << 31 : 1;
        show("send", of(IORING_OP_SEND, sockets[0], bytes, len, 0), 1);
        show("recv", of(IORING_OP_RECV, sockets[1], bytes, high ? len : 8, 0), 1);
        show("sendmsg", of(IORING_OP_SENDMSG, sockets[0], &header, len, 0), 1);
        show("recvmsg", of(IORING_OP_RECVMSG, sockets[1], &header, len, 0), 1);
    }
    show("fsync", of(IORING_OP_FSYNC, file, NULL, 0, 1ull << 63), 1);
}

static void polls_first(void)
{
    int pipes[2], folder = open("/", O_RDONLY | O_DIRECTORY);
    MUST(pipe(pipes) == 0 && folder >= 0);
    const int fds[] = { file, folder, pipes[0] };
    for (int at = 0; at < 3; at++)
        for (int opcode = IORING_OP_SENDMSG; opcode <= IORING_OP_RECV; opcode++) {
            int is_message = opcode == IORING_OP_SENDMSG || opcode == IORING_OP_RECVMSG;
            if (!is_message && opcode < IORING_OP_SEND)
                continue;
            struct msghdr header = { 0 };
            void *addr = is_message ? (void *)&header : bytes;
            struct io_uring_sqe *sqe = of(opcode, fds[at], addr, 1, 0);
            sqe->ioprio = IORING_RECVSEND_POLL_FIRST;
            char what[32];
            snprintf(what, sizeof what, "poll first, %d of %d", opcode, at);
            /* A receive from a pipe waits natively. */
            if (opcode != IORING_OP_RECV || at < 2)
                show(what, sqe, 1);
            else
                sqe->opcode = IORING_OP_NOP, sqe->ioprio = 0, show(what, sqe, 1);
        }
}

static void changes_of_timeouts(void)
{
    struct __kernel_timespec hour = { 1 << 30, 0 };
    for (unsigned flags = 0; flags < 64; flags++) {
        struct io_uring_sqe *sqe = of(IORING_OP_TIMEOUT, -1, &hour, 1, 0);
        sqe->user_data = 5;
        MUST(io_uring_submit(&ring) == 1);
        sqe = of(IORING_OP_TIMEOUT_REMOVE, -1, (void *)5, 0, (unsigned long)&hour);
        sqe->timeout_flags = flags;
        sqe->user_data = 6;
        MUST(io_uring_submit(&ring) == 1);
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        int first = cqe->user_data == 6 ? cqe->res : 0;
        io_uring_cqe_seen(&ring, cqe);
        sqe = of(IORING_OP_TIMEOUT_REMOVE, -1, (void *)5, 0, 0);
        sqe->user_data = 8;
        MUST(io_uring_submit(&ring) == 1);
        int results[9] = { 0 };
        results[6] = first;
        do {
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            results[cqe->user_data] = cqe->res;
            io_uring_cqe_seen(&ring, cqe);
        } while (!results[5] || io_uring_cq_ready(&ring));
        printf("change with flags %u: %d, the timeout %d\n", flags, results[6], results[5]);
    }
    /* A change without a time, and with one that is negative. */
    struct __kernel_timespec negative = { -1, 0 };
    const void *of_changes[] = { NULL, &negative };
    for (int at = 0; at < 2; at++)
        for (unsigned flags = 2; flags <= 16; flags *= 8) {
            struct io_uring_sqe *sqe =
                of(IORING_OP_TIMEOUT_REMOVE, -1, (void *)5, 0, (unsigned long)of_changes[at]);
            sqe->timeout_flags = flags;
            show("an odd change", sqe, 1);
        }
    /* The last removals that found nothing. */
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&ring, &cqe) == 0)
        io_uring_cqe_seen(&ring, cqe);
}

static struct io_uring_sqe *open_by(const void *how, unsigned size)
{
    return of(IORING_OP_OPENAT2, AT_FDCWD, "/", size, (unsigned long)how);
}

static void longer_how(void)
{
    struct {
        struct open_how how;
        unsigned long long further[2];
    } longer = { .how = { .flags = O_RDONLY } };
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED && munmap(pages + 4096, 4096) == 0);
    char *end = pages + 4096 - sizeof longer.how;
    memcpy(end, &longer.how, sizeof longer.how);
    for (unsigned size = 16; size <= sizeof longer; size += 8)
        for (int is_set = 0; is_set < 2; is_set++) {
            longer.further[0] = is_set;
            struct io_uring_sqe *sqe = open_by(&longer, size);
            sqe->user_data = 1;
            MUST(io_uring_submit(&ring) == 1);
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            printf("open_how of %u, %d behind: %d\n", size, is_set, cqe->res < 0 ? cqe->res : 0);
            if (cqe->res >= 0)
                close(cqe->res);
            io_uring_cqe_seen(&ring, cqe);
        }
    show("open_how beyond its page", open_by(end, 32), 1);
    /* Zeroes behind it, of two pages; then a byte that is none. */
    char *zeroes = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(zeroes != MAP_FAILED);
    for (int is_set = 0; is_set < 2; is_set++) {
        zeroes[8192] = is_set;
        struct io_uring_sqe *sqe = open_by(zeroes, 8193);
        MUST(io_uring_submit(&ring) == 1);
        (void)sqe;
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("open_how of pages, %d at its end: %d\n", is_set, cqe->res < 0 ? cqe->res : 0);
        if (cqe->res >= 0)
            close(cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
}

static void register_nothing(int opcode, unsigned count)
{
    long answer = syscall(SYS_io_uring_register, ring.ring_fd, opcode, 0, count);
    printf("%u of nothing, %d: %ld\n", count, opcode, answer < 0 ? -(long)errno : answer);
}

static void registrations(void)
{
    for (unsigned count = 0; count < 3; count++) {
        register_nothing(IORING_REGISTER_FILES, count);
        register_nothing(IORING_REGISTER_BUFFERS, count);
    }
    register_nothing(IORING_REGISTER_FILES_UPDATE, 0);
    for (int fd = -2; fd < 1000; fd += 1001) {
        struct io_uring_params params = { .flags = IORING_SETUP_ATTACH_WQ, .wq_fd = fd };
        struct io_uring other;
        printf("attached to %d: %d\n", fd, io_uring_queue_init_params(4, &other, &params));
    }
}

static void times_of_waits(void)
{
    const struct __kernel_timespec times[] = {
        { 0, 0 }, { 0, -5 }, { -1, 0 }, { -1, -1 }, { -5, 999999999 },
    };
    for (unsigned at = 0; at < sizeof times / sizeof *times; at++) {
        struct io_uring_getevents_arg arg = { .ts = (unsigned long)&times[at] };
        long got = syscall(SYS_io_uring_enter, ring.ring_fd, 0, 1,
                           IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
        printf("a wait until %u: %ld\n", at, got < 0 ? -(long)errno : got);
    }
}

static void maps(void)
{
    for (int exec = 0; exec < 2; exec++)
        for (int at = 0; at < 3; at++) {
            size_t len = (const size_t[]){ 0, (size_t)-1, (size_t)-4096 }[at];
            int prot = PROT_READ | PROT_WRITE | (exec ? PROT_EXEC : 0);
            void *map = mmap(NULL, len, prot, MAP_SHARED, ring.ring_fd, IORING_OFF_SQES);
            printf("odd length %d of the ring, exec %d: %d\n", at, exec,
                   map == MAP_FAILED ? -errno : 0);
        }
    for (int exec = 0; exec < 2; exec++)
        for (size_t len = 1; len < 1 << 22; len *= 8) {
            int prot = PROT_READ | PROT_WRITE | (exec ? PROT_EXEC : 0);
            char *at = mmap(NULL, len, prot, MAP_SHARED, ring.ring_fd, IORING_OFF_SQES);
            int error = at == MAP_FAILED ? -errno : 0;
            printf("%zu bytes of the ring, exec %d: %d\n", len, exec, error);
            if (at != MAP_FAILED)
                munmap(at, len);
        }
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, 55);
    file = scratch();
    MUST(write(file, bytes, sizeof bytes) == sizeof bytes);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    last_words();
    lengths();
    polls_first();
    changes_of_timeouts();
    longer_how();
    registrations();
    times_of_waits();
    maps();
    return 0;
}
