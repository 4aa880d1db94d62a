/* Functions of later versions of liburing. If the loaded library lacks one, the program makes the
 * same call by its number. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/syscall.h>

enum { CLONE = 30, RESIZE = 33, QUERY = 35, REGISTERED = 1, REPLACE = 2, NO_IOWAIT = 1 << 17 };

static struct io_uring from, to;
static char memory[2][64];

static long register_(int fd, unsigned opcode, void *argument, unsigned count)
{
    long answer = syscall(SYS_io_uring_register, fd, opcode, argument, count);
    return answer < 0 ? -errno : answer;
}

static long clone_(unsigned to_offset, unsigned from_offset, unsigned count, unsigned flags)
{
    unsigned source = from.ring_fd;
    unsigned asked[8] = { source, flags & ~REGISTERED, from_offset, to_offset, count };
    return register_(to.ring_fd, CLONE, asked, 1);
}

static void shows(const char *what, long answer)
{
    printf("%s: %ld;", what, answer);
    int file = open("/dev/zero", O_RDONLY);
    MUST(file >= 0);
    for (int slot = 0; slot < 4; slot++) {
        struct io_uring_sqe *sqe = entry(&to, 0);
        struct io_uring_cqe *cqe;
        io_uring_prep_read_fixed(sqe, file, memory[1], 4, 0, slot);
        MUST(io_uring_submit(&to) == 1 && io_uring_wait_cqe(&to, &cqe) == 0);
        printf(" %d", cqe->res);
        io_uring_cqe_seen(&to, cqe);
    }
    printf("\n");
    MUST(close(file) == 0);
}

static void clones(void)
{
    int (*all)(struct io_uring *, struct io_uring *);
    int (*flagged)(struct io_uring *, struct io_uring *, unsigned);
    int (*some)(struct io_uring *, struct io_uring *, unsigned, unsigned, unsigned, unsigned);
    __typeof__(some) some_flagged;
    all = dlsym(RTLD_DEFAULT, "io_uring_clone_buffers");
    flagged = dlsym(RTLD_DEFAULT, "__io_uring_clone_buffers");
    some = dlsym(RTLD_DEFAULT, "io_uring_clone_buffers_offset");
    some_flagged = dlsym(RTLD_DEFAULT, "__io_uring_clone_buffers_offset");
    shows("all", all ? all(&to, &from) : clone_(0, 0, 0, 0));
    shows("again", flagged ? flagged(&to, &from, 0) : clone_(0, 0, 0, 0));
    shows("in their place", flagged ? flagged(&to, &from, REPLACE) : clone_(0, 0, 0, REPLACE));
    shows("one more", some ? some(&to, &from, 3, 1, 1, REPLACE) : clone_(3, 1, 1, REPLACE));
    MUST(io_uring_unregister_buffers(&to) == 0);
    unsigned flags = REGISTERED;
    shows("one", some_flagged ? some_flagged(&to, &from, 1, 1, 1, flags) : clone_(1, 1, 1, flags));
    MUST(io_uring_unregister_buffers(&to) == 0);
    /* Clones from a ring whose descriptor is registered. */
    MUST(io_uring_register_ring_fd(&from) == 1);
    shows("of a registered ring", all ? all(&to, &from) : clone_(0, 0, 0, 0));
    MUST(io_uring_unregister_ring_fd(&from) == 1);
}

static void waits(void)
{
    int (*set)(struct io_uring *, bool) = dlsym(RTLD_DEFAULT, "io_uring_set_iowait");
    printf("feature: %d\n", !!(to.features & NO_IOWAIT));
    for (int counts = 0; counts < 2; counts++) {
        printf("waits count: %d, %d\n", counts, set ? set(&to, counts) : 0);
        entry(&to, counts)->opcode = IORING_OP_NOP;
        MUST(io_uring_submit_and_wait(&to, 1) == 1);
        completions(&to, "a nop", 1);
    }
    int flags = IORING_ENTER_GETEVENTS | 1 << 7;
    printf("by number: %ld\n", syscall(SYS_io_uring_enter, to.ring_fd, 0, 0, flags, NULL, 0));
}

static void queries(void)
{
    unsigned long long data[6] = { 0 };
    struct {
        unsigned long long next, at;
        unsigned number, size;
        int result;
        unsigned reserved[3];
    } query = { .at = (unsigned long long)data, .size = sizeof data };
    int (*ask)(void *) = dlsym(RTLD_DEFAULT, "io_uring_register_query");
    long answer = ask ? ask(&query) : register_(-1, QUERY, &query, 0);
    printf("query: %ld, %d, %u, features %d\n", answer, query.result, query.size,
           (data[1] & 0xffff) == 0xffff);
}

static void begin_deferred(struct io_uring *ring)
{
    struct io_uring_params how = { .flags = IORING_SETUP_SINGLE_ISSUER | 1 << 13 };
    MUST(io_uring_queue_init_params(4, ring, &how) == 0);
}

/* Does a resize return where the index array is? Linux 6.18 does not. */
static bool tells_array(void)
{
    struct io_uring_params sizes = { .sq_entries = 8 };
    struct io_uring ring;
    begin_deferred(&ring);
    MUST(register_(ring.ring_fd, RESIZE, &sizes, 1) == 0);
    io_uring_queue_exit(&ring);
    return sizes.sq_off.array != 0;
}

/* The ring keeps its sizes if the function is missing, or if resizes do not return the array's
 * place. */
static void resizes(void)
{
    int (*resize)(struct io_uring *, struct io_uring_params *);
    resize = tells_array() ? dlsym(RTLD_DEFAULT, "io_uring_resize_rings") : NULL;
    struct io_uring ring;
    begin_deferred(&ring);
    for (unsigned long long round = 0; round < 100; round++) {
        struct io_uring_params sizes = { .sq_entries = 4 << round % 3 };
        int answer = resize ? resize(&ring, &sizes) : 0;
        unsigned long long sum = 0;
        for (int at = 0; at < 4; at++) {
            struct io_uring_sqe *sqe = entry(&ring, 0);
            sqe->opcode = IORING_OP_NOP;
            sqe->user_data = 4 * round + at;
        }
        MUST(io_uring_submit_and_wait(&ring, 4) == 4 && io_uring_cq_ready(&ring) == 4);
        for (int at = 0; at < 4; at++) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            sum += cqe->user_data;
            io_uring_cqe_seen(&ring, cqe);
        }
        if (answer || sum != 16 * round + 6)
            printf("round %llu: %d, sum %llu\n", round, answer, sum);
    }
    printf("resized\n");
    io_uring_queue_exit(&ring);
}

int main(void)
{
    unsigned asked[8] = { 0 };
    struct iovec buffers[2] = { { memory[0], 64 }, { memory[1], 64 } };
    MUST(io_uring_queue_init(8, &from, 0) == 0 && io_uring_queue_init(8, &to, 0) == 0);
    asked[0] = from.ring_fd;
    if (register_(to.ring_fd, CLONE, asked, 1) != -ENXIO || !(to.features & NO_IOWAIT) ||
        register_(-1, QUERY, NULL, 0) != 0) {
        printf("SKIPPED: calls of later kernels\n");
        return 0;
    }
    MUST(io_uring_register_buffers(&from, buffers, 2) == 0);
    clones();
    waits();
    queries();
    resizes();
    io_uring_queue_exit(&from);
    io_uring_queue_exit(&to);
}
