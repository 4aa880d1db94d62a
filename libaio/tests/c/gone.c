/* The memory of a call's arguments was accessible once, and is unmapped now. */
#include "common.h"

static void *page(void)
{
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return at;
}

int main(void)
{
    static unsigned char buf[PAGE];
    struct timespec none = {0, 0};
    struct io_event event;
    int fd = temp_file(PAGE), ends[2];
    if (pipe(ends))
        die("pipe");
    io_context_t ctx = setup(8);

    struct iovec *iov = page();
    *iov = (struct iovec){buf, PAGE};
    struct iocb iocb;
    io_prep_preadv(&iocb, fd, iov, 1, 0);
    request(ctx, "[io_submit EFAULT] a vector", &iocb);
    munmap(iov, PAGE);
    request(ctx, "[io_submit EFAULT] the vector is gone", &iocb);
    io_prep_pwritev(&iocb, fd, iov, 1, 0);
    request(ctx, "[io_submit EFAULT] the vector of a write is gone", &iocb);

    struct iocb *poll = page();
    io_prep_poll(poll, ends[0], POLLIN);
    answer("[io_submit EFAULT] a request", submit1(ctx, poll));
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 1, &event);
    munmap(poll, PAGE);
    answer("[io_cancel EFAULT] a request that is gone", io_cancel(ctx, poll, &event));

    sigset_t *mask = page();
    sigemptyset(mask);
    answer("[io_pgetevents EFAULT] a mask", io_pgetevents(ctx, 0, 1, &event, &none, mask));
    munmap(mask, PAGE);
    struct timespec tenth = {0, 100000000};
    answer("[io_pgetevents EFAULT] the mask is gone",
           io_pgetevents(ctx, 1, 1, &event, &tenth, mask));
    return 0;
}
