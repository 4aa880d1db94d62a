/* Calls and entries point to a page, first while it is mapped, and then after it was unmapped.
 * Besides, threads are cancelled in a wait, and in calls that do not wait. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum { SIZE = 4096 };

static struct io_uring ring;

static void *page(void)
{
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static void says(const char *what, long answer)
{
    printf("%s: %s\n", what, answer < 0 ? strerrorname_np(errno) : "done");
}

static void entries(void)
{
    static char bytes[64];
    struct iovec *vector = page();
    char *path = page();
    struct __kernel_timespec *time = page();
    int file = scratch();
    MUST(write(file, bytes, sizeof bytes) == sizeof bytes);
    *vector = (struct iovec){bytes, sizeof bytes};
    strcpy(path + SIZE - 10, "/dev/null");
    for (int gone = 0; gone < 2; gone++) {
        struct io_uring_sqe *sqe = entry(&ring, 1);
        io_uring_prep_readv(sqe, file, vector, 1, 0);
        sqe->user_data = 1;
        MUST(io_uring_submit(&ring) == 1);
        completions(&ring, gone ? "a vector that is gone" : "a vector", 1);
        struct statx found;
        sqe = entry(&ring, 2);
        io_uring_prep_statx(sqe, AT_FDCWD, path + SIZE - 10, 0, STATX_TYPE, &found);
        sqe->user_data = 2;
        MUST(io_uring_submit(&ring) == 1);
        completions(&ring, gone ? "a path that is gone" : "a path", 1);
        sqe = entry(&ring, 3);
        io_uring_prep_timeout(sqe, time, 0, 0);
        sqe->user_data = 3;
        MUST(io_uring_submit(&ring) == 1);
        completions(&ring, gone ? "a time that is gone" : "a time", 1);
        munmap(vector, SIZE);
        munmap(path, SIZE);
        munmap(time, SIZE);
    }
    close(file);
}

static void calls(void)
{
    void *place = page();
    int other = (int)syscall(SYS_io_uring_setup, 4, place);
    says("set-up", other);
    struct pollfd *set = page();
    set->fd = ring.ring_fd;
    set->events = POLLIN;
    says("poll", poll(set, 1, 0));
    fd_set *bits = page();
    FD_SET(ring.ring_fd, bits);
    struct timeval none = {0, 0};
    says("select", select(ring.ring_fd + 1, bits, NULL, NULL, &none));
    munmap(place, SIZE);
    munmap(set, SIZE);
    munmap(bits, SIZE);
    says("set-up where it is gone", syscall(SYS_io_uring_setup, 4, place));
    says("poll of what is gone", poll(set, 1, 0));
    says("select of what is gone", select(ring.ring_fd + 1, bits, NULL, NULL, &none));
    close(other);
}

static int given_back;

static void give_back(void *unused)
{
    (void)unused;
    given_back++;
}

static int is_canceled;

static void *waits(void *way)
{
    struct pollfd set = {ring.ring_fd, POLLIN, 0};
    fd_set bits;
    FD_ZERO(&bits);
    FD_SET(ring.ring_fd, &bits);
    struct epoll_event event;
    int epoll = epoll_create1(0);
    pthread_cleanup_push(give_back, NULL);
    switch ((int)(long)way) {
    case 0:
        poll(&set, 1, -1);
        break;
    case 1:
        select(ring.ring_fd + 1, &bits, NULL, NULL, NULL);
        break;
    case 2:
        epoll_wait(epoll, &event, 1, -1);
        break;
    default:
        /* None of these calls sleeps, but a thread that was cancelled before them may end in
         * one. */
        while (!__atomic_load_n(&is_canceled, __ATOMIC_ACQUIRE))
            sched_yield();
        close(epoll);
        fclose(tmpfile());
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    entries();
    calls();
    for (long way = 0; way < 4; way++) {
        pthread_t thread;
        void *end;
        MUST(pthread_create(&thread, NULL, waits, (void *)way) == 0);
        pthread_cancel(thread);
        __atomic_store_n(&is_canceled, way == 3, __ATOMIC_RELEASE);
        MUST(pthread_join(thread, &end) == 0);
        printf("way %ld: ended %d, cleaned up %d\n", way, end == PTHREAD_CANCELED,
               given_back == way + 1);
    }
    return 0;
}
