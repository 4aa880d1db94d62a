/* Reads and writes at the file position: one at a time, several in a submit, at the end of the
 * file, of pages that are not in memory, and behind each other. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/uio.h>

static struct io_uring ring;
static char data[8][64];

static void read_(int fd, int at, unsigned len)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, fd, data[at], len, -1);
    sqe->user_data = at;
}

static void show(const char *what, int fd, int count, int shows)
{
    printf("[%s]\n", what);
    /* With SQPOLL, the kernel may have taken the entries before they are counted. */
    MUST(io_uring_submit_and_wait(&ring, count) >= 0);
    int results[8];
    for (int one = 0; one < count; one++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        results[cqe->user_data] = cqe->res;
        io_uring_cqe_seen(&ring, cqe);
    }
    for (int one = 0; one < count; one++)
        printf("%d gives %d: %.*s\n", one, results[one],
               shows && results[one] > 0 ? results[one] : 0, data[one]);
    printf("position %d\n", (int)lseek(fd, 0, SEEK_CUR));
}

static void file(void)
{
    int fd = scratch();
    MUST(pwrite(fd, "0123456789abcdefghij", 20, 0) == 20);
    for (int one = 0; one < 3; one++) {
        read_(fd, 0, 6);
        show("one", fd, 1, 1);
    }
    read_(fd, 0, 6);
    show("the end", fd, 1, 1);
    read_(fd, 0, 6);
    show("behind the end", fd, 1, 1);
    MUST(lseek(fd, 2, SEEK_SET) == 2);
    for (int one = 0; one < 4; one++)
        read_(fd, one, one + 2);
    show("several", fd, 4, 1);
    /* Vectors. */
    MUST(lseek(fd, 1, SEEK_SET) == 1);
    struct iovec parts[2] = { { data[0], 2 }, { data[0] + 2, 3 } };
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_readv(sqe, fd, parts, 2, -1);
    sqe->user_data = 0;
    show("a vector", fd, 1, 1);
    /* A read at an offset leaves the position alone. */
    sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, fd, data[0], 4, 10);
    sqe->user_data = 0;
    show("at an offset", fd, 1, 1);
    /* Writes, and reads behind them. */
    sqe = entry(&ring, 0);
    io_uring_prep_write(sqe, fd, "WXYZ", 4, -1);
    sqe->user_data = 0;
    show("a write", fd, 1, 0);
    sqe = entry(&ring, 0);
    io_uring_prep_writev(sqe, fd, (struct iovec[]){ { "vw", 2 } }, 1, -1);
    sqe->user_data = 0;
    show("a vector is written", fd, 1, 0);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    read_(fd, 0, 40);
    show("what was written", fd, 1, 1);
    /* Errors move nothing. */
    MUST(lseek(fd, 3, SEEK_SET) == 3);
    sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, fd, (void *)8, 4, -1);
    sqe->user_data = 0;
    show("a bad address", fd, 1, 0);
    int again = dup(fd);
    read_(again, 0, 3);
    show("a duplicate has the same position", fd, 1, 1);
    /* Pages that are not in memory. */
    MUST(fdatasync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    read_(fd, 0, 10);
    show("not in memory", fd, 1, 1);
    MUST(close(again) == 0 && close(fd) == 0);
}

/* Two threads enter one ring at the same time. Each submits reads of eight bytes at the position of
 * one file, and each number of the file is read once. */
