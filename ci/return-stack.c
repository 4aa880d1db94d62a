/* Times system calls with different instructions behind them (docs/decisions/032-return-stack.md).
 * ci/return-stack.sh runs it.
 *
 *   return-stack FILE ROUNDS
 *
 * Prints nanoseconds per call, the median of ROUNDS rounds of 50 ms: getppid(2), cached reads of
 * 4 KiB and buffered writes of 1 KiB, at random places in the first 10 MiB of the file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define FILL(count) \
    ".rept " #count "\n call 1f\n int3\n 1:\n .endr\n lea 8*" #count "(%rsp), %rsp\n"

typedef long system_call(long number, long a, long b, long c, long d);

/* A function that makes a system call. `before` and `after` are instructions around the call. */
#define CALLS(name, before, after) \
    system_call name; \
    __asm__(".text\n" #name ":\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n" \
            "mov %rcx, %rdx\n mov %r8, %r10\n" before "syscall\n" after);

CALLS(plain, "", "ret\n")
CALLS(jumps, "", "pop %rcx\n jmp *%rcx\n")
CALLS(fills_one, "", FILL(1) "ret\n")
CALLS(fills, "", FILL(16) "ret\n")
CALLS(fills_before, FILL(16), "ret\n")

static const struct {
    const char *name;
    system_call *call;
} ways[] = {
    {"ret", plain},
    {"pop and jmp", jumps},
    {"fill 1, ret", fills_one},
    {"fill 16, ret", fills},
    {"fill 16 before, ret", fills_before},
};
enum { WAYS = sizeof ways / sizeof *ways, KINDS = 3, ROUNDS_MAX = 99, PLACES = 10 << 20 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double measure(int way, int kind, int fd, char *buffer)
{
    static unsigned long state = 88172645463325252ul;
    long length = kind == 1 ? 4096 : 1024, done = 0;
    double begin = now(), end;
    do {
        for (int at = 0; at < 1000; at++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            long place = (long)(state % (unsigned long)(PLACES / length)) * length;
            long number = kind == 0 ? SYS_getppid : kind == 1 ? SYS_pread64 : SYS_pwrite64;
            long answer = ways[way].call(number, fd, (long)buffer, length, place);
            if (kind > 0 && answer != length) {
                fprintf(stderr, "a transfer: %s\n", strerror(answer < 0 ? (int)-answer : EIO));
                exit(1);
            }
        }
        done += 1000;
        end = now();
    } while (end - begin < 5e7);
    return (end - begin) / (double)done;
}

static int order(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments)
{
    int rounds = count == 3 ? atoi(arguments[2]) : 0;
    int fd = rounds > 0 && rounds <= ROUNDS_MAX ? open(arguments[1], O_RDWR | O_CLOEXEC) : -1;
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0 || stat.st_size < PLACES) {
        fprintf(stderr, "expected: FILE (of at least 10 MiB) ROUNDS (1 to 99)\n");
        return 1;
    }
    static char buffer[4096];
    static double times[WAYS][KINDS][ROUNDS_MAX];
    for (int round = 0; round < rounds; round++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int way = 0; way < WAYS; way++)
                times[way][kind][round] = measure(way, kind, fd, buffer);
    printf("%-20s %8s %8s %8s\n", "after the call", "getppid", "read", "write");
    for (int way = 0; way < WAYS; way++) {
        printf("%-20s", ways[way].name);
        for (int kind = 0; kind < KINDS; kind++) {
            double *all = times[way][kind];
            qsort(all, (size_t)rounds, sizeof *all, order);
            printf(" %8.0f", all[rounds / 2]);
        }
        printf("\n");
    }
    return 0;
}
