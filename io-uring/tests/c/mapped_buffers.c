/* Rings of buffers that the program maps (IOU_PBUF_RING_MMAP). */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/socket.h>

enum { MAP = 1, IN_PIECES = 2, ENTRIES = 8, LEN = 16 };

static struct io_uring ring;
static char memory[ENTRIES][LEN];

static int registers(int group, unsigned entries, unsigned flags, void *at)
{
    struct io_uring_buf_reg how = {
        .ring_addr = (unsigned long long)at, .ring_entries = entries, .bgid = group, .pad = flags
    };
    return io_uring_register_buf_ring(&ring, &how, 0);
}

static void *map(unsigned group, size_t len, int prot, int flags, void *at)
{
    off_t offset = 0x80000000ull | (unsigned long long)group << 16;
    return mmap(at, len, prot, flags, ring.ring_fd, offset);
}

static void maps(const char *what, unsigned group, size_t len, int flags)
{
    void *at = map(group, len, PROT_READ | PROT_WRITE, flags, NULL);
    printf("%s: %d\n", what, at == MAP_FAILED ? errno : 0);
    if (at != MAP_FAILED)
        MUST(munmap(at, len) == 0);
}

/* Makes six receives into buffers of the group, which are more than it has room for. */
static void receives(const char *what, int group)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int at = 0; at < 6; at++) {
        struct io_uring_sqe *sqe = entry(&ring, 0);
        struct io_uring_cqe *cqe;
        MUST(write(pair[1], "message", 8) == 8);
        io_uring_prep_recv(sqe, pair[0], NULL, 8, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = group;
        MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
        printf("%s: %d, flags %x\n", what, cqe->res, cqe->flags);
        io_uring_cqe_seen(&ring, cqe);
    }
    MUST(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void fill(struct io_uring_buf_ring *buffers, int count)
{
    for (int at = 0; at < count; at++)
        io_uring_buf_ring_add(buffers, memory[at], LEN, at, ENTRIES - 1, at);
    io_uring_buf_ring_advance(buffers, count);
}

int main(void)
{
    size_t len = ENTRIES * sizeof(struct io_uring_buf);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    maps("no group", 3, len, MAP_SHARED);
    printf("flags: %d\n", registers(1, ENTRIES, 1u << 2, NULL));
    printf("no size: %d\n", registers(1, 0, MAP, NULL));
    printf("an odd size: %d\n", registers(1, 3, MAP, NULL));
    printf("too many: %d\n", registers(1, 1 << 16, MAP, NULL));
    int made = registers(1, ENTRIES, MAP, NULL);
    printf("made: %d\n", made);
    printf("again: %d\n", registers(1, ENTRIES, MAP, NULL));
    printf("with an address, too: %d\n", registers(2, ENTRIES, MAP, memory));
    maps("mapped", 1, len, MAP_SHARED);
    maps("a page", 1, 4096, MAP_SHARED);
    maps("nothing", 1, 0, MAP_SHARED);
    maps("another group", 7, len, MAP_SHARED);
    maps("a group beyond the offsets", 2048, len, MAP_SHARED);
    struct io_uring_buf_ring *buffers = map(1, len, PROT_READ | PROT_WRITE, MAP_SHARED, NULL);
    MUST(buffers != MAP_FAILED);
    static const char zero[4096];
    printf("cleared: %d\n", memcmp(buffers, zero, len) == 0);
    fill(buffers, 4);
    receives("whole", 1);
    printf("data: %s %s\n", memory[0], memory[3]);
    printf("in pieces: %d\n", registers(4, ENTRIES, MAP | IN_PIECES, NULL));
    struct io_uring_buf_ring *pieces = map(4, len, PROT_READ | PROT_WRITE, MAP_SHARED, NULL);
    MUST(pieces != MAP_FAILED);
    fill(pieces, 2);
    receives("in pieces", 4);
    printf("left: %u and %u\n", pieces->bufs[0].len, pieces->bufs[1].len);
    /* The program's mapping outlives the group. */
    printf("ended: %d\n", io_uring_unregister_buf_ring(&ring, 1));
    maps("ended", 1, len, MAP_SHARED);
    printf("buffer 3 has the id %u\n", buffers->bufs[3].bid);
    printf("in the program's memory: %d\n", registers(1, ENTRIES, 0, buffers));
    maps("that is the program's", 1, len, MAP_SHARED);
    io_uring_queue_exit(&ring);
    printf("buffer 3 has the id %u\n", buffers->bufs[3].bid);
    return 0;
}
