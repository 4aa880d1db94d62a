/* The calls by number, through libc's syscall(): the same contexts, errors in errno, other
 * numbers untouched. */
#include "common.h"

static const long kept = 4711;

/* The result of a call by its number. A call that succeeds must have preserved errno. */
static long by_number(long value)
{
    if (value < 0)
        return value == -1 ? -errno : -9999;
    return errno == kept ? value : -9998;
}

#define CALL(...) (errno = kept, by_number(syscall(__VA_ARGS__)))

struct sigset {
    const void *mask;
    size_t size;
};

static long setup_by_number(unsigned n, io_context_t *ctx)
{
    return CALL(SYS_io_setup, n, ctx);
}

static long submit_by_number(io_context_t ctx, long n, struct iocb **list)
{
    return CALL(SYS_io_submit, ctx, n, list);
}

static long get_by_number(io_context_t ctx, long min, long nr, struct io_event *events,
                          const struct timespec *time)
{
    return CALL(SYS_io_getevents, ctx, min, nr, events, time);
}

static long pget_by_number(io_context_t ctx, long min, long nr, struct io_event *events,
                           const struct timespec *time, const struct sigset *set)
{
    return CALL(SYS_io_pgetevents, ctx, min, nr, events, time, set);
}

static void both_doors(int fd)
{
    io_context_t ctx = NULL;
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    static unsigned char buf[PAGE];
    struct timespec minute = {60, 0}, zero = {0, 0};
    answer("setup", setup_by_number(8, &ctx));
    yes("a handle", ctx != NULL);
    yes("with a ring", ((struct ring *)ctx)->magic == 0xa10a10a1);
    io_prep_pread(&iocb, fd, buf, PAGE, PAGE);
    iocb.data = (void *)99;
    answer("submit", submit_by_number(ctx, 1, &list));
    answer("getevents", get_by_number(ctx, 1, 1, &event, &minute));
    yes("its event",
        event.obj == &iocb && event.data == (void *)99 && event.res == PAGE && event.res2 == 0);
    yes("its bytes", holds(buf, PAGE, PAGE));
    request(ctx, "the same context through libaio", &iocb);
    answer("submitted through libaio", submit1(ctx, &iocb));
    answer("reaped by number", get_by_number(ctx, 1, 1, &event, &minute));
    answer("submitted by number", submit_by_number(ctx, 1, &list));
    answer("reaped through libaio", io_getevents(ctx, 1, 1, &event, &minute));
    answer("submitted by number again", submit_by_number(ctx, 1, &list));
    answer("reaped by number with a mask", pget_by_number(ctx, 1, 1, &event, &minute, NULL));
    answer("destroyed through libaio", io_destroy(ctx));
    answer("destroy by number, again", CALL(SYS_io_destroy, ctx));
    answer("getevents of the destroyed", get_by_number(ctx, 1, 1, &event, &zero));

    ctx = setup(8);
    answer("made by libaio, submit by number", submit_by_number(ctx, 1, &list));
    answer("made by libaio, getevents by number", get_by_number(ctx, 1, 1, &event, NULL));
    answer("made by libaio, destroy by number", CALL(SYS_io_destroy, ctx));
    answer("destroy through libaio, again", io_destroy(ctx));
}

