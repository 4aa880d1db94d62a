/* Buffers that a program provides in groups, and requests that take a buffer when they need one. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { SIZE = 32, COUNT = 8 };

#include "group.h"

static void give(int id)
{
    io_uring_buf_ring_add(provided, memory[id], SIZE, id, COUNT - 1, 0);
    io_uring_buf_ring_advance(provided, 1);
}

static void make_group(int group)
{
    struct group reg = { (unsigned long)provided, COUNT, group, 0, { 0 } };
    memset(provided, 0, 4096);
    MUST(registers(IORING_REGISTER_PBUF_RING, &reg, 1) == 0);
}

static struct io_uring_sqe *request(int opcode, int fd, void *at, unsigned length, int group,
                                    unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_rw(opcode, sqe, fd, at, length, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = group;
    sqe->user_data = user_data;
    return sqe;
}

/* Submits, and prints completions in order, with the data in their buffers. */
static void results(const char *what, int count)
{
    io_uring_submit(&ring);
    for (int at = 0; at < count; at++) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        unsigned flags = cqe->flags;
        printf("%s: %llu gives %d, flags %x", what, (unsigned long long)cqe->user_data, cqe->res,
               flags);
        if (flags & IORING_CQE_F_BUFFER && cqe->res > 0 && flags >> 16 < COUNT)
            printf(", %.*s", cqe->res < SIZE ? cqe->res : SIZE, memory[flags >> 16]);
        printf("\n");
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: %u more\n", what, io_uring_cq_ready(&ring));
}

/* A buffer ring in memory that liburing has allocated. */
static void made_by_liburing(void)
{
#if defined(IO_URING_VERSION_MAJOR) && (IO_URING_VERSION_MAJOR > 2 || IO_URING_VERSION_MINOR > 5)
    int error = 1, ends[2];
    unsigned short taken = 9;
    struct io_uring_buf_ring *made = io_uring_setup_buf_ring(&ring, COUNT, 8, 0, &error);
    MUST(made && error == 0 && pipe(ends) == 0 && write(ends[1], "made", 4) == 4);
    io_uring_buf_ring_add(made, memory[0], SIZE, 0, COUNT - 1, 0);
    io_uring_buf_ring_advance(made, 1);
    request(IORING_OP_READ, ends[0], NULL, 0, 8, 1);
    results("made by liburing", 1);
    MUST(io_uring_buf_ring_head(&ring, 8, &taken) == 0 && taken == 1);
    MUST(io_uring_free_buf_ring(&ring, made, COUNT, 8) == 0);
    close(ends[0]);
    close(ends[1]);
#endif
}

