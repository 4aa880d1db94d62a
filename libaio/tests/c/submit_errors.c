/* io_submit: everything that it refuses, and what it accepts. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(4 * PAGE);
    unsigned char *buf = pages(PAGE);
    struct iocb iocb, good;
    char name[96];
    io_prep_pread(&good, fd, buf, PAGE, 0);

    int opcodes[] = {4, 6, 9, 10, 255, 32767, -1, -32768};
    for (size_t i = 0; i < COUNT(opcodes); i++) {
        iocb = good;
        iocb.aio_lio_opcode = (short)opcodes[i];
        snprintf(name, sizeof name, "opcode %d", opcodes[i]);
        request(ctx, name, &iocb);
    }
    int descriptors[] = {-1, 900, 1 << 20, INT_MAX, INT_MIN};
    for (size_t i = 0; i < COUNT(descriptors); i++) {
        iocb = good;
        iocb.aio_fildes = descriptors[i];
        snprintf(name, sizeof name, "descriptor %d", descriptors[i]);
        request(ctx, name, &iocb);
    }
    iocb = good;
    iocb.aio_fildes = -1;
    iocb.aio_lio_opcode = 6;
    request(ctx, "bad opcode and bad descriptor", &iocb);

    iocb = good;
    iocb.u.c.__pad3 = 1;
    request(ctx, "reserved2", &iocb);
    iocb = good;
    iocb.u.c.flags = 1 << 2;
    request(ctx, "unknown flag", &iocb);
    iocb = good;
    iocb.u.c.flags = 0xfffffff0;
    request(ctx, "all unknown flags", &iocb);
    iocb = good;
    iocb.aio_reqprio = 7;
    request(ctx, "reqprio without its flag", &iocb);
    iocb = good;
    iocb.u.c.flags = 1 << 1;
    request(ctx, "reqprio 0 with its flag", &iocb);
    iocb.aio_reqprio = 2 << 13 | 4;
    request(ctx, "reqprio best effort", &iocb);
    iocb.aio_reqprio = (short)(3 << 13);
    request(ctx, "reqprio idle", &iocb);
    iocb.aio_reqprio = (short)(5 << 13);
    request(ctx, "reqprio of an unknown class", &iocb);
    iocb.aio_reqprio = 1 << 13 | 4;
    request(ctx, "reqprio realtime", &iocb);
    /* A child has a context of its own, and no permission for real-time priorities. */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        io_context_t mine = setup(4);
        if (geteuid() == 0 && setresuid(65534, 65534, 65534))
            die("setresuid");
        request(mine, "reqprio realtime, not allowed", &iocb);
        iocb.aio_reqprio = 2 << 13 | 4;
        request(mine, "reqprio best effort, allowed to all", &iocb);
        _exit(0);
    }
    waitpid(pid, NULL, 0);

    iocb = good;
    io_set_eventfd(&iocb, -1);
    request(ctx, "eventfd -1", &iocb);
    io_set_eventfd(&iocb, 900);
    request(ctx, "eventfd closed", &iocb);
    io_set_eventfd(&iocb, fd);
    request(ctx, "eventfd is a file", &iocb);
    iocb = good;
    iocb.u.c.resfd = 900;
    request(ctx, "eventfd closed without its flag", &iocb);

    iocb = good;
    iocb.key = 4711;
    request(ctx, "key given", &iocb);
    say("key after submit", "%u", iocb.key);

    /* The iocb is at the end of accessible memory: only its 64 bytes are read. */
    unsigned char *edge = last_page();
    struct iocb *at_edge = (struct iocb *)(edge + PAGE - sizeof iocb);
    *at_edge = good;
    request(ctx, "request block at the end of memory", at_edge);
    struct iocb *over_edge = (struct iocb *)(edge + PAGE - 56);
    memcpy((void *)over_edge, &good, 56);
    answer("request block over the end of memory", submit1(ctx, over_edge));
    answer("request block at a bad address", submit1(ctx, UNMAPPED));
    answer("request block NULL", submit1(ctx, NULL));
    answer("request block in the kernel", submit1(ctx, KERNEL_ADDRESS));
    struct iocb *odd = (struct iocb *)(edge + 3);
    memcpy((void *)odd, &good, sizeof good);
    request(ctx, "request block at an odd address", odd);
    struct iocb *frozen = pages(PAGE);
    *frozen = good;
    if (mprotect(frozen, PAGE, PROT_READ))
        die("mprotect");
    long got = submit1(ctx, frozen);
    struct io_event event;
    if (got == 1)
        reap(ctx, 1, &event);
    answer("request block in read-only memory", got);

    struct iocb *list[4] = {&good, &good, &good, &good};
    answer("submit of 0", io_submit(ctx, 0, list));
    answer("submit of 0 from NULL", io_submit(ctx, 0, NULL));
    answer("submit of -1", io_submit(ctx, -1, list));
    answer("submit of LONG_MIN", io_submit(ctx, LONG_MIN, list));
    answer("submit of 1 from NULL", io_submit(ctx, 1, NULL));
    answer("submit of 1 from a bad address", io_submit(ctx, 1, UNMAPPED));
    answer("submit to a bad context", io_submit(UNMAPPED, 1, list));
    answer("submit of -1 to a bad context", io_submit(NULL, -1, list));

    struct iocb **tail = (struct iocb **)(edge + PAGE - 2 * sizeof *tail);
    tail[0] = tail[1] = &good;
    got = io_submit(ctx, 4, tail);
    answer("list over the end of memory", got);
    struct io_event events[4];
    if (got > 0)
        reap(ctx, got, events);

    request(ctx, "a good one after all that", &good);
    answer("destroy", io_destroy(ctx));
    return 0;
}
