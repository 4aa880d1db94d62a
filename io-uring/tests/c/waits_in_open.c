/* After setfsuid(2), the thread that submits an open makes the open(2) itself, and waits in it. The
 * ring goes on, and so do the other threads. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>

static struct io_uring one, two;
static const char *fifo = "fifo";
static volatile int opens_in;

static void *open_it(void *unused)
{
    (void)unused;
    opens_in = (int)syscall(SYS_gettid);
    io_uring_prep_openat(io_uring_get_sqe(&one), AT_FDCWD, fifo, O_RDONLY, 0);
    MUST(io_uring_submit(&one) == 1);
    return NULL;
}

/* Does the thread in open(2) sleep? True also if it has ended, as with the kernel's io_uring. */
static int sleeps(void)
{
    char path[64], text[256] = "";
    if (!opens_in)
        return 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", opens_in);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT;
    int got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return errno == ESRCH;
    return strncmp(strrchr(text, ')') + 2, "S", 1) == 0;
}

int main(void)
{
    struct __kernel_timespec soon = {0, 1000000};
    int pipes[2][2];
    pthread_t thread;
    MUST(mkfifo(fifo, 0600) == 0);
    MUST(io_uring_queue_init(8, &one, 0) == 0 && io_uring_queue_init(8, &two, 0) == 0);
    MUST(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    struct io_uring *rings[] = {&one, &two};
    static char bytes[2];
    for (int at = 0; at < 2; at++) {
        io_uring_prep_read(io_uring_get_sqe(rings[at]), pipes[at][0], &bytes[at], 1, 0);
        MUST(io_uring_submit(rings[at]) == 1);
    }
    setfsuid(geteuid());
    MUST(pthread_create(&thread, NULL, open_it, NULL) == 0);
    while (!sleeps())
        sched_yield();
    /* The thread that serves all rings handles `one` first. */
    for (int at = 0; at < 2; at++)
        MUST(write(pipes[at][1], "x", 1) == 1);
    completions(&two, "a read of another ring", 1);
    io_uring_prep_timeout(io_uring_get_sqe(&two), &soon, 0, 0);
    MUST(io_uring_submit(&two) == 1);
    completions(&two, "a timeout of another ring", 1);
    while (io_uring_cq_ready(&one) < 1)
        sched_yield();
    completions(&one, "a read of this ring", 1);
    int writes = open(fifo, O_WRONLY);
    MUST(writes >= 0);
    MUST(pthread_join(thread, NULL) == 0);
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(&one, &cqe) == 0);
    printf("the open is answered: %d\n", cqe->res >= 0);
    io_uring_cqe_seen(&one, cqe);
    unlink(fifo);
    printf("done\n");
    return 0;
}
