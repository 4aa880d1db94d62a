/* The program sets a ring up through liburing, and a library enters it by an instruction of its
 * own. The argument is the path of the library. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

#if defined(LIBRARY)
long enters(int fd);

long enters(int fd)
{
    long answer;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("mov $426, %%eax\n\tsyscall"
                     : "=a"(answer)
                     : "D"((long)fd), "S"(1L), "d"(0L), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x0 __asm__("x0") = fd, x1 __asm__("x1") = 1, x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0, x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("mov x8, #426\n\tsvc #0"
                     : "+r"(x0)
                     : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "x8", "memory");
    answer = x0;
#endif
    return answer;
}
#else
int main(int count, char **arguments)
{
    MUST(count == 2);
    void *library = dlopen(arguments[1], RTLD_NOW);
    MUST(library);
    long (*enters)(int) = (long (*)(int))dlsym(library, "enters");
    struct io_uring ring;
    MUST(io_uring_queue_init(4, &ring, 0) == 0);
    char link[64] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", ring.ring_fd);
    MUST(readlink(path, link, sizeof link - 1) > 0 && strstr(link, "eventfd"));
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    /* Publishes the entry in the queue's tail, without a call. */
    *ring.sq.ktail = ring.sq.sqe_tail;
    MUST(enters(ring.ring_fd) == 1 && io_uring_cq_ready(&ring) == 1);
    io_uring_queue_exit(&ring);
    printf("done\n");
    return 0;
}
#endif
