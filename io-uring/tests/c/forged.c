/* A thread writes random bytes all over the memory of a ring while another thread enters the
 * ring. Or another process writes them over all memory that both processes share. That memory
 * includes pages of the library.
 *
 *   forged [SECONDS [SEED]]     300 rings, unless a time is given */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static struct io_uring ring;
static volatile int over;
static pid_t self;
static int begins[2];
static unsigned long long state = 88172645463325252ull;

static unsigned long long next(unsigned long long *from)
{
    *from ^= *from << 13;
    *from ^= *from >> 7;
    *from ^= *from << 17;
    return *from;
}

static void *scribble(void *unused)
{
    unsigned long long mine = state | 1;
    (void)unused;
    while (!over) {
        unsigned char *rings = ring.sq.ring_ptr, *sqes = (unsigned char *)ring.sq.sqes;
        rings[next(&mine) % 64] = next(&mine);
        rings[next(&mine) % ring.sq.ring_sz] = next(&mine);
        sqes[next(&mine) % (64 * 8)] = next(&mine);
    }
    return NULL;
}

/* Writes random words over all shared memory, in the child of a fork. The child reports when it
 * begins. */
static void scribble_over_all(int begins)
{
    enum { MOST = 64 };
    static struct { unsigned long long *at; unsigned long words; } shared[MOST];
    unsigned long long mine = state | 1;
    int count = 0;
    char line[512];
    io_uring_enter(ring.ring_fd, 0, 0, 0, NULL);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && count < MOST && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, " rw-s ") && strstr(line, "/dev/zero")
            && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            shared[count].at = (unsigned long long *)from;
            shared[count++].words = (to - from) / 8;
        }
    }
    MUST(write(begins, "x", 1) == 1);
    for (;;)
        for (int at = 0; at < count; at++) {
            shared[at].at[next(&mine) % shared[at].words] = next(&mine) >> next(&mine) % 64;
            shared[at].at[next(&mine) % 8] ^= 1ull << next(&mine) % 64;
        }
}

/* A drain that never ends stops the ring, so the test uses many rings. */
static void one_ring(char *page)
{
    pthread_t thread;
    char byte;
    /* All layouts of a ring's memory, and all ways to post completions. */
    static const unsigned shapes[] = {
        0, IORING_SETUP_CQE32, IORING_SETUP_SQE128, IORING_SETUP_SQE128 | IORING_SETUP_CQE32,
        IORING_SETUP_SQPOLL, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    unsigned shape = shapes[next(&state) % (sizeof shapes / sizeof *shapes)];
    unsigned entries = 8u << next(&state) % 4;
    MUST(io_uring_queue_init(entries, &ring, IORING_SETUP_SUBMIT_ALL | shape) == 0);
    over = 0;
    unsigned *tail = ring.sq.ktail, *head = ring.cq.khead;
    pid_t other = next(&state) % 4 == 0 ? fork() : 0;
    if (other == 0 && getpid() != self)
        scribble_over_all(begins[1]);
    if (other == 0)
        MUST(pthread_create(&thread, NULL, scribble, NULL) == 0);
    else
        MUST(read(begins[0], &byte, 1) == 1);
    for (int lap = 0; lap < 200; lap++) {
        struct io_uring_sqe *sqe = &ring.sq.sqes[lap % 8];
        for (int at = 0; at < 8; at++)
            ((unsigned long long *)sqe)[at] = next(&state);
        /* These operations resolve no names, and so cannot hang. The address is that of the
         * test's page, and the descriptor is -1. */
        static const unsigned char some[] = {
            IORING_OP_NOP,          IORING_OP_READV,          IORING_OP_POLL_ADD,
            IORING_OP_TIMEOUT,      IORING_OP_TIMEOUT_REMOVE, IORING_OP_ASYNC_CANCEL,
            IORING_OP_LINK_TIMEOUT, IORING_OP_POLL_REMOVE,    IORING_OP_FSYNC,
            IORING_OP_READ_FIXED,   IORING_OP_FILES_UPDATE};
        sqe->opcode = some[next(&state) % sizeof some];
        sqe->fd = -1;
        sqe->addr = (unsigned long long)page;
        sqe->flags &= IOSQE_IO_LINK | IOSQE_IO_HARDLINK | IOSQE_IO_DRAIN | IOSQE_CQE_SKIP_SUCCESS;
        *tail += 1 + next(&state) % 3;
        if (next(&state) % 2)
            *head += next(&state) % 4;
        struct io_uring_getevents_arg arg = {
            .ts = (unsigned long long)&(struct __kernel_timespec){0, 1000}};
        io_uring_enter2(ring.ring_fd, next(&state) % 9, next(&state) % 3,
                        IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, (void *)&arg, sizeof arg);
    }
    over = 1;
    if (other == 0)
        MUST(pthread_join(thread, NULL) == 0);
    else
        MUST(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    io_uring_queue_exit(&ring);
}

int main(int count, char **arguments)
{
    time_t end = time(NULL) + (count > 1 ? atol(arguments[1]) : 0);
    if (count > 2)
        state ^= strtoull(arguments[2], NULL, 10) * 0x9e3779b97f4a7c15ull;
    long rings = 0;
    self = getpid();
    MUST(pipe(begins) == 0);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(page != MAP_FAILED);
    for (; count > 1 ? time(NULL) < end : rings < 300; rings++)
        one_ring(page);
    if (count > 1)
        printf("%ld rings\n", rings);
    /* A new ring still works. */
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_nop(sqe);
    MUST(io_uring_submit_and_wait(&ring, 1) == 1);
    completions(&ring, "nop", 1);
    io_uring_queue_exit(&ring);
    printf("done\n");
    return 0;
}
