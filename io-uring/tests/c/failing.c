/* What happens behind an entry that fails: its chain breaks, or it goes on. With
 * IOSQE_CQE_SKIP_SUCCESS, there is one completion in either case. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/socket.h>

/* Older headers do not have these operations. */
enum { FTRUNCATE = 55, LISTEN = 57 };

static struct io_uring ring;
static int file, readable, pipes[2], tcp, path;
static struct statx found;
static struct __kernel_timespec hour = { 3600, 0 };

struct failing {
    const char *name;
    int opcode, *fd, number;
    const void *addr;
    unsigned len;
    unsigned long long off;
    unsigned flags;
    const void *addr3;
};

static const struct failing all[] = {
    { "fsync of a pipe", IORING_OP_FSYNC, .fd = &pipes[0] },
    { "fsync of nothing", IORING_OP_FSYNC, .number = -1 },
    { "fsync of a path", IORING_OP_FSYNC, .fd = &path },
    { "shutdown of a path", IORING_OP_SHUTDOWN, .fd = &path },
    { "fsync with an unknown flag", IORING_OP_FSYNC, .fd = &file, .flags = 2 },
    { "sync_file_range of a pipe", IORING_OP_SYNC_FILE_RANGE, .fd = &pipes[0] },
    { "fallocate where nothing may be written", IORING_OP_FALLOCATE, .fd = &readable,
      .addr = (void *)1 },
    { "fallocate of nothing", IORING_OP_FALLOCATE, .number = 999, .addr = (void *)1 },
    { "ftruncate where nothing may be written", FTRUNCATE, .fd = &readable },
    { "ftruncate of nothing", FTRUNCATE, .number = 999 },
    { "statx", IORING_OP_STATX, .number = AT_FDCWD, .addr = "missing", .off = 1 },
    { "rename", IORING_OP_RENAMEAT, .number = AT_FDCWD, .addr = "missing", .len = AT_FDCWD,
      .off = 2 },
    { "unlink", IORING_OP_UNLINKAT, .number = AT_FDCWD, .addr = "missing" },
    { "unlink in no folder", IORING_OP_UNLINKAT, .number = 999, .addr = "missing" },
    { "unlink with an unknown flag", IORING_OP_UNLINKAT, .number = AT_FDCWD, .addr = "x",
      .flags = 1 },
    { "mkdir", IORING_OP_MKDIRAT, .number = AT_FDCWD, .addr = "/", .len = 0700 },
    { "symlink", IORING_OP_SYMLINKAT, .number = AT_FDCWD, .addr = "a", .off = 3 },
    { "link", IORING_OP_LINKAT, .number = AT_FDCWD, .addr = "missing", .len = AT_FDCWD, .off = 2 },
    { "setxattr", IORING_OP_SETXATTR, .addr = "user.a", .len = 1, .off = 2, .addr3 = "missing" },
    { "getxattr", IORING_OP_GETXATTR, .addr = "user.a", .len = 1, .off = 1, .addr3 = "missing" },
    { "fsetxattr", IORING_OP_FSETXATTR, .fd = &file, .addr = "odd", .len = 1, .off = 2 },
    { "fsetxattr of the folder", IORING_OP_FSETXATTR, .number = AT_FDCWD, .addr = "user.a",
      .len = 1, .off = 2 },
    { "fgetxattr", IORING_OP_FGETXATTR, .fd = &file, .addr = "user.a", .len = 1, .off = 1 },
    { "fgetxattr of nothing", IORING_OP_FGETXATTR, .number = 999, .addr = "user.a", .len = 1,
      .off = 1 },
    { "madvise", IORING_OP_MADVISE, .number = -1, .addr = &found, .len = 4096, .flags = 999 },
    { "fadvise", IORING_OP_FADVISE, .fd = &file, .flags = 999 },
    { "shutdown", IORING_OP_SHUTDOWN, .fd = &tcp },
    { "shutdown of a file", IORING_OP_SHUTDOWN, .fd = &file },
    { "shutdown of nothing", IORING_OP_SHUTDOWN, .number = 999 },
    { "open", IORING_OP_OPENAT, .number = AT_FDCWD, .addr = "missing" },
    { "close", IORING_OP_CLOSE, .number = 999 },
    { "read of a folder's number that is not open", IORING_OP_READ, .number = 999, .len = 1 },
    { "listen of a file", LISTEN, .fd = &file },
    { "connect", IORING_OP_CONNECT, .fd = &file, .addr = &found, .off = 16 },
    { "epoll_ctl", IORING_OP_EPOLL_CTL, .fd = &file, .len = 1, .addr = &found },
    { "a limit of nothing", IORING_OP_LINK_TIMEOUT, .number = -1, .addr = &hour, .len = 1 },
};

static void put(const struct failing *one, unsigned flags)
{
    static char names[3][16] = { "", "new", "/" };
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_rw(one->opcode, sqe, one->fd ? *one->fd : one->number, one->addr, one->len, 0);
    /* Small numbers stand for addresses. */
    sqe->off = one->off == 1   ? (unsigned long)&found
               : one->off == 2 ? (unsigned long)names[1]
               : one->off == 3 ? (unsigned long)names[2]
                               : one->off;
    sqe->rw_flags = one->flags;
    sqe->addr3 = (unsigned long)one->addr3;
    sqe->flags = flags;
    sqe->user_data = 1;
}

static void nop(unsigned flags)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->flags = flags;
    sqe->user_data = 2;
}

static void chain(const char *how, const struct failing *one, unsigned flags, int count)
{
    char what[128];
    snprintf(what, sizeof what, "%s, %s", one->name, how);
    put(one, flags);
    nop(0);
    io_uring_submit(&ring);
    sorted(&ring, what, count);
}

/* A read of nothing, with a limit of its time that never begins. */
static void limited(unsigned of_read, unsigned of_limit, int count)
{
    struct failing read = { "", IORING_OP_READ, .number = -1, .len = 1 };
    put(&read, of_read);
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_link_timeout(sqe, &hour, 0);
    sqe->flags = of_limit;
    sqe->user_data = 3;
    nop(0);
    char what[64];
    snprintf(what, sizeof what, "a limit, flags %u and %u", of_read, of_limit);
    io_uring_submit(&ring);
    sorted(&ring, what, count);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, FTRUNCATE);
    file = scratch();
    MUST((readable = open("/proc/self/exe", O_RDONLY)) >= 0);
    MUST((path = open("/proc/self/exe", O_PATH)) >= 0);
    MUST(pipe(pipes) == 0 && (tcp = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        chain("linked", &all[at], IOSQE_IO_LINK, 2);
        chain("linked hard", &all[at], IOSQE_IO_HARDLINK, 2);
        chain("linked and quiet", &all[at], IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS, 1);
    }
    limited(IOSQE_IO_LINK, IOSQE_IO_LINK, 3);
    limited(IOSQE_IO_HARDLINK, IOSQE_IO_LINK, 3);
    limited(IOSQE_IO_LINK, IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS, 2);
    limited(IOSQE_IO_LINK, 0, 3);
    /* Slots of registered files: a pipe, nothing, and none. */
    int files[2] = { pipes[0], -1 };
    MUST(io_uring_register_files(&ring, files, 2) == 0);
    for (int slot = 0; slot < 3; slot++) {
        struct failing fsync = { "fsync of a slot", IORING_OP_FSYNC, .number = slot };
        chain("linked", &fsync, IOSQE_FIXED_FILE | IOSQE_IO_LINK, 2);
        chain("quiet", &fsync, IOSQE_FIXED_FILE | IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS, 1);
    }
    return 0;
}
