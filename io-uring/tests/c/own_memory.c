/* Rings in memory that the program allocates, and rings without a descriptor, which use a
 * registered one. The calls are by number, because older versions of liburing have neither. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define NO_MMAP (1u << 14)
#define REGISTERED_FD_ONLY (1u << 15)
#define REGISTERED_RING (1u << 4)

enum { ENTRIES = 8, PAGE = 4096 };

static struct io_uring_params made;
static char *rings, *sqes;

static int set_up(char *in_rings, char *in_sqes, unsigned flags)
{
    memset(&made, 0, sizeof made);
    made.flags = flags;
    /* `user_addr`, the last word of both structures of offsets. */
    ((unsigned long long *)&made.cq_off)[4] = (unsigned long long)in_rings;
    ((unsigned long long *)&made.sq_off)[4] = (unsigned long long)in_sqes;
    rings = in_rings;
    sqes = in_sqes;
    int fd = syscall(SYS_io_uring_setup, ENTRIES, &made);
    return fd < 0 ? -errno : fd;
}

static unsigned *word(unsigned offset)
{
    return (unsigned *)(rings + offset);
}

/* Writes an entry into the ring's memory, enters the ring by number, and reaps from memory. */
static void one(const char *what, int fd, unsigned flags, int opcode, int file, void *to)
{
    unsigned tail = *word(made.sq_off.tail), at = tail & *word(made.sq_off.ring_mask);
    struct io_uring_sqe *sqe = (struct io_uring_sqe *)sqes + at;
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = file;
    sqe->addr = (unsigned long long)to;
    sqe->len = to ? 16 : 0;
    sqe->user_data = tail + 7;
    word(made.sq_off.array)[at] = at;
    __atomic_store_n(word(made.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    int answer = syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS | flags, NULL, 0);
    unsigned head = *word(made.cq_off.head);
    struct io_uring_cqe *cqe = (struct io_uring_cqe *)(rings + made.cq_off.cqes);
    cqe += head & *word(made.cq_off.ring_mask);
    printf("%s: %d, %u there, %llu gives %d\n", what, answer,
           __atomic_load_n(word(made.cq_off.tail), __ATOMIC_ACQUIRE) - head,
           (unsigned long long)cqe->user_data, cqe->res);
    __atomic_store_n(word(made.cq_off.head), head + 1, __ATOMIC_RELEASE);
}

static char *pages(int kind)
{
    char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    memset(at, 0x55, 4 * PAGE);
    return at;
}

int main(void)
{
    char *shared = pages(MAP_SHARED), *private = pages(MAP_PRIVATE), data[16];
    int file = scratch();
    MUST(pwrite(file, "0123456789", 10, 0) == 10);
    printf("nowhere: %d\n", set_up(NULL, NULL, NO_MMAP));
    printf("between pages: %d\n", set_up(shared + 64, shared + PAGE, NO_MMAP));
    printf("not mapped: %d\n", set_up((char *)PAGE, shared + PAGE, NO_MMAP));
    printf("registered only: %d\n", set_up(shared, shared + PAGE, REGISTERED_FD_ONLY));
    for (int kind = 0; kind < 2; kind++) {
        char *in = kind ? private : shared;
        int fd = set_up(in, in + PAGE, NO_MMAP);
        MUST(fd >= 0);
        printf("sizes: %u %u\n", *word(made.sq_off.ring_entries), *word(made.cq_off.ring_entries));
        one("nop", fd, 0, IORING_OP_NOP, -1, NULL);
        one("read", fd, 0, IORING_OP_READ, file, data);
        printf("mapped: %d\n",
               mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? errno : 0);
        fflush(stdout);
        if (!kind && fork() == 0) {
            one("in a child", fd, 0, IORING_OP_READ, file, data);
            fflush(stdout);
            _exit(0);
        }
        if (!kind)
            MUST(wait(NULL) > 0);
        one("again", fd, 0, IORING_OP_NOP, -1, NULL);
        MUST(close(fd) == 0);
    }
    int index = set_up(shared, shared + PAGE, NO_MMAP | REGISTERED_FD_ONLY);
    printf("index: %d\n", index);
    one("registered", index, REGISTERED_RING, IORING_OP_READ, file, data);
    /* A ring goes on after its memory was unmapped. */
    int fd = set_up(shared + 2 * PAGE, shared + 3 * PAGE, NO_MMAP);
    MUST(fd >= 0 && munmap(shared, 4 * PAGE) == 0);
    printf("without its memory: %ld\n", syscall(SYS_io_uring_enter, fd, 0, 0, 0, NULL, 0));
    MUST(close(fd) == 0);
    return 0;
}
