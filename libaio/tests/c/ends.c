/* A request holds its file, however the program's descriptor is closed. */
#include "common.h"
#include <dirent.h>
#include <linux/close_range.h>

enum { NUMBER = 200, COUNT = 8 };

static void by_close(int other) { (void)other, close(NUMBER); }
static void by_dup2(int other) { dup2(other, NUMBER); }
static void by_dup3(int other) { dup3(other, NUMBER, O_CLOEXEC); }
static void by_range(int other) { (void)other, close_range(NUMBER, NUMBER, 0); }
static void by_closefrom(int other) { (void)other, closefrom(NUMBER); }
static void by_number(int other) { (void)other, syscall(SYS_close, NUMBER); }
static void by_dup3_number(int other) { syscall(SYS_dup3, other, NUMBER, 0); }
static void by_range_number(int other) { (void)other, syscall(SYS_close_range, NUMBER, NUMBER, 0); }

static void by_fclose(int other)
{
    (void)other;
    fclose(fdopen(NUMBER, "r+"));
}

static void by_freopen(int other)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", other);
    /* If `other` is a socket, its path cannot be opened, and freopen only closes the stream. */
    (void)!freopen(path, "r+", fdopen(NUMBER, "r+"));
}

static const struct {
    const char *name;
    void (*end)(int other);
} ways[] = {
    {"close", by_close},
    {"dup2", by_dup2},
    {"dup3", by_dup3},
    {"close_range", by_range},
    {"closefrom", by_closefrom},
    {"close by number", by_number},
    {"dup3 by number", by_dup3_number},
    {"close_range by number", by_range_number},
    {"fclose", by_fclose},
    {"freopen", by_freopen},
};

/* Makes NUMBER name the file of `fd`, and closes `fd`. */
static void takes(int fd)
{
    if (dup2(fd, NUMBER) != NUMBER)
        die("dup2");
    close(fd);
}

static void writes(io_context_t ctx, const char *way, void (*end)(int))
{
    static unsigned char ours[COUNT * PAGE], theirs[COUNT * PAGE], now[COUNT * PAGE];
    static struct iocb iocbs[COUNT];
    struct iocb *list[COUNT];
    struct io_event events[COUNT];
    char name[96];
    int file = temp_file(COUNT * PAGE), other = temp_file(0), right = 0;
    memset(ours, 'w', sizeof ours);
    memset(theirs, 'o', sizeof theirs);
    if (pwrite(other, theirs, sizeof theirs, 0) != (ssize_t)sizeof theirs)
        die("pwrite");
    takes(dup(file));
    for (int i = 0; i < COUNT; i++) {
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], NUMBER, ours + i * PAGE, PAGE, i * PAGE);
    }
    if (io_submit(ctx, COUNT, list) != COUNT)
        die("io_submit");
    end(other);
    takes(dup(other));
    reap(ctx, COUNT, events);
    for (int i = 0; i < COUNT; i++)
        right += events[i].res == PAGE;
    if (pread(file, now, sizeof now, 0) != (ssize_t)sizeof now)
        die("pread");
    snprintf(name, sizeof name, "%s, writes", way);
    say(name, "%d right, %s", right, memcmp(now, ours, sizeof now) ? "not there" : "all there");
    if (pread(other, now, sizeof now, 0) != (ssize_t)sizeof now)
        die("pread");
    snprintf(name, sizeof name, "%s, the other file is intact", way);
    yes(name, memcmp(now, theirs, sizeof now) == 0);
    close(NUMBER);
    close(file);
    close(other);
}

static void polls(io_context_t ctx, const char *way, void (*end)(int))
{
    struct iocb iocb;
    struct io_event event;
    struct timespec none = {0, 0};
    char name[96];
    int old[2], new[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, old) || socketpair(AF_UNIX, SOCK_STREAM, 0, new))
        die("socketpair");
    takes(old[0]);
    io_prep_poll(&iocb, NUMBER, POLLIN);
    if (submit1(ctx, &iocb) != 1)
        die("io_submit");
    end(new[0]);
    takes(new[0]);
    if (write(new[1], "new", 3) != 3)
        die("write");
    snprintf(name, sizeof name, "%s, a poll when the new file has data", way);
    answer(name, io_getevents(ctx, 0, 1, &event, &none));
    snprintf(name, sizeof name, "%s, the old peer's write", way);
    answer(name, write(old[1], "old", 3));
    reap(ctx, 1, &event);
    /* Only POLLIN is compared, because the kernel reports more events than were asked for. */
    snprintf(name, sizeof name, "%s, the poll then", way);
    answer(name, (long)event.res & POLLIN);
    close(NUMBER);
    close(old[1]);
    close(new[1]);
}

int main(void)
{
    io_context_t ctx = setup(COUNT);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        writes(ctx, ways[i].name, ways[i].end);
        polls(ctx, ways[i].name, ways[i].end);
    }
    /* Submits an fsync of a folder, and closes the folder's descriptor by closedir. */
    const char *where = getenv("TMPDIR");
    DIR *folder = opendir(where ? where : "/tmp");
    struct iocb sync;
    struct io_event event;
    io_prep_fsync(&sync, dirfd(folder));
    if (submit1(ctx, &sync) != 1)
        die("io_submit");
    closedir(folder);
    reap(ctx, 1, &event);
    answer("closedir, a sync", (long)event.res);
    answer("destroy", io_destroy(ctx));
    return 0;
}
