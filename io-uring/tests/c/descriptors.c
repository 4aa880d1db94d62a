/* The descriptor of a ring: all ways to wait for it, and its copies under other numbers. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

static struct io_uring ring;
static int ends[2];

/* With _FORTIFY_SOURCE, compilers call these functions instead of poll(2) and ppoll(2). */
extern int __poll_chk(struct pollfd *set, nfds_t count, int timeout, size_t size);
extern int __ppoll_chk(struct pollfd *set, nfds_t count, const struct timespec *time,
                       const sigset_t *mask, size_t size);

enum { POLL, PPOLL, POLL_CHECKED, PPOLL_CHECKED, SELECT, PSELECT, WAYS };

static int waits(int way, int fd, int waits)
{
    struct pollfd set[6] = {{fd, POLLIN, 0}, {-1, POLLIN, 0}, {ends[0], 0, 0}};
    struct timespec now = {0, 0};
    struct timeval none = {0, 0};
    fd_set bits;
    FD_ZERO(&bits);
    FD_SET(fd, &bits);
    switch (way) {
    case POLL:
        return poll(set, 3, waits ? -1 : 0);
    case PPOLL:
        return ppoll(set, 3, waits ? NULL : &now, NULL);
    case POLL_CHECKED:
        return __poll_chk(set, 3, waits ? -1 : 0, sizeof set);
    case PPOLL_CHECKED:
        return __ppoll_chk(set, 3, waits ? NULL : &now, NULL, sizeof set);
    case SELECT:
        return select(fd + 1, &bits, NULL, NULL, waits ? NULL : &none);
    default:
        return pselect(fd + 1, &bits, NULL, NULL, waits ? NULL : &now, NULL);
    }
}

static void *feed(void *unused)
{
    (void)unused;
    MUST(write(ends[1], "x", 1) == 1);
    return NULL;
}

static void nop(int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_nop(sqe);
    sqe->user_data = user_data;
    MUST(io_uring_submit(&ring) == 1);
}

/* Waits for no completion, for one that is there, and for one that comes while the thread
 * sleeps. */
static void one(int way, int fd)
{
    static char byte;
    printf("way %d: idle %d\n", way, waits(way, fd, 0));
    nop(1);
    printf("done %d\n", waits(way, fd, 0));
    printf("done %d\n", waits(way, fd, 1));
    completions(&ring, "nop", 1);
    printf("reaped %d\n", waits(way, fd, 0));
    struct io_uring_sqe *sqe = entry(&ring, 2);
    io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
    sqe->user_data = 2;
    MUST(io_uring_submit(&ring) == 1);
    printf("in flight %d\n", waits(way, fd, 0));
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, feed, NULL) == 0);
    printf("came %d\n", waits(way, fd, 1));
    MUST(pthread_join(thread, NULL) == 0);
    completions(&ring, "read", 1);
    printf("reaped %d\n", waits(way, fd, 0));
}

static int other(int way, int fd)
{
    switch (way) {
    case 0:
        return dup(fd);
    case 1:
        return dup2(fd, 71);
    case 2:
        return dup3(fd, 72, O_CLOEXEC);
    case 3:
        return fcntl(fd, F_DUPFD, 73);
    default:
        return fcntl(fd, F_DUPFD_CLOEXEC, 74);
    }
}

int main(void)
{
    MUST(pipe(ends) == 0 && io_uring_queue_init(8, &ring, 0) == 0);
    for (int way = 0; way < WAYS; way++)
        one(way, ring.ring_fd);
    /* For the duration of a call, the library watches at most four rings. It watches the others
     * permanently. */
    struct io_uring more[6];
    struct pollfd set[6];
    for (int at = 0; at < 6; at++) {
        MUST(io_uring_queue_init(8, &more[at], 0) == 0);
        set[at] = (struct pollfd){more[at].ring_fd, POLLIN, 0};
    }
    for (int at = 0; at < 6; at++) {
        io_uring_prep_nop(entry(&more[at], 1));
        MUST(io_uring_submit(&more[at]) == 1);
    }
    printf("of six %d\n", poll(set, 6, -1));
    for (int at = 0; at < 6; at++)
        io_uring_queue_exit(&more[at]);
    /* The first number of the ring is closed, and the ring lives on under another number. */
    for (int way = 0; way < 5; way++) {
        int fd = other(way, ring.ring_fd);
        MUST(fd > 2 && fd != ring.ring_fd);
        MUST(close(ring.ring_fd) == 0);
        ring.ring_fd = ring.enter_ring_fd = fd;
        one(way % WAYS, fd);
    }
    /* From here on, an epoll watches the ring, also while no thread waits. */
    int all = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(all >= 0);
    nop(3);
    MUST(epoll_ctl(all, EPOLL_CTL_ADD, ring.ring_fd, &event) == 0);
    printf("epoll %d\n", epoll_wait(all, &event, 1, -1));
    completions(&ring, "nop", 1);
    printf("epoll %d\n", epoll_wait(all, &event, 1, 0));
    io_uring_queue_exit(&ring);
    return 0;
}
