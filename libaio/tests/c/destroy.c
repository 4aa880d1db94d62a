/* io_destroy with a waiting thread and with requests in flight. */
#include "common.h"

struct waiter {
    pthread_t thread;
    pid_t tid;
    io_context_t ctx;
    long answer;
};

static void *wait_forever(void *argument)
{
    struct waiter *me = argument;
    struct io_event events[4];
    __atomic_store_n(&me->tid, gettid(), __ATOMIC_RELEASE);
    me->answer = io_getevents(me->ctx, 4, 4, events, NULL);
    return NULL;
}

static void start(struct waiter *waiter, io_context_t ctx)
{
    *waiter = (struct waiter){.ctx = ctx};
    pthread_create(&waiter->thread, NULL, wait_forever, waiter);
    while (!__atomic_load_n(&waiter->tid, __ATOMIC_ACQUIRE))
        sched_yield();
    until_asleep(waiter->tid);
}

int main(void)
{
    struct waiter waiters[3];
    int fd = temp_file(64 * PAGE), ends[2];
    struct iocb poll;
    if (pipe(ends))
        die("pipe");
    io_prep_poll(&poll, ends[0], POLLIN);

    io_context_t ctx = setup(8);
    start(&waiters[0], ctx);
    answer("destroy under a waiter", io_destroy(ctx));
    pthread_join(waiters[0].thread, NULL);
    answer("the waiter", waiters[0].answer);

    ctx = setup(8);
    for (int i = 0; i < 3; i++)
        start(&waiters[i], ctx);
    answer("destroy under three waiters", io_destroy(ctx));
    for (int i = 0; i < 3; i++)
        pthread_join(waiters[i].thread, NULL);
    say("the three", "%s %s", code(waiters[0].answer), code(waiters[1].answer));
    answer("the third", waiters[2].answer);

    ctx = setup(8);
    if (submit1(ctx, &poll) != 1)
        die("submit");
    start(&waiters[0], ctx);
    answer("destroy under a waiter with a poll in flight", io_destroy(ctx));
    pthread_join(waiters[0].thread, NULL);
    answer("that waiter", waiters[0].answer);

    ctx = setup(8);
    if (submit1(ctx, &poll) != 1)
        die("submit");
    double before = now();
    answer("destroy with a poll in flight", io_destroy(ctx));
    yes("that took less than 5 s", now() - before < 5);
    if (write(ends[1], "x", 1) != 1)
        die("write");

    /* Accepted requests have ended when io_destroy returns: their buffers may be freed. */
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    for (int kind = 0; kind < 2; kind++) {
        int file = kind ? direct : fd, done = 0, undone = 0;
        if (file < 0)
            continue;
        unsigned char *buf = pages(32 * PAGE), *back = pages(32 * PAGE);
        struct iocb iocbs[32], *list[32];
        for (int round = 0; round < 20; round++) {
            if (ftruncate(fd, 0) || ftruncate(fd, 32 * PAGE))
                die("ftruncate");
            ctx = setup(32);
            memset(buf, 'a' + round, 32 * PAGE);
            for (int i = 0; i < 32; i++) {
                list[i] = &iocbs[i];
                io_prep_pwrite(list[i], file, buf + i * PAGE, PAGE, (long long)i * PAGE);
            }
            if (io_submit(ctx, 32, list) != 32)
                die("submit");
            if (io_destroy(ctx))
                die("io_destroy");
            memset(buf, 0, 32 * PAGE);
            if (pread(fd, back, 32 * PAGE, 0) != 32 * PAGE)
                die("pread");
            for (int i = 0; i < 32; i++) {
                int whole = 1;
                for (int j = 0; j < PAGE; j++)
                    whole &= back[i * PAGE + j] == 'a' + round;
                done += whole;
                undone += !whole;
            }
        }
        say(kind ? "direct writes done by destroy" : "buffered writes done by destroy", "%d of %d",
            done, done + undone);
    }

    /* io_destroy succeeds although there is an unreaped event. */
    ctx = setup(8);
    unsigned char buf[512];
    struct iocb iocb;
    io_prep_pread(&iocb, fd, buf, sizeof buf, 0);
    for (int i = 0; i < 8; i++)
        if (submit1(ctx, &iocb) != 1)
            die("submit");
    while (ready(ctx) < 8)
        usleep(1000);
    answer("destroy with unreaped events", io_destroy(ctx));
    return 0;
}
