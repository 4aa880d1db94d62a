/* MSG_RING: one ring sends completions and registered files to another. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>

enum { DATA, FILES, SKIP = 1, PASS = 2, ANY = -1 };

static struct io_uring from, to;

static struct io_uring_sqe *parcel(int fd, int kind, unsigned flags, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&from, user_data);
    io_uring_prep_rw(IORING_OP_MSG_RING, sqe, fd, (void *)(long)kind, 0, 0);
    sqe->rw_flags = flags;
    sqe->user_data = user_data;
    return sqe;
}

static struct io_uring_sqe *data(int fd, int result, unsigned long long told,
                                 unsigned long long user_data)
{
    struct io_uring_sqe *sqe = parcel(fd, DATA, 0, user_data);
    sqe->len = result;
    sqe->off = told;
    return sqe;
}

/* Sends the file in slot `slot`. `target` is the number of the other ring's slot, plus one. */
static struct io_uring_sqe *file(int slot, int target, unsigned flags, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = parcel(to.ring_fd, FILES, flags, user_data);
    sqe->off = 1000 + user_data;
    ((__u64 *)sqe)[6] = slot;
    sqe->file_index = target;
    return sqe;
}

/* Submits, and prints what came to both rings, and how many completions are left in each. */
static void both(const char *what, int sent, int received)
{
    MUST(io_uring_submit(&from) > 0);
    sorted(&from, what, sent);
    completions(&to, what, received);
}

static void refusals(void)
{
    printf("[refusals]\n");
    parcel(-1, DATA, 0, 1);
    parcel(0, DATA, 0, 2);
    parcel(to.ring_fd, 2, 0, 3);
    parcel(to.ring_fd, DATA, 4, 4);
    both("bad", 4, 0);
    parcel(to.ring_fd, DATA, 0, 5)->buf_index = 1;
    both("a buffer", 1, 0);
    parcel(to.ring_fd, DATA, 0, 6)->ioprio = 1;
    both("a priority", 1, 0);
    parcel(to.ring_fd, DATA, 0, 7)->file_index = 1;
    ((__u64 *)parcel(to.ring_fd, DATA, 0, 8))[6] = 1;
    parcel(to.ring_fd, DATA, SKIP, 9);
    both("not of data", 3, 0);
    file(0, 1, 0, 10)->len = 1;
    file(0, 1, 0, 11);
    both("no tables", 2, 0);
    struct io_uring_sqe *sqe = parcel(from.ring_fd, FILES, 0, 12);
    sqe->file_index = 1;
    both("a file to itself", 1, 0);
}

static void messages(void)
{
    printf("[data]\n");
    data(to.ring_fd, 7, 1001, 1);
    data(to.ring_fd, -8, 1002, 2);
    data(to.ring_fd, 0, 0, 3);
    both("three", 3, 3);
    struct io_uring_sqe *sqe = data(to.ring_fd, 9, 1003, 4);
    sqe->rw_flags = PASS;
    sqe->file_index = 0x30001;
    both("with flags", 1, 1);
    data(to.ring_fd, 10, 1004, 5)->flags |= IOSQE_CQE_SKIP_SUCCESS;
    both("skipped here", 0, 1);
    data(to.ring_fd, 11, 1005, 6)->flags |= IOSQE_IO_LINK;
    data(-1, 12, 1006, 7)->flags |= IOSQE_IO_LINK;
    data(to.ring_fd, 13, 1007, 8);
    both("a broken chain", 3, 1);
    /* A message of a ring to itself. */
    data(from.ring_fd, 14, 1008, 9);
    MUST(io_uring_submit(&from) == 1);
    sorted(&from, "to itself", 2);
    /* More messages than the ring has room for. */
    for (int round = 0; round < 6; round++) {
        for (int at = 0; at < 8; at++)
            data(to.ring_fd, 8 * round + at, 2000, at)->flags |= IOSQE_IO_LINK;
        MUST(io_uring_submit(&from) == 8);
        sorted(&from, "many", 8);
    }
    completions(&to, "many", 48);
    /* A message to a copy of the ring's descriptor, and one after the copy was closed. */
    int copy = dup(to.ring_fd);
    data(copy, 15, 1009, 10);
    both("a copy", 1, 1);
    close(copy);
    data(copy, 16, 1010, 11);
    both("closed", 1, 0);
}

