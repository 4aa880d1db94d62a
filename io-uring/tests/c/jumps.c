/* A signal handler leaves a wait with longjmp: the ring goes on, and can be torn down. */
#define _GNU_SOURCE
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static sigjmp_buf out;

static void handler(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

int main(void)
{
    struct io_uring ring;
    struct io_uring_cqe *cqe;
    int ends[2], fd = scratch();
    char buf[64], byte;
    sigset_t none;
    sigemptyset(&none);
    MUST(pipe(ends) == 0);
    MUST(write(fd, "some text", 9) == 9);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    signal(SIGALRM, handler);
    for (volatile int round = 0; round < 6; round++) {
        struct itimerval soon = {{0, 0}, {0, 20000}};
        /* The poll ends only after the jump, when a byte is written to the pipe. */
        struct io_uring_sqe *sqe = entry(&ring, 0);
        io_uring_prep_poll_add(sqe, ends[0], POLLIN);
        sqe->user_data = 1;
        MUST(io_uring_submit(&ring) == 1);
        if (!sigsetjmp(out, 1)) {
            setitimer(ITIMER_REAL, &soon, NULL);
            if (round % 2)
                io_uring_wait_cqes(&ring, &cqe, 8, NULL, &none);
            else
                io_uring_wait_cqe_nr(&ring, &cqe, 8);
            printf("it came back\n");
            return 1;
        }
        MUST(write(ends[1], "a", 1) == 1);
        completions(&ring, "poll", 1);
        MUST(read(ends[0], &byte, 1) == 1);
        sqe = entry(&ring, 0);
        io_uring_prep_read(sqe, fd, buf, sizeof buf, 0);
        sqe->user_data = 2;
        MUST(io_uring_submit(&ring) == 1);
        completions(&ring, "read", 1);
    }
    io_uring_queue_exit(&ring);
    printf("taken down\n");
    return 0;
}
