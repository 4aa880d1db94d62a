/* No memory for a thread: what POSIX calls EAGAIN. */
#include "common.h"
#include <sys/resource.h>

static unsigned char buf[PAGE];
static int fd;

/* As little address space as the program has: not even a small stack fits. */
static void no_more_memory(void)
{
    unsigned long pages_used;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages_used) != 1)
        die("statm");
    fclose(file);
    struct rlimit limit = {pages_used * PAGE, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit))
        die("setrlimit");
}

static void more_memory(void)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit))
        die("setrlimit");
}

static int sync_it(struct aiocb *cb)
{
    return aio_fsync(O_SYNC, cb);
}

static void one(const char *name, const char *later, int (*submit)(struct aiocb *))
{
    struct aiocb cb = block(fd, buf, 16, 0);
    no_more_memory();
    int got = submit(&cb);
    if (got) {
        const char *why = call(got);
        say(name, "refused %s, then %s", why, state(&cb));
    } else {
        finish(&cb);
        say(name, "%s", state(&cb));
    }
    more_memory();
    request(later, submit, &cb);
}

static void reads(void)
{
    one("[aio_read EAGAIN] a read without memory", "a read when there is memory again", aio_read);
}

static void writes(void)
{
    one("[aio_write EAGAIN] a write without memory", "a write when there is memory again", aio_write);
}

static void syncs(void)
{
    one("[aio_fsync EAGAIN] a sync without memory", "a sync when there is memory again", sync_it);
}

static void list(const char *name, int mode)
{
    struct aiocb cb = block(fd, buf, 16, 0);
    no_more_memory();
    int got = lio_listio(mode, (struct aiocb *[]){&cb}, 1, NULL);
    const char *why = call(got);
    finish(&cb);
    say(name, "%s, then %s", why, state(&cb));
    more_memory();
}

static void waiting_list(void)
{
    list("[lio_listio EAGAIN] a list that waits, without memory", LIO_WAIT);
}

static void other_list(void)
{
    list("[lio_listio EAGAIN] a list that does not wait, without memory", LIO_NOWAIT);
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
