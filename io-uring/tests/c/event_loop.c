/* Event loops: direct reads, and a thread that waits for the ring's descriptor, or for its
 * eventfd. It waits in poll, select or epoll, and takes completions from the ring's memory. */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <time.h>

#define ROUNDS 100
#define DEPTH 4
#define BLOCK 4096

enum how { POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_EDGE, EPOLL_PWAIT, HOWS };

static const char *const names[HOWS] = {"poll",  "ppoll",        "select",     "pselect",
                                        "epoll", "epoll, edges", "epoll_pwait"};

static struct io_uring ring;
static int file;
static char *buffer;

static void read_at(int block)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, file, buffer + block % DEPTH * BLOCK, BLOCK, block % 64 * BLOCK);
    sqe->user_data = (unsigned long long)block;
    MUST(io_uring_submit(&ring) == 1);
}

/* Returns 1 if the descriptor is readable, 0 if the time is over, and -1 after a signal. */
static int await(enum how how, int epoll, int fd, int ms)
{
    struct pollfd set = {fd, POLLIN, 0};
    struct timespec spec = {ms / 1000, ms % 1000 * 1000000};
    struct timeval val = {ms / 1000, ms % 1000 * 1000};
    struct epoll_event event;
    sigset_t none;
    fd_set bits;
    sigemptyset(&none);
    FD_ZERO(&bits);
    FD_SET(fd, &bits);
    switch (how) {
    case POLL:
        return poll(&set, 1, ms);
    case PPOLL:
        return ppoll(&set, 1, ms < 0 ? NULL : &spec, &none);
    case SELECT:
        return select(fd + 1, &bits, NULL, NULL, ms < 0 ? NULL : &val);
    case PSELECT:
        return pselect(fd + 1, &bits, NULL, NULL, ms < 0 ? NULL : &spec, &none);
    case EPOLL_PWAIT:
        return epoll_pwait(epoll, &event, 1, ms, &none);
    default:
        return epoll_wait(epoll, &event, 1, ms);
    }
}

static int take(void)
{
    struct io_uring_cqe *cqe;
    unsigned head;
    int taken = 0;
    io_uring_for_each_cqe(&ring, head, cqe)
    {
        MUST(cqe->res == BLOCK);
        taken++;
    }
    io_uring_cq_advance(&ring, (unsigned)taken);
    return taken;
}

/* Keeps `depth` requests in flight, and submits another one for each that ends. */
static void rounds(enum how how, int depth, int with_eventfd)
{
    int fd = ring.ring_fd, begun = 0, ended = 0, counted = 0;
    if (with_eventfd) {
        fd = eventfd(0, EFD_NONBLOCK);
        MUST(fd >= 0 && io_uring_register_eventfd(&ring, fd) == 0);
    }
    struct epoll_event event = {.events = EPOLLIN | (how == EPOLL_EDGE ? EPOLLET : 0)};
    int epoll = epoll_create1(0);
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    while (begun < depth)
        read_at(begun++);
    while (ended < begun) {
        /* With the kernel's io_uring, a wait for the descriptor sometimes fails with EINTR. */
        int got = await(how, epoll, fd, -1);
        MUST(got == 1 || (got < 0 && errno == EINTR));
        unsigned long long count = 0;
        if (with_eventfd && read(fd, &count, sizeof count) == sizeof count)
            counted += (int)count;
        int taken = take();
        ended += taken;
        for (int i = 0; i < taken && begun < ROUNDS * depth; i++)
            read_at(begun++);
    }
    if (with_eventfd)
        MUST(io_uring_unregister_eventfd(&ring) == 0 && counted > 0 && counted <= ended);
    printf("%s, depth %d%s: %d\n", names[how], depth, with_eventfd ? ", eventfd" : "", ended);
    close(epoll);
    if (with_eventfd)
        close(fd);
}

static volatile int handled;

static void on_signal(int signal)
{
    (void)signal;
    handled++;
}

int main(void)
{
    static char text[64 * BLOCK];
    char name[] = "loop-XXXXXX";
    file = mkstemp(name);
    memset(text, 'x', sizeof text);
    MUST(file >= 0 && write(file, text, sizeof text) == sizeof text && fsync(file) == 0);
    int direct = open(name, O_RDWR | O_DIRECT);
    MUST(unlink(name) == 0);
    if (direct >= 0)
        file = direct;
    buffer = mmap(NULL, DEPTH * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(buffer != MAP_FAILED && io_uring_queue_init(32, &ring, 0) == 0);
    for (enum how how = 0; how < HOWS; how++) {
        rounds(how, 1, 0);
        rounds(how, DEPTH, 0);
        rounds(how, DEPTH, 1);
    }
    /* No request ends during these waits. Each wait ends by its timeout, or by a signal that its
     * mask unblocks. */
    int ends[2];
    MUST(pipe(ends) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    MUST(io_uring_submit(&ring) == 1);
    for (enum how how = 0; how <= PSELECT; how++)
        printf("%s, 10 ms: %d\n", names[how], await(how, -1, ring.ring_fd, 10));
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    for (enum how how = PPOLL; how <= PSELECT; how += 2) {
        MUST(raise(SIGUSR1) == 0);
        int got = await(how, -1, ring.ring_fd, -1);
        printf("%s under a mask: %d, %s, %d handled\n", names[how], got,
               got < 0 && errno == EINTR ? "EINTR" : "?", handled);
    }
    MUST(write(ends[1], "x", 1) == 1);
    while (await(POLL, -1, ring.ring_fd, -1) != 1)
        MUST(errno == EINTR);
    printf("done\n");
    return 0;
}
