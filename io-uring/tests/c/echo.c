/* A server on one ring, and clients on other rings: the server sends back what it receives,
 * complete and in order. */
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

enum { CONNECTIONS = 64, LARGEST = 16384, ROUNDS = 20 };

static struct sockaddr_in here = { .sin_family = AF_INET };
static int listener;

enum { ACCEPT, RECEIVE, SEND };

static struct connection {
    int fd;
    unsigned left;
    char *at, buffer[LARGEST];
} connections[CONNECTIONS];

static unsigned long long tag(int what, long at)
{
    return (unsigned long long)at << 2 | what;
}

static void receive(struct io_uring *ring, long at)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    io_uring_prep_recv(sqe, connections[at].fd, connections[at].buffer, LARGEST, 0);
    sqe->user_data = tag(RECEIVE, at);
}

static void send_rest(struct io_uring *ring, long at)
{
    struct io_uring_sqe *sqe = entry(ring, 0);
    io_uring_prep_send(sqe, connections[at].fd, connections[at].at, connections[at].left, 0);
    sqe->user_data = tag(SEND, at);
}

static void *serve(void *unused)
{
    struct io_uring ring;
    int begun = 0, ended = 0;
    MUST(io_uring_queue_init(2 * CONNECTIONS, &ring, 0) == 0);
    io_uring_prep_accept(entry(&ring, 0), listener, NULL, NULL, 0);
    while (ended < CONNECTIONS) {
        MUST(io_uring_submit_and_wait(&ring, 1) >= 0);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            long at = cqe->user_data >> 2;
            int what = cqe->user_data & 3, res = cqe->res;
            io_uring_cqe_seen(&ring, cqe);
            struct connection *of = &connections[at];
            MUST(res >= 0);
            if (what == ACCEPT) {
                connections[begun].fd = res;
                receive(&ring, begun++);
                if (begun < CONNECTIONS)
                    io_uring_prep_accept(entry(&ring, 0), listener, NULL, NULL, 0);
            } else if (what == RECEIVE && res == 0) {
                close(of->fd);
                ended++;
            } else if (what == RECEIVE) {
                of->at = of->buffer;
                of->left = res;
                send_rest(&ring, at);
            } else {
                of->at += res;
                of->left -= res;
                if (of->left)
                    send_rest(&ring, at);
                else
                    receive(&ring, at);
            }
        }
    }
    io_uring_queue_exit(&ring);
    return unused;
}

static char byte_of(unsigned client, unsigned round, unsigned at)
{
    return client * 31 + round * 7 + at;
}

/* All clients at the same time: each sends a message and receives it. */
static void run(int size)
{
    static char out[CONNECTIONS][LARGEST], in[CONNECTIONS][LARGEST];
    struct io_uring ring;
    int fds[CONNECTIONS];
    pthread_t server;
    unsigned long wrong = 0, received = 0;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof here;
    here.sin_port = 0;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(bind(listener, (void *)&here, sizeof here) == 0 && listen(listener, CONNECTIONS) == 0);
    MUST(getsockname(listener, (void *)&here, &len) == 0);
    MUST(pthread_create(&server, NULL, serve, NULL) == 0);
    MUST(io_uring_queue_init(4 * CONNECTIONS, &ring, 0) == 0);
    for (int at = 0; at < CONNECTIONS; at++) {
        fds[at] = socket(AF_INET, SOCK_STREAM, 0);
        io_uring_prep_connect(entry(&ring, 0), fds[at], (void *)&here, sizeof here);
    }
    for (int at = 0; at < CONNECTIONS; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_submit_and_wait(&ring, 1) >= 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
        MUST(cqe->res == 0);
        io_uring_cqe_seen(&ring, cqe);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned at = 0; at < CONNECTIONS; at++) {
            for (int byte = 0; byte < size; byte++)
                out[at][byte] = byte_of(at, round, byte);
            io_uring_prep_send(entry(&ring, 0), fds[at], out[at], size, MSG_WAITALL);
            io_uring_prep_recv(entry(&ring, 0), fds[at], in[at], size, MSG_WAITALL);
        }
        for (int left = 2 * CONNECTIONS; left > 0; left--) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_submit_and_wait(&ring, 1) >= 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
            wrong += cqe->res != size;
            io_uring_cqe_seen(&ring, cqe);
        }
        for (unsigned at = 0; at < CONNECTIONS; at++) {
            wrong += memcmp(out[at], in[at], size) != 0;
            received += size;
        }
    }
    for (int at = 0; at < CONNECTIONS; at++)
        close(fds[at]);
    pthread_join(server, NULL);
    close(listener);
    io_uring_queue_exit(&ring);
    printf("%d connections, %d bytes: %lu received, %lu wrong\n", CONNECTIONS, size, received,
           wrong);
}

int main(void)
{
    printf("[echo]\n");
    run(1);
    run(64);
    run(LARGEST);
    return 0;
}
