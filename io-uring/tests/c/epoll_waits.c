/* EPOLL_WAIT: events that are there, events that come, and what ends a wait. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/epoll.h>

enum { EPOLL_WAIT = 59, MOST = 4 };

static struct io_uring ring;
static int epoll, ends[2], others[2];
static struct epoll_event events[MOST];

static struct io_uring_sqe *wait_(int fd, struct epoll_event *to, int most, int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = EPOLL_WAIT;
    sqe->fd = fd;
    sqe->addr = (unsigned long)to;
    sqe->len = most;
    sqe->user_data = user_data;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static void drain(int fd)
{
    char bytes[16];
    MUST(read(fd, bytes, sizeof bytes) > 0);
}

static void ready_and_not(void)
{
    printf("[events]\n");
    MUST(write(ends[1], "a", 1) == 1);
    wait_(epoll, events, MOST, 0);
    printf("there: %d, ", result());
    printf("events %x of %d\n", events[0].events, (int)events[0].data.u32);
    MUST(write(others[1], "a", 1) == 1);
    wait_(epoll, events, 1, 0);
    printf("room for one: %d\n", result());
    drain(ends[0]);
    drain(others[0]);
    wait_(epoll, events, MOST, 1);
    io_uring_submit(&ring);
    printf("before: %u\n", io_uring_cq_ready(&ring));
    MUST(write(others[1], "a", 1) == 1);
    completions(&ring, "it comes", 1);
    printf("events %x of %d\n", events[0].events, (int)events[0].data.u32);
    drain(others[0]);
    /* Both requests wait. One event ends both, because the epoll is level-triggered. */
    struct epoll_event more[MOST];
    wait_(epoll, events, MOST, 1);
    wait_(epoll, more, MOST, 1);
    io_uring_submit(&ring);
    MUST(write(ends[1], "a", 1) == 1);
    completions(&ring, "two waits", 2);
    drain(ends[0]);
}

static void ended(void)
{
    printf("[what ends a wait]\n");
    wait_(epoll, events, MOST, 1);
    io_uring_submit(&ring);
    io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
    io_uring_submit(&ring);
    sorted(&ring, "cancel", 2);
    wait_(epoll, events, MOST, 1);
    io_uring_submit(&ring);
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_cancel_fd(sqe, epoll, 0);
    io_uring_submit(&ring);
    sorted(&ring, "cancel by descriptor", 2);
    struct __kernel_timespec soon = { 0, 1000000 };
    wait_(epoll, events, MOST, 1)->flags |= IOSQE_IO_LINK;
    io_uring_prep_link_timeout(entry(&ring, 0), &soon, 0);
    io_uring_submit(&ring);
    sorted(&ring, "timeout", 2);
    wait_(epoll, events, MOST, 1)->flags |= IOSQE_IO_LINK;
    sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->user_data = 2;
    io_uring_submit(&ring);
    MUST(write(ends[1], "a", 1) == 1);
    completions(&ring, "chain", 2);
    drain(ends[0]);
}

static void refused(void)
{
    printf("[refused]\n");
    wait_(epoll, events, 0, 0);
    printf("no room: %d\n", result());
    wait_(epoll, events, -1, 0);
    printf("less than none: %d\n", result());
    MUST(write(ends[1], "a", 1) == 1);
    wait_(epoll, (void *)8, MOST, 0);
    printf("to nowhere: %d\n", result());
    drain(ends[0]);
    wait_(ends[0], events, MOST, 0);
    printf("a pipe: %d\n", result());
    wait_(-1, events, MOST, 0);
    printf("no descriptor: %d\n", result());
    wait_(epoll, events, MOST, 0)->off = 1;
    printf("an offset: %d\n", result());
    wait_(epoll, events, MOST, 0)->rw_flags = 1;
    printf("flags: %d\n", result());
    wait_(epoll, events, MOST, 0)->buf_index = 1;
    printf("a buffer: %d\n", result());
    wait_(epoll, events, MOST, 0)->splice_fd_in = 1;
    printf("a slot: %d\n", result());
    wait_(epoll, events, MOST, 0)->ioprio = 1;
    printf("a priority: %d\n", result());
    wait_(epoll, events, MOST, 0)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && pipe(ends) == 0 && pipe(others) == 0);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 };
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    event.data.u32 = 2;
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, others[0], &event) == 0);
    needs(&ring, EPOLL_WAIT);
    ready_and_not();
    ended();
    refused();
    /* A request waits when the ring is closed. */
    wait_(epoll, events, MOST, 1);
    io_uring_submit(&ring);
    io_uring_queue_exit(&ring);
    return 0;
}
