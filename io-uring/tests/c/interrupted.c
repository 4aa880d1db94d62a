/* Signals come while entries are submitted and executed: no signal ends a request. */
#include "common.h"
#include <signal.h>
#include <sys/time.h>

enum { COUNT = 8, ROUNDS = 500 };

static struct io_uring ring;
static int pipes[COUNT][2];
static volatile int handled;

static void counts(int signal)
{
    (void)signal;
    handled++;
}

static void round_of_reads_and_polls(void)
{
    static char bytes[COUNT];
    for (int at = 0; at < COUNT; at++) {
        struct io_uring_sqe *sqe = entry(&ring, at);
        if (at % 2)
            io_uring_prep_poll_add(sqe, pipes[at][0], POLLIN);
        else
            io_uring_prep_read(sqe, pipes[at][0], &bytes[at], 1, 0);
        sqe->user_data = at;
    }
    MUST(io_uring_submit(&ring) == COUNT);
    for (int at = 0; at < COUNT; at++)
        MUST(write(pipes[at][1], "x", 1) == 1);
    for (int at = 0; at < COUNT; at++) {
        struct io_uring_cqe *cqe;
        int answer;
        while ((answer = io_uring_wait_cqe(&ring, &cqe)) == -EINTR)
            ;
        MUST(answer == 0);
        if (cqe->res != 1)
            printf("%llu gives %d\n", (unsigned long long)cqe->user_data, cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
    for (int at = 1; at < COUNT; at += 2)
        MUST(read(pipes[at][0], bytes, 1) == 1);
}

int main(void)
{
    struct sigaction action = {.sa_handler = counts, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    MUST(io_uring_queue_init(64, &ring, 0) == 0);
    for (int at = 0; at < COUNT; at++)
        MUST(pipe(pipes[at]) == 0);
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int part = 0; part < 4; part++) {
        for (int at = 0; at < ROUNDS; at++)
            round_of_reads_and_polls();
        printf("part %d\n", part);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    printf("handled %d\n", handled > 0);
    io_uring_queue_exit(&ring);
    return 0;
}
