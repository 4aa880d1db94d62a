/* A context belongs to the process that has made it: a child makes its own. fork FILE */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uringlet.h"

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "fork: line %d: %s\n", __LINE__, #what);                              \
            _exit(EXIT_FAILURE);                                                                  \
        }                                                                                         \
    } while (0)

static void read_once(struct uringlet *u, int fd, const char *who)
{
    struct uringlet_range range = {.fd = fd, .res = 0, .off = 0, .buf = NULL, .len = 16};
    char buf[16];

    range.buf = buf;
    CHECK(uringlet_read_many(u, &range, 1) == 1);
    CHECK(range.res == 16);
    printf("%s has read %d bytes\n", who, (int)range.res);
    fflush(stdout);
}

static void child(struct uringlet *parents, int fd)
{
    struct uringlet_cqe cqe;
    struct uringlet *u;

    CHECK(uringlet_get_sqe(parents) == NULL);
    CHECK(uringlet_submit(parents) == -EINVAL);
    CHECK(uringlet_wait(parents, 1, -1) == -EINVAL);
    CHECK(uringlet_peek(parents, &cqe, 1) == -EINVAL);
    CHECK(uringlet_run(parents, 1, -1) == -EINVAL);
    CHECK(uringlet_cancel(parents, 0) == -EINVAL);
    CHECK(uringlet_cancel_fd(parents, 0) == -EINVAL);
    CHECK(uringlet_event_fd(parents) == -EINVAL);
    CHECK(uringlet_engine(parents) == NULL);
    CHECK(uringlet_explain(parents) == NULL);
    CHECK(uringlet_destroy(parents, -1) == -EINVAL);
    CHECK(uringlet_create(&u, NULL) == 0);
    read_once(u, fd, "the child");
    CHECK(uringlet_destroy(u, -1) == 0);
}

int main(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1, status;
    struct uringlet_sqe *sqe;
    struct uringlet_cqe cqe;
    struct uringlet *u;
    int pipes[2];
    char byte;
    pid_t pid;

    CHECK(fd >= 0 && pipe(pipes) == 0);
    CHECK(uringlet_create(&u, NULL) == 0);
    read_once(u, fd, "the parent");

    /* This request is in flight while the process forks. */
    sqe = uringlet_get_sqe(u);
    CHECK(sqe);
    uringlet_prep_read(sqe, pipes[0], &byte, 1, URINGLET_FILE_POSITION);
    CHECK(uringlet_submit(u) == 1);

    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child(u, fd);
        _exit(EXIT_SUCCESS);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(uringlet_wait(u, 1, -1) == 1);
    CHECK(uringlet_peek(u, &cqe, 1) == 1 && cqe.res == 1 && byte == 'x');
    read_once(u, fd, "the parent");
    CHECK(uringlet_destroy(u, -1) == 0);
    return EXIT_SUCCESS;
}
