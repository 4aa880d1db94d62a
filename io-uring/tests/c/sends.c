/* Batches with sends, to sockets with and without room: results, and the order of the data. */
#define _GNU_SOURCE
#include "common.h"
#include "tcp.h"
#include <signal.h>

enum { SIZE = 3000, ENTRIES = 12 };

static struct io_uring ring;
static volatile sig_atomic_t signals;
static char data[26][SIZE], drained[1 << 16], got[SIZE];

static void count(int signal)
{
    (void)signal, signals++;
}

enum kind { TCP, STREAM, DATAGRAM, PACKETS, KINDS };
static const char *const names[] = { "tcp", "unix stream", "unix datagram", "unix seqpacket" };

/* FULL: not one more byte fits into the socket. BROKEN: nobody receives. */
enum { FULL = 1, BROKEN };

static void open_pair(enum kind kind, int state, int ends[2])
{
    static const int types[] = { 0, SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
    int small = 8192;
    if (kind == TCP)
        tcp(ends);
    else
        MUST(socketpair(AF_UNIX, types[kind], 0, ends) == 0);
    if (state == BROKEN) {
        close(ends[1]);
        ends[1] = open("/dev/null", O_RDWR);
    }
    if (state != FULL)
        return;
    MUST(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    for (int size = SIZE; size > 0; size = size == 1 ? 0 : 1)
        while (send(ends[0], drained, size, MSG_DONTWAIT) > 0)
            ;
}

/* Adds an entry of the kind `what`. The data of entry 0 is the letter a, of entry 1 the letter b,
 * and so on. */
static void add(char what, int at, const int ends[2], const int others[2])
{
    static struct msghdr headers[ENTRIES];
    static struct iovec parts[ENTRIES];
    struct io_uring_sqe *sqe = entry(&ring, at);
    char *from = data[at];
    switch (what) {
    case 'l': case 'r': case 'y': case 's':
        io_uring_prep_send(sqe, ends[0], from, SIZE, 0);
        sqe->flags = what == 'l' ? IOSQE_IO_LINK : what == 'r' ? IOSQE_IO_DRAIN
                     : what == 'y' ? IOSQE_ASYNC : 0;
        break;
    case 'a': io_uring_prep_send(sqe, ends[0], from, SIZE, MSG_WAITALL); break;
    case 'd': io_uring_prep_send(sqe, ends[0], from, SIZE, MSG_DONTWAIT); break;
    case 'v': io_uring_prep_send(sqe, others[0], from, SIZE, 0); break;
    case 'w': io_uring_prep_write(sqe, ends[0], from, SIZE, 0); break;
    case 'z': io_uring_prep_send(sqe, ends[0], from, 0, 0); break;
    case 'f': io_uring_prep_send(sqe, ends[0], (void *)16, SIZE, 0); break;
    case 'b': io_uring_prep_send(sqe, -1, from, SIZE, 0); break;
    case 'o': io_uring_prep_send(sqe, ring.ring_fd, from, SIZE, 0); break;
    case 'm':
        parts[at] = (struct iovec){ from, SIZE };
        headers[at] = (struct msghdr){ .msg_iov = &parts[at], .msg_iovlen = 1 };
        io_uring_prep_sendmsg(sqe, ends[0], &headers[at], 0);
        break;
    case 'q':
        parts[at] = (struct iovec){ from, SIZE };
        headers[at] = (struct msghdr){ .msg_iov = &parts[at], .msg_iovlen = 1 };
        io_uring_prep_sendmsg(sqe, ends[0], &headers[at], MSG_DONTWAIT);
        break;
    case 'x': io_uring_prep_shutdown(sqe, ends[0], SHUT_WR); break;
    case 'c': io_uring_prep_close(sqe, ends[0]); break;
    case 'k': io_uring_prep_cancel64(sqe, at - 1, 0); break;
    case 'K': io_uring_prep_cancel64(sqe, 0, 0); break;
    case 'n': case 'N': case 'R':
        io_uring_prep_nop(sqe);
        sqe->flags = what == 'N' ? IOSQE_IO_LINK : what == 'R' ? IOSQE_IO_HARDLINK : 0;
        break;
    case 't': io_uring_prep_recv(sqe, others[1], got, SIZE, 0); break;
    default: MUST(0);
    }
    sqe->user_data = at;
}

static int by_letter(const void *a, const void *b)
{
    return *(const char *)a - *(const char *)b;
}

/* Takes the data that has come, and appends the letter of each entry to `letters`, in order. */
static void drain(int fd, char *letters)
{
    ssize_t n;
    /* An empty message gives 0, and so does the end of a stream. */
    for (int empty = 0; empty < 4; empty += n == 0) {
        if ((n = recv(fd, drained, sizeof drained, MSG_DONTWAIT)) < 0)
            break;
        for (ssize_t i = 0; i < n; i++) {
            size_t len = strlen(letters);
            if (drained[i] && (!len || letters[len - 1] != drained[i]))
                letters[len] = drained[i];
        }
    }
    memset(drained, 0, sizeof drained);
}

static void run(enum kind kind, int state, const char *program)
{
    int ends[2], others[2], count = strlen(program), done = 0, results[ENTRIES];
    char letters[64] = "", rest[64] = "";
    open_pair(kind, state, ends);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, others) == 0);
    for (int at = 0; at < count; at++)
        add(program[at], at, ends, others);
    MUST(io_uring_submit(&ring) == count);
    while (done < count) {
        struct io_uring_cqe *cqe;
        struct __kernel_timespec time = { .tv_nsec = 1000000 };
        if (io_uring_wait_cqe_timeout(&ring, &cqe, &time)) {
            drain(ends[1], letters);
            continue;
        }
        results[cqe->user_data] = cqe->res, done++;
        io_uring_cqe_seen(&ring, cqe);
    }
    drain(ends[1], letters);
    drain(others[1], rest);
    /* Sends that wait, and sends that other threads execute, have no order. */
    if (state == FULL || strpbrk(program, "ry"))
        qsort(letters, strlen(letters), 1, by_letter);
    printf("%s%s, %s:", names[kind],
           state == FULL ? ", full" : state == BROKEN ? ", broken" : "", program);
    for (int at = 0; at < count; at++)
        printf(" %d", results[at]);
    /* Another thread may execute a send that has waited. Such a send raises no SIGPIPE. */
    printf("; %s, %s; signal %d\n", letters, rest, state != FULL && signals > 0);
    signals = 0;
    close(ends[0]), close(ends[1]), close(others[0]), close(others[1]);
}

