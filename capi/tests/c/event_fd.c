/* The descriptor is readable while completions wait. */
#include <poll.h>

#include "check.h"

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN, .revents = 0};

    return poll(&poll_fd, 1, timeout_ms);
}

int main(void)
{
    struct uringlet *u = context(8), *late = context(8);
    char content[64] = "content", bufs[8][8], byte;
    int file = file_of(content, sizeof(content)), fd = uringlet_event_fd(u), pipes[2];
    struct uringlet_cqe cqes[8];

    CHECK(fd >= 0);
    EQUAL(uringlet_event_fd(u), fd);
    EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EQUAL(is_readable(fd, 0), 0);
    for (int round = 0; round < 300; round++) {
        for (uint64_t at = 0; at < 8; at++) {
            struct uringlet_sqe *sqe = entry(u);

            uringlet_prep_read(sqe, file, bufs[at], 8, at * 8);
            uringlet_sqe_set_data64(sqe, at);
        }
        EQUAL(uringlet_submit(u), 8);
        /* Reaps in small and in larger steps: the descriptor is readable while completions are
         * left. */
        for (int reaped = 0; reaped < 8;) {
            int ret;

            EQUAL(is_readable(fd, -1), 1);
            ret = uringlet_peek(u, cqes, 1 + (unsigned)(round % 3));
            CHECK(ret >= 0);
            reaped += ret;
        }
        EQUAL(uringlet_peek(u, cqes, 8), 0);
    }
    /* The descriptor may still be readable now: the eventfd may count the last completions after
     * they were reaped. */
    EQUAL(uringlet_destroy(u, -1), 0);

    u = context(8);
    fd = uringlet_event_fd(u);
    EQUAL(pipe(pipes), 0);
    uringlet_prep_read(entry(u), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    EQUAL(uringlet_peek(u, cqes, 8), 0);
    EQUAL(is_readable(fd, 0), 0);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(is_readable(fd, -1), 1);
    EQUAL(uringlet_wait(u, 1, -1), 1);
    EQUAL(is_readable(fd, -1), 1);
    EQUAL(uringlet_peek(u, cqes, 8), 1);
    EQUAL(is_readable(fd, 0), 0);
    EQUAL(uringlet_destroy(u, -1), 0);
    EQUAL(fcntl(fd, F_GETFD), -1);

    /* While a request is in flight, no eventfd is made: it would not count this request. */
    uringlet_prep_read(entry(late), pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(late), 1);
    EQUAL(uringlet_event_fd(late), -EBUSY);
    EQUAL(write(pipes[1], "x", 1), 1);
    EQUAL(result(late), 1);
    CHECK(uringlet_event_fd(late) >= 0);
    EQUAL(uringlet_destroy(late, -1), 0);
    return EXIT_SUCCESS;
}
