/* The common part of the test programs. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "uringlet.h"

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "%s: line %d: %s\n", __FILE__, __LINE__, #what);                      \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)

#define EQUAL(left, right)                                                                        \
    do {                                                                                          \
        long long left_ = (long long)(left), right_ = (long long)(right);                         \
        if (left_ != right_) {                                                                    \
            fprintf(stderr, "%s: line %d: %s is %lld, expected %s (%lld)\n", __FILE__, __LINE__,  \
                    #left, left_, #right, right_);                                                \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)

/* The exit status for "cannot be tested here". */
#define SKIPPED 77

/* A context on the engine under test. */
static inline struct uringlet *context(unsigned entries)
{
    struct uringlet_options options = {.size = sizeof(options), .entries = entries};
    struct uringlet *u;
    int ret;

    options.engine = getenv("URINGLET_TEST_ENGINE");
    ret = uringlet_create(&u, &options);
    if (ret < 0 && ret != -EINVAL && options.engine) {
        fprintf(stderr, "%s\n", uringlet_explain(NULL));
        exit(SKIPPED);
    }
    EQUAL(ret, 0);
    return u;
}

static inline struct uringlet_sqe *entry(struct uringlet *u)
{
    struct uringlet_sqe *sqe = uringlet_get_sqe(u);

    CHECK(sqe);
    return sqe;
}

/* Submits, waits for the only completion, and returns its result. */
static inline int result(struct uringlet *u)
{
    struct uringlet_cqe cqe;

    EQUAL(uringlet_wait(u, 1, -1), 1);
    EQUAL(uringlet_peek(u, &cqe, 1), 1);
    EQUAL(cqe.flags, 0);
    return cqe.res;
}

/* A file without a name. */
static inline int file_of(const void *content, size_t len)
{
    FILE *file = tmpfile();
    int fd;

    CHECK(file);
    fd = dup(fileno(file));
    CHECK(fd >= 0);
    fclose(file);
    EQUAL(pwrite(fd, content, len, 0), len);
    return fd;
}

#endif
