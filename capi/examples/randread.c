/* Reads blocks of 4 KiB at random places: randread FILE [READS [DEPTH [ENGINE]]] */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "uringlet.h"

#define BLOCK 4096

static uint64_t number = 88172645463325252u;

static uint64_t next_number(void)
{
    number ^= number << 13;
    number ^= number >> 7;
    number ^= number << 17;
    return number;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct uringlet_options options = URINGLET_OPTIONS_INIT;
    struct uringlet_stats stats = {.size = sizeof(stats)};
    uint64_t reads = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    unsigned depth = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 32;
    uint64_t begun = 0, done = 0, failed = 0, blocks;
    struct uringlet_cqe cqes[64];
    struct uringlet *u;
    struct stat st;
    char *memory;
    double begin;
    int fd;

    options.flags = URINGLET_WITH_STATS;
    options.entries = depth;
    options.engine = argc > 4 ? argv[4] : NULL;
    fd = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < BLOCK) {
        fprintf(stderr, "usage: randread FILE [READS [DEPTH [ENGINE]]]\n");
        return EXIT_FAILURE;
    }
    blocks = (uint64_t)st.st_size / BLOCK;
    if (uringlet_create(&u, &options) < 0) {
        fprintf(stderr, "randread: %s\n", uringlet_explain(NULL));
        return EXIT_FAILURE;
    }
    memory = malloc((size_t)depth * BLOCK);
    if (!memory)
        return EXIT_FAILURE;

    begin = seconds();
    for (unsigned at = 0; done < reads;) {
        int n;

        /* Each request has a buffer. The completion returns the buffer's number. */
        for (; at < depth && begun < reads; at++, begun++) {
            struct uringlet_sqe *sqe = uringlet_get_sqe(u);

            uringlet_prep_read(sqe, fd, memory + (size_t)at * BLOCK, BLOCK,
                               next_number() % blocks * BLOCK);
            uringlet_sqe_set_data64(sqe, at);
        }
        n = uringlet_wait(u, 1, -1);
        if (n < 0 && n != -EINTR) {
            fprintf(stderr, "randread: %s\n", uringlet_strerror(n));
            return EXIT_FAILURE;
        }
        n = uringlet_peek(u, cqes, 64);
        for (int i = 0; i < n; i++) {
            failed += cqes[i].res != BLOCK;
            done++;
            if (begun < reads) {
                struct uringlet_sqe *sqe = uringlet_get_sqe(u);

                uringlet_prep_read(sqe, fd, memory + cqes[i].user_data * BLOCK, BLOCK,
                                   next_number() % blocks * BLOCK);
                uringlet_sqe_set_data64(sqe, cqes[i].user_data);
                begun++;
            }
        }
    }
    begin = seconds() - begin;

    uringlet_get_stats(u, &stats);
    printf("%" PRIu64 " reads, %" PRIu64 " failed\n", done, failed);
    printf("%" PRIu64 " bytes in %.3f s, %.0f reads/s\n", stats.bytes_read, begin,
           (double)done / begin);
    printf("executed by the program %" PRIu64 ", threads %" PRIu64 ", kernel %" PRIu64 "\n",
           stats.by_program, stats.by_threads, stats.by_kernel);
    printf("engine: %s\n", uringlet_explain(u));
    uringlet_destroy(u, -1);
    free(memory);
    close(fd);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
