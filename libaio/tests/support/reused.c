/* Descriptor numbers are closed by system calls that the drop-in does not see, and then name
 * another kind of file. The program makes random sequences of requests on such numbers. Each number
 * has a twin with a file of the same kind. Plain calls on the twin have to give the same answers
 * and the same contents. The requests are libaio's, or with -DPOSIX those of POSIX AIO.
 *
 * reused SEED SEQUENCES: prints "equal", or the step that differs. */
#ifdef POSIX
#include "../../../posix-aio/tests/c/common.h"
#else
#include "../c/common.h"
#endif

#include <sys/ioctl.h>

#define NUMBER 700
#define TWIN 800
#define NUMBERS 3
#define SIZE 20000
#define BATCH 4

enum kind {
    FILE_RW, FILE_RO, FILE_WO, FILE_APPEND, FILE_DIRECT, PIPE_OUT, PIPE_IN, PACKETS_OUT, PACKETS_IN,
    SOCKET, FIFO, EVENTFD, DIRECTORY, ZERO, NOTHING, KINDS
};
static const char *const names[] = {"file",
                                    "read-only file",
                                    "write-only file",
                                    "append",
                                    "direct",
                                    "pipe to read",
                                    "pipe to write",
                                    "packets to read",
                                    "packets to write",
                                    "socket",
                                    "fifo",
                                    "eventfd",
                                    "directory",
                                    "zero",
                                    "nothing"};

enum { READ, WRITE, READV, WRITEV, SYNC };

struct op {
    int what;
    size_t len;
    long long offset;
    unsigned char *ours, *twins;
    struct iovec iov[2];
    long answer;
};

static uint64_t random_state;
static unsigned long seed, sequence, step;
static unsigned char *memory;
static char folder[200];
/* For each number and its twin: the kind, and the other end. */
static enum kind kinds[NUMBERS];
static int others[NUMBERS][2];

static unsigned below(unsigned n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (unsigned)((random_state * 0x2545f4914f6cdd1dULL) >> 33) % n;
}

/* The kernel's call, past every function that a library could interpose. */
static long by_hand(long number, long a, long b, long c)
{
#if defined(__x86_64__)
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return ret;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
    skip("no way to make a system call by hand here");
#endif
}

static void shut(int fd)
{
    if (fd >= 0)
        by_hand(SYS_close, fd, 0, 0);
}

__attribute__((noreturn, format(printf, 1, 2))) static void differ(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "seed %lu, sequence %lu, step %lu: ", seed, sequence, step);
    vfprintf(stderr, format, list);
    fputs("\n", stderr);
    _exit(1);
}

static void path_of(char *path, int at, int twin, const char *what)
{
    sprintf(path, "%s/%s-%d-%d", folder, what, at, twin);
}

/* Opens a file of this kind. A readable stream begins with bytes of `filling`. The other end of a
 * pipe or socket goes to `other`. */
static int open_one(enum kind kind, int at, int twin, int *other, const unsigned char *filling)
{
    static const int flags[] = {O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_DIRECT};
    char path[256];
    int ends[2] = {-1, -1}, fd = -1;
    *other = -1;
    switch (kind) {
    case FILE_RW: case FILE_RO: case FILE_WO: case FILE_APPEND: case FILE_DIRECT:
        path_of(path, at, twin, "file");
        fd = open(path, flags[kind]);
        if (fd < 0 && kind == FILE_DIRECT)
            fd = open(path, O_RDWR);
        break;
    case PIPE_OUT: case PIPE_IN: case PACKETS_OUT: case PACKETS_IN:
        if (pipe2(ends, kind >= PACKETS_OUT ? O_DIRECT : 0))
            die("pipe2");
        fd = ends[kind == PIPE_IN || kind == PACKETS_IN];
        *other = ends[kind == PIPE_OUT || kind == PACKETS_OUT];
        if (fd == ends[0] && write(ends[1], filling, 4096) != 4096)
            die("filling");
        break;
    case SOCKET:
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            die("socketpair");
        fd = ends[0], *other = ends[1];
        if (write(*other, filling, 8192) != 8192)
            die("filling");
        break;
    case FIFO:
        path_of(path, at, twin, "fifo");
        fd = open(path, O_RDWR);
        if (write(fd, filling, 4096) != 4096)
            die("filling");
        break;
    case EVENTFD:
        fd = eventfd(3, 0);
        break;
    case DIRECTORY:
        fd = open(folder, O_RDONLY | O_DIRECTORY);
        break;
    case ZERO:
        fd = open("/dev/zero", O_RDWR);
        break;
    default:
        break;
    }
    if (fd < 0 && kind != NOTHING)
        die("a %s", names[kind]);
    return fd;
}

