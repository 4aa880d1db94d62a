/* Room, order, destruction, read_many, statistics, handlers. */
#include "check.h"

static void room(void)
{
    struct uringlet *u = context(4);
    struct uringlet_cqe cqes[8];

    for (int round = 0; round < 100; round++) {
        for (uint64_t at = 0; at < 4; at++) {
            struct uringlet_sqe *sqe = entry(u);

            EQUAL(sqe->user_data, 0);
            uringlet_sqe_set_data64(sqe, at + 1);
            uringlet_prep_nop(sqe);
        }
        CHECK(!uringlet_get_sqe(u));
        EQUAL(uringlet_submit(u), 4);
        EQUAL(uringlet_submit(u), 0);
        /* There are entries, but no room until something is reaped. */
        uringlet_sqe_set_data64(entry(u), 5);
        EQUAL(uringlet_submit(u), -EAGAIN);
        EQUAL(uringlet_wait(u, 4, -1), 4);
        EQUAL(uringlet_peek(u, cqes, 2), 2);
        EQUAL(uringlet_submit(u), 1);
        EQUAL(uringlet_wait(u, 3, -1), 3);
        EQUAL(uringlet_peek(u, cqes + 2, 6), 3);
        for (unsigned seen = 0, at = 0; at < 5; at++) {
            CHECK(!(seen & 1u << cqes[at].user_data));
            seen |= 1u << cqes[at].user_data;
            EQUAL(at < 4 || seen == 0x3e, 1);
        }
        EQUAL(uringlet_peek(u, cqes, 8), 0);
    }
    EQUAL(uringlet_destroy(u, -1), 0);
}

static void destruction(void)
{
    struct uringlet *u = context(4);
    int pipes[2];
    char byte = 0;

    EQUAL(pipe(pipes), 0);
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    /* The request has not ended, so the context stays, and can be used. */
    EQUAL(uringlet_destroy(u, 0), -ETIME);
    EQUAL(uringlet_destroy(u, 1000000), -ETIME);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(result(u), 1);
    EQUAL(byte, 'x');
    /* With a negative timeout, the request is cancelled. */
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    EQUAL(uringlet_destroy(u, -1), 0);
    /* No request reads from the pipe any more. */
    EQUAL(write(pipes[1], "y", 1), 1);
    EQUAL(read(pipes[0], &byte, 1), 1);
    EQUAL(byte, 'y');
    /* If all requests end in time, reaped or not, the context is destroyed. Entries that were not
     * submitted are dropped. */
    u = context(4);
    uringlet_prep_nop(entry(u));
    EQUAL(uringlet_submit(u), 1);
    uringlet_prep_write(entry(u), pipes[1], "z", 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_destroy(u, INT64_MAX), 0);
    EQUAL(fcntl(pipes[0], F_SETFL, O_NONBLOCK), 0);
    EQUAL(read(pipes[0], &byte, 1), -1);
}

#define RANGES 1000

static void read_many(void)
{
    static unsigned char content[RANGES * 16], bufs[RANGES][16];
    static struct uringlet_range ranges[RANGES];
    struct uringlet *u = context(16);
    int fd, pipes[2];
    char byte;

    for (size_t at = 0; at < sizeof(content); at++)
        content[at] = (unsigned char)(at * 7 + at / 251);
    fd = file_of(content, sizeof(content));
    for (unsigned at = 0; at < RANGES; at++) {
        ranges[at].fd = at % 100 == 99 ? -1 : fd;
        ranges[at].off = (RANGES - 1 - at) * 16;
        ranges[at].buf = bufs[at];
        ranges[at].len = at == 0 ? 100 : 16;
    }
    /* The first read asks for more bytes than the file has at its offset. */
    EQUAL(uringlet_read_many(u, ranges, RANGES), RANGES - 10);
    for (unsigned at = 0; at < RANGES; at++) {
        EQUAL(ranges[at].res, at % 100 == 99 ? -EBADF : 16);
        EQUAL(ranges[at].res < 0 || !memcmp(bufs[at], content + ranges[at].off, 16), 1);
    }
    /* The context must have no other requests. */
    EQUAL(pipe(pipes), 0);
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_read_many(u, ranges, RANGES), -EBUSY);
    EQUAL(uringlet_submit(u), 1);
    EQUAL(uringlet_read_many(u, ranges, RANGES), -EBUSY);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(uringlet_wait(u, 1, -1), 1);
    EQUAL(uringlet_read_many(u, ranges, RANGES), -EBUSY);
    EQUAL(result(u), 1);
    EQUAL(uringlet_read_many(u, ranges, 1), 1);
    EQUAL(uringlet_destroy(u, -1), 0);
    close(fd);
}

