/* Makes one request per call, through one interface. ci/instructions.sh counts the instructions of
 * this program.
 *
 *   FILE read|write DEPTH UNCOUNTED COUNTED
 *
 * Compiled with FACE_LIBAIO, FACE_POSIX_AIO or FACE_LIBURING, or FACE_PLAIN for plain calls.
 * Keeps DEPTH requests in flight: submits one, waits for one, takes one. Reads are of 4 KiB, writes
 * of 1 KiB. Each request in flight has an offset of its own. Two breakpoints tell
 * ci/steps.c where the counted part begins and ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, PAGE = 4096 };

static int fd, writes;
static unsigned depth, length;
static char buffers[DEPTH_MAX][PAGE] __attribute__((aligned(PAGE)));

static void die(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static void check(long result)
{
    if (result != (long)length)
        die("a request", result < 0 ? (int)-result : EIO);
}

#if defined FACE_LIBAIO
#include <libaio.h>

static io_context_t context;
static struct iocb requests[DEPTH_MAX];

static void begin(void)
{
    int error = io_setup((int)depth, &context);
    if (error < 0)
        die("io_setup", -error);
}

static void submit(unsigned one)
{
    struct iocb *request = &requests[one];
    if (writes)
        io_prep_pwrite(request, fd, buffers[one], length, (long)one * PAGE);
    else
        io_prep_pread(request, fd, buffers[one], length, (long)one * PAGE);
    request->data = (void *)(unsigned long)one;
    if (io_submit(context, 1, &request) != 1)
        die("io_submit", EIO);
}

static unsigned take(void)
{
    struct io_event event;
    if (io_getevents(context, 1, 1, &event, NULL) != 1)
        die("io_getevents", EIO);
    check((long)event.res);
    return (unsigned)(unsigned long)event.data;
}

#elif defined FACE_POSIX_AIO
#include <aio.h>

static struct aiocb requests[DEPTH_MAX];
static const struct aiocb *list[DEPTH_MAX];

static void begin(void)
{
}

static void submit(unsigned one)
{
    struct aiocb *request = &requests[one];
    request->aio_fildes = fd;
    request->aio_buf = buffers[one];
    request->aio_nbytes = length;
    request->aio_offset = (long)one * PAGE;
    request->aio_sigevent.sigev_notify = SIGEV_NONE;
    if ((writes ? aio_write(request) : aio_read(request)) != 0)
        die("aio_read or aio_write", errno);
    list[one] = request;
}

static unsigned take(void)
{
    for (;;) {
        for (unsigned one = 0; one < depth; one++)
            if (list[one] && aio_error(list[one]) != EINPROGRESS) {
                list[one] = NULL;
                check(aio_return(&requests[one]));
                return one;
            }
        if (aio_suspend(list, (int)depth, NULL) != 0)
            die("aio_suspend", errno);
    }
}

#elif defined FACE_LIBURING
#include <liburing.h>

static struct io_uring ring;

static void begin(void)
{
    int error = io_uring_queue_init(depth, &ring, 0);
    if (error < 0)
        die("io_uring_queue_init", -error);
}

static void submit(unsigned one)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (writes)
        io_uring_prep_write(sqe, fd, buffers[one], length, (unsigned long)one * PAGE);
    else
        io_uring_prep_read(sqe, fd, buffers[one], length, (unsigned long)one * PAGE);
    io_uring_sqe_set_data64(sqe, one);
    if (io_uring_submit(&ring) != 1)
        die("io_uring_submit", EIO);
}

static unsigned take(void)
{
    struct io_uring_cqe *cqe;
    int error = io_uring_wait_cqe(&ring, &cqe);
    if (error < 0)
        die("io_uring_wait_cqe", -error);
    check(cqe->res);
    unsigned one = (unsigned)io_uring_cqe_get_data64(cqe);
    io_uring_cqe_seen(&ring, cqe);
    return one;
}

#else

static unsigned next;

static void begin(void)
{
}

static void submit(unsigned one)
{
    check(writes ? pwrite(fd, buffers[one], length, (long)one * PAGE)
                 : pread(fd, buffers[one], length, (long)one * PAGE));
    next = one;
}

static unsigned take(void)
{
    return next;
}

#endif

int main(int count, char **arguments)
{
    if (count != 6)
        die("FILE read|write DEPTH UNCOUNTED COUNTED", EINVAL);
    fd = open(arguments[1], O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die(arguments[1], errno);
    writes = !strcmp(arguments[2], "write");
    length = writes ? 1024 : PAGE;
    depth = (unsigned)atoi(arguments[3]);
    unsigned long uncounted = strtoul(arguments[4], NULL, 10);
    unsigned long counted = strtoul(arguments[5], NULL, 10);
    if (depth == 0 || depth > DEPTH_MAX)
        die(arguments[3], EINVAL);
    begin();
    for (unsigned one = 0; one < depth; one++)
        submit(one);
    for (unsigned long left = uncounted; left; left--)
        submit(take());
    __asm__ volatile("int3");
    for (unsigned long left = counted; left; left--)
        submit(take());
    __asm__ volatile("int3");
    return 0;
}
