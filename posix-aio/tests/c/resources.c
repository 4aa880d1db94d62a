/* No thread can be started: POSIX calls this EAGAIN. */
#include "common.h"
#include <sys/resource.h>

static unsigned char buf[PAGE];
static int fd;

static void *nothing(void *argument)
{
    return argument;
}

/* Lets no thread start: the user may have one thread, and this one counts. Root has no such limit,
 * and becomes another user first. */
static void no_threads(void)
{
    struct rlimit limit = {1, 1};
    if (getuid() == 0 && setresuid(65534, 65534, 65534))
        skip("root without the right to become somebody else");
    if (setrlimit(RLIMIT_NPROC, &limit))
        die("setrlimit");
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) == 0)
        skip("RLIMIT_NPROC is not enforced here");
}

static int sync_it(struct aiocb *cb)
{
    return aio_fsync(O_SYNC, cb);
}

static void one(const char *name, int (*submit)(struct aiocb *))
{
    struct aiocb cb = block(fd, buf, 16, 0);
    no_threads();
    int got = submit(&cb);
    if (got) {
        const char *why = call(got);
        say(name, "refused %s, then %s", why, state(&cb));
    } else {
        finish(&cb);
        say(name, "%s", state(&cb));
    }
}

static void reads(void)
{
    one("[aio_read EAGAIN] a read without a thread", aio_read);
}

static void writes(void)
{
    one("[aio_write EAGAIN] a write without a thread", aio_write);
}

static void syncs(void)
{
    one("[aio_fsync EAGAIN] a sync without a thread", sync_it);
}

static void list(const char *name, int mode)
{
    struct aiocb cb = block(fd, buf, 16, 0);
    no_threads();
    int got = lio_listio(mode, (struct aiocb *[]){&cb}, 1, NULL);
    const char *why = call(got);
    finish(&cb);
    say(name, "%s, then %s", why, state(&cb));
}

static void waiting_list(void)
{
    list("[lio_listio EAGAIN] a list that waits, without a thread", LIO_WAIT);
}

static void other_list(void)
{
    list("[lio_listio EAGAIN] a list that does not wait, without a thread", LIO_NOWAIT);
}

int main(void)
{
    fd = temp_file(PAGE);
    in_child(reads);
    in_child(writes);
    in_child(syncs);
    in_child(waiting_list);
    in_child(other_list);
    return 0;
}
