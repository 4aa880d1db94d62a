/* Writes through three contexts, the last one in a child, and prints the result of each write. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libaio.h>

static void once(const char *name)
{
    io_context_t ctx = NULL;
    struct iocb iocb, *list[] = {&iocb};
    struct io_event event;
    io_prep_pwrite(&iocb, STDOUT_FILENO, "data", 4, 0);
    if (io_setup(8, &ctx) || io_submit(ctx, 1, list) != 1 ||
        io_getevents(ctx, 1, 1, &event, NULL) != 1)
        exit(1);
    printf("%s: %ld\n", name, (long)event.res);
    fflush(stdout);
}

int main(void)
{
    int status;
    once("first");
    once("second");
    pid_t child = fork();
    if (child == 0) {
        once("child");
        _exit(0);
    }
    return waitpid(child, &status, 0) != child || status != 0;
}
