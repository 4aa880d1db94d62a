/* SEND, RECV, SENDMSG and RECVMSG: their results, which requests wait, what ends them, and what
 * is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { POLL_FIRST = 1, MULTISHOT = 2 };

static struct io_uring ring;
static char big[400000], sink[400000];

static struct io_uring_sqe *send_(int fd, const void *from, size_t length, int flags,
                                  unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_send(sqe, fd, from, length, flags);
    sqe->user_data = user_data;
    return sqe;
}

static struct io_uring_sqe *recv_(int fd, void *to, size_t length, int flags,
                                  unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_recv(sqe, fd, to, length, flags);
    sqe->user_data = user_data;
    return sqe;
}

static struct io_uring_sqe *message(int opcode, int fd, struct msghdr *header, int flags,
                                    unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_rw(opcode, sqe, fd, header, 1, 0);
    sqe->msg_flags = flags;
    sqe->user_data = user_data;
    return sqe;
}

static void pair(int type, int ends[2])
{
    MUST(socketpair(AF_UNIX, type, 0, ends) == 0);
}

static void close_both(int ends[2])
{
    close(ends[0]);
    close(ends[1]);
}

static void part(const char *what)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("%s: %llu gives %d, flags %u\n", what, (unsigned long long)cqe->user_data, cqe->res,
           cqe->flags);
    io_uring_cqe_seen(&ring, cqe);
}

static void plain(int type, const char *name)
{
    int ends[2];
    char got[64] = { 0 };
    pair(type, ends);
    printf("[SEND, RECV] %s\n", name);
    send_(ends[0], "hello", 5, 0, 1);
    io_uring_submit(&ring);
    completions(&ring, "sent", 1);
    recv_(ends[1], got, sizeof got, 0, 2);
    io_uring_submit(&ring);
    completions(&ring, "received", 1);
    printf("text %s\n", got);
    /* The receive waits until data comes. */
    recv_(ends[1], got, 3, 0, 3);
    io_uring_submit(&ring);
    printf("before: %u\n", io_uring_cq_ready(&ring));
    MUST(write(ends[0], "abcdef", 6) == 6);
    part("a part");
    printf("text %.3s\n", got);
    recv(ends[1], got, sizeof got, MSG_DONTWAIT);
    /* Two receives wait. Their order is undefined. */
    recv_(ends[1], got, 3, 0, 4);
    recv_(ends[1], got, 3, 0, 4);
    io_uring_submit(&ring);
    MUST(write(ends[0], "one", 3) == 3);
    completions(&ring, "one of two", 1);
    MUST(write(ends[0], "two", 3) == 3);
    completions(&ring, "the other", 1);
    recv_(ends[1], got, sizeof got, MSG_DONTWAIT, 6);
    io_uring_submit(&ring);
    completions(&ring, "not to wait", 1);
    MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    recv_(ends[1], got, sizeof got, 0, 7);
    io_uring_submit(&ring);
    printf("O_NONBLOCK: %u\n", io_uring_cq_ready(&ring));
    MUST(write(ends[0], "x", 1) == 1);
    completions(&ring, "O_NONBLOCK", 1);
    recv_(ends[1], got, sizeof got, 0, 8);
    io_uring_submit(&ring);
    close(ends[0]);
    completions(&ring, "the peer has closed", type == SOCK_DGRAM ? 0 : 1);
    if (type == SOCK_DGRAM) {
        io_uring_prep_cancel(entry(&ring, 0), (void *)8, 0);
        io_uring_submit(&ring);
        sorted(&ring, "cancelled", 2);
    }
    send_(ends[1], "x", 1, 0, 9);
    io_uring_submit(&ring);
    completions(&ring, "nobody receives", 1);
    close(ends[1]);
}

