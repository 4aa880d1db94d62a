/* Transfers at the bounds: offsets near 2^63, numbers of iovecs of more than 32 bits, and vectors
 * with several mistakes, of which one decides the answer. */
#include "common.h"

static io_context_t ctx;
static unsigned char buf[PAGE];
static struct iovec iov[2];

static void prepare(struct iocb *iocb, int fd, int is_write, int parts, long long offset)
{
    if (parts == 0 && is_write)
        io_prep_pwrite(iocb, fd, buf, 32, offset);
    else if (parts == 0)
        io_prep_pread(iocb, fd, buf, 32, offset);
    else if (is_write)
        io_prep_pwritev(iocb, fd, iov, parts, offset);
    else
        io_prep_preadv(iocb, fd, iov, parts, offset);
}

static void offsets(const char *what, int fd, int is_write)
{
    static const long long before_end[] = {0, 1, 15, 16, 17, 31, 32, 33, 4096};
    char name[96];
    struct iocb iocb;
    for (int parts = 0; parts < 3; parts++) {
        for (size_t at = 0; at < COUNT(before_end); at++) {
            prepare(&iocb, fd, is_write, parts, LLONG_MAX - before_end[at]);
            snprintf(name, sizeof name, "%s, %d parts, %lld before the end", what, parts,
                     before_end[at]);
            request(ctx, name, &iocb);
        }
        prepare(&iocb, fd, is_write, parts, -1);
        snprintf(name, sizeof name, "%s, %d parts, at -1", what, parts);
        request(ctx, name, &iocb);
        prepare(&iocb, fd, is_write, parts, LLONG_MIN);
        snprintf(name, sizeof name, "%s, %d parts, at LLONG_MIN", what, parts);
        request(ctx, name, &iocb);
    }
}

static void counts(const char *what, int fd, int is_write)
{
    static const unsigned long numbers[] = {
        1UL << 31, 1UL << 32, (1UL << 32) + 1, (1UL << 32) + 2, (1UL << 32) + 1025, 1UL << 62,
        (1UL << 62) + 1, LONG_MAX, 1UL << 63, -1UL,
    };
    char name[96];
    for (size_t at = 0; at < COUNT(numbers); at++) {
        struct iocb iocb;
        prepare(&iocb, fd, is_write, 1, 0);
        iocb.u.c.nbytes = numbers[at];
        snprintf(name, sizeof name, "%s of %#lx", what, numbers[at]);
        request(ctx, name, &iocb);
    }
}

static void vectors(const char *what, int fd, int is_write)
{
    struct iovec good = {buf, 16}, negative = {buf, -1UL}, kernel = {KERNEL_ADDRESS, 16};
    struct iovec none = {UNMAPPED, 16}, huge = {buf, LONG_MAX};
    struct iovec empty = {KERNEL_ADDRESS, 0};
    struct { const char *name; struct iovec parts[2]; } cases[] = {
        {"a negative length first", {negative, good}},
        {"a negative length second", {good, negative}},
        {"the kernel's memory, a negative length", {kernel, negative}},
        {"a negative length, the kernel's memory", {negative, kernel}},
        {"the kernel's memory second", {good, kernel}},
        {"nothing of the kernel's memory", {good, empty}},
        {"nowhere, the kernel's memory", {none, kernel}},
        {"nowhere, a negative length", {none, negative}},
        {"a huge length", {huge, good}},
        {"two huge lengths", {huge, huge}},
    };
    struct iovec *edge = (struct iovec *)(last_page() + PAGE) - 2;
    char name[96];
    for (size_t at = 0; at < COUNT(cases); at++) {
        memcpy(edge, cases[at].parts, sizeof cases[at].parts);
        /* The third part cannot be read. */
        for (int parts = 1; parts < 4; parts++)
            for (int turn = 0; turn < 2; turn++) {
                struct iocb iocb;
                long long offset = turn ? -1 : 0;
                if (is_write)
                    io_prep_pwritev(&iocb, fd, edge, parts, offset);
                else
                    io_prep_preadv(&iocb, fd, edge, parts, offset);
                snprintf(name, sizeof name, "%s, %s, %d parts at %lld", what, cases[at].name,
                         parts, offset);
                request(ctx, name, &iocb);
            }
    }
}

int main(void)
{
    ctx = setup(16);
    int fd = temp_file(PAGE), null = open("/dev/null", O_RDWR), ends[2];
    if (null < 0 || pipe2(ends, O_NONBLOCK))
        die("pipe");
    for (int i = 0; i < 2; i++)
        iov[i] = (struct iovec){buf + 16 * i, 16};
    offsets("read", fd, 0);
    offsets("write", fd, 1);
    offsets("read of null", null, 0);
    offsets("write to a pipe", ends[1], 1);
    offsets("read of a pipe", ends[0], 0);
    offsets("read of what is only written", ends[1], 0);
    counts("readv", fd, 0);
    counts("writev", fd, 1);
    vectors("readv", fd, 0);
    vectors("writev", null, 1);
    answer("destroy", io_destroy(ctx));
    return 0;
}
