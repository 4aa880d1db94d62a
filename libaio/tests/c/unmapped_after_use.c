/* Memory that was good and is gone: request block, list, vector, event array, time. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(PAGE);
    static unsigned char buf[PAGE];
    struct iocb here, *list = &here;
    struct io_event event;
    io_prep_pread(&here, fd, buf, PAGE, 0);

    struct iocb *block = pages(PAGE);
    *block = here;
    request(ctx, "request block in its page", block);
    munmap(block, PAGE);
    answer("request block, page gone", submit1(ctx, block));

    struct iocb **lists = pages(PAGE);
    lists[0] = &here;
    answer("list in its page", io_submit(ctx, 1, lists));
    reap(ctx, 1, &event);
    munmap(lists, PAGE);
    answer("list, page gone", io_submit(ctx, 1, lists));

    struct iovec *iov = pages(PAGE);
    iov[0] = (struct iovec){buf, PAGE};
    struct iocb vector;
    io_prep_preadv(&vector, fd, iov, 1, 0);
    request(ctx, "vector in its page", &vector);
    munmap(iov, PAGE);
    request(ctx, "vector, page gone", &vector);

    struct io_event *events = pages(PAGE);
    answer("submit for the event array", io_submit(ctx, 1, &list));
    answer("event array in its page", io_getevents(ctx, 1, 1, events, NULL));
    munmap(events, PAGE);
    answer("submit once more", io_submit(ctx, 1, &list));
    answer("event array, page gone", io_getevents(ctx, 1, 1, events, NULL));
    events = pages(PAGE);
    answer("event array back", io_getevents(ctx, 1, 1, events, NULL));
    mprotect(events, PAGE, PROT_READ);
    answer("submit a third time", io_submit(ctx, 1, &list));
    answer("event array, page read-only", io_getevents(ctx, 1, 1, events, NULL));
    reap(ctx, 1, &event);

    unsigned char *data = pages(PAGE);
    struct iocb iocb;
    io_prep_pread(&iocb, fd, data, PAGE, 0);
    request(ctx, "buffer in its page", &iocb);
    munmap(data, PAGE);
    request(ctx, "buffer, page gone", &iocb);
    answer("destroy", io_destroy(ctx));
    return 0;
}
