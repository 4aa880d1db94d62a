/* An event loop that reads or writes a file, for ci/event-loops.sh.
 *
 *     event-loops libaio|io_uring|context FILE read|write cached|direct SIZE DEPTH SECONDS
 *
 * Each request is submitted by a call of its own. The loop sleeps in epoll_wait(2) on an eventfd,
 * which completions count up. Then it takes all completions, and submits as many requests.
 * `context` uses uringlet.h. Prints requests a second, and microseconds of CPU time for each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uringlet.h>

#define MUST(what) ((what) ? (void)0 : fail(#what))

enum { MOST = 64 };

static io_context_t aio;
static struct io_uring ring;
static struct uringlet *context;
static struct iocb iocbs[MOST];
static int file, counter, is_write;
static size_t size;
static char *buffers;

static void fail(const char *what)
{
    fprintf(stderr, "event-loops: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void begin(const char *interface)
{
    if (!strcmp(interface, "context")) {
        MUST(uringlet_create(&context, NULL) == 0);
        counter = uringlet_event_fd(context);
    } else if (!strcmp(interface, "libaio")) {
        MUST(io_setup(MOST, &aio) == 0);
        counter = eventfd(0, EFD_NONBLOCK);
    } else {
        MUST(io_uring_queue_init(MOST, &ring, 0) == 0);
        counter = eventfd(0, EFD_NONBLOCK);
        MUST(io_uring_register_eventfd(&ring, counter) == 0);
    }
    MUST(counter >= 0);
}

static void submit(long slot, off_t offset)
{
    char *buffer = buffers + slot * size;
    if (context) {
        struct uringlet_sqe *sqe = uringlet_get_sqe(context);
        if (is_write)
            uringlet_prep_write(sqe, file, buffer, size, offset);
        else
            uringlet_prep_read(sqe, file, buffer, size, offset);
        uringlet_sqe_set_data64(sqe, slot);
        MUST(uringlet_submit(context) == 1);
    } else if (aio) {
        struct iocb *iocb = &iocbs[slot];
        (is_write ? io_prep_pwrite : io_prep_pread)(iocb, file, buffer, size, offset);
        iocb->data = (void *)slot;
        io_set_eventfd(iocb, counter);
        MUST(io_submit(aio, 1, &iocb) == 1);
    } else {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        if (is_write)
            io_uring_prep_write(sqe, file, buffer, size, offset);
        else
            io_uring_prep_read(sqe, file, buffer, size, offset);
        io_uring_sqe_set_data64(sqe, slot);
        MUST(io_uring_submit(&ring) == 1);
    }
}

/* Takes completions, and stores their slots. */
static int collect(long *slots)
{
    int count = 0;
    if (context) {
        struct uringlet_cqe cqes[MOST];
        for (int left = uringlet_peek(context, cqes, MOST); count < left; count++) {
            MUST(cqes[count].res == (int)size);
            slots[count] = (long)cqes[count].user_data;
        }
        return count;
    }
    eventfd_t counted;
    eventfd_read(counter, &counted);
    if (aio) {
        struct io_event events[MOST];
        for (int left = io_getevents(aio, 0, MOST, events, NULL); count < left; count++) {
            MUST(events[count].res == size);
            slots[count] = (long)events[count].data;
        }
        return count;
    }
    for (struct io_uring_cqe *cqe; io_uring_peek_cqe(&ring, &cqe) == 0; count++) {
        MUST(cqe->res == (int)size);
        slots[count] = (long)cqe->user_data;
        io_uring_cqe_seen(&ring, cqe);
    }
    return count;
}

int main(int number, char **args)
{
    if (number != 8) {
        fprintf(stderr, "usage: event-loops libaio|io_uring|context FILE read|write cached|direct "
                        "SIZE DEPTH SECONDS\n");
        return 2;
    }
    is_write = !strcmp(args[3], "write");
    file = open(args[2], O_RDWR | O_CLOEXEC | (!strcmp(args[4], "direct") ? O_DIRECT : 0));
    MUST(file >= 0);
    size = strtoul(args[5], NULL, 10);
    int depth = atoi(args[6]), epoll = epoll_create1(EPOLL_CLOEXEC), held = depth, goes_on = 1;
    double length = atof(args[7]);
    struct stat about;
    MUST(fstat(file, &about) == 0 && size > 0 && depth > 0 && depth <= MOST && epoll >= 0);
    MUST((buffers = aligned_alloc(4096, (depth * size + 4095) / 4096 * 4096)));
    memset(buffers, 1, depth * size);
    begin(args[1]);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &event) == 0);
    unsigned long random = 88172645463325252ul, done = 0, blocks = about.st_size / size;
    long free[2 * MOST];
    for (long slot = 0; slot < depth; slot++)
        free[slot] = slot;
    double begun = seconds(), cpu = cpu_seconds();
    for (unsigned long turn = 1; goes_on || held < depth; turn++) {
        for (; goes_on && held > 0; held--) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            submit(free[held - 1], (off_t)(random % blocks * size));
        }
        if (epoll_wait(epoll, &event, 1, -1) != 1)
            continue;
        int count = collect(free + held);
        held += count, done += count;
        if (turn % 16 == 0)
            goes_on = goes_on && seconds() - begun < length;
    }
    double time = seconds() - begun;
    printf("%.0f %.2f\n", done / time, (cpu_seconds() - cpu) / done * 1e6);
    return 0;
}
