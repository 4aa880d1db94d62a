/* A context belongs to the process that made it. */
#include "common.h"

static int fd, ends[2];
static const char *whose;

static void in_child(const char *what, void (*body)(io_context_t), io_context_t ctx)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        body(ctx);
        fflush(stdout);
        _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    say(what, "%s %d", WIFEXITED(status) ? "exit" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static void inherited(io_context_t ctx)
{
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    struct timespec tenth = {0, 100000000};
    static unsigned char buf[PAGE];
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    answer("child, submit", io_submit(ctx, 1, &list));
    answer("child, submit of 0", io_submit(ctx, 0, &list));
    answer("child, getevents", io_getevents(ctx, 1, 1, &event, &tenth));
    answer("child, getevents, min 0", io_getevents(ctx, 0, 1, &event, &tenth));
    answer("child, cancel", io_cancel(ctx, &iocb, &event));
    answer("child, destroy", io_destroy(ctx));
    answer("child, destroy again", io_destroy(ctx));
}

/* Prints an answer of io_getevents in a child. libaio checks the ring before it asks the kernel,
 * and only the kernel knows to which process the context belongs. So an answer may depend on what
 * is in the ring. */
static void in_words(const char *what, long value)
{
    char name[128];
    snprintf(name, sizeof name, "[io_getevents in a child] %s, %s", whose, what);
    answer(name, value);
}

static void poll_inherited(io_context_t ctx)
{
    struct io_event event;
    struct timespec none = {0, 0}, tenth = {0, 100000000};
    in_words("getevents, no time", io_getevents(ctx, 1, 1, &event, &none));
    in_words("getevents, min 0, no time", io_getevents(ctx, 0, 1, &event, &none));
    in_words("getevents, min over nr, no time", io_getevents(ctx, 2, 1, &event, &none));
    in_words("getevents, min -1, no time", io_getevents(ctx, -1, 1, &event, &none));
    in_words("getevents, nowhere to write, no time", io_getevents(ctx, 1, 1, NULL, &none));
    in_words("pgetevents, no time", io_pgetevents(ctx, 0, 1, &event, &none, NULL));
    in_words("pgetevents, some time", io_pgetevents(ctx, 0, 1, &event, &tenth, NULL));
    in_words("getevents, any time", io_getevents(ctx, 0, 1, &event, NULL));
    in_words("queue_run", io_queue_run(ctx));
    int got = (int)syscall(SYS_io_getevents, ctx, 0, 1, &event, &none);
    in_words("getevents by number, no time", got < 0 ? -errno : got);
    in_words("destroy", io_destroy(ctx));
    in_words("getevents after that, no time", io_getevents(ctx, 0, 1, &event, &none));
}

static void poll_empty(io_context_t ctx)
{
    whose = "child, empty ring";
    poll_inherited(ctx);
    whose = "child with contexts of its own, empty ring";
    io_context_t mine = setup(4);
    poll_inherited(ctx);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        whose = "child of a child, empty ring";
        poll_inherited(ctx);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    io_destroy(mine);
}

static void poll_event(io_context_t ctx)
{
    whose = "child, an event in the ring";
    poll_inherited(ctx);
}

static void own(io_context_t inherited)
{
    struct iocb iocb;
    static unsigned char buf[PAGE];
    io_context_t ctx = NULL;
    answer("child's own, setup", set_up(8, &ctx));
    yes("child's own, another handle", ctx != inherited);
    io_prep_pread(&iocb, fd, buf, PAGE, PAGE);
    request(ctx, "child's own, read", &iocb);
    yes("child's own, bytes", holds(buf, PAGE, PAGE));
    static struct iocb many[8];
    struct iocb *list[8];
    struct io_event events[8];
    for (int i = 0; i < 8; i++) {
        list[i] = &many[i];
        io_prep_pread(list[i], fd, buf, 16, i * 16);
    }
    answer("child's own, submit of 8", io_submit(ctx, 8, list));
    reap(ctx, 8, events);
    answer("child's own, submit to the parent's", io_submit(inherited, 1, list));
    answer("child's own, destroy", io_destroy(ctx));
}

static void leave(io_context_t ctx)
{
    (void)ctx;
    exit(3);
}

static void grandchild(io_context_t ctx)
{
    io_context_t mine = setup(4);
    struct iocb iocb;
    static unsigned char buf[PAGE];
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    request(mine, "child before its own fork", &iocb);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct iocb *list = &iocb;
        answer("grandchild, submit to the child's", io_submit(mine, 1, &list));
        answer("grandchild, submit to the parent's", io_submit(ctx, 1, &list));
        io_context_t last = setup(4);
        request(last, "grandchild's own", &iocb);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    request(mine, "child after its own fork", &iocb);
    io_destroy(mine);
}

int main(void)
{
    struct iocb iocb, waiting;
    struct io_event event;
    static unsigned char buf[PAGE];
    fd = temp_file(4 * PAGE);
    if (pipe(ends))
        die("pipe");
    io_context_t ctx = setup(16);
    io_prep_pread(&iocb, fd, buf, PAGE, 0);

    in_child("child of an unused context", inherited, ctx);
    request(ctx, "parent, first read", &iocb);
    io_prep_poll(&waiting, ends[0], POLLIN);
    answer("parent, submit a poll", submit1(ctx, &waiting));
    in_child("child with its own context", own, ctx);
    request(ctx, "parent, read after a child", &iocb);
    in_child("child that polls", poll_empty, ctx);
    request(ctx, "parent, read after polls in a child", &iocb);
    in_child("child that exits", leave, ctx);
    request(ctx, "parent, read after a child's exit", &iocb);
    in_child("child with a child", grandchild, ctx);
    request(ctx, "parent, read after a grandchild", &iocb);
    say("a child through system", "%d", system("exit 5") >> 8);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    for (int i = 0; !ready(ctx) && i < 20000; i++)
        usleep(1000);
    in_child("child that polls where an event is", poll_event, ctx);
    reap(ctx, 1, &event);
    yes("parent, the poll fires after all that", event.obj == &waiting && (event.res & POLLIN));

    int right = 0;
    for (int i = 0; i < 200; i++) {
        if (submit1(ctx, &iocb) != 1)
            die("submit");
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        reap(ctx, 1, &event);
        right += event.res == PAGE;
        waitpid(pid, NULL, 0);
    }
    say("200 forks with a read in flight", "%d right", right);
    answer("destroy", io_destroy(ctx));
    return 0;
}
