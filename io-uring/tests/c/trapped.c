/* Makes all calls for a ring by instructions of its own, in a thread that blocks all signals. The
 * program has a handler of its own for SIGSYS. Where calls are trapped, the library serves the
 * ring. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* The number is loaded beside the call, as in an inlined function. */
#if defined(__x86_64__)
#define RAW(name, number)                                                                      \
    static long name(long a, long b, long c, long d, long e, long f)                           \
    {                                                                                          \
        long answer;                                                                           \
        register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;      \
        __asm__ volatile("mov $" #number ", %%eax\n\tsyscall"                                  \
                         : "=a"(answer)                                                        \
                         : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)                  \
                         : "rcx", "r11", "memory");                                            \
        return answer;                                                                         \
    }
RAW(raw_mmap, 9)
RAW(raw_close, 3)
#elif defined(__aarch64__)
#define RAW(name, number)                                                                      \
    static long name(long a, long b, long c, long d, long e, long f)                           \
    {                                                                                          \
        register long x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;        \
        register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;        \
        __asm__ volatile("mov x8, #" #number "\n\tsvc #0"                                      \
                         : "+r"(x0)                                                            \
                         : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)                         \
                         : "x8", "memory");                                                    \
        return x0;                                                                             \
    }
RAW(raw_mmap, 222)
RAW(raw_close, 57)
#endif
RAW(raw_setup, 425)
RAW(raw_enter, 426)
RAW(raw_register, 427)

static volatile sig_atomic_t sent;

static void program_handler(int signal)
{
    (void)signal;
    sent++;
}

static volatile sig_atomic_t nested;
static int ring_of_handler = -1;

/* Interrupts a wait, and enters the ring by an instruction. */
static void alarm_handler(int signal)
{
    (void)signal;
    long answer = raw_enter(ring_of_handler, 0, 0, 0, 0, 0);
    nested = answer == 0 || answer == -EAGAIN ? 1 : -1;
}

static void *use(void *ours)
{
    struct io_uring_params params = {0};
    int fd = (int)raw_setup(8, (long)&params, 0, 0, 0, 0);
    MUST(fd >= 0);
    char link[64] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(readlink(path, link, sizeof link - 1) > 0);
    MUST(!!strstr(link, "eventfd") == !!ours);
    size_t rings = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    if (rings < params.sq_off.array + params.sq_entries * 4)
        rings = params.sq_off.array + params.sq_entries * 4;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *ring = (char *)raw_mmap(0, (long)rings, prot, flags, fd, IORING_OFF_SQ_RING);
    size_t entries = params.sq_entries * sizeof(struct io_uring_sqe);
    struct io_uring_sqe *sqes =
        (void *)raw_mmap(0, (long)entries, prot, flags, fd, (long)IORING_OFF_SQES);
    MUST((long)ring > 0 && (long)sqes > 0);
    unsigned *sq_tail = (void *)(ring + params.sq_off.tail);
    unsigned *cq_head = (void *)(ring + params.cq_off.head);
    unsigned *cq_tail = (void *)(ring + params.cq_off.tail);
    unsigned *array = (void *)(ring + params.sq_off.array);
    struct io_uring_cqe *cqes = (void *)(ring + params.cq_off.cqes);
    unsigned mask = params.cq_entries - 1;
    int file = scratch();
    char text[16] = "written", back[16] = "";
    struct iovec buffers[] = {{text, sizeof text}, {back, sizeof back}};
    MUST(raw_register(fd, IORING_REGISTER_BUFFERS, (long)buffers, 2, 0, 0) == 0);
    for (int round = 0; round < 100; round++) {
        for (int write = 1; write >= 0; write--) {
            unsigned tail = *sq_tail, at = tail & (params.sq_entries - 1);
            struct iovec buffer = buffers[!write];
            memset(&sqes[at], 0, sizeof sqes[at]);
            sqes[at].opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
            sqes[at].fd = file;
            sqes[at].addr = (unsigned long)buffer.iov_base;
            sqes[at].len = (unsigned)buffer.iov_len;
            sqes[at].buf_index = (unsigned short)!write;
            sqes[at].off = (unsigned long)round * sizeof text;
            array[at] = at;
            __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
            MUST(raw_enter(fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
            MUST(__atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) == *cq_head + 1);
            MUST(cqes[*cq_head & mask].res == (int)sizeof text);
            __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
        }
        MUST(strcmp(back, "written") == 0);
        memset(back, 0, sizeof back);
    }
    /* A signal interrupts a wait, and its handler enters the same ring. */
    ring_of_handler = fd;
    nested = 0;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    MUST(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    alarm(1);
    errno = 77;
    MUST(raw_enter(fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) == -EINTR);
    MUST(nested == 1 && errno == 77);
    /* Blocks SIGALRM here, so that the next thread that executes this function gets it. */
    MUST(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
    MUST(raw_enter(-1, 0, 0, 0, 0, 0) == -EBADF);
    /* Closing the ring's number ends the ring, and another file gets the number. */
    MUST(raw_close(fd, 0, 0, 0, 0, 0) == 0 && raw_close(fd, 0, 0, 0, 0, 0) == -EBADF);
    MUST(dup2(file, fd) == fd);
    MUST(raw_enter(fd, 0, 0, 0, 0, 0) == -EOPNOTSUPP);
    char *mapped = (char *)raw_mmap(0, 16, PROT_READ, flags, fd, 0);
    MUST((long)mapped > 0 && strcmp(mapped, "written") == 0);
    MUST(close(fd) == 0 && close(file) == 0);
    return NULL;
}

int main(int count, char **arguments)
{
    int ours = count == 1;
    sigset_t all;
    sigemptyset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    struct sigaction action = {.sa_handler = program_handler}, old;
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGSYS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    MUST(sigaction(SIGSYS, NULL, &old) == 0 && old.sa_handler == program_handler);
    MUST(signal(SIGSYS, SIG_IGN) == program_handler && signal(SIGSYS, program_handler) == SIG_IGN);
    action.sa_handler = alarm_handler;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    MUST(raise(SIGSYS) == 0 && sent == 1);
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    use(ours ? "" : NULL);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, use, ours ? "" : NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        use(ours ? "" : NULL);
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    /* The program executes itself, so that it inherits the filter. Its code is at the same
     * addresses if addresses are not random. */
    if (!getenv("AGAIN")) {
        MUST(setenv("AGAIN", "1", 1) == 0);
        execv("/proc/self/exe", arguments);
        MUST(0);
    }
    printf("done\n");
    return 0;
}
