/* Functions with and without the suffix 64, on the same control blocks, which have one layout. */
#include "common.h"

static unsigned char buf[PAGE];

/* Copies a control block into the type of the 64 functions, whatever the value of
 * _FILE_OFFSET_BITS. */
static struct aiocb64 wide(struct aiocb *cb)
{
    struct aiocb64 copy;
    memcpy(&copy, cb, sizeof copy);
    return copy;
}

static const char *wide_state(struct aiocb64 *cb)
{
    return state((struct aiocb *)cb);
}

static int finish64(struct aiocb64 *cb)
{
    const struct aiocb64 *list[] = {cb};
    while (aio_error64(cb) == EINPROGRESS)
        if (aio_suspend64(list, 1, NULL) && errno != EINTR)
            die("aio_suspend64");
    return aio_error64(cb);
}

static void mixed(void)
{
    int fd = temp_file(4 * PAGE);
    struct aiocb cb = block(fd, buf, 16, PAGE);
    struct aiocb64 cb64 = wide(&cb);
    say("sizes", "%zu %zu", sizeof cb, sizeof cb64);
    say("[aio_read mixed names] aio_read64", "%s", call(aio_read64(&cb64)));
    say("[aio_error mixed names; aio_suspend mixed names] aio_error64, aio_suspend64", "%d",
        finish64(&cb64));
    say("[aio_return mixed names] aio_return64", "%ld", (long)aio_return64(&cb64));
    say("aio_error, aio_return of the same", "%s", wide_state(&cb64));
    yes("its bytes", holds(buf, 16, PAGE));
    say("[aio_write mixed names] aio_write64", "%s", call(aio_write64(&cb64)));
    finish64(&cb64);
    say("the write", "%s", wide_state(&cb64));
    say("[aio_fsync mixed names] aio_fsync64", "%s", call(aio_fsync64(O_SYNC, &cb64)));
    finish64(&cb64);
    say("the sync", "%s", wide_state(&cb64));
    say("[aio_cancel mixed names] aio_cancel64 of a finished one", "%d", aio_cancel64(fd, &cb64));
    say("[aio_cancel mixed names] aio_cancel64 of all", "%d", aio_cancel64(fd, NULL));
    cb64.aio_lio_opcode = LIO_READ;
    struct aiocb64 *list[] = {&cb64};
    say("[lio_listio mixed names] lio_listio64", "%s", call(lio_listio64(LIO_WAIT, list, 1, NULL)));
    say("the list's read", "%s", wide_state(&cb64));
    /* One kind of name submits, and the other kind asks, waits and cancels. */
    int ends[2];
    make_pipe(ends);
    struct aiocb first = block(ends[0], buf, 1, 0);
    struct aiocb64 second = wide(&first);
    if (aio_read(&first) || aio_read64(&second))
        die("aio_read");
    say("aio_error64 of a plain one", "%s", strerrorname_np(aio_error64((struct aiocb64 *)&first)));
    say("[aio_cancel mixed names] aio_cancel of a 64 one", "%d",
        aio_cancel(ends[0], (struct aiocb *)&second));
    say("its state", "%s", wide_state(&second));
    put(ends[1], "x");
    say("aio_suspend64 for a plain one", "%d", finish64((struct aiocb64 *)&first));
    say("aio_return64 of a plain one", "%ld", (long)aio_return64((struct aiocb64 *)&first));
    close(fd);
}

/* dlsym finds every name, and each library has the same function for both kinds. */
static void looked_up(void)
{
    static const char *const names[] = {"aio_read",   "aio_write",   "aio_fsync",  "aio_error",
                                        "aio_return", "aio_suspend", "aio_cancel", "lio_listio"};
    int same = 0, found = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        char name64[32];
        snprintf(name64, sizeof name64, "%s64", names[i]);
        void *plain = dlsym(RTLD_DEFAULT, names[i]), *other = dlsym(RTLD_DEFAULT, name64);
        found += plain && other;
        same += plain == other;
    }
    say("names by dlsym", "%d found, %d pairs with one address", found, same);
    yes("aio_init by dlsym", dlsym(RTLD_DEFAULT, "aio_init") != NULL);
    say("sysconf", "%s, AIO_PRIO_DELTA_MAX %ld",
        sysconf(_SC_ASYNCHRONOUS_IO) > 0 ? "asynchronous I/O" : "none",
        sysconf(_SC_AIO_PRIO_DELTA_MAX));
}

int main(void)
{
    looked_up();
    mixed();
    return 0;
}
