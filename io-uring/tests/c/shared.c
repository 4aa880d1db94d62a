/* Rings that were made before a fork, in shared memory. The owner is the process that executes a
 * ring's requests. Children submit, other processes wait and reap, and another process replaces an
 * idle owner. */
#define _GNU_SOURCE
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct io_uring *shared_ring(unsigned entries)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    MUST(io_uring_queue_init(entries, at, 0) == 0);
    return at;
}

static void ended(pid_t pid)
{
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void submit_read(struct io_uring *ring, int fd, void *to, unsigned len, int flags,
                        unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    io_uring_prep_read(sqe, fd, to, len, 0);
    sqe->flags = flags;
    sqe->user_data = user_data;
    MUST(io_uring_submit(ring) == 1);
}

static void tell(int fd)
{
    MUST(write(fd, "x", 1) == 1);
}

static void hear(int fd)
{
    char byte;
    MUST(read(fd, &byte, 1) == 1);
}

/* One process submits, and then does other work; another process waits and reaps. The memory and
 * the descriptor of the request belong to the submitter. */
static void foreign_waiter(struct io_uring *ring)
{
    int file = scratch(), told[2], over[2];
    MUST(pwrite(file, "0123456789", 10, 0) == 10 && pipe(told) == 0 && pipe(over) == 0);
    pid_t submits = fork();
    if (submits == 0) {
        char *own = malloc(1 << 20);
        int other = scratch();
        MUST(own && pwrite(other, "abcd", 4, 0) == 4);
        submit_read(ring, file, own, 100, 0, 1);
        submit_read(ring, other, own + 100, 100, 0, 2);
        submit_read(ring, file, own + 200, 5, IOSQE_ASYNC, 3);
        struct iovec parts[2] = { { own + 300, 3 }, { own + 400, 3 } };
        struct io_uring_sqe *sqe = entry(ring, 0);
        io_uring_prep_readv(sqe, file, parts, 2, 0);
        sqe->user_data = 4;
        MUST(io_uring_submit(ring) == 1);
        hear(over[0]);
        MUST(memcmp(own, "0123456789", 10) == 0 && memcmp(own + 100, "abcd", 4) == 0);
        MUST(memcmp(own + 200, "01234", 5) == 0);
        MUST(memcmp(own + 300, "012", 3) == 0 && memcmp(own + 400, "345", 3) == 0);
        _exit(0);
    }
    pid_t waits = fork();
    if (waits == 0) {
        sorted(ring, "reaped by another", 4);
        fflush(stdout);
        _exit(0);
    }
    ended(waits);
    tell(over[1]);
    ended(submits);
}

/* Processes use the ring in turns. */
static void turns(struct io_uring *ring)
{
    enum { TURNS = 200, EACH = 7 };
    int ball[2][2];
    MUST(pipe(ball[0]) == 0 && pipe(ball[1]) == 0);
    int *sum = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(sum != MAP_FAILED);
    pid_t players[2];
    for (int who = 0; who < 2; who++) {
        players[who] = fork();
        if (players[who] != 0)
            continue;
        for (int turn = 0; turn < TURNS; turn++) {
            hear(ball[who][0]);
            for (int at = 0; at < EACH; at++) {
                struct io_uring_sqe *sqe = entry(ring, 0);
                io_uring_prep_nop(sqe);
                sqe->user_data = turn * EACH + at;
            }
            MUST(io_uring_submit_and_wait(ring, EACH) == EACH);
            for (int at = 0; at < EACH; at++) {
                struct io_uring_cqe *cqe;
                MUST(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == 0);
                *sum += cqe->user_data;
                io_uring_cqe_seen(ring, cqe);
            }
            if (turn + 1 < TURNS || who == 0)
                tell(ball[!who][1]);
        }
        _exit(0);
    }
    tell(ball[0][1]);
    ended(players[0]);
    ended(players[1]);
    printf("turns: %d\n", *sum);
}

/* A child waits with a timeout, also under a signal mask, while no request is in flight. */
static void nothing_comes(struct io_uring *ring)
{
    pid_t child = fork();
    if (child == 0) {
        struct __kernel_timespec time = { .tv_nsec = 1000000 };
        struct io_uring_cqe *cqe;
        sigset_t all;
        sigfillset(&all);
        printf("nothing in time: %d\n", io_uring_wait_cqe_timeout(ring, &cqe, &time));
        printf("nor under a mask: %d\n", io_uring_wait_cqes(ring, &cqe, 1, &time, &all));
        printf("peeked: %d\n", io_uring_peek_cqe(ring, &cqe));
        fflush(stdout);
        _exit(0);
    }
    ended(child);
}

/* A request stays in flight while its owner lives, however long another process waits for it. */
static void owner_lives(struct io_uring *ring)
{
    int data[2], told[2], over[2];
    MUST(pipe(data) == 0 && pipe(told) == 0 && pipe(over) == 0);
    fflush(stdout);
    pid_t owner = fork();
    if (owner == 0) {
        static char own[8];
        submit_read(ring, data[0], own, sizeof own, 0, 1);
        tell(told[1]);
        hear(over[0]);
        _exit(0);
    }
    hear(told[0]);
    struct __kernel_timespec time = { .tv_nsec = 100000000 };
    struct io_uring_cqe *cqe;
    printf("before there is data: %d\n", io_uring_wait_cqe_timeout(ring, &cqe, &time));
    tell(data[1]);
    completions(ring, "then", 1);
    tell(over[1]);
    ended(owner);
}

/* More completions than the ring holds: the owner does other work, and another process reaps. */
static void overflows(struct io_uring *ring)
{
    int over[2];
    MUST(pipe(over) == 0);
    pid_t submits = fork();
    if (submits == 0) {
        for (int at = 0; at < 40; at++) {
            struct io_uring_sqe *sqe = entry(ring, 0);
            io_uring_prep_nop(sqe);
            sqe->user_data = at;
            if (at % 8 == 7)
                MUST(io_uring_submit(ring) == 8);
        }
        hear(over[0]);
        _exit(0);
    }
    pid_t reaps = fork();
    if (reaps == 0) {
        int sum = 0;
        for (int at = 0; at < 40; at++) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == 0);
            sum += cqe->user_data;
            io_uring_cqe_seen(ring, cqe);
        }
        printf("more than the ring holds: %d\n", sum);
        fflush(stdout);
        _exit(0);
    }
    ended(reaps);
    tell(over[1]);
    ended(submits);
}

