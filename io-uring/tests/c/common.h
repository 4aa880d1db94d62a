/* Functions of all test programs: they print one completion on each line, so that outputs can be
 * compared. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define MUST(call)                                                       \
    do {                                                                 \
        if (!(call)) {                                                   \
            fprintf(stderr, "line %d: %s: %m\n", __LINE__, #call);       \
            exit(1);                                                     \
        }                                                                \
    } while (0)

static inline struct io_uring_sqe *entry(struct io_uring *ring, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    MUST(sqe);
    memset(sqe, 0, sizeof *sqe);
    (void)user_data;
    return sqe;
}

/* Prints `count` completions. */
static inline void completions(struct io_uring *ring, const char *what, int count)
{
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        int error = io_uring_wait_cqe(ring, &cqe);
        if (error) {
            printf("%s: wait %d\n", what, error);
            return;
        }
        printf("%s: %llu gives %d, flags %u\n", what, (unsigned long long)cqe->user_data, cqe->res,
               cqe->flags);
        io_uring_cqe_seen(ring, cqe);
    }
    printf("%s: %u more\n", what, io_uring_cq_ready(ring));
}

/* The order in which `sorted` prints completions, for requests whose own order is undefined. */
static inline int by_user_data(const void *a, const void *b)
{
    const struct io_uring_cqe *left = a, *right = b;
    return left->user_data < right->user_data ? -1 : left->user_data > right->user_data;
}

static inline void sorted(struct io_uring *ring, const char *what, int count)
{
    struct io_uring_cqe *all = calloc(count, sizeof *all);
    MUST(all);
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(ring, &cqe) == 0);
        memcpy(&all[at], cqe, sizeof *cqe);
        io_uring_cqe_seen(ring, cqe);
    }
    qsort(all, count, sizeof *all, by_user_data);
    for (int at = 0; at < count; at++)
        printf("%s: %llu gives %d, flags %u\n", what, (unsigned long long)all[at].user_data,
               all[at].res, all[at].flags);
    printf("%s: %u more\n", what, io_uring_cq_ready(ring));
    free(all);
}

/* Ends a program that needs an operation which this kernel does not have. */
static inline void needs(struct io_uring *ring, int opcode)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    MUST(probe);
    if (!io_uring_opcode_supported(probe, opcode)) {
        printf("SKIPPED: operation %d\n", opcode);
        exit(0);
    }
    io_uring_free_probe(probe);
}

static inline int scratch(void)
{
    char name[] = "scratch-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0 && unlink(name) == 0);
    return fd;
}
