/* Makes one read, whose result shows which settings the library has. */
#include "../../../libaio/tests/support/environment.h"
#include <aio.h>

int main(int argc, char **argv)
{
    static char bytes[64];
    struct aiocb cb = {.aio_buf = bytes, .aio_nbytes = sizeof bytes};
    const struct aiocb *list[] = {&cb};
    cb.aio_sigevent.sigev_notify = SIGEV_NONE;
    cb.aio_fildes = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    begin(argc, argv);
    if (cb.aio_fildes < 0 || aio_read(&cb))
        die("aio_read");
    while (aio_error(&cb) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    answer("a read", aio_error(&cb) ? -aio_error(&cb) : aio_return(&cb));
    return 0;
}
