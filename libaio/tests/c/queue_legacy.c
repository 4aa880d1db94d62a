/* io_queue_*: the old interface of the library, with callbacks. */
#include "common.h"

extern int io_queue_wait(io_context_t ctx, struct timespec *timeout);

static int calls, right, again;
static struct iocb *expected;
static struct iocb repeated;

static void done(io_context_t ctx, struct iocb *iocb, long res, long res2)
{
    calls++;
    right += iocb >= expected && iocb < expected + 8 && res == PAGE && res2 == 0 && ctx != NULL;
}

static void failed(io_context_t ctx, struct iocb *iocb, long res, long res2)
{
    (void)ctx, (void)iocb, (void)res2;
    calls++;
    say("callback of a failed read", "%s", code(res));
}

static void resubmit(io_context_t ctx, struct iocb *iocb, long res, long res2)
{
    (void)res, (void)res2;
    calls++;
    if (again-- > 0 && submit1(ctx, iocb) != 1)
        die("submit");
}

static int cleaned;

static void cleanup(void *argument)
{
    cleaned += *(int *)argument;
}

static void ends_thread(io_context_t ctx, struct iocb *iocb, long res, long res2)
{
    int one = 1;
    (void)ctx, (void)iocb, (void)res, (void)res2;
    pthread_cleanup_push(cleanup, &one);
    pthread_exit(NULL);
    pthread_cleanup_pop(0);
}

static void *run_until_it_ends(void *ctx)
{
    int one = 1;
    pthread_cleanup_push(cleanup, &one);
    while (io_queue_run(ctx) >= 0)
        usleep(1000);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    io_context_t ctx = (io_context_t)0x1234;
    int fd = temp_file(8 * PAGE);
    static unsigned char buf[8][PAGE];
    static struct iocb iocbs[8];
    struct iocb *list[8];
    answer("init of 0", io_queue_init(0, &ctx));
    answer("init of -1", io_queue_init(-1, &ctx));
    yes("a failed init leaves the handle alone", ctx == (io_context_t)0x1234);
    answer("init of INT_MAX", io_queue_init(INT_MAX, &ctx));
    yes("a refused init clears it", ctx == NULL);
    ctx = (io_context_t)0x1234;
    answer("init", io_queue_init(16, &ctx));
    yes("init does not care what the handle was", ctx != NULL && ctx != (io_context_t)0x1234);

    answer("run, empty", io_queue_run(ctx));
    struct timespec zero = {0, 0}, tenth = {0, 100000000};
    answer("wait, empty, no time", io_queue_wait(ctx, &zero));
    answer("wait, empty, 100 ms", io_queue_wait(ctx, &tenth));
    answer("wait, empty, forever", io_queue_wait(ctx, NULL));

    expected = iocbs;
    for (int i = 0; i < 8; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], PAGE, i * PAGE);
        io_set_callback(list[i], done);
    }
    answer("submit of 8", io_submit(ctx, 8, list));
    answer("wait, 100 ms", io_queue_wait(ctx, &tenth));
    for (int i = 0; i < 5000 && calls < 8; i++) {
        int got = io_queue_run(ctx);
        if (got < 0)
            die("io_queue_run: %s", code(got));
        if (calls < 8)
            usleep(1000);
    }
    say("callbacks", "%d, right %d", calls, right);
    answer("run afterwards", io_queue_run(ctx));

    /* Requests that do not sleep have ended at the very next run. */
    calls = 0;
    answer("submit of 8 once more", io_submit(ctx, 8, list));
    answer("run at once", io_queue_run(ctx));
    say("callbacks at once", "%d", calls);

    calls = 0;
    struct iocb bad;
    io_prep_pread(&bad, fd, UNMAPPED, PAGE, 0);
    io_set_callback(&bad, failed);
    answer("submit with a bad buffer", submit1(ctx, &bad));
    for (int i = 0; i < 5000 && calls < 1; i++) {
        io_queue_run(ctx);
        usleep(1000);
    }
    /* A callback ends its thread, in the middle of io_queue_run. */
    struct iocb last;
    pthread_t thread;
    io_prep_pread(&last, fd, buf[0], PAGE, 0);
    io_set_callback(&last, ends_thread);
    if (submit1(ctx, &last) != 1 || pthread_create(&thread, NULL, run_until_it_ends, ctx))
        die("a thread");
    pthread_join(thread, NULL);
    yes("[io_queue_run success] a callback ends its thread", cleaned == 2);
    answer("[io_queue_run success] a run after that", io_queue_run(ctx));

    calls = 0;
    again = 9;
    io_prep_pread(&repeated, fd, buf[0], PAGE, 0);
    io_set_callback(&repeated, resubmit);
    answer("submit one that submits itself", submit1(ctx, &repeated));
    for (int i = 0; i < 5000 && calls < 10; i++) {
        io_queue_run(ctx);
        usleep(1000);
    }
    say("its callbacks", "%d", calls);
    int ends[2];
    struct iocb polled;
    if (pipe(ends))
        die("pipe");
    calls = 0;
    again = 0;
    answer("io_poll", io_poll(ctx, &polled, resubmit, ends[1], POLLOUT));
    for (int i = 0; i < 5000 && calls < 1; i++) {
        io_queue_run(ctx);
        usleep(1000);
    }
    say("io_poll, callbacks", "%d", calls);

    answer("release", io_queue_release(ctx));
    answer("release again", io_queue_release(ctx));
    answer("wait on NULL", io_queue_wait(NULL, &tenth));
    answer("run on NULL", io_queue_run(NULL));
    return 0;
}
