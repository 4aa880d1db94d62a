/* The common part of the programs about the environment: whether the process gains privileges
 * (AT_SECURE), and clearing the environment. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

#include "answers.h"
#include <sys/auxv.h>

extern char **environ;

/* Overwrites the environment, as a program does that uses the memory for a longer process name. */
static void clear_the_environment(void)
{
    for (char **at = environ; *at; at++)
        memset(*at, 'x', strlen(*at));
    if (clearenv())
        die("clearenv");
}

static void begin(int argc, char **argv)
{
    say("gains privileges", "%s", getauxval(AT_SECURE) ? "yes" : "no");
    if (argc > 1 && !strcmp(argv[1], "clear"))
        clear_the_environment();
}

#endif