int main(void)
{
    /* Another thread executes a shutdown, so no send of a program follows it or waits before it. */
    static const char *const programs[] = {
        "s", "w", "a", "d", "z", "f", "b", "o", "ss", "ssss", "swsw", "svsv", "sm", "ms", "msm",
        "smsms", "mws", "ls", "sls", "lsss", "slnss", "rs", "srs", "ssrss", "sys", "qs", "sq",
        "sqsd", "dsd", "dqds", "sx", "wx", "sc", "scs", "ssc", "lcs", "scw", "mcs", "sk", "ssk",
        "skss", "mk", "nsn", "nsnsn", "stv", "tvs", "vts", "vtvt", "as", "asa", "aaw", "sam",
        "fs", "sfs", "bs", "obs", "zsz", "smwadq", "adms", "lllls", "slsls", "llslls", "mmk", "msk",
        "mmc", "mqm", "qmq", "sNK", "sNs", "sNc", "aNs", "smNK", "sNNK", "sRK", "sK",
        "svtNs", "nsK", "ssNK",
    };
    static const char *const broken[] = { "s", "w", "ww", "sw", "ws", "wmw", "wn", "m" };
    MUST(io_uring_queue_init(16, &ring, 0) == 0);
    needs(&ring, IORING_OP_SOCKET);
    signal(SIGPIPE, count);
    for (int at = 0; at < 26; at++)
        memset(data[at], 'a' + at, SIZE);
    /* A full socket of TCP may get room by itself, when its data reaches the other end. */
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int state = 0; state <= (kind == TCP ? 0 : FULL); state++)
            for (size_t at = 0; at < sizeof programs / sizeof *programs; at++)
                if (state != FULL || !strchr(programs[at], 'x'))
                    run(kind, state, programs[at]);
    for (enum kind kind = STREAM; kind < KINDS; kind++)
        for (size_t at = 0; at < sizeof broken / sizeof *broken; at++)
            run(kind, BROKEN, broken[at]);
    return 0;
}
