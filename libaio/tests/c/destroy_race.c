/* io_destroy while other threads submit and reap: each call succeeds or fails with EINVAL
 * (io_submit also with EAGAIN). Once io_destroy has returned, no buffer is used. */
#include "common.h"

#define ROUNDS 60
#define THREADS 3
#define BATCH 8

static io_context_t ctx;
static int fd, other_answers, gone;
static long done;
static unsigned char *buffers;
static pthread_barrier_t start;

static void *work(void *argument)
{
    long me = (long)argument;
    struct iocb iocbs[BATCH], *list[BATCH];
    struct io_event events[BATCH];
    io_context_t mine = ctx;
    struct timespec zero = {0, 0};
    pthread_barrier_wait(&start);
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            list[i] = &iocbs[i];
            io_prep_pread(list[i], fd, buffers + (me * BATCH + i) * PAGE, PAGE, i * PAGE);
        }
        int got = io_submit(mine, BATCH, list);
        if (got == -EINVAL)
            break;
        if (got < 0 && got != -EAGAIN)
            __atomic_add_fetch(&other_answers, 1, __ATOMIC_RELAXED);
        if (got > 0)
            __atomic_add_fetch(&done, got, __ATOMIC_RELAXED);
        /* The call is made by number. The original's io_getevents would read the ring at the
         * handle's address, which may be unmapped by now. */
        got = (int)syscall(SYS_io_getevents, mine, 0L, (long)BATCH, events, &zero);
        if (got < 0 && errno != EINVAL)
            __atomic_add_fetch(&other_answers, 1, __ATOMIC_RELAXED);
    }
    __atomic_add_fetch(&gone, 1, __ATOMIC_RELAXED);
    return NULL;
}

int main(void)
{
    int file = temp_file(BATCH * PAGE), direct = reopen(file, O_RDWR | O_DIRECT), destroyed = 0,
        again = 0, untouched = 1;
    buffers = pages(THREADS * BATCH * PAGE);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        fd = round % 2 && direct >= 0 ? direct : file;
        ctx = setup(64);
        long before = __atomic_load_n(&done, __ATOMIC_RELAXED);
        pthread_barrier_init(&start, NULL, THREADS + 1);
        for (long i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, work, (void *)i);
        pthread_barrier_wait(&start);
        while (__atomic_load_n(&done, __ATOMIC_RELAXED) - before < 100)
            sched_yield();
        destroyed += io_destroy(ctx) == 0;
        memset(buffers, 0xee, THREADS * BATCH * PAGE);
        again += io_destroy(ctx) == -EINVAL;
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS * BATCH * PAGE; i++)
            untouched &= buffers[i] == 0xee;
        pthread_barrier_destroy(&start);
    }
    say("destroyed", "%d of %d", destroyed, ROUNDS);
    say("destroyed again", "%d", again);
    say("threads sent away", "%d", gone);
    say("other answers", "%d", other_answers);
    yes("buffers are left alone", untouched);
    return 0;
}
