/* Reads and writes of a file that are submitted together, with bad ones among them. */
#define _GNU_SOURCE
#include "common.h"

static struct io_uring ring;
static int file, counter;
static char text[8][8], found[8];
static struct iovec good = { found, 8 }, bad = { found, (size_t)-1 };

static struct io_uring_sqe *add(int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->user_data = user_data;
    return sqe;
}

static void writes(int user_data, const char *what)
{
    struct io_uring_sqe *sqe = add(user_data);
    io_uring_prep_write(sqe, file, memcpy(text[user_data], what, 8), 8, 0);
    sqe->user_data = user_data;
}

static void reads(int user_data)
{
    struct io_uring_sqe *sqe = add(user_data);
    io_uring_prep_read(sqe, file, found, 8, 0);
    sqe->user_data = user_data;
}

static void vector(int user_data, int write, const void *parts, unsigned count)
{
    struct io_uring_sqe *sqe = add(user_data);
    if (write)
        io_uring_prep_writev(sqe, file, parts, count, 0);
    else
        io_uring_prep_readv(sqe, file, parts, count, 0);
    sqe->user_data = user_data;
}

static void submit(const char *what, int ends)
{
    int first = io_uring_submit(&ring), second = io_uring_submit(&ring);
    printf("%s: submits %d, then %d\n", what, first, second);
    sorted(&ring, what, ends);
}

static void with_bad_ones(void)
{
    const struct { const char *name; const void *parts; unsigned count; } all[] = {
        { "unreadable", (void *)1, 1 }, { "too long", &bad, 1 }, { "too many", &good, 1025 },
        { "unreadable, two", (void *)8, 2 }, { "none", &good, 0 }, { "a good one", &good, 1 },
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        for (int write = 0; write < 2; write++) {
            vector(1, write, all[at].parts, all[at].count), reads(2);
            submit(all[at].name, 2);
            reads(1), vector(2, write, all[at].parts, all[at].count), reads(3);
            submit(all[at].name, 3);
        }
    }
    reads(1), add(2)->opcode = 200, reads(3);
    submit("an unknown operation", 3);
    reads(1), reads(2), add(3)->flags = 0x80, writes(4, "behind  ");
    submit("an unknown flag", 4);
    struct io_uring_sqe *sqe = add(2);
    reads(1), io_uring_prep_write(sqe, -1, text, 8, 0), sqe->user_data = 2;
    submit("no descriptor", 2);
}

static void in_order(int times)
{
    for (int at = 0; at < times; at++) {
        memset(found, 0, sizeof found);
        writes(1, "first   "), writes(2, "second  "), writes(3, "third   ");
        MUST(io_uring_submit_and_wait(&ring, 3) == 3);
        io_uring_cq_advance(&ring, 3);
        for (int read = 4; read < 8; read++)
            reads(read);
        MUST(io_uring_submit_and_wait(&ring, 4) == 4);
        io_uring_cq_advance(&ring, 4);
    }
    printf("%.8s, %u more\n", found, io_uring_cq_ready(&ring));
}

/* An eventfd is counted up once for completions that are posted together. */
static void told(void)
{
    unsigned long long count;
    MUST(io_uring_register_eventfd(&ring, counter) == 0);
    for (int read = 0; read < 8; read++)
        reads(read);
    MUST(io_uring_submit_and_wait(&ring, 8) == 8);
    sorted(&ring, "told", 8);
    MUST(read(counter, &count, sizeof count) == sizeof count);
    printf("told %llu times\n", count);
    MUST(io_uring_unregister_eventfd(&ring) == 0);
}

int main(void)
{
    const unsigned flags[] = { 0, IORING_SETUP_SUBMIT_ALL,
                               IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };
    MUST((file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    MUST((counter = eventfd(0, EFD_CLOEXEC)) >= 0);
    for (unsigned at = 0; at < sizeof flags / sizeof *flags; at++) {
        MUST(io_uring_queue_init(16, &ring, flags[at]) == 0);
        writes(1, "contents");
        submit("a write", 1);
        in_order(20);
        with_bad_ones();
        in_order(200);
        told();
        io_uring_queue_exit(&ring);
    }
    return 0;
}
