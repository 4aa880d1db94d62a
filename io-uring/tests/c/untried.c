/* Receives of a socket whose earlier receives had to wait. Data is there already or comes later,
 * in all orders of arriving, submitting, waiting, closing and cancelling. */
#define _GNU_SOURCE
#include "common.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { WAITS = 5 };

static char buffer[4096], out[4096];

static void receive(struct io_uring *ring, int fd, unsigned len, int flags, int tag)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    io_uring_prep_recv(sqe, fd, buffer, len, flags);
    sqe->user_data = tag;
}

static void feed(int fd, int len)
{
    MUST(write(fd, out, len) == len);
}

/* Prints the results of `count` requests, without their flags. */
static void results(struct io_uring *ring, const char *what, int count)
{
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(ring, &cqe) == 0);
        printf("%s: %llu gives %d\n", what, (unsigned long long)cqe->user_data, cqe->res);
        io_uring_cqe_seen(ring, cqe);
    }
    printf("%s: %u more\n", what, io_uring_cq_ready(ring));
}

/* Submits receives that have to wait, so that the library does not try later ones at their
 * submit. */
static void learn(struct io_uring *ring, int pair[2])
{
    for (int at = 0; at < WAITS; at++) {
        struct io_uring_cqe *cqe;
        receive(ring, pair[0], 64, 0, 1);
        MUST(io_uring_submit(ring) == 1);
        feed(pair[1], 64);
        MUST(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == 64);
        io_uring_cqe_seen(ring, cqe);
    }
}

static void open_pair(struct io_uring *ring, int type, int pair[2])
{
    MUST(socketpair(AF_UNIX, type, 0, pair) == 0);
    learn(ring, pair);
}

static void close_pair(int pair[2])
{
    close(pair[0]);
    close(pair[1]);
}

static void sizes(struct io_uring *ring, int type)
{
    int pair[2];
    open_pair(ring, type, pair);
    for (int sent = 32; sent <= 128; sent *= 2) {
        feed(pair[1], sent);
        receive(ring, pair[0], 64, 0, sent);
        MUST(io_uring_submit(ring) == 1);
        printf("there at a submit: %u\n", io_uring_cq_ready(ring));
        results(ring, "there", 1);
    }
    feed(pair[1], 64);
    for (int at = 0; at < 3; at++)
        receive(ring, pair[0], 64, at == 0 ? MSG_PEEK : 0, at);
    feed(pair[1], 64);
    MUST(io_uring_submit_and_wait(ring, 3) == 3);
    results(ring, "in line", 3);
    io_uring_prep_nop(entry(ring, 0));
    receive(ring, pair[0], 64, 0, 1);
    MUST(io_uring_submit_and_wait(ring, 1) == 2);
    results(ring, "beside another", type == SOCK_STREAM ? 2 : 1);
    if (type != SOCK_STREAM) {
        feed(pair[1], 1);
        results(ring, "late", 1);
    }
    receive(ring, pair[0], 64, MSG_WAITALL, 2);
    MUST(io_uring_submit(ring) == 1);
    feed(pair[1], 16);
    feed(pair[1], 48);
    results(ring, "in parts", 1);
    close_pair(pair);
}

static void ends(struct io_uring *ring)
{
    int pair[2], other[2];
    open_pair(ring, SOCK_STREAM, pair);
    receive(ring, pair[0], 64, 0, 1);
    io_uring_prep_cancel64(entry(ring, 0), 1, 0);
    MUST(io_uring_submit_and_wait(ring, 2) == 2);
    sorted(ring, "cancelled", 2);
    feed(pair[1], 64);
    receive(ring, pair[0], 64, 0, 1);
    io_uring_prep_cancel64(entry(ring, 0), 1, 0);
    MUST(io_uring_submit_and_wait(ring, 2) == 2);
    sorted(ring, "not cancelled", 2);
    receive(ring, pair[0], 64, 0, 2);
    shutdown(pair[1], SHUT_WR);
    MUST(io_uring_submit(ring) == 1);
    printf("ended at a submit: %u\n", io_uring_cq_ready(ring));
    results(ring, "ended", 1);
    receive(ring, pair[0], 64, 0, 3);
    MUST(io_uring_submit_and_wait(ring, 1) == 1);
    results(ring, "ended", 1);

    /* The descriptor number names another socket, and a child keeps the first socket open. */
    open_pair(ring, SOCK_STREAM, other);
    int pipes[2];
    MUST(pipe(pipes) == 0);
    feed(other[1], 64);
    pid_t child = fork();
    if (child == 0) {
        close(pipes[1]);
        _exit(read(pipes[0], buffer, 1) != 0);
    }
    close(pipes[0]);
    int number = other[0];
    close_pair(other);
    close_pair(pair);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    if (pair[0] != number) {
        MUST(dup2(pair[0], number) == number);
        close(pair[0]);
        pair[0] = number;
    }
    receive(ring, number, 64, 0, 4);
    MUST(io_uring_submit(ring) == 1);
    printf("of another socket: %u\n", io_uring_cq_ready(ring));
    feed(pair[1], 5);
    results(ring, "of another socket", 1);
    receive(ring, number, 64, 0, 5);
    MUST(io_uring_submit(ring) == 1);
    close(pipes[1]);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    feed(pair[1], 6);
    results(ring, "of another socket", 1);
    close_pair(pair);
}

