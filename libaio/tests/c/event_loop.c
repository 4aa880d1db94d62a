/* Event loops: direct requests signalled by an eventfd, and threads that wait for it in poll,
 * select or epoll. Each completion raises the eventfd's count by one, and is in the ring when the
 * wait returns. */
#include "common.h"
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define ROUNDS 100
#define DEPTH 4

enum how { POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_EDGE, EPOLL_ONESHOT, EPOLL_PWAIT, HOWS };

static const char *const names[HOWS] = {"poll",          "ppoll",           "select",
                                        "pselect",       "epoll",           "epoll, edges",
                                        "epoll, one shot", "epoll_pwait"};

static int file;
static unsigned char *buffer;

struct loop {
    io_context_t ctx;
    int counter, epoll;
    enum how how;
    struct iocb iocbs[DEPTH];
};

static void arm(struct loop *loop, int op)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = loop};
    if (loop->how == EPOLL_EDGE)
        event.events |= EPOLLET;
    if (loop->how == EPOLL_ONESHOT)
        event.events |= EPOLLONESHOT;
    if (epoll_ctl(loop->epoll, op, loop->counter, &event))
        die("epoll_ctl");
}

static void make(struct loop *loop, enum how how)
{
    loop->ctx = setup(16);
    loop->how = how;
    loop->counter = eventfd(0, EFD_NONBLOCK);
    loop->epoll = epoll_create1(0);
    if (loop->counter < 0 || loop->epoll < 0)
        die("descriptors");
    arm(loop, EPOLL_CTL_ADD);
}

static void end(struct loop *loop)
{
    if (io_destroy(loop->ctx))
        die("io_destroy");
    close(loop->counter);
    close(loop->epoll);
}

/* Waits for the eventfd at most `ms` milliseconds, or without end if `ms` is negative. */
static int await(struct loop *loop, int ms)
{
    struct pollfd set = {loop->counter, POLLIN, 0};
    struct timespec spec = {ms / 1000, ms % 1000 * 1000000};
    struct timeval val = {ms / 1000, ms % 1000 * 1000};
    struct epoll_event event;
    fd_set bits;
    FD_ZERO(&bits);
    FD_SET(loop->counter, &bits);
    int got;
    switch (loop->how) {
    case POLL:
        got = poll(&set, 1, ms);
        return got == 1 && set.revents != POLLIN ? -1 : got;
    case PPOLL:
        got = ppoll(&set, 1, ms < 0 ? NULL : &spec, NULL);
        return got == 1 && set.revents != POLLIN ? -1 : got;
    case SELECT:
        got = select(loop->counter + 1, &bits, NULL, NULL, ms < 0 ? NULL : &val);
        return got == 1 && !FD_ISSET(loop->counter, &bits) ? -1 : got;
    case PSELECT:
        got = pselect(loop->counter + 1, &bits, NULL, NULL, ms < 0 ? NULL : &spec, NULL);
        return got == 1 && !FD_ISSET(loop->counter, &bits) ? -1 : got;
    case EPOLL_PWAIT: {
        sigset_t none;
        sigemptyset(&none);
        return epoll_pwait(loop->epoll, &event, 1, ms, &none);
    }
    default:
        got = epoll_wait(loop->epoll, &event, 1, ms);
        if (got == 1 && loop->how == EPOLL_ONESHOT)
            arm(loop, EPOLL_CTL_MOD);
        return got;
    }
}

static void read_at(struct loop *loop, int i, long long offset)
{
    struct iocb *iocb = &loop->iocbs[i];
    io_prep_pread(iocb, file, buffer + i * PAGE, PAGE, offset % 64 * PAGE);
    io_set_eventfd(iocb, loop->counter);
    if (submit1(loop->ctx, iocb) != 1)
        die("io_submit");
}

/* The count of the eventfd. */
static long counted(int counter)
{
    uint64_t value;
    return read(counter, &value, sizeof value) == sizeof value ? (long)value : 0;
}

