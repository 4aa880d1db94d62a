/* Opens through a ring: files of many kinds, with many flags. Each open is made twice: at first the
 * path may be unknown, later the kernel remembers it. The descriptor and its flags are the same as
 * with open(2). The submit does not wait for a lease that another descriptor has. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/openat2.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct io_uring ring;

static const char *const PATHS[] = {
    "file", "folder", "folder/file", "to file", "to folder", "to nothing", "missing",
    "missing/file", "file/file", "fifo", "socket", "/dev/null", "/dev/full", "/proc/self/stat",
    "/proc/self/fd", "", ".", "..", "hidden/file",
};

static const struct {
    const char *name;
    unsigned long long flags;
} FLAGS[] = {
    { "", O_RDONLY }, { "write", O_WRONLY }, { "both", O_RDWR }, { "neither", O_ACCMODE },
    { "append", O_RDWR | O_APPEND }, { "cloexec", O_CLOEXEC }, { "direct", O_DIRECT },
    { "directory", O_DIRECTORY }, { "noatime", O_NOATIME }, { "noctty", O_NOCTTY },
    { "nofollow", O_NOFOLLOW }, { "nonblock", O_NONBLOCK }, { "sync", O_RDWR | O_SYNC },
    { "dsync", O_RDWR | O_DSYNC }, { "path", O_PATH }, { "path nofollow", O_PATH | O_NOFOLLOW },
    { "creat", O_CREAT | O_RDWR }, { "excl", O_CREAT | O_EXCL }, { "trunc", O_WRONLY | O_TRUNC },
    { "tmpfile", O_TMPFILE | O_RDWR }, { "async", O_ASYNC }, { "largefile", 0100000 },
    { "unknown", 1 << 29 }, { "unknown, high", 1ull << 40 },
};

static const unsigned long long RESOLVES[] = {
    0, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_XDEV, 1 << 10,
};

/* Would the open wait for another process? */
static int waits(const char *path, unsigned long long flags)
{
    return strcmp(path, "fifo") == 0 && !(flags & (O_NONBLOCK | O_PATH | O_DIRECTORY));
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit_and_wait(&ring, 1) >= 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static void show(const char *path, const char *flags, const char *what, int result)
{
    printf("%s, %s, %s: %d", path, flags, what, result);
    if (result >= 0) {
        printf(" %#x %d", fcntl(result, F_GETFL), fcntl(result, F_GETFD));
        close(result);
    }
    printf("\n");
}

static void direct(const char *path, const char *name, int flags)
{
    io_uring_prep_openat_direct(entry(&ring, 1), AT_FDCWD, path, flags, 0600, 1);
    int opened = result();
    io_uring_prep_close_direct(entry(&ring, 1), 1);
    printf("%s, %s, direct: %d, closed %d\n", path, name, opened, result());
}

static void all(const char *path)
{
    for (int at = 0; at < COUNT(FLAGS); at++) {
        unsigned long long flags = FLAGS[at].flags;
        if (waits(path, flags))
            continue;
        for (int times = 0; times < 2; times++) {
            io_uring_prep_openat(entry(&ring, 1), AT_FDCWD, path, (int)flags, 0600);
            show(path, FLAGS[at].name, "openat", result());
            for (int mode = 0; mode < 2; mode++) {
                struct open_how how = { .flags = flags, .mode = mode ? 0600 : 0 };
                io_uring_prep_openat2(entry(&ring, 1), AT_FDCWD, path, &how);
                show(path, FLAGS[at].name, mode ? "openat2, mode" : "openat2", result());
            }
            direct(path, FLAGS[at].name, (int)flags);
            unlink("missing");
        }
    }
    for (int at = 0; at < COUNT(RESOLVES); at++) {
        struct open_how how = { .flags = O_NONBLOCK, .resolve = RESOLVES[at] };
        io_uring_prep_openat2(entry(&ring, 1), AT_FDCWD, path, &how);
        printf("%#llx ", RESOLVES[at]);
        show(path, "", "resolve", result());
    }
}

/* Entries of one batch: the read finds the file of the open, and the cancel finds no open. */
static void in_one_batch(void)
{
    static char bytes[4];
    struct io_uring_cqe *cqe;
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_openat_direct(sqe, AT_FDCWD, "file", O_RDONLY, 0, 0);
    sqe->user_data = 1;
    sqe = entry(&ring, 2);
    io_uring_prep_read(sqe, 0, bytes, sizeof bytes, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    sqe->user_data = 2;
    sqe = entry(&ring, 3);
    io_uring_prep_cancel64(sqe, 1, 0);
    sqe->user_data = 3;
    MUST(io_uring_submit(&ring) == 3);
    int results[4];
    for (int at = 0; at < 3; at++) {
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        results[cqe->user_data] = cqe->res;
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("batch: %d %d %d\n", results[1], results[2], results[3]);
    io_uring_prep_close_direct(entry(&ring, 1), 0);
    printf("closed: %d\n", result());
}

/* The open waits until the lease is given up. The submit does not. */
static void lease(void)
{
    int holder = open("leased", O_RDWR | O_CREAT, 0600);
    signal(SIGIO, SIG_IGN);
    MUST(holder >= 0 && fcntl(holder, F_SETLEASE, F_WRLCK) == 0);
    io_uring_prep_openat(entry(&ring, 1), AT_FDCWD, "leased", O_RDONLY, 0);
    MUST(io_uring_submit(&ring) == 1);
    struct io_uring_cqe *cqe;
    printf("leased: %d\n", io_uring_peek_cqe(&ring, &cqe));
    MUST(fcntl(holder, F_SETLEASE, F_UNLCK) == 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
    show("leased", "", "openat", cqe->res);
    io_uring_cqe_seen(&ring, cqe);
    close(holder);
}

/* A linked timeout expires while the open still waits for the lease. Whether it ends the open
 * depends on the thread that executes the open. */
static void timed(void)
{
    struct __kernel_timespec soon = { 0, 20000000 };
    int holder = open("leased", O_RDWR | O_CREAT, 0600);
    MUST(holder >= 0 && fcntl(holder, F_SETLEASE, F_WRLCK) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_openat(sqe, AT_FDCWD, "leased", O_RDONLY, 0);
    sqe->flags |= IOSQE_IO_LINK;
    io_uring_prep_link_timeout(entry(&ring, 2), &soon, 0);
    MUST(io_uring_submit(&ring) == 2);
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
    printf("timed: a completion before the lease is given up\n");
    io_uring_cqe_seen(&ring, cqe);
    MUST(fcntl(holder, F_SETLEASE, F_UNLCK) == 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
    io_uring_cqe_seen(&ring, cqe);
    close(holder);
}

/* Which of two wrong arguments is reported. */
static void wrong(void)
{
    io_uring_prep_openat2(entry(&ring, 1), AT_FDCWD, "", (struct open_how *)8);
    printf("wrong: %d\n", result());
    io_uring_prep_openat2(entry(&ring, 1), AT_FDCWD, (char *)8, (struct open_how *)8);
    printf("wrong: %d\n", result());
    io_uring_prep_openat(entry(&ring, 1), AT_FDCWD, (char *)8, O_RDONLY, 0);
    printf("wrong: %d\n", result());
}

int main(void)
{
    char folder[] = "opens-XXXXXX";
    struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "socket" };
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && mkdtemp(folder) && chdir(folder) == 0);
    MUST(io_uring_register_files_sparse(&ring, 4) == 0);
    int file = open("file", O_CREAT | O_RDWR, 0600), other = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(file >= 0 && write(file, "text", 4) == 4 && mkdir("folder", 0700) == 0);
    MUST(mkdir("hidden", 0) == 0 && mkfifo("fifo", 0600) == 0);
    MUST(link("file", "folder/file") == 0 && symlink("file", "to file") == 0);
    MUST(symlink("folder", "to folder") == 0 && symlink("nothing", "to nothing") == 0);
    MUST(other >= 0 && bind(other, (void *)&name, sizeof name) == 0);
    /* A read shows on which file system the files are. */
    static char bytes[4];
    io_uring_prep_read(entry(&ring, 1), file, bytes, sizeof bytes, 0);
    printf("read: %d\n", result());
    for (int at = 0; at < COUNT(PATHS); at++)
        all(PATHS[at]);
    in_one_batch();
    lease();
    timed();
    wrong();
    static const char *const FILES[] = { "file", "folder/file", "to file", "to folder", "fifo",
                                         "to nothing", "nothing", "socket", "leased",
                                         "hidden/file" };
    for (int at = 0; at < COUNT(FILES); at++)
        unlink(FILES[at]);
    MUST(rmdir("folder") == 0 && rmdir("hidden") == 0 && chdir("..") == 0 && rmdir(folder) == 0);
    io_uring_queue_exit(&ring);
    return 0;
}