static void whole(void)
{
    int ends[2];
    char got[16];
    pair(SOCK_STREAM, ends);
    printf("[RECV MSG_WAITALL]\n");
    MUST(write(ends[0], "abc", 3) == 3);
    recv_(ends[1], got, 6, MSG_WAITALL, 1);
    io_uring_submit(&ring);
    printf("a half: %u\n", io_uring_cq_ready(&ring));
    MUST(write(ends[0], "def", 3) == 3);
    completions(&ring, "all", 1);
    printf("text %.6s\n", got);
    /* A short count breaks a chain only with MSG_WAITALL. */
    MUST(write(ends[0], "abc", 3) == 3);
    recv_(ends[1], got, 6, 0, 2)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    io_uring_submit(&ring);
    sorted(&ring, "short in a chain", 2);
    MUST(write(ends[0], "abc", 3) == 3);
    recv_(ends[1], got, 6, MSG_WAITALL, 3)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    io_uring_submit(&ring);
    MUST(shutdown(ends[0], SHUT_WR) == 0);
    sorted(&ring, "short of a whole one", 2);
    close_both(ends);
    pair(SOCK_STREAM, ends);
    MUST(write(ends[0], "abc", 3) == 3);
    recv_(ends[1], got, 6, MSG_WAITALL, 4);
    io_uring_submit(&ring);
    io_uring_prep_cancel(entry(&ring, 0), (void *)4, 0);
    io_uring_submit(&ring);
    sorted(&ring, "cancelled after a part", 2);
    struct iovec parts[2] = { { got, 4 }, { got + 4, 4 } };
    struct msghdr header = { .msg_iov = parts, .msg_iovlen = 2 };
    message(IORING_OP_RECVMSG, ends[1], &header, MSG_WAITALL, 5);
    io_uring_submit(&ring);
    for (int at = 0; at < 8; at++)
        MUST(write(ends[0], "01234567" + at, 1) == 1);
    completions(&ring, "in parts", 1);
    printf("text %.8s\n", got);
    close_both(ends);
    printf("[SEND] short and whole\n");
    for (int flags = 0; flags <= MSG_WAITALL; flags += MSG_WAITALL) {
        pair(SOCK_STREAM, ends);
        send_(ends[0], big, sizeof big, flags, 6)->flags |= IOSQE_IO_LINK;
        io_uring_prep_nop(entry(&ring, 0));
        io_uring_submit(&ring);
        size_t got_bytes = 0;
        if (flags) {
            printf("a whole one waits: %u\n", io_uring_cq_ready(&ring));
            while (got_bytes < sizeof big) {
                ssize_t n = read(ends[1], sink, sizeof sink);
                MUST(n > 0);
                got_bytes += n;
            }
        }
        struct io_uring_cqe *cqe;
        for (int at = 0; at < 2; at++) {
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            int is_send = cqe->user_data == 6, is_short = is_send && cqe->res < (int)sizeof big;
            printf("%llu: %s, %d\n", (unsigned long long)cqe->user_data,
                   is_short && cqe->res > 0 ? "short" : "not short", is_short ? 0 : cqe->res);
            io_uring_cqe_seen(&ring, cqe);
        }
        close_both(ends);
    }
}

/* A send that waits goes on when the socket has room. */
static void full(void)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    printf("[SEND] to a full socket\n");
    MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[0], big, sizeof big) > 0)
        ;
    while (write(ends[0], big, 1) > 0)
        ;
    MUST(fcntl(ends[0], F_SETFL, 0) == 0);
    send_(ends[0], "x", 1, MSG_DONTWAIT, 1);
    io_uring_submit(&ring);
    completions(&ring, "not to wait", 1);
    send_(ends[0], "x", 1, 0, 2);
    io_uring_submit(&ring);
    printf("waits: %u\n", io_uring_cq_ready(&ring));
    /* A stream reports room only when its reader has taken enough. */
    MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (read(ends[1], sink, sizeof sink) > 0)
        ;
    completions(&ring, "room", 1);
    close_both(ends);
}

