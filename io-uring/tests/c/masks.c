/* A handler runs under the mask of a wait, and that mask blocks SIGSYS. The handler enters a ring
 * by an instruction of its own, and the library answers all the same. */
#define _GNU_SOURCE
#include "common.h"
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

static volatile long got;

static void enters(int signal)
{
    (void)signal;
    long answer;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("mov $426, %%eax\n\tsyscall"
                     : "=a"(answer)
                     : "D"(-1L), "S"(0L), "d"(0L), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x0 __asm__("x0") = -1, x1 __asm__("x1") = 0, x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0, x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("mov x8, #426\n\tsvc #0"
                     : "+r"(x0)
                     : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "x8", "memory");
    answer = x0;
#endif
    got = answer;
}

#define INTERRUPTED(call)                                                                      \
    do {                                                                                       \
        got = 0;                                                                               \
        MUST(raise(SIGUSR1) == 0 && got == 0);                                                 \
        MUST((call) == -1 && errno == EINTR && got == -EBADF);                                 \
    } while (0)

int main(void)
{
    struct sigaction action = {.sa_handler = enters};
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    sigset_t all, but_one;
    sigfillset(&all);
    but_one = all;
    sigdelset(&but_one, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    struct timespec time = {60, 0};
    struct epoll_event event;
    int epoll = epoll_create1(0);
    INTERRUPTED(sigsuspend(&but_one));
    INTERRUPTED(ppoll(NULL, 0, &time, &but_one));
    INTERRUPTED(pselect(0, NULL, NULL, NULL, &time, &but_one));
    INTERRUPTED(epoll_pwait(epoll, &event, 1, 60000, &but_one));
    /* The calls do not change the program's signal sets. A null pointer means no set. */
    MUST(sigismember(&but_one, SIGSYS) == 1);
    MUST(ppoll(NULL, 0, &(struct timespec){0, 0}, NULL) == 0);
    printf("done\n");
    return 0;
}
