/* Rings whose descriptors are closed by an instruction of the program's own. Each next ring has the
 * same number, and the memory of the earlier ones is given back. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

enum { ROUNDS = 300 };

/* close(2), past the C library. */
static long closes(int fd)
{
    long answer;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(answer) : "0"(3L), "D"((long)fd) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = 57, x0 __asm__("x0") = fd;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8) : "memory");
    answer = x0;
#else
    answer = close(fd);
#endif
    return answer;
}

static int mappings(void)
{
    int lines = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    for (int next; (next = getc(maps)) != EOF;)
        lines += next == '\n';
    fclose(maps);
    return lines;
}

int main(void)
{
    int before = 0, first = -1;
    for (int round = 0; round < ROUNDS; round++) {
        struct io_uring ring;
        MUST(io_uring_queue_init(8, &ring, 0) == 0);
        if (round % 2) {
            int other = dup(ring.ring_fd);
            MUST(other >= 0 && closes(other) == 0);
        }
        entry(&ring, 1)->opcode = IORING_OP_NOP;
        MUST(io_uring_submit_and_wait(&ring, 1) == 1);
        MUST(closes(ring.ring_fd) == 0);
        if (round % 100 == 0)
            printf("%d rings were closed before\n", round);
        if (round == 0) {
            first = ring.ring_fd;
            before = mappings();
        }
        MUST(ring.ring_fd == first);
        MUST(munmap(ring.sq.sqes, *ring.sq.kring_entries * sizeof(struct io_uring_sqe)) == 0);
        MUST(munmap(ring.sq.ring_ptr, ring.sq.ring_sz) == 0);
    }
    int after = mappings();
    printf("more mappings than rings: %d\n", after - before > ROUNDS);
    if (after - before > ROUNDS)
        fprintf(stderr, "%d mappings, then %d\n", before, after);
    return 0;
}