static void headers(void)
{
    int ends[2], carried[2];
    char name[] = "here", got[32] = { 0 };
    pair(SOCK_DGRAM, ends);
    printf("[SENDMSG, RECVMSG]\n");
    MUST(pipe(carried) == 0);
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec out[2] = { { "ab", 2 }, { "cdef", 4 } };
    struct msghdr header = { .msg_iov = out, .msg_iovlen = 2, .msg_control = control,
                             .msg_controllen = sizeof control };
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(first), &carried[0], sizeof(int));
    message(IORING_OP_SENDMSG, ends[0], &header, 0, 1);
    io_uring_submit(&ring);
    completions(&ring, "sent", 1);
    char received[256];
    struct sockaddr_un from;
    struct iovec in[2] = { { got, 3 }, { got + 8, 10 } };
    struct msghdr to = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = in,
                         .msg_iovlen = 2, .msg_control = received,
                         .msg_controllen = sizeof received };
    message(IORING_OP_RECVMSG, ends[1], &to, 0, 2);
    io_uring_submit(&ring);
    completions(&ring, "received", 1);
    printf("text %s %s, name %u, control %zu, flags %d\n", got, got + 8, to.msg_namelen,
           (size_t)to.msg_controllen, to.msg_flags);
    first = CMSG_FIRSTHDR(&to);
    MUST(first && first->cmsg_type == SCM_RIGHTS);
    int fd;
    memcpy(&fd, CMSG_DATA(first), sizeof fd);
    MUST(write(carried[1], "z", 1) == 1 && read(fd, got, 1) == 1);
    printf("a descriptor came: %c\n", got[0]);
    close(fd);
    close_both(carried);
    /* The header and its list of buffers are read at submit. Results are written at the end. */
    to.msg_controllen = sizeof received;
    to.msg_namelen = sizeof from;
    in[0].iov_len = 4;
    in[1].iov_len = 4;
    message(IORING_OP_RECVMSG, ends[1], &to, 0, 3);
    io_uring_submit(&ring);
    memset(in, 0, sizeof in);
    to.msg_iov = NULL;
    MUST(write(ends[0], "0123456789", 10) == 10);
    completions(&ring, "cut", 1);
    printf("text %.4s %.4s, control %zu, truncated %d\n", got, got + 8, (size_t)to.msg_controllen,
           !!(to.msg_flags & MSG_TRUNC));
    /* The result is the whole length of a truncated message. */
    MUST(write(ends[0], "0123456789", 10) == 10);
    recv_(ends[1], got, 4, MSG_TRUNC, 4);
    io_uring_submit(&ring);
    completions(&ring, "MSG_TRUNC", 1);
    MUST(write(ends[0], "peek", 4) == 4);
    recv_(ends[1], got, 4, MSG_PEEK, 5);
    io_uring_submit(&ring);
    completions(&ring, "MSG_PEEK", 1);
    recv_(ends[1], got, 4, 0, 6);
    io_uring_submit(&ring);
    completions(&ring, "after it", 1);
    (void)name;
    close_both(ends);
}

/* Sends to a name, and receives with the name of the sender. */
static void names(void)
{
    struct sockaddr_un here = { AF_UNIX, "receiver" };
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    char got[16] = { 0 };
    printf("[SEND to a name]\n");
    unlink(here.sun_path);
    MUST(bind(receiver, (void *)&here, sizeof here) == 0);
    for (int at = 0; at < 4; at++) {
        struct io_uring_sqe *sqe = send_(sender, "named", 5, 0, 1);
        sqe->addr2 = at == 1 ? 8 : (unsigned long)&here;
        sqe->addr_len = at == 2 ? 200 : at == 3 ? 3 : sizeof here;
        io_uring_submit(&ring);
        completions(&ring, at ? "a bad name" : "named", 1);
    }
    recv_(receiver, got, sizeof got, 0, 2);
    io_uring_submit(&ring);
    completions(&ring, "received", 1);
    struct iovec part = { "again", 5 };
    struct msghdr header = { .msg_name = &here, .msg_namelen = sizeof here, .msg_iov = &part,
                             .msg_iovlen = 1 };
    message(IORING_OP_SENDMSG, sender, &header, 0, 3);
    io_uring_submit(&ring);
    completions(&ring, "named", 1);
    recv_(receiver, got, sizeof got, 0, 4);
    io_uring_submit(&ring);
    completions(&ring, "received", 1);
    printf("text %s\n", got);
    unlink(here.sun_path);
    close(receiver);
    close(sender);
}

