/* Cancels among other entries of their batch. Each cancel takes effect in its place, and finds
 * requests that are still pending. It finds neither removed requests nor requests that an earlier
 * entry of the batch has ended. */
#include "common.h"

static struct io_uring ring;
static int ends[2];
static char bytes[4][8];
static const struct io_uring_sqe none;

static struct io_uring_sqe *add(int user_data, unsigned flags)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    MUST(sqe);
    *sqe = none;
    io_uring_prep_nop(sqe);
    sqe->flags = flags;
    sqe->user_data = user_data;
    return sqe;
}

static void cancels(int user_data, unsigned flags, int of)
{
    struct io_uring_sqe *sqe = add(user_data, flags);
    io_uring_prep_cancel64(sqe, of, 0);
    sqe->flags = flags;
    sqe->user_data = user_data;
}

static void cancels_all(int user_data, unsigned flags, unsigned which)
{
    struct io_uring_sqe *sqe = add(user_data, flags);
    io_uring_prep_cancel_fd(sqe, which & IORING_ASYNC_CANCEL_ANY ? -1 : ends[0],
                            which | IORING_ASYNC_CANCEL_ALL);
    if (which & IORING_ASYNC_CANCEL_ANY)
        sqe->cancel_flags = which;
    sqe->flags = flags;
    sqe->user_data = user_data;
}

static void removes(int user_data, int of)
{
    struct io_uring_sqe *sqe = add(user_data, 0);
    io_uring_prep_poll_remove(sqe, of);
    sqe->user_data = user_data;
}

static void reads(int user_data, int fd)
{
    struct io_uring_sqe *sqe = add(user_data, 0);
    io_uring_prep_read(sqe, fd, bytes[user_data % 4], 8, 0);
    sqe->user_data = user_data;
}

static void polls(int user_data, int fd)
{
    struct io_uring_sqe *sqe = add(user_data, 0);
    io_uring_prep_poll_add(sqe, fd, POLLIN);
    sqe->user_data = user_data;
}

/* Submits two reads and a poll, which wait. */
static void waits(void)
{
    reads(1, ends[0]), reads(2, ends[0]), polls(3, ends[0]);
    MUST(io_uring_submit(&ring) == 3);
}

static void prints(const char *what, int count, int waiting)
{
    MUST(io_uring_submit(&ring) == count);
    /* In a ring with deferred task work, each of these calls posts only the completions that follow
     * from the call before it. */
    for (int at = 0; at < count; at++)
        MUST(io_uring_get_events(&ring) >= 0);
    completions(&ring, what, count + waiting);
}

static void in_place(void)
{
    waits();
    add(10, 0), cancels(11, 0, 1), add(12, 0), cancels(13, 0, 2), cancels(14, 0, 3), add(15, 0);
    prints("by user_data, between others", 6, 3);
    waits();
    add(10, 0), cancels_all(11, 0, IORING_ASYNC_CANCEL_FD), add(12, 0);
    MUST(io_uring_submit(&ring) == 3);
    sorted(&ring, "all of a file, between others", 6);
    waits();
    cancels(10, 0, 1), cancels_all(11, 0, IORING_ASYNC_CANCEL_FD);
    cancels_all(12, 0, IORING_ASYNC_CANCEL_ANY);
    MUST(io_uring_submit(&ring) == 3);
    sorted(&ring, "what is cancelled already", 6);
}

static void removed(void)
{
    polls(1, ends[0]);
    removes(10, 1), cancels(11, 0, 1), removes(12, 1);
    prints("cancel of a poll that was removed", 4, 0);
    polls(1, ends[0]);
    cancels(10, 0, 1), removes(11, 1), cancels(12, 0, 1);
    prints("removal of a poll that was cancelled", 4, 0);
    polls(1, -1), reads(2, -1);
    cancels_all(10, 0, IORING_ASYNC_CANCEL_ANY);
    prints("cancel of what has failed", 3, 0);
}

/* Entries behind a link are executed after the batch, and so after cancels that follow in it. */
static void linked(void)
{
    waits();
    add(10, IOSQE_IO_HARDLINK), cancels_all(11, IOSQE_IO_HARDLINK, IORING_ASYNC_CANCEL_ANY);
    add(12, 0), cancels(13, 0, 1), cancels(14, 0, 2), cancels(15, 0, 3);
    prints("linked cancel", 6, 3);
    waits();
    add(10, IOSQE_IO_HARDLINK), cancels(11, IOSQE_IO_HARDLINK, 3);
    cancels_all(12, 0, IORING_ASYNC_CANCEL_FD);
    cancels(13, IOSQE_IO_LINK, 1), cancels(14, 0, 1);
    prints("two chains", 5, 3);
}

/* An entry with an unknown opcode fails at once, with its chain. A drain in that chain delays
 * neither the chain nor later entries. */
static void drained(void)
{
    reads(1, ends[0]);
    MUST(io_uring_submit(&ring) == 1);
    add(10, IOSQE_IO_DRAIN | IOSQE_IO_LINK), add(11, 0)->opcode = 200;
    MUST(io_uring_submit(&ring) == 2);
    completions(&ring, "a chain that fails", 2);
    MUST(write(ends[1], "12345678", 8) == 8);
    completions(&ring, "a chain that fails", 1);
    reads(1, ends[0]);
    MUST(io_uring_submit(&ring) == 1);
    add(10, IOSQE_IO_DRAIN)->opcode = 200;
    MUST(io_uring_submit(&ring) == 1);
    add(11, 0);
    MUST(io_uring_submit(&ring) == 1);
    completions(&ring, "behind an entry that no ring takes", 2);
    MUST(write(ends[1], "12345678", 8) == 8);
    completions(&ring, "behind an entry that no ring takes", 1);
}

int main(void)
{
    const unsigned flags[] = { 0, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN };
    MUST(pipe(ends) == 0);
    for (int at = 0; at < 2; at++) {
        MUST(io_uring_queue_init(32, &ring, flags[at] | IORING_SETUP_SUBMIT_ALL) == 0);
        in_place();
        removed();
        /* Without these flags, the kernel may take the batch in parts. */
        if (flags[at])
            linked();
        drained();
        io_uring_queue_exit(&ring);
    }
    return 0;
}
