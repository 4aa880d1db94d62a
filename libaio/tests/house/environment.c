/* One read, whose result shows the library's settings. */
#include "../support/environment.h"
#include <libaio.h>

int main(int argc, char **argv)
{
    static char bytes[64];
    struct iocb iocb, *list = &iocb;
    struct io_event event = {0};
    io_context_t ctx = NULL;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    begin(argc, argv);
    io_prep_pread(&iocb, fd, bytes, sizeof bytes, 0);
    if (fd < 0 || io_setup(1, &ctx) || io_submit(ctx, 1, &list) != 1
        || io_getevents(ctx, 1, 1, &event, NULL) != 1)
        die("a read");
    answer("a read", (long)event.res);
    return 0;
}
