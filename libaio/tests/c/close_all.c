/* A program closes every descriptor that it does not know, as a daemon does. Files that it opens
 * later get the same numbers. */
#include "common.h"

enum { BUFFERED = 10, DIRECT, PIPE_OUT, PIPE_IN, EVENTS, KEPT_END };
#define EACH 16

static unsigned char *buf;
static int direct;

/* Makes requests for which the engine may need descriptors of its own. These are many buffered and
 * direct reads, a single read, a poll, a read of a pipe, and requests with an eventfd. */
static int work(io_context_t ctx)
{
    static struct iocb iocbs[3 * EACH], waiting, stream;
    struct iocb *list[3 * EACH];
    struct io_event events[3 * EACH];
    uint64_t count = 0;
    char byte;
    int right = 0;
    for (int i = 0; i < 3 * EACH; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], i / EACH && direct ? DIRECT : BUFFERED, buf + i * PAGE, PAGE,
                      i % EACH * PAGE);
        if (i / EACH == 2)
            io_set_eventfd(list[i], EVENTS);
    }
    memset(buf, 0, 3 * EACH * PAGE);
    if (io_submit(ctx, 3 * EACH, list) != 3 * EACH)
        die("submit");
    /* Only the eventfd tells the program that the last EACH requests have ended. */
    struct pollfd wait = {EVENTS, POLLIN, 0};
    while (count < EACH) {
        uint64_t more;
        if (poll(&wait, 1, 20000) != 1 || read(EVENTS, &more, sizeof more) != sizeof more)
            die("the eventfd stays at %d", (int)count);
        count += more;
    }
    reap(ctx, 3 * EACH, events);
    for (int i = 0; i < 3 * EACH; i++)
        right += events[i].res == PAGE && holds(buf + i * PAGE, PAGE, i % EACH * PAGE);

    io_prep_pread(&iocbs[0], direct ? DIRECT : BUFFERED, buf, PAGE, 0);
    if (submit1(ctx, &iocbs[0]) != 1)
        die("submit one");
    reap(ctx, 1, events);
    right += events[0].res == PAGE;

    io_prep_poll(&waiting, PIPE_OUT, POLLIN);
    io_prep_pread(&stream, PIPE_OUT, &byte, 1, 0);
    if (submit1(ctx, &waiting) != 1)
        die("submit a poll");
    if (write(PIPE_IN, "x", 1) != 1)
        die("write");
    reap(ctx, 1, events);
    right += events[0].obj == &waiting && (events[0].res & POLLIN);
    if (submit1(ctx, &stream) != 1)
        die("submit a read of a pipe");
    reap(ctx, 1, events);
    right += events[0].obj == &stream && events[0].res == 1 && byte == 'x';
    return right;
}

static void by_loop(int first, int last)
{
    for (int fd = first; fd <= last && fd < 1024; fd++)
        close(fd);
}

static void by_folder(int first, int last)
{
    for (int fd = first; fd <= last && fd < 1024; fd++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            close(fd);
    }
}

static void by_range(int first, int last)
{
    if (close_range(first, last, 0))
        die("close_range");
}

static void by_number(int first, int last)
{
    if (syscall(SYS_close_range, first, last == INT_MAX ? ~0u : (unsigned)last, 0))
        die("close_range by number");
}

static void by_closefrom(int first, int last)
{
    if (last == INT_MAX)
        closefrom(first);
    else
        by_range(first, last);
}

static const struct {
    const char *name;
    void (*close)(int first, int last);
} ways[] = {{"a loop", by_loop},
            {"what /proc lists", by_folder},
            {"close_range", by_range},
            {"close_range by number", by_number},
            {"closefrom", by_closefrom}};

static void keep(int fd, int number)
{
    if (dup2(fd, number) != number)
        die("dup2");
    close(fd);
}

int main(void)
{
    char name[128];
    buf = pages(3 * EACH * PAGE);
    int ends[2], fd = temp_file(EACH * PAGE), other = reopen(fd, O_RDWR | O_DIRECT);
    direct = other >= 0;
    if (pipe(ends))
        die("pipe");
    /* The files first get numbers from 100 on. The call below closes 3 to 99, and the fixed numbers
     * are among these. */
    int counter = eventfd(0, 0),
        spare[] = {fcntl(fd, F_DUPFD, 100),
                   direct ? fcntl(other, F_DUPFD, 100) : fcntl(fd, F_DUPFD, 100),
                   fcntl(ends[0], F_DUPFD, 100), fcntl(ends[1], F_DUPFD, 100),
                   fcntl(counter, F_DUPFD, 100)};
    by_loop(3, 99);
    for (int i = 0; i < 5; i++)
        keep(spare[i], BUFFERED + i);

    for (size_t way = 0; way < COUNT(ways); way++) {
        io_context_t ctx = setup(64);
        snprintf(name, sizeof name, "right before %s", ways[way].name);
        say(name, "%d", work(ctx));
        /* In the first round the context has nothing in flight, in the second a poll that waits. */
        static struct iocb poll;
        struct io_event event;
        for (int round = 0; round < 2; round++) {
            int ready[2] = {eventfd(0, 0), 0};
            if (round) {
                keep(ready[0], KEPT_END);
                io_prep_poll(&poll, KEPT_END, POLLIN);
                if (submit1(ctx, &poll) != 1)
                    die("submit a poll");
            }
            ways[way].close(3, BUFFERED - 1);
            ways[way].close(round ? KEPT_END + 1 : KEPT_END, INT_MAX);
            if (round) {
                uint64_t one = 1;
                if (write(KEPT_END, &one, sizeof one) != sizeof one)
                    die("write");
                reap(ctx, 1, &event);
                snprintf(name, sizeof name, "a poll under %s", ways[way].name);
                yes(name, event.obj == &poll && event.res == POLLIN);
                close(KEPT_END);
            }
            /* The closed numbers are the program's: the library must not use or close them. */
            int mine[64], touched = 0, done = 0;
            for (int i = 0; i < 64; i++)
                if ((mine[i] = eventfd(7, EFD_NONBLOCK)) < 0)
                    die("eventfd");
            for (int i = 0; i < 5; i++)
                done += work(ctx);
            io_context_t second = setup(64);
            done += work(second);
            io_destroy(second);
            for (int i = 0; i < 64; i++) {
                uint64_t value;
                touched += read(mine[i], &value, sizeof value) != sizeof value || value != 7;
                close(mine[i]);
            }
            snprintf(name, sizeof name, "right after %s%s", ways[way].name, round ? ", again" : "");
            say(name, "%d, %d of the program's descriptors touched", done, touched);
        }
        snprintf(name, sizeof name, "destroy after %s", ways[way].name);
        answer(name, io_destroy(ctx));
    }

    /* A child does what a daemon does when it starts, and then makes requests. */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        io_context_t inherited = setup(8);
        (void)inherited;
        closefrom(KEPT_END);
        if (setsid() < 0 || chdir("/"))
            die("setsid");
        close(0);
        if (open("/dev/null", O_RDWR) != 0 || dup2(0, 2) != 2)
            die("0 is not free");
        io_context_t ctx = setup(64);
        say("a daemon's requests", "%d", work(ctx));
        io_destroy(ctx);
        _exit(9);
    }
    int status;
    waitpid(pid, &status, 0);
    say("a daemon", "%d", WEXITSTATUS(status));
    return 0;
}
