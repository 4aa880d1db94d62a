/* PREADV and PWRITEV: vectors of every shape, copied at submit. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(64 * PAGE);
    unsigned char *buf = pages(64 * PAGE);
    struct iocb iocb;
    static struct iovec iov[2000];

    for (int i = 0; i < 2000; i++)
        iov[i] = (struct iovec){buf + i * 16, 16};
    int counts[] = {0, 1, 2, 8, 9, 1024, 1025, 2000};
    char name[96];
    for (size_t i = 0; i < COUNT(counts); i++) {
        memset(buf, 0, 64 * PAGE);
        io_prep_preadv(&iocb, fd, iov, counts[i], 100);
        snprintf(name, sizeof name, "readv of %d", counts[i]);
        long got = request(ctx, name, &iocb);
        snprintf(name, sizeof name, "readv of %d, bytes", counts[i]);
        if (got > 0)
            yes(name, holds(buf, (size_t)got, 100));
    }
    for (int i = 0; i < 1024; i++)
        memset(iov[i].iov_base, i, 16);
    for (size_t i = 0; i < COUNT(counts); i++) {
        io_prep_pwritev(&iocb, fd, iov, counts[i], 3000);
        snprintf(name, sizeof name, "writev of %d", counts[i]);
        request(ctx, name, &iocb);
    }
    unsigned char *check = pages(64 * PAGE);
    if (pread(fd, check, 1024 * 16, 3000) != 1024 * 16)
        die("pread");
    yes("writev, bytes", memcmp(check, buf, 1024 * 16) == 0);

    io_prep_preadv(&iocb, fd, iov, -1, 0);
    request(ctx, "readv of -1", &iocb);
    io_prep_preadv(&iocb, fd, iov, INT_MAX, 0);
    request(ctx, "readv of INT_MAX", &iocb);
    io_prep_preadv(&iocb, fd, NULL, 1, 0);
    request(ctx, "readv of NULL", &iocb);
    io_prep_preadv(&iocb, fd, NULL, 0, 0);
    request(ctx, "readv of 0 from NULL", &iocb);
    io_prep_preadv(&iocb, fd, UNMAPPED, 1, 0);
    request(ctx, "readv of a bad address", &iocb);
    io_prep_preadv(&iocb, fd, UNMAPPED, 16, 0);
    request(ctx, "readv of 16 at a bad address", &iocb);
    io_prep_preadv(&iocb, fd, KERNEL_ADDRESS, 1, 0);
    request(ctx, "readv of a kernel address", &iocb);
    unsigned char *edge = last_page();
    struct iovec *over = (struct iovec *)(edge + PAGE) - 1;
    *over = (struct iovec){buf, 16};
    io_prep_preadv(&iocb, fd, over, 1, 0);
    request(ctx, "readv of 1 at the end of memory", &iocb);
    io_prep_preadv(&iocb, fd, over, 2, 0);
    request(ctx, "readv of 2 over the end of memory", &iocb);

    struct iovec empty[3] = {{buf, 0}, {buf, 0}, {NULL, 0}};
    io_prep_preadv(&iocb, fd, empty, 3, 0);
    request(ctx, "readv of empty parts", &iocb);
    struct iovec holes[4] = {{buf, 5}, {NULL, 0}, {buf + 5, 7}, {buf, 0}};
    io_prep_preadv(&iocb, fd, holes, 4, 0);
    request(ctx, "readv with empty parts", &iocb);
    struct iovec bad[2] = {{buf, 100}, {UNMAPPED, 100}};
    io_prep_preadv(&iocb, fd, bad, 2, 0);
    request(ctx, "readv with a bad second part", &iocb);
    io_prep_pwritev(&iocb, fd, bad, 2, 0);
    request(ctx, "writev with a bad second part", &iocb);
    struct iovec first[2] = {{UNMAPPED, 100}, {buf, 100}};
    io_prep_preadv(&iocb, fd, first, 2, 0);
    request(ctx, "readv with a bad first part", &iocb);
    struct iovec negative[1] = {{buf, (size_t)-1}};
    io_prep_preadv(&iocb, fd, negative, 1, 0);
    request(ctx, "readv with a negative length", &iocb);
    struct iovec later[2] = {{buf, 16}, {buf, (size_t)SSIZE_MAX + 1}};
    io_prep_preadv(&iocb, fd, later, 2, 0);
    request(ctx, "readv with a negative second length", &iocb);
    struct iovec huge[1] = {{buf, 1UL << 40}};
    if (ftruncate(fd, 2 * PAGE))
        die("ftruncate");
    io_prep_preadv(&iocb, fd, huge, 1, 0);
    request(ctx, "readv with a huge length", &iocb);
    struct iovec kernel[1] = {{KERNEL_ADDRESS, 16}};
    io_prep_preadv(&iocb, fd, kernel, 1, 0);
    request(ctx, "readv into the kernel", &iocb);
    io_prep_preadv(&iocb, fd, iov, 4, 2 * PAGE - 20);
    request(ctx, "readv over the end", &iocb);
    io_prep_preadv(&iocb, fd, iov, 4, 2 * PAGE);
    request(ctx, "readv at the end", &iocb);
    io_prep_preadv(&iocb, fd, iov, 4, -1);
    request(ctx, "readv at -1", &iocb);
    io_prep_preadv(&iocb, 900, iov, 4, 0);
    request(ctx, "readv of a closed descriptor", &iocb);

    int ends[2];
    if (pipe2(ends, O_NONBLOCK))
        die("pipe");
    io_prep_pwritev(&iocb, ends[1], iov, 4, 0);
    request(ctx, "writev to a pipe", &iocb);
    io_prep_preadv(&iocb, ends[0], iov, 8, 99);
    request(ctx, "readv of a pipe", &iocb);
    io_prep_preadv(&iocb, ends[0], iov, 8, 0);
    request(ctx, "readv of an empty pipe without waiting", &iocb);

    /* The vector may be overwritten as soon as io_submit has returned. */
    struct io_event events[16];
    struct iovec reused[64];
    int fresh = temp_file(64 * PAGE), right = 0;
    memset(buf, 0, 64 * PAGE);
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 64; j++)
            reused[j] = (struct iovec){buf + i * PAGE + j * 64, 64};
        static struct iocb each[16];
        io_prep_preadv(&each[i], fresh, reused, 64, (long long)i * PAGE);
        if (submit1(ctx, &each[i]) != 1)
            die("submit");
        memset(reused, 0xff, sizeof reused);
    }
    reap(ctx, 16, events);
    for (int i = 0; i < 16; i++)
        right += events[i].res == PAGE;
    say("vector overwritten after submit", "%d right", right);
    yes("vector overwritten after submit, bytes", holds(buf, 16 * PAGE, 0));

    int direct = reopen(fresh, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        struct iovec whole[4];
        for (int i = 0; i < 4; i++)
            whole[i] = (struct iovec){buf + (3 - i) * PAGE, PAGE};
        memset(buf, 0, 4 * PAGE);
        io_prep_preadv(&iocb, direct, whole, 4, 8 * PAGE);
        request(ctx, "direct readv", &iocb);
        yes("direct readv, bytes",
            holds(buf + 3 * PAGE, PAGE, 8 * PAGE) && holds(buf, PAGE, 11 * PAGE));
        io_prep_pwritev(&iocb, direct, whole, 4, 0);
        request(ctx, "direct writev", &iocb);
    } else {
        say("direct readv", "cannot open: %s", code(direct));
    }
    answer("destroy", io_destroy(ctx));
    return 0;
}
