/* Registered files and buffers that are replaced or unregistered while requests use them: the
 * tag comes after the last user has ended, and not before. */
#include "common.h"

static char memory[2][4096];
static int pipes[2][2];
static struct io_uring ring;
static __u64 no_tag;

/* Submits, and prints the completions that are there, without waiting. */
static void there(const char *what)
{
    struct io_uring_cqe *cqe;
    io_uring_submit_and_get_events(&ring);
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
        printf("%s: %llu gives %d\n", what, (unsigned long long)cqe->user_data, cqe->res);
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("%s: that is all\n", what);
}

static void read_fixed(int buffer, int file, int fixed, unsigned flags, unsigned long long data)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    MUST(sqe);
    if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, file, memory[0], 4, 0, buffer);
    else
        io_uring_prep_read(sqe, file, memory[1], 4, 0);
    sqe->flags |= flags | (fixed ? IOSQE_FIXED_FILE : 0);
    sqe->user_data = data;
    MUST(io_uring_submit(&ring) == 1);
}

static void buffers(const char *what, int unregister)
{
    struct iovec first = {memory[0], sizeof memory[0]}, other = {memory[1], sizeof memory[1]};
    __u64 tag = 70;
    printf("%s\n", what);
    MUST(io_uring_register_buffers_tags(&ring, &first, &tag, 1) == 0);
    read_fixed(0, pipes[0][0], 0, 0, 1);
    read_fixed(0, pipes[1][0], 0, 0, 2);
    printf("answer: %d\n", unregister ? io_uring_unregister_buffers(&ring)
                                      : io_uring_register_buffers_update_tag(&ring, 0, &other,
                                                                             &no_tag, 1));
    there("two use it");
    MUST(write(pipes[0][1], "abcd", 4) == 4);
    completions(&ring, "one uses it", 1);
    MUST(write(pipes[1][1], "abcd", 4) == 4);
    completions(&ring, "none uses it", 2);
    if (!unregister)
        MUST(io_uring_unregister_buffers(&ring) == 0);
    there("the other one has no tag");
}

enum how { UPDATE, UNREGISTER, CLOSE_SLOT };

static void files(const char *what, enum how how)
{
    __u64 tags[] = {80, 81};
    int fds[] = {pipes[0][0], pipes[1][0]};
    printf("%s\n", what);
    MUST(io_uring_register_files_tags(&ring, fds, tags, 2) == 0);
    read_fixed(-1, 0, 1, 0, 3);
    switch (how) {
    case UPDATE:
        printf("answer: %d\n",
               io_uring_register_files_update_tag(&ring, 0, &fds[1], &no_tag, 1));
        break;
    case UNREGISTER:
        printf("answer: %d\n", io_uring_unregister_files(&ring));
        break;
    case CLOSE_SLOT:
        io_uring_prep_close_direct(io_uring_get_sqe(&ring), 0);
        MUST(io_uring_submit(&ring) == 1);
        completions(&ring, "close of a slot", 1);
        break;
    }
    there("one uses it");
    MUST(write(pipes[0][1], "abcd", 4) == 4);
    completions(&ring, "none uses it", 2);
    if (how != UNREGISTER)
        MUST(io_uring_unregister_files(&ring) == 0);
    there("what was left");
}

int main(void)
{
    MUST(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    MUST(io_uring_queue_init(16, &ring, 0) == 0);
    buffers("a buffer is replaced", 0);
    buffers("buffers are unregistered", 1);
    files("a file is replaced", UPDATE);
    files("files are unregistered", UNREGISTER);
    files("a slot is closed", CLOSE_SLOT);

    /* A cancelled request uses nothing any more. */
    __u64 tag = 90;
    MUST(io_uring_register_files_tags(&ring, &pipes[0][0], &tag, 1) == 0);
    read_fixed(-1, 0, 1, 0, 5);
    MUST(io_uring_unregister_files(&ring) == 0);
    there("before a cancel");
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    io_uring_prep_cancel64(sqe, 5, 0);
    sqe->user_data = 6;
    MUST(io_uring_submit(&ring) == 1);
    sorted(&ring, "cancelled", 3);
    io_uring_queue_exit(&ring);
    return 0;
}
