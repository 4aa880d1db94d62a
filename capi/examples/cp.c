/* Copies a file with 32 blocks in flight: cp FROM TO */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "uringlet.h"

#define DEPTH 32
#define BLOCK (64 * 1024)

/* A block that is being copied: it is read, then written. Then the next block takes its place. */
struct block {
    struct uringlet_handler handler;
    struct copy *copy;
    char *buf;
    uint64_t off; /* in both files */
    size_t len;   /* bytes of the block */
    size_t done;  /* bytes of these that reads or writes have transferred so far */
    int writing;
};

struct copy {
    struct uringlet *u;
    int from, to;
    uint64_t size, next;
    int busy;  /* blocks in flight */
    int error; /* the first error, or 0 */
};

static void submit(struct block *block)
{
    struct copy *copy = block->copy;
    /* There are as many entries as blocks, each of which has one request at most. */
    struct uringlet_sqe *sqe = uringlet_get_sqe(copy->u);
    char *buf = block->buf + block->done;
    size_t len = block->len - block->done;
    uint64_t off = block->off + block->done;

    if (block->writing)
        uringlet_prep_write(sqe, copy->to, buf, len, off);
    else
        uringlet_prep_read(sqe, copy->from, buf, len, off);
    uringlet_sqe_set_data(sqe, &block->handler);
}

static void begin(struct block *block)
{
    struct copy *copy = block->copy;

    if (copy->error || copy->next == copy->size) {
        copy->busy--;
        return;
    }
    block->off = copy->next;
    block->len = copy->size - copy->next < BLOCK ? (size_t)(copy->size - copy->next) : BLOCK;
    block->done = 0;
    block->writing = 0;
    copy->next += block->len;
    submit(block);
}

static void done(struct uringlet_handler *handler, int32_t res)
{
    struct block *block = (struct block *)handler;

    /* If a read returns 0 bytes, the file has become shorter. */
    if (res <= 0 && !block->copy->error)
        block->copy->error = res < 0 ? res : -EIO;
    if (block->copy->error) {
        block->copy->busy--;
        return;
    }
    block->done += (size_t)res;
    if (block->done == block->len) {
        if (block->writing) {
            begin(block);
            return;
        }
        block->writing = 1;
        block->done = 0;
    }
    submit(block);
}

int main(int argc, char **argv)
{
    static struct block blocks[DEPTH];
    struct uringlet_options options = URINGLET_OPTIONS_INIT;
    struct copy copy = {.busy = DEPTH};
    struct stat st;

    if (argc != 3) {
        fprintf(stderr, "usage: cp FROM TO\n");
        return EXIT_FAILURE;
    }
    copy.from = open(argv[1], O_RDONLY | O_CLOEXEC);
    copy.to = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (copy.from < 0 || copy.to < 0 || fstat(copy.from, &st) < 0) {
        perror("cp");
        return EXIT_FAILURE;
    }
    copy.size = (uint64_t)st.st_size;
    options.entries = DEPTH;
    if (uringlet_create(&copy.u, &options) < 0) {
        fprintf(stderr, "cp: %s\n", uringlet_explain(NULL));
        return EXIT_FAILURE;
    }
    for (int at = 0; at < DEPTH; at++) {
        blocks[at].handler.done = done;
        blocks[at].copy = &copy;
        blocks[at].buf = malloc(BLOCK);
        if (!blocks[at].buf)
            return EXIT_FAILURE;
        begin(&blocks[at]);
    }
    while (copy.busy > 0) {
        int ret = uringlet_run(copy.u, 1, -1);

        if (ret < 0 && ret != -EINTR) {
            copy.error = ret;
            break;
        }
    }
    uringlet_destroy(copy.u, -1);
    for (int at = 0; at < DEPTH; at++)
        free(blocks[at].buf);
    if (!copy.error && close(copy.to) < 0)
        copy.error = -errno;
    if (copy.error)
        fprintf(stderr, "cp: %s\n", uringlet_strerror(copy.error));
    return copy.error ? EXIT_FAILURE : EXIT_SUCCESS;
}
