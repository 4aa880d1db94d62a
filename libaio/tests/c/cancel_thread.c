/* pthread_cancel of waiting threads: the calls are no cancellation points, as in the original, and
 * the context still works afterwards. */
#include "common.h"

struct waiter {
    pthread_t thread;
    pid_t tid;
    io_context_t ctx;
    long min;
    long answer;
    int how;
    int held;
    int cleaned;
};

static void cleanup(void *argument)
{
    ((struct waiter *)argument)->cleaned = 1;
}

static void *wait_for_it(void *argument)
{
    struct waiter *me = argument;
    struct io_event events[8];
    struct timespec minute = {60, 0};
    sigset_t none;
    sigemptyset(&none);
    me->answer = -9999;
    pthread_cleanup_push(cleanup, me);
    __atomic_store_n(&me->tid, gettid(), __ATOMIC_RELEASE);
    while (__atomic_load_n(&me->held, __ATOMIC_ACQUIRE))
        sched_yield();
    switch (me->how) {
    case 0: me->answer = io_getevents(me->ctx, me->min, 8, events, NULL); break;
    case 1: me->answer = io_getevents(me->ctx, me->min, 8, events, &minute); break;
    case 2: me->answer = io_pgetevents(me->ctx, me->min, 8, events, &minute, &none); break;
    default: me->answer = syscall(SYS_io_getevents, me->ctx, me->min, 8L, events, NULL); break;
    }
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

/* close(2) is a cancellation point. */
static void *close_it(void *argument)
{
    struct waiter *me = argument;
    pthread_cleanup_push(cleanup, me);
    while (__atomic_load_n(&me->held, __ATOMIC_ACQUIRE))
        sched_yield();
    me->answer = me->how ? fclose((FILE *)me->ctx) : close((int)me->min);
    pthread_cleanup_pop(0);
    return NULL;
}

static void closers(void)
{
    for (int how = 0; how < 2; how++) {
        FILE *stream = tmpfile();
        struct waiter waiter = {
            .min = fileno(stream), .ctx = (io_context_t)stream, .how = how, .held = 1};
        void *end;
        fputs("something to write", stream);
        pthread_create(&waiter.thread, NULL, close_it, &waiter);
        pthread_cancel(waiter.thread);
        __atomic_store_n(&waiter.held, 0, __ATOMIC_RELEASE);
        pthread_join(waiter.thread, &end);
        yes(how ? "[io_submit closed descriptor] a thread that is cancelled in fclose"
                : "[io_submit closed descriptor] a thread that is cancelled in close",
            end == PTHREAD_CANCELED && waiter.cleaned);
    }
}

int main(void)
{
    static const char *const hows[] = {"without end", "a minute", "with a mask", "by number"};
    int fd = temp_file(64 * PAGE), direct = reopen(fd, O_RDWR | O_DIRECT), ends[2];
    unsigned char *buf = pages(8 * PAGE);
    if (pipe(ends))
        die("pipe");
    io_context_t ctx = setup(16);
    for (int how = 0; how < 4; how++) {
        char name[96];
        struct waiter waiter = {.ctx = ctx, .how = how, .min = 2};
        struct iocb poll, reads[2], *list[2];
        void *end;
        io_prep_poll(&poll, ends[0], POLLIN);
        if (submit1(ctx, &poll) != 1)
            die("submit");
        pthread_create(&waiter.thread, NULL, wait_for_it, &waiter);
        while (!__atomic_load_n(&waiter.tid, __ATOMIC_ACQUIRE))
            sched_yield();
        until_asleep(waiter.tid);
        pthread_cancel(waiter.thread);
        until_asleep(waiter.tid);
        snprintf(name, sizeof name, "%s, it goes on waiting", hows[how]);
        yes(name, pthread_tryjoin_np(waiter.thread, &end) == EBUSY);
        io_prep_pread(&reads[0], fd, buf, PAGE, 0);
        list[0] = &reads[0];
        if (submit1(ctx, &reads[0]) != 1 || write(ends[1], "x", 1) != 1)
            die("the second");
        pthread_join(waiter.thread, &end);
        snprintf(name, sizeof name, "%s, its answer", hows[how]);
        answer(name, waiter.answer);
        snprintf(name, sizeof name, "%s, cancelled afterwards, cleaned up", hows[how]);
        yes(name, end == PTHREAD_CANCELED && waiter.cleaned);
        char byte;
        if (read(ends[0], &byte, 1) != 1)
            die("read");
        snprintf(name, sizeof name, "%s, a read afterwards", hows[how]);
        request(ctx, name, &reads[0]);

        /* The new thread is cancelled before its wait, which executes requests. In the first wait
         * for direct requests of a context, the thread also sets up what the engine needs for
         * them. */
        io_context_t fresh = setup(16);
        struct waiter late = {.ctx = fresh, .how = how, .min = 2, .held = 1};
        io_prep_pread(&reads[0], direct >= 0 ? direct : fd, buf, PAGE, 0);
        io_prep_pread(&reads[1], direct >= 0 ? direct : fd, buf + PAGE, PAGE, PAGE);
        list[1] = &reads[1];
        if (io_submit(fresh, 2, list) != 2)
            die("submit of 2");
        pthread_create(&late.thread, NULL, wait_for_it, &late);
        pthread_cancel(late.thread);
        __atomic_store_n(&late.held, 0, __ATOMIC_RELEASE);
        pthread_join(late.thread, &end);
        snprintf(name, sizeof name, "%s, cancelled beforehand", hows[how]);
        say(name, "%s, %s", code(late.answer), end == PTHREAD_CANCELED ? "cancelled" : "not");
        answer(hows[how], io_destroy(fresh));
    }
    answer("destroy", io_destroy(ctx));
    closers();
    return 0;
}
