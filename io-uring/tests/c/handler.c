/* A signal handler enters a ring that its thread may be entering at that moment. */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <sys/time.h>

static struct io_uring ring;
static volatile int handled, wrong;

static void handler(int signal)
{
    int before = errno;
    struct pollfd set = {ring.ring_fd, POLLIN, 0};
    (void)signal;
    int answer = io_uring_enter(ring.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, NULL);
    /* The drop-in returns EAGAIN where it cannot wait for the call that the signal interrupted. */
    if (answer != 0 && answer != -EAGAIN)
        wrong = answer;
    if (poll(&set, 1, 0) < 0)
        wrong = -errno;
    handled++;
    errno = before;
}

/* The handler submits, too. Its thread submits a close of a descriptor, and a NOP behind it. */
static void submitting_handler(int signal)
{
    int before = errno;
    (void)signal;
    int answer = io_uring_enter(ring.ring_fd, 8, 0, 0, NULL);
    if (answer < 0 && answer != -EAGAIN)
        wrong = answer;
    handled++;
    errno = before;
}

static void closes(void)
{
    int fd = dup(1);
    MUST(fd >= 0);
    io_uring_prep_close(entry(&ring, 1), fd);
    io_uring_prep_nop(entry(&ring, 1));
    for (int left = 2; left > 0;) {
        struct io_uring_cqe *cqe;
        int answer = io_uring_submit_and_wait(&ring, 1);
        MUST(answer >= 0 || answer == -EINTR || answer == -EAGAIN);
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            MUST(cqe->res == 0);
            io_uring_cqe_seen(&ring, cqe);
            left--;
        }
    }
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}};
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int part = 0; part < 4; part++) {
        while (handled < 500 * (part + 1) && !wrong) {
            for (int at = 0; at < 4; at++)
                io_uring_prep_nop(entry(&ring, 1));
            int left = 4;
            while (left > 0) {
                struct io_uring_cqe *cqe;
                int answer = io_uring_submit_and_wait(&ring, 1);
                MUST(answer >= 0 || answer == -EINTR);
                while (io_uring_peek_cqe(&ring, &cqe) == 0) {
                    MUST(cqe->res == 0);
                    io_uring_cqe_seen(&ring, cqe);
                    left--;
                }
            }
        }
        printf("wrong %d\n", wrong);
    }
    action.sa_handler = submitting_handler;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    for (int until = handled + 1000; handled < until && !wrong;)
        closes();
    printf("wrong %d\n", wrong);
    often = (struct itimerval){{0, 0}, {0, 0}};
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    io_uring_queue_exit(&ring);
    return 0;
}
