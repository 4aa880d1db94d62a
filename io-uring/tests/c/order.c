/* The order of completions. The completion of a cancel comes before those of the requests that it
 * cancels. The completion of a linked timeout comes before that of its target. Completions that the
 * end of a request causes come behind those of the entries of its batch. Nothing overtakes an
 * earlier completion. */
#define _GNU_SOURCE
#include "common.h"

enum kind { POLL, MULTISHOT, TIMEOUT, READ, KINDS };

static const char *const names[] = { "poll", "multishot poll", "timeout", "read" };
static const unsigned defers = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
static struct __kernel_timespec soon = { 0, 1000000 }, late = { 1000, 0 };
static struct io_uring ring;
static int ends[2];
static char buffer[16];

static struct io_uring_sqe *last;

static struct io_uring_sqe *next(unsigned long long user_data)
{
    last = entry(&ring, user_data);
    return last;
}

static void adds(enum kind kind, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = next(user_data);
    switch (kind) {
    case POLL:
        io_uring_prep_poll_add(sqe, ends[0], POLLIN);
        break;
    case MULTISHOT:
        io_uring_prep_poll_multishot(sqe, ends[0], POLLIN);
        break;
    case TIMEOUT:
        io_uring_prep_timeout(sqe, &late, 0, 0);
        break;
    default:
        io_uring_prep_read(sqe, ends[0], buffer, 4, 0);
    }
    sqe->user_data = user_data;
}

static void nop(unsigned long long user_data, unsigned flags)
{
    io_uring_prep_nop(next(user_data));
    last->user_data = user_data;
    last->flags |= flags;
}

static void cancels(unsigned long long of, unsigned long long user_data)
{
    io_uring_prep_cancel64(next(user_data), of, 0);
    last->user_data = user_data;
}

static void removes(enum kind kind, unsigned long long of, unsigned long long user_data)
{
    if (kind == TIMEOUT)
        io_uring_prep_timeout_remove(next(user_data), of, 0);
    else
        io_uring_prep_poll_remove(next(user_data), of);
    last->user_data = user_data;
}

/* Adds a linked timeout for the last entry, and two entries behind it. */
static void limited(struct __kernel_timespec *time)
{
    last->flags |= IOSQE_IO_LINK;
    io_uring_prep_link_timeout(next(2), time, 0);
    last->user_data = 2;
    last->flags |= IOSQE_IO_LINK;
    nop(3, 0);
    nop(4, 0);
}

/* Submits, and prints the `count` completions. */
static void prints(const char *what, int count)
{
    MUST(io_uring_submit(&ring) >= 0);
    completions(&ring, what, count);
}

static void targets(enum kind kind)
{
    printf("%s\n", names[kind]);
    MUST(pipe(ends) == 0);
    adds(kind, 1);
    MUST(io_uring_submit(&ring) == 1);
    cancels(1, 2);
    prints("cancel", 2);
    adds(kind, 1);
    cancels(1, 2);
    cancels(1, 3);
    nop(4, 0);
    prints("two cancels in a batch", 4);
    if (kind != READ) {
        adds(kind, 1);
        MUST(io_uring_submit(&ring) == 1);
        removes(kind, 1, 2);
        prints("remove", 2);
        adds(kind, 1);
        removes(kind, 1, 2);
        removes(kind, 1, 3);
        nop(4, 0);
        prints("two removes in a batch", 4);
    }
    if (kind != TIMEOUT) {
        adds(kind, 1);
        limited(&soon);
        prints("linked timeout", 4);
        adds(kind, 1);
        limited(&late);
        MUST(io_uring_submit(&ring) == 4);
        cancels(1, 5);
        prints("cancel of a target", 5);
    }
    if (kind == POLL || kind == READ) {
        adds(kind, 1);
        limited(&late);
        MUST(io_uring_submit(&ring) == 4 && write(ends[1], "abcd", 4) == 4);
        completions(&ring, "outrun", 4);
    }
    close(ends[0]);
    close(ends[1]);
}

