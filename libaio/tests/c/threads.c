/* One context, several threads: every event reaches exactly one of them. */
#include "common.h"

#define SUBMITTERS 2
#define REAPERS 2
#define EACH 4000
#define DEPTH 32

static io_context_t ctx;
static int fd;
static unsigned char seen[SUBMITTERS * EACH];
static int in_flight[SUBMITTERS], reaped, wrong, refused;
static struct iocb iocbs[SUBMITTERS][EACH];
static unsigned char bufs[SUBMITTERS][DEPTH][512];

static void *submitter(void *argument)
{
    long me = (long)argument;
    for (int i = 0; i < EACH; i++) {
        while (__atomic_load_n(&in_flight[me], __ATOMIC_ACQUIRE) >= DEPTH)
            sched_yield();
        struct iocb *iocb = &iocbs[me][i];
        io_prep_pread(iocb, fd, bufs[me][i % DEPTH], 512, (long long)(i % 64) * 512);
        iocb->data = (void *)(me * EACH + i);
        __atomic_add_fetch(&in_flight[me], 1, __ATOMIC_ACQ_REL);
        int got;
        while ((got = submit1(ctx, iocb)) == -EAGAIN)
            sched_yield();
        if (got != 1)
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *reaper(void *argument)
{
    struct io_event events[8];
    long me = (long)argument;
    while (__atomic_load_n(&reaped, __ATOMIC_ACQUIRE) < SUBMITTERS * EACH) {
        struct timespec timeout = {0, 5000000};
        /* One thread waits for one event; the other waits for several, or polls. */
        long want = me ? 1 : __atomic_load_n(&reaped, __ATOMIC_RELAXED) % 4;
        long got = io_getevents(ctx, want, 8, events, &timeout);
        if (got < 0)
            die("io_getevents: %s", code(got));
        for (long i = 0; i < got; i++) {
            long tag = (long)events[i].data;
            if (__atomic_fetch_add(&seen[tag], 1, __ATOMIC_RELAXED) != 0 || events[i].res != 512 ||
                events[i].obj != &iocbs[tag / EACH][tag % EACH])
                __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
            __atomic_sub_fetch(&in_flight[tag / EACH], 1, __ATOMIC_ACQ_REL);
        }
        __atomic_add_fetch(&reaped, (int)got, __ATOMIC_ACQ_REL);
    }
    return NULL;
}

static void all_at_work(const char *name)
{
    pthread_t submitters[SUBMITTERS], reapers[REAPERS];
    memset(seen, 0, sizeof seen);
    memset(in_flight, 0, sizeof in_flight);
    reaped = wrong = refused = 0;
    ctx = setup(SUBMITTERS * DEPTH);
    for (long i = 0; i < REAPERS; i++)
        pthread_create(&reapers[i], NULL, reaper, (void *)i);
    for (long i = 0; i < SUBMITTERS; i++)
        pthread_create(&submitters[i], NULL, submitter, (void *)i);
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(submitters[i], NULL);
    for (int i = 0; i < REAPERS; i++)
        pthread_join(reapers[i], NULL);
    int once = 0;
    for (int i = 0; i < SUBMITTERS * EACH; i++)
        once += seen[i] == 1;
    say(name, "%d reaped, %d once, %d wrong, %d refused, %u left", reaped, once, wrong, refused,
        ready(ctx));
    answer(name[0] == 'b' ? "destroy" : "destroy after direct", io_destroy(ctx));
}

/* A context outlives the thread that made it. */
static void *make(void *out)
{
    *(io_context_t *)out = setup(8);
    return NULL;
}

int main(void)
{
    fd = temp_file(64 * 512);
    all_at_work("buffered");
    pthread_t thread;
    io_context_t made;
    static unsigned char buf[512];
    struct iocb iocb;
    pthread_create(&thread, NULL, make, &made);
    pthread_join(thread, NULL);
    io_prep_pread(&iocb, fd, buf, sizeof buf, 0);
    request(made, "context of a thread that is gone", &iocb);
    answer("destroy it", io_destroy(made));
    return 0;
}