enum { READS = 2000 };
static unsigned long long numbers[2 * READS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int queued, ended;

static void *reads(void *file)
{
    for (int one = 0; one < READS; one++) {
        MUST(pthread_mutex_lock(&lock) == 0);
        unsigned tail = *ring.sq.ktail;
        struct io_uring_sqe *sqe = &ring.sq.sqes[tail & ring.sq.ring_mask];
        io_uring_prep_read(sqe, *(int *)file, &numbers[queued++], 8, -1);
        ring.sq.array[tail & ring.sq.ring_mask] = tail & ring.sq.ring_mask;
        __atomic_store_n(ring.sq.ktail, tail + 1, __ATOMIC_RELEASE);
        MUST(pthread_mutex_unlock(&lock) == 0);
        io_uring_enter(ring.ring_fd, 1, 0, 0, NULL);
        MUST(pthread_mutex_lock(&lock) == 0);
        for (struct io_uring_cqe *cqe; io_uring_peek_cqe(&ring, &cqe) == 0; ended++) {
            MUST(cqe->res == 8);
            io_uring_cqe_seen(&ring, cqe);
        }
        MUST(pthread_mutex_unlock(&lock) == 0);
    }
    return NULL;
}

static int compare(const void *one, const void *other)
{
    unsigned long long a = *(unsigned long long *)one, b = *(unsigned long long *)other;
    return a < b ? -1 : a > b;
}

static void threads(void)
{
    int fd = scratch();
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    for (unsigned long long at = 0; at < 2 * READS; at++)
        MUST(pwrite(fd, &at, 8, 8 * at) == 8);
    pthread_t other;
    MUST(pthread_create(&other, NULL, reads, &fd) == 0);
    reads(&fd);
    MUST(pthread_join(other, NULL) == 0);
    for (struct io_uring_cqe *cqe; ended < 2 * READS; ended++) {
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 8);
        io_uring_cqe_seen(&ring, cqe);
    }
    qsort(numbers, 2 * READS, sizeof *numbers, compare);
    int wrong = 0;
    for (int at = 0; at < 2 * READS; at++)
        wrong += numbers[at] != (unsigned long long)at;
    printf("[threads]\nnumbers not read once: %d\n", wrong);
    io_uring_queue_exit(&ring);
    MUST(close(fd) == 0);
}

/* A number that named a file names a full pipe: the submit of a write does not wait. */
static void full_pipe(void)
{
    int fd = scratch(), ends[2];
    static char zeros[1 << 16];
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_write(sqe, fd, "x", 1, -1);
    sqe->user_data = 0;
    show("a file", fd, 1, 0);
    MUST(pipe(ends) == 0 && write(ends[1], zeros, sizeof zeros) == sizeof zeros);
    MUST(dup2(ends[1], fd) == fd);
    sqe = entry(&ring, 0);
    io_uring_prep_write(sqe, fd, "y", 1, -1);
    sqe->user_data = 0;
    MUST(io_uring_submit(&ring) >= 0);
    struct io_uring_cqe *cqe;
    printf("[a full pipe]\nat once: %d\n", io_uring_peek_cqe(&ring, &cqe));
    MUST(read(ends[0], zeros, sizeof zeros) == sizeof zeros);
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("then: %d\n", cqe->res);
    io_uring_cqe_seen(&ring, cqe);
    MUST(close(fd) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(void)
{
    for (int flags = 0; flags < 2; flags++) {
        MUST(io_uring_queue_init(8, &ring, flags ? IORING_SETUP_SQPOLL : 0) == 0);
        file();
        full_pipe();
        /* Appends go to the end, wherever the position is. */
        char name[] = "/tmp/positions-XXXXXX";
        int fd = mkstemp(name);
        MUST(fd >= 0 && write(fd, "abc", 3) == 3);
        int appends = open(name, O_RDWR | O_APPEND);
        MUST(appends >= 0 && unlink(name) == 0);
        for (int one = 0; one < 2; one++) {
            struct io_uring_sqe *sqe = entry(&ring, 0);
            io_uring_prep_write(sqe, appends, "de", 2, -1);
            sqe->user_data = 0;
            show("an append", appends, 1, 0);
        }
        /* A pipe has no position. */
        int ends[2];
        MUST(pipe(ends) == 0 && write(ends[1], "pipe", 4) == 4);
        read_(ends[0], 0, 4);
        show("a pipe", ends[0], 1, 1);
        io_uring_queue_exit(&ring);
        MUST(close(fd) == 0 && close(appends) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    }
    threads();
    return 0;
}