/* Three processes wait for the requests of a fourth one, each for a number of completions. */
static void crowd(struct io_uring *ring)
{
    enum { REQUESTS = 3000, WAITERS = 3 };
    struct counts {
        int taken, lock, sum;
    } *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(counts != MAP_FAILED);
    int file = scratch();
    MUST(pwrite(file, "0123456789", 10, 0) == 10);
    pid_t waiters[WAITERS];
    for (int who = 0; who < WAITERS; who++) {
        waiters[who] = fork();
        if (waiters[who] != 0)
            continue;
        for (;;) {
            while (__atomic_exchange_n(&counts->lock, 1, __ATOMIC_ACQUIRE))
                sched_yield();
            int left = REQUESTS - counts->taken;
            if (left > 0) {
                struct io_uring_cqe *cqe;
                MUST(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == 10);
                counts->sum += cqe->user_data;
                io_uring_cqe_seen(ring, cqe);
                __atomic_store_n(&counts->taken, counts->taken + 1, __ATOMIC_RELEASE);
            }
            __atomic_store_n(&counts->lock, 0, __ATOMIC_RELEASE);
            if (left <= 0)
                _exit(0);
        }
    }
    pid_t owner = fork();
    if (owner == 0) {
        char own[16];
        for (int at = 0; at < REQUESTS; at++) {
            while (at - __atomic_load_n(&counts->taken, __ATOMIC_ACQUIRE) >= 8)
                sched_yield();
            submit_read(ring, file, own, 16, at % 3 ? 0 : IOSQE_ASYNC, at % 100);
        }
        while (__atomic_load_n(&counts->taken, __ATOMIC_ACQUIRE) < REQUESTS)
            sched_yield();
        _exit(0);
    }
    ended(owner);
    for (int who = 0; who < WAITERS; who++)
        ended(waiters[who]);
    printf("crowd: %d, %d\n", counts->taken, counts->sum);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    struct io_uring *ring = shared_ring(8);
    foreign_waiter(ring);
    turns(ring);
    fflush(stdout);
    nothing_comes(ring);
    owner_lives(ring);
    overflows(ring);
    crowd(ring);
    /* The last part runs in the process that made the ring. */
    completions(ring, "nothing is left", 0);
    io_uring_queue_exit(ring);
    return 0;
}