/* Reads what is left in a file or stream, and returns the number of bytes. */
static size_t rest(enum kind kind, int at, int twin, int fd, int other, unsigned char *into)
{
    size_t n = 0;
    if (kind <= FILE_DIRECT) {
        char path[256];
        path_of(path, at, twin, "file");
        int file = open(path, O_RDONLY);
        n = read(file, into, 4 * SIZE);
        shut(file);
        return n;
    }
    int from = kind == PIPE_IN || kind == PACKETS_IN || kind == SOCKET ? other : fd;
    struct pollfd set = {from, POLLIN, 0};
    if (kind == DIRECTORY || kind == ZERO || kind == NOTHING || kind == PIPE_OUT ||
        kind == PACKETS_OUT)
        return 0;
    while (n < 4 * SIZE && poll(&set, 1, 0) == 1 && set.revents & POLLIN) {
        ssize_t more = read(from, into + n, 4 * SIZE - n);
        if (more <= 0)
            break;
        n += more;
    }
    return n;
}

static void compare_rest(int at)
{
    unsigned char *ours = memory, *twins = memory + 4 * SIZE;
    size_t n = rest(kinds[at], at, 0, NUMBER + at, others[at][0], ours);
    size_t m = rest(kinds[at], at, 1, TWIN + at, others[at][1], twins);
    if (n != m || memcmp(ours, twins, n))
        differ("the contents of a %s differ, of %zu and %zu bytes", names[kinds[at]], n, m);
}

/* The number gets another file, and so does its twin. */
static void reuse(int at, enum kind kind)
{
    unsigned char filling[8192];
    for (size_t i = 0; i < sizeof filling; i++)
        filling[i] = below(256);
    compare_rest(at);
    for (int twin = 0; twin < 2; twin++) {
        shut(others[at][twin]);
        int number = (twin ? TWIN : NUMBER) + at;
        int fd = open_one(kind, at, twin, &others[at][twin], filling);
        if (fd < 0)
            shut(number);
        else if (by_hand(SYS_dup3, fd, number, 0) != number)
            die("dup3");
        shut(fd);
    }
    kinds[at] = kind;
}

static int is_stream(int fd)
{
    return pread(fd, NULL, 0, 0) < 0 && errno == ESPIPE;
}

static long result(long ret)
{
    return ret < 0 ? -errno : ret;
}

/* The result of the step as a plain call: read(2), pread(2) and the like. */
static long plainly(int fd, const struct op *op)
{
    int writes = op->what == WRITE || op->what == WRITEV, flags = fcntl(fd, F_GETFL);
    if (op->what == SYNC)
        return result(fsync(fd));
#ifdef POSIX
    if (op->offset < 0)
        return -EINVAL;
#endif
    if (flags < 0)
        return -EBADF;
    if ((flags & O_ACCMODE) == (writes ? O_RDONLY : O_WRONLY))
        return -EBADF;
    int stream = is_stream(fd);
#ifndef POSIX
    /* io_submit checks the offset of a stream, too, and then ignores it. */
    if (stream && (op->offset < 0 || op->offset > LLONG_MAX - (long long)op->len))
        return -EINVAL;
#endif
    switch (op->what) {
    case READ:
        return result(stream ? read(fd, op->twins, op->len)
                             : pread(fd, op->twins, op->len, op->offset));
    case WRITE:
        return result(stream ? write(fd, op->twins, op->len)
                             : pwrite(fd, op->twins, op->len, op->offset));
    case READV: return result(stream ? readv(fd, op->iov, 2) : preadv(fd, op->iov, 2, op->offset));
    default: return result(stream ? writev(fd, op->iov, 2) : pwritev(fd, op->iov, 2, op->offset));
    }
}

#ifdef POSIX