static void statistics(void)
{
    struct uringlet_options options = {.size = sizeof(options), .flags = URINGLET_WITH_STATS};
    struct uringlet_stats stats = {.size = sizeof(stats)};
    struct {
        struct uringlet_stats known;
        uint64_t later;
    } future = {.known = {.size = sizeof(future)}, .later = 77};
    int fd = file_of("content", 7);
    struct uringlet *u;
    char buf[4];

    EQUAL(uringlet_create(&u, &options), 0);
    uringlet_prep_read(entry(u), fd, buf, 4, 0);
    EQUAL(result(u), 4);
    uringlet_prep_write(entry(u), fd, "abc", 3, 0);
    EQUAL(result(u), 3);
    uringlet_prep_fsync(entry(u), -1);
    EQUAL(result(u), -EBADF);
    EQUAL(uringlet_get_stats(u, &stats), 0);
    EQUAL(stats.size, sizeof(stats));
    EQUAL(stats.submitted, 3);
    EQUAL(stats.reads, 1);
    EQUAL(stats.writes, 1);
    EQUAL(stats.fsyncs, 1);
    EQUAL(stats.errors, 1);
    EQUAL(stats.bytes_read, 4);
    EQUAL(stats.bytes_written, 3);
    EQUAL(stats.by_program + stats.by_threads + stats.by_kernel, 3);
    /* A program with a smaller structure gets fewer members. A program with a larger structure
     * learns how many bytes are filled. */
    memset(&stats, 0xff, sizeof(stats));
    stats.size = 16;
    EQUAL(uringlet_get_stats(u, &stats), 0);
    EQUAL(stats.size, 16);
    EQUAL(stats.submitted, 3);
    EQUAL(stats.reads, UINT64_MAX);
    EQUAL(uringlet_get_stats(u, &future.known), 0);
    EQUAL(future.known.size, sizeof(stats));
    EQUAL(future.later, 77);
    stats.size = 7;
    EQUAL(uringlet_get_stats(u, &stats), -EINVAL);
    EQUAL(uringlet_get_stats(u, NULL), -EFAULT);
    EQUAL(uringlet_destroy(u, -1), 0);
    close(fd);
}

struct request {
    struct uringlet_handler handler;
    struct uringlet *u;
    int left;
};

static void again(struct uringlet_handler *handler, int32_t res)
{
    struct request *request = (struct request *)handler;

    EQUAL(res, 0);
    if (--request->left > 0) {
        struct uringlet_sqe *sqe = entry(request->u);

        uringlet_prep_nop(sqe);
        uringlet_sqe_set_data(sqe, handler);
    } else {
        /* The context is destroyed only by the last handler, because other handlers would find no
         * context. */
        EQUAL(uringlet_destroy(request->u, -1), 0);
    }
}

static void handlers(void)
{
    struct request request = {.handler = {again}, .u = context(2), .left = 100};
    struct uringlet_sqe *sqe = entry(request.u);
    int ret = 0;

    uringlet_prep_nop(sqe);
    uringlet_sqe_set_data(sqe, &request.handler);
    /* A request without a handler. */
    uringlet_prep_nop(entry(request.u));
    EQUAL(uringlet_run(request.u, 2, -1), 2);
    while (request.left > 0)
        ret += uringlet_run(request.u, 1, -1);
    EQUAL(ret, 99);
    EQUAL(uringlet_run(request.u, 1, -1), -EINVAL);
}

static void count(const struct uringlet_cqe *cqe, void *arg)
{
    uint64_t *sum = arg;

    *sum += cqe->user_data;
}

static void for_each(void)
{
    struct uringlet *u = context(8);
    uint64_t sum = 0;

    for (uint64_t at = 1; at <= 8; at++)
        uringlet_sqe_set_data64(entry(u), at);
    EQUAL(uringlet_submit(u), 8);
    EQUAL(uringlet_wait(u, 8, -1), 8);
    EQUAL(uringlet_for_each(u, 0, count, &sum), 0);
    EQUAL(uringlet_for_each(u, 3, count, &sum), 3);
    EQUAL(uringlet_for_each(u, UINT32_MAX, count, &sum), 5);
    EQUAL(sum, 36);
    EQUAL(uringlet_for_each(u, UINT32_MAX, count, &sum), 0);
    EQUAL(uringlet_destroy(u, -1), 0);
}

static void engines(void)
{
    const char *names[] = {"auto", "workers", "linux_aio", "io_uring", "null"};

    for (size_t at = 0; at < sizeof(names) / sizeof(*names); at++) {
        struct uringlet_options options = {.size = sizeof(options), .engine = names[at]};
        struct uringlet *u;
        int ret = uringlet_create(&u, &options);

        if (ret < 0) {
            /* A sandbox may refuse the kernel's engines. */
            CHECK(strstr(names[at], "_") && *uringlet_explain(NULL));
            continue;
        }
        CHECK(!strcmp(uringlet_engine(u), names[at]));
        EQUAL(strncmp(uringlet_explain(u), names[at], strlen(names[at])), 0);
        uringlet_prep_nop(entry(u));
        EQUAL(result(u), 0);
        EQUAL(uringlet_destroy(u, -1), 0);
    }
}

int main(void)
{
    room();
    destruction();
    read_many();
    statistics();
    handlers();
    for_each();
    engines();
    EQUAL(uringlet_version(), URINGLET_VERSION);
    return EXIT_SUCCESS;
}
