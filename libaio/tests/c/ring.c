/* A program reaps the ring of an io_context_t itself, as fio and QEMU do. */
#include "common.h"

#define DEPTH 16
#define REQUESTS 2000

static struct ring *header(io_context_t ctx, const char *name)
{
    struct ring *ring = (struct ring *)ctx;
    say(name, "nr %u, head %u, tail %u, magic %#x, compat %u, incompat %u, header %u", ring->nr,
        ring->head, ring->tail, ring->magic, ring->compat_features, ring->incompat_features,
        ring->header_length);
    return ring;
}

struct job {
    struct iocb iocbs[DEPTH];
    unsigned char *buf;
    long long offset[DEPTH];
    int fd, counter, submitted, reaped, wrong;
};

/* Submits a slot's next request: a write to one of the slot's four blocks, or a read of one.
 * DEPTH writes are followed by DEPTH reads, and so on. */
static void submit(io_context_t ctx, struct job *job, int slot)
{
    struct iocb *iocb = &job->iocbs[slot];
    unsigned char *buf = job->buf + slot * PAGE;
    if (job->submitted >= REQUESTS)
        return;
    job->offset[slot] = (long long)(slot * 4 + job->submitted % 4) * PAGE;
    if (job->submitted / DEPTH % 2 == 0) {
        for (int i = 0; i < PAGE; i++)
            buf[i] = (unsigned char)(job->offset[slot] / PAGE * 7 + i % 251);
        io_prep_pwrite(iocb, job->fd, buf, PAGE, job->offset[slot]);
    } else {
        memset(buf, 0, PAGE);
        io_prep_pread(iocb, job->fd, buf, PAGE, job->offset[slot]);
    }
    if (job->counter >= 0)
        io_set_eventfd(iocb, job->counter);
    if (submit1(ctx, iocb) != 1)
        die("submit");
    job->submitted++;
}

static void complete(io_context_t ctx, struct job *job, const struct io_event *event)
{
    long slot = event->obj - job->iocbs;
    if (slot < 0 || slot >= DEPTH)
        die("an event without a request");
    job->wrong += event->res != PAGE || event->res2 != 0 ||
                  !holds(job->buf + slot * PAGE, PAGE, (size_t)job->offset[slot]);
    job->reaped++;
    submit(ctx, job, (int)slot);
}

static void report(struct job *job, struct ring *ring, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "%s, reaped", kind);
    say(name, "%d, wrong %d", job->reaped, job->wrong);
    snprintf(name, sizeof name, "%s, left in the ring", kind);
    say(name, "%u", ready((io_context_t)ring));
}

/* Copies events one by one, and stores the head with release order after each event. */
static void like_fio(io_context_t ctx, int fd, const char *kind)
{
    struct job job = {.buf = pages(DEPTH * PAGE), .fd = fd, .counter = -1};
    struct ring *ring = (struct ring *)ctx;
    for (int slot = 0; slot < DEPTH; slot++)
        submit(ctx, &job, slot);
    while (job.reaped < REQUESTS) {
        unsigned head = ring->head;
        if (head == __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE)) {
            sched_yield();
            continue;
        }
        struct io_event event = ring->events[head];
        __atomic_store_n(&ring->head, (head + 1) % ring->nr, __ATOMIC_RELEASE);
        complete(ctx, &job, &event);
    }
    report(&job, ring, kind);
}

/* Sleeps on the eventfd alone, takes all events, and never calls io_getevents. */
static void like_qemu(io_context_t ctx, int fd, const char *kind)
{
    struct job job = {.buf = pages(DEPTH * PAGE), .fd = fd, .counter = eventfd(0, EFD_NONBLOCK)};
    struct ring *ring = (struct ring *)ctx;
    for (int slot = 0; slot < DEPTH; slot++)
        submit(ctx, &job, slot);
    while (job.reaped < REQUESTS) {
        struct pollfd wait = {job.counter, POLLIN, 0};
        uint64_t value;
        if (poll(&wait, 1, 20000) != 1)
            die("%s: no eventfd within 20 s, after %d events", kind, job.reaped);
        if (read(job.counter, &value, sizeof value) != sizeof value)
            die("eventfd");
        for (;;) {
            unsigned head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
            if (head == tail)
                break;
            unsigned n = head <= tail ? tail - head : ring->nr - head;
            struct io_event batch[DEPTH];
            if (n > DEPTH)
                die("%u events of %d requests", n, DEPTH);
            memcpy(batch, &ring->events[head], n * sizeof *batch);
            __atomic_store_n(&ring->head, (head + n) % ring->nr, __ATOMIC_RELEASE);
            for (unsigned i = 0; i < n; i++)
                complete(ctx, &job, &batch[i]);
        }
    }
    report(&job, ring, kind);
    close(job.counter);
}

int main(void)
{
    int sizes[] = {1, 2, 4, 16, 64, 100, 256, 1024, 4096};
    char name[64];
    for (size_t i = 0; i < COUNT(sizes); i++) {
        io_context_t ctx = setup(sizes[i]);
        snprintf(name, sizeof name, "ring of setup %d", sizes[i]);
        header(ctx, name);
        io_destroy(ctx);
    }

    int fd = temp_file(64 * PAGE), direct = reopen(fd, O_RDWR | O_DIRECT);
    io_context_t ctx = setup(DEPTH);
    like_fio(ctx, fd, "fio's way, buffered");
    if (direct >= 0)
        like_fio(ctx, direct, "fio's way, direct");
    /* The library sees which events the program has taken itself. */
    struct io_event events[DEPTH];
    struct timespec zero = {0, 0};
    answer("io_getevents afterwards", io_getevents(ctx, 0, DEPTH, events, &zero));
    static unsigned char buf[PAGE];
    struct iocb iocb;
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    request(ctx, "a request afterwards", &iocb);
    answer("destroy", io_destroy(ctx));

    ctx = setup(DEPTH);
    like_qemu(ctx, fd, "QEMU's way, buffered");
    if (direct >= 0)
        like_qemu(ctx, direct, "QEMU's way, direct");
    answer("destroy without any io_getevents", io_destroy(ctx));

    /* Takes completions by turns: one from the ring's memory, one by io_getevents. */
    ctx = setup(4);
    struct ring *ring = (struct ring *)ctx;
    int by_hand = 0, by_call = 0;
    for (int i = 0; i < 400; i++) {
        if (submit1(ctx, &iocb) != 1)
            die("submit");
        if (i % 2) {
            reap(ctx, 1, events);
            by_call += events[0].res == PAGE;
        } else {
            while (__atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) == ring->head)
                sched_yield();
            by_hand += ring->events[ring->head].res == PAGE;
            __atomic_store_n(&ring->head, (ring->head + 1) % ring->nr, __ATOMIC_RELEASE);
        }
    }
    say("by turns", "%d by hand, %d by call", by_hand, by_call);
    answer("destroy in the end", io_destroy(ctx));
    return 0;
}
