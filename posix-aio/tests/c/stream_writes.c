/* Writes to streams that write(2) would not wait for, although poll(2) reports that the stream
 * is not writable. The other end reads only afterwards. */
#include "common.h"

static int is_writable(int fd)
{
    struct pollfd set = {fd, POLLOUT, 0};
    return poll(&set, 1, 0) == 1;
}

static void to_a_socket(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        die("socketpair");
    while (is_writable(ends[0]))
        put(ends[0], "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n");
    struct aiocb cb = block(ends[0], "more", 4, 0);
    request("[aio_write success] a write to a socket that is a quarter full", aio_write, &cb);
}

static void to_a_pipe(void)
{
    static char page[PAGE];
    int ends[2];
    make_pipe(ends);
    int pages = fcntl(ends[1], F_GETPIPE_SZ) / PAGE;
    for (int i = 1; i < pages; i++)
        if (write(ends[1], page, PAGE) != PAGE)
            die("write");
    put(ends[1], "some");
    say("it is full by poll's measure", "%s", is_writable(ends[1]) ? "no" : "yes");
    struct aiocb cb = block(ends[1], "more", 4, 0);
    request("[aio_write success] a write to the last page of a full pipe", aio_write, &cb);
}

int main(void)
{
    in_child(to_a_socket);
    in_child(to_a_pipe);
    return 0;
}
