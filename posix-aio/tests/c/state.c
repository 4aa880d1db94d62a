/* aio_error and aio_return before, during and after a request; control blocks used again. */
#include "common.h"

static unsigned char buf[PAGE];

static void never(void)
{
    struct aiocb cb;
    memset(&cb, 0, sizeof cb);
    say("[aio_error never submitted] error of a zeroed block", "%d", aio_error(&cb));
    say("[aio_return never submitted] return of a zeroed block", "%ld", (long)aio_return(&cb));
    say("[aio_error never submitted] error of a zeroed block after its return", "%d",
        aio_error(&cb));
    int fd = temp_file(0);
    cb.aio_fildes = fd;
    cancelled("[aio_cancel never submitted] cancel a zeroed block", fd, &cb);
    const struct aiocb *list[] = {&cb};
    say("[aio_suspend success] wait for a zeroed block", "%s", call(aio_suspend(list, 1, NULL)));
    close(fd);
}

static void running(void)
{
    int ends[2];
    make_pipe(ends);
    struct aiocb cb = block(ends[0], buf, 16, 0);
    say("[aio_read success] submit", "%s", call(aio_read(&cb)));
    say("[aio_error EINPROGRESS] while", "%s", state(&cb));
    errno = 0;
    say("[aio_return EINPROGRESS] return while", "%s", call(aio_return(&cb)));
    say("[aio_error EINPROGRESS] error after that", "%s", state(&cb));
    put(ends[1], "hello");
    finish(&cb);
    say("[aio_error 0] error after", "%d", aio_error(&cb));
    say("[aio_return success] return after", "%s", call(aio_return(&cb)));
    say("[aio_error 0] error after return", "%d", aio_error(&cb));
    say("[aio_return twice] return, twice", "%s", call(aio_return(&cb)));
    say("[aio_return twice] return, three times", "%s", call(aio_return(&cb)));
    say("[aio_read success] submit it again", "%s", call(aio_read(&cb)));
    say("[aio_return EINPROGRESS] return while, after an earlier use", "%s", call(aio_return(&cb)));
    close(ends[1]);
    finish(&cb);
    say("[aio_return success] return after the second use", "%s", state(&cb));
    close(ends[0]);
}

static void failed(void)
{
    struct aiocb cb = block(-1, buf, 16, 0);
    if (aio_read(&cb))
        die("aio_read");
    finish(&cb);
    say("[aio_error an errno] error of one that failed", "%s", strerrorname_np(aio_error(&cb)));
    errno = EDOM;
    ssize_t got = aio_return(&cb);
    say("[aio_return error] return of one that failed", "%ld", (long)got);
    /* The manual page says that errno is set; glibc does not change it. */
    say("[aio_return error] errno then", "%s", strerrorname_np(errno));
    say("[aio_return twice] return of one that failed, twice", "%ld", (long)aio_return(&cb));
    say("[aio_error an errno] error of one that failed, after return", "%s",
        strerrorname_np(aio_error(&cb)));
}

/* Successful calls do not change errno. */
static void errno_kept(void)
{
    int fd = temp_file(PAGE), kept = 0;
    struct aiocb cb = block(fd, buf, 16, 0);
    const struct aiocb *list[] = {&cb};
    errno = EDOM;
    if (aio_read(&cb))
        die("aio_read");
    kept += errno == EDOM;
    while (aio_error(&cb) == EINPROGRESS)
        ;
    kept += errno == EDOM;
    aio_return(&cb);
    kept += errno == EDOM;
    aio_suspend(list, 1, NULL);
    kept += errno == EDOM;
    aio_cancel(fd, NULL);
    kept += errno == EDOM;
    say("calls that leave errno alone", "%d of 5", kept);
    close(fd);
}

static void again(void)
{
    int fd = temp_file(16 * PAGE), right = 0;
    struct aiocb cb = block(fd, buf, PAGE, 0);
    for (int i = 0; i < 1000; i++) {
        cb.aio_offset = i % 16 * PAGE;
        memset(buf, 0, 16);
        if ((i & 1 ? aio_write(&cb) : aio_read(&cb)) != 0)
            die("submit");
        right += finish(&cb) == 0 && aio_return(&cb) == PAGE;
    }
    say("[aio_read success; aio_write success] one block 1000 times", "%d right", right);
    /* The program never calls aio_return. */
    for (int i = 0; i < 100; i++) {
        cb.aio_offset = 0;
        if (aio_read(&cb))
            die("submit");
        finish(&cb);
    }
    say("[aio_return success] again and again without return", "%s", state(&cb));
    memset(&cb, 0, sizeof cb);
    say("[aio_error never submitted] zeroed after use", "%s", state(&cb));
    cb = block(-1, buf, 16, 0);
    aio_read(&cb);
    finish(&cb);
    cb = block(fd, buf, 16, 0);
    request("[aio_read success] a good one after a bad one", aio_read, &cb);
    close(fd);
}

/* The library finds blocks by their address. Blocks may be copied when they are done. */
static void copies(void)
{
    int fd = temp_file(PAGE);
    struct aiocb cb = block(fd, buf, 16, 0);
    request("[aio_read success] the first", aio_read, &cb);
    struct aiocb copy = cb;
    say("[aio_error 0; aio_return success] a copy of a finished block", "%s", state(&copy));
    copy.aio_offset = 100;
    request("[aio_read success] the copy submitted", aio_read, &copy);
    close(fd);
}

int main(void)
{
    never();
    running();
    failed();
    errno_kept();
    again();
    copies();
    return 0;
}
