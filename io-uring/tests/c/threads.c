/* Threads that wait in poll(2) and similar calls can be cancelled there, as with the C library
 * alone. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

static int which, ends[2], cleaned;
static volatile int thread_id;

static void clean(void *unused)
{
    (void)unused;
    cleaned = 1;
}

static void *body(void *unused)
{
    struct pollfd set = {.fd = ends[0], .events = POLLIN};
    struct epoll_event event;
    fd_set reads;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    FD_ZERO(&reads);
    FD_SET(ends[0], &reads);
    thread_id = syscall(SYS_gettid);
    pthread_cleanup_push(clean, NULL);
    switch (which) {
    case 0: poll(&set, 1, -1); break;
    case 1: ppoll(&set, 1, NULL, NULL); break;
    case 2: epoll_wait(epoll, &event, 1, -1); break;
    case 3: epoll_pwait(epoll, &event, 1, -1, NULL); break;
    case 4: select(ends[0] + 1, &reads, NULL, NULL, NULL); break;
    case 5: pselect(ends[0] + 1, &reads, NULL, NULL, NULL, NULL); break;
    }
    pthread_cleanup_pop(0);
    return unused;
}

/* The state of the thread, as in proc(5). */
static char state(void)
{
    char path[64], text[512], *at;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread_id);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return '?';
    text[length] = 0;
    at = strrchr(text, ')');
    return at ? at[2] : '?';
}

int main(void)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && pipe(ends) == 0);
    for (which = 0; which < 6; which++) {
        pthread_t thread;
        void *result;
        thread_id = cleaned = 0;
        MUST(pthread_create(&thread, NULL, body, NULL) == 0);
        while (!thread_id || state() != 'S')
            sched_yield();
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        printf("%d: cancelled %d, cleaned %d\n", which, result == PTHREAD_CANCELED, cleaned);
    }
    io_uring_queue_exit(&ring);
    return 0;
}
