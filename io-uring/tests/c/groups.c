/* Two threads receive into buffers of one group: no buffer is given twice, and none is lost. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { THREADS = 2, PAIRS = 8, BUFFERS = 4, SIZE = 64, ROUNDS = 300, GROUP = 3, PROVIDES = 1000 };

static struct io_uring ring;
static struct io_uring_buf_ring *buffers;
static char memory[BUFFERS][SIZE];
static int pairs[THREADS * PAIRS][2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int taken[BUFFERS], twice, wrong, received;
static atomic_ullong sum;

/* The caller has the lock. */
static void receive(int pair)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_recv(sqe, pairs[pair][1], NULL, SIZE, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    sqe->user_data = pair;
    MUST(io_uring_submit(&ring) == 1);
}

/* The caller has the lock. */
static void give_back(int number)
{
    if (atomic_exchange(&taken[number], 0) != 1)
        wrong++;
    if (buffers) {
        io_uring_buf_ring_add(buffers, memory[number], SIZE, number,
                              io_uring_buf_ring_mask(BUFFERS), 0);
        io_uring_buf_ring_advance(buffers, 1);
        return;
    }
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_provide_buffers(sqe, memory[number], SIZE, 1, GROUP, number);
    sqe->user_data = PROVIDES;
    MUST(io_uring_submit(&ring) == 1);
}

/* The caller has the lock. */
static void ended(const struct io_uring_cqe *cqe)
{
    unsigned long long value;
    if (cqe->user_data == PROVIDES) {
        wrong += cqe->res != 0;
        return;
    }
    if (cqe->res == -ENOBUFS) {
        receive(cqe->user_data);
        return;
    }
    int number = cqe->flags >> 16;
    if (cqe->res != sizeof value || !(cqe->flags & 1) || number >= BUFFERS) {
        wrong++;
        return;
    }
    twice += atomic_exchange(&taken[number], 1);
    memcpy(&value, memory[number], sizeof value);
    sum += value;
    received++;
    pthread_mutex_unlock(&lock);
    /* Other threads take buffers meanwhile. */
    sched_yield();
    pthread_mutex_lock(&lock);
    give_back(number);
}

static void *receives(void *which)
{
    int first = *(int *)which * PAIRS;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned long long value = first * ROUNDS + round;
        int pair = first + round % PAIRS;
        pthread_mutex_lock(&lock);
        receive(pair);
        pthread_mutex_unlock(&lock);
        MUST(write(pairs[pair][0], &value, sizeof value) == sizeof value);
        /* Limits the messages in flight to about PAIRS / 2 of each thread. The last round waits for
         * all messages. */
        while (round - received / THREADS > PAIRS / 2 || round == ROUNDS - 1) {
            struct io_uring_cqe *cqe, copy;
            pthread_mutex_lock(&lock);
            if (io_uring_peek_cqe(&ring, &cqe) == 0) {
                copy = *cqe;
                io_uring_cqe_seen(&ring, cqe);
                ended(&copy);
            }
            int is_over = received == THREADS * ROUNDS;
            pthread_mutex_unlock(&lock);
            if (round == ROUNDS - 1 && is_over)
                break;
            sched_yield();
        }
    }
    return NULL;
}

static void all(const char *what)
{
    pthread_t threads[THREADS];
    int which[THREADS], seen = 0;
    received = 0;
    sum = 0;
    for (int at = 0; at < THREADS; at++) {
        which[at] = at;
        MUST(pthread_create(&threads[at], NULL, receives, &which[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    printf("%s: %d received, sum %llu, twice %d, wrong %d\n", what, received, sum, twice, wrong);
    /* Takes the completions for the last buffers that were given back. */
    for (struct io_uring_cqe *cqe; io_uring_peek_cqe(&ring, &cqe) == 0;)
        io_uring_cqe_seen(&ring, cqe);
    for (int at = 0; at <= BUFFERS; at++) {
        struct io_uring_cqe *cqe;
        MUST(write(pairs[at][0], "x", 1) == 1);
        receive(at);
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        if (cqe->res == 1)
            seen |= 1 << (cqe->flags >> 16);
        else
            printf("%s: the last gives %d\n", what, cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: left %x\n", what, (unsigned)seen);
    char byte;
    MUST(read(pairs[BUFFERS][1], &byte, 1) == 1);
}

int main(void)
{
    MUST(io_uring_queue_init(64, &ring, 0) == 0);
    for (int at = 0; at < THREADS * PAIRS; at++)
        MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pairs[at]) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_provide_buffers(sqe, memory, SIZE, BUFFERS, GROUP, 0);
    io_uring_submit(&ring);
    completions(&ring, "a list", 1);
    all("a list");
    buffers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(buffers != MAP_FAILED);
    struct io_uring_buf_reg how = { .ring_addr = (unsigned long)buffers, .ring_entries = BUFFERS,
                                    .bgid = GROUP };
    int error = io_uring_register_buf_ring(&ring, &how, 0);
    MUST(error == 0);
    io_uring_buf_ring_init(buffers);
    for (int at = 0; at < BUFFERS; at++)
        io_uring_buf_ring_add(buffers, memory[at], SIZE, at, io_uring_buf_ring_mask(BUFFERS), at);
    io_uring_buf_ring_advance(buffers, BUFFERS);
    all("a ring");
    io_uring_queue_exit(&ring);
    return 0;
}
