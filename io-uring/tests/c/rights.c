/* Threads that give up rights which other threads keep: the rights of the thread decide on its
 * requests. The test needs root. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define NOBODY 65534

enum { ASKED = 8, BIND = 56 };

static const struct sockaddr_un server = { AF_UNIX, "private/server" },
                                made = { AF_UNIX, "private/bound" };

static int result_of(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit_and_wait(ring, 1) == 1 && io_uring_wait_cqe(ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

static int asks(struct io_uring *ring, int what)
{
    static struct statx found;
    int fd = -1;
    struct io_uring_sqe *sqe = entry(ring, 1);
    switch (what) {
    case 0:
        io_uring_prep_openat(sqe, AT_FDCWD, "private/file", O_RDONLY, 0);
        break;
    case 1:
        io_uring_prep_statx(sqe, AT_FDCWD, "private/file", 0, STATX_SIZE, &found);
        break;
    case 2:
        io_uring_prep_unlinkat(sqe, AT_FDCWD, "private/file", 0);
        break;
    case 3:
        io_uring_prep_mkdirat(sqe, AT_FDCWD, "private/made", 0700);
        break;
    case 4:
        io_uring_prep_renameat(sqe, AT_FDCWD, "private/file", AT_FDCWD, "private/other", 0);
        break;
    case 5:
        fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        io_uring_prep_connect(sqe, fd, (void *)&server, sizeof server);
        break;
    case 6:
        fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        io_uring_prep_send(sqe, fd, "x", 1, 0);
        io_uring_prep_send_set_addr(sqe, (void *)&server, sizeof server);
        break;
    case 7:
        fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        io_uring_prep_rw(BIND, sqe, fd, &made, 0, sizeof made);
        break;
    }
    int result = result_of(ring);
    if (fd >= 0)
        close(fd);
    return result > 0 ? 0 : result;
}

static void *by_function(void *unused)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    setfsuid(NOBODY);
    for (int what = 0; what < ASKED; what++)
        printf("setfsuid, %d: %d\n", what, asks(&ring, what));
    io_uring_queue_exit(&ring);
    return unused;
}

/* Changes the user of this thread only, with the system call by its number. */
static void *by_number(void *unused)
{
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    MUST(syscall(SYS_setresuid, -1, NOBODY, -1) == 0);
    for (int what = 0; what < ASKED; what++)
        printf("setresuid, %d: %d\n", what, asks(&ring, what));
    io_uring_queue_exit(&ring);
    return unused;
}

int main(void)
{
    struct io_uring ring;
    pthread_t thread;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    MUST(mkdir("private", 0700) == 0);
    int file = open("private/file", O_CREAT | O_RDWR, 0600);
    MUST(file >= 0 && close(file) == 0);
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
    MUST(bind(receiver, (void *)&server, sizeof server) == 0);
    for (int what = 0; what < ASKED; what += 5)
        printf("with all rights: %d\n", asks(&ring, what));
    MUST(pthread_create(&thread, NULL, by_function, NULL) == 0 && pthread_join(thread, NULL) == 0);
    MUST(pthread_create(&thread, NULL, by_number, NULL) == 0 && pthread_join(thread, NULL) == 0);
    printf("with all rights: %d\n", asks(&ring, 0));
    printf("with all rights: %d\n", asks(&ring, 6));
    MUST(unlink("private/file") == 0 && unlink("private/server") == 0 && rmdir("private") == 0);
    io_uring_queue_exit(&ring);
    return 0;
}
