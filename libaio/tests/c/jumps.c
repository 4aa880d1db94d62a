/* A signal handler leaves io_getevents by a jump: the context still works, and can be destroyed. */
#include "common.h"
#include <setjmp.h>

static sigjmp_buf out;

static void handler(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

int main(void)
{
    io_context_t ctx = setup(8);
    int fd = temp_file(PAGE), ends[2];
    static char buf[64], byte;
    struct io_event events[8];
    struct timespec no_time = {0, 0};
    sigset_t none;
    sigemptyset(&none);
    if (pipe(ends))
        die("pipe");
    signal(SIGALRM, handler);
    for (volatile int round = 0; round < 6; round++) {
        struct iocb one, poll;
        struct itimerval soon = {{0, 0}, {0, 20000}};
        char name[64];
        /* The request ends in another thread, after the jump. */
        io_prep_poll(&poll, ends[0], POLLIN);
        if (submit1(ctx, &poll) != 1)
            die("submit");
        if (!sigsetjmp(out, 1)) {
            setitimer(ITIMER_REAL, &soon, NULL);
            if (round % 2)
                io_pgetevents(ctx, 8, 8, events, NULL, &none);
            else
                io_getevents(ctx, 8, 8, events, NULL);
            die("it came back");
        }
        if (write(ends[1], "a", 1) != 1)
            die("write");
        while (io_getevents(ctx, 0, 1, events, &no_time) == 0)
            ;
        if (read(ends[0], &byte, 1) != 1)
            die("read");
        snprintf(name, sizeof name, "after jump %d", round);
        io_prep_pread(&one, fd, buf, sizeof buf, 0);
        request(ctx, name, &one);
    }
    answer("io_destroy", io_destroy(ctx));
    answer("io_destroy again", io_destroy(ctx));
    return 0;
}
