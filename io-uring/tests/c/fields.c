/* Each field of an entry, for each operation: which values are refused, and with which error. No
 * entry here has an effect: descriptors are -1, and paths do not exist. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/openat2.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { FTRUNCATE = 55, FIXED_FD_INSTALL = 54, BIND = 56, LISTEN = 57,
       URING_CMD = 46, WAITID = 50, FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAITV,
       EPOLL_WAIT = 59, READV_FIXED, WRITEV_FIXED, PIPE, REFUSED = -EINVAL };

static struct io_uring ring;
static const char nowhere[] = "/nonexistent/name";
static struct open_how how;
static char value[1];
static struct msghdr message;

#define PATH ((unsigned long)nowhere)

/* An operation, and the values that it needs to be accepted. */
static const struct operation {
    const char *name;
    int opcode, fd;
    unsigned long off, addr;
    unsigned len, op_flags;
    int file_index;
    unsigned long addr3;
    int flags;
} operations[] = {
    { "nop", IORING_OP_NOP, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "readv", IORING_OP_READV, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "writev", IORING_OP_WRITEV, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "read", IORING_OP_READ, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "write", IORING_OP_WRITE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "read fixed", IORING_OP_READ_FIXED, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "write fixed", IORING_OP_WRITE_FIXED, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "fsync", IORING_OP_FSYNC, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "sync file range", IORING_OP_SYNC_FILE_RANGE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "fallocate", IORING_OP_FALLOCATE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "ftruncate", FTRUNCATE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "fadvise", IORING_OP_FADVISE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "madvise", IORING_OP_MADVISE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "openat", IORING_OP_OPENAT, -1, 0, PATH, 0, 0, 0, 0, 0 },
    { "openat2", IORING_OP_OPENAT2, -1, (unsigned long)&how, PATH, sizeof how, 0, 0, 0, 0 },
    { "close", IORING_OP_CLOSE, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "statx", IORING_OP_STATX, -1, 0, PATH, 0, 0, 0, 0, 0 },
    { "renameat", IORING_OP_RENAMEAT, -1, PATH, PATH, 0, 0, 0, 0, 0 },
    { "unlinkat", IORING_OP_UNLINKAT, -1, 0, PATH, 0, 0, 0, 0, 0 },
    { "mkdirat", IORING_OP_MKDIRAT, -1, 0, PATH, 0, 0, 0, 0, 0 },
    { "symlinkat", IORING_OP_SYMLINKAT, -1, PATH, PATH, 0, 0, 0, 0, 0 },
    { "linkat", IORING_OP_LINKAT, -1, PATH, PATH, 0, 0, 0, 0, 0 },
    { "fsetxattr", IORING_OP_FSETXATTR, -1, (unsigned long)value, PATH, 1, 0, 0, 0, 0 },
    { "setxattr", IORING_OP_SETXATTR, -1, (unsigned long)value, PATH, 1, 0, 0, PATH, 0 },
    { "fgetxattr", IORING_OP_FGETXATTR, -1, (unsigned long)value, PATH, 1, 0, 0, 0, 0 },
    { "getxattr", IORING_OP_GETXATTR, -1, (unsigned long)value, PATH, 1, 0, 0, PATH, 0 },
    { "splice", IORING_OP_SPLICE, -1, -1, -1, 1, 0, -1, 0, 0 },
    { "tee", IORING_OP_TEE, -1, 0, 0, 1, 0, -1, 0, 0 },
    { "send", IORING_OP_SEND, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "recv", IORING_OP_RECV, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "sendmsg", IORING_OP_SENDMSG, -1, 0, (unsigned long)&message, 1, 0, 0, 0, 0 },
    { "recvmsg", IORING_OP_RECVMSG, -1, 0, (unsigned long)&message, 1, 0, 0, 0, 0 },
    { "accept", IORING_OP_ACCEPT, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "connect", IORING_OP_CONNECT, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "bind", BIND, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "listen", LISTEN, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "shutdown", IORING_OP_SHUTDOWN, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "socket", IORING_OP_SOCKET, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "poll", IORING_OP_POLL_ADD, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "poll remove", IORING_OP_POLL_REMOVE, -1, 0, 77, 0, 0, 0, 0, 0 },
    /* The addresses of these entries point to no valid time. */
    { "timeout", IORING_OP_TIMEOUT, -1, 0, 8, 1, 0, 0, 0, 0 },
    { "linked timeout", IORING_OP_LINK_TIMEOUT, -1, 0, 8, 1, 0, 0, 0, 0 },
    { "timeout remove", IORING_OP_TIMEOUT_REMOVE, -1, 8, 77, 0, 0, 0, 0, 0 },
    { "cancel", IORING_OP_ASYNC_CANCEL, -1, 0, 77, 0, 0, 0, 0, 0 },
    { "files update", IORING_OP_FILES_UPDATE, -1, 0, 0, 1, 0, 0, 0, 0 },
    { "epoll_ctl", IORING_OP_EPOLL_CTL, -1, -1, 0, EPOLL_CTL_DEL, 0, 0, 0, 0 },
    { "get socket's option", URING_CMD, -1, 2, SOL_SOCKET, 0, 0, 0, 0, 0 },
    { "epoll_wait", EPOLL_WAIT, -1, 0, 0, 1, 0, 0, 0, 0 },
    { "readv fixed", READV_FIXED, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "writev fixed", WRITEV_FIXED, -1, 0, 0, 0, 0, 0, 0, 0 },
    { "pipe", PIPE, 0, 0, 8, 0, 0, 0, 0, 0 },
    { "waitid", WAITID, -1, 0, 0, 1, 0, 4, 0, 0 },
    { "futex wake", FUTEX_WAKE, 2, 1, 8, 0, 0, 0, 1, 0 },
    { "futex waitv", FUTEX_WAITV, 0, 0, 8, 1, 0, 0, 0, 0 },
    { "install", FIXED_FD_INSTALL, 0, 0, 0, 0, 0, 0, 0, IOSQE_FIXED_FILE },
};

