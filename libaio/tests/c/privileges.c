/* A daemon that changes its user while requests are in flight: the calls return. */
#include "common.h"
#include "../support/privileges.h"

#define READS 8

static io_context_t ctx;
static int fd, direct;
static unsigned char *buf;

static void work(void)
{
    struct iocb iocbs[READS + 1], *list[READS + 1];
    struct io_event events[READS + 1];
    int n = READS;
    list[n++] = &iocbs[READS];
    io_prep_fsync(&iocbs[READS], fd);
    for (int i = 0; i < READS; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], i % 2 && direct >= 0 ? direct : fd, buf + i * PAGE, PAGE, i * PAGE);
    }
    if (io_submit(ctx, n, list) != n)
        die("submit");
    reap(ctx, n, events);
    for (int i = 0; i < n; i++)
        if (events[i].res != (events[i].obj == &iocbs[READS] ? 0 : PAGE))
            die("a request: %s", code((long)events[i].res));
    for (int i = 0; i < READS; i++)
        if (!holds(buf + i * PAGE, PAGE, i * PAGE))
            die("other bytes");
}

static void body(void)
{
    struct iocb poll, *list = &poll;
    int ends[2];
    if (pipe(ends))
        die("pipe");
    fd = temp_file(READS * PAGE);
    direct = reopen(fd, O_RDWR | O_DIRECT);
    buf = pages(READS * PAGE);
    ctx = setup(2 * READS);
    /* This request is in flight all the time. */
    io_prep_poll(&poll, ends[0], POLLIN);
    if (io_submit(ctx, 1, &list) != 1)
        die("submit");
    drop_privileges("LIBAIO_EXPECTED", work);
}

int main(void)
{
    in_time(body);
    return 0;
}
