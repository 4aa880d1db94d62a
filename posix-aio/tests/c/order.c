/* Order where a program can see it: appends, pipes, sockets, priorities. */
#include "common.h"

enum { N = 64 };
static struct aiocb cbs[N];
static unsigned char blocks[N][512];

static void appends(const char *name, int flags, int by_list)
{
    int fd = temp_file(0), other = reopen(fd, O_RDWR | O_APPEND | flags), ordered = 0;
    struct aiocb *list[N];
    unsigned char *aligned = pages(N * 512);
    if (other < 0) {
        say(name, "%s", code(other));
        return;
    }
    for (int i = 0; i < N; i++) {
        memset(aligned + i * 512, i, 512);
        cbs[i] = block(other, aligned + i * 512, 512, 0);
        cbs[i].aio_lio_opcode = LIO_WRITE;
        list[i] = &cbs[i];
        if (!by_list && aio_write(&cbs[i]))
            die("aio_write");
    }
    if (by_list && lio_listio(LIO_NOWAIT, list, N, NULL))
        die("lio_listio");
    for (int i = 0; i < N; i++)
        if (finish(&cbs[i]) || aio_return(&cbs[i]) != 512)
            die("a write");
    for (int i = 0; i < N; i++)
        ordered += pread(fd, blocks[i], 512, i * 512) == 512 && blocks[i][0] == i &&
                   blocks[i][511] == i;
    say(name, "%d in order", ordered);
    close(other);
    close(fd);
}

static void through(const char *name, int in, int out)
{
    static unsigned char back[N][512];
    static struct aiocb reads[N];
    int ordered = 0;
    for (int i = 0; i < N; i++) {
        memset(blocks[i], i + 1, 512);
        cbs[i] = block(in, blocks[i], 512, 0);
        reads[i] = block(out, back[i], 512, 0);
        if (aio_read(&reads[i]) || aio_write(&cbs[i]))
            die("submit");
    }
    for (int i = 0; i < N; i++)
        ordered += finish(&cbs[i]) == 0 && finish(&reads[i]) == 0 && back[i][0] == i + 1 &&
                   back[i][511] == i + 1;
    say(name, "%d in order", ordered);
}

static void streams(void)
{
    int ends[2], pair[2];
    make_pipe(ends);
    through("[aio_read order; aio_write order] 64 writes and reads of a pipe", ends[1], ends[0]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    through("[aio_read order; aio_write order] 64 writes and reads of a socket", pair[1], pair[0]);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
        die("socketpair");
    /* A datagram socket takes fewer than 64 datagrams at once, so some writes wait in the
     * descriptor's queue. */
    through("[aio_read order; aio_write order] 64 datagrams", pair[1], pair[0]);
}

/* Behind a request that blocks, lower priority values go first, and equal ones in order of
 * submission. */
static void priorities(void)
{
    static const int priority[] = {0, 20, 10, 0, 10, 20, 0};
    enum { M = COUNT(priority) };
    static char bytes[M + 1];
    char text[M + 1] = "";
    int ends[2];
    make_pipe(ends);
    for (int i = 0; i < M; i++) {
        cbs[i] = block(ends[0], &bytes[i], 1, 0);
        cbs[i].aio_reqprio = priority[i];
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    put(ends[1], "abcdefg");
    for (int i = 0; i < M; i++) {
        finish(&cbs[i]);
        text[i] = bytes[i];
    }
    say("[aio_read reqprio] reads with priorities 0, 20, 10, 0, 10, 20, 0 get", "%s", text);
    /* The same requests through a list. */
    struct aiocb *list[M];
    for (int i = 0; i < M; i++) {
        cbs[i].aio_lio_opcode = LIO_READ;
        list[i] = &cbs[i];
    }
    if (lio_listio(LIO_NOWAIT, list, M, NULL))
        die("lio_listio");
    put(ends[1], "abcdefg");
    for (int i = 0; i < M; i++)
        finish(&cbs[i]);
}

/* Requests in both directions on one descriptor. */
static void both_ways(void)
{
    static char in[16];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    struct aiocb receive = block(pair[0], in, 16, 0), send = block(pair[0], "hello", 5, 0);
    if (aio_read(&receive) || aio_write(&send))
        die("submit");
    for (int i = 0; i < 200 && aio_error(&send) == EINPROGRESS; i++)
        usleep(1000);
    say("[aio_write order] a write to a socket behind a read of it that waits", "%s", state(&send));
    put(pair[1], "answer");
    finish(&receive);
    finish(&send);
    say("both in the end", "%s; %s", state(&receive), state(&send));
}

/* A read that was submitted after a write had completed sees the data. */
static void read_after_write(void)
{
    int fd = temp_file(PAGE), seen = 0;
    unsigned char value, back;
    for (int i = 0; i < 500; i++) {
        value = (unsigned char)i;
        struct aiocb cb = block(fd, &value, 1, i % 100);
        if (aio_write(&cb) || finish(&cb))
            die("aio_write");
        cb = block(fd, &back, 1, i % 100);
        if (aio_read(&cb) || finish(&cb))
            die("aio_read");
        seen += back == value;
    }
    say("[aio_write order] reads after writes", "%d see them", seen);
    close(fd);
}

/* In the original, overlapping requests of one descriptor run one after the other, so the data of
 * the last write stays. The drop-in does not promise this order. */
static void overlapping(void)
{
    int fd = temp_file(0), last = 0;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < N; i++) {
            memset(blocks[i], i, 512);
            cbs[i] = block(fd, blocks[i], 512, 0);
            if (aio_write(&cbs[i]))
                die("aio_write");
        }
        for (int i = 0; i < N; i++)
            finish(&cbs[i]);
        unsigned char back[512];
        last += pread(fd, back, 512, 0) == 512 && back[0] == N - 1 && back[511] == N - 1;
    }
    yes("[aio_write order] of 64 writes to one place the last one stays, 50 times", last == 50);
    close(fd);
}

int main(void)
{
    in_child(priorities);
    in_child(both_ways);
    appends("[aio_write order] 64 appends", 0, 0);
    appends("[lio_listio order] 64 appends in a list", 0, 1);
    appends("[aio_write order] 64 appends, O_SYNC", O_SYNC, 0);
    appends("[aio_write order] 64 direct appends", O_DIRECT, 0);
    streams();
    read_after_write();
    overlapping();
    return 0;
}