static void perform(int fd, struct op *ops, int n)
{
    static struct aiocb blocks[BATCH];
    for (int i = 0; i < n; i++) {
        struct op *op = &ops[i];
        blocks[i] = block(fd, op->ours, op->len, op->offset);
        int got = op->what == SYNC ? aio_fsync(O_SYNC, &blocks[i])
                  : op->what == WRITE ? aio_write(&blocks[i]) : aio_read(&blocks[i]);
        /* The errno of a refused request is its answer. */
        ops[i].answer = got ? -errno : 1;
    }
    for (int i = 0; i < n; i++) {
        if (ops[i].answer < 0)
            continue;
        int error = finish(&blocks[i]);
        ops[i].answer = error ? -error : aio_return(&blocks[i]);
    }
}

#else

static io_context_t ctx;

static void perform(int fd, struct op *ops, int n)
{
    static struct iocb iocbs[BATCH];
    static struct iovec iov[BATCH][2];
    struct iocb *list[BATCH];
    struct io_event events[BATCH];
    int accepted = 0;
    for (int i = 0; i < n; i++) {
        struct op *op = &ops[i];
        list[i] = &iocbs[i];
        memcpy(iov[i], op->iov, sizeof op->iov);
        for (int j = 0; j < 2; j++)
            iov[i][j].iov_base = op->ours + ((unsigned char *)op->iov[j].iov_base - op->twins);
        switch (op->what) {
        case READ: io_prep_pread(list[i], fd, op->ours, op->len, op->offset); break;
        case WRITE: io_prep_pwrite(list[i], fd, op->ours, op->len, op->offset); break;
        case READV: io_prep_preadv(list[i], fd, iov[i], 2, op->offset); break;
        case WRITEV: io_prep_pwritev(list[i], fd, iov[i], 2, op->offset); break;
        default: io_prep_fsync(list[i], fd);
        }
    }
    for (int i = 0; i < n;) {
        int got = io_submit(ctx, n - i, list + i);
        /* The errno of a refused request is its answer. */
        if (got <= 0)
            ops[i++].answer = got;
        else
            i += got, accepted += got;
    }
    reap(ctx, accepted, events);
    for (int i = 0; i < accepted; i++)
        ops[events[i].obj - iocbs].answer = (long)events[i].res;
}

/* Submits a request with this number as its eventfd. The request is refused if the number does not
 * name an eventfd now. */
static void tell(int at)
{
    unsigned char ours[8];
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    int file = open(folder, O_RDONLY | O_DIRECTORY);
    io_prep_pread(&iocb, file, ours, 8, 0);
    io_set_eventfd(&iocb, NUMBER + at);
    int got = io_submit(ctx, 1, &list);
    int expected = kinds[at] == EVENTFD ? 1 : kinds[at] == NOTHING ? -EBADF : -EINVAL;
    if (got != expected)
        differ("told by a %s: %s instead of %s", names[kinds[at]], code(got), code(expected));
    if (got == 1) {
        reap(ctx, 1, &event);
        if (write(TWIN + at, &(uint64_t){1}, 8) != 8)
            die("write");
    }
    shut(file);
}

#endif

/* Makes up to four requests on one number. They are of one kind and independent of each other, so
 * that plain calls one after the other give the same results. */
