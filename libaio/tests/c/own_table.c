/* Threads with a descriptor table of their own: they read the file that a number names there, or
 * they are refused. */
#include "common.h"
#include "../support/own_table.h"

static __thread io_context_t ctx;

static long read_once(unsigned char *buf, long long offset)
{
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    int got = ctx ? 0 : set_up(8, &ctx);
    if (got)
        return got;
    io_prep_pread(&iocb, shared, buf, PAGE, offset);
    got = io_submit(ctx, 1, &list);
    if (got != 1)
        return got;
    /* The program does not wait, so a thread of the library executes the request. */
    for (int i = 0; !ready(ctx) && i < 20000; i++)
        usleep(1000);
    reap(ctx, 1, &event);
    return (long)event.res;
}

static io_context_t before;

/* Makes and uses a context, and then gets a descriptor table of its own. */
static int later(void)
{
    unsigned char *buf = pages(PAGE);
    if (read_once(buf, 0) != PAGE)
        die("a read before");
    munmap(buf, PAGE);
    before = ctx;
    return unshare(CLONE_FILES);
}

int main(void)
{
    unsigned char *buf = pages(PAGE);
    make_files();
    answer("unshare by the only thread", unshare(CLONE_FILES));
    if (read_once(buf, 0) != PAGE)
        die("a read");
    part("unshare", by_unshare, 0);
    part("unshare with a context", later, 0);
    part("unshare, a thread of that thread", by_unshare, 1);
    part("unshare by number", by_number, 0);
    part("close_range", by_close_range, 0);
    part("close_range by number", by_close_range_number, 0);
    answer("its context is destroyed by another", io_destroy(before));
    answer("and a read here", read_once(buf, 0));
    return 0;
}
