/* The calls on the smallest stack that a thread can have. */
#include "../../../libaio/tests/support/small_stack.h"
#include <liburing.h>

#define READS 40

static unsigned char *blocks;

static int right(struct io_uring *ring, int fd, int count)
{
    struct io_uring_cqe *cqe;
    int right = 0;
    memset(blocks, 0, READS * PAGE);
    for (int i = 0; i < count; i++)
        io_uring_prep_read(io_uring_get_sqe(ring), fd, blocks + i * PAGE, PAGE, i * PAGE);
    if (io_uring_submit(ring) != count)
        return 0;
    for (int i = 0; i < count; i++) {
        if (io_uring_wait_cqe(ring, &cqe))
            return 0;
        io_uring_cqe_seen(ring, cqe);
    }
    for (int i = 0; i < count; i++)
        right += holds(blocks + i * PAGE, PAGE, (size_t)i * PAGE);
    return right;
}

static void *body(void *unused)
{
    struct io_uring ring;
    int fd = temp_file(READS * PAGE), ends[2];
    struct iovec part = {blocks, PAGE};
    answer("a ring", io_uring_queue_init(64, &ring, 0));
    for (int direct = 0; direct < 2; direct++) {
        int file = cached_or_not(fd, direct);
        say(direct ? "direct" : "cached", "%d and %d right", right(&ring, file, 1),
            right(&ring, file, READS));
    }
    if (pipe2(ends, O_CLOEXEC))
        die("pipe2");
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    struct io_uring_cqe *cqe;
    io_uring_prep_poll_add(sqe, ends[0], POLLIN);
    io_uring_submit(&ring);
    if (write(ends[1], "a", 1) != 1)
        die("write");
    answer("a poll", io_uring_wait_cqe(&ring, &cqe) ? -1 : cqe->res & POLLIN);
    answer("buffers", io_uring_register_buffers(&ring, &part, 1));
    answer("files", io_uring_register_files(&ring, &fd, 1));
    io_uring_queue_exit(&ring);
    return unused;
}

int main(int count, char **arguments)
{
    (void)count;
    blocks = pages(READS * PAGE);
    on_a_small_stack(arguments, body);
    return 0;
}