/* One cancel ends a poll and reads, which wait. */
static void together(void)
{
    struct io_uring_cqe *cqe;
    MUST(pipe(ends) == 0);
    adds(READ, 1);
    adds(POLL, 2);
    adds(READ, 3);
    MUST(io_uring_submit(&ring) == 3);
    io_uring_prep_cancel64(next(4), 0, IORING_ASYNC_CANCEL_ANY);
    last->user_data = 4;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("cancel of all: first %llu gives %d\n", (unsigned long long)cqe->user_data, cqe->res);
    io_uring_cqe_seen(&ring, cqe);
    sorted(&ring, "cancel of all", 3);
    close(ends[0]);
    close(ends[1]);
}

static void batches(void)
{
    io_uring_prep_timeout(next(1), &late, 1, 0);
    last->user_data = 1;
    nop(2, 0);
    nop(3, 0);
    prints("timeout of one completion", 3);
    nop(1, IOSQE_IO_LINK);
    nop(2, IOSQE_IO_LINK);
    nop(3, 0);
    nop(4, 0);
    prints("links", 4);
    nop(1, 0);
    nop(2, IOSQE_IO_DRAIN);
    nop(3, 0);
    prints("drain", 3);
}

/* The last completion of a poll comes behind those of its events. */
static void events(void)
{
    struct __kernel_timespec none = { 0, 20000000 };
    struct io_uring_cqe *cqe;
    int is_over = 0, wrong = 0, seen = 0;
    for (int round = 0; round < 20; round++) {
        MUST(pipe(ends) == 0);
        adds(MULTISHOT, 1);
        MUST(io_uring_submit(&ring) == 1 && write(ends[1], "x", 1) == 1);
        usleep(2000);
        removes(MULTISHOT, 1, 2);
        MUST(io_uring_submit(&ring) == 1);
        for (is_over = 0; io_uring_wait_cqe_timeout(&ring, &cqe, &none) == 0; seen++) {
            wrong += is_over && cqe->user_data == 1;
            is_over |= cqe->user_data == 1 && !(cqe->flags & IORING_CQE_F_MORE);
            io_uring_cqe_seen(&ring, cqe);
        }
        /* In a ring with deferred task work, the kernel may refuse to remove a poll with a
         * pending event. */
        cancels(1, 3);
        MUST(io_uring_submit(&ring) == 1);
        while (io_uring_wait_cqe_timeout(&ring, &cqe, &none) == 0)
            io_uring_cqe_seen(&ring, cqe);
        close(ends[0]);
        close(ends[1]);
    }
    printf("events behind the last one: %d, %s\n", wrong, seen > 0 ? "some seen" : "none seen");
}

/* Chains with drains, and writes that another thread may execute. */
static void drained(void)
{
    int file = scratch(), wrong = 0;
    for (int round = 0; round < 300; round++) {
        char order[10] = "";
        for (int at = 0; at < 9; at++) {
            nop(at, 0);
            if (at == 0 || at == 6)
                io_uring_prep_write(last, file, "0123456789", 10, 0);
            last->user_data = at;
            last->flags |= at == 1 || at == 2 || (at >= 4 && at <= 6) ? IOSQE_IO_LINK : 0;
            last->flags |= at == 2 || at == 6 ? IOSQE_IO_DRAIN : 0;
        }
        MUST(io_uring_submit(&ring) == 9);
        for (int at = 0; at < 9; at++) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            order[at] = '0' + cqe->user_data;
            io_uring_cqe_seen(&ring, cqe);
        }
        wrong += strcmp(order, "012345678") != 0;
    }
    printf("chains out of order: %d\n", wrong);
    close(file);
}

int main(void)
{
    const unsigned flags[] = { 0, defers, IORING_SETUP_COOP_TASKRUN };
    for (int at = 0; at < 3; at++) {
        printf("flags %u\n", flags[at]);
        MUST(io_uring_queue_init(32, &ring, flags[at]) == 0);
        for (enum kind kind = POLL; kind < KINDS; kind++)
            targets(kind);
        together();
        batches();
        events();
        drained();
        io_uring_queue_exit(&ring);
    }
    return 0;
}
