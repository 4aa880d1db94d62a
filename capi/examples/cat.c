/* Prints files, one after the other: cat FILE... */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "uringlet.h"

/* Runs the request that was just prepared, and returns its result. */
static int finish(struct uringlet *u)
{
    struct uringlet_cqe cqe;
    int ret;

    do {
        ret = uringlet_wait(u, 1, -1);
    } while (ret == -EINTR);
    if (ret < 0)
        return ret;
    ret = uringlet_peek(u, &cqe, 1);
    return ret == 1 ? cqe.res : -EIO;
}

static int print(struct uringlet *u, int fd)
{
    static char buf[1 << 16];
    uint64_t off = 0;

    for (;;) {
        int len, at = 0;

        uringlet_prep_read(uringlet_get_sqe(u), fd, buf, sizeof(buf), off);
        len = finish(u);
        if (len <= 0)
            return len;
        off += (uint64_t)len;
        while (at < len) {
            int ret;

            uringlet_prep_write(uringlet_get_sqe(u), STDOUT_FILENO, buf + at, (size_t)(len - at),
                                URINGLET_FILE_POSITION);
            ret = finish(u);
            if (ret < 0)
                return ret;
            at += ret;
        }
    }
}

int main(int argc, char **argv)
{
    struct uringlet *u;
    int ret = uringlet_create(&u, NULL), failed = 0;

    if (ret < 0) {
        fprintf(stderr, "cat: %s\n", uringlet_explain(NULL));
        return EXIT_FAILURE;
    }
    for (int at = 1; at < argc; at++) {
        int fd = -1;

        uringlet_prep_openat(uringlet_get_sqe(u), AT_FDCWD, argv[at], O_RDONLY | O_CLOEXEC, 0);
        ret = fd = finish(u);
        if (fd >= 0) {
            ret = print(u, fd);
            uringlet_prep_close(uringlet_get_sqe(u), fd);
            finish(u);
        }
        if (ret < 0) {
            fprintf(stderr, "cat: %s: %s\n", argv[at], uringlet_strerror(ret));
            failed = 1;
        }
    }
    uringlet_destroy(u, -1);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
