/* Threads with the smallest stack that the C library gives them. */
#ifndef SMALL_STACK_H
#define SMALL_STACK_H

#include "answers.h"

/* Runs `body` in a thread with a small stack. This thread is the first one of the process that uses
 * the library. The first argument is the length of the stack in KiB, by default the smallest
 * possible. Below the stack is an inaccessible page. */
UNUSED static void on_a_small_stack(char **arguments, void *(*body)(void *))
{
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    size_t size = arguments[1] ? (size_t)atol(arguments[1]) << 10 : least;
    unsigned char *at = pages(PAGE + size);
    pthread_attr_t attributes;
    pthread_t thread;
    if (mprotect(at, PAGE, PROT_NONE))
        die("mprotect");
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, at + PAGE, size))
        die("a stack of %zu bytes", size);
    if (pthread_create(&thread, &attributes, body, NULL) || pthread_join(thread, NULL))
        die("a thread");
}

/* `fd`, or with `direct` another descriptor of its file for direct I/O if that can be opened. */
UNUSED static int cached_or_not(int fd, int direct)
{
    int other = direct ? reopen(fd, O_RDWR | O_DIRECT) : fd;
    return other < 0 ? fd : other;
}

#endif
