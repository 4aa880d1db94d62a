/* lio_listio with LIO_WAIT: what it returns, and the outcome of each request. */
#include "common.h"

static unsigned char buf[8][PAGE];

static struct aiocb entry(int opcode, int fd, void *to, size_t n, off_t offset)
{
    struct aiocb cb = block(fd, to, n, offset);
    cb.aio_lio_opcode = opcode;
    return cb;
}

static void lists(void)
{
    int fd = temp_file(4 * PAGE);
    struct aiocb good = entry(LIO_READ, fd, buf[0], 16, PAGE),
                 write_cb = entry(LIO_WRITE, fd, buf[1], 16, 2 * PAGE);
    struct aiocb nop = entry(LIO_NOP, fd, buf[2], 16, 0), bad = entry(LIO_READ, -1, buf[3], 16, 0);
    struct aiocb unknown = entry(77, fd, buf[4], 16, 0),
                 priority = entry(LIO_READ, fd, buf[5], 16, 0);
    struct aiocb *none[] = {NULL, NULL}, *nops[] = {&nop, &nop};
    priority.aio_reqprio = 21;
    say("[lio_listio LIO_WAIT success] a read and a write", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&good, &write_cb}, 2, NULL)));
    say("the read", "%s", state(&good));
    yes("its bytes", holds(buf[0], 16, PAGE));
    say("the write", "%s", state(&write_cb));
    say("[lio_listio LIO_WAIT success] among NULL and LIO_NOP", "%s",
        call(
            lio_listio(LIO_WAIT, (struct aiocb *[]){NULL, &good, &nop, NULL, &write_cb}, 5, NULL)));
    say("the LIO_NOP", "%s", state(&nop));
    say("[lio_listio empty list] all NULL", "%s", call(lio_listio(LIO_WAIT, none, 2, NULL)));
    say("[lio_listio LIO_NOP] all LIO_NOP", "%s", call(lio_listio(LIO_WAIT, nops, 2, NULL)));
    say("[lio_listio empty list] no entries", "%s", call(lio_listio(LIO_WAIT, none, 0, NULL)));
    say("[lio_listio nent out of range] -1 entries", "%s",
        call(lio_listio(LIO_WAIT, none, -1, NULL)));
    say("[lio_listio EINVAL mode] bad mode", "%s",
        call(lio_listio(2, (struct aiocb *[]){&good}, 1, NULL)));
    say("[lio_listio EINVAL mode] mode -1, no entries", "%s", call(lio_listio(-1, none, 0, NULL)));

    say("[lio_listio EIO] one fails", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&good, &bad, &write_cb}, 3, NULL)));
    say("[aio_error an errno] each of them", "%s; %s; %s", state(&good), state(&bad),
        state(&write_cb));
    say("[lio_listio EIO] the only one fails", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&bad}, 1, NULL)));
    say("[lio_listio EIO] unknown opcode", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&good, &unknown, &write_cb}, 3, NULL)));
    say("each of them, unknown opcode", "%s; %s; %s", state(&good), state(&unknown),
        state(&write_cb));
    say("[lio_listio EIO] priority 21", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&good, &priority, &write_cb}, 3, NULL)));
    say("each of them, priority 21", "%s; %s; %s", state(&good), state(&priority),
        state(&write_cb));
    say("[lio_listio EIO] nothing queueable", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&unknown, &priority}, 2, NULL)));
    say("[lio_listio EINVAL unqueueable] only one, priority 21", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&priority}, 1, NULL)));
    unknown.aio_lio_opcode = -1;
    say("[lio_listio EIO] opcode -1", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&unknown}, 1, NULL)));
    /* Values that only glibc uses, internally. */
    for (size_t i = 0; i < 5; i++) {
        static const int opcodes[] = {3, 4, 5, 128, 129};
        char name[64];
        snprintf(name, sizeof name, "[lio_listio undocumented opcode] opcode %d", opcodes[i]);
        unknown = entry(opcodes[i], fd, buf[4], 16, 0);
        int got = lio_listio(LIO_WAIT, (struct aiocb *[]){&unknown}, 1, NULL);
        say(name, "%s, %s", call(got), state(&unknown));
    }
    say("[lio_listio EIO] all fail", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&bad, &unknown, &priority}, 3, NULL)));

    /* Short transfers are not errors. */
    struct aiocb over = entry(LIO_READ, fd, buf[6], PAGE, 4 * PAGE - 10),
                 past = entry(LIO_READ, fd, buf[6], PAGE, 9 * PAGE);
    say("[lio_listio LIO_WAIT success] reads across and behind the end", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&over, &past}, 2, NULL)));
    say("each of them, at the end", "%s; %s", state(&over), state(&past));
    close(fd);
}

