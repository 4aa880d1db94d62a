/* Writes to streams for which write(2) would not wait, although poll(2) does not call the stream
 * writable. The other end reads only afterwards. */
#include "common.h"

static int is_writable(int fd)
{
    struct pollfd set = {fd, POLLOUT, 0};
    return poll(&set, 1, 0) == 1;
}

int main(void)
{
    static char page[PAGE], rest[200];
    io_context_t ctx = setup(8);
    struct iocb iocb;
    int ends[2];
    memset(page, 1, sizeof page);

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        die("socketpair");
    long before = 0;
    while (is_writable(ends[0]))
        before += write(ends[0], page, PAGE);
    io_prep_pwrite(&iocb, ends[0], "more", 4, 0);
    request(ctx, "[io_submit PWRITE] a write to a socket that is a quarter full", &iocb);
    while (before > 0)
        before -= read(ends[1], page, before < PAGE ? before : PAGE);
    say("what comes last", "%ld, %.4s", (long)read(ends[1], rest, sizeof rest), rest);

    if (pipe(ends))
        die("pipe");
    int pages = fcntl(ends[1], F_GETPIPE_SZ) / PAGE;
    for (int i = 1; i < pages; i++)
        before += write(ends[1], page, PAGE);
    before += write(ends[1], page, 100);
    say("it is full by poll's measure", "%s", is_writable(ends[1]) ? "no" : "yes");
    io_prep_pwrite(&iocb, ends[1], "more", 4, 0);
    request(ctx, "[io_submit PWRITE] a write to the last page of a full pipe", &iocb);
    while (before > 0)
        before -= read(ends[0], page, before < PAGE ? before : PAGE);
    say("what comes last of the pipe", "%ld, %.4s", (long)read(ends[0], rest, sizeof rest), rest);
    answer("destroy", io_destroy(ctx));
    return 0;
}
