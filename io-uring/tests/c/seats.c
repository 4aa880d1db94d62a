/* Threads that wait for data on sockets: one ring or several, one thread or several. They wait with
 * timeouts, masks, cancels and jumps, and while an epoll watches the ring. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ROUNDS = 200 };

static void receive(struct io_uring *ring, int fd, char *at, unsigned long long tag)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    io_uring_prep_recv(sqe, fd, at, 1, 0);
    sqe->user_data = tag;
}

static void asleep(pid_t thread)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    while (state != 'S') {
        FILE *file = fopen(path, "r");
        MUST(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        fclose(file);
        sched_yield();
    }
}

/* A server and a client. Each has a thread and a ring of its own, or both share one ring. */
static struct io_uring rings[2];
static int shared, pair[2];
static pthread_mutex_t submits = PTHREAD_MUTEX_INITIALIZER;
static int taken[2];

/* Waits for the completion of the request of thread `who`. Notes each completion that it takes in
 * `taken`, for both threads. */
static void own(struct io_uring *ring, int who)
{
    for (int done = 0; !done;) {
        struct io_uring_cqe *cqe;
        pthread_mutex_lock(&submits);
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            MUST(cqe->res == 1);
            taken[cqe->user_data] = 1;
            io_uring_cqe_seen(ring, cqe);
        }
        done = taken[who];
        taken[who] = 0;
        pthread_mutex_unlock(&submits);
        /* The other thread may have taken the completion, so a wait always has a timeout. */
        struct __kernel_timespec time = { .tv_nsec = shared ? 1000000 : 5000000000 / 10 };
        if (!done)
            io_uring_wait_cqes(ring, &cqe, 1, &time, NULL);
    }
}

static void *plays(void *arg)
{
    int who = (long)arg;
    struct io_uring *ring = &rings[shared ? 0 : who];
    char byte;
    for (int round = 0; round < ROUNDS; round++) {
        if (who == 0)
            MUST(write(pair[0], "x", 1) == 1);
        pthread_mutex_lock(&submits);
        receive(ring, pair[who], &byte, who);
        MUST(io_uring_submit(ring) == 1);
        pthread_mutex_unlock(&submits);
        own(ring, who);
        if (who == 1)
            MUST(write(pair[1], &byte, 1) == 1);
    }
    return NULL;
}

static void two_threads(int on_one_ring)
{
    pthread_t thread;
    shared = on_one_ring;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int at = 0; at < 2; at++)
        MUST(io_uring_queue_init(8, &rings[at], 0) == 0);
    MUST(pthread_create(&thread, NULL, plays, (void *)1) == 0);
    plays((void *)0);
    pthread_join(thread, NULL);
    for (int at = 0; at < 2; at++) {
        io_uring_queue_exit(&rings[at]);
        close(pair[at]);
    }
    printf("two threads, %s: %d rounds\n", shared ? "one ring" : "a ring each", ROUNDS);
}

static struct io_uring ring;
static pid_t waiter;
static sigset_t mask;
static int answer;

static void *waits(void *arg)
{
    struct io_uring_cqe *cqe;
    struct __kernel_timespec *time = arg;
    waiter = gettid();
    __atomic_store_n(&answer, 1, __ATOMIC_RELEASE);
    answer = time ? io_uring_wait_cqes(&ring, &cqe, 1, time, &mask)
                  : io_uring_wait_cqe(&ring, &cqe);
    return NULL;
}

static pthread_t begin(void *time)
{
    pthread_t thread;
    answer = 0;
    MUST(pthread_create(&thread, NULL, waits, time) == 0);
    while (!__atomic_load_n(&answer, __ATOMIC_ACQUIRE))
        sched_yield();
    asleep(waiter);
    return thread;
}