static void errors(int fd)
{
    io_context_t ctx = (io_context_t)1;
    struct iocb iocb, *list = &iocb, *bad = UNMAPPED;
    struct io_event event, events[4];
    static unsigned char buf[PAGE];
    struct timespec zero = {0, 0}, tenth = {0, 100000000};
    answer("setup over a handle", setup_by_number(8, &ctx));
    ctx = NULL;
    answer("setup of 0", setup_by_number(0, &ctx));
    answer("setup of UINT_MAX", setup_by_number(UINT_MAX, &ctx));
    answer("setup to NULL", setup_by_number(8, NULL));
    answer("setup to a bad address", setup_by_number(8, UNMAPPED));
    answer("setup to a kernel address", setup_by_number(8, KERNEL_ADDRESS));
    yes("the handle is left alone", ctx == NULL);
    answer("setup for errors", setup_by_number(8, &ctx));

    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    answer("submit to NULL", submit_by_number(NULL, 1, &list));
    answer("submit of -1", submit_by_number(ctx, -1, &list));
    answer("submit of 0", submit_by_number(ctx, 0, &list));
    answer("submit of a bad list", submit_by_number(ctx, 1, UNMAPPED));
    answer("submit of a bad block", submit_by_number(ctx, 1, &bad));
    iocb.aio_fildes = -1;
    answer("submit of descriptor -1", submit_by_number(ctx, 1, &list));
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    iocb.aio_lio_opcode = 4711;
    answer("submit of an unknown opcode", submit_by_number(ctx, 1, &list));

    /* Unlike libaio's function, the call checks all of its arguments. */
    answer("min above nr, no time", get_by_number(ctx, 2, 1, events, &zero));
    answer("min -1, no time", get_by_number(ctx, -1, 1, events, &zero));
    answer("nr -1, no time", get_by_number(ctx, 0, -1, events, &zero));
    answer("both -1", get_by_number(ctx, -1, -1, events, &zero));
    answer("getevents of NULL", get_by_number(NULL, 1, 1, events, &zero));
    answer("getevents of NULL, bad time", get_by_number(NULL, 1, 1, events, UNMAPPED));
    answer("bad time", get_by_number(ctx, 1, 1, events, UNMAPPED));
    answer("empty, no time", get_by_number(ctx, 1, 4, events, &zero));
    answer("empty, to NULL, no time", get_by_number(ctx, 1, 4, NULL, &zero));
    double start = now();
    answer("empty, 100 ms", get_by_number(ctx, 1, 4, events, &tenth));
    yes("that took 100 ms", now() - start >= 0.1);

    sigset_t none;
    sigemptyset(&none);
    struct sigset set = {&none, 8}, odd = {&none, 16}, empty = {NULL, 99},
                  unmapped_mask = {UNMAPPED, 8}, both = {UNMAPPED, 16};
    answer("pgetevents, a mask", pget_by_number(ctx, 1, 4, events, &zero, &set));
    answer("pgetevents, a mask of 16 bytes", pget_by_number(ctx, 1, 4, events, &zero, &odd));
    answer("pgetevents, no mask of 99 bytes", pget_by_number(ctx, 1, 4, events, &zero, &empty));
    answer("pgetevents, mask at a bad address",
           pget_by_number(ctx, 1, 4, events, &zero, &unmapped_mask));
    answer("pgetevents, bad mask of 16 bytes", pget_by_number(ctx, 1, 4, events, &zero, &both));
    answer("pgetevents, bad argument", pget_by_number(ctx, 1, 4, events, &zero, UNMAPPED));
    answer("pgetevents, bad time, odd mask", pget_by_number(ctx, 1, 4, events, UNMAPPED, &odd));
    answer("pgetevents, NULL context, odd mask", pget_by_number(NULL, 1, 4, events, &zero, &odd));
    answer("pgetevents, NULL context, bad argument",
           pget_by_number(NULL, 1, 4, events, &zero, UNMAPPED));
    answer("pgetevents, NULL context", pget_by_number(NULL, 1, 4, events, &zero, &set));
    answer("pgetevents, min above nr, no time", pget_by_number(ctx, 2, 1, events, &zero, &set));

    int ends[2];
    if (pipe(ends))
        die("pipe");
    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("submit a poll", submit_by_number(ctx, 1, &list));
    answer("cancel NULL", CALL(SYS_io_cancel, ctx, NULL, &event));
    answer("cancel in NULL", CALL(SYS_io_cancel, NULL, &iocb, &event));
    answer("cancel the poll", CALL(SYS_io_cancel, ctx, &iocb, &event));
    answer("cancel it again", CALL(SYS_io_cancel, ctx, &iocb, &event));
    answer("the poll's event", get_by_number(ctx, 1, 1, &event, NULL));
    answer("the poll's result", (long)event.res);
    answer("destroy NULL", CALL(SYS_io_destroy, NULL));
    answer("destroy a bad address", CALL(SYS_io_destroy, UNMAPPED));
    answer("destroy what had errors", CALL(SYS_io_destroy, ctx));
}

static volatile sig_atomic_t handled;

static void handler(int signal)
{
    (void)signal;
    handled++;
}

static void signals(void)
{
    io_context_t ctx = setup(4);
    struct io_event event;
    struct timespec minute = {60, 0}, zero = {0, 0};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigset_t usr1, none;
    struct sigset set = {&none, 8};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    raise(SIGUSR1);
    answer("pending, no time", pget_by_number(ctx, 1, 1, &event, &zero, &set));
    say("handled", "%d", (int)handled);
    raise(SIGUSR1);
    answer("pending, a minute", pget_by_number(ctx, 1, 1, &event, &minute, &set));
    say("handled in all", "%d", (int)handled);
    struct itimerval timer = {{0, 20000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    answer("an alarm", get_by_number(ctx, 1, 1, &event, NULL));
    setitimer(ITIMER_REAL, &never, NULL);
    answer("destroy after signals", CALL(SYS_io_destroy, ctx));
}

/* Makes calls with six, fewer and no arguments, with answers of every size, and with errors. */
static void other_numbers(int fd)
{
    static unsigned char buf[PAGE];
    yes("getpid", CALL(SYS_getpid) == getpid());
    yes("gettid", syscall(SYS_gettid) == gettid());
    answer("close of -1", CALL(SYS_close, -1));
    answer("pread64", CALL(SYS_pread64, fd, buf, PAGE, PAGE));
    yes("its four arguments arrived", holds(buf, PAGE, PAGE));
    unsigned char *map =
        (unsigned char *)syscall(SYS_mmap, NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 2 * PAGE);
    yes("mmap, six arguments arrived", (intptr_t)map > 0 && holds(map, PAGE, 2 * PAGE));
    answer("munmap", CALL(SYS_munmap, map, PAGE));
    answer("no such call", CALL(4711));
    answer("a negative number", CALL(-1));
    answer("an address as a result", CALL(SYS_lseek, fd, 0x123456789aL, SEEK_SET) == 0x123456789aL);
    answer("readv of a bad address", CALL(SYS_readv, fd, UNMAPPED, 1));
    uint32_t word = 1;
    struct timespec moment = {0, 1000000};
    answer("futex, timeout", CALL(SYS_futex, &word, 0, 1, &moment, NULL, 0));
    answer("the number before the first", CALL(SYS_io_setup - 1, 0, 0));
    answer("the number after the last", CALL(SYS_io_cancel + 1, 0));
}

int main(void)
{
    int fd = temp_file(4 * PAGE);
    both_doors(fd);
    errors(fd);
    signals();
    other_numbers(fd);
    return 0;
}
