/* Runs a use of a library in processes that may take hardly any more memory. */
#ifndef LITTLE_MEMORY_H
#define LITTLE_MEMORY_H

#include "answers.h"
#include <sys/resource.h>

enum { KIB = 1024, MIB = KIB * KIB };

/* Limits the address space to `more` bytes beyond what the process uses now. */
static void limit(long more)
{
    struct rlimit now = {0, 0};
    now.rlim_cur = now.rlim_max = (rlim_t)(status("VmSize:") * KIB + more);
    if (setrlimit(RLIMIT_AS, &now))
        _exit(2);
}

/* Runs `use(argument)`, which returns 0 on success, in a child with `room(step)` bytes for each
 * of `steps`. */
static void with_little_memory(const char *name, int steps, long (*room)(int), int (*use)(int),
                               int argument)
{
    int well = 0, other = 0;
    for (int step = 0; step < steps; step++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            /* SIGALRM ends a child that hangs for this number of seconds. */
            alarm(300);
            limit(room(step));
            _exit(use(argument));
        }
        int how;
        if (pid < 0 || waitpid(pid, &how, 0) != pid)
            die("fork");
        if (how == 0)
            well++;
        else
            other = how;
    }
    say(name, "%d as they should be, else status %d", well, other);
}

#endif
