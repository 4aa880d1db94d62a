/* aio_cancel of requests that run, that are queued behind those, and that are done. */
#include "common.h"

static unsigned char buf[8][PAGE];

static void nothing_runs(void)
{
    int fd = temp_file(PAGE), closed = dup(fd), ends[2];
    make_pipe(ends);
    close(closed);
    struct aiocb cb = block(fd, buf[0], 16, 0);
    cancelled("[aio_cancel AIO_ALLDONE] nothing ever ran", fd, NULL);
    cancelled("[aio_cancel EBADF] descriptor -1", -1, NULL);
    cancelled("[aio_cancel EBADF] a closed descriptor", closed, NULL);
    cancelled("[aio_cancel EBADF] a closed descriptor and a block", closed, &cb);
    cancelled("[aio_cancel EINVAL] another descriptor than the block's", ends[0], &cb);
    cancelled("[aio_cancel AIO_ALLDONE] a block never submitted", fd, &cb);
    request("[aio_read success] a read", aio_read, &cb);
    cancelled("[aio_cancel AIO_ALLDONE] a finished one", fd, &cb);
    cancelled("[aio_cancel AIO_ALLDONE] all of a descriptor that are finished", fd, NULL);
    say("the finished one", "%s", state(&cb));
    cancelled("[aio_cancel EINVAL] a finished one, wrong descriptor", ends[0], &cb);
    cb.aio_fildes = closed;
    cancelled("[aio_cancel EBADF] a finished one, descriptor closed since", closed, &cb);
    cb.aio_fildes = -1;
    cancelled("[aio_cancel EBADF] a finished one, descriptor -1", -1, &cb);
}

static void running(void)
{
    int ends[2], other[2];
    make_pipe(ends);
    make_pipe(other);
    struct aiocb cb = block(ends[0], buf[0], 16, 0);
    if (aio_read(&cb))
        die("aio_read");
    cancelled("[aio_cancel AIO_NOTCANCELED] one that runs", ends[0], &cb);
    say("[aio_error EINPROGRESS] its state", "%s", state(&cb));
    cancelled("[aio_cancel AIO_NOTCANCELED] all, one runs", ends[0], NULL);
    cancelled("[aio_cancel EINVAL] one that runs, wrong descriptor", other[0], &cb);
    cancelled("[aio_cancel AIO_ALLDONE] all of another descriptor", other[0], NULL);
    cancelled("[aio_cancel AIO_ALLDONE] all of the pipe's other end", ends[1], NULL);
    struct aiocb copy = cb;
    cancelled("[aio_cancel EINVAL] a copy of one that runs", ends[0], &copy);
    say("its state after all that", "%s", state(&cb));
    put(ends[1], "hello");
    finish(&cb);
    say("it completes", "%s", state(&cb));
    cancelled("[aio_cancel AIO_ALLDONE] when it has", ends[0], &cb);
}