/* Takes `n` events, which must be in the ring already. */
static void take(io_context_t ctx, long n)
{
    struct io_event events[DEPTH];
    struct timespec now = {0, 0};
    if (io_getevents(ctx, n, n, events, &now) != n)
        die("events are missing");
    for (long i = 0; i < n; i++)
        if (events[i].res != PAGE)
            die("a read: %s", code((long)events[i].res));
}

/* Keeps `depth` requests in flight, and submits one for each that ends. */
static void rounds(struct loop *loop, int depth, const char *when)
{
    long ended = 0, begun = 0, early = 0;
    for (; begun < depth; begun++)
        read_at(loop, (int)begun, begun);
    while (ended < begun) {
        if (await(loop, -1) != 1)
            die("%s", names[loop->how]);
        long count = counted(loop->counter);
        early += ready(loop->ctx) < count;
        take(loop->ctx, count);
        ended += count;
        for (long i = 0; i < count && begun < ROUNDS * depth; i++, begun++)
            read_at(loop, (int)(begun % depth), begun);
    }
    char name[64];
    snprintf(name, sizeof name, "%s, depth %d%s", names[loop->how], depth, when);
    say(name, "%ld counted, %ld too early, %ld more", ended, early, counted(loop->counter));
}

static long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int ends[2];

/* A request that does not end before `let_go`. */
static void hold(struct loop *loop, struct iocb *iocb)
{
    io_prep_poll(iocb, ends[0], POLLIN);
    io_set_eventfd(iocb, loop->counter);
    if (submit1(loop->ctx, iocb) != 1)
        die("io_submit");
}

static void let_go(struct loop *loop)
{
    char byte;
    struct io_event event;
    if (write(ends[1], "x", 1) != 1 || await(loop, -1) != 1)
        die("let go");
    reap(loop->ctx, 1, &event);
    if (read(ends[0], &byte, 1) != 1 || counted(loop->counter) != 1)
        die("let go: counted");
}

static void times(struct loop *loop)
{
    char name[64];
    struct iocb held;
    hold(loop, &held);
    snprintf(name, sizeof name, "%s, no time", names[loop->how]);
    answer(name, await(loop, 0));
    long begin = now_us();
    snprintf(name, sizeof name, "%s, 20 ms", names[loop->how]);
    int got = await(loop, 20);
    say(name, "%d%s", got, now_us() - begin < 19900 ? ", too soon" : "");
    let_go(loop);
}

static volatile sig_atomic_t handled;
static sigjmp_buf place;
static volatile sig_atomic_t jumps;

static void on_signal(int signal)
{
    (void)signal;
    handled++;
    if (jumps)
        siglongjmp(place, 1);
}

static void signals(struct loop *loop)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    struct pollfd set = {loop->counter, POLLIN, 0};
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    struct iocb held;
    hold(loop, &held);
    raise(SIGUSR1);
    say("handled before", "%d", (int)handled);
    answer("ppoll under a mask", ppoll(&set, 1, NULL, &none) < 0 ? -errno : 0);
    say("handled in it", "%d", (int)handled);
    raise(SIGUSR1);
    struct epoll_event event;
    answer("epoll_pwait under a mask",
           epoll_pwait(loop->epoll, &event, 1, -1, &none) < 0 ? -errno : 0);
    raise(SIGUSR1);
    fd_set bits;
    FD_ZERO(&bits);
    FD_SET(loop->counter, &bits);
    answer("pselect under a mask",
           pselect(loop->counter + 1, &bits, NULL, NULL, NULL, &none) < 0 ? -errno : 0);
    yes("the set stays", FD_ISSET(loop->counter, &bits));
    say("handled in all", "%d", (int)handled);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    /* The timer repeats, because its first signal may come before the call. */
    struct itimerval timer = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    answer("poll, and a timer", poll(&set, 1, -1) < 0 ? -errno : 0);
    setitimer(ITIMER_REAL, &off, NULL);
    if (!sigsetjmp(place, 1)) {
        jumps = 1;
        setitimer(ITIMER_REAL, &timer, NULL);
        poll(&set, 1, -1);
        die("no jump");
    }
    setitimer(ITIMER_REAL, &off, NULL);
    jumps = 0;
    let_go(loop);
    say("after a jump out of poll", "%d", await(loop, 0));
    rounds(loop, 2, ", after a jump");
}

