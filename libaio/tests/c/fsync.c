/* FSYNC and FDSYNC: on which files they work, and which fields must be empty. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(4 * PAGE), ends[2], pair[2];
    if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("pipe");
    int readable = reopen(fd, O_RDONLY), path = reopen(fd, O_PATH), folder = open("/", O_RDONLY);
    int counter = eventfd(0, 0), null = open("/dev/null", O_RDWR);
    struct { const char *name; int fd; } kinds[] = {
        {"a file", fd}, {"a read-only descriptor", readable}, {"an O_PATH descriptor", path},
        {"a folder", folder}, {"a pipe", ends[1]}, {"a socket", pair[0]}, {"an eventfd", counter},
        {"a device", null}, {"a closed descriptor", 900}, {"-1", -1},
    };
    for (int data = 0; data < 2; data++) {
        const char *op = data ? "fdsync" : "fsync";
        short opcode = data ? IO_CMD_FDSYNC : IO_CMD_FSYNC;
        struct iocb iocb;
        char name[96];
        for (size_t i = 0; i < COUNT(kinds); i++) {
            io_prep_fsync(&iocb, kinds[i].fd);
            iocb.aio_lio_opcode = opcode;
            snprintf(name, sizeof name, "%s of %s", op, kinds[i].name);
            request(ctx, name, &iocb);
        }
        for (int field = 0; field < 6; field++) {
            static const char *fields[] = {"a buffer", "a length",   "an offset",
                                           "rw_flags", "an eventfd", "reqprio"};
            io_prep_fsync(&iocb, fd);
            iocb.aio_lio_opcode = opcode;
            switch (field) {
            case 0: iocb.u.c.buf = &iocb; break;
            case 1: iocb.u.c.nbytes = 1; break;
            case 2: iocb.u.c.offset = 1; break;
            case 3: iocb.aio_rw_flags = 2; break;
            case 4: io_set_eventfd(&iocb, counter); break;
            case 5: iocb.aio_reqprio = 3; break;
            }
            snprintf(name, sizeof name, "%s with %s", op, fields[field]);
            request(ctx, name, &iocb);
        }
    }
    uint64_t fired = 0;
    if (read(counter, &fired, sizeof fired) != sizeof fired)
        die("eventfd");
    say("eventfd count", "%llu", (unsigned long long)fired);

    /* Submits an fdsync together with writes. */
    static unsigned char buf[8][PAGE];
    struct iocb iocbs[9], *list[9];
    struct io_event events[9];
    for (int i = 0; i < 8; i++) {
        memset(buf[i], i, PAGE);
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], fd, buf[i], PAGE, i * PAGE);
    }
    list[8] = &iocbs[8];
    io_prep_fdsync(list[8], fd);
    answer("submit of 8 writes and an fdsync", io_submit(ctx, 9, list));
    reap(ctx, 9, events);
    int right = 0;
    for (int i = 0; i < 9; i++)
        right += events[i].res == (events[i].obj == &iocbs[8] ? 0 : PAGE);
    say("right of 9", "%d", right);
    struct iocb callback, *one = &callback;
    answer("io_fsync", io_fsync(ctx, one, NULL, fd));
    reap(ctx, 1, events);
    answer("io_fdsync", io_fdsync(ctx, one, NULL, fd));
    reap(ctx, 1, events);
    answer("its result", (long)events[0].res);
    answer("destroy", io_destroy(ctx));
    return 0;
}
