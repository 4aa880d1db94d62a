/* Operations on names and metadata. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/openat2.h>
#include <sys/xattr.h>

static struct io_uring ring;

static int run(struct io_uring_sqe *sqe, const char *what, int shows)
{
    struct io_uring_cqe *cqe;
    io_uring_submit_and_wait(&ring, 1);
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    printf("%s: %d\n", what, shows || result < 0 ? result : 0);
    io_uring_cqe_seen(&ring, cqe);
    (void)sqe;
    return result;
}

int main(void)
{
    struct io_uring_sqe *sqe;
    char folder[] = "names-XXXXXX";
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && mkdtemp(folder) && chdir(folder) == 0);
    sqe = entry(&ring, 1);
    io_uring_prep_openat(sqe, AT_FDCWD, "file", O_CREAT | O_RDWR, 0600);
    int fd = run(sqe, "openat", 0);
    sqe = entry(&ring, 1);
    io_uring_prep_fallocate(sqe, fd, 0, 0, 10000);
    run(sqe, "fallocate", 1);
    struct statx found = { 0 };
    sqe = entry(&ring, 1);
    io_uring_prep_statx(sqe, AT_FDCWD, "file", 0, STATX_SIZE, &found);
    run(sqe, "statx", 1);
    printf("size %llu\n", (unsigned long long)found.stx_size);
    sqe = entry(&ring, 1);
    io_uring_prep_fadvise(sqe, fd, 0, 0, POSIX_FADV_WILLNEED);
    run(sqe, "fadvise", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_mkdirat(sqe, AT_FDCWD, "folder", 0700);
    run(sqe, "mkdirat", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_mkdirat(sqe, AT_FDCWD, "folder", 0700);
    run(sqe, "mkdirat again", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_renameat(sqe, AT_FDCWD, "file", AT_FDCWD, "folder/moved", 0);
    run(sqe, "renameat", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_linkat(sqe, AT_FDCWD, "folder/moved", AT_FDCWD, "link", 0);
    run(sqe, "linkat", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_symlinkat(sqe, "link", AT_FDCWD, "symlink");
    run(sqe, "symlinkat", 1);
    struct open_how how = { .flags = O_RDONLY | O_NOFOLLOW };
    sqe = entry(&ring, 1);
    io_uring_prep_openat2(sqe, AT_FDCWD, "symlink", &how);
    run(sqe, "openat2 of a symlink", 1);
    how.flags = O_RDONLY;
    sqe = entry(&ring, 1);
    io_uring_prep_openat2(sqe, AT_FDCWD, "symlink", &how);
    int other = run(sqe, "openat2", 0);
    sqe = entry(&ring, 1);
    io_uring_prep_fsetxattr(sqe, fd, "user.one", "value", 0, 5);
    run(sqe, "fsetxattr", 1);
    char value[16] = { 0 };
    sqe = entry(&ring, 1);
    io_uring_prep_getxattr(sqe, "user.one", value, "link", sizeof value);
    run(sqe, "getxattr", 1);
    printf("%s\n", value);
    sqe = entry(&ring, 1);
    io_uring_prep_close(sqe, other);
    run(sqe, "close", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_close(sqe, other);
    run(sqe, "close again", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_close(sqe, ring.ring_fd);
    run(sqe, "close of the ring", 1);
    const char *names[] = { "folder/moved", "link", "symlink", "gone" };
    for (int at = 0; at < 4; at++) {
        sqe = entry(&ring, 1);
        io_uring_prep_unlinkat(sqe, AT_FDCWD, names[at], 0);
        run(sqe, "unlinkat", 1);
    }
    sqe = entry(&ring, 1);
    io_uring_prep_unlinkat(sqe, AT_FDCWD, "folder", AT_REMOVEDIR);
    run(sqe, "unlinkat of a folder", 1);
    int one[2], two[2];
    MUST(pipe(one) == 0 && pipe(two) == 0 && write(one[1], "spliced", 7) == 7);
    sqe = entry(&ring, 1);
    io_uring_prep_tee(sqe, one[0], two[1], 7, 0);
    run(sqe, "tee", 1);
    sqe = entry(&ring, 1);
    io_uring_prep_splice(sqe, one[0], -1, fd, 100, 7, 0);
    run(sqe, "splice", 1);
    MUST(pread(fd, value, 7, 100) == 7);
    printf("%.7s\n", value);
    MUST(chdir("..") == 0 && rmdir(folder) == 0);
    io_uring_queue_exit(&ring);
    return 0;
}