static void bad_arguments(struct loop *loop)
{
    struct pollfd set = {loop->counter, POLLIN, 0};
    struct epoll_event event;
    struct timespec wrong = {0, 1000000000};
    answer("poll of a bad address", poll(UNMAPPED, 1, -1) < 0 ? -errno : 0);
    volatile nfds_t many = 1u << 30;
    answer("poll of too many", poll(&set, many, -1) < 0 ? -errno : 0);
    answer("poll of none", poll(NULL, 0, 1));
    answer("ppoll for a wrong time", ppoll(&set, 1, &wrong, NULL) < 0 ? -errno : 0);
    answer("epoll_wait for none", epoll_wait(loop->epoll, &event, 0, -1) < 0 ? -errno : 0);
    answer("epoll_wait on no epoll", epoll_wait(loop->counter, &event, 1, -1) < 0 ? -errno : 0);
    answer("epoll_wait on nothing", epoll_wait(-1, &event, 1, -1) < 0 ? -errno : 0);
    fd_set bits;
    int gone = dup(loop->counter);
    close(gone);
    FD_ZERO(&bits);
    FD_SET(gone, &bits);
    answer("select of what is closed", select(gone + 1, &bits, NULL, NULL, NULL) < 0 ? -errno : 0);
    struct pollfd closed = {gone, POLLIN, 0};
    int got = poll(&closed, 1, -1);
    say("poll of what is closed", "%d, %s", got, closed.revents == POLLNVAL ? "invalid" : "?");
}

/* Three contexts, each with an eventfd of its own, in one epoll. */
static void several(void)
{
    struct loop loops[3];
    long all[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        make(&loops[i], EPOLL);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(loops[0].epoll, i ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, loops[i].counter, &event))
            die("epoll_ctl");
        read_at(&loops[i], 0, i);
    }
    while (all[0] + all[1] + all[2] < 3 * ROUNDS) {
        struct epoll_event events[3];
        int got = epoll_wait(loops[0].epoll, events, 3, -1);
        for (int i = 0; i < got; i++) {
            uint32_t at = events[i].data.u32;
            long count = counted(loops[at].counter);
            take(loops[at].ctx, count);
            all[at] += count;
            if (count && all[at] < ROUNDS)
                read_at(&loops[at], 0, all[at]);
        }
    }
    say("three contexts on one epoll", "%ld %ld %ld", all[0], all[1], all[2]);
    for (int i = 0; i < 3; i++)
        end(&loops[i]);
}

static struct loop shared;
static long taken;

/* Waits, and takes events. If `submits` is set, submits another request for each event. */
static void *works(void *submits)
{
    for (;;) {
        struct pollfd set = {shared.counter, POLLIN, 0};
        if (poll(&set, 1, -1) != 1)
            die("poll");
        if (__atomic_load_n(&taken, __ATOMIC_SEQ_CST) >= 2 * ROUNDS)
            return NULL;
        if (!counted(shared.counter))
            continue;
        struct io_event events[DEPTH];
        struct timespec now = {0, 0};
        long got = io_getevents(shared.ctx, 0, DEPTH, events, &now);
        for (long i = 0; i < got; i++) {
            long number = __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
            if (number >= 2 * ROUNDS) {
                uint64_t one = 1;
                if (write(shared.counter, &one, sizeof one) != sizeof one)
                    die("write");
                return NULL;
            }
            if (submits && submit1(shared.ctx, events[i].obj) != 1)
                die("io_submit");
        }
    }
}

