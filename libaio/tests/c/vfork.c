/* Children that share the parent's memory: descriptors that they close before they execute another
 * program stay open in the parent. */
#include "common.h"
#include <spawn.h>

extern char **environ;

static int fd;
static unsigned char buf[16][PAGE];

static int reads(io_context_t ctx)
{
    static struct iocb iocbs[16];
    struct iocb *list[16];
    struct io_event events[16];
    int right = 0;
    for (int i = 0; i < 16; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], PAGE, i * PAGE);
    }
    if (io_submit(ctx, 16, list) != 16)
        die("submit");
    reap(ctx, 16, events);
    for (int i = 0; i < 16; i++)
        right += events[i].res == PAGE && holds(buf[i], PAGE, (size_t)i * PAGE);
    return right;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return open_descriptors() == 3 ? 0 : 1;
    int ends[2], others[2], status;
    struct iocb poll, other_poll, read_ahead, *list = &read_ahead;
    struct io_event event;
    fd = temp_file(16 * PAGE);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (pipe2(ends, O_CLOEXEC) || pipe2(others, O_CLOEXEC))
        die("pipe");
    io_context_t ctx = setup(32);
    io_prep_poll(&poll, ends[0], POLLIN);
    answer("a poll in flight", submit1(ctx, &poll));
    say("reads before", "%d", reads(ctx));

    int ended = 0, right = 0;
    for (volatile int i = 0; i < 100; i++) {
        io_prep_pread(&read_ahead, fd, buf[0], PAGE, 0);
        if (io_submit(ctx, 1, &list) != 1)
            die("submit");
        pid_t pid = vfork();
        if (pid == 0) {
            /* Closes all descriptors from 3 on, as shells and servers do in a child. */
            if (i % 2)
                close_range(3, ~0u, 0);
            else
                for (int other = 3; other < 128; other++)
                    close(other);
            execl("/proc/self/exe", argv[0], "child", NULL);
            _exit(1);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            die("vfork");
        ended += status == 0;
        reap(ctx, 1, &event);
        right += event.res == PAGE;
    }
    say("100 children with the parent's memory", "%d ended well, %d reads right", ended, right);
    for (int i = 0; i < 50; i++) {
        pid_t pid;
        char *arguments[] = {argv[0], "child", NULL};
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addclosefrom_np(&actions, 3);
        if (posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ) ||
            waitpid(pid, &status, 0) != pid)
            die("posix_spawn");
        posix_spawn_file_actions_destroy(&actions);
        ended += status == 0;
    }
    say("and 50 by posix_spawn", "%d", ended);
    say("reads after", "%d", reads(ctx));
    /* Descriptors that the children have closed are still in use here. A second poll, which
     * fires, makes the waiter check the first poll again. */
    close(ends[0]);
    io_prep_poll(&other_poll, others[0], POLLIN);
    answer("another poll", submit1(ctx, &other_poll));
    if (write(others[1], "x", 1) != 1)
        die("write");
    reap(ctx, 1, &event);
    yes("it fires", event.obj == &other_poll && (event.res & POLLIN));
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 1, &event);
    yes("the poll fires, its descriptor closed", event.obj == &poll && (event.res & POLLIN));
    answer("destroy", io_destroy(ctx));
    return 0;
}
