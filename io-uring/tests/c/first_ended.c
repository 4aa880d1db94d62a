/* The first thread of the process has ended, and /proc/self shows nothing of memory and
 * descriptors any more. Other threads set up a ring, and register files and buffers. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static pthread_t first;

static void *goes_on(void *unused)
{
    static char bytes[4096];
    struct iovec part = {bytes, sizeof bytes}, bad = {(void *)4096, 4096};
    struct io_uring ring;
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), events = eventfd(0, 0), file = scratch();
    MUST(pthread_join(first, NULL) == 0 && timer >= 0 && events >= 0);
    printf("set up: %d\n", io_uring_queue_init(8, &ring, 0));
    printf("buffer: %d\n", io_uring_register_buffers(&ring, &part, 1));
    MUST(io_uring_unregister_buffers(&ring) == 0);
    printf("no buffer: %d\n", io_uring_register_buffers(&ring, &bad, 1));
    printf("file: %d\n", io_uring_register_files(&ring, &file, 1));
    printf("timer for an eventfd: %d\n", io_uring_register_eventfd(&ring, timer));
    printf("eventfd: %d\n", io_uring_register_eventfd(&ring, events));
    io_uring_prep_write(entry(&ring, 1), 0, "text", 4, 0);
    io_uring_sqe_set_flags(&ring.sq.sqes[0], IOSQE_FIXED_FILE);
    MUST(io_uring_submit(&ring) == 1);
    completions(&ring, "write", 1);
    exit(0);
    return unused;
}

int main(void)
{
    pthread_t thread;
    first = pthread_self();
    MUST(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    pthread_exit(NULL);
}
