/* aio_fsync: what it accepts, what it refuses, and what it waits for. */
#include "common.h"

static unsigned char buf[PAGE];

static void sync_it(const char *name, int op, int fd)
{
    struct aiocb cb = block(fd, NULL, 0, 0);
    if (aio_fsync(op, &cb)) {
        say(name, "refused %s", call(-1));
        return;
    }
    finish(&cb);
    say(name, "%s", state(&cb));
}

/* An fsync waits for earlier writes of its descriptor, and for no others. */
static void order(void)
{
    enum { N = 64 };
    static struct aiocb cbs[N];
    int fd = temp_file(0), early = 0, right = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            cbs[i] = block(fd, buf, PAGE, (off_t)i * PAGE);
            if (aio_write(&cbs[i]))
                die("aio_write");
        }
        struct aiocb sync = block(fd, NULL, 0, 0);
        if (aio_fsync(round & 1 ? O_DSYNC : O_SYNC, &sync))
            die("aio_fsync");
        right += finish(&sync) == 0 && aio_return(&sync) == 0;
        for (int i = 0; i < N; i++)
            early += aio_error(&cbs[i]) == EINPROGRESS;
        for (int i = 0; i < N; i++)
            finish(&cbs[i]);
    }
    say("[aio_fsync order] 20 times 64 writes and a sync", "%d right, %d writes still running",
        right, early);
    close(fd);
}

static void behind_a_blocked_one(void)
{
    int ends[2], fd = temp_file(PAGE);
    make_pipe(ends);
    struct aiocb read_cb = block(ends[0], buf, 16, 0), sync = block(ends[0], NULL, 0, 0),
                 other = block(fd, NULL, 0, 0);
    if (aio_read(&read_cb) || aio_fsync(O_SYNC, &sync) || aio_fsync(O_SYNC, &other))
        die("submit");
    say("[aio_fsync success] a sync of another descriptor", "%d", finish(&other));
    say("[aio_fsync order] a sync behind a read that waits", "%s", state(&sync));
    put(ends[1], "x");
    finish(&sync);
    say("[aio_fsync EINVAL] the sync of the pipe when the read is done", "%s", state(&sync));
    say("the read", "%s", state(&read_cb));
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

int main(void)
{
    int fd = temp_file(PAGE), readable = reopen(fd, O_RDONLY), writable = reopen(fd, O_WRONLY),
        closed = dup(fd), ends[2], pair[2];
    make_pipe(ends);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    close(closed);
    in_child(behind_a_blocked_one);
    sync_it("[aio_fsync success O_SYNC] O_SYNC", O_SYNC, fd);
    sync_it("[aio_fsync success O_DSYNC] O_DSYNC", O_DSYNC, fd);
    sync_it("[aio_fsync EINVAL] op 0", 0, fd);
    sync_it("[aio_fsync EINVAL] op O_RDWR", O_RDWR, fd);
    sync_it("[aio_fsync EINVAL] op O_SYNC and O_RDWR", O_SYNC | O_RDWR, fd);
    sync_it("[aio_fsync EINVAL] op -1", -1, fd);
    sync_it("[aio_fsync EINVAL] op 0 and a bad descriptor", 0, -1);
    sync_it("[aio_fsync EINVAL] a pipe, O_SYNC", O_SYNC, ends[0]);
    sync_it("[aio_fsync EINVAL] a pipe, O_DSYNC", O_DSYNC, ends[1]);
    sync_it("[aio_fsync EINVAL] a socket", O_SYNC, pair[0]);
    sync_it("[aio_fsync EBADF] descriptor -1, O_SYNC", O_SYNC, -1);
    sync_it("[aio_fsync EBADF] descriptor -1, O_DSYNC", O_DSYNC, -1);
    sync_it("[aio_fsync EBADF] a closed descriptor", O_SYNC, closed);
    sync_it("[aio_fsync success O_SYNC] a read-only descriptor", O_SYNC, readable);
    sync_it("[aio_fsync success O_DSYNC] a write-only descriptor", O_DSYNC, writable);
    int folder = open(getenv("TMPDIR"), O_RDONLY | O_DIRECTORY), null = open("/dev/null", O_RDWR),
        memory = memfd_create("m", 0);
    int path = open(getenv("TMPDIR"), O_PATH);
    sync_it("[aio_fsync success O_SYNC] a folder", O_SYNC, folder);
    sync_it("[aio_fsync EINVAL] null", O_SYNC, null);
    sync_it("[aio_fsync success O_SYNC] a memfd", O_SYNC, memory);
    sync_it("[aio_fsync EBADF] a path descriptor", O_SYNC, path);
    /* A refused fsync leaves the block as it was; an accepted one sets its priority to 0. */
    struct aiocb cb = block(fd, buf, 16, 0);
    request("a read", aio_read, &cb);
    if (aio_fsync(0, &cb) == 0)
        die("aio_fsync");
    say("[aio_error 0] the block after a refused sync", "%s", state(&cb));
    cb = block(-1, buf, 16, 0);
    int refused = aio_fsync(O_SYNC, &cb);
    say("[aio_error an errno] the block after a sync of descriptor -1", "%s",
        refused ? state(&cb) : "accepted");
    cb = block(fd, buf, 7, 3);
    cb.aio_reqprio = 5;
    if (aio_fsync(O_SYNC, &cb))
        die("aio_fsync");
    finish(&cb);
    say("what a sync changes in the block", "reqprio %d, opcode %s, bytes %zu, offset %ld",
        cb.aio_reqprio, cb.aio_lio_opcode ? "changed" : "0", cb.aio_nbytes, (long)cb.aio_offset);
    request("[aio_read success] a read of the same block", aio_read, &cb);
    order();
    return 0;
}