static void registrations(void)
{
    struct group good = { (unsigned long)provided, COUNT, 7, 0, { 0 } };
    struct group bad[8];
    for (int at = 0; at < 8; at++)
        bad[at] = good;
    bad[0].entries = 3;
    bad[1].entries = 65536;
    bad[2].address += 8;
    bad[3].address = 0;
    bad[4].rest[1] = 1;
    bad[5].flags = 0x8000;
    bad[6].entries = 0;
    bad[7].address = 4096;
    printf("[registrations]\n");
    for (int at = 0; at < 8; at++)
        printf("bad %d: %d\n", at, registers(IORING_REGISTER_PBUF_RING, &bad[at], 1));
    printf("no argument: %d\n", registers(IORING_REGISTER_PBUF_RING, NULL, 1));
    printf("a bad argument: %d\n", registers(IORING_REGISTER_PBUF_RING, (void *)8, 1));
    printf("two: %d\n", registers(IORING_REGISTER_PBUF_RING, &good, 2));
    printf("none to unregister: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &good, 1));
    printf("no status: %d\n", head(7));
    printf("good: %d\n", registers(IORING_REGISTER_PBUF_RING, &good, 1));
    printf("twice: %d\n", registers(IORING_REGISTER_PBUF_RING, &good, 1));
    printf("head %d\n", head(7));
    printf("status of two: %d\n", registers(STATUS, &good, 2));
    unsigned status[10] = { 7, 0, 1 };
    printf("status with a rest: %d\n", registers(STATUS, status, 1));
    struct group out = { .id = 7, .rest = { 1 } };
    unsigned far[10] = { 65536 + 7 };
    printf("status of no group: %d\n", registers(STATUS, far, 1));
    struct group flagged = { .id = 7, .flags = 1 };
    printf("unregistered with flags: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &flagged, 1));
    printf("unregistered with a rest: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &out, 1));
    out.rest[0] = 0;
    printf("two unregistered: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &out, 2));
    printf("unregistered: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &out, 1));
    printf("again: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &out, 1));
}

/* The operations that refuse the flag for a provided buffer. */
static void operations(void)
{
    static const int none[] = { IORING_OP_NOP, IORING_OP_WRITE, IORING_OP_WRITEV, IORING_OP_FSYNC,
                                IORING_OP_READ_FIXED, IORING_OP_ACCEPT, IORING_OP_TIMEOUT };
    printf("[operations that take none]\n");
    for (unsigned at = 0; at < sizeof none / sizeof *none; at++) {
        request(none[at], -1, NULL, 0, 1, at);
        results("refused", 1);
    }
}

static void receives(int kind)
{
    int ends[2];
    printf("[RECV] %s\n", kind == SOCK_STREAM ? "stream" : "datagrams");
    MUST(socketpair(AF_UNIX, kind, 0, ends) == 0);
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 1);
    results("no group", 1);
    make_group(3);
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 2);
    results("an empty group", 1);
    give(0);
    give(1);
    give(2);
    MUST(write(ends[1], "first", 5) == 5);
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 3);
    results("data there", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 4)->msg_flags = MSG_DONTWAIT;
    results("not to wait", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 5);
    results("waits", 0);
    printf("head %d\n", head(3));
    MUST(write(ends[1], "second", 6) == 6);
    results("has waited", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, ends[0], NULL, 3, 3, 6);
    MUST(write(ends[1], "third", 5) == 5);
    results("a length", 1);
    while (recv(ends[0], memory[7], SIZE, MSG_DONTWAIT) > 0)
        ;
    /* Two requests wait, and the group has a buffer for one only. */
    give(3);
    int others[2];
    MUST(socketpair(AF_UNIX, kind, 0, others) == 0);
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 7);
    request(IORING_OP_RECV, others[0], NULL, 0, 3, 8);
    results("two wait", 0);
    MUST(write(others[1], "one", 3) == 3);
    results("one of them", 1);
    MUST(write(ends[1], "two", 3) == 3);
    results("the other", 1);
    give(4);
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 9);
    results("more", 1);
    request(IORING_OP_RECV, others[0], NULL, 0, 3, 10);
    give(5);
    results("waits", 0);
    io_uring_prep_cancel(entry(&ring, 0), (void *)10, 0);
    results("cancelled", 2);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, others[0], NULL, 0, 3, 11);
    results("waits", 0);
    if (kind == SOCK_STREAM)
        close(others[1]);
    else
        MUST(send(others[1], "", 0, 0) == 0);
    results("nothing", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, -1, NULL, 0, 3, 12);
    request(IORING_OP_RECV, 0, NULL, 0, 3, 13);
    results("no sockets", 2);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, ends[0], NULL, 0, 3, 14);
    results("waits", 0);
    MUST(io_uring_unregister_buf_ring(&ring, 3) == 0);
    MUST(write(ends[1], "late", 4) == 4);
    results("the group is gone", 1);
    close(ends[0]);
    close(ends[1]);
    close(others[0]);
    if (kind != SOCK_STREAM)
        close(others[1]);
}

/* A receive with MSG_WAITALL goes on in its buffer. */
static void whole(void)
{
    int ends[2];
    printf("[RECV MSG_WAITALL]\n");
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    make_group(3);
    give(0);
    give(1);
    request(IORING_OP_RECV, ends[0], NULL, 6, 3, 1)->msg_flags = MSG_WAITALL;
    results("waits", 0);
    MUST(write(ends[1], "abc", 3) == 3);
    results("for more", 0);
    MUST(write(ends[1], "def", 3) == 3);
    results("all", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_RECV, ends[0], NULL, 6, 3, 2)->msg_flags = MSG_WAITALL;
    results("waits", 0);
    MUST(write(ends[1], "gh", 2) == 2);
    results("for more", 0);
    close(ends[1]);
    results("closed", 1);
    printf("head %d\n", head(3));
    close(ends[0]);
    MUST(io_uring_unregister_buf_ring(&ring, 3) == 0);
}

