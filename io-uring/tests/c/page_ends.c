/* Names and small values that end with the last byte of a page; the next page is inaccessible. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/xattr.h>

enum { PAGE = 4096 };

static struct io_uring ring;
static char *end;

/* Puts `len` bytes at the end of the page. */
static void *put(const void *what, size_t len)
{
    return memcpy(end - len, what, len);
}

static char *name(const char *text)
{
    return put(text, strlen(text) + 1);
}

static int run(const char *what, int shows)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    printf("%s: %d\n", what, shows || result < 0 ? result : 0);
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static void names(void)
{
    struct statx found;
    char value[8];
    io_uring_prep_openat(entry(&ring, 0), AT_FDCWD, name("ab"), O_CREAT | O_RDWR, 0600);
    int fd = run("openat", 0);
    io_uring_prep_statx(entry(&ring, 0), AT_FDCWD, name("ab"), 0, STATX_SIZE, &found);
    run("statx", 1);
    io_uring_prep_fsetxattr(entry(&ring, 0), fd, name("user.one"), "value", 0, 5);
    run("fsetxattr", 1);
    io_uring_prep_fgetxattr(entry(&ring, 0), fd, name("user.one"), value, sizeof value);
    run("fgetxattr", 1);
    io_uring_prep_mkdirat(entry(&ring, 0), AT_FDCWD, name("f"), 0700);
    run("mkdirat", 1);
    io_uring_prep_renameat(entry(&ring, 0), AT_FDCWD, "ab", AT_FDCWD, name("c"), 0);
    run("renameat", 1);
    io_uring_prep_unlinkat(entry(&ring, 0), AT_FDCWD, name("c"), 0);
    run("unlinkat", 1);
    io_uring_prep_unlinkat(entry(&ring, 0), AT_FDCWD, name("f"), AT_REMOVEDIR);
    run("unlinkat of a folder", 1);
    io_uring_prep_unlinkat(entry(&ring, 0), AT_FDCWD, name(""), 0);
    run("unlinkat of nothing", 1);
    memset(end - 3, 'x', 3);
    io_uring_prep_unlinkat(entry(&ring, 0), AT_FDCWD, end - 3, 0);
    run("unlinkat of a name without an end", 1);
    io_uring_prep_unlinkat(entry(&ring, 0), AT_FDCWD, end, 0);
    run("unlinkat of a name that is not there", 1);
    close(fd);
}

static void values(void)
{
    int pair[2], counter = eventfd(0, 0), files[2];
    MUST(pipe(pair) == 0);
    files[0] = pair[0], files[1] = pair[1];
    int last = io_uring_register_files(&ring, put(files, sizeof files), 2);
    printf("register two files: %d\n", last);
    last = io_uring_register_files_update(&ring, 0, put(&pair[0], sizeof(int)), 1);
    printf("update one: %d\n", last);
    io_uring_prep_files_update(entry(&ring, 0), put(&pair[0], sizeof(int)), 1, 0);
    run("files update", 1);
    io_uring_prep_files_update(entry(&ring, 0), (int *)end - 1, 2, 0);
    run("files update over the end", 1);
    int number = ring.ring_fd, opcode = IORING_REGISTER_EVENTFD;
    last = io_uring_register(number, opcode, end - 3, 1);
    printf("register an eventfd over the end: %d\n", last);
    last = io_uring_register(number, opcode, put(&counter, sizeof counter), 1);
    printf("register an eventfd: %d\n", last);
    for (int len = 1; len < 9; len++) {
        io_uring_prep_write(entry(&ring, 0), pair[1], end - len, len, 0);
        run("write", 1);
        io_uring_prep_read(entry(&ring, 0), pair[0], end - len, len, 0);
        run("read", 1);
    }
    struct __kernel_timespec time = { .tv_nsec = 1 };
    io_uring_prep_timeout(entry(&ring, 0), put(&time, sizeof time), 0, 0);
    run("timeout", 1);
}

int main(void)
{
    char folder[] = "ends-XXXXXX";
    char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED && mprotect(at + PAGE, PAGE, PROT_NONE) == 0);
    end = at + PAGE;
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && mkdtemp(folder) && chdir(folder) == 0);
    names();
    values();
    MUST(chdir("..") == 0 && rmdir(folder) == 0);
    io_uring_queue_exit(&ring);
    return 0;
}