static void files(void)
{
    int ends[2], list[3] = { -1, -1, -1 }, numbers[2];
    char got[8] = { 0 };
    printf("[files]\n");
    MUST(pipe(ends) == 0);
    numbers[0] = ends[0];
    numbers[1] = -1;
    MUST(io_uring_register_files(&from, numbers, 2) == 0);
    MUST(io_uring_register_files(&to, list, 3) == 0);
    file(1, 1, 0, 1);
    file(7, 1, 0, 2);
    file(0, 9, 0, 3);
    both("no such slot", 3, 0);
    file(0, 2, 0, 4);
    both("into a slot", 1, 1);
    file(0, ANY, 0, 5);
    both("into any", 1, 1);
    file(0, ANY, SKIP, 6);
    both("without a word", 1, 0);
    file(0, ANY, 0, 7);
    both("all are full", 1, 0);
    MUST(io_uring_unregister_files(&from) == 0);
    close(ends[0]);
    MUST(write(ends[1], "passed", 6) == 6);
    struct io_uring_sqe *sqe = entry(&to, 0);
    io_uring_prep_read(sqe, 1, got, 6, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    MUST(io_uring_submit(&to) == 1);
    completions(&to, "read", 1);
    printf("text %s\n", got);
    MUST(io_uring_unregister_files(&to) == 0);
    close(ends[1]);
}

static void *waits(void *ring)
{
    completions(ring, "waited", 1);
    return NULL;
}

/* Messages to rings of each mode. On the rings of the first three modes, another thread waits. */
static void modes(void)
{
    static const unsigned kinds[] = { 0, IORING_SETUP_COOP_TASKRUN, IORING_SETUP_SINGLE_ISSUER,
                                      IORING_SETUP_R_DISABLED };
    for (int at = 0; at < 4; at++) {
        struct io_uring other;
        pthread_t thread;
        printf("[mode %d]\n", at);
        MUST(io_uring_queue_init(4, &other, kinds[at]) == 0);
        if (at < 3)
            MUST(pthread_create(&thread, NULL, waits, &other) == 0);
        data(other.ring_fd, 1, 1000, at);
        MUST(io_uring_submit(&from) == 1);
        if (at < 3)
            MUST(pthread_join(thread, NULL) == 0);
        completions(&from, "sent", 1);
        io_uring_queue_exit(&other);
    }
    struct io_uring deferred;
    MUST(io_uring_queue_init(4, &deferred,
                             IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
    data(deferred.ring_fd, 2, 1001, 9);
    MUST(io_uring_submit(&from) == 1);
    completions(&from, "to one that defers", 1);
    printf("before: %u\n", io_uring_cq_ready(&deferred));
    completions(&deferred, "deferred", 1);
    io_uring_queue_exit(&deferred);
}

enum { EACH = 2000 };

/* Two threads send to each other's ring. */
static void *plays(void *rings)
{
    struct io_uring **pair = rings;
    int sent = 0, got = 0, answered = 0;
    while (got < EACH || answered < EACH) {
        if (sent < EACH) {
            struct io_uring_sqe *sqe = entry(pair[0], 0);
            io_uring_prep_rw(IORING_OP_MSG_RING, sqe, pair[1]->ring_fd, NULL, ++sent, 1);
            sqe->user_data = 2;
            MUST(io_uring_submit(pair[0]) == 1);
        }
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(pair[0], &cqe) == 0);
        if (cqe->user_data == 1)
            MUST(cqe->res == ++got);
        else
            MUST(cqe->res == 0 && ++answered);
        io_uring_cqe_seen(pair[0], cqe);
    }
    return NULL;
}

static void cross(void)
{
    struct io_uring *forth[2] = { &from, &to }, *back[2] = { &to, &from };
    pthread_t one, other;
    printf("[cross]\n");
    MUST(pthread_create(&one, NULL, plays, forth) == 0);
    MUST(pthread_create(&other, NULL, plays, back) == 0);
    MUST(pthread_join(one, NULL) == 0 && pthread_join(other, NULL) == 0);
    printf("%d each\n", EACH);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &from, 0) == 0 && io_uring_queue_init(8, &to, 0) == 0);
    refusals();
    messages();
    files();
    modes();
    cross();
    io_uring_queue_exit(&to);
    io_uring_queue_exit(&from);
    return 0;
}