static void refused(void)
{
    int ends[2], file = scratch();
    char got[8];
    struct msghdr header = { 0 };
    struct iovec nowhere = { (void *)8, 4 };
    pair(SOCK_STREAM, ends);
    printf("[SEND EBADF, ENOTSOCK, EFAULT]\n");
    const int numbers[] = { -1, 1000, file };
    for (unsigned at = 0; at < 3; at++) {
        send_(numbers[at], "x", 1, 0, 1);
        io_uring_submit(&ring);
        completions(&ring, "send", 1);
        recv_(numbers[at], got, 1, 0, 2);
        io_uring_submit(&ring);
        completions(&ring, "recv", 1);
        message(IORING_OP_SENDMSG, numbers[at], &header, 0, 3);
        io_uring_submit(&ring);
        completions(&ring, "sendmsg", 1);
        message(IORING_OP_RECVMSG, numbers[at], &header, 0, 4);
        io_uring_submit(&ring);
        completions(&ring, "recvmsg", 1);
    }
    send_(ends[0], (void *)8, 4, 0, 1);
    io_uring_submit(&ring);
    completions(&ring, "from nowhere", 1);
    MUST(write(ends[0], "abcd", 4) == 4);
    recv_(ends[1], (void *)8, 4, 0, 2);
    io_uring_submit(&ring);
    completions(&ring, "to nowhere", 1);
    for (int opcode = IORING_OP_SENDMSG; opcode <= IORING_OP_RECVMSG; opcode++) {
        message(opcode, ends[0], (void *)8, 0, 3);
        io_uring_submit(&ring);
        completions(&ring, "no header", 1);
        struct msghdr bad[] = {
            { .msg_iov = (void *)8, .msg_iovlen = 1 },
            { .msg_iov = &nowhere, .msg_iovlen = 1025 },
            { .msg_iov = &nowhere, .msg_iovlen = 1, .msg_name = (void *)8, .msg_namelen = -1 },
            { .msg_iov = &nowhere, .msg_iovlen = 1, .msg_name = (void *)8, .msg_namelen = 16 },
            { .msg_iov = &nowhere, .msg_iovlen = 1 },
        };
        for (unsigned at = 0; at < sizeof bad / sizeof *bad - (opcode == IORING_OP_RECVMSG) * 2;
             at++) {
            message(opcode, ends[0], &bad[at], 0, at);
            io_uring_submit(&ring);
            completions(&ring, "a bad header", 1);
        }
    }
    printf("[flags that need buffers]\n");
    const int priorities[] = { MULTISHOT, 1 << 9 };
    for (unsigned at = 0; at < 2; at++) {
        recv_(ends[1], got, 1, 0, 5)->ioprio = priorities[at];
        io_uring_submit(&ring);
        completions(&ring, "receive", 1);
        send_(ends[1], got, 1, 0, 6)->ioprio = priorities[at];
        io_uring_submit(&ring);
        completions(&ring, "send", 1);
    }
    recv_(ends[1], got, 0, 0, 7);
    send_(ends[1], got, 0, 0, 8);
    io_uring_submit(&ring);
    part("nothing");
    part("nothing");
    close(file);
    close_both(ends);
}