static const struct field {
    const char *name;
    size_t at, size;
} fields[] = {
    { "ioprio", offsetof(struct io_uring_sqe, ioprio), 2 },
    { "off", offsetof(struct io_uring_sqe, off), 8 },
    { "addr", offsetof(struct io_uring_sqe, addr), 8 },
    { "len", offsetof(struct io_uring_sqe, len), 4 },
    { "buf_index", offsetof(struct io_uring_sqe, buf_index), 2 },
    { "personality", offsetof(struct io_uring_sqe, personality), 2 },
    { "file_index", offsetof(struct io_uring_sqe, splice_fd_in), 4 },
    { "addr3", offsetof(struct io_uring_sqe, addr3), 8 },
};
enum { FIELDS = sizeof fields / sizeof *fields, ADDR3 = FIELDS - 1 };

static struct io_uring_sqe *plain(const struct operation *of)
{
    struct io_uring_sqe *sqe = entry(&ring, 1);
    sqe->opcode = of->opcode;
    sqe->flags = of->flags;
    sqe->fd = of->fd;
    sqe->off = of->off;
    sqe->addr = of->addr;
    sqe->len = of->len;
    sqe->rw_flags = of->op_flags;
    sqe->splice_fd_in = of->file_index;
    sqe->addr3 = of->addr3;
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

/* The value to which fields are set: 1. For the ioprio of ACCEPT it is POLL_FIRST, because 1 would
 * be the flag for a multishot. */
static int least_of(const struct operation *of, int field)
{
    enum { IOPRIO, POLL_FIRST = 4 };
    return of->opcode == IORING_OP_ACCEPT && field == IOPRIO ? POLL_FIRST : 1;
}

/* Sets one field at a time to `least_of`, and prints the result of each. */
static void each_field(const struct operation *of)
{
    plain(of);
    printf("%s: %d", of->name, result());
    for (int at = 0; at < FIELDS; at++) {
        /* Except for FIXED_FD_INSTALL, only the newest kernels check the addr3 of operations that
         * do not use it. */
        int has_addr3 = of->addr3 || of->opcode == FIXED_FD_INSTALL;
        if (at == ADDR3 && !has_addr3)
            continue;
        struct io_uring_sqe *sqe = plain(of);
        char *place = (char *)sqe + fields[at].at;
        memset(place, 0, fields[at].size);
        *place = least_of(of, at);
        printf(", %s %d", fields[at].name, result());
    }
    printf("\n");
}

/* Sets one field and one flag at a time. The result shows which of two errors takes precedence. */
static void each_pair(const struct operation *of)
{
    printf("%s, refused in pairs:", of->name);
    for (int left = 0; left < ADDR3; left++) {
        for (int flag = 0; flag < 2; flag++) {
            struct io_uring_sqe *sqe = plain(of);
            *((char *)sqe + fields[left].at) |= least_of(of, left);
            if (flag)
                sqe->flags ^= IOSQE_FIXED_FILE;
            else
                sqe->rw_flags |= 1 << 30;
            printf(" %d", result());
        }
    }
    printf("\n");
}

/* Changes each flag of the entry, one at a time. Left out are BUFFER_SELECT, which provided.c
 * tests, and CQE_SKIP_SUCCESS, which leaves no completion. */
static void each_flag(const struct operation *of)
{
    static const int flags[] = { IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_LINK, IOSQE_IO_HARDLINK,
                                 IOSQE_ASYNC, 1 << 7 };
    printf("%s, by flags:", of->name);
    for (unsigned at = 0; at < sizeof flags / sizeof *flags; at++) {
        plain(of)->flags ^= flags[at];
        printf(" %d", result());
    }
    printf("\n");
}

/* Which flags of the operation are refused? NOP has flags in the newest kernels only. */
static void each_op_flag(const struct operation *of)
{
    unsigned refused = 0;
    for (int bit = 0; bit < 32; bit++) {
        plain(of)->rw_flags ^= 1u << bit;
        refused |= (unsigned)(result() == REFUSED) << bit;
    }
    printf("%s, flags refused: %#x\n", of->name, refused);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, IORING_SETUP_SUBMIT_ALL) == 0);
    for (unsigned at = 0; at < sizeof operations / sizeof *operations; at++) {
        each_field(&operations[at]);
        each_flag(&operations[at]);
        if (operations[at].opcode == IORING_OP_NOP)
            continue;
        each_op_flag(&operations[at]);
        each_pair(&operations[at]);
    }
    io_uring_queue_exit(&ring);
    return 0;
}
