/* Limits: lengths beyond 32 bits, the size that a file may have, and the number of descriptors. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PAGE = 4096, RINGS = 1000, FILES = 1024 };

static struct io_uring ring;

static int result(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(ring) == 1 && io_uring_wait_cqe(ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

/* MADVISE takes a length of 64 bits from the offset field, and FADVISE from the address field.
 * Kernels without these lengths use the length of 32 bits. */
static void advice(void)
{
    const unsigned long size = 4UL << 30;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd = scratch();
    char *memory = mmap(NULL, size + 2 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(memory != MAP_FAILED);
    memory[0] = memory[size] = memory[size + PAGE] = 1;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_madvise(sqe, memory, 0, MADV_DONTNEED);
    sqe->off = size + PAGE;
    int got = result(&ring);
    printf("madvise of 4 GiB and a page: %d, left %d %d %d\n", got, memory[0], memory[size],
           memory[size + PAGE]);
    MUST(munmap(memory, size + 2 * PAGE) == 0);
    /* Without their upper 32 bits, both lengths would be 0. 2^63 is negative as a signed length,
     * and is refused. */
    for (int bit = 32; bit < 64; bit += 31) {
        sqe = entry(&ring, 0);
        io_uring_prep_fadvise(sqe, fd, 0, 0, POSIX_FADV_NORMAL);
        sqe->addr = 1UL << bit;
        printf("fadvise of 2^%d bytes: %d\n", bit, result(&ring));
    }
    MUST(close(fd) == 0);
}

static volatile sig_atomic_t signals;
static int is_memory;

static void counts(int unused)
{
    (void)unused;
    signals++;
}

/* Prints the result of the entry, and whether the process has got SIGXFSZ for it. The signal is
 * printed only for a file in memory: elsewhere it depends on whether the file system writes
 * without waiting. */
static void limited(const char *what, unsigned flags)
{
    ring.sq.sqes[(ring.sq.sqe_tail - 1) & *ring.sq.kring_mask].flags |= flags;
    signals = 0;
    int got = result(&ring);
    printf("%s, flags %u: %d, signals %d\n", what, flags, got, is_memory ? (int)signals : -1);
}

/* RLIMIT_FSIZE allows files of six pages and ten bytes. */
static void sizes(const char *where, int fd)
{
    static char bytes[2 * PAGE];
    struct iovec whole = {bytes, sizeof bytes}, parts[2] = {{bytes, PAGE}, {bytes + PAGE, PAGE}};
    MUST(fd >= 0 && io_uring_register_buffers(&ring, &whole, 1) == 0);
    for (int behind = 0; behind < 2; behind++) {
        long at = (behind ? 7 : 5) * PAGE;
        printf("%s, %s the limit\n", where, behind ? "behind" : "over");
        for (unsigned flags = 0; flags <= IOSQE_ASYNC; flags += IOSQE_ASYNC) {
            io_uring_prep_write(entry(&ring, 0), fd, bytes, PAGE, 4 * PAGE);
            limited("write below it", flags);
            io_uring_prep_write(entry(&ring, 0), fd, bytes, 2 * PAGE, at);
            limited("write", flags);
            io_uring_prep_writev(entry(&ring, 0), fd, parts, 2, at);
            limited("writev", flags);
            io_uring_prep_write_fixed(entry(&ring, 0), fd, bytes, 2 * PAGE, at, 0);
            limited("fixed write", flags);
        }
    }
    io_uring_prep_fallocate(entry(&ring, 0), fd, 0, 0, 8 * PAGE);
    limited("fallocate", 0);
    MUST(io_uring_unregister_buffers(&ring) == 0 && close(fd) == 0);
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    MUST(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The engine's own descriptors were opened with the first ring, so they are not counted here. */
static void rings(void)
{
    static struct io_uring all[RINGS];
    struct rlimit files = {FILES, FILES};
    int before = descriptors(), made = 0, good = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &files) == 0);
    while (made < RINGS && io_uring_queue_init(8, &all[made], 0) == 0)
        made++;
    printf("%d rings, %d descriptors more\n", made, descriptors() - before);
    for (int at = 0; at < made; at++) {
        io_uring_prep_nop(entry(&all[at], 0));
        good += result(&all[at]) == 0;
        io_uring_queue_exit(&all[at]);
    }
    printf("%d of them work, %d descriptors left\n", good, descriptors() - before);
}

int main(void)
{
    struct rlimit size = {6 * PAGE + 10, RLIM_INFINITY};
    MUST(setrlimit(RLIMIT_FSIZE, &size) == 0 && signal(SIGXFSZ, counts) != SIG_ERR);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    advice();
    sizes("file", scratch());
    is_memory = 1;
    sizes("memory", memfd_create("limited", 0));
    rings();
    io_uring_queue_exit(&ring);
    return 0;
}
