/* The common part of programs that use a file whose server does not answer.
 *
 * A program says on standard output which of its steps begins and which has ended. It also waits
 * for lines on standard input. Before the test sends a line, the test changes what the file's
 * server does. */
#ifndef HUNG_H
#define HUNG_H

#include "answers.h"

/* The distance of reads in bytes: the kernel's read-ahead for one read must not reach the next. */
#define APART (64 * PAGE)
/* The first offsets of reads and of writes while the server does not answer. Requests that it
 * has answered before have lower offsets. */
#define READS_BEGIN (1 << 20)
#define WRITES_BEGIN (8 << 20)

UNUSED static void begin(const char *step)
{
    printf("begin %s\n", step);
    fflush(stdout);
}

UNUSED static void end(const char *step, long result)
{
    printf("end %s: %s\n", step, code(result));
    fflush(stdout);
}

/* Prints "ready", and waits for a line on standard input. */
UNUSED static void wait_to_be_told(void)
{
    char line[8];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        die("nobody is there");
}

UNUSED static int open_hung(const char *path, const char *mode)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (strcmp(mode, "direct") ? 0 : O_DIRECT));
    if (fd < 0)
        die("open %s", path);
    return fd;
}

/* True if the page at `offset` has the content of write `number`: bytes with this value. */
UNUSED static int written(int fd, int number, size_t offset)
{
    unsigned char *found = pages(PAGE);
    int right = pread(fd, found, PAGE, (off_t)offset) == PAGE;
    for (int i = 0; i < PAGE; i++)
        right = right && found[i] == (unsigned char)number;
    munmap(found, PAGE);
    return right;
}

#endif
