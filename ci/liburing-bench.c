/* A minimal loop over liburing. ci/liburing-bench.sh runs it natively and on the drop-in.
 *
 *   liburing-bench FILE nop|read|write|cold|direct|direct-write DEPTH SECONDS
 *
 * Keeps DEPTH requests in flight, waits for one completion, and takes all that are there. Prints
 * requests per second, and nanoseconds of CPU time of all threads per request. Requests are of
 * 4 KiB at random places. Buffered writes are of 1 KiB, in the first 10 MiB, as in published
 * experiments.
 * "cold" reads each page at most once, from a file that is not in memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

enum { PAGE = 4096, DEPTH_MAX = 1024, WRITTEN = 10 << 20 };

static void die(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **arguments)
{
    if (count != 5)
        die("FILE nop|read|write|cold|direct|direct-write DEPTH SECONDS", EINVAL);
    const char *what = arguments[2];
    unsigned depth = (unsigned)atoi(arguments[3]);
    double seconds = atof(arguments[4]);
    int nop = !strcmp(what, "nop"), cold = !strcmp(what, "cold");
    int direct = !strncmp(what, "direct", 6), write = !!strstr(what, "write");
    unsigned length = write && !direct ? 1024 : PAGE;
    if (depth == 0 || depth > DEPTH_MAX)
        die(arguments[3], EINVAL);
    int fd = open(arguments[1], O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0));
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        die(arguments[1], errno);
    unsigned long size = (unsigned long)stat.st_size;
    if (write && !direct && size > WRITTEN)
        size = WRITTEN;
    unsigned long places = size / length;
    if (cold) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    }
    char *buffers = aligned_alloc(PAGE, (size_t)depth * PAGE);
    if (!buffers || !places)
        die("memory, or an empty file", ENOMEM);
    memset(buffers, 'u', (size_t)depth * PAGE);
    struct io_uring ring;
    int error = io_uring_queue_init(depth, &ring, 0);
    if (error < 0)
        die("io_uring_queue_init", -error);

    unsigned long state = 88172645463325252ul, done = 0, begun = 0;
    /* If the step and the number of pages have no common divisor, each page is read once. */
    unsigned long step = places / 2 + places / 8 | 1, at = 0;
    while (cold && step > 1) {
        unsigned long a = step, b = places;
        while (b) {
            unsigned long rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
        step += 2;
    }
    unsigned in_flight = 0, unused[DEPTH_MAX], left = 0;
    while (left < depth) {
        unused[left] = left;
        left++;
    }
    double begin = now(), end = begin, busy = cpu();
    int over = 0;
    while (!over || in_flight) {
        while (!over && left > 0) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            unsigned one = unused[--left];
            char *buffer = buffers + (size_t)one * PAGE;
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            at = cold ? (at + step) % places : state % places;
            if (nop)
                io_uring_prep_nop(sqe);
            else if (write)
                io_uring_prep_write(sqe, fd, buffer, length, at * length);
            else
                io_uring_prep_read(sqe, fd, buffer, length, at * length);
            io_uring_sqe_set_data64(sqe, one);
            in_flight++;
            begun++;
        }
        int answer = io_uring_submit_and_wait(&ring, 1);
        if (answer < 0)
            die("io_uring_submit_and_wait", -answer);
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        io_uring_for_each_cqe(&ring, head, cqe) {
            if (cqe->res != (nop ? 0 : (int)length))
                die("a request", cqe->res < 0 ? -cqe->res : EIO);
            unused[left++] = (unsigned)io_uring_cqe_get_data64(cqe);
            seen++;
        }
        io_uring_cq_advance(&ring, seen);
        in_flight -= seen;
        done += seen;
        /* For nops with at most 8 in flight, reads the clock once in 16 requests: otherwise the
         * clock's time would be a large part of the result. */
        if (done % 16 < seen || depth > 8 || !nop) {
            end = now();
            over = end - begin >= seconds || cold && begun + depth > places;
        }
    }
    printf("%.0f %.1f\n", (double)done / (end - begin), (cpu() - busy) * 1e9 / (double)done);
    io_uring_queue_exit(&ring);
    return 0;
}
