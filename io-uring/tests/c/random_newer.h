/* Random entries of newer operations: commands to sockets, pipes, waits for epolls, futexes and
 * children, lists in registered buffers, and sends without a copy. The last of these operations
 * came with Linux 6.16. */
#include <arpa/inet.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

enum {
    URING_CMD = 46,
    SEND_ZC,
    SENDMSG_ZC,
    WAITID = 50,
    FUTEX_WAIT_,
    FUTEX_WAKE_,
    FUTEX_WAITV_,
    EPOLL_WAIT = 59,
    READV_FIXED,
    WRITEV_FIXED,
    PIPE,
    CLONE = 30,
    REPLACE = 2,
    PRIVATE_32 = 130,
    PART = 16,
    POOL = 24,
    STATUS = 7,
    FIRST_FREE = 4,
    TABLE = 48
};
#define ALL_BITS 0xffffffffull

struct futex_waiter {
    unsigned long long value, address;
    unsigned flags, reserved;
};

struct clone_buffers {
    unsigned source, flags, source_offset, offset, count, pad[3];
};

struct child {
    pid_t pid;
    int end;
};

/* Has the kernel all these operations? The last one came with Linux 6.16. */
static int is_new;
/* Two epolls: the first has an event, the second has none. */
static int epolls[2];
/* `udp` sends to itself, `quiet` never gets data, and `connected` is a connection with five
 * bytes. */
static int udp, quiet, connected[2];
/* Nobody changes these words, and nobody waits for the second one. */
static unsigned words[2];
static char fixed[MOST * PART];
/* A ring whose buffers are cloned. */
static struct io_uring lender;
/* Children in `pool` end with STATUS when they are told to. `lives` goes on, and `ended` has
 * ended. */
static struct child pool[POOL], lives, ended;
static int pooled;

/* The memory that an entry points to: arguments, and what it returns besides its result. */
static struct more {
    struct epoll_event events[2];
    struct iovec parts[2];
    struct msghdr message;
    struct futex_waiter words[2];
    siginfo_t info;
    int ends[2], slots[2], value;
} mores[MOST];
/* Does the ring belong to several processes? Then nothing is registered. */
static int is_shared;
/* May the batch have drains? */
static int drains;

static struct child starts(void)
{
    int ends[2];
    MUST(pipe2(ends, O_CLOEXEC) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        char byte;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 1 ? STATUS : 1);
    }
    close(ends[0]);
    return (struct child){ pid, ends[1] };
}

static void is_to_end(struct child *one)
{
    if (one->end >= 0)
        MUST(write(one->end, "x", 1) == 1 && close(one->end) == 0);
    one->end = -1;
}

static void ends(struct child one)
{
    is_to_end(&one);
    MUST(waitpid(one.pid, NULL, 0) == one.pid);
}

static void ends_children(void)
{
    while (pooled > 0)
        ends(pool[--pooled]);
    ends(lives);
    ends(ended);
}

static int bound(int type)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof name;
    int fd = socket(AF_INET, type, 0);
    MUST(fd >= 0 && bind(fd, (void *)&name, size) == 0);
    return fd;
}

static void connects(int fd, int to)
{
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    MUST(getsockname(to, (void *)&name, &size) == 0 && connect(fd, (void *)&name, size) == 0);
}

static int epoll_of(int fd, int events)
{
    struct epoll_event event = { .events = events, .data.u64 = 5 };
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    return epoll;
}

static void opens_newer(void)
{
    struct utsname name;
    int major, minor;
    MUST(uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2);
    is_new = major > 6 || (major == 6 && minor >= 16);
    epolls[0] = epoll_of(full[1], EPOLLOUT);
    epolls[1] = epoll_of(empty[0], EPOLLIN);
    udp = bound(SOCK_DGRAM);
    connects(udp, udp);
    quiet = bound(SOCK_DGRAM);
    int listener = bound(SOCK_STREAM);
    MUST(listen(listener, 1) == 0);
    connected[0] = socket(AF_INET, SOCK_STREAM, 0);
    connects(connected[0], listener);
    connected[1] = accept(listener, NULL, NULL);
    MUST(connected[1] >= 0 && write(connected[1], "12345", 5) == 5 && close(listener) == 0);
    struct pollfd poll_ = { .fd = connected[0], .events = POLLIN };
    MUST(poll(&poll_, 1, -1) == 1);
    pooled = 0;
    lives = starts();
    ended = starts();
    is_to_end(&ended);
    siginfo_t info;
    MUST(waitid(P_PID, ended.pid, &info, WEXITED | WNOWAIT) == 0);
}