static void many(void)
{
    enum { N = 1000 };
    static struct aiocb cbs[N];
    static struct aiocb *list[N];
    static unsigned char bytes[N];
    int fd = temp_file(PAGE), right = 0;
    for (int i = 0; i < N; i++) {
        cbs[i] = entry(LIO_READ, fd, &bytes[i], 1, i);
        list[i] = &cbs[i];
    }
    say("[lio_listio LIO_WAIT success] 1000 reads", "%s",
        call(lio_listio(LIO_WAIT, list, N, NULL)));
    for (int i = 0; i < N; i++)
        right += aio_error(&cbs[i]) == 0 && aio_return(&cbs[i]) == 1 && bytes[i] == i % 251;
    say("of them right", "%d", right);
    close(fd);
}

/* The list's notification applies only to LIO_NOWAIT; each request's own applies always. */
static void notified(void)
{
    int fd = temp_file(PAGE);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigevent of_list = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    struct aiocb cb = entry(LIO_READ, fd, buf[0], 16, 0);
    cb.aio_sigevent = (struct sigevent){
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 42};
    say("[lio_listio LIO_WAIT success] with notifications", "%s",
        call(lio_listio(LIO_WAIT, (struct aiocb *[]){&cb}, 1, &of_list)));
    siginfo_t info;
    struct timespec while_ = {5, 0}, moment = {0, 50000000};
    int got = sigtimedwait(&set, &info, &while_);
    say("[lio_listio SIGEV_SIGNAL of a request] the request's signal", "SIGRTMIN+%d, value %d",
        got - SIGRTMIN, info.si_value.sival_int);
    say("[lio_listio list's sigevent with LIO_WAIT] the list's signal", "%s",
        call(sigtimedwait(&set, &info, &moment)));
    close(fd);
}

static volatile int caught;
static pthread_t waiting;
static int ends[2];

static void handler(int number)
{
    (void)number;
    __atomic_add_fetch(&caught, 1, __ATOMIC_RELEASE);
}

static void *disturb(void *tid)
{
    until_asleep((pid_t)(intptr_t)tid);
    pthread_kill(waiting, SIGUSR1);
    until(&caught, 1);
    /* The call was restarted after the signal only if the thread sleeps again. */
    until_asleep((pid_t)(intptr_t)tid);
    put(ends[1], "x");
    return NULL;
}

/* Runs in a process of its own: natively, the end of a request would write to the stack of the
 * call that has returned. */
static void interrupted(int flags)
{
    pthread_t thread;
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    make_pipe(ends);
    sigaction(SIGUSR1, &action, NULL);
    struct aiocb blocked = entry(LIO_READ, ends[0], buf[0], 16, 0);
    waiting = pthread_self();
    if (pthread_create(&thread, NULL, disturb, (void *)(intptr_t)getpid()))
        die("pthread_create");
    int got = lio_listio(LIO_WAIT, (struct aiocb *[]){&blocked}, 1, NULL);
    say(flags ? "[lio_listio EINTR] a signal, SA_RESTART" : "[lio_listio EINTR] a signal", "%s",
        call(got));
    say(flags ? "the request then, SA_RESTART" : "the request then", "%s", state(&blocked));
}

static void plain_signal(void)
{
    interrupted(0);
}

static void restarting_signal(void)
{
    interrupted(SA_RESTART);
}

int main(void)
{
    in_child(plain_signal);
    in_child(restarting_signal);
    lists();
    many();
    notified();
    return 0;
}