static void two_threads(void)
{
    pthread_t threads[2];
    make(&shared, POLL);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, works, &shared))
            die("pthread_create");
    read_at(&shared, 0, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    say("two threads on one eventfd", "%ld taken", taken);
    end(&shared);
}

/* One thread submits, another one waits. */
static void *waits_only(void *argument)
{
    long *all = argument;
    while (*all < ROUNDS) {
        if (await(&shared, -1) != 1)
            die("poll");
        *all += counted(shared.counter);
    }
    return NULL;
}

static void submitter_and_waiter(void)
{
    pthread_t thread;
    long all = 0;
    make(&shared, POLL);
    if (pthread_create(&thread, NULL, waits_only, &all))
        die("pthread_create");
    for (int i = 0; i < ROUNDS; i++) {
        struct io_event event;
        read_at(&shared, 0, i);
        reap(shared.ctx, 1, &event);
    }
    pthread_join(thread, NULL);
    say("one submits, another waits", "%ld counted", all);
    end(&shared);
}

static volatile pid_t waiting;

static void *is_cancelled(void *argument)
{
    static struct iocb held;
    struct loop *loop = argument;
    rounds(loop, 1, ", in a thread");
    hold(loop, &held);
    waiting = gettid();
    await(loop, -1);
    die("poll came back");
}

static void cancelled(void)
{
    struct loop loop;
    pthread_t thread;
    void *result;
    make(&loop, PPOLL);
    if (pthread_create(&thread, NULL, is_cancelled, &loop))
        die("pthread_create");
    while (!waiting)
        usleep(1000);
    until_asleep(waiting);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    yes("a thread that waits is cancelled", result == PTHREAD_CANCELED);
    loop.how = EPOLL;
    end(&loop);
}

/* In a hole of the file, blocks have to be allocated: the kernel does not accept such a write
 * without waiting. */
static void holes(void)
{
    struct loop loop;
    long all = 0;
    make(&loop, PPOLL);
    int sparse = reopen(temp_file(0), O_RDWR | O_DIRECT);
    if (sparse < 0)
        sparse = temp_file(0);
    for (int i = 0; i < ROUNDS; i++) {
        io_prep_pwrite(&loop.iocbs[0], sparse, buffer, PAGE, (long long)i * 16 * PAGE);
        io_set_eventfd(&loop.iocbs[0], loop.counter);
        if (submit1(loop.ctx, &loop.iocbs[0]) != 1 || await(&loop, -1) != 1)
            die("a write");
        long count = counted(loop.counter);
        take(loop.ctx, count);
        all += count;
    }
    say("writes into holes", "%ld counted", all);
    end(&loop);
}

/* The result of a vectored request on the context of `loop`, or the errno if it is refused. */
static long answers(struct loop *loop, struct iocb *iocb)
{
    struct io_event event;
    io_set_eventfd(iocb, loop->counter);
    int got = submit1(loop->ctx, iocb);
    if (got != 1)
        return got;
    if (await(loop, -1) != 1 || counted(loop->counter) != 1)
        die("a vector");
    reap(loop->ctx, 1, &event);
    return (long)event.res;
}

/* The program overwrites each vector as soon as its submit has returned, as it may do with vectors
 * on its stack. */
