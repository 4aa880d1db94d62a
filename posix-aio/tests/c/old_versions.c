/* The symbol versions that programs from before glibc 2.34 ask for. */
#include "common.h"

static unsigned char buf[4][PAGE];
static sigset_t set;

typedef int one(struct aiocb *);
typedef int listed(int, struct aiocb *const *, int, struct sigevent *);

/* Returns the old version of a function. It must be in the library that has the default version,
 * which is the one under test. */
static void *old(const char *name, const char *version)
{
    Dl_info here, there;
    void *found = dlvsym(RTLD_DEFAULT, name, version), *usual = dlsym(RTLD_DEFAULT, name);
    if (!found)
        return NULL;
    if (!usual || !dladdr(found, &here) || !dladdr(usual, &there) ||
        strcmp(here.dli_fname, there.dli_fname))
        die("%s@%s is in another library than %s", name, version, name);
    return found;
}

static void versions(void)
{
    static const char *const names[] = {
        "aio_read",     "aio_write",   "aio_fsync",    "aio_error",     "aio_return",
        "aio_suspend",  "aio_cancel",  "lio_listio",   "aio_read64",    "aio_write64",
        "aio_fsync64",  "aio_error64", "aio_return64", "aio_suspend64", "aio_cancel64",
        "lio_listio64", "aio_init"};
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.4", "GLIBC_2.34", "GLIBC_2.1"};
    for (size_t v = 0; v < COUNT(versions); v++) {
        int found = 0;
        for (size_t i = 0; i < COUNT(names); i++)
            found += old(names[i], versions[v]) != NULL;
        say(versions[v], "%d of 17 names", found);
    }
    yes("lio_listio@GLIBC_2.2.5 is other code",
        old("lio_listio", "GLIBC_2.2.5") != old("lio_listio", "GLIBC_2.4"));
    yes("aio_read@GLIBC_2.2.5 is the same code",
        old("aio_read", "GLIBC_2.2.5") == old("aio_read", "GLIBC_2.34"));
}

static void plain(void)
{
    int fd = temp_file(PAGE);
    struct aiocb cb = block(fd, buf[0], 16, 0);
    request("[aio_read old version] aio_read@GLIBC_2.2.5", (one *)old("aio_read", "GLIBC_2.2.5"),
            &cb);
    request("[aio_write old version] aio_write@GLIBC_2.2.5", (one *)old("aio_write", "GLIBC_2.2.5"),
            &cb);
    int (*cancel)(int, struct aiocb *) =
        (int (*)(int, struct aiocb *))old("aio_cancel", "GLIBC_2.2.5");
    int (*sync)(int, struct aiocb *) =
        (int (*)(int, struct aiocb *))old("aio_fsync", "GLIBC_2.2.5");
    int (*suspend)(const struct aiocb *const *, int, const struct timespec *) =
        (int (*)(const struct aiocb *const *, int, const struct timespec *))old("aio_suspend",
                                                                                "GLIBC_2.2.5");
    const struct aiocb *list[] = {&cb};
    say("[aio_cancel old version] aio_cancel@GLIBC_2.2.5", "%d", cancel(fd, &cb));
    say("[aio_fsync old version] aio_fsync@GLIBC_2.2.5", "%s", call(sync(O_SYNC, &cb)));
    while (aio_error(&cb) == EINPROGRESS)
        suspend(list, 1, NULL);
    say("[aio_suspend old version] aio_suspend@GLIBC_2.2.5", "%s", call(suspend(list, 1, NULL)));
    say("[aio_error old version; aio_return old version] aio_error and aio_return@GLIBC_2.2.5",
        "%d, %ld", ((int (*)(const struct aiocb *))old("aio_error", "GLIBC_2.2.5"))(&cb),
        (long)((ssize_t (*)(struct aiocb *))old("aio_return", "GLIBC_2.2.5"))(&cb));
    close(fd);
}

/* Prints which of the two signals come: the list's, the request's. */
static void lists(const char *version)
{
    listed *list = (listed *)old("lio_listio", version),
           *list64 = (listed *)old("lio_listio64", version);
    int fd = temp_file(PAGE);
    char name[80];
    struct timespec moment = {0, 100000000};
    struct aiocb cb = block(fd, buf[0], 16, 0), bad = block(-1, buf[1], 16, 0),
                 unknown = block(fd, buf[2], 16, 0), priority = cb;
    if (!list || !list64) {
        say(version, "not there");
        return;
    }
    snprintf(name, sizeof name, "%s, lio_listio and lio_listio64 are one", version);
    yes(name, list == list64);
    cb.aio_sigevent = (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    bad.aio_lio_opcode = LIO_WRITE;
    unknown.aio_lio_opcode = 77;
    priority.aio_reqprio = 21;
    for (int mode = LIO_WAIT; mode <= LIO_NOWAIT; mode++) {
        const char *how = mode == LIO_WAIT ? "LIO_WAIT" : "LIO_NOWAIT";
        int got = list(mode, (struct aiocb *[]){&cb}, 1, &event), error = errno, seen[2] = {0, 0},
            number;
        finish(&cb);
        while ((number = sigtimedwait(&set, NULL, &moment)) > 0)
            seen[number - SIGRTMIN]++;
        snprintf(name, sizeof name, "[lio_listio old version] %s, %s", version, how);
        say(name, "%s, %d signals of the list, %d of the request; %s", code(got ? -error : 0),
            seen[0], seen[1], state(&cb));
        struct {
            const char *what;
            struct aiocb *cb;
        } others[] = {{"a failing one", &bad},
                      {"an unknown opcode", &unknown},
                      {"priority 21", &priority},
                      {"NULL", NULL}};
        for (size_t i = 0; i < COUNT(others); i++) {
            got = list(mode, (struct aiocb *[]){others[i].cb}, 1, &event);
            error = errno;
            seen[0] = seen[1] = 0;
            if (others[i].cb)
                finish(others[i].cb);
            while ((number = sigtimedwait(&set, NULL, &moment)) > 0)
                seen[number - SIGRTMIN]++;
            snprintf(name, sizeof name, "[lio_listio old version] %s, %s, %s", version, how,
                     others[i].what);
            say(name, "%s, %d signals of the list, %d of the request", code(got ? -error : 0),
                seen[0], seen[1]);
        }
    }
    close(fd);
}

static int gate[2];

static void *open_gate(void *tid)
{
    until_asleep((pid_t)(intptr_t)tid);
    put(gate[1], "x");
    return NULL;
}

/* Does LIO_WAIT wait? If not, the call returns before the other thread writes to the pipe. */
static void waits(const char *name, const char *version)
{
    pthread_t thread;
    make_pipe(gate);
    struct aiocb cb = block(gate[0], buf[0], 16, 0);
    listed *list = (listed *)old("lio_listio", version);
    if (pthread_create(&thread, NULL, open_gate, (void *)(intptr_t)getpid()))
        die("pthread_create");
    if (list(LIO_WAIT, (struct aiocb *[]){&cb}, 1, NULL))
        die("lio_listio");
    say(name, "%s", state(&cb));
    finish(&cb);
    pthread_join(thread, NULL);
}

int main(void)
{
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    versions();
    plain();
    waits("[lio_listio old version] GLIBC_2.2.5, LIO_WAIT, one that blocks", "GLIBC_2.2.5");
    waits("[lio_listio old version] GLIBC_2.4, LIO_WAIT, one that blocks", "GLIBC_2.4");
    lists("GLIBC_2.2.5");
    lists("GLIBC_2.4");
    return 0;
}
