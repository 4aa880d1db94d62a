/* Registered buffers of one ring in another ring (IORING_REGISTER_CLONE_BUFFERS). Also the
 * values for network polling (IORING_REGISTER_NAPI), which have no effect here. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/syscall.h>

enum { NAPI = 27, UNREGISTER_NAPI, CLONE = 30, REGISTERED = 1, REPLACE = 2, READV_FIXED = 60 };

struct clone_buffers {
    unsigned source, flags, source_offset, offset, count, pad[3];
};

struct napi {
    unsigned time;
    unsigned char prefer, opcode, pad[2];
    unsigned parameter, reserved;
};

static struct io_uring from, to;
static char memory[4][64];
static int file;

static long do_(struct io_uring *ring, int opcode, void *argument, int count)
{
    long answer = syscall(SYS_io_uring_register, ring->ring_fd, opcode, argument, count);
    return answer < 0 ? -errno : answer;
}

static void clone_(const char *what, struct clone_buffers how)
{
    how.source = how.source ? how.source : (unsigned)from.ring_fd;
    printf("%s: %ld\n", what, do_(&to, CLONE, &how, 1));
}

/* Prints which slots have a buffer, and which buffer it is. */
static void slots(void)
{
    printf("slots:");
    for (int slot = 0; slot < 8; slot++) {
        for (int at = 0; at < 4; at++) {
            struct io_uring_sqe *sqe = entry(&to, 0);
            struct io_uring_cqe *cqe;
            io_uring_prep_read_fixed(sqe, file, memory[at], 4, 0, slot);
            MUST(io_uring_submit(&to) == 1 && io_uring_wait_cqe(&to, &cqe) == 0);
            if (cqe->res == 4)
                printf(" %d has %d,", slot, at);
            io_uring_cqe_seen(&to, cqe);
        }
    }
    printf("\n");
}

static void clones(void)
{
    struct iovec buffers[4];
    for (int at = 0; at < 4; at++)
        buffers[at] = (struct iovec){ at == 1 ? NULL : memory[at], at == 1 ? 0 : 64 };
    clone_("of nothing", (struct clone_buffers){ 0 });
    MUST(io_uring_register_buffers(&from, buffers, 4) == 0);
    clone_("all", (struct clone_buffers){ 0 });
    slots();
    clone_("again", (struct clone_buffers){ 0 });
    struct clone_buffers third = { .flags = REPLACE, .count = 1, .source_offset = 2 };
    clone_("in their place", third);
    slots();
    clone_("behind them", (struct clone_buffers){ .flags = REPLACE, .offset = 4 });
    slots();
    MUST(io_uring_unregister_buffers(&to) == 0);
    clone_("some", (struct clone_buffers){ .source_offset = 2, .offset = 1, .count = 2 });
    slots();
    MUST(io_uring_unregister_buffers(&to) == 0);
    clone_("with a gap", (struct clone_buffers){ .offset = 3, .count = 1 });
    slots();
    MUST(io_uring_unregister_buffers(&to) == 0);
    clone_("beyond the end", (struct clone_buffers){ .source_offset = 2, .count = 3 });
    clone_("from the end", (struct clone_buffers){ .source_offset = 4 });
    clone_("from far", (struct clone_buffers){ .source_offset = -1u, .count = 2 });
    clone_("to far", (struct clone_buffers){ .offset = -1u, .count = 2 });
    clone_("to the last", (struct clone_buffers){ .offset = 1 << 14, .count = 1 });
    clone_("flags", (struct clone_buffers){ .flags = 4 });
    clone_("padding", (struct clone_buffers){ .pad[1] = 1 });
    clone_("of no ring", (struct clone_buffers){ .source = file });
    clone_("of no descriptor", (struct clone_buffers){ .source = 999 });
    clone_("of no registered ring", (struct clone_buffers){ .flags = REGISTERED, .source = 5 });
    clone_("of itself", (struct clone_buffers){ .source = to.ring_fd });
    struct clone_buffers own = { .source = from.ring_fd, .flags = REPLACE, .count = 1 };
    own.offset = 2;
    printf("in one ring: %ld\n", do_(&from, CLONE, &own, 1));
    printf("no argument: %ld\n", do_(&to, CLONE, NULL, 1));
    printf("two: %ld\n", do_(&to, CLONE, &own, 2));
    /* Cloned buffers stay when the ring from which they were cloned is closed. */
    clone_("last", (struct clone_buffers){ 0 });
    io_uring_queue_exit(&from);
    slots();
}

static void napi(const char *what, int opcode, struct napi how)
{
    printf("%s: %ld, ", what, do_(&to, opcode, &how, 1));
    printf("%u %u %u %u\n", how.time, how.prefer, how.opcode, how.parameter);
}

static void hints(void)
{
    napi("first", NAPI, (struct napi){ .time = 60, .prefer = 1 });
    napi("second", NAPI, (struct napi){ .time = 120 });
    napi("an identifier", NAPI, (struct napi){ .opcode = 1, .parameter = 4711 });
    napi("one less", NAPI, (struct napi){ .opcode = 2, .parameter = 4711 });
    napi("fixed ones", NAPI, (struct napi){ .time = 7, .parameter = 1 });
    napi("none is so small", NAPI, (struct napi){ .opcode = 1, .parameter = 1 });
    napi("nor is there one", NAPI, (struct napi){ .opcode = 2, .parameter = 1 });
    napi("unknown", NAPI, (struct napi){ .parameter = 9 });
    napi("of unknown kind", NAPI, (struct napi){ .opcode = 9 });
    napi("padding", NAPI, (struct napi){ .pad[0] = 1 });
    napi("reserved", NAPI, (struct napi){ .reserved = 1 });
    napi("last", UNREGISTER_NAPI, (struct napi){ .time = 5 });
    napi("again", UNREGISTER_NAPI, (struct napi){ .time = 5 });
    printf("no argument: %ld\n", do_(&to, NAPI, NULL, 1));
    printf("not to be told: %ld\n", do_(&to, UNREGISTER_NAPI, NULL, 1));
    printf("two: %ld\n", do_(&to, UNREGISTER_NAPI, NULL, 2));
}

int main(void)
{
    MUST(io_uring_queue_init(8, &from, 0) == 0 && io_uring_queue_init(8, &to, 0) == 0);
    /* Cloned buffers are older than READV_FIXED, so a kernel with this operation has them. */
    needs(&to, READV_FIXED);
    file = scratch();
    MUST(write(file, "text", 4) == 4);
    clones();
    hints();
    io_uring_queue_exit(&to);
    return 0;
}