static void one_waits(void)
{
    pthread_t thread;
    char byte;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    receive(&ring, pair[0], &byte, 1);
    MUST(io_uring_submit(&ring) == 1);
    /* A wait with a timeout. */
    struct __kernel_timespec shortly = { .tv_nsec = 1000000 }, late = { .tv_sec = 1000 };
    struct io_uring_cqe *cqe;
    printf("nothing comes: %d\n", io_uring_wait_cqe_timeout(&ring, &cqe, &shortly));
    /* Another request of this ring ends. */
    thread = begin(NULL);
    io_uring_prep_nop(entry(&ring, 0));
    MUST(io_uring_submit(&ring) == 1);
    pthread_join(thread, NULL);
    printf("a nop ends the wait: %d\n", answer);
    completions(&ring, "nop", 1);
    /* A cancel ends the wait. */
    thread = begin(NULL);
    io_uring_prep_cancel64(entry(&ring, 0), 1, 0);
    MUST(io_uring_submit(&ring) == 1);
    pthread_join(thread, NULL);
    printf("a cancel ends the wait: %d\n", answer);
    sorted(&ring, "cancel", 2);
    /* Two waits under a mask that unblocks a signal: the signal ends one, and data the other. */
    receive(&ring, pair[0], &byte, 2);
    MUST(io_uring_submit(&ring) == 1);
    thread = begin(&late);
    MUST(pthread_kill(thread, SIGUSR1) == 0);
    pthread_join(thread, NULL);
    printf("a signal ends the wait: %d\n", answer);
    thread = begin(&late);
    MUST(write(pair[1], "x", 1) == 1);
    pthread_join(thread, NULL);
    printf("a byte ends the wait: %d\n", answer);
    completions(&ring, "byte", 1);
    /* An epoll watches the ring, and in some rounds a thread waits in the ring at the same time. */
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        receive(&ring, pair[0], &byte, 3);
        MUST(io_uring_submit(&ring) == 1);
        int waits = round % 4 == 0;
        if (waits)
            thread = begin(NULL);
        MUST(write(pair[1], "x", 1) == 1);
        MUST(epoll_wait(epoll, &event, 1, -1) == 1);
        if (waits)
            pthread_join(thread, NULL);
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 1);
        io_uring_cqe_seen(&ring, cqe);
    }
    close(epoll);
    /* The other socket of the pair is closed, which ends the wait. */
    receive(&ring, pair[0], &byte, 4);
    MUST(io_uring_submit(&ring) == 1);
    thread = begin(NULL);
    close(pair[1]);
    pthread_join(thread, NULL);
    completions(&ring, "end", 1);
    io_uring_queue_exit(&ring);
    close(pair[0]);
}

static sigjmp_buf back;

static void jump(int signal)
{
    siglongjmp(back, signal);
}

static void handler(int signal)
{
    (void)signal;
}

/* Leaves its wait by a jump. Afterwards, another thread takes completions, without a wait and with
 * one. */
static void *leaves(void *unused)
{
    struct io_uring_cqe *cqe;
    waiter = gettid();
    if (sigsetjmp(back, 1) == 0) {
        __atomic_store_n(&answer, 1, __ATOMIC_RELEASE);
        io_uring_wait_cqe(&ring, &cqe);
    }
    return unused;
}

static void jumps(void)
{
    struct io_uring_cqe *cqe;
    pthread_t thread;
    char byte;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    receive(&ring, pair[0], &byte, 1);
    MUST(io_uring_submit(&ring) == 1);
    answer = 0;
    MUST(pthread_create(&thread, NULL, leaves, NULL) == 0);
    while (!__atomic_load_n(&answer, __ATOMIC_ACQUIRE))
        sched_yield();
    asleep(waiter);
    MUST(pthread_kill(thread, SIGUSR2) == 0);
    pthread_join(thread, NULL);
    receive(&ring, pair[0], &byte, 2);
    MUST(io_uring_submit(&ring) == 1);
    for (int at = 0; at < 2; at++) {
        MUST(write(pair[1], "x", 1) == 1);
        /* The first time, the thread only looks into memory until the completion comes. The
         * second time, it waits. */
        while (at == 0 && io_uring_cq_ready(&ring) == 0)
            sched_yield();
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("after a jump: %d\n", cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
    close(pair[0]);
    close(pair[1]);
}

/* A call that neither submits nor waits sees what has come. */
static void nothing_to_do(unsigned flags)
{
    struct io_uring ring;
    int ends[2], seen = 0;
    char byte;
    MUST(io_uring_queue_init(4, &ring, flags) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct io_uring_cqe *cqe;
        receive(&ring, ends[0], &byte, round);
        MUST(io_uring_submit(&ring) == 1);
        MUST(write(ends[1], "x", 1) == 1);
        MUST(syscall(__NR_io_uring_enter, ring.ring_fd, 0, 0, 0, NULL, 0) == 0);
        seen += io_uring_cq_ready(&ring) == 1;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        MUST(cqe->res == 1 && cqe->user_data == (unsigned)round);
        io_uring_cqe_seen(&ring, cqe);
    }
    /* The drop-in's call does not see the completion each time: another thread may be about to post
     * it. */
    printf("nothing to do, flags %x: %s\n", flags, seen > ROUNDS / 2 ? "seen" : "not seen");
    io_uring_queue_exit(&ring);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    struct sigaction action = { .sa_handler = handler };
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    action.sa_handler = jump;
    MUST(sigaction(SIGUSR2, &action, NULL) == 0);
    /* The signal is unblocked only in waits with a mask. */
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    MUST(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
    sigemptyset(&mask);
    two_threads(0);
    two_threads(1);
    one_waits();
    jumps();
    nothing_to_do(0);
    nothing_to_do(IORING_SETUP_COOP_TASKRUN);
    return 0;
}
