/* Polls of files without a poll method: they are always ready, and events that never occur on them
 * are refused. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

static struct io_uring ring;

static void poll_for(const char *name, int fd, unsigned events, int many)
{
    char what[64];
    struct io_uring_sqe *sqe = entry(&ring, 1);
    if (many)
        io_uring_prep_poll_multishot(sqe, fd, events);
    else
        io_uring_prep_poll_add(sqe, fd, events);
    sqe->user_data = 1;
    sqe->flags = IOSQE_IO_LINK;
    sqe = entry(&ring, 2);
    io_uring_prep_nop(sqe);
    sqe->user_data = 2;
    MUST(io_uring_submit(&ring) == 2);
    snprintf(what, sizeof what, "%s, %#x%s", name, events, many ? ", many" : "");
    completions(&ring, what, 2);
}

int main(void)
{
    static const unsigned events[] = {
        0, POLLIN, POLLOUT, POLLIN | POLLOUT, POLLPRI, POLLRDHUP, POLLIN | POLLPRI, POLLERR,
        POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM, POLLRDBAND, POLLWRBAND, POLLMSG, 0xffff,
    };
    struct { const char *name; int fd; } files[] = {
        {"file", scratch()},
        {"folder", open(".", O_RDONLY)},
        {"null", open("/dev/null", O_RDWR)},
        {"zero", open("/dev/zero", O_RDWR)},
        {"memfd", memfd_create("memory", 0)},
        {"proc", open("/proc/self/status", O_RDONLY)},
        {"path", open(".", O_PATH)},
        {"closed", 900},
    };
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    for (size_t at = 0; at < sizeof files / sizeof *files; at++)
        for (size_t one = 0; one < sizeof events / sizeof *events; one++)
            for (int many = 0; many < 2; many++)
                poll_for(files[at].name, files[at].fd, events[one], many);
    io_uring_queue_exit(&ring);
    return 0;
}
