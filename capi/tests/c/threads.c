/* A context that another thread uses is busy. Any thread can cancel its requests, and threads may
 * use it one after the other. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "check.h"

static int pipes[2];
static char byte;

static atomic_int over;

static void *wait_for_one(void *u)
{
    int ret;

    /* Repeats the call while the other thread uses the context to check whether this thread is
     * inside a call. */
    do {
        ret = uringlet_wait(u, 1, -1);
    } while (ret == -EBUSY);
    atomic_store(&over, 1);
    return (void *)(intptr_t)ret;
}

/* Waits until the other thread is inside a call with this context. */
static void until_busy(struct uringlet *u)
{
    int ret;

    do {
        ret = uringlet_submit(u);
        CHECK(ret == 0 || ret == -EBUSY);
    } while (ret != -EBUSY);
}

static void *hammer(void *u)
{
    for (;;) {
        int ret = uringlet_cancel(u, 77);

        if (ret == -EINVAL)
            return NULL;
        EQUAL(ret, -ENOENT);
    }
}

static struct uringlet *interrupted;
static volatile sig_atomic_t answers[3];

static void on_signal(int number)
{
    (void)number;
    /* The signal may have come before the call, or after it. */
    if (uringlet_submit(interrupted) != -EBUSY)
        return;
    answers[0] = -EBUSY;
    answers[1] = uringlet_destroy(interrupted, -1);
    answers[2] = uringlet_cancel(interrupted, 77);
}

static void ends_thread(struct uringlet_handler *handler, int32_t res)
{
    (void)handler;
    EQUAL(res, 0);
    pthread_exit(&over);
}

static void visits(const struct uringlet_cqe *cqe, void *arg)
{
    (void)cqe;
    pthread_exit(arg);
}

static void *runs(void *u)
{
    uringlet_run(u, 1, -1);
    return NULL;
}

static void *visits_all(void *u)
{
    while (uringlet_for_each(u, 1, visits, &over) == 0)
        sched_yield();
    return NULL;
}

/* A function that the library calls may end its thread. */
static void callbacks_end_threads(void)
{
    struct uringlet_handler handler = {ends_thread};
    struct uringlet *u = context(2);
    void *(*const bodies[])(void *) = {runs, visits_all};

    for (int at = 0; at < 2; at++) {
        struct uringlet_sqe *sqe = entry(u);
        pthread_t thread;
        void *ret;

        uringlet_prep_nop(sqe);
        if (at == 0)
            uringlet_sqe_set_data(sqe, &handler);
        else
            EQUAL(uringlet_wait(u, 1, -1), 1);
        EQUAL(pthread_create(&thread, NULL, bodies[at], u), 0);
        EQUAL(pthread_join(thread, &ret), 0);
        CHECK(ret == &over);
    }
    EQUAL(uringlet_destroy(u, -1), 0);
}

int main(void)
{
    struct sigaction action;
    struct uringlet *u = context(4);
    struct uringlet_cqe cqe;
    pthread_t threads[3];
    void *ret;

    EQUAL(pipe(pipes), 0);
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    EQUAL(pthread_create(&threads[0], NULL, wait_for_one, u), 0);
    until_busy(u);
    CHECK(!uringlet_get_sqe(u));
    EQUAL(uringlet_wait(u, 1, 0), -EBUSY);
    EQUAL(uringlet_peek(u, &cqe, 1), -EBUSY);
    EQUAL(uringlet_run(u, 1, 0), -EBUSY);
    EQUAL(uringlet_event_fd(u), -EBUSY);
    EQUAL(uringlet_destroy(u, -1), -EBUSY);
    CHECK(strstr(uringlet_explain(u), "another thread"));
    CHECK(uringlet_engine(u));
    EQUAL(uringlet_cancel(u, 77), -ENOENT);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(pthread_join(threads[0], &ret), 0);
    EQUAL((intptr_t)ret, 1);
    /* The other thread has ended: this thread uses the context now. */
    EQUAL(result(u), 1);

    /* A signal handler that interrupts a wait counts as another thread. */
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    interrupted = u;
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    atomic_store(&over, 0);
    EQUAL(pthread_create(&threads[0], NULL, wait_for_one, u), 0);
    until_busy(u);
    /* A signal that comes before the thread sleeps does not end the wait: another is sent. */
    while (!atomic_load(&over)) {
        EQUAL(pthread_kill(threads[0], SIGUSR1), 0);
        sched_yield();
    }
    EQUAL(pthread_join(threads[0], &ret), 0);
    CHECK((intptr_t)ret == -EINTR);
    EQUAL(answers[0], -EBUSY);
    EQUAL(answers[1], -EBUSY);
    EQUAL(answers[2], -ENOENT);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(result(u), 1);

    /* The context is destroyed while other threads use it. */
    for (int at = 0; at < 3; at++)
        EQUAL(pthread_create(&threads[at], NULL, hammer, u), 0);
    EQUAL(uringlet_destroy(u, -1), 0);
    for (int at = 0; at < 3; at++)
        EQUAL(pthread_join(threads[at], NULL), 0);
    callbacks_end_threads();
    return EXIT_SUCCESS;
}
