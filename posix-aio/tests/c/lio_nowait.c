/* lio_listio with LIO_NOWAIT: its notification comes once, when all requests are done. */
#include "common.h"

static unsigned char buf[8][PAGE];
static sigset_t set;

static struct aiocb entry(int opcode, int fd, void *to, size_t n, off_t offset)
{
    struct aiocb cb = block(fd, to, n, offset);
    cb.aio_lio_opcode = opcode;
    return cb;
}

/* Prints how many times the list's signal comes. Each must have the right value, and come after the
 * end of all requests. */
static void list(const char *name, struct aiocb **entries, int n)
{
    static int value = 100;
    struct sigevent event = {
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = ++value};
    siginfo_t info;
    struct timespec while_ = {5, 0}, moment = {0, 30000000};
    int got = lio_listio(LIO_NOWAIT, entries, n, &event), error = errno, signals = 0, right = 1;
    while (sigtimedwait(&set, &info, signals ? &moment : &while_) > 0) {
        signals++;
        right &= info.si_value.sival_int == value && info.si_code == SI_ASYNCIO &&
                 info.si_pid == getpid();
        for (int i = 0; i < n; i++)
            right &= !entries[i] || aio_error(entries[i]) != EINPROGRESS;
    }
    say(name, "%s, %d signals%s", code(got ? -error : 0), signals,
        right ? "" : ", not as they should be");
}

static void lists(void)
{
    int fd = temp_file(4 * PAGE);
    struct aiocb a = entry(LIO_READ, fd, buf[0], 16, 0), b = entry(LIO_WRITE, fd, buf[1], 16, PAGE),
                 nop = entry(LIO_NOP, fd, buf[2], 16, 0);
    struct aiocb bad = entry(LIO_READ, -1, buf[3], 16, 0), unknown = entry(77, fd, buf[4], 16, 0),
                 priority = entry(LIO_READ, fd, buf[5], 16, 0);
    struct aiocb bad_priority = priority;
    bad_priority.aio_reqprio = -1;
    list("[lio_listio LIO_NOWAIT success; lio_listio SIGEV_SIGNAL of the list] a read and a write",
         (struct aiocb *[]){&a, &b}, 2);
    say("each", "%s; %s", state(&a), state(&b));
    list("[lio_listio LIO_NOWAIT success] a read among NULL and LIO_NOP",
         (struct aiocb *[]){NULL, &a, &nop, NULL}, 4);
    say("each, among NULL and LIO_NOP", "%s; %s", state(&a), state(&nop));
    list("[lio_listio LIO_NOP] all LIO_NOP", (struct aiocb *[]){&nop, &nop}, 2);
    list("[lio_listio empty list] all NULL", (struct aiocb *[]){NULL, NULL}, 2);
    list("[lio_listio empty list] no entries", (struct aiocb *[]){NULL}, 0);
    list("[lio_listio LIO_NOWAIT success] one fails", (struct aiocb *[]){&a, &bad, &b}, 3);
    say("each, one fails", "%s; %s; %s", state(&a), state(&bad), state(&b));
    list("[lio_listio LIO_NOWAIT success] unknown opcode", (struct aiocb *[]){&a, &unknown, &b}, 3);
    say("each, unknown opcode", "%s; %s; %s", state(&a), state(&unknown), state(&b));
    list("[lio_listio EINVAL unqueueable] priority -1", (struct aiocb *[]){&a, &bad_priority, &b},
         3);
    say("each, priority -1", "%s; %s; %s", state(&a), state(&bad_priority), state(&b));
    list("[lio_listio EINVAL unqueueable] nothing queueable",
         (struct aiocb *[]){&unknown, &bad_priority}, 2);

    say("[lio_listio LIO_NOWAIT success] without a notification", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&a, &b}, 2, NULL)));
    say("each, without a notification", "%d; %d", finish(&a), finish(&b));
    say("[lio_listio LIO_NOWAIT success] without a notification, unknown opcode", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&a, &unknown}, 2, NULL)));
    finish(&a);
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    say("[lio_listio SIGEV_NONE of the list] SIGEV_NONE", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&a, &b}, 2, &none)));
    say("each, SIGEV_NONE", "%d; %d", finish(&a), finish(&b));
    list("[lio_listio nent out of range] -1 entries", (struct aiocb *[]){&a}, -1);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    say("[lio_listio EINVAL mode] bad mode", "%s",
        call(lio_listio(7, (struct aiocb *[]){&a}, 1, &event)));
    struct timespec moment = {0, 50000000};
    say("signals of a refused list", "%s", call(sigtimedwait(&set, NULL, &moment)));
    close(fd);
}

