/* O_APPEND writes take place in the order in which they were submitted. */
#include "common.h"

#define N 64
#define LINE 32

static void check(io_context_t ctx, int fd, int first, int per_submit, const char *kind)
{
    static char text[N][LINE];
    static struct iocb iocbs[N];
    struct iocb *list[N];
    struct io_event events[N];
    char name[96], expected[N * LINE], found[N * LINE + 1];
    if (ftruncate(fd, 0))
        die("ftruncate");
    for (int i = 0; i < N; i++) {
        memset(text[i], '.', LINE);
        snprintf(text[i], LINE, "line %d", i);
        memcpy(expected + i * LINE, text[i], LINE);
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], fd, text[i], LINE, first);
    }
    for (int i = 0; i < N; i += per_submit)
        if (io_submit(ctx, per_submit, list + i) != per_submit)
            die("submit");
    reap(ctx, N, events);
    int right = 0;
    for (int i = 0; i < N; i++)
        right += events[i].res == LINE;
    snprintf(name, sizeof name, "%s, %d per submit, right", kind, per_submit);
    say(name, "%d", right);
    int again = reopen(fd, O_RDONLY);
    ssize_t size = pread(again, found, sizeof found, 0);
    snprintf(name, sizeof name, "%s, %d per submit, size", kind, per_submit);
    say(name, "%zd", size);
    snprintf(name, sizeof name, "%s, %d per submit, in order", kind, per_submit);
    yes(name, size == sizeof expected && memcmp(found, expected, sizeof expected) == 0);
    close(again);
}

int main(void)
{
    io_context_t ctx = setup(N);
    int fd = temp_file(0);
    int append = reopen(fd, O_WRONLY | O_APPEND),
        synced = reopen(fd, O_WRONLY | O_APPEND | O_DSYNC);
    int sizes[] = {64, 8, 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        check(ctx, append, 0, sizes[i], "buffered");
        check(ctx, append, 1 << 20, sizes[i], "with an offset, which counts for nothing");
        check(ctx, synced, 0, sizes[i], "O_DSYNC");
    }
    /* O_APPEND set after the descriptor has been used without it. */
    int later = reopen(fd, O_WRONLY);
    struct iocb iocb;
    io_prep_pwrite(&iocb, later, "first", 5, 0);
    request(ctx, "without O_APPEND", &iocb);
    if (fcntl(later, F_SETFL, O_APPEND))
        die("fcntl");
    check(ctx, later, 0, 8, "set later");
    /* A pipe keeps the order as well. */
    int ends[2];
    if (pipe(ends))
        die("pipe");
    static struct iocb iocbs[N];
    struct iocb *list[N];
    struct io_event events[N];
    static unsigned char byte[N], found[N];
    for (int i = 0; i < N; i++) {
        byte[i] = (unsigned char)i;
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], ends[1], &byte[i], 1, 0);
    }
    answer("submit to a pipe", io_submit(ctx, N, list));
    reap(ctx, N, events);
    yes("a pipe keeps the order of writes",
        read(ends[0], found, N) == N && memcmp(byte, found, N) == 0);
    if (write(ends[1], byte, N) != N)
        die("write");
    memset(found, 0, N);
    for (int i = 0; i < N; i++)
        io_prep_pread(list[i], ends[0], &found[i], 1, 0);
    answer("submit from a pipe", io_submit(ctx, N, list));
    reap(ctx, N, events);
    yes("a pipe keeps the order of reads", memcmp(byte, found, N) == 0);
    answer("destroy", io_destroy(ctx));
    return 0;
}