static void messages(void)
{
    int ends[2];
    printf("[RECVMSG]\n");
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    make_group(3);
    for (int id = 0; id < 4; id++)
        give(id);
    struct iovec parts[2] = { { NULL, 4 }, { NULL, 0 } };
    struct msghdr header = { .msg_iov = parts, .msg_iovlen = 2 };
    request(IORING_OP_RECVMSG, ends[0], &header, 1, 3, 1);
    results("two parts", 1);
    header.msg_iovlen = 0;
    MUST(write(ends[1], "no parts", 8) == 8);
    request(IORING_OP_RECVMSG, ends[0], &header, 1, 3, 2);
    results("no part", 1);
    header.msg_iovlen = 1;
    MUST(write(ends[1], "one part", 8) == 8);
    request(IORING_OP_RECVMSG, ends[0], &header, 1, 3, 3);
    results("a short part", 1);
    printf("flags %x\n", header.msg_flags);
    parts[0].iov_len = 100;
    MUST(write(ends[1], "one part", 8) == 8);
    request(IORING_OP_RECVMSG, ends[0], &header, 1, 3, 4);
    results("a long part", 1);
    printf("head %d, flags %x\n", head(3), header.msg_flags);
    MUST(io_uring_unregister_buf_ring(&ring, 3) == 0);
    close(ends[0]);
    close(ends[1]);
}

static void reads(void)
{
    int ends[2], file = scratch();
    struct iovec part = { NULL, 6 };
    printf("[READ, READV]\n");
    MUST(pipe(ends) == 0 && write(file, "0123456789", 10) == 10);
    make_group(3);
    request(IORING_OP_READ, file, NULL, 0, 3, 1);
    results("an empty group", 1);
    for (int id = 0; id < 4; id++)
        give(id);
    request(IORING_OP_READ, file, NULL, 4, 3, 2)->off = 2;
    results("a file", 1);
    request(IORING_OP_READ, file, NULL, 0, 3, 3)->off = 2;
    results("any length", 1);
    /* Evicts the data from the page cache. */
    MUST(fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    give(4);
    request(IORING_OP_READ, file, NULL, 4, 3, 40)->off = 3;
    results("from the device", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_READ, file, NULL, 0, 3, 4)->off = 10;
    results("its end", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_READV, file, &part, 1, 3, 5);
    results("READV", 1);
    request(IORING_OP_READV, file, &part, 2, 3, 6);
    results("two parts", 1);
    printf("head %d\n", head(3));
    for (int id = 0; id < 5; id++)
        give(id);
    request(IORING_OP_READ, -1, NULL, 0, 3, 7);
    results("no file", 1);
    printf("head %d\n", head(3));
    request(IORING_OP_READ, ends[0], NULL, 0, 3, 8);
    results("waits", 0);
    printf("head %d\n", head(3));
    MUST(write(ends[1], "pipe", 4) == 4);
    results("a pipe", 1);
    request(IORING_OP_READ, ends[0], NULL, 0, 3, 9)->rw_flags = RWF_NOWAIT;
    results("not to wait", 1);
    printf("head %d\n", head(3));
    MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    request(IORING_OP_READ, ends[0], NULL, 0, 3, 10);
    results("O_NONBLOCK", 0);
    close(ends[1]);
    results("closed", 1);
    printf("head %d\n", head(3));
    int counter = eventfd(3, 0);
    request(IORING_OP_READ, counter, NULL, 4, 3, 11);
    results("too short", 1);
    printf("head %d\n", head(3));
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    request(IORING_OP_READ, folder, NULL, 4, 3, 12);
    results("a folder", 1);
    printf("head %d\n", head(3));
    /* The chain breaks where a read gets less than its length. Length 0 means the buffer's. */
    request(IORING_OP_READ, file, NULL, 4, 3, 13)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    results("whole", 2);
    request(IORING_OP_READ, file, NULL, 0, 3, 14)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    results("short", 2);
    request(IORING_OP_READ, file, NULL, 0, 3, 15)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    results("none", 2);
    MUST(io_uring_unregister_buf_ring(&ring, 3) == 0);
    close(ends[0]);
    close(file);
    close(counter);
    close(folder);
}

static void provide(int count, int length, int first, unsigned long long user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, user_data);
    io_uring_prep_provide_buffers(sqe, memory[first < COUNT ? first : 0], length, count, 5, first);
    sqe->user_data = user_data;
}