/* The list's signal waits for the last request; each request has a signal of its own. */
static void both_kinds(void)
{
    int ends[2], fd = temp_file(PAGE);
    siginfo_t info;
    struct timespec while_ = {5, 0}, moment = {0, 50000000};
    make_pipe(ends);
    struct aiocb blocked = entry(LIO_READ, ends[0], buf[0], 16, 0),
                 quick = entry(LIO_READ, fd, buf[1], 16, 0);
    blocked.aio_sigevent = (struct sigevent){
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 1};
    quick.aio_sigevent = (struct sigevent){
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = 2};
    struct sigevent event = {
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 3};
    say("[lio_listio LIO_NOWAIT success] two with notifications", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&blocked, &quick}, 2, &event)));
    int got = sigtimedwait(&set, &info, &while_);
    say("[lio_listio SIGEV_SIGNAL of a request] the quick one's signal", "SIGRTMIN+%d, value %d",
        got - SIGRTMIN, info.si_value.sival_int);
    say("no other yet", "%s", call(sigtimedwait(&set, &info, &moment)));
    say("[aio_suspend success] a wait for one of a list", "%s",
        call(aio_suspend((const struct aiocb *[]){&quick, &blocked}, 2, NULL)));
    put(ends[1], "x");
    int seen = 0;
    for (int i = 0; i < 2; i++) {
        got = sigtimedwait(&set, &info, &while_);
        seen |= got < 0 ? 256 : 1 << (got - SIGRTMIN);
    }
    say("the blocked one's and the list's", "0x%x", seen);
    say("no more", "%s", call(sigtimedwait(&set, &info, &moment)));

    /* A cancelled request counts as done. */
    struct aiocb second = entry(LIO_READ, ends[0], buf[2], 16, 0);
    blocked.aio_sigevent.sigev_notify = SIGEV_NONE;
    event.sigev_value.sival_int = 4;
    if (lio_listio(LIO_NOWAIT, (struct aiocb *[]){&blocked, &second}, 2, &event))
        die("lio_listio");
    cancelled("[aio_cancel AIO_CANCELED] cancel one of a list", ends[0], &second);
    say("no signal yet", "%s", call(sigtimedwait(&set, &info, &moment)));
    put(ends[1], "x");
    got = sigtimedwait(&set, &info, &while_);
    say("[lio_listio SIGEV_SIGNAL of the list] the list's signal after a cancel",
        "SIGRTMIN+%d, value %d", got - SIGRTMIN, info.si_value.sival_int);
    say("each after the cancel", "%s; %s", state(&blocked), state(&second));
}

static volatile int notes, right_value;

static void note(union sigval value)
{
    right_value = value.sival_int;
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELEASE);
}

static void threads(void)
{
    int fd = temp_file(PAGE);
    struct aiocb a = entry(LIO_READ, fd, buf[0], 16, 0), b = entry(LIO_READ, fd, buf[1], 16, 16);
    struct sigevent event = {
        .sigev_notify = SIGEV_THREAD, .sigev_notify_function = note, .sigev_value.sival_int = 77};
    say("[lio_listio SIGEV_THREAD of the list] submit", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&a, &b}, 2, &event)));
    until(&notes, 1);
    say("its value", "%d", right_value);
    say("each of the thread's", "%s; %s", state(&a), state(&b));
    a.aio_sigevent = b.aio_sigevent = event;
    say("[lio_listio SIGEV_THREAD of a request] submit two", "%s",
        call(lio_listio(LIO_NOWAIT, (struct aiocb *[]){&a, &b}, 2, NULL)));
    until(&notes, 3);
    say("[lio_listio SIGEV_THREAD of a request] and wait", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&a, &b}, 2, NULL)));
    until(&notes, 5);
    say("calls of the function", "%d", notes);
    close(fd);
}

int main(void)
{
    sigemptyset(&set);
    for (int i = 0; i < 3; i++)
        sigaddset(&set, SIGRTMIN + i);
    sigprocmask(SIG_BLOCK, &set, NULL);
    in_child(both_kinds);
    lists();
    threads();
    return 0;
}
