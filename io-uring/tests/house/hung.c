/* Rings of a process whose registered files are on a server that does not answer: only requests
 * to that server wait. Usage: hung FILE buffered|direct fresh|known steps
 * With "known", a registered file is read once while the server still answers. */
#define _GNU_SOURCE
#include "../../../libaio/tests/support/hung.h"
#include "../c/common.h"
#include <libgen.h>
#include <sys/epoll.h>

enum { UPDATED, CLOSED, UNREGISTERED, SLOTS };

static struct io_uring one, two, three, four;
static char bytes[3][8];
static struct statx found;

static int result(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_wait_cqe(ring, &cqe) == 0);
    int res = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return res;
}

static void read_pipe(struct io_uring *ring, int fd, char *into)
{
    io_uring_prep_read(io_uring_get_sqe(ring), fd, into, 8, 0);
    MUST(io_uring_submit(ring) == 1);
}

/* Submits a read of `pipe`, and a poll of `fd` that is linked behind the read. */
static void poll_behind(struct io_uring *ring, int pipe, char *into, int fd)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    io_uring_prep_read(sqe, pipe, into, 8, 0);
    sqe->flags |= IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
    io_uring_prep_poll_add(io_uring_get_sqe(ring), fd, POLLIN);
    MUST(io_uring_submit(ring) == 2);
}

static void read_slot(int slot, void *into)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&one);
    io_uring_prep_read(sqe, slot, into, PAGE, READS_BEGIN);
    sqe->flags |= IOSQE_FIXED_FILE;
    MUST(io_uring_submit(&one) == 1);
}

int main(int arguments, char **argument)
{
    if (arguments != 5)
        die("FILE buffered|direct fresh|known steps");
    int fds[SLOTS], pipes[3][2], none = -1, epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(!io_uring_queue_init(8, &one, 0) && !io_uring_queue_init(8, &two, 0));
    MUST(!io_uring_queue_init(8, &three, 0) && !io_uring_queue_init(8, &four, 0) && epoll >= 0);
    int polled = open_hung(argument[1], argument[2]);
    int closed = open_hung(argument[1], argument[2]);
    for (int at = 0; at < SLOTS; at++)
        fds[at] = open_hung(argument[1], argument[2]);
    MUST(io_uring_register_files(&one, fds, SLOTS) == 0);
    for (int at = 0; at < SLOTS; at++)
        close(fds[at]);
    void *page = pages(PAGE), *held = pages(PAGE);
    if (!strcmp(argument[3], "known")) {
        read_slot(UNREGISTERED, page);
        MUST(result(&one) == PAGE);
    }
    MUST(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0 && pipe(pipes[2]) == 0);
    read_pipe(&one, pipes[0][0], bytes[0]);
    read_pipe(&two, pipes[1][0], bytes[1]);
    poll_behind(&three, pipes[2][0], bytes[2], polled);
    /* The kernel can find this file without the server. Its open asks the server. */
    int folder = open(dirname(strdup(argument[1])), O_RDONLY | O_DIRECTORY);
    close(openat(folder, "remembered", O_PATH));
    wait_to_be_told();

    begin("a poll");
    io_uring_prep_poll_add(io_uring_get_sqe(&three), polled, POLLOUT);
    end("a poll", io_uring_submit(&three));
    begin("a poll by epoll");
    io_uring_prep_epoll_ctl(io_uring_get_sqe(&three), epoll, polled, EPOLL_CTL_ADD, &event);
    end("a poll by epoll", io_uring_submit(&three));
    begin("a close by a request");
    io_uring_prep_close(io_uring_get_sqe(&three), closed);
    end("a close by a request", io_uring_submit(&three));
    MUST(write(pipes[2][1], "1234567", 8) == 8);
    begin("an open");
    io_uring_prep_openat(io_uring_get_sqe(&four), folder, "remembered", O_RDONLY, 0);
    end("an open", io_uring_submit(&four));
    begin("metadata");
    io_uring_prep_statx(io_uring_get_sqe(&four), folder, "remembered", 0, STATX_SIZE, &found);
    end("metadata", io_uring_submit(&four));
    begin("update of a slot");
    end("update of a slot", io_uring_register_files_update(&one, UPDATED, &none, 1));
    begin("close of a slot");
    io_uring_prep_close_direct(io_uring_get_sqe(&one), CLOSED);
    MUST(io_uring_submit(&one) == 1);
    end("close of a slot", result(&one));
    begin("unregister");
    end("unregister", io_uring_unregister_files(&one));
    begin("a read of this ring");
    MUST(write(pipes[0][1], "1234567", 8) == 8);
    end("a read of this ring", result(&one));
    begin("a read of another ring");
    MUST(write(pipes[1][1], "1234567", 8) == 8);
    end("a read of another ring", result(&two));
    begin("a timeout of another ring");
    struct __kernel_timespec soon = {0, 1000000};
    io_uring_prep_timeout(io_uring_get_sqe(&two), &soon, 0, 0);
    MUST(io_uring_submit(&two) == 1);
    end("a timeout of another ring", result(&two));
    begin("the end of another ring");
    io_uring_queue_exit(&two);
    end("the end of another ring", 0);
    wait_to_be_told();

    /* The server answers again. Now the polls, the close (with 0), the open and the request for
     * metadata complete. Below, a read completes that is the last user of its file. */
    int sum = 0;
    for (int at = 0; at < 4; at++)
        sum += result(&three);
    MUST(sum == (POLLIN | POLLOUT) && epoll_wait(epoll, &event, 1, -1) == 1);
    for (int at = 0; at < 2; at++) {
        int opened = result(&four);
        MUST(opened >= 0 && (opened == 0 || close(opened) == 0));
    }
    MUST(found.stx_size > 0);
    io_uring_queue_exit(&four);
    io_uring_queue_exit(&three);
    close(folder);
    close(epoll);
    close(polled);
    int fd = open_hung(argument[1], argument[2]);
    MUST(io_uring_register_files(&one, &fd, 1) == 0);
    close(fd);
    read_slot(0, held);
    MUST(io_uring_unregister_files(&one) == 0);
    MUST(result(&one) == PAGE && holds(held, PAGE, READS_BEGIN));
    io_uring_queue_exit(&one);
    puts("done");
    return 0;
}