static void queued(void)
{
    int ends[2];
    struct aiocb cbs[5];
    make_pipe(ends);
    for (int i = 0; i < 5; i++) {
        cbs[i] = block(ends[0], buf[i], 5, 0);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    cancelled("[aio_cancel AIO_CANCELED] the last of five", ends[0], &cbs[4]);
    say("[aio_error ECANCELED; aio_return cancelled] its state at once", "%s", state(&cbs[4]));
    cancelled("[aio_cancel AIO_ALLDONE] again", ends[0], &cbs[4]);
    cancelled("[aio_cancel AIO_CANCELED] the second", ends[0], &cbs[1]);
    say("the states", "%s; %s; %s", state(&cbs[0]), state(&cbs[2]), state(&cbs[3]));
    put(ends[1], "first");
    finish(&cbs[0]);
    put(ends[1], "third");
    finish(&cbs[2]);
    say("the first and the third complete", "%s; %s", state(&cbs[0]), state(&cbs[2]));
    yes("in order", memcmp(buf[0], "first", 5) == 0 && memcmp(buf[2], "third", 5) == 0);
    say("the fourth", "%s", state(&cbs[3]));
    const struct aiocb *list[] = {&cbs[1]};
    say("[aio_suspend success] wait for a cancelled one", "%s", call(aio_suspend(list, 1, NULL)));
    put(ends[1], "rest");
    finish(&cbs[3]);
}

static void all(void)
{
    int ends[2];
    struct aiocb cbs[5];
    make_pipe(ends);
    for (int i = 0; i < 5; i++) {
        cbs[i] = block(ends[0], buf[i], 5, 0);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    cancelled("[aio_cancel AIO_NOTCANCELED] all of five, one runs", ends[0], NULL);
    say("the one that runs", "%s", state(&cbs[0]));
    int gone = 0;
    for (int i = 1; i < 5; i++)
        gone += aio_error(&cbs[i]) == ECANCELED && aio_return(&cbs[i]) == -1;
    say("[aio_error ECANCELED; aio_return cancelled] those behind it", "%d cancelled", gone);
    put(ends[1], "hello");
    finish(&cbs[0]);
    say("it completes after that", "%s", state(&cbs[0]));
    cancelled("[aio_cancel AIO_ALLDONE] all, all done", ends[0], NULL);
    request("[aio_read success] a cancelled block again", aio_write,
            &(struct aiocb){.aio_fildes = ends[1],
                            .aio_buf = "again",
                            .aio_nbytes = 5,
                            .aio_sigevent.sigev_notify = SIGEV_NONE});
    request("a cancelled block is used again", aio_read, &cbs[3]);
}

/* The queue of a descriptor holds fsyncs as it holds reads and writes. */
static void queued_sync(void)
{
    int ends[2];
    make_pipe(ends);
    struct aiocb cb = block(ends[0], buf[0], 5, 0), sync = block(ends[0], NULL, 0, 0);
    if (aio_read(&cb))
        die("aio_read");
    say("[aio_fsync EINVAL] a sync behind a read of a pipe", "%s", call(aio_fsync(O_SYNC, &sync)));
    say("its state while the read waits", "%s", state(&sync));
    cancelled("[aio_cancel AIO_CANCELED; aio_fsync ECANCELED] cancel it", ends[0], &sync);
    say("the cancelled sync", "%s", state(&sync));
    put(ends[1], "hello");
    finish(&cb);
}

/* Cancels a write that waits for room. */
static void writes(void)
{
    int ends[2];
    static char lots[1 << 20];
    make_pipe(ends);
    struct aiocb write_cb = block(ends[1], lots, sizeof lots, 0),
                 behind = block(ends[1], "x", 1, 0);
    if (aio_write(&write_cb) || aio_write(&behind))
        die("aio_write");
    cancelled("[aio_cancel AIO_NOTCANCELED] a write that waits for room", ends[1], &write_cb);
    cancelled("[aio_cancel AIO_CANCELED] a write behind it", ends[1], &behind);
    say("the write that waits", "%s", state(&write_cb));
    size_t got = 0;
    while (got < sizeof lots) {
        ssize_t n = read(ends[0], buf, sizeof buf);
        if (n <= 0)
            die("read");
        got += (size_t)n;
    }
    finish(&write_cb);
    say("the write completes", "%s", state(&write_cb));
}

/* Cancels requests behind a write that waits for room, whatever part of it was written by then. */
static void behind_writes(void)
{
    enum { N = 3000, MORE = (64 << 10) + 1 };
    static char lots[MORE], taken[MORE];
    int gone = 0, waits = 0;
    for (int i = 0; i < N; i++) {
        int ends[2];
        make_pipe(ends);
        struct aiocb write_cb = block(ends[1], lots, sizeof lots, 0),
                     behind = block(ends[1], "x", 1, 0);
        if (aio_write(&write_cb) || aio_write(&behind))
            die("aio_write");
        gone += aio_cancel(ends[1], &behind) == AIO_CANCELED;
        waits += aio_error(&write_cb) == EINPROGRESS;
        for (size_t got = 0; got < sizeof lots;) {
            ssize_t n = read(ends[0], taken, sizeof taken);
            if (n <= 0)
                die("read");
            got += (size_t)n;
        }
        finish(&write_cb);
        finish(&behind);
        close(ends[0]);
        close(ends[1]);
    }
    say("[aio_cancel AIO_CANCELED] 3000 times a write behind one that waits",
        "%d cancelled, %d waited", gone, waits);
}

static void sockets(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    struct aiocb receive = block(pair[0], buf[0], 16, 0), second = block(pair[0], buf[1], 16, 0);
    if (aio_read(&receive) || aio_read(&second))
        die("aio_read");
    cancelled("[aio_cancel AIO_NOTCANCELED] a read of a socket that waits", pair[0], &receive);
    cancelled("[aio_cancel AIO_CANCELED] a read of the socket behind it", pair[0], &second);
    put(pair[1], "hello");
    finish(&receive);
    say("the read of the socket", "%s", state(&receive));
}

/* Cancels many requests on a regular file: each is either done or cancelled, and reports which. */
static void regular(void)
{
    enum { N = 500 };
    static struct aiocb cbs[N];
    int fd = temp_file(PAGE), right = 0, called = 0;
    for (int i = 0; i < N; i++) {
        cbs[i] = block(fd, buf[i % 8], 16, 0);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = N; i-- > 0;) {
        int got = aio_cancel(fd, &cbs[i]);
        called += got == AIO_CANCELED || got == AIO_ALLDONE || got == AIO_NOTCANCELED;
        int error = got == AIO_NOTCANCELED ? finish(&cbs[i]) : aio_error(&cbs[i]);
        right += got == AIO_CANCELED ? error == ECANCELED && aio_return(&cbs[i]) == -1
                                     : error == 0 && aio_return(&cbs[i]) == 16;
    }
    say("[aio_cancel race] 500 reads of a file, each cancelled", "%d answers, %d right", called,
        right);
    for (int i = 0; i < N; i++)
        if (aio_read(&cbs[i]))
            die("aio_read");
    int got = aio_cancel(fd, NULL), done = 0, gone = 0;
    for (int i = 0; i < N; i++) {
        int error = finish(&cbs[i]);
        done += error == 0 && aio_return(&cbs[i]) == 16;
        gone += error == ECANCELED && aio_return(&cbs[i]) == -1;
    }
    yes("[aio_cancel race] 500 reads of a file, all cancelled at once",
        got >= 0 && (got != AIO_ALLDONE || gone == 0) && done + gone == N);
    close(fd);
}

int main(void)
{
    in_child(nothing_runs);
    in_child(running);
    in_child(queued);
    in_child(all);
    in_child(queued_sync);
    in_child(writes);
    in_child(behind_writes);
    in_child(sockets);
    regular();
    return 0;
}