static void use(int at)
{
    enum kind kind = kinds[at];
    struct op ops[BATCH];
    struct stat stat;
    int direct = kind == FILE_DIRECT && below(5), what = below(60) ? below(4) : SYNC;
    int stream = is_stream(TWIN + at), n = below(3) ? 1 : 1 + below(BATCH);
    int write = what == WRITE || what == WRITEV;
#ifdef POSIX
    what = what == READV ? READ : what == WRITEV ? WRITE : what;
#endif
    if (what == SYNC || kind == EVENTFD || kind == PACKETS_OUT || kind == PACKETS_IN)
        n = 1;
    fstat(TWIN + at, &stat);
    if (kind == FILE_APPEND && write && stat.st_size > 2 * SIZE)
        return;
    struct pollfd set = {TWIN + at, write ? POLLOUT : POLLIN, 0};
    int flags = fcntl(TWIN + at, F_GETFL);
    int open_for_it = flags >= 0 && (flags & O_ACCMODE) != (write ? O_RDONLY : O_WRONLY);
    int left = 0;
    /* Leaves out requests that would wait. */
    if (stream && open_for_it && what != SYNC) {
        if (poll(&set, 1, 0) != 1 || !(set.revents & set.events))
            return;
        if (kind != EVENTFD && !write && ioctl(TWIN + at, FIONREAD, &left))
            die("FIONREAD");
    }
    for (int i = 0; i < n; i++) {
        struct op *op = &ops[i];
        memset(op, 0, sizeof *op);
        op->what = what;
        op->len = direct ? 512 << below(4) : kind == EVENTFD ? 8 : below(900);
        op->offset = direct ? 4096 * (i + 1) : below(2) * 1000 + 4000 * i + below(100);
        if (stream && !write && open_for_it && kind != EVENTFD) {
            /* No request may wait for data that an earlier one has taken. */
            int share = left / n;
            op->len = share ? 1 + below(share) : 0;
            if (op->len > 900)
                op->len = 900;
        }
        if (!below(12))
            op->offset = below(2) ? -1 - (long long)below(5) : LLONG_MAX - 10;
        if (kind == EVENTFD)
            op->len = 8;
        op->ours = memory + 8192 * i;
        op->twins = memory + 8192 * (BATCH + i);
        size_t half = direct ? op->len / 2 : op->len ? below(op->len) : 0;
        op->iov[0] = (struct iovec){op->twins, half};
        op->iov[1] = (struct iovec){op->twins + half, op->len - half};
        /* On io_uring, a read of no bytes of a directory is no error: this reads one byte more. */
        if (kind == DIRECTORY)
            op->len++;
        if (what == SYNC)
            op->offset = op->len = 0;
        for (size_t j = 0; j < 8192; j++)
            op->ours[j] = write ? (unsigned char)(j * 7 + i + random_state) : 0xee;
        if (kind == EVENTFD && write)
            memcpy(op->ours, &(uint64_t){1 + below(5)}, 8);
        memcpy(op->twins, op->ours, 8192);
    }
    perform(NUMBER + at, ops, n);
    for (int i = 0; i < n; i++) {
        static const char *const whats[] = {"read", "write", "readv", "writev", "fsync"};
        struct op *op = &ops[i];
        long expected = plainly(TWIN + at, op);
        if (op->answer != expected)
            differ("%s %d of %d, of %zu bytes at %lld, of a %s: %s instead of %s", whats[op->what],
                   i, n, op->len, op->offset, names[kind], code(op->answer), code(expected));
        if (memcmp(op->ours, op->twins, 8192))
            differ("%s %d of %d, of %zu bytes at %lld, of a %s: other bytes", whats[op->what], i, n,
                   op->len, op->offset, names[kind]);
    }
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoul(argv[1], NULL, 0) : 1;
    unsigned long sequences = argc > 2 ? strtoul(argv[2], NULL, 0) : 1000;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/reused-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        die("mkdtemp");
    alarm(600);
    signal(SIGPIPE, SIG_IGN);
    memory = pages(8 * SIZE + PAGE);
#ifndef POSIX
    int got = io_setup(64, &ctx);
    if (got) {
        char reason[64];
        snprintf(reason, sizeof reason, "io_setup is refused: %s", code(got));
        skip(reason);
    }
#endif
    char path[256];
    for (int at = 0; at < NUMBERS; at++)
        for (int twin = 0; twin < 2; twin++) {
            path_of(path, at, twin, "fifo");
            if (mkfifo(path, 0600))
                die("mkfifo");
            path_of(path, at, twin, "file");
            int file = open(path, O_RDWR | O_CREAT, 0600);
            if (ftruncate(file, SIZE))
                die("ftruncate");
            shut(file);
            others[at][twin] = -1;
            kinds[at] = NOTHING;
        }
    random_state = seed * 0x9e3779b97f4a7c15ULL | 1;
    for (sequence = 0; sequence < sequences; sequence++) {
        int at = below(NUMBERS);
        for (step = 0; step < 2; step++) {
            reuse(at, below(3) ? below(KINDS) : FILE_RW);
            for (int times = 1 + below(3); times > 0; times--) {
#ifndef POSIX
                if (!below(8))
                    tell(at);
#endif
                use(at);
            }
        }
        if (sequence % 16 == 15) {
            reuse(at, NOTHING);
            for (int twin = 0; twin < 2; twin++) {
                path_of(path, at, twin, "file");
                if (truncate(path, SIZE))
                    die("truncate");
            }
        }
    }
    for (int at = 0; at < NUMBERS; at++)
        compare_rest(at);
    for (int at = 0; at < NUMBERS; at++)
        for (int twin = 0; twin < 2; twin++) {
            path_of(path, at, twin, "fifo"), unlink(path);
            path_of(path, at, twin, "file"), unlink(path);
        }
    rmdir(folder);
    puts("equal");
    return 0;
}