/* A request that must not wait does not queue behind one that waits. */
static void not_to_wait(void)
{
    int ends[2];
    char got[8];
    pair(SOCK_STREAM, ends);
    struct msghdr header = { .msg_namelen = -1 };
    message(IORING_OP_RECVMSG, ends[1], &header, MSG_DONTWAIT, 5);
    io_uring_submit(&ring);
    completions(&ring, "a length without a name", 1);
    printf("[MSG_DONTWAIT] behind one that waits\n");
    recv_(ends[1], got, 8, 0, 1);
    io_uring_submit(&ring);
    recv_(ends[1], got, 8, MSG_DONTWAIT, 2);
    io_uring_submit(&ring);
    completions(&ring, "receive", 1);
    MUST(write(ends[0], "x", 1) == 1);
    part("it goes on");
    MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[0], big, sizeof big) > 0)
        ;
    while (write(ends[0], big, 1) > 0)
        ;
    send_(ends[0], "x", 1, 0, 3);
    io_uring_submit(&ring);
    send_(ends[0], "x", 1, MSG_DONTWAIT, 4);
    io_uring_submit(&ring);
    completions(&ring, "send", 1);
    MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (read(ends[1], sink, sizeof sink) > 0)
        ;
    completions(&ring, "it goes on", 1);
    close_both(ends);
}

/* Do all other threads sleep? */
static int others_sleep(void)
{
    char path[300], line[300];
    int sleep = 1;
    DIR *threads = opendir("/proc/self/task");
    MUST(threads);
    for (struct dirent *one; (one = readdir(threads));) {
        if (one->d_name[0] == '.' || atoi(one->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", one->d_name);
        FILE *file = fopen(path, "r");
        if (!file)
            continue;
        char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        sleep &= !state || state[2] != 'R';
        fclose(file);
    }
    closedir(threads);
    return sleep;
}

/* A receive has to wait although its socket is always ready: no thread may be busy meanwhile. */
static void ready_in_vain(void)
{
    enum { LOOKS = 100 };
    int ends[2], from = 0;
    char got[8];
    pair(SOCK_STREAM, ends);
    printf("[MSG_PEEK] behind what is there\n");
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from) == 0);
    MUST(write(ends[0], "abc", 3) == 3);
    recv_(ends[1], got, 8, MSG_PEEK, 1);
    io_uring_submit(&ring);
    part("what is there");
    for (int at = 0; at < 3; at++) {
        recv_(ends[1], got, 8, MSG_PEEK, 2);
        io_uring_submit(&ring);
        for (int looks = 0; looks < LOOKS; looks++)
            looks = others_sleep() ? looks : 0;
        MUST(write(ends[0], "d", 1) == 1);
        part("more");
    }
    close_both(ends);
}

