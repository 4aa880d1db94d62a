/* What the differential programs of all drop-ins share: lines of answers, temporary files.
 *
 * A program prints `name: answer` lines, each name once and nothing that depends on timing; it
 * exits with 0, or with SKIP and a reason on stderr. Tests that compare run it on two libraries.
 * A name may begin with what its answer covers, for the matrix in the README:
 * `[io_submit EBADF] closed descriptor`, `[aio_read EFAULT; aio_error an errno] …`. */
#ifndef ANSWERS_H
#define ANSWERS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define SKIP 77
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
/* An address that nothing maps (hidden from the compiler), and one that belongs to the kernel. */
#define UNMAPPED ((void *)unmapped)
#define KERNEL_ADDRESS ((void *)-PAGE)

#define UNUSED __attribute__((unused))

UNUSED static volatile uintptr_t unmapped = 8;

/* Ends the program after an error of the program itself or of the machine. Such an error is no
 * answer that tests compare. */
UNUSED __attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("broken test program: ", stderr);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (errno %s)\n", strerrorname_np(errno));
    va_end(list);
    fflush(stdout);
    _exit(1);
}

/* Checks that `function` comes from the expected library. If a preload failed silently, the test
 * would compare the original with itself. */
UNUSED static void the_right_library(const char *variable, const char *function,
                                     const char *original)
{
    const char *expected = getenv(variable);
    Dl_info info;
    if (!expected)
        return;
    void *found = dlsym(RTLD_DEFAULT, function);
    if (!found || !dladdr(found, &info))
        die("no %s", function);
    if (strcmp(expected, "original") ? strcmp(expected, info.dli_fname)
                                     : !strstr(info.dli_fname, original))
        die("%s is %s's, expected was %s", function, info.dli_fname, expected);
}

UNUSED __attribute__((noreturn)) static void skip(const char *reason)
{
    fprintf(stderr, "%s\n", reason);
    exit(SKIP);
}

UNUSED __attribute__((format(printf, 2, 3))) static void say(const char *name, const char *format,
                                                             ...)
{
    va_list list;
    va_start(list, format);
    printf("%s: ", name);
    vprintf(format, list);
    putchar('\n');
    fflush(stdout);
    va_end(list);
}

/* A result as text: a count as a number, an errno by its name. Two buffers are used in turn, so
 * that one line can have two results. */
UNUSED static const char *code(long value)
{
    static __thread char text[2][32];
    static __thread int turn;
    char *out = text[turn ^= 1];
    const char *name = value < 0 && value > -4096 ? strerrorname_np((int)-value) : NULL;
    if (name)
        snprintf(out, sizeof text[0], "-%s", name);
    else
        snprintf(out, sizeof text[0], "%ld", value);
    return out;
}

UNUSED static void answer(const char *name, long value)
{
    say(name, "%s", code(value));
}

UNUSED static void yes(const char *name, int truth)
{
    say(name, "%s", truth ? "yes" : "no");
}

/* An unlinked file of `size` patterned bytes in $TMPDIR. */
UNUSED static int temp_file(size_t size)
{
    const char *folder = getenv("TMPDIR");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/file-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0 || unlink(path))
        die("cannot make %s", path);
    unsigned char block[PAGE];
    for (size_t at = 0; at < size; at += PAGE) {
        size_t n = size - at < PAGE ? size - at : PAGE;
        for (size_t i = 0; i < n; i++)
            block[i] = (unsigned char)((at + i) / PAGE * 7 + i % 251);
        if (pwrite(fd, block, n, (off_t)at) != (ssize_t)n)
            die("cannot fill the temporary file");
    }
    return fd;
}

/* A socket that clients may connect to, under a name of the kernel's choice. */
UNUSED static int listening(void)
{
    struct sockaddr any = {.sa_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, &any, sizeof any.sa_family) || listen(fd, 1))
        die("listen");
    return fd;
}

/* True if `buf` holds what temp_file wrote at `offset`. */
UNUSED static int holds(const unsigned char *buf, size_t n, size_t offset)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = offset + i;
        if (buf[i] != (unsigned char)(at / PAGE * 7 + at % PAGE % 251))
            return 0;
    }
    return 1;
}

/* Opens the same file with other flags; a negative errno if that is refused. */
UNUSED static int reopen(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = open(path, flags);
    return other < 0 ? -errno : other;
}

/* Moves the file of `fd` to a number that no file of this process has had, so that the library
   knows nothing about the number. */
UNUSED static int unseen(int fd)
{
    static int next = 100;
    int number = fcntl(fd, F_DUPFD_CLOEXEC, next);
    if (number < 0)
        die("no descriptor from %d on", next);
    next = number + 1;
    close(fd);
    return number;
}

/* `n` bytes on page boundaries, zeroed. */
UNUSED static void *pages(size_t n)
{
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("no memory");
    return at;
}

/* One accessible page with an inaccessible one after it. The second page stays mapped, because
 * another mapping could take the place of an unmapped page. */
UNUSED static unsigned char *last_page(void)
{
    unsigned char *at = pages(2 * PAGE);
    if (mprotect(at + PAGE, PAGE, PROT_NONE))
        die("mprotect");
    return at;
}

UNUSED static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Confines the program to one CPU. The kernel gives request slots to CPUs in batches, so the number
 * of requests that it accepts depends on the CPUs that submit. */
UNUSED static void stay_on_one_cpu(void)
{
    cpu_set_t set;
    int cpu = sched_getcpu();
    CPU_ZERO(&set);
    CPU_SET(cpu < 0 ? 0 : cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

/* Waits until thread `tid` of this process sleeps. */
UNUSED static void until_asleep(pid_t tid)
{
    char path[64];
    int asleep = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    for (int i = 0; i < 20000 && asleep < 20; i++) {
        char text[512], *state = NULL;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        if (n > 0) {
            text[n] = 0;
            state = strrchr(text, ')');
        }
        asleep = state && state[2] == 'S' ? asleep + 1 : 0;
        usleep(1000);
    }
    if (asleep < 20)
        die("thread %d never slept", tid);
}

UNUSED static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A figure of /proc/self/status, unchanged: sizes in KiB. */
UNUSED static long status(const char *what)
{
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, what, strlen(what)))
            value = atol(line + strlen(what));
    if (file)
        fclose(file);
    return value;
}

/* Returns a figure of /proc/self/status once it is at most `bound`, or after 10 s: ending threads
 * may take a moment. */
UNUSED static long settled(const char *what, long bound)
{
    long value;
    for (int i = 0; (value = status(what)) > bound && i < 10000; i++)
        usleep(1000);
    return value;
}

/* The number in an environment variable, or `otherwise` if the variable is not set. */
UNUSED static long number(const char *variable, long otherwise)
{
    const char *text = getenv(variable);
    return text ? atol(text) : otherwise;
}

#endif
