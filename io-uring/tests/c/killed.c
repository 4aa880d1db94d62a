/* Owners of a shared ring are killed. The owner is the process that executes the ring's requests.
 * First, requests of a killed owner end for a process that waits. Then owners are killed at any
 * step, one after the other, while another process reaps. Each entry of the queue has one
 * completion. The argument is the number of owners. */
#define _GNU_SOURCE
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { ENTRIES = 64, MOST = 40 };

static struct shared {
    struct io_uring ring;
    /* The number of entries queued, and of completions reaped. */
    unsigned queued, reaped;
    int begun;
} *shared;

static int file, quiet;

static void queue(unsigned at)
{
    static char own[64];
    /* Takes the entry by its index. A killed owner may have got an entry from liburing without
     * queuing it. */
    struct io_uring_sq *sq = &shared->ring.sq;
    struct io_uring_sqe *sqe = &sq->sqes[at & sq->ring_mask];
    memset(sqe, 0, sizeof *sqe);
    if (at % 7 == 3)
        io_uring_prep_poll_add(sqe, quiet, POLLIN);
    else if (at % 3 == 1)
        io_uring_prep_nop(sqe);
    else
        io_uring_prep_read(sqe, file, own, sizeof own, 0);
    if (at % 5 == 2)
        sqe->flags |= IOSQE_ASYNC;
    sqe->user_data = at;
    sq->array[at & sq->ring_mask] = at & sq->ring_mask;
    __atomic_store_n(sq->ktail, at + 1, __ATOMIC_RELEASE);
}

static void own(void)
{
    struct io_uring_sq *sq = &shared->ring.sq;
    unsigned left = MOST;
    shared->begun = 1;
    for (;;) {
        unsigned tail = *sq->ktail;
        unsigned waits = tail - __atomic_load_n(sq->khead, __ATOMIC_ACQUIRE);
        if (left > 0 && waits < 4
            && tail - __atomic_load_n(&shared->reaped, __ATOMIC_ACQUIRE) < ENTRIES) {
            queue(tail);
            __atomic_store_n(&shared->queued, tail + 1, __ATOMIC_RELEASE);
            left--;
            waits++;
        }
        if (waits > 0)
            MUST(io_uring_enter(shared->ring.ring_fd, waits, 0, 0, NULL) >= 0);
    }
}

static unsigned reap(unsigned char *seen, unsigned most)
{
    struct io_uring_cqe *cqe;
    unsigned count = 0;
    while (io_uring_peek_cqe(&shared->ring, &cqe) == 0) {
        MUST(cqe->user_data < most && !seen[cqe->user_data]);
        MUST(cqe->res >= 0 || cqe->res == -ECANCELED || cqe->res == -EINTR);
        seen[cqe->user_data] = 1;
        io_uring_cqe_seen(&shared->ring, cqe);
        __atomic_store_n(&shared->reaped, shared->reaped + 1, __ATOMIC_RELEASE);
        count++;
    }
    return count;
}

static void ended(pid_t pid)
{
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
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

/* An owner with requests in flight is killed: before another process waits, or while it waits. */
static void waited_for(struct io_uring *ring)
{
    int told[2], quiet[2];
    MUST(pipe(told) == 0 && pipe(quiet) == 0);
    for (int waits = 0; waits < 2; waits++) {
        fflush(stdout);
        pid_t owner = fork();
        if (owner == 0) {
            for (int at = 0; at < 3; at++) {
                struct io_uring_sqe *sqe = entry(ring, 0);
                io_uring_prep_poll_add(sqe, quiet[0], POLLIN);
                sqe->user_data = 10 + at;
            }
            MUST(io_uring_submit(ring) == 3);
            tell(told[1]);
            for (;;)
                pause();
        }
        hear(told[0]);
        pid_t waiter = 0;
        if (waits) {
            waiter = fork();
            if (waiter == 0) {
                tell(told[1]);
                sorted(ring, "left behind, waited for", 3);
                fflush(stdout);
                _exit(0);
            }
            hear(told[0]);
        }
        MUST(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
        if (waits)
            ended(waiter);
        else
            sorted(ring, "left behind", 3);
        struct io_uring_sqe *sqe = entry(ring, 0);
        io_uring_prep_nop(sqe);
        sqe->user_data = 1;
        MUST(io_uring_submit_and_wait(ring, 1) == 1);
        completions(ring, "adopted", 1);
    }
}

int main(int argc, char **argv)
{
    unsigned owners = argc > 1 ? atoi(argv[1]) : 100, most = owners * (MOST + 1), ends[2];
    unsigned char *seen = calloc(most, 1);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    file = scratch();
    MUST(seen && shared != MAP_FAILED && pipe((int *)ends) == 0);
    MUST(pwrite(file, "0123456789", 10, 0) == 10);
    quiet = ends[0];
    MUST(io_uring_queue_init(8, &shared->ring, 0) == 0);
    waited_for(&shared->ring);
    io_uring_queue_exit(&shared->ring);
    fflush(stdout);
    MUST(io_uring_queue_init(ENTRIES, &shared->ring, 0) == 0);
    srand(1);
    for (unsigned at = 0; at < owners; at++) {
        shared->begun = 0;
        pid_t owner = fork();
        MUST(owner >= 0);
        if (owner == 0)
            own();
        while (!__atomic_load_n(&shared->begun, __ATOMIC_ACQUIRE))
            sched_yield();
        for (int spins = rand() % 20; spins > 0; spins--) {
            reap(seen, most);
            sched_yield();
        }
        MUST(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
    }
    /* This process submits the entries that the last owner has left: polls of these entries stay
     * in flight. */
    unsigned tail = *shared->ring.sq.ktail, waits = tail - *shared->ring.sq.khead, stay = 0;
    int taken = io_uring_enter(shared->ring.ring_fd, waits, 0, 0, NULL);
    /* The last owner may have taken entries without moving the queue's head. Those entries are not
     * submitted again. */
    MUST(taken >= 0 && taken <= (int)waits);
    waits = taken;
    for (unsigned at = tail - waits; at != tail; at++)
        stay += at % 7 == 3;
    struct __kernel_timespec time = { .tv_sec = 20 };
    struct io_uring_cqe *cqe;
    while (shared->reaped + stay < tail)
        MUST(reap(seen, most) > 0 || io_uring_wait_cqe_timeout(&shared->ring, &cqe, &time) == 0);
    MUST(reap(seen, most) == 0);
    for (unsigned at = 0; at != tail; at++)
        MUST(seen[at] || (at % 7 == 3 && at >= tail - waits));
    printf("done\n");
    return 0;
}
