/* Prints the seccomp state and NoNewPrivs of its process. With an argument, it uses a ring by
 * system call instructions. Moves stand between the load of a call's number and its instruction.
 * The argument says whose ring it must be: the library's ("ours") or the kernel's. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

static void status(void)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "Seccomp", 7) == 0 || strncmp(line, "NoNewPrivs", 10) == 0)
            fputs(line, stdout);
    if (file)
        fclose(file);
}

#if defined(__x86_64__)
/* Makes a call as a compiler does for an inlined function. */
#define RAW(name, number)                                                                      \
    static long name(long a, long b, long c, long d, long e, long f)                           \
    {                                                                                          \
        long answer;                                                                           \
        register long r8 __asm__("r8") = e, r9 __asm__("r9") = f, r12 __asm__("r12") = d;      \
        long at[1] = {c};                                                                      \
        __asm__ volatile("mov $" #number ", %%eax\n\tmov %%r12, %%r10\n\tmov (%[at]), %%rdx\n"  \
                         "\tsyscall"                                                           \
                         : "=a"(answer)                                                        \
                         : "D"(a), "S"(b), "r"(r8), "r"(r9), "r"(r12), [at] "b"(at)            \
                         : "rcx", "rdx", "r10", "r11", "memory");                              \
        return answer;                                                                         \
    }
RAW(raw_setup, 425)
RAW(raw_enter, 426)
RAW(raw_register, 427)
RAW(raw_mmap, 9)
RAW(raw_close, 3)

static void use(int ours)
{
    struct io_uring_params params = {0};
    int fd = (int)raw_setup(4, (long)&params, 0, 0, 0, 0);
    MUST(fd >= 0);
    char link[64] = {0}, path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(readlink(path, link, sizeof link - 1) > 0);
    MUST(!!strstr(link, "eventfd") == ours);
    long size = params.sq_off.array + params.sq_entries * 4;
    char *ring = (char *)raw_mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST((long)ring > 0 && *(unsigned *)(ring + params.sq_off.ring_entries) == 4);
    MUST(raw_enter(fd, 0, 0, 0, 0, 0) == 0);
    MUST(raw_register(fd, IORING_UNREGISTER_FILES, 0, 0, 0, 0) == -ENXIO);
    MUST(raw_close(fd, 0, 0, 0, 0, 0) == 0);
    MUST(raw_enter(fd, 0, 0, 0, 0, 0) == -EBADF);
}
#else
static void use(int ours)
{
    (void)ours;
}
#endif

int main(int count, char **arguments)
{
    status();
    if (count > 1)
        use(strcmp(arguments[1], "ours") == 0);
    status();
    printf("done\n");
    return 0;
}
