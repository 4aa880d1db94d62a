/* A request keeps its file, whatever happens to the descriptor that named it. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { NUMBER = 200 };

static struct io_uring ring;

static void by_close(void) { close(NUMBER); }
static void by_range(void) { close_range(NUMBER, NUMBER, 0); }
static void by_number(void) { syscall(SYS_close, NUMBER); }
static void by_range_number(void) { syscall(SYS_close_range, NUMBER, NUMBER, 0); }
static void by_fclose(void) { fclose(fdopen(NUMBER, "r+")); }
static void by_freopen(void) { fclose(freopen("/dev/null", "r", fdopen(NUMBER, "r+"))); }
static void by_nothing(void) {}

static void by_entry(void)
{
    struct io_uring_sqe *sqe = entry(&ring, 9);
    io_uring_prep_close(sqe, NUMBER);
    sqe->user_data = 9;
    MUST(io_uring_submit(&ring) == 1);
    completions(&ring, "close", 1);
}

static const struct {
    const char *name;
    void (*end)(void);
} ways[] = {
    {"close", by_close},         {"dup2", by_nothing},
    {"close_range", by_range},   {"close by number", by_number},
    {"fclose", by_fclose},       {"close_range by number", by_range_number},
    {"freopen", by_freopen},     {"an entry", by_entry},
};

static void takes(int fd)
{
    MUST(dup2(fd, NUMBER) == NUMBER);
    close(fd);
}

static void one(const char *way, void (*end)(void), int polls)
{
    static char bytes[8];
    char other[8];
    int old[2], new[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, old) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, new) == 0);
    takes(old[0]);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    if (polls)
        io_uring_prep_poll_add(sqe, NUMBER, POLLIN);
    else
        io_uring_prep_read(sqe, NUMBER, bytes, sizeof bytes, 0);
    sqe->user_data = 1;
    MUST(io_uring_submit(&ring) == 1);
    end();
    takes(new[0]);
    MUST(write(new[1], "new", 3) == 3);
    printf("%s: %u when the new file has data\n", way, io_uring_cq_ready(&ring));
    printf("%s: the old peer writes %zd\n", way, send(old[1], "old", 3, MSG_NOSIGNAL));
    completions(&ring, way, 1);
    printf("%s: read %.3s\n", way, polls ? "nothing" : bytes);
    ssize_t left = recv(NUMBER, other, sizeof other, MSG_DONTWAIT);
    printf("%s: the new file still has %zd\n", way, left);
    close(NUMBER);
    close(old[1]);
    close(new[1]);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    for (size_t at = 0; at < sizeof ways / sizeof *ways; at++) {
        one(ways[at].name, ways[at].end, 0);
        one(ways[at].name, ways[at].end, 1);
    }
    return 0;
}
