/* Several threads wait for the same requests, or are cancelled during a wait. */
#include "common.h"

enum { THREADS = 8 };
static struct aiocb shared, other;
static unsigned char buf[2][PAGE];
static volatile int started, ended;
static pid_t tids[THREADS];
static int answers[THREADS];

static void *wait_for_shared(void *argument)
{
    int me = (int)(intptr_t)argument;
    const struct aiocb *list[] = {&other, &shared};
    tids[me] = gettid();
    __atomic_add_fetch(&started, 1, __ATOMIC_RELEASE);
    /* Half of the threads wait for both requests, and half for one. */
    answers[me] = aio_suspend(list + me % 2, 2 - me % 2, NULL);
    __atomic_add_fetch(&ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void same_block(void)
{
    int ends[2], blocked[2], right = 0;
    pthread_t threads[THREADS];
    make_pipe(ends);
    make_pipe(blocked);
    shared = block(ends[0], buf[0], 16, 0);
    other = block(blocked[0], buf[1], 16, 0);
    if (aio_read(&shared) || aio_read(&other))
        die("aio_read");
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, wait_for_shared, (void *)(intptr_t)i))
            die("pthread_create");
    until(&started, THREADS);
    for (int i = 0; i < THREADS; i++)
        until_asleep(tids[i]);
    say("threads that returned before", "%d", ended);
    put(ends[1], "hello");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        right += answers[i] == 0;
    }
    say("[aio_suspend several threads] threads that returned after", "%d", right);
    say("the shared request", "%s", state(&shared));
    say("the other one", "%s", state(&other));
    put(blocked[1], "x");
    finish(&other);
}

static void *wait_forever(void *argument)
{
    const struct aiocb *list[] = {&shared};
    tids[0] = gettid();
    __atomic_add_fetch(&started, 1, __ATOMIC_RELEASE);
    int got = argument ? lio_listio(LIO_WAIT, (struct aiocb *const[]){&shared}, 1, NULL)
                       : aio_suspend(list, 1, NULL);
    return (void *)(intptr_t)(got + 10);
}

/* lio_listio with LIO_WAIT is no cancellation point: the thread ends when the list is done. */
static void cancel_lister(void)
{
    int ends[2];
    pthread_t thread;
    void *result;
    make_pipe(ends);
    shared = block(ends[0], buf[0], 16, 0);
    shared.aio_lio_opcode = LIO_READ;
    if (pthread_create(&thread, NULL, wait_forever, &shared))
        die("pthread_create");
    until(&started, 1);
    until_asleep(tids[0]);
    pthread_cancel(thread);
    until_asleep(tids[0]);
    say("[lio_listio pthread_cancel] cancelled while a list waits", "%s",
        pthread_tryjoin_np(thread, &result) == EBUSY ? "goes on waiting" : "ends");
    put(ends[1], "hello");
    pthread_join(thread, &result);
    say("[lio_listio pthread_cancel] when it is done", "%s, %s",
        result == PTHREAD_CANCELED ? "cancelled" : "answers", state(&shared));
}

/* aio_suspend is a cancellation point; the request goes on. */
static void cancel_thread(void)
{
    int ends[2];
    pthread_t thread;
    void *result;
    make_pipe(ends);
    shared = block(ends[0], buf[0], 16, 0);
    if (aio_read(&shared))
        die("aio_read");
    for (int round = 0; round < 3; round++) {
        started = 0;
        if (pthread_create(&thread, NULL, wait_forever, NULL))
            die("pthread_create");
        until(&started, 1);
        until_asleep(tids[0]);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (round == 2)
            yes("[aio_suspend pthread_cancel] a thread is cancelled while it waits",
                result == PTHREAD_CANCELED);
    }
    say("the request then", "%s", state(&shared));
    put(ends[1], "hello");
    finish(&shared);
    say("the request at the end", "%s", state(&shared));
    const struct aiocb *list[] = {&shared};
    say("a wait after that", "%s", call(aio_suspend(list, 1, NULL)));
}

enum { ROUNDS = 500, DEPTH = 8 };
static int fd;

static void *submit_and_wait(void *argument)
{
    int me = (int)(intptr_t)argument;
    struct aiocb cbs[DEPTH];
    unsigned char bytes[DEPTH][64];
    const struct aiocb *list[DEPTH];
    intptr_t right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEPTH; i++) {
            off_t at = (me * 31 + round * 7 + i * 64) % (63 * PAGE);
            cbs[i] = block(fd, bytes[i], 64, at);
            list[i] = &cbs[i];
            if (aio_read(&cbs[i]))
                die("aio_read");
        }
        for (int left = DEPTH; left;) {
            if (aio_suspend(list, DEPTH, NULL))
                die("aio_suspend");
            for (int i = 0; i < DEPTH; i++)
                if (list[i] && aio_error(list[i]) != EINPROGRESS) {
                    right += aio_return(&cbs[i]) == 64 &&
                             holds(bytes[i], 64, (size_t)cbs[i].aio_offset);
                    list[i] = NULL;
                    left--;
                }
        }
    }
    return (void *)right;
}

static void busy(void)
{
    pthread_t threads[THREADS];
    void *right;
    long sum = 0;
    fd = temp_file(64 * PAGE);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, submit_and_wait, (void *)(intptr_t)i))
            die("pthread_create");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &right);
        sum += (intptr_t)right;
    }
    say("[aio_suspend several threads; aio_read several threads] 8 threads, 500 times 8 reads",
        "%ld right", sum);
    close(fd);
}

int main(void)
{
    in_child(same_block);
    in_child(cancel_thread);
    in_child(cancel_lister);
    busy();
    return 0;
}
