/* Every operation does what its system call does, and returns its result. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/stat.h>

#include "check.h"

int main(void)
{
    struct uringlet *u = context(8);
    struct iovec iov[2] = {{"abc", 3}, {"defg", 4}};
    char one[4] = "", two[4] = "", folder[] = "/tmp/uringlet-test-XXXXXX", path[64];
    struct statx stat;
    int dir, fd, pipes[2];

    CHECK(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && pipe(pipes) == 0);

    uringlet_prep_nop(entry(u));
    EQUAL(result(u), 0);
    /* After the submit, the program may change the path. */
    strcpy(path, "file");
    uringlet_prep_openat(entry(u), dir, path, O_RDWR | O_CREAT | O_EXCL, 0600);
    EQUAL(uringlet_submit(u), 1);
    memset(path, 0xff, sizeof(path));
    fd = result(u);
    CHECK(fd >= 0);
    uringlet_prep_writev(entry(u), fd, iov, 2, 0);
    EQUAL(result(u), 7);
    uringlet_prep_write(entry(u), fd, "hi", 2, 7);
    EQUAL(result(u), 2);
    uringlet_prep_fsync(entry(u), fd);
    EQUAL(result(u), 0);
    uringlet_prep_fdatasync(entry(u), fd);
    EQUAL(result(u), 0);
    uringlet_prep_fsync_flags(entry(u), fd, 0);
    EQUAL(result(u), 0);
    uringlet_prep_fsync_flags(entry(u), fd, URINGLET_FSYNC_DATASYNC);
    EQUAL(result(u), 0);
    uringlet_prep_fsync_flags(entry(u), fd, 2);
    EQUAL(result(u), -EINVAL);
    uringlet_prep_sync_file_range(entry(u), fd, 0, 9, SYNC_FILE_RANGE_WRITE);
    EQUAL(result(u), 0);
    iov[0].iov_base = one;
    iov[0].iov_len = 2;
    iov[1].iov_base = two;
    iov[1].iov_len = 3;
    uringlet_prep_readv(entry(u), fd, iov, 2, 1);
    EQUAL(result(u), 5);
    CHECK(!strcmp(one, "bc") && !strcmp(two, "def"));
    uringlet_prep_read(entry(u), fd, one, 3, 6);
    EQUAL(result(u), 3);
    CHECK(!memcmp(one, "ghi", 3));
    uringlet_prep_read(entry(u), fd, one, 3, URINGLET_FILE_POSITION);
    EQUAL(result(u), 3);
    CHECK(!memcmp(one, "abc", 3));
    uringlet_prep_fadvise(entry(u), fd, 0, 0, POSIX_FADV_RANDOM);
    EQUAL(result(u), 0);
    uringlet_prep_fallocate(entry(u), fd, 0, 0, 100);
    EQUAL(result(u), 0);
    uringlet_prep_statx(entry(u), dir, "file", 0, STATX_SIZE, &stat);
    EQUAL(result(u), 0);
    EQUAL(stat.stx_size, 100);
    uringlet_prep_ftruncate(entry(u), fd, 5);
    EQUAL(result(u), 0);
    EQUAL(lseek(fd, 0, SEEK_END), 5);
    uringlet_prep_close(entry(u), fd);
    EQUAL(result(u), 0);
    uringlet_prep_close(entry(u), fd);
    EQUAL(result(u), -EBADF);
    uringlet_prep_mkdirat(entry(u), dir, "folder", 0700);
    EQUAL(result(u), 0);
    uringlet_prep_renameat(entry(u), dir, "file", dir, "folder/moved", 0);
    EQUAL(result(u), 0);
    uringlet_prep_unlinkat(entry(u), dir, "folder", 0);
    EQUAL(result(u), -EISDIR);
    uringlet_prep_unlinkat(entry(u), dir, "folder/moved", 0);
    EQUAL(result(u), 0);
    uringlet_prep_unlinkat(entry(u), dir, "folder", AT_REMOVEDIR);
    EQUAL(result(u), 0);
    uringlet_prep_poll_add(entry(u), pipes[1], POLLOUT);
    EQUAL(result(u), POLLOUT);
    fd = file_of("", 0);
    {
        struct uringlet_sqe *sqe = entry(u);

        uringlet_prep_write(sqe, fd, "abc", 3, 0);
        uringlet_sqe_set_rw_flags(sqe, RWF_APPEND);
    }
    EQUAL(result(u), 3);
    {
        struct uringlet_sqe *sqe = entry(u);

        uringlet_prep_write(sqe, fd, "def", 3, 0);
        uringlet_sqe_set_rw_flags(sqe, RWF_APPEND);
    }
    EQUAL(result(u), 3);
    EQUAL(lseek(fd, 0, SEEK_END), 6);
    EQUAL(uringlet_destroy(u, -1), 0);
    EQUAL(rmdir(folder), 0);
    return EXIT_SUCCESS;
}
