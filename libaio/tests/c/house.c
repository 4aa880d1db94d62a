/* Children exit with requests in flight. Then the program closes all descriptors that it does not
 * know, and goes on. */
#include "common.h"

static void in_flight(int fd, int leave_by_exit)
{
    static struct iocb iocbs[128];
    struct iocb *list[128];
    static _Alignas(PAGE) unsigned char buf[128][PAGE];
    io_context_t ctx = setup(128);
    for (int i = 0; i < 128; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], PAGE, i * 512 / PAGE * PAGE);
    }
    if (io_submit(ctx, 128, list) != 128)
        die("submit");
    if (leave_by_exit)
        exit(4);
    _exit(5);
}

static void child(const char *name, int fd, int leave_by_exit)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        in_flight(fd, leave_by_exit);
    int status;
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    say(name, "%s %d", WIFEXITED(status) ? "exit" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

int main(void)
{
    int fd = temp_file(64 * PAGE), folder = open(getenv("TMPDIR"), O_RDONLY | O_DIRECTORY);
    static unsigned char buf[16][PAGE];
    static struct iocb iocbs[16];
    struct iocb iocb, *list[16];
    struct io_event events[16];
    child("exit with 128 in flight", fd, 1);
    child("_exit with 128 in flight", fd, 0);
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        child("exit with 128 direct ones in flight", direct, 1);
        child("_exit with 128 direct ones in flight", direct, 0);
        close(direct);
    }

    io_context_t ctx = setup(16);
    io_prep_pread(&iocb, fd, buf[0], PAGE, 0);
    request(ctx, "a read", &iocb);
    for (int other = 3; other < 1024; other++)
        if (other != fd && other != folder)
            close(other);
    request(ctx, "a read after all other descriptors are closed", &iocb);
    struct timespec tenth = {0, 100000000};
    answer("a wait after that", io_getevents(ctx, 1, 1, events, &tenth));
    for (int i = 0; i < 16; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf[i], PAGE, i * PAGE);
    }
    answer("submit of 16 after that", io_submit(ctx, 16, list));
    reap(ctx, 16, events);
    /* The numbers that the loop has closed belong to the program. The library must not write to
     * them or close them. */
    int counters[32], touched = 0;
    for (int i = 0; i < 32; i++)
        counters[i] = eventfd(0, EFD_NONBLOCK);
    for (int round = 0; round < 100; round++) {
        if (io_submit(ctx, 16, list) != 16)
            die("submit");
        reap(ctx, 16, events);
    }
    io_context_t second = setup(4);
    request(second, "a context made after that", &iocb);
    answer("destroy the second", io_destroy(second));
    answer("destroy", io_destroy(ctx));
    for (int i = 0; i < 32; i++) {
        uint64_t value;
        touched += read(counters[i], &value, sizeof value) >= 0 || errno != EAGAIN;
    }
    say("foreign descriptors touched", "%d", touched);
    return 0;
}