static struct iovec *draw_parts(int at)
{
    struct more *more = &mores[at];
    for (int of = 0; of < 2; of++)
        more->parts[of] = (struct iovec){ fixed + at * PART + 8 * of, 1 + pick(8) };
    if (pick(6) == 0)
        more->parts[pick(2)].iov_base = more;
    return more->parts;
}

static void draw_command(struct io_uring_sqe *sqe, int at)
{
    const int on[] = { connected[0], quiet, sockets[0], full[1], file };
    mores[at].value = pick(2);
    sqe->opcode = URING_CMD;
    sqe->fd = on[pick(5)];
    /* Command 4 is left out: it is for time stamps. */
    sqe->off = pick(5) < 4 ? pick(4) : 9;
    if (sqe->off < 2)
        return;
    sqe->addr = SOL_SOCKET | (unsigned long long)(pick(2) ? SO_KEEPALIVE : SO_BROADCAST) << 32;
    sqe->splice_fd_in = pick(6);
    sqe->addr3 = (unsigned long)(pick(8) ? &mores[at].value : (void *)8);
}

static void draw_pipe(struct io_uring_sqe *sqe, int at)
{
    sqe->opcode = PIPE;
    sqe->addr = (unsigned long)(pick(6) ? mores[at].ends : (void *)8);
    sqe->rw_flags = pick(6) ? O_CLOEXEC : O_APPEND;
    if (is_shared || pick(2))
        return;
    /* The ends go into slots that nothing else uses. Their number is enough for all entries. For
     * TABLE, the second end has no slot, and the pipe is refused. */
    static const int slots[] = { -1, FIRST_FREE + 1, FIRST_FREE + 2, TABLE };
    sqe->rw_flags = 0;
    sqe->splice_fd_in = slots[pick(4)];
    sqe->addr = (unsigned long)mores[at].slots;
}

static void draw_send(struct io_uring_sqe *sqe, int at)
{
    struct more *more = &mores[at];
    sqe->opcode = pick(2) ? SEND_ZC : SENDMSG_ZC;
    sqe->fd = pick(4) ? udp : pick(2) ? sockets[0] : file;
    /* The flags for a report in the notice, and for a registered buffer. */
    sqe->ioprio = (pick(2) ? 8 : 0) | (!is_shared && pick(2) ? 4 : 0);
    sqe->msg_flags = MSG_DONTWAIT;
    if (sqe->opcode == SEND_ZC) {
        sqe->addr = (unsigned long)(fixed + at * PART);
        sqe->len = 1 + pick(PART);
    } else {
        more->message = (struct msghdr){ .msg_iov = draw_parts(at), .msg_iovlen = 2 };
        sqe->addr = (unsigned long)&more->message;
        sqe->len = 1;
    }
}

/* Fills an entry on a futex. Returns true if the entry waits. */
static int draw_futex(struct io_uring_sqe *sqe, int at, int after_link)
{
    int waits = !after_link && pick(2);
    unsigned long long value = waits ? 0 : 1 + pick(2);
    sqe->fd = PRIVATE_32;
    switch (pick(3)) {
    case 0:
        sqe->opcode = FUTEX_WAITV_;
        sqe->fd = 0;
        sqe->len = 2;
        for (int of = 0; of < 2; of++)
            mores[at].words[of] = (struct futex_waiter){ of ? value : 0, (unsigned long)words,
                                                         PRIVATE_32, 0 };
        sqe->addr = (unsigned long)mores[at].words;
        return waits;
    case 1:
        sqe->opcode = FUTEX_WAIT_;
        sqe->addr = (unsigned long)words;
        sqe->addr2 = value;
        sqe->addr3 = ALL_BITS;
        return waits;
    default:
        sqe->opcode = FUTEX_WAKE_;
        sqe->addr = (unsigned long)&words[1];
        sqe->addr2 = pick(4);
        sqe->addr3 = pick(4);
        return 0;
    }
}

