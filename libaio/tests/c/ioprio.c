/* Priorities of requests (ioprio_set(2)), as a user who may not have real-time ones. */
#include "common.h"

#define IOPRIO(class, data) ((class) << 13 | (data))

static unsigned char buf[PAGE];

int main(void)
{
    int fd = temp_file(PAGE);
    /* Root may use real-time priorities, and other users may not. */
    if (getuid() == 0 && setresuid(65534, 65534, 65534))
        skip("root without the right to become somebody else");
    io_context_t ctx = setup(4);
    static const struct {
        const char *name;
        int priority;
    } cases[] = {{"real-time", IOPRIO(1, 4)},
                 {"best effort", IOPRIO(2, 4)},
                 {"best effort, lowest", IOPRIO(2, 7)},
                 {"best effort, level 8", IOPRIO(2, 8)},
                 {"idle", IOPRIO(3, 0)},
                 {"idle, level 3", IOPRIO(3, 3)},
                 {"none", IOPRIO(0, 0)},
                 {"none, level 1", IOPRIO(0, 1)},
                 {"class 4", IOPRIO(4, 0)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct iocb iocb;
        io_prep_pread(&iocb, fd, buf, 16, 0);
        iocb.u.c.flags = 2; /* IOCB_FLAG_IOPRIO */
        iocb.aio_reqprio = (short)cases[i].priority;
        request(ctx, cases[i].name, &iocb);
    }
    answer("destroy", io_destroy(ctx));
    return 0;
}
