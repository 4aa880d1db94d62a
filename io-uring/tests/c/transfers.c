/* Reads and writes of sockets: they wait as receives and sends do, and keep their order with
 * these. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/socket.h>
#include <sys/uio.h>

static struct io_uring ring;
static int pair[2];
static char in[2][64];

static void fresh(int flags)
{
    if (pair[1])
        close(pair[0]), close(pair[1]);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | flags, 0, pair) == 0);
    memset(in, 0, sizeof in);
}

static struct io_uring_sqe *read_one(int len, unsigned long long tag)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_read(sqe, pair[0], in[tag % 2], len, 0);
    sqe->user_data = tag;
    return sqe;
}

static void submit(int count)
{
    MUST(io_uring_submit(&ring) == count);
}

static void comes(const char *what)
{
    MUST(write(pair[1], what, strlen(what)) == (ssize_t)strlen(what));
}

static void left(const char *what)
{
    char bytes[64] = "";
    MUST(read(pair[1], bytes, sizeof bytes - 1) >= 0);
    printf("%s: %s\n", what, bytes);
}

static void reads(int flags)
{
    struct iovec parts[2] = { { in[0], 3 }, { in[1], 5 } };
    fresh(flags);
    read_one(8, 2);
    submit(1);
    comes("early");
    completions(&ring, "a read that waits", 1);
    comes("there");
    read_one(8, 3);
    submit(1);
    completions(&ring, "a read that does not", 1);
    printf("%s, %s\n", in[0], in[1]);
    io_uring_prep_readv(entry(&ring, 0), pair[0], parts, 2, 0);
    submit(1);
    comes("12345678");
    completions(&ring, "parts", 1);
    printf("%.3s, %.5s\n", in[0], in[1]);
    /* A read and a receive in one batch. Their data is there. */
    comes("ab");
    read_one(1, 2);
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_recv(sqe, pair[0], in[1], 1, 0);
    sqe->user_data = 3;
    submit(2);
    sorted(&ring, "a read and a receive", 2);
    printf("%.1s, %.1s\n", in[0], in[1]);
    /* A read at an offset, and a read of 0 bytes. */
    read_one(8, 4)->off = 5;
    submit(1);
    completions(&ring, "at an offset", 1);
    read_one(0, 6);
    submit(1);
    completions(&ring, "of nothing", 1);
    /* A short transfer breaks its chain. */
    comes("short");
    read_one(8, 8)->flags |= IOSQE_IO_LINK;
    io_uring_prep_nop(entry(&ring, 0));
    submit(2);
    sorted(&ring, "a short chain", 2);
}

static void ends(void)
{
    struct __kernel_timespec time = { .tv_nsec = 1000000 };
    fresh(0);
    read_one(8, 1);
    submit(1);
    io_uring_prep_cancel64(entry(&ring, 0), 1, 0);
    submit(1);
    sorted(&ring, "a cancel", 2);
    read_one(8, 2)->flags |= IOSQE_IO_LINK;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_link_timeout(sqe, &time, 0);
    sqe->user_data = 3;
    submit(2);
    sorted(&ring, "a time", 2);
    /* Data that comes before the cancel completes the read. */
    read_one(8, 6);
    submit(1);
    comes("before");
    io_uring_prep_cancel64(entry(&ring, 0), 6, 0);
    submit(1);
    sorted(&ring, "a cancel that is late", 2);
    read_one(8, 4);
    submit(1);
    shutdown(pair[1], SHUT_WR);
    completions(&ring, "an end", 1);
}

static void writes(void)
{
    struct iovec parts[2] = { { "one ", 4 }, { "two", 3 } };
    char drain[4096];
    struct io_uring_sqe *sqe;
    fresh(0);
    io_uring_prep_writev(entry(&ring, 0), pair[0], parts, 2, 0);
    submit(1);
    completions(&ring, "parts", 1);
    left("parts");
    io_uring_prep_write(entry(&ring, 0), pair[0], "a", 1, 0);
    io_uring_prep_send(entry(&ring, 0), pair[0], "b", 1, 0);
    io_uring_prep_write(entry(&ring, 0), pair[0], "c", 1, -1);
    submit(3);
    completions(&ring, "in order", 3);
    left("in order");
    memset(drain, 'x', sizeof drain);
    while (send(pair[0], drain, sizeof drain, MSG_DONTWAIT) > 0)
        ;
    sqe = entry(&ring, 0);
    io_uring_prep_write(sqe, pair[0], "full", 4, 0);
    sqe->user_data = 5;
    submit(1);
    printf("full: %u there\n", io_uring_cq_ready(&ring));
    while (recv(pair[1], drain, sizeof drain, MSG_DONTWAIT) > 0)
        ;
    completions(&ring, "not full any more", 1);
}

static void registered(void)
{
    struct iovec buffer = { in[0], sizeof in[0] };
    struct io_uring_sqe *sqe;
    fresh(0);
    MUST(io_uring_register_buffers(&ring, &buffer, 1) == 0);
    MUST(io_uring_register_files(&ring, pair, 1) == 0);
    io_uring_prep_read_fixed(entry(&ring, 0), pair[0], in[0], 8, 0, 0);
    submit(1);
    comes("fixed");
    completions(&ring, "a registered buffer", 1);
    printf("%s\n", in[0]);
    sqe = entry(&ring, 0);
    io_uring_prep_write_fixed(sqe, 0, in[0], 5, 0, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    submit(1);
    completions(&ring, "and a registered file", 1);
    left("and a registered file");
    io_uring_prep_read_fixed(entry(&ring, 0), pair[0], in[1], 8, 0, 0);
    submit(1);
    completions(&ring, "beyond the buffer", 1);
}

/* Calls dup2(2). On x86-64, it is an instruction of the program, which the library does not see. */
static int becomes(int file, int number)
{
#if defined(__x86_64__)
    long answer = 33;
    __asm__ volatile("syscall" : "+a"(answer) : "D"(file), "S"(number) : "rcx", "r11", "memory");
    return answer;
#else
    return dup2(file, number);
#endif
}

/* A descriptor number of a socket becomes that of a file. */
static void reused(void)
{
    int file = scratch();
    fresh(0);
    comes("socket");
    read_one(8, 0);
    submit(1);
    completions(&ring, "a socket", 1);
    MUST(write(file, "file", 4) == 4 && lseek(file, 0, SEEK_SET) == 0);
    MUST(becomes(file, pair[0]) == pair[0]);
    read_one(8, 1);
    submit(1);
    completions(&ring, "a file", 1);
    printf("%s, %s\n", in[0], in[1]);
    close(file);
}

int main(void)
{
    MUST(io_uring_queue_init(16, &ring, 0) == 0);
    reads(0);
    reads(SOCK_NONBLOCK);
    ends();
    writes();
    registered();
    reused();
    io_uring_queue_exit(&ring);
    return 0;
}
