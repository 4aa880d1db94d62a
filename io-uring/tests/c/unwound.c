/* A thread that waits in a call by an instruction of its own ends in a signal's handler. The
 * stack is unwound: the cleanups of its functions run, and the handler's backtrace shows those
 * functions. */
#define _GNU_SOURCE
#include "common.h"
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#if !defined(__x86_64__)
int main(void)
{
    printf("done\n");
    return 0;
}
#else
static struct io_uring ring;
static volatile pid_t waiter;
static volatile int given_back, frames;
static void *volatile from, *volatile to;

static void give_back(int *what)
{
    given_back = *what;
}

static void handler(int signal)
{
    (void)signal;
    void *places[64];
    int count = backtrace(places, 64);
    for (int at = 0; at < count; at++)
        frames += places[at] >= from && places[at] < to;
    pthread_exit(NULL);
}

__attribute__((noinline)) static long wait_here(int fd)
{
    long answer;
    register long r10 __asm__("r10") = IORING_ENTER_GETEVENTS, r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("mov $426, %%eax\n\tsyscall"
                     : "=a"(answer)
                     : "D"(fd), "S"(0), "d"(1), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}
__attribute__((noinline)) static void after_it(void)
{
    __asm__ volatile("");
}

/* A volatile pointer: the compiler cannot see which function is called, so it keeps the cleanup in
 * the caller. */
static long (*volatile waits)(int) = wait_here;

static void *run(void *unused)
{
    int held __attribute__((cleanup(give_back))) = 42;
    waiter = (pid_t)syscall(SYS_gettid);
    return waits(ring.ring_fd) + held > 0 ? unused : NULL;
}

/* Does this thread sleep, and has it slept for a while? */
static int sleeps(pid_t thread)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    for (int look = 0; look < 20; look++) {
        int fd = open(path, O_RDONLY);
        MUST(fd >= 0);
        ssize_t count = read(fd, line, sizeof line - 1);
        MUST(count > 0 && close(fd) == 0);
        if (strstr(line, ") S") == NULL)
            return 0;
        sched_yield();
    }
    return 1;
}

int main(void)
{
    void *warm[4];
    MUST(backtrace(warm, 4) > 0); /* the first call loads libgcc */
    from = (void *)wait_here;
    to = (void *)after_it;
    if (to < from)
        to = (char *)from + 512;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    struct sigaction action = {.sa_handler = handler};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, run, NULL) == 0);
    while (waiter == 0 || !sleeps(waiter))
        sched_yield();
    MUST(pthread_kill(thread, SIGUSR1) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(given_back == 42);
    MUST(frames == 1);
    printf("done\n");
    return 0;
}
#endif
