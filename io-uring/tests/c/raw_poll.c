/* A program polls a ring's descriptor by an instruction of its own. Then a child of
 * vfork(2), which shares this process's memory, duplicates the ring under another number. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

static long raw_poll(struct pollfd *set, long count, long timeout)
{
#ifdef __x86_64__
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "0"(7L), "D"(set), "S"(count), "d"(timeout)
                     : "rcx", "r11", "memory");
    return answer;
#else
    return poll(set, (nfds_t)count, (int)timeout);
#endif
}

int main(void)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    struct pollfd set = {ring.ring_fd, POLLIN, 0};
    printf("idle %ld\n", raw_poll(&set, 1, 0));
    for (int at = 0; at < 3; at++) {
        io_uring_prep_nop(entry(&ring, 1));
        MUST(io_uring_submit(&ring) == 1);
        printf("done %ld\n", raw_poll(&set, 1, -1));
        completions(&ring, "nop", 1);
    }
    pid_t child = vfork();
    if (child == 0) {
        _exit(dup2(ring.ring_fd, 70) == 70 ? 0 : 1);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    /* The child's number 70 was a ring. In this process it names no file, and cannot be mapped. */
    int file = scratch();
    MUST(ftruncate(file, 4096) == 0 && dup3(file, 71, 0) == 71);
    printf("of the child: %d\n", fcntl(70, F_GETFD));
    void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, 70, 0);
    printf("mapped: %d\n", at == MAP_FAILED ? errno : 0);
    io_uring_queue_exit(&ring);
    return 0;
}
