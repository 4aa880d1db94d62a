/* An echo server, and clients in a process of their own, over pairs of sockets.
 *
 *     echo io_uring|epoll tcp|unix CONNECTIONS ROUNDS SIZE
 *
 * In each round every client sends a message of SIZE bytes, and then every client receives it.
 * Both servers have the same shape: receive what is there, send it back, and wait for all
 * connections at once. Prints echoes a second, and microseconds of CPU time of the server for each
 * echo. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) ((what) ? (void)0 : fail(#what))

enum { MOST = 1024 };

static int count, rounds, size, servers[MOST], clients[MOST];

static void fail(const char *what)
{
    fprintf(stderr, "echo: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void connect_all(int is_tcp)
{
    struct sockaddr_in here = { .sin_family = AF_INET };
    socklen_t len = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(bind(listener, (void *)&here, len) == 0 && listen(listener, MOST) == 0);
    MUST(getsockname(listener, (void *)&here, &len) == 0);
    for (int at = 0; at < count; at++) {
        int pair[2];
        if (!is_tcp) {
            MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        } else {
            pair[1] = socket(AF_INET, SOCK_STREAM, 0);
            MUST(connect(pair[1], (void *)&here, sizeof here) == 0);
            pair[0] = accept(listener, NULL, NULL);
            MUST(pair[0] >= 0);
            for (int side = 0; side < 2; side++)
                MUST(setsockopt(pair[side], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        }
        servers[at] = pair[0];
        clients[at] = pair[1];
    }
    close(listener);
}

static void run_clients(void)
{
    char *buffer = calloc(1, size);
    for (int round = 0; round < rounds; round++) {
        for (int at = 0; at < count; at++)
            MUST(write(clients[at], buffer, size) == size);
        for (int at = 0; at < count; at++)
            for (int got = 0; got < size;) {
                int more = read(clients[at], buffer + got, size - got);
                MUST(more > 0);
                got += more;
            }
    }
}

static void serve_by_ring(char *buffers)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(MOST, &ring, 0) == 0);
    int open = count, *received = calloc(count, sizeof(int));
    for (int at = 0; at < count; at++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_recv(sqe, servers[at], buffers + (size_t)at * size, size, 0);
        sqe->user_data = at * 2;
    }
    while (open) {
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        MUST(io_uring_submit_and_wait(&ring, 1) >= 0);
        io_uring_for_each_cqe(&ring, head, cqe) {
            int at = cqe->user_data / 2, was_sent = cqe->user_data & 1;
            char *buffer = buffers + (size_t)at * size;
            seen++;
            MUST(cqe->res >= 0);
            if (cqe->res == 0) {
                open--;
                continue;
            }
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            if (was_sent) {
                MUST(cqe->res == received[at]);
                io_uring_prep_recv(sqe, servers[at], buffer, size, 0);
            } else {
                received[at] = cqe->res;
                io_uring_prep_send(sqe, servers[at], buffer, cqe->res, MSG_WAITALL);
            }
            sqe->user_data = at * 2 + !was_sent;
        }
        io_uring_cq_advance(&ring, seen);
    }
    io_uring_queue_exit(&ring);
}

static void serve_by_epoll(char *buffers)
{
    static struct epoll_event events[MOST];
    int epoll = epoll_create1(0), open = count;
    for (int at = 0; at < count; at++) {
        struct epoll_event event = { .events = EPOLLIN, .data.u32 = at };
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, servers[at], &event) == 0);
    }
    while (open) {
        int ready = epoll_wait(epoll, events, MOST, -1);
        for (int one = 0; one < ready; one++) {
            int at = events[one].data.u32;
            char *buffer = buffers + (size_t)at * size;
            int got = recv(servers[at], buffer, size, MSG_DONTWAIT);
            MUST(got >= 0);
            if (got == 0) {
                open--;
                MUST(epoll_ctl(epoll, EPOLL_CTL_DEL, servers[at], NULL) == 0);
            } else {
                /* Like the other server's send, this send waits while the socket has no room. */
                MUST(send(servers[at], buffer, got, 0) == got);
            }
        }
    }
}

static double seconds(struct timeval of)
{
    return of.tv_sec + of.tv_usec / 1e6;
}

int main(int number, char **args)
{
    if (number != 6) {
        fprintf(stderr, "usage: echo io_uring|epoll tcp|unix CONNECTIONS ROUNDS SIZE\n");
        return 2;
    }
    count = atoi(args[3]), rounds = atoi(args[4]), size = atoi(args[5]);
    MUST(count > 0 && count <= MOST && rounds > 0 && size > 0);
    struct rlimit files = { 4 * MOST, 4 * MOST };
    setrlimit(RLIMIT_NOFILE, &files);
    connect_all(!strcmp(args[2], "tcp"));
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int at = 0; at < count; at++)
            close(servers[at]);
        run_clients();
        _exit(0);
    }
    for (int at = 0; at < count; at++)
        close(clients[at]);
    char *buffers = malloc((size_t)count * size);
    struct timespec begin, end;
    struct rusage before, used;
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (!strcmp(args[1], "epoll"))
        serve_by_epoll(buffers);
    else
        serve_by_ring(buffers);
    clock_gettime(CLOCK_MONOTONIC, &end);
    getrusage(RUSAGE_SELF, &used);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    double time = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
    double cpu = seconds(used.ru_utime) + seconds(used.ru_stime) - seconds(before.ru_utime)
                 - seconds(before.ru_stime);
    double echoes = (double)count * rounds;
    printf("%.0f %.2f\n", echoes / time, cpu / echoes * 1e6);
    return 0;
}
