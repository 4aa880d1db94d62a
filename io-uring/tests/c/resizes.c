/* Rings whose queues get other sizes (IORING_REGISTER_RESIZE_RINGS). Entries and completions that
 * are in the queues stay there. Also queries (IORING_REGISTER_QUERY), and calls without a ring. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { RESIZE = 33, QUERY = 35, REGISTERED_RING = 1u << 31 };
/* The kernel's resize gives no offset of an index array, so these rings have none. */
enum { NO_SQARRAY = 1u << 16, DEFERRED = IORING_SETUP_SINGLE_ISSUER | 1u << 13 | NO_SQARRAY };
enum { CQES_32 = 1u << 11 };

/* A ring without liburing, because liburing cannot be told of the new memory after a resize. */
struct raw {
    int fd;
    struct io_uring_params params;
    char *rings;
    struct io_uring_sqe *entries;
};

static long register_(int fd, unsigned opcode, void *argument, unsigned count)
{
    long answer = syscall(SYS_io_uring_register, fd, opcode, argument, count);
    return answer < 0 ? -errno : answer;
}

static unsigned *word(struct raw *ring, unsigned at)
{
    return (unsigned *)(ring->rings + at);
}

static void map(struct raw *ring)
{
    int prot = PROT_READ | PROT_WRITE;
    struct io_uring_params *params = &ring->params;
    size_t whole = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    size_t entries = params->sq_entries * sizeof(struct io_uring_sqe);
    ring->rings = mmap(NULL, whole, prot, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, entries, prot, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    MUST(ring->rings != MAP_FAILED && ring->entries != MAP_FAILED);
}

/* The only flag of the submission queue that has to be equal on the kernel and on the library. The
 * library also sets TASKRUN: without that flag, newer versions of liburing make no call if the
 * completion queue is empty. */
static unsigned overflows(struct raw *ring)
{
    return *word(ring, ring->params.sq_off.flags) & IORING_SQ_CQ_OVERFLOW;
}

static void show(struct raw *ring, const char *what)
{
    struct io_uring_params *params = &ring->params;
    printf("%s: %u and %u entries, %u and %u in the memory, masks %u and %u\n", what,
           params->sq_entries, params->cq_entries, *word(ring, params->sq_off.ring_entries),
           *word(ring, params->cq_off.ring_entries), *word(ring, params->sq_off.ring_mask),
           *word(ring, params->cq_off.ring_mask));
    printf("%s: queues %u to %u, %u to %u; dropped %u, flags %u and %u, overflow %u\n", what,
           *word(ring, params->sq_off.head), *word(ring, params->sq_off.tail),
           *word(ring, params->cq_off.head), *word(ring, params->cq_off.tail),
           *word(ring, params->sq_off.dropped), overflows(ring),
           *word(ring, params->cq_off.flags), *word(ring, params->cq_off.overflow));
}

static void begin(struct raw *ring, unsigned entries, unsigned flags)
{
    *ring = (struct raw){ .params.flags = flags };
    ring->fd = syscall(SYS_io_uring_setup, entries, &ring->params);
    MUST(ring->fd >= 0);
    map(ring);
}

static void end(struct raw *ring)
{
    MUST(close(ring->fd) == 0);
}

static void put(struct raw *ring, unsigned opcode, int fd, unsigned long long user_data)
{
    struct io_uring_params *params = &ring->params;
    unsigned tail = *word(ring, params->sq_off.tail);
    struct io_uring_sqe *place = ring->entries + (tail & (params->sq_entries - 1));
    struct io_uring_sqe sqe = { .opcode = opcode, .fd = fd, .user_data = user_data };
    if (opcode == IORING_OP_POLL_ADD)
        sqe.poll32_events = POLLIN;
    *place = sqe;
    __atomic_store_n(word(ring, params->sq_off.tail), tail + 1, __ATOMIC_RELEASE);
}

static long enter(struct raw *ring, unsigned count, unsigned min)
{
    unsigned flags = IORING_ENTER_GETEVENTS;
    long answer = syscall(SYS_io_uring_enter, ring->fd, count, min, flags, NULL, 0);
    return answer < 0 ? -errno : answer;
}

/* Prints and reaps the completions. */
static void reap(struct raw *ring, const char *what)
{
    struct io_uring_params *params = &ring->params;
    unsigned head = *word(ring, params->cq_off.head);
    printf("%s:", what);
    while (head != __atomic_load_n(word(ring, params->cq_off.tail), __ATOMIC_ACQUIRE)) {
        struct io_uring_cqe *all = (void *)(ring->rings + params->cq_off.cqes);
        struct io_uring_cqe *cqe = &all[head & (params->cq_entries - 1)];
        printf(" %llu gives %d,", (unsigned long long)cqe->user_data, cqe->res);
        head++;
    }
    printf("\n");
    __atomic_store_n(word(ring, params->cq_off.head), head, __ATOMIC_RELEASE);
}

/* Gives the ring other sizes, and maps its memory. */
static long resize(struct raw *ring, const char *what, struct io_uring_params how)
{
    long answer = register_(ring->fd, RESIZE, &how, 1);
    printf("%s: %ld\n", what, answer);
    if (answer)
        return answer;
    ring->params.flags = how.flags;
    ring->params.sq_entries = how.sq_entries;
    ring->params.cq_entries = how.cq_entries;
    ring->params.sq_off = how.sq_off;
    ring->params.cq_off = how.cq_off;
    printf("%s: flags %x\n", what, how.flags);
    map(ring);
    show(ring, what);
    return answer;
}

static void fill(struct raw *ring, int nops, unsigned long long first)
{
    for (int at = 0; at < nops; at++)
        put(ring, IORING_OP_NOP, -1, first + at);
}

static void sizes(void)
{
    struct raw ring;
    begin(&ring, 8, DEFERRED);
    show(&ring, "before");
    fill(&ring, 6, 1);
    printf("enter: %ld\n", enter(&ring, 6, 6));
    fill(&ring, 3, 7);
    resize(&ring, "larger", (struct io_uring_params){ .sq_entries = 32 });
    reap(&ring, "larger");
    printf("enter: %ld\n", enter(&ring, 3, 3));
    reap(&ring, "the entries that waited");
    fill(&ring, 20, 100);
    printf("enter: %ld\n", enter(&ring, 20, 20));
    resize(&ring, "no room for completions", (struct io_uring_params){ .sq_entries = 2 });
    reap(&ring, "they are there");
    fill(&ring, 5, 200);
    resize(&ring, "no room for entries", (struct io_uring_params){ .sq_entries = 4 });
    printf("enter: %ld\n", enter(&ring, 5, 5));
    resize(&ring, "smaller",
           (struct io_uring_params){ .sq_entries = 1, .flags = IORING_SETUP_CQSIZE,
                                     .cq_entries = 5 });
    reap(&ring, "smaller");
    for (int at = 0; at < 5; at++) {
        put(&ring, IORING_OP_NOP, -1, 300 + at);
        printf("enter: %ld\n", enter(&ring, 1, 1));
    }
    reap(&ring, "one at a time");
    end(&ring);
}

/* After a resize, overflowed completions get room in the queue. */
static void overflow(void)
{
    struct raw ring;
    begin(&ring, 4, DEFERRED);
    for (int at = 0; at < 3; at++) {
        fill(&ring, 4, 10 * at);
        printf("enter: %ld\n", enter(&ring, 4, 0));
    }
    show(&ring, "full");
    resize(&ring, "larger", (struct io_uring_params){ .sq_entries = 16 });
    printf("enter: %ld\n", enter(&ring, 0, 12));
    reap(&ring, "larger");
    printf("flags: %u\n", overflows(&ring));
    end(&ring);
}

/* A poll that began before a resize ends after it. */
static void polls(void)
{
    struct raw ring;
    int event = eventfd(0, 0);
    MUST(event >= 0);
    begin(&ring, 4, DEFERRED);
    put(&ring, IORING_OP_POLL_ADD, event, 5);
    printf("enter: %ld\n", enter(&ring, 1, 0));
    for (unsigned entries = 1; entries <= 64; entries *= 4) {
        resize(&ring, "while it waits", (struct io_uring_params){ .sq_entries = entries });
        reap(&ring, "nothing");
    }
    MUST(eventfd_write(event, 1) == 0);
    printf("enter: %ld\n", enter(&ring, 0, 1));
    reap(&ring, "it is ready");
    end(&ring);
    MUST(close(event) == 0);
}

static void refusals(void)
{
    struct raw ring;
    struct io_uring_params four = { .sq_entries = 4 };
    begin(&ring, 8, NO_SQARRAY);
    printf("not deferred: %ld\n", register_(ring.fd, RESIZE, &four, 1));
    end(&ring);
    begin(&ring, 8, DEFERRED);
    printf("no argument: %ld\n", register_(ring.fd, RESIZE, NULL, 1));
    printf("no place: %ld\n", register_(ring.fd, RESIZE, (void *)8, 1));
    printf("none: %ld\n", register_(ring.fd, RESIZE, &four, 0));
    printf("two: %ld\n", register_(ring.fd, RESIZE, &four, 2));
    resize(&ring, "no entries", (struct io_uring_params){ .sq_entries = 0 });
    resize(&ring, "too many", (struct io_uring_params){ .sq_entries = 1 << 20 });
    resize(&ring, "a flag", (struct io_uring_params){ .sq_entries = 4, .flags = CQES_32 });
    resize(&ring, "a flag that is the ring's",
           (struct io_uring_params){ .sq_entries = 4, .flags = NO_SQARRAY });
    resize(&ring, "too few completions",
           (struct io_uring_params){ .sq_entries = 8, .flags = IORING_SETUP_CQSIZE,
                                     .cq_entries = 4 });
    resize(&ring, "no completions",
           (struct io_uring_params){ .sq_entries = 8, .flags = IORING_SETUP_CQSIZE });
    resize(&ring, "a size without the flag",
           (struct io_uring_params){ .sq_entries = 2, .cq_entries = 64 });
    resize(&ring, "reserved", (struct io_uring_params){ .sq_entries = 4, .resv[1] = 1 });
    resize(&ring, "clamped",
           (struct io_uring_params){ .sq_entries = 1 << 20, .flags = IORING_SETUP_CLAMP });
    put(&ring, IORING_OP_NOP, -1, 1);
    printf("enter: %ld\n", enter(&ring, 1, 1));
    reap(&ring, "it works");
    end(&ring);
}

struct query {
    unsigned long long next, at;
    unsigned number, size;
    int result;
    unsigned reserved[3];
};

/* Asks, and prints the answer without its numbers, which differ between kernels. */
static void ask(const char *what, int fd, struct query *query, unsigned count)
{
    long answer = register_(fd, QUERY, query, count);
    printf("%s: %ld, result %d, size %u\n", what, answer, query->result, query->size);
}

static unsigned long long addr(void *of)
{
    return (unsigned long long)of;
}

static void queries(int fd)
{
    unsigned long long data[12] = { 0 };
    struct query query = { .at = addr(data), .size = 48 };
    ask("operations", fd, &query, 0);
    printf("some: %d %d %d %d\n", (data[0] & 0xffffffff) > 50, data[0] >> 32 > QUERY,
           (data[1] & 0xffff) == 0xffff, (unsigned)data[4] == 0x7f);
    query = (struct query){ .at = addr(data), .size = 8 };
    memset(data, 0xff, sizeof data);
    ask("some of it", fd, &query, 0);
    printf("not written: %llx\n", data[1]);
    query = (struct query){ .at = addr(data), .size = sizeof data };
    ask("more than there is", fd, &query, 0);
    printf("cleared: %llx %llx\n", data[8], data[11]);
    query = (struct query){ .at = addr(data), .size = 0 };
    ask("nothing", fd, &query, 0);
    query = (struct query){ .at = addr(data), .size = 48, .number = 1000 };
    ask("unknown", fd, &query, 0);
    query = (struct query){ .at = addr(data), .size = 48, .result = 1 };
    ask("a result", fd, &query, 0);
    query = (struct query){ .at = addr(data), .size = 48, .reserved[2] = 1 };
    ask("reserved", fd, &query, 0);
    query = (struct query){ .at = 8, .size = 48 };
    ask("no place", fd, &query, 0);
    query = (struct query){ .at = addr(data), .size = 48 };
    ask("a count", fd, &query, 1);
    struct query second = { .at = addr(data), .size = 48, .number = 77 };
    query = (struct query){ .at = addr(data), .size = 48, .next = addr(&second) };
    ask("two", fd, &query, 0);
    printf("the second: %d\n", second.result);
    query = (struct query){ .at = addr(data), .size = 48, .next = 8 };
    ask("a bad one after it", fd, &query, 0);
    second = (struct query){ .at = addr(data), .size = 48, .number = 77, .next = addr(&second) };
    query = (struct query){ .at = addr(data), .size = 48, .next = addr(&second) };
    printf("a circle: %ld\n", register_(fd, QUERY, &query, 0));
    printf("none at all: %ld\n", register_(fd, QUERY, NULL, 0));
    printf("none here: %ld\n", register_(fd, QUERY, (void *)8, 0));
}

int main(void)
{
    struct raw ring;
    unsigned long long data[6];
    struct query query = { .at = addr(data), .size = 48 };
    begin(&ring, 4, DEFERRED);
    struct io_uring_params four = { .sq_entries = 4 };
    if (register_(-1, QUERY, &query, 0) == -EINVAL || register_(ring.fd, RESIZE, &four, 1)) {
        printf("SKIPPED: queries or resizes\n");
        return 0;
    }
    queries(-1);
    queries(ring.fd);
    end(&ring);
    for (unsigned opcode = 0; opcode < 34; opcode++)
        if (opcode != 31)
            printf("%u without a ring: %ld\n", opcode, register_(-1, opcode, NULL, 0));
    sizes();
    overflow();
    polls();
    refusals();
}