/* The ways in which a waiting receive ends. */
static void ended(void)
{
    int ends[2];
    char got[8];
    struct __kernel_timespec soon = { 0, 20000000 };
    pair(SOCK_STREAM, ends);
    printf("[RECV cancelled]\n");
    for (int flags = 0; flags <= POLL_FIRST; flags++) {
        recv_(ends[1], got, 8, 0, 1)->ioprio = flags;
        io_uring_submit(&ring);
        io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
        io_uring_submit(&ring);
        sorted(&ring, "by user data", 2);
        recv_(ends[1], got, 8, 0, 1)->ioprio = flags;
        recv_(ends[1], got, 8, 0, 2)->ioprio = flags;
        recv_(ends[1], got, 8, 0, 3)->ioprio = flags;
        io_uring_submit(&ring);
        io_uring_prep_cancel(entry(&ring, 0), (void *)2, 0);
        io_uring_submit(&ring);
        sorted(&ring, "the second of three", 2);
        io_uring_prep_cancel_fd(entry(&ring, 0), ends[1], IORING_ASYNC_CANCEL_ALL);
        io_uring_submit(&ring);
        sorted(&ring, "by descriptor", 3);
        recv_(ends[1], got, 8, 0, 1)->ioprio = flags;
        io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
        io_uring_submit(&ring);
        sorted(&ring, "in one batch", 2);
        recv_(ends[1], got, 8, 0, 1)->ioprio = flags;
        io_uring_submit(&ring);
        struct io_uring_sync_cancel_reg now = { .addr = 1, .timeout = { -1, -1 } };
        printf("at once: %d\n", io_uring_register_sync_cancel(&ring, &now));
        completions(&ring, "at once", 1);
        struct io_uring_sqe *sqe = recv_(ends[1], got, 8, 0, 1);
        sqe->ioprio = flags;
        sqe->flags |= IOSQE_IO_LINK;
        io_uring_prep_link_timeout(sqe = entry(&ring, 0), &soon, 0);
        sqe->user_data = 2;
        io_uring_submit(&ring);
        sorted(&ring, "by time", 2);
        sqe = recv_(ends[1], got, 8, 0, 1);
        sqe->ioprio = flags;
        sqe->flags |= IOSQE_IO_LINK;
        struct __kernel_timespec late = { 60, 0 };
        io_uring_prep_link_timeout(sqe = entry(&ring, 0), &late, 0);
        sqe->user_data = 2;
        io_uring_submit(&ring);
        MUST(write(ends[0], "in time", 7) == 7);
        sorted(&ring, "in time", 2);
    }
    /* The receives that were cancelled above take no data: this receive gets it. */
    recv_(ends[1], got, 8, 0, 3);
    io_uring_submit(&ring);
    MUST(write(ends[0], "next", 4) == 4);
    completions(&ring, "the next", 1);
    printf("[IOSQE_ASYNC, IOSQE_IO_DRAIN, a chain]\n");
    recv_(ends[1], got, 8, 0, 1)->flags |= IOSQE_ASYNC;
    send_(ends[0], "async", 5, 0, 2)->flags |= IOSQE_ASYNC;
    io_uring_submit(&ring);
    sorted(&ring, "async", 2);
    recv_(ends[1], got, 8, 0, 1);
    struct io_uring_sqe *drained = entry(&ring, 2);
    io_uring_prep_nop(drained);
    drained->user_data = 2;
    drained->flags |= IOSQE_IO_DRAIN;
    io_uring_submit(&ring);
    printf("drained: %u\n", io_uring_cq_ready(&ring));
    MUST(write(ends[0], "x", 1) == 1);
    completions(&ring, "drained", 2);
    send_(ends[0], "to and fro", 8, 0, 1)->flags |= IOSQE_IO_LINK;
    recv_(ends[1], got, 8, 0, 2)->flags |= IOSQE_IO_LINK;
    send_(ends[1], got, 8, 0, 3)->flags |= IOSQE_IO_LINK;
    recv_(ends[0], got, 8, 0, 4);
    io_uring_submit(&ring);
    completions(&ring, "a chain", 4);
    printf("text %.8s\n", got);
    /* The number is closed, and another file gets it. */
    int other[2];
    recv_(ends[1], got, 8, 0, 1);
    recv_(ends[1], got, 8, 0, 1);
    io_uring_submit(&ring);
    int number = ends[1];
    close(number);
    pair(SOCK_STREAM, other);
    MUST(other[0] == number || other[1] == number);
    recv_(number, got, 8, 0, 3);
    io_uring_submit(&ring);
    MUST(write(number == other[0] ? other[1] : other[0], "new", 3) == 3);
    completions(&ring, "the new file", 1);
    MUST(write(ends[0], "old", 3) == 3);
    completions(&ring, "the old file", 1);
    close(ends[0]);
    completions(&ring, "its peer has closed", 1);
    close_both(other);
}