static void take_away(int count, int group, unsigned long long user_data)
{
    io_uring_prep_remove_buffers(entry(&ring, 0), count, group);
    ((struct io_uring_sqe *)ring.sq.sqes)[(ring.sq.sqe_tail - 1) & (*ring.sq.kring_mask)]
        .user_data = user_data;
}

/* The older interface: buffers in a list. */
static void lists(void)
{
    int ends[2];
    printf("[PROVIDE_BUFFERS, REMOVE_BUFFERS]\n");
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    static const int bad[][3] = { { 0, 8, 0 }, { 65537, 8, 0 }, { 1, 0, 0 }, { 2, 8, 65535 },
                                  { 1, 8, 65536 }, { 65536, 0x7fffffff, 0 }, { -1, 8, 0 } };
    for (int at = 0; at < 7; at++) {
        provide(bad[at][0], bad[at][1], bad[at][2], at);
        results("refused", 1);
    }
    static const int removed[] = { 0, 65537, 1 };
    for (int at = 0; at < 3; at++) {
        take_away(removed[at], 5, at);
        results("not removed", 1);
    }
    provide(3, SIZE, 0, 1);
    provide(2, SIZE, 5, 2);
    results("provided", 2);
    printf("head %d\n", head(5));
    struct group reg = { (unsigned long)provided, COUNT, 5, 0, { 0 } };
    printf("a ring of the same group: %d\n", registers(IORING_REGISTER_PBUF_RING, &reg, 1));
    printf("unregistered: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &reg, 1));
    MUST(write(ends[1], "abcdef", 6) == 6);
    request(IORING_OP_RECV, ends[0], NULL, 2, 5, 3);
    request(IORING_OP_RECV, ends[0], NULL, 2, 5, 4);
    results("received", 2);
    request(IORING_OP_RECV, ends[0], NULL, 0, 5, 5)->msg_flags = MSG_DONTWAIT;
    results("the rest", 1);
    request(IORING_OP_RECV, ends[0], NULL, 0, 5, 6)->msg_flags = MSG_DONTWAIT;
    results("not to wait", 1);
    take_away(1, 5, 7);
    results("removed", 1);
    take_away(9, 5, 8);
    results("removed", 1);
    request(IORING_OP_RECV, ends[0], NULL, 0, 5, 9);
    results("none is left", 1);
    take_away(9, 5, 10);
    results("removed", 1);
    printf("a ring of the same group: %d\n", registers(IORING_REGISTER_PBUF_RING, &reg, 1));
    provide(1, SIZE, 0, 11);
    take_away(1, 5, 12);
    results("to a ring", 2);
    printf("unregistered: %d\n", registers(IORING_UNREGISTER_PBUF_RING, &reg, 1));
    /* An entry provides a buffer, and the linked entry behind it takes it. */
    provide(1, SIZE, 2, 13);
    ((struct io_uring_sqe *)ring.sq.sqes)[(ring.sq.sqe_tail - 1) & (*ring.sq.kring_mask)].flags |=
        IOSQE_IO_LINK;
    MUST(write(ends[1], "linked", 6) == 6);
    request(IORING_OP_RECV, ends[0], NULL, 0, 5, 14);
    results("in a chain", 2);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    MUST(io_uring_queue_init(16, &ring, 0) == 0);
    provided = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(provided != MAP_FAILED);
    registrations();
    operations();
    receives(SOCK_STREAM);
    receives(SOCK_DGRAM);
    whole();
    messages();
    reads();
    lists();
    made_by_liburing();
    io_uring_queue_exit(&ring);
    return 0;
}
