/* Cancels requests that wait for a pipe: by number, by descriptor, and from another thread. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "uringlet.h"

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "cancel: line %d: %s\n", __LINE__, #what);                            \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)

static char bufs[4][16];

static void submit_read(struct uringlet *u, int fd, unsigned number)
{
    struct uringlet_sqe *sqe = uringlet_get_sqe(u);

    CHECK(sqe);
    uringlet_prep_read(sqe, fd, bufs[number], sizeof(bufs[number]), URINGLET_FILE_POSITION);
    uringlet_sqe_set_data64(sqe, number);
    CHECK(uringlet_submit(u) == 1);
}

/* Takes the next completion, which must be that of request `number`, with the result `res`. */
static void expect(struct uringlet *u, unsigned number, int res)
{
    struct uringlet_cqe cqe;

    CHECK(uringlet_wait(u, 1, -1) == 1);
    CHECK(uringlet_peek(u, &cqe, 1) == 1);
    printf("request %u: %s\n", (unsigned)cqe.user_data,
           cqe.res < 0 ? uringlet_strerror(cqe.res) : "done");
    CHECK(cqe.user_data == number && cqe.res == res);
}

/* Cancels a request. A request cannot be cancelled while a thread tries to execute it, so this
 * function repeats the cancel until the try has ended. */
static void cancel(struct uringlet *u, unsigned number)
{
    int ret;

    do {
        ret = uringlet_cancel(u, number);
    } while (ret == -EALREADY);
    CHECK(ret == 0);
}

static void *cancel_third(void *u)
{
    cancel(u, 3);
    return NULL;
}

int main(void)
{
    struct uringlet *u;
    pthread_t thread;
    int first[2], second[2], ret;

    CHECK(pipe(first) == 0 && pipe(second) == 0);
    CHECK(uringlet_create(&u, NULL) == 0);

    submit_read(u, first[0], 0);
    cancel(u, 0);
    expect(u, 0, -ECANCELED);
    CHECK(uringlet_cancel(u, 0) == -ENOENT);

    submit_read(u, first[0], 1);
    submit_read(u, second[0], 2);
    do {
        ret = uringlet_cancel_fd(u, first[0]);
    } while (ret == -EALREADY);
    CHECK(ret == 1);
    expect(u, 1, -ECANCELED);

    /* The other pipe's read is not affected. */
    CHECK(write(second[1], "x", 1) == 1);
    expect(u, 2, 1);

    /* The read is cancelled while this thread waits for it. */
    submit_read(u, first[0], 3);
    CHECK(pthread_create(&thread, NULL, cancel_third, u) == 0);
    expect(u, 3, -ECANCELED);
    CHECK(pthread_join(thread, NULL) == 0);

    CHECK(uringlet_destroy(u, -1) == 0);
    CHECK(uringlet_cancel(u, 3) == -EINVAL);
    return EXIT_SUCCESS;
}
