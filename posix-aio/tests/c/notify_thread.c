/* SIGEV_THREAD: a thread with the attributes that the program asked for. */
#include "common.h"

static unsigned char buf[4][PAGE];
static volatile int notes, sum;
static volatile int done_when_called;
static struct aiocb cb;
static pthread_attr_t seen;
static sigset_t mask_seen;
static pid_t tid_seen;

static void note(union sigval value)
{
    sum += value.sival_int;
    done_when_called = aio_error(&cb) != EINPROGRESS;
    pthread_getattr_np(pthread_self(), &seen);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_seen);
    tid_seen = gettid();
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELEASE);
}

static struct sigevent thread_event(void (*function)(union sigval), int value,
                                    pthread_attr_t *attributes)
{
    return (struct sigevent){.sigev_notify = SIGEV_THREAD,
                             .sigev_notify_function = function,
                             .sigev_value.sival_int = value,
                             .sigev_notify_attributes = attributes};
}

static const char *looks(void)
{
    static char text[128];
    int detached;
    size_t stack, guard;
    pthread_attr_getdetachstate(&seen, &detached);
    pthread_attr_getstacksize(&seen, &stack);
    pthread_attr_getguardsize(&seen, &guard);
    snprintf(text, sizeof text, "%s, stack %zu KiB, guard %zu KiB",
             detached == PTHREAD_CREATE_DETACHED ? "detached" : "joinable", stack >> 10,
             guard >> 10);
    return text;
}

static void notified(const char *name, int (*submit)(struct aiocb *))
{
    int before = notes;
    sum = 0;
    if (submit(&cb)) {
        say(name, "refused %s", call(-1));
        return;
    }
    until(&notes, before + 1);
    say(name, "value %d, %s, %s", sum, done_when_called ? "done" : "not done", state(&cb));
}

static int sync_it(struct aiocb *block)
{
    return aio_fsync(O_SYNC, block);
}

static void basics(void)
{
    int fd = temp_file(PAGE);
    cb = block(fd, buf[0], 16, 0);
    cb.aio_sigevent = thread_event(note, 7, NULL);
    notified("[aio_read SIGEV_THREAD] a read", aio_read);
    say("[aio_read SIGEV_THREAD] the thread", "%s", looks());
    yes("a thread of its own", tid_seen != gettid());
    say("signals blocked in it", "%s %s %s", sigismember(&mask_seen, SIGUSR1) ? "SIGUSR1" : "-",
        sigismember(&mask_seen, SIGTERM) ? "SIGTERM" : "-",
        sigismember(&mask_seen, SIGRTMIN) ? "SIGRTMIN" : "-");
    notified("[aio_write SIGEV_THREAD] a write", aio_write);
    notified("[aio_fsync SIGEV_THREAD] a sync", sync_it);
    cb.aio_fildes = -1;
    notified("[aio_read SIGEV_THREAD] a failed read", aio_read);
    notified("[aio_write SIGEV_THREAD] a failed write", aio_write);
    notified("[aio_fsync SIGEV_THREAD] a refused sync", sync_it);
    cb.aio_fildes = fd;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_attr_setguardsize(&attributes, 2 * PAGE);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    cb.aio_sigevent = thread_event(note, 8, &attributes);
    notified("[aio_read SIGEV_THREAD attributes] with attributes", aio_read);
    say("[aio_read SIGEV_THREAD attributes] the thread then", "%s", looks());
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_JOINABLE);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    notified("[aio_write SIGEV_THREAD attributes] with joinable attributes", aio_write);
    say("[aio_write SIGEV_THREAD attributes] the joinable thread", "%s", looks());
    close(fd);
    pthread_attr_destroy(&attributes);
}

/* The notification's thread does not inherit the mask of the submitting thread. */
static void masked(void)
{
    int fd = temp_file(PAGE);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &old);
    cb = block(fd, buf[0], 16, 0);
    cb.aio_sigevent = thread_event(note, 1, NULL);
    notified("[aio_read SIGEV_THREAD] submitted with SIGUSR1 blocked", aio_read);
    yes("SIGUSR1 is blocked in the thread", sigismember(&mask_seen, SIGUSR1));
    sigprocmask(SIG_SETMASK, &old, NULL);
    close(fd);
}

static struct aiocb chained;
static volatile int rounds, failures;

static void next(union sigval value)
{
    if (value.sival_ptr != &chained || aio_error(&chained) || aio_return(&chained) != 16)
        failures++;
    /* The round is counted first, because the next round's thread may overtake this thread. */
    if (__atomic_add_fetch(&rounds, 1, __ATOMIC_RELEASE) < 100 && aio_read(&chained))
        failures++;
}

static void chain(void)
{
    int fd = temp_file(PAGE);
    chained = block(fd, buf[0], 16, 0);
    chained.aio_sigevent = thread_event(next, 0, NULL);
    chained.aio_sigevent.sigev_value.sival_ptr = &chained;
    if (aio_read(&chained))
        die("aio_read");
    until(&rounds, 100);
    say("[aio_read SIGEV_THREAD] a function that submits the next", "%d times, %d failures", rounds,
        failures);
    close(fd);
}

/* A notification may block without delaying others, and its thread may end early. */
static int gate[2];

static void blocking_note(union sigval value)
{
    char byte;
    if (read(gate[0], &byte, 1) == 1)
        sum += value.sival_int;
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELEASE);
    pthread_exit(NULL);
}

static void blocking(void)
{
    int fd = temp_file(PAGE);
    static struct aiocb many[10];
    make_pipe(gate);
    sum = notes = 0;
    for (int i = 0; i < 10; i++) {
        many[i] = block(fd, buf[i % 4], 16, 0);
        many[i].aio_sigevent = thread_event(blocking_note, 1, NULL);
        if (aio_read(&many[i]))
            die("aio_read");
    }
    for (int i = 0; i < 10; i++)
        finish(&many[i]);
    struct aiocb other = block(fd, buf[0], 16, 0);
    request("[aio_read success] a read while ten notifications block", aio_read, &other);
    say("notifications done by then", "%d", notes);
    put(gate[1], "xxxxxxxxxx");
    until(&notes, 10);
    say("[aio_read SIGEV_THREAD] notifications that end by pthread_exit", "%d", sum);
    close(fd);
}

static void of_cancelled(void)
{
    int ends[2];
    make_pipe(ends);
    struct aiocb first = block(ends[0], buf[0], 16, 0);
    cb = block(ends[0], buf[1], 16, 0);
    cb.aio_sigevent = thread_event(note, 12, NULL);
    if (aio_read(&first) || aio_read(&cb))
        die("aio_read");
    cancelled("[aio_cancel AIO_CANCELED] cancel one with a thread", ends[0], &cb);
    until(&notes, 1);
    say("[aio_cancel notifies] its thread", "value %d, %s", sum, state(&cb));
    put(ends[1], "x");
    finish(&first);
}

int main(void)
{
    in_child(of_cancelled);
    basics();
    masked();
    chain();
    blocking();
    return 0;
}
