/* Polls: once, many times, removed, changed. Files that are always ready, and rings, are polled
 * too. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/epoll.h>

static struct io_uring ring;

static void poll_add(int fd, int user_data, unsigned events, int many)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    if (many)
        io_uring_prep_poll_multishot(sqe, fd, events);
    else
        io_uring_prep_poll_add(sqe, fd, events);
    sqe->user_data = user_data;
    printf("submit %d\n", io_uring_submit(&ring));
}

static int readable(int fd)
{
    struct pollfd set = { fd, POLLIN, 0 };
    return poll(&set, 1, 0);
}

int main(void)
{
    int ends[2];
    char byte;
    MUST(io_uring_queue_init(32, &ring, 0) == 0 && pipe(ends) == 0);
    poll_add(ends[0], 1, POLLIN, 0);
    MUST(write(ends[1], "x", 1) == 1);
    completions(&ring, "once", 1);
    poll_add(ends[0], 2, POLLIN, 0);
    completions(&ring, "at once", 1);
    poll_add(ends[1], 3, POLLOUT, 0);
    completions(&ring, "writable", 1);
    poll_add(-1, 4, POLLIN, 0);
    completions(&ring, "no descriptor", 1);
    int file = scratch();
    poll_add(file, 5, POLLIN | POLLOUT, 0);
    completions(&ring, "file", 1);
    MUST(read(ends[0], &byte, 1) == 1);
    poll_add(ends[0], 6, POLLIN, 1);
    for (int at = 0; at < 3; at++) {
        MUST(write(ends[1], "x", 1) == 1);
        completions(&ring, "many", 1);
        MUST(read(ends[0], &byte, 1) == 1);
    }
    struct io_uring_sqe *sqe = entry(&ring, 7);
    io_uring_prep_poll_remove(sqe, 6);
    sqe->user_data = 7;
    printf("submit %d\n", io_uring_submit(&ring));
    sorted(&ring, "removed", 2);
    sqe = entry(&ring, 8);
    io_uring_prep_poll_remove(sqe, 99);
    sqe->user_data = 8;
    io_uring_submit(&ring);
    completions(&ring, "not there", 1);
    poll_add(ends[0], 9, POLLIN, 0);
    sqe = entry(&ring, 10);
    io_uring_prep_poll_update(sqe, 9, 11, 0, IORING_POLL_UPDATE_USER_DATA);
    sqe->user_data = 10;
    io_uring_submit(&ring);
    completions(&ring, "renamed", 1);
    MUST(write(ends[1], "x", 1) == 1);
    completions(&ring, "renamed", 1);
    /* The ring itself. */
    printf("idle %d\n", readable(ring.ring_fd));
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    MUST(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
    for (int at = 0; at < 3; at++) {
        sqe = entry(&ring, 12);
        io_uring_prep_nop(sqe);
        sqe->user_data = 12;
        io_uring_submit(&ring);
        printf("done %d\n", readable(ring.ring_fd));
        printf("epoll %d\n", epoll_wait(set, &event, 1, 0));
        completions(&ring, "nop", 1);
        printf("reaped %d\n", readable(ring.ring_fd));
        printf("epoll %d\n", epoll_wait(set, &event, 1, 0));
    }
    io_uring_queue_exit(&ring);
    return 0;
}
