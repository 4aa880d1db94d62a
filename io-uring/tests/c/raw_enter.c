/* Sets a ring up through liburing, and enters it by an instruction of its own. The program gets
 * a ring of the kernel. */
#define _GNU_SOURCE
#include "common.h"

static long enter(long fd, long count, long min, long flags)
{
#if defined(__x86_64__)
    long answer;
    register long r10 __asm__("r10") = flags, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("mov $426, %%eax\n\tsyscall"
                     : "=a"(answer)
                     : "D"(fd), "S"(count), "d"(min), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
#elif defined(__aarch64__)
    register long x0 __asm__("x0") = fd, x1 __asm__("x1") = count, x2 __asm__("x2") = min;
    register long x3 __asm__("x3") = flags, x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("mov x8, #426\n\tsvc #0"
                     : "+r"(x0)
                     : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "x8", "memory");
    return x0;
#endif
}

int main(void)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_nop(sqe);
    *ring.sq.ktail = ++ring.sq.sqe_head;
    MUST(enter(ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    completions(&ring, "nop", 1);
    /* liburing's functions work on this ring as well. */
    sqe = entry(&ring, 2);
    io_uring_prep_nop(sqe);
    MUST(io_uring_submit_and_wait(&ring, 1) == 1);
    completions(&ring, "nop", 1);
    char link[64] = { 0 }, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", ring.ring_fd);
    MUST(readlink(path, link, sizeof link - 1) > 0 && strstr(link, "io_uring"));
    io_uring_queue_exit(&ring);
    printf("done\n");
    return 0;
}
