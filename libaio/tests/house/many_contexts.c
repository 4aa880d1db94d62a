/* A thousand contexts at the same time: each reads in turn, all read together, and threads wait for
 * ten each. The process must have few threads. */
#include "../c/common.h"
#include <sys/resource.h>

enum { MANY = 1000, ROUNDS = 3, READS = 2, WAITERS = 100 };

static io_context_t contexts[MANY];
static struct iocb iocbs[MANY][READS];
static unsigned char (*buffers)[READS][PAGE];
static long most_threads;
static int fd;

static void begin(int i)
{
    struct iocb *list[READS];
    for (int n = 0; n < READS; n++) {
        list[n] = &iocbs[i][n];
        memset(buffers[i][n], 0, PAGE);
        io_prep_pread(list[n], fd, buffers[i][n], PAGE, (long long)(i % 16 + n) * PAGE);
    }
    if (io_submit(contexts[i], READS, list) != READS)
        die("submit to context %d", i);
}

static void end(int i)
{
    struct io_event events[READS];
    reap(contexts[i], READS, events);
    for (int n = 0; n < READS; n++)
        if (events[n].res != PAGE || !holds(buffers[i][n], PAGE, (size_t)(i % 16 + n) * PAGE))
            die("context %d, read %d: %s", i, n, code((long)events[n].res));
}

static void count_threads(void)
{
    long now = status("Threads:");
    if (now > most_threads)
        most_threads = now;
}

static void *waiter(void *first)
{
    for (int i = (int)(intptr_t)first; i < MANY; i += WAITERS) {
        begin(i);
        end(i);
    }
    return NULL;
}

int main(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_max < 6 * MANY) {
        fprintf(stderr, "SKIPPED: %ld descriptors are too few\n", (long)limit.rlim_max);
        return 0;
    }
    int plain = temp_file(20 * PAGE);
    buffers = pages(sizeof *buffers * MANY);
    fd = reopen(plain, O_RDONLY | O_DIRECT);
    if (fd < 0)
        fd = plain;
    for (int i = 0; i < MANY; i++)
        contexts[i] = setup(8);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < MANY; i++) {
            begin(i);
            end(i);
        }
        count_threads();
        for (int i = 0; i < MANY; i++)
            begin(i);
        count_threads();
        for (int i = 0; i < MANY; i++)
            end(i);
    }
    say("a thousand contexts", "in turn and together");
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        if (pthread_create(&threads[i], NULL, waiter, (void *)(intptr_t)i))
            die("pthread_create");
    for (int i = 0; i < WAITERS; i++)
        pthread_join(threads[i], NULL);
    say("a thousand contexts", "with threads of their own");
    count_threads();
    for (int i = 0; i < MANY; i++)
        io_destroy(contexts[i]);
    /* 64 workers, 64 threads of the C library, and at most 12 others. */
    if (most_threads > 140)
        die("%ld threads", most_threads);
    yes("few threads", 1);
    return 0;
}