static void vectors(void)
{
    struct loop loop;
    struct iocb iocb;
    long right = 0;
    make(&loop, PPOLL);
    int sparse = reopen(temp_file(0), O_RDWR | O_DIRECT);
    if (sparse < 0)
        sparse = temp_file(0);
    struct iovec *vector = pages(PAGE);
    for (int i = 0; i < ROUNDS; i++) {
        memset(buffer, 0, 2 * PAGE);
        vector[0] = (struct iovec){buffer, PAGE};
        vector[1] = (struct iovec){buffer + PAGE, PAGE};
        io_prep_preadv(&iocb, file, vector, 2, (long long)(i % 63) * PAGE);
        io_set_eventfd(&iocb, loop.counter);
        int got = submit1(loop.ctx, &iocb);
        vector[0] = vector[1] = (struct iovec){UNMAPPED, PAGE};
        if (got != 1 || await(&loop, -1) != 1 || counted(loop.counter) != 1)
            die("a vector");
        struct io_event event;
        reap(loop.ctx, 1, &event);
        right += event.res == 2 * PAGE && holds(buffer, 2 * PAGE, i % 63 * PAGE);
    }
    say("vectors that change after their submit", "%ld right", right);
    right = 0;
    for (int i = 0; i < ROUNDS; i++) {
        vector[0] = (struct iovec){buffer, PAGE};
        io_prep_pwritev(&iocb, sparse, vector, 1, (long long)i * 16 * PAGE);
        io_set_eventfd(&iocb, loop.counter);
        int got = submit1(loop.ctx, &iocb);
        vector[0].iov_len = 0;
        if (got != 1 || await(&loop, -1) != 1 || counted(loop.counter) != 1)
            die("a vector");
        struct io_event event;
        reap(loop.ctx, 1, &event);
        right += event.res == PAGE;
    }
    say("the same of writes into holes", "%ld right", right);
    vector[0] = (struct iovec){buffer, 4 * PAGE};
    io_prep_preadv(&iocb, file, vector, 1, 62LL * PAGE);
    answer("a vector over the file's end", answers(&loop, &iocb));
    io_prep_preadv(&iocb, file, vector, 1, 64LL * PAGE);
    answer("a vector behind it", answers(&loop, &iocb));
    vector[1] = (struct iovec){UNMAPPED, PAGE};
    io_prep_preadv(&iocb, file, vector + 1, 1, 0);
    answer("a vector of a bad buffer", answers(&loop, &iocb));
    vector[1] = (struct iovec){(void *)KERNEL_ADDRESS, PAGE};
    io_prep_preadv(&iocb, file, vector, 2, 0);
    answer("a vector with a kernel address", answers(&loop, &iocb));
    vector[1] = (struct iovec){buffer, (size_t)-1};
    io_prep_preadv(&iocb, file, vector, 2, 0);
    answer("a vector with a negative length", answers(&loop, &iocb));
    io_prep_preadv(&iocb, -1, vector, 1, 0);
    answer("a vector of no file", answers(&loop, &iocb));
    io_prep_preadv(&iocb, file, vector, 1, 0);
    munmap(vector, PAGE);
    answer("a vector that was unmapped", answers(&loop, &iocb));
    rounds(&loop, 2, ", after vectors");
    end(&loop);
}

static void in_a_child(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct loop loop;
        make(&loop, EPOLL);
        read_at(&loop, 0, 1);
        int ok = await(&loop, -1) == 1 && counted(loop.counter) == 1;
        take(loop.ctx, 1);
        _exit(ok ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    say("in a child", "%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(void)
{
    int plain = temp_file(64 * PAGE);
    file = reopen(plain, O_RDWR | O_DIRECT);
    if (file < 0)
        file = plain;
    buffer = pages(DEPTH * PAGE);
    if (pipe(ends))
        die("pipe");
    for (enum how how = 0; how < HOWS; how++) {
        struct loop loop;
        make(&loop, how);
        rounds(&loop, 1, "");
        rounds(&loop, DEPTH, "");
        if (how != EPOLL_EDGE)
            times(&loop);
        end(&loop);
    }
    struct loop loop;
    make(&loop, PPOLL);
    rounds(&loop, 3, ", before signals");
    signals(&loop);
    bad_arguments(&loop);
    in_a_child();
    rounds(&loop, DEPTH, ", after a fork");
    end(&loop);
    several();
    two_threads();
    submitter_and_waiter();
    cancelled();
    holes();
    vectors();
    return 0;
}
