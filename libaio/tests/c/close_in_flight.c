/* A request holds its file: the descriptor may be closed, and its number used again, at once. */
#include "common.h"

#define N 32

static struct iocb iocbs[N], *list[N];
static struct io_event events[N];

static int right_of(void)
{
    int right = 0;
    for (int i = 0; i < N; i++)
        right += events[i].res == PAGE;
    return right;
}

static void round_trip(io_context_t ctx, int base, int flags, const char *kind)
{
    unsigned char *buf = pages(N * PAGE);
    char name[96];
    int other_file = temp_file(0), right = 0, bytes = 0, intact = 1;
    static unsigned char other[N * PAGE], now_there[N * PAGE];
    memset(other, 'o', sizeof other);
    for (int round = 0; round < 20; round++) {
        if (pwrite(other_file, other, sizeof other, 0) != (ssize_t)sizeof other)
            die("pwrite");
        int fd = reopen(base, flags);
        memset(buf, 0, N * PAGE);
        for (int i = 0; i < N; i++) {
            list[i] = &iocbs[i];
            io_prep_pread(list[i], fd, buf + i * PAGE, PAGE, (long long)i * PAGE);
        }
        if (io_submit(ctx, N, list) != N)
            die("submit");
        /* Odd rounds: the number is closed. Even ones: it names another file from here on. */
        if (round % 2)
            close(fd);
        else if (dup2(other_file, fd) != fd)
            die("dup2");
        reap(ctx, N, events);
        right += right_of();
        bytes += holds(buf, N * PAGE, 0);
        if (round % 2 == 0)
            close(fd);
    }
    snprintf(name, sizeof name, "%s reads", kind);
    say(name, "%d of %d right, %d of 20 with their bytes", right, 20 * N, bytes);

    /* Writes are the dangerous ones: they must not reach the file that has the number now. */
    right = 0;
    for (int round = 0; round < 20; round++) {
        int fd = reopen(base, flags);
        for (int i = 0; i < N; i++) {
            list[i] = &iocbs[i];
            io_prep_pwrite(list[i], fd, buf + i * PAGE, PAGE, (long long)i * PAGE);
        }
        if (io_submit(ctx, N, list) != N)
            die("submit");
        if (round % 2)
            close(fd);
        else if (dup2(other_file, fd) != fd)
            die("dup2");
        reap(ctx, N, events);
        right += right_of();
        if (round % 2 == 0)
            close(fd);
        if (pread(other_file, now_there, sizeof now_there, 0) != (ssize_t)sizeof now_there)
            die("pread");
        intact &= memcmp(other, now_there, sizeof other) == 0;
    }
    snprintf(name, sizeof name, "%s writes", kind);
    say(name, "%d of %d right", right, 20 * N);
    snprintf(name, sizeof name, "%s writes, the other file is intact", kind);
    yes(name, intact);
    close(other_file);
}

int main(void)
{
    io_context_t ctx = setup(N);
    int base = temp_file(N * PAGE);
    round_trip(ctx, base, O_RDWR, "buffered");
    int direct = reopen(base, O_RDWR | O_DIRECT);
    if (direct >= 0)
        round_trip(ctx, base, O_RDWR | O_DIRECT, "direct");
    for (int i = 0; i < N; i++) {
        list[i] = &iocbs[i];
        io_prep_fsync(list[i], base);
    }
    int copy = dup(base);
    for (int i = 0; i < N; i++)
        iocbs[i].aio_fildes = copy;
    answer("submit of 32 fsyncs", io_submit(ctx, N, list));
    close(copy);
    reap(ctx, N, events);
    int right = 0;
    for (int i = 0; i < N; i++)
        right += events[i].res == 0;
    say("fsyncs", "%d right", right);
    answer("destroy", io_destroy(ctx));
    return 0;
}
