/* A daemon changes its user while requests are in flight: the calls return. */
#include "common.h"
#include "../../../libaio/tests/support/privileges.h"

#define READS 8

static int fd, direct;
static unsigned char *buf;

static void work(void)
{
    struct aiocb cbs[READS + 1];
    for (int i = 0; i < READS; i++) {
        cbs[i] = block(i % 2 && direct >= 0 ? direct : fd, buf + i * PAGE, PAGE, i * PAGE);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    cbs[READS] = block(fd, NULL, 0, 0);
    if (aio_fsync(O_SYNC, &cbs[READS]))
        die("aio_fsync");
    for (int i = 0; i <= READS; i++)
        if (finish(&cbs[i]) || aio_return(&cbs[i]) != (i < READS ? PAGE : 0))
            die("request %d: %s", i, state(&cbs[i]));
    for (int i = 0; i < READS; i++)
        if (!holds(buf + i * PAGE, PAGE, i * PAGE))
            die("other bytes");
}

static void body(void)
{
    static char byte;
    static struct aiocb waiting;
    int ends[2];
    make_pipe(ends);
    fd = temp_file(READS * PAGE);
    direct = reopen(fd, O_RDWR | O_DIRECT);
    buf = pages(READS * PAGE);
    /* This request is in flight all the time. */
    waiting = block(ends[0], &byte, 1, 0);
    if (aio_read(&waiting))
        die("aio_read");
    drop_privileges("POSIX_AIO_EXPECTED", work);
}

int main(void)
{
    in_time(body);
    return 0;
}