/* Many receives wait on a small ring, and each gets its own data. */
static void many(void)
{
    enum { MANY = 1000 };
    static int ends[MANY][2];
    static unsigned char got[MANY];
    int wrong = 0;
    printf("[RECV] %d wait\n", MANY);
    for (int at = 0; at < MANY; at++) {
        pair(SOCK_STREAM, ends[at]);
        recv_(ends[at][1], &got[at], 1, 0, at);
        MUST(io_uring_submit(&ring) == 1);
    }
    printf("before: %u\n", io_uring_cq_ready(&ring));
    for (int at = MANY - 1; at >= 0; at--) {
        unsigned char byte = at * 7;
        struct io_uring_cqe *cqe;
        MUST(write(ends[at][0], &byte, 1) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
        wrong += (int)cqe->user_data != at || cqe->res != 1 || got[at] != byte;
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("wrong: %d\n", wrong);
    for (int at = 0; at < MANY; at++)
        close_both(ends[at]);
    pair(SOCK_STREAM, ends[0]);
    for (int at = 0; at < MANY; at++) {
        recv_(ends[0][1], &got[at], 1, 0, at);
        MUST(io_uring_submit(&ring) == 1);
    }
    for (int at = 0; at < MANY; at++) {
        unsigned char byte = at * 3;
        struct io_uring_cqe *cqe;
        MUST(write(ends[0][0], &byte, 1) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
        wrong += cqe->res != 1 || got[cqe->user_data] != byte;
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("on one socket, wrong: %d\n", wrong);
    close_both(ends[0]);
}

/* Registered sockets, and a poll of a socket that a receive empties. */
static void registered(void)
{
    int ends[2];
    char got[8];
    pair(SOCK_STREAM, ends);
    printf("[registered sockets]\n");
    MUST(io_uring_register_files(&ring, ends, 2) == 0);
    close_both(ends);
    send_(0, "fixed", 5, 0, 1)->flags |= IOSQE_FIXED_FILE;
    recv_(1, got, 8, 0, 2)->flags |= IOSQE_FIXED_FILE;
    io_uring_submit(&ring);
    sorted(&ring, "fixed", 2);
    recv_(7, got, 8, 0, 3)->flags |= IOSQE_FIXED_FILE;
    io_uring_submit(&ring);
    completions(&ring, "no such slot", 1);
    recv_(1, got, 8, 0, 4)->flags |= IOSQE_FIXED_FILE;
    io_uring_submit(&ring);
    struct io_uring_sqe *sqe = entry(&ring, 5);
    io_uring_prep_cancel_fd(sqe, 1, IORING_ASYNC_CANCEL_FD_FIXED);
    sqe->user_data = 5;
    io_uring_submit(&ring);
    sorted(&ring, "cancelled", 2);
    MUST(io_uring_unregister_files(&ring) == 0);
    pair(SOCK_STREAM, ends);
    recv_(ends[1], got, 8, 0, 6);
    sqe = entry(&ring, 7);
    io_uring_prep_poll_add(sqe, ends[1], POLLIN);
    sqe->user_data = 7;
    io_uring_submit(&ring);
    MUST(write(ends[0], "both", 4) == 4);
    sorted(&ring, "a poll beside it", 2);
    close_both(ends);
}

static void probe(void)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    MUST(probe);
    const int opcodes[] = { IORING_OP_SENDMSG, IORING_OP_RECVMSG, IORING_OP_ACCEPT,
                            IORING_OP_CONNECT, IORING_OP_SEND, IORING_OP_RECV,
                            IORING_OP_SHUTDOWN, IORING_OP_SOCKET, 56, 57 };
    for (unsigned at = 0; at < sizeof opcodes / sizeof *opcodes; at++)
        printf("operation %d: %d\n", opcodes[at], io_uring_opcode_supported(probe, opcodes[at]));
    io_uring_free_probe(probe);
}

int main(void)
{
    memset(big, 'b', sizeof big);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    probe();
    plain(SOCK_STREAM, "stream");
    plain(SOCK_SEQPACKET, "packets");
    plain(SOCK_DGRAM, "messages");
    whole();
    full();
    headers();
    names();
    refused();
    not_to_wait();
    ready_in_vain();
    ended();
    many();
    registered();
    io_uring_queue_exit(&ring);
    return 0;
}
