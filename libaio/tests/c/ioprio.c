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
    /* All values: a change of the answer begins a line. */
    long before = LONG_MAX, lines = 0;
    char name[64];
    for (int priority = 0; priority <= 0xffff; priority++) {
        struct iocb iocb;
        io_prep_pread(&iocb, fd, buf, 16, 0);
        iocb.u.c.flags = 2;
        iocb.aio_reqprio = (short)priority;
        struct io_event event;
        long got = submit1(ctx, &iocb);
        if (got == 1) {
            reap(ctx, 1, &event);
            got = (long)event.res;
        }
        if (got == before)
            continue;
        before = got;
        lines++;
        /* Without a class, the answer changes with each level and hint. */
        if (priority >= 32 && priority < 0x1ff0)
            continue;
        snprintf(name, sizeof name, "from %#x", priority);
        answer(name, got);
    }
    answer("changes", lines);
    answer("destroy", io_destroy(ctx));
    return 0;
}
