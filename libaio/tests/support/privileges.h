/* The common part of the programs about setuid(2) and its like. The C library changes the ids of
 * every thread by a signal of its own. */
#ifndef PRIVILEGES_H
#define PRIVILEGES_H

#include "answers.h"
#include <dirent.h>
#include <grp.h>

#define NOBODY 65534
#define ROUNDS 100

/* Counts the threads of this process whose names begin with `name` (all threads, for ""). Counts in
 * `other` those with another user or group than `id`. */
static int threads(const char *name, unsigned id, int *other)
{
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    *other = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300], line[256], is[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        int differs = 0;
        while (file && fgets(line, sizeof line, file)) {
            unsigned ids[4];
            sscanf(line, "Name: %63s", is);
            if (sscanf(line, "Uid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4
                || sscanf(line, "Gid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4)
                for (int i = 0; i < 4; i++)
                    differs |= ids[i] != id;
        }
        if (file)
            fclose(file);
        if (is[0] && !strncmp(is, name, strlen(name))) {
            found++;
            *other += differs;
        }
    }
    if (tasks)
        closedir(tasks);
    return found;
}

/* The number of threads whose user is not NOBODY. The C library does not change a thread that is
 * about to end, so this waits until such threads have ended. */
static int others(void)
{
    int other = 0;
    for (int looks = 0; looks < 1000; looks++) {
        if (!threads("", NOBODY, &other))
            die("there is no /proc");
        if (!other)
            break;
        usleep(10000);
    }
    return other;
}

/* Changes the effective user back and forth, and calls `work` before each change. Then drops all
 * rights permanently. The environment variable `variable` has the library's path. */
static void drop_privileges(const char *variable, void (*work)(void))
{
    const char *library = getenv(variable);
    int other, failed = 0;
    for (int i = 0; i < ROUNDS; i++) {
        work();
        failed += seteuid(NOBODY) != 0;
        work();
        failed += seteuid(0) != 0;
    }
    say("seteuid there and back while requests are in flight", "%d of %d failed", failed,
        2 * ROUNDS);
    if (library && strcmp(library, "original") && !threads("uringlet-", 0, &other))
        die("there are no threads of the library's");
    answer("setgroups", setgroups(0, NULL));
    answer("setresgid", setresgid(NOBODY, NOBODY, NOBODY));
    answer("setresuid", setresuid(NOBODY, NOBODY, NOBODY));
    say("threads that are still somebody else", "%d", others());
    answer("becoming root again", setuid(0) ? -errno : 0);
    work();
    say("threads that are somebody else after more requests", "%d", others());
}

/* Runs in a child that is killed if it does not end in time. */
static void in_time(void (*body)(void))
{
    int status;
    if (geteuid())
        skip("changing the user needs root");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(300);
        body();
        fflush(stdout);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        die("fork");
    say("it ends", "%s %d", WIFEXITED(status) ? "exit" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

#endif