/* Two rings on a socket, and a read of the program's own. */
static void several(struct io_uring *ring)
{
    struct io_uring other;
    int pair[2];
    MUST(io_uring_queue_init(8, &other, 0) == 0);
    open_pair(ring, SOCK_STREAM, pair);
    learn(&other, pair);
    receive(ring, pair[0], 64, 0, 1);
    MUST(io_uring_submit(ring) == 1);
    feed(pair[1], 7);
    results(ring, "one ring", 1);
    receive(&other, pair[0], 64, 0, 2);
    MUST(io_uring_submit(&other) == 1);
    feed(pair[1], 8);
    results(&other, "another ring", 1);
    for (int at = 0; at < 20; at++) {
        feed(pair[1], 9);
        MUST(read(pair[0], buffer, 4) == 4);
        receive(ring, pair[0], 64, 0, at);
        MUST(io_uring_submit(ring) == 1);
        results(ring, "the rest", 1);
    }
    feed(pair[1], 9);
    io_uring_prep_poll_add(entry(ring, 0), pair[0], POLLIN);
    MUST(io_uring_submit_and_wait(ring, 1) == 1);
    results(ring, "poll", 1);
    receive(ring, pair[0], 64, 0, 1);
    MUST(io_uring_submit_and_wait(ring, 1) == 1);
    results(ring, "after the poll", 1);
    close_pair(pair);
    io_uring_queue_exit(&other);
}

/* A wait whose timeout is zero or 1 ns completes a receive of data that is there already. */
static void at_once(struct io_uring *ring)
{
    struct __kernel_timespec none = {0}, long_ago = {.tv_nsec = 1};
    struct io_uring_cqe *cqe;
    int pair[2];
    open_pair(ring, SOCK_STREAM, pair);
    feed(pair[1], 64);
    receive(ring, pair[0], 64, 0, 1);
    printf("no time: %d", io_uring_submit_and_wait_timeout(ring, &cqe, 1, &none, NULL));
    printf(", %u there\n", io_uring_cq_ready(ring));
    results(ring, "no time", 1);
    feed(pair[1], 64);
    receive(ring, pair[0], 64, 0, 2);
    printf("hardly any: %d", io_uring_submit_and_wait_timeout(ring, &cqe, 1, &long_ago, NULL));
    printf(", %u there\n", io_uring_cq_ready(ring));
    results(ring, "hardly any", 1);
    close_pair(pair);
}

static void connect_pair(int pair[2])
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t len = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(listener >= 0 && bind(listener, (void *)&name, len) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (void *)&name, &len) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(pair[0], (void *)&name, len) == 0);
    pair[1] = accept(listener, NULL, NULL);
    MUST(pair[1] >= 0);
    close(listener);
}

static void at_least(int fd, int bytes)
{
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0);
}

/* A receive takes the data that is there, even if it is too little for a poll to report. */
static void few(struct io_uring *ring)
{
    for (int late = 0; late < 2; late++) {
        char peeked[4];
        int pair[2];
        connect_pair(pair);
        if (!late)
            at_least(pair[0], 48);
        learn(ring, pair);
        if (late)
            at_least(pair[0], 48);
        feed(pair[1], 4);
        MUST(recv(pair[0], peeked, 4, MSG_PEEK | MSG_WAITALL) == 4);
        receive(ring, pair[0], 64, 0, late);
        MUST(io_uring_submit(ring) == 1);
        if (!late)
            printf("few at a submit: %u\n", io_uring_cq_ready(ring));
        results(ring, "few", 1);
        close_pair(pair);
    }
}

static void run(const char *name, unsigned flags)
{
    struct io_uring ring;
    printf("[%s]\n", name);
    MUST(io_uring_queue_init(16, &ring, flags) == 0);
    sizes(&ring, SOCK_STREAM);
    sizes(&ring, SOCK_DGRAM);
    sizes(&ring, SOCK_SEQPACKET);
    ends(&ring);
    several(&ring);
    at_once(&ring);
    few(&ring);
    io_uring_queue_exit(&ring);
}

int main(void)
{
    run("plain", 0);
    run("deferred", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    return 0;
}