/* Fills an entry on a child. Returns true if the entry waits. */
static int draw_child(struct io_uring_sqe *sqe, int at, int after_link)
{
    static const int types[] = { P_PID, P_PID, P_PID, P_PIDFD, 17 };
    int type = types[pick(5)], waits = type == P_PID && !after_link && pick(2);
    /* Only the process that has started the child can wait for it. */
    waits = waits && !is_shared;
    sqe->opcode = WAITID;
    sqe->len = type;
    sqe->off = (unsigned long)(pick(4) ? &mores[at].info : NULL);
    sqe->fd = type != P_PID ? file : waits ? lives.pid : pick(3) ? ended.pid : getpid();
    sqe->splice_fd_in = WEXITED | (waits ? 0 : WNOHANG | WNOWAIT) | (pick(8) ? 0 : 1 << 20);
    return waits && !(sqe->splice_fd_in & 1 << 20);
}

/* Fills an entry. Returns true if the entry waits without end: the next entry then has to be a
 * linked timeout, which ends it. */
static int fill_newer(struct io_uring_sqe *sqe, int at, int after_link)
{
    memset(sqe, 0, sizeof *sqe);
    switch (pick(8)) {
    case 0:
        draw_command(sqe, at);
        break;
    case 1:
        draw_pipe(sqe, at);
        break;
    case 2:
        /* In the kernel, a drain may wait for notices that never come. */
        if (is_shared || drains || after_link)
            draw_pipe(sqe, at);
        else
            draw_send(sqe, at);
        break;
    case 3:
        return draw_futex(sqe, at, after_link);
    case 4:
        return draw_child(sqe, at, after_link);
    case 5:
    case 6:
        if (is_shared) {
            io_uring_prep_nop(sqe);
            break;
        }
        sqe->opcode = pick(2) ? READV_FIXED : WRITEV_FIXED;
        sqe->fd = pick(8) ? file : -1;
        sqe->off = 400 + PART * at;
        sqe->addr = (unsigned long)draw_parts(at);
        sqe->len = 2;
        sqe->buf_index = pick(3);
        break;
    default: {
        int waits = !after_link && pick(2);
        sqe->opcode = EPOLL_WAIT;
        sqe->fd = waits ? epolls[1] : pick(4) ? epolls[0] : file;
        sqe->addr = (unsigned long)mores[at].events;
        sqe->len = pick(6) ? 2 : 0;
        return waits && sqe->len > 0;
    }
    }
    return 0;
}

/* Registers buffers, in one of two ways, or none. */
static void registers_buffers(struct io_uring *ring)
{
    struct iovec parts[2] = { { fixed, sizeof fixed }, { fixed, 4 * PART } };
    struct clone_buffers clone = { .source = lender.ring_fd, .flags = pick(4) ? 0 : REPLACE,
                                   .source_offset = pick(4), .offset = pick(3), .count = pick(3) };
    int how = pick(4);
    if (how == 0)
        MUST(io_uring_register_buffers(ring, parts, 2) == 0);
    if (how > 1) {
        long answer = syscall(SYS_io_uring_register, ring->ring_fd, CLONE, &clone, 1);
        printf("clone from %u to %u, %u: %ld\n", clone.source_offset, clone.offset, clone.count,
               answer < 0 ? -errno : answer);
    }
}

/* Prints what the operations have left in memory, and ends what they have made. */
static void prints_newer(int count)
{
    for (int at = 0; at < count; at++) {
        struct more *more = &mores[at];
        if (more->events[0].events)
            printf("%d has event %x of %d\n", at, more->events[0].events,
                   (int)more->events[0].data.u64);
        if (more->info.si_signo)
            printf("%d has seen signal %d, code %d, status %d\n", at, more->info.si_signo,
                   more->info.si_code, more->info.si_status);
        for (int of = 0; more->ends[0] > 0 && of < 2; of++)
            MUST(close(more->ends[of]) == 0);
    }
    memset(mores, 0, sizeof mores);
    char bytes[PART];
    while (recv(udp, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}
