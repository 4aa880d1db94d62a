/* Threads with a descriptor table of their own: a request reads the file that its number names in
 * their table, or the call is refused. */
#include "../../../libaio/tests/support/own_table.h"
#include <aio.h>

static long read_once(unsigned char *buf, long long offset)
{
    struct aiocb cb = {.aio_fildes = shared, .aio_buf = buf, .aio_nbytes = PAGE};
    const struct aiocb *list[] = {&cb};
    cb.aio_offset = offset;
    /* A thread of the library executes a request that has a notification. This signal is
     * ignored. */
    cb.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    cb.aio_sigevent.sigev_signo = SIGURG;
    if (aio_read(&cb))
        return -errno;
    while (aio_error(&cb) == EINPROGRESS)
        if (aio_suspend(list, 1, NULL) && errno == EINVAL)
            die("a request that was accepted");
    return aio_error(&cb) ? -aio_error(&cb) : aio_return(&cb);
}

static struct aiocb waiting;
static char byte;
static int ends[2];

/* Submits a request, and then gets a descriptor table of its own. Prints the answers of a wait for
 * the request and of its cancel. */
static int later(void)
{
    const struct aiocb *list[] = {&waiting};
    int got;
    if (pipe(ends))
        die("pipe");
    waiting = (struct aiocb){.aio_fildes = ends[0], .aio_buf = &byte, .aio_nbytes = 1};
    waiting.aio_sigevent.sigev_notify = SIGEV_NONE;
    if (aio_read(&waiting) || unshare(CLONE_FILES))
        return -1;
    got = aio_suspend(list, 1, NULL) ? -errno : 0;
    answer("a wait for what was in flight", got);
    answer("a cancel of it", aio_cancel(ends[0], &waiting) == -1 ? -errno : 0);
    answer("its state", aio_error(&waiting));
    return 0;
}

int main(void)
{
    unsigned char *buf = pages(PAGE);
    const struct aiocb *list[] = {&waiting};
    make_files();
    answer("unshare by the only thread", unshare(CLONE_FILES));
    if (read_once(buf, 0) != PAGE)
        die("a read");
    part("unshare", by_unshare, 0);
    part("unshare with a request in flight", later, 0);
    part("unshare, a thread of that thread", by_unshare, 1);
    part("close_range", by_close_range, 0);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    while (aio_error(&waiting) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    say("what was in flight", "%ld %c", (long)aio_return(&waiting), byte);
    return 0;
}
