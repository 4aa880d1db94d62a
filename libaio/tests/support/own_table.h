/* The common part of the programs about descriptor tables: threads with a table of their own, in
 * which a number names another file. */
#ifndef OWN_TABLE_H
#define OWN_TABLE_H

#include "answers.h"

#define BLOCKS 16
#define OTHER_BYTE 0xee

/* Ways in which a thread gets a descriptor table of its own. */
UNUSED static int by_unshare(void)
{
    return unshare(CLONE_FILES);
}

UNUSED static int by_number(void)
{
    return (int)syscall(SYS_unshare, CLONE_FILES);
}

UNUSED static int by_close_range(void)
{
    return close_range(1000, 1001, CLOSE_RANGE_UNSHARE);
}

UNUSED static int by_close_range_number(void)
{
    return (int)syscall(SYS_close_range, 1000, 1001, CLOSE_RANGE_UNSHARE);
}

/* The number that all threads use, and the descriptor of the file that it names in a thread's own
 * table. */
static int shared, other;
static int stop;

/* Returns a request's result, or -EINVAL if it is refused. Returns when the request no longer
 * uses the buffer. */
static long read_once(unsigned char *buf, long long offset);

/* The results of one thread. */
struct seen {
    int (*part)(void);
    int from_a_child;
    long right, wrong, refused, failed;
};

static void look(struct seen *seen, int expects_other)
{
    unsigned char *buf = pages(PAGE);
    for (int i = 0; i < BLOCKS; i++) {
        memset(buf, 0, PAGE);
        long got = read_once(buf, (long long)i * PAGE);
        int all_other = buf[0] == OTHER_BYTE && !memcmp(buf, buf + 1, PAGE - 1);
        int right = expects_other ? all_other : holds(buf, PAGE, i * PAGE);
        if (got == -EINVAL)
            seen->refused++;
        else if (got != PAGE)
            seen->failed++;
        else if (right)
            seen->right++;
        else
            seen->wrong++;
    }
    munmap(buf, PAGE);
}

static void *child_of_the_thread(void *seen)
{
    look(seen, 1);
    return NULL;
}

/* Gets a table of its own, makes the number `shared` name the other file there, and reads from that
 * number. */
static void *of_its_own(void *argument)
{
    struct seen *seen = argument;
    pthread_t child;
    if (seen->part())
        die("no table of its own");
    if (dup2(other, shared) != shared)
        die("dup2");
    if (seen->from_a_child) {
        pthread_create(&child, NULL, child_of_the_thread, seen);
        pthread_join(child, NULL);
    } else {
        look(seen, 1);
    }
    /* Descriptors that this thread closes stay open for the other threads. */
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    if (fcntl(shared, F_GETFD) != -1)
        die("the number is still open");
    return NULL;
}

static void *with_the_rest(void *argument)
{
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        look(argument, 0);
    look(argument, 0);
    return NULL;
}

static void part(const char *name, int (*how)(void), int from_a_child)
{
    struct seen own = {.part = how, .from_a_child = from_a_child}, rest = {0};
    pthread_t parted, stays;
    char line[100];
    stop = 0;
    pthread_create(&stays, NULL, with_the_rest, &rest);
    pthread_create(&parted, NULL, of_its_own, &own);
    pthread_join(parted, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(stays, NULL);
    snprintf(line, sizeof line, "%s, other bytes than those of its file", name);
    say(line, "%ld", own.wrong);
    snprintf(line, sizeof line, "%s, all of them right or all refused", name);
    yes(line, own.right == BLOCKS || own.refused == BLOCKS);
    snprintf(line, sizeof line, "%s, the others", name);
    say(line, "%ld wrong, %ld refused, %ld failed", rest.wrong, rest.refused, rest.failed);
}

static void make_files(void)
{
    unsigned char block[PAGE];
    int file = temp_file(BLOCKS * PAGE);
    shared = fcntl(file, F_DUPFD_CLOEXEC, 30);
    close(file);
    other = temp_file(0);
    memset(block, OTHER_BYTE, PAGE);
    for (int i = 0; i < BLOCKS; i++)
        if (pwrite(other, block, PAGE, i * PAGE) != PAGE)
            die("pwrite");
}

#endif
