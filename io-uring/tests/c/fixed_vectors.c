/* READV_FIXED and WRITEV_FIXED: buffers of a list that lie in a registered buffer. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/uio.h>

enum { READV_FIXED = 60, WRITEV_FIXED, SIZE = 8192 };

static struct io_uring ring;
static char *memory;
static int file, ends[2];

static struct io_uring_sqe *vector(int opcode, int fd, struct iovec *parts, int count, long at)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->addr = (unsigned long)parts;
    sqe->len = count;
    sqe->off = at;
    sqe->buf_index = 1;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static void transfers(const char *what, int to, int from, long at)
{
    struct iovec parts[3] = { { memory, 5 }, { memory + 100, 7 }, { memory + 4000, 200 } };
    for (int byte = 0; byte < SIZE; byte++)
        memory[byte] = 'a' + byte % 23;
    for (int count = 1; count <= 3; count++) {
        vector(WRITEV_FIXED, to, parts, count, at);
        printf("%s, %d parts: wrote %d\n", what, count, result());
        struct iovec back[2] = { { memory + 5000, 4 }, { memory + 6000, 2000 } };
        memset(memory + 5000, 0, SIZE - 5000);
        vector(READV_FIXED, from, back, 2, at);
        printf("%s, read %d: %.4s %.30s\n", what, result(), memory + 5000, memory + 6000);
    }
}

static void refused(void)
{
    char other[8];
    struct iovec good[2] = { { memory, 5 }, { memory + SIZE - 3, 3 } };
    vector(WRITEV_FIXED, file, good, 2, 0);
    printf("to the last byte: %d\n", result());
    struct iovec bad[][2] = {
        { { memory, 5 }, { memory + SIZE - 3, 4 } },
        { { other, 5 }, { memory, 4 } },
        { { memory - 1, 5 }, { memory, 4 } },
        { { memory, 5 }, { memory, 0 } },
        { { memory, 0 }, { memory, 0 } },
        { { NULL, 0 }, { memory, 1 } },
        { { memory, -1 }, { memory, 1 } },
    };
    for (unsigned at = 0; at < sizeof bad / sizeof *bad; at++) {
        for (int opcode = READV_FIXED; opcode <= WRITEV_FIXED; opcode++) {
            vector(opcode, file, bad[at], 2, 0);
            printf("list %u, operation %d: %d\n", at, opcode, result());
            vector(opcode, file, bad[at], 1, 0);
            printf("list %u, operation %d, one part: %d\n", at, opcode, result());
        }
    }
    vector(READV_FIXED, file, good, 0, 0);
    printf("no parts: %d\n", result());
    vector(READV_FIXED, file, good, 1025, 0);
    printf("too many: %d\n", result());
    vector(READV_FIXED, file, (void *)8, 1, 0);
    printf("a list nowhere: %d\n", result());
    vector(READV_FIXED, file, good, 2, 0)->buf_index = 0;
    printf("an empty slot: %d\n", result());
    vector(READV_FIXED, file, good, 2, 0)->buf_index = 2;
    printf("no slot: %d\n", result());
    vector(READV_FIXED, -1, good, 2, 0);
    printf("no descriptor: %d\n", result());
    vector(READV_FIXED, ends[1], good, 2, 0);
    printf("the wrong end: %d\n", result());
    vector(READV_FIXED, file, good, 2, 0)->rw_flags = 1u << 30;
    printf("flags: %d\n", result());
    vector(READV_FIXED, file, good, 2, 0)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
}

/* A read that waits, and is cancelled. A read of less than the whole length breaks its chain. */
static void waits(void)
{
    struct iovec parts[2] = { { memory, 5 }, { memory + 100, 7 } };
    vector(READV_FIXED, ends[0], parts, 2, -1)->user_data = 1;
    io_uring_submit(&ring);
    printf("before: %u\n", io_uring_cq_ready(&ring));
    io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
    io_uring_submit(&ring);
    sorted(&ring, "cancel", 2);
    vector(READV_FIXED, ends[0], parts, 2, -1)->flags |= IOSQE_IO_LINK;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->user_data = 1;
    io_uring_submit(&ring);
    MUST(write(ends[1], "short", 5) == 5);
    completions(&ring, "less than all", 2);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && pipe(ends) == 0);
    needs(&ring, WRITEV_FIXED);
    file = scratch();
    MUST(posix_memalign((void **)&memory, 4096, SIZE) == 0);
    struct iovec parts[2] = { { memory, 5 }, { memory + 100, 7 } };
    vector(READV_FIXED, file, parts, 2, 0);
    printf("nothing is registered: %d\n", result());
    struct iovec buffers[2] = { { NULL, 0 }, { memory, SIZE } };
    MUST(io_uring_register_buffers(&ring, buffers, 2) == 0);
    transfers("a file", file, file, 10);
    transfers("a pipe", ends[1], ends[0], -1);
    refused();
    waits();
    io_uring_queue_exit(&ring);
    return 0;
}
