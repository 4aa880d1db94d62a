/* The three system calls by number, as in programs without liburing. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/syscall.h>

static int enter(int fd, unsigned count, unsigned min, unsigned flags)
{
    int answer = syscall(__NR_io_uring_enter, fd, count, min, flags, NULL, 0);
    return answer < 0 ? -errno : answer;
}

int main(void)
{
    struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 64 };
    int fd = syscall(__NR_io_uring_setup, 5, &params);
    MUST(fd >= 0);
    printf("entries %u and %u\n", params.sq_entries, params.cq_entries);
    printf("offsets %u %u %u %u %u %u %u\n", params.sq_off.head, params.sq_off.tail,
           params.sq_off.ring_mask, params.sq_off.ring_entries, params.sq_off.flags,
           params.sq_off.dropped, params.sq_off.array);
    printf("offsets %u %u %u %u %u %u %u\n", params.cq_off.head, params.cq_off.tail,
           params.cq_off.ring_mask, params.cq_off.ring_entries, params.cq_off.overflow,
           params.cq_off.cqes, params.cq_off.flags);
    printf("close on exec %d\n", fcntl(fd, F_GETFD));
    size_t size = params.sq_off.array + params.sq_entries * 4;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *rings = mmap(NULL, size, prot, flags, fd, IORING_OFF_SQ_RING);
    char *again = mmap(NULL, 4096, prot, flags, fd, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes =
        mmap(NULL, params.sq_entries * 64, prot, flags, fd, IORING_OFF_SQES);
    MUST(rings != MAP_FAILED && again != MAP_FAILED && sqes != MAP_FAILED);
    void *elsewhere = mmap(NULL, 4096, prot, flags, fd, 0x20000000);
    printf("elsewhere %d, %d\n", elsewhere == MAP_FAILED, errno);
    unsigned *tail = (unsigned *)(rings + params.sq_off.tail),
             *array = (unsigned *)(rings + params.sq_off.array);
    unsigned *head = (unsigned *)(rings + params.cq_off.head);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(again + params.cq_off.cqes);
    for (unsigned at = 0; at < 30; at++) {
        unsigned place = at & (params.sq_entries - 1);
        memset(&sqes[place], 0, sizeof *sqes);
        sqes[place].opcode = IORING_OP_NOP;
        sqes[place].user_data = 100 + at;
        array[place] = place;
        __atomic_store_n(tail, at + 1, __ATOMIC_RELEASE);
        printf("enter %d\n", enter(fd, 1, 1, IORING_ENTER_GETEVENTS));
        printf("completion %llu\n",
               (unsigned long long)cqes[at & (params.cq_entries - 1)].user_data);
        __atomic_store_n(head, at + 1, __ATOMIC_RELEASE);
    }
    /* An index out of range: the entry is dropped without a completion. */
    array[30 & (params.sq_entries - 1)] = 4711;
    __atomic_store_n(tail, 31, __ATOMIC_RELEASE);
    printf("enter %d\n", enter(fd, 1, 0, 0));
    printf("dropped %u\n", *(unsigned *)(rings + params.sq_off.dropped));
    printf("unknown flags %d\n", enter(fd, 0, 0, 1 << 20));
    printf("nothing %d\n", enter(fd, 0, 0, IORING_ENTER_GETEVENTS));
    int other = open("/dev/null", O_RDWR);
    printf("no ring %d, closed %d\n", enter(other, 0, 0, 0), enter(999, 0, 0, 0));
    struct io_uring_probe *probe = calloc(1, sizeof *probe + 256 * sizeof probe->ops[0]);
    int answer = syscall(__NR_io_uring_register, fd, IORING_REGISTER_PROBE, probe, 256);
    printf("probe %d, %u, reads %d\n", answer, probe->last_op, probe->ops[IORING_OP_READ].flags);
    answer = syscall(__NR_io_uring_register, fd, 60, NULL, 0);
    printf("register %d %d\n", answer, errno);
    MUST(close(fd) == 0);
    printf("after close %d\n", enter(fd, 0, 0, 0));
    return 0;
}
