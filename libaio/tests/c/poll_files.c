/* POLL of files without a poll method: they are always ready, and events that never occur on them
 * are refused. */
#include "common.h"

int main(void)
{
    static const int events[] = {
        0, POLLIN, POLLOUT, POLLIN | POLLOUT, POLLPRI, POLLRDHUP, POLLIN | POLLPRI, POLLERR,
        POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM, POLLRDBAND, POLLWRBAND, POLLMSG, 0xffff,
    };
    struct { const char *name; int fd; } files[] = {
        {"file", temp_file(PAGE)},
        {"folder", open("/", O_RDONLY)},
        {"null", open("/dev/null", O_RDWR)},
        {"zero", open("/dev/zero", O_RDWR)},
        {"memfd", memfd_create("memory", 0)},
        {"proc", open("/proc/self/status", O_RDONLY)},
        {"path", open("/", O_PATH)},
        {"closed", 900},
    };
    io_context_t ctx = setup(16);
    char name[64];
    for (size_t at = 0; at < COUNT(files); at++)
        for (size_t one = 0; one < COUNT(events); one++) {
            struct iocb iocb;
            io_prep_poll(&iocb, files[at].fd, events[one]);
            snprintf(name, sizeof name, "%s, %#x", files[at].name, events[one]);
            request(ctx, name, &iocb);
        }
    /* What was accepted before is executed. */
    struct iocb two[2];
    struct io_event event;
    io_prep_poll(&two[0], files[0].fd, POLLIN);
    io_prep_poll(&two[1], files[0].fd, POLLPRI);
    answer("the second one is refused", io_submit(ctx, 2, (struct iocb *[]){&two[0], &two[1]}));
    reap(ctx, 1, &event);
    answer("the first one", (long)event.res);
    answer("destroy", io_destroy(ctx));
    return 0;
}
