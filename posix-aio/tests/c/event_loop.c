/* Event loops: a signal or a thread notifies of each request. A thread waits for descriptors, or
 * for the signal itself. */
#include "common.h"
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/signalfd.h>

#define ROUNDS 100

static unsigned char *buffer;
static int file, ends[2];
static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    int before = errno;
    (void)signal;
    handled++;
    if (write(ends[1], "x", 1) != 1)
        _exit(1);
    errno = before;
}

static void by_thread(union sigval value)
{
    (void)value;
    if (write(ends[1], "x", 1) != 1)
        _exit(1);
}

static struct aiocb cb;

static void submit(struct sigevent event, int round)
{
    cb = block(file, buffer, PAGE, round % 64 * PAGE);
    cb.aio_sigevent = event;
    if (aio_read(&cb))
        die("aio_read");
}

static void check(void)
{
    int error = aio_error(&cb);
    if (error || aio_return(&cb) != PAGE)
        die("a read: %s", code(-error));
}

static void drain(int fd)
{
    char bytes[128];
    if (read(fd, bytes, sizeof bytes) <= 0)
        die("read");
}

/* The signal is blocked, and read from a descriptor. */
static void signal_descriptor(struct sigevent event, const sigset_t *signals)
{
    int fd = signalfd(-1, signals, 0), epoll = epoll_create1(0);
    struct epoll_event in = {.events = EPOLLIN}, out;
    if (fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &in))
        die("signalfd");
    for (int round = 0; round < ROUNDS; round++) {
        struct pollfd set = {fd, POLLIN, 0};
        fd_set bits;
        FD_ZERO(&bits);
        FD_SET(fd, &bits);
        submit(event, round);
        int got = round % 3 == 0   ? poll(&set, 1, -1)
                  : round % 3 == 1 ? select(fd + 1, &bits, NULL, NULL, NULL)
                                   : epoll_wait(epoll, &out, 1, -1);
        if (got != 1)
            die("no signal");
        struct signalfd_siginfo info;
        if (read(fd, &info, sizeof info) != sizeof info)
            die("signalfd");
        check();
    }
    say("[aio_read SIGEV_SIGNAL] a signal from a descriptor", "%d", ROUNDS);
    close(fd);
    close(epoll);
}

/* The signal is blocked except in the call that it interrupts. */
static void under_a_mask(struct sigevent event)
{
    sigset_t none;
    int interrupted = 0;
    sigemptyset(&none);
    handled = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct epoll_event out;
        int epoll = epoll_create1(0), got;
        submit(event, round);
        got = round % 3 == 0   ? ppoll(NULL, 0, NULL, &none)
              : round % 3 == 1 ? pselect(0, NULL, NULL, NULL, NULL, &none)
                               : epoll_pwait(epoll, &out, 1, -1, &none);
        interrupted += got < 0 && errno == EINTR;
        close(epoll);
        check();
        drain(ends[0]);
    }
    say("[aio_read SIGEV_SIGNAL] a signal under a mask", "%d handled, %d interrupted", (int)handled,
        interrupted);
}

/* A pipe that the handler, or a thread, writes to. */
static void through_a_pipe(struct sigevent event, const char *name)
{
    handled = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct pollfd set = {ends[0], POLLIN, 0};
        submit(event, round);
        while (poll(&set, 1, -1) != 1)
            if (errno != EINTR)
                die("poll");
        drain(ends[0]);
        check();
    }
    if (event.sigev_notify == SIGEV_SIGNAL)
        say(name, "%d handled", (int)handled);
    else
        say(name, "%d", ROUNDS);
}

int main(void)
{
    int plain = temp_file(64 * PAGE);
    file = reopen(plain, O_RDWR | O_DIRECT);
    if (file < 0)
        file = plain;
    buffer = pages(PAGE);
    if (pipe(ends))
        die("pipe");
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGRTMIN);
    sigaction(SIGRTMIN, &action, NULL);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    signal_descriptor(event, &signals);
    under_a_mask(event);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    through_a_pipe(event, "[aio_read SIGEV_SIGNAL] a handler that writes to a pipe");
    struct sigevent thread = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = by_thread};
    through_a_pipe(thread, "[aio_read SIGEV_THREAD] a thread that writes to a pipe");
    return 0;
}
