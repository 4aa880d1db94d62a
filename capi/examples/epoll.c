/* A server in an epoll loop: epoll FILE
 *
 * Each line on standard input has an offset and a length; the answer is the sum of those bytes of
 * the file. The loop waits for lines and for completions at once.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "uringlet.h"

struct job {
    uint64_t off;
    unsigned char buf[4096];
};

static void answer(const struct uringlet_cqe *cqe, void *pending)
{
    struct job *job = uringlet_cqe_get_data(cqe);
    unsigned sum = 0;

    if (!job)
        return;
    if (cqe->res < 0) {
        printf("%" PRIu64 ": %s\n", job->off, uringlet_strerror(cqe->res));
    } else {
        for (int32_t at = 0; at < cqe->res; at++)
            sum += job->buf[at];
        printf("%" PRIu64 ": %d bytes, sum %u\n", job->off, (int)cqe->res, sum);
    }
    fflush(stdout);
    free(job);
    --*(unsigned *)pending;
}

/* Submits the read that a line asks for. */
static int ask(struct uringlet *u, int fd, const char *line)
{
    struct uringlet_sqe *sqe;
    struct job *job;
    uint64_t off;
    unsigned len;

    if (sscanf(line, "%" SCNu64 " %u", &off, &len) != 2)
        return -EINVAL;
    sqe = uringlet_get_sqe(u);
    if (!sqe)
        return -EAGAIN;
    job = malloc(sizeof(*job));
    if (!job) {
        /* The next submit also submits this entry, so it must be a valid request. */
        uringlet_prep_nop(sqe);
        return -ENOMEM;
    }
    job->off = off;
    uringlet_prep_read(sqe, fd, job->buf, len < sizeof(job->buf) ? len : sizeof(job->buf), off);
    uringlet_sqe_set_data(sqe, job);
    return uringlet_submit(u);
}

int main(int argc, char **argv)
{
    int file = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    int epoll = epoll_create1(EPOLL_CLOEXEC), open_input = 1;
    struct epoll_event event = {.events = EPOLLIN};
    char input[8192];
    size_t filled = 0;
    unsigned pending = 0;
    struct uringlet *u;

    if (file < 0 || epoll < 0) {
        perror("epoll");
        return EXIT_FAILURE;
    }
    if (uringlet_create(&u, NULL) < 0) {
        fprintf(stderr, "epoll: %s\n", uringlet_explain(NULL));
        return EXIT_FAILURE;
    }
    event.data.fd = uringlet_event_fd(u);
    if (event.data.fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event) < 0)
        return EXIT_FAILURE;
    event.data.fd = STDIN_FILENO;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) < 0) {
        perror("epoll: standard input");
        return EXIT_FAILURE;
    }
    while (open_input || pending) {
        if (epoll_wait(epoll, &event, 1, -1) < 1)
            continue;
        if (event.data.fd == STDIN_FILENO) {
            ssize_t len = read(STDIN_FILENO, input + filled, sizeof(input) - 1 - filled);
            char *line = input, *end;

            if (len <= 0) {
                open_input = 0;
                epoll_ctl(epoll, EPOLL_CTL_DEL, STDIN_FILENO, &event);
                continue;
            }
            filled += (size_t)len;
            input[filled] = 0;
            for (; (end = strchr(line, '\n')); line = end + 1) {
                int ret;

                *end = 0;
                ret = ask(u, file, line);
                if (ret < 0)
                    printf("%s: %s\n", line, uringlet_strerror(ret));
                else
                    pending++;
            }
            filled = strlen(line);
            memmove(input, line, filled);
        } else {
            uringlet_for_each(u, 128, answer, &pending);
        }
    }
    uringlet_destroy(u, -1);
    close(epoll);
    close(file);
    return EXIT_SUCCESS;
}
