/* The errors that aio_read and aio_write return at once, and the errors that only the request
 * gets. */
#include "common.h"
#include <sys/resource.h>

static unsigned char *buf;

static void descriptors(void)
{
    int fd = temp_file(4 * PAGE), readable = reopen(fd, O_RDONLY), writable = reopen(fd, O_WRONLY);
    int folder = open("/", O_RDONLY | O_DIRECTORY), path = open("/", O_PATH), closed = dup(fd);
    struct aiocb cb = block(-1, buf, PAGE, 0);
    close(closed);
    request("[aio_read EBADF; aio_error an errno; aio_return error] read of -1", aio_read, &cb);
    request("[aio_write EBADF; aio_error an errno; aio_return error] write to -1", aio_write, &cb);
    cb.aio_fildes = closed;
    request("[aio_read EBADF] read of a closed descriptor", aio_read, &cb);
    request("[aio_write EBADF] write to a closed descriptor", aio_write, &cb);
    cb.aio_fildes = INT_MAX;
    request("[aio_read EBADF] read of the largest number", aio_read, &cb);
    cb.aio_fildes = writable;
    request("[aio_read EBADF] read of a write-only descriptor", aio_read, &cb);
    cb.aio_fildes = readable;
    request("[aio_write EBADF] write to a read-only descriptor", aio_write, &cb);
    cb.aio_fildes = path;
    request("[aio_read EBADF] read of a path descriptor", aio_read, &cb);
    cb.aio_fildes = folder;
    request("[aio_read EISDIR] read of a folder", aio_read, &cb);
    request("[aio_write EBADF] write to a folder", aio_write, &cb);
    int ends[2];
    make_pipe(ends);
    cb.aio_fildes = ends[1];
    request("[aio_read EBADF] read of a pipe's writing end", aio_read, &cb);
    cb.aio_fildes = ends[0];
    request("[aio_write EBADF] write to a pipe's reading end", aio_write, &cb);
    cb.aio_fildes = listening();
    request("[aio_read EINVAL] read of a listening socket", aio_read, &cb);
    close(cb.aio_fildes);
    close(ends[0]);
    close(ends[1]);
    close(readable);
    close(writable);
    close(folder);
    close(path);
    close(fd);
}

static void arguments(void)
{
    int fd = temp_file(4 * PAGE), ends[2], none[2];
    struct aiocb cb = block(fd, buf, PAGE, -1);
    make_pipe(ends);
    make_pipe(none);
    request("[aio_read EINVAL] offset -1", aio_read, &cb);
    request("[aio_write EINVAL] write at offset -1", aio_write, &cb);
    cb = block(fd, buf, 0, -1);
    request("[aio_read EINVAL] 0 bytes at offset -1", aio_read, &cb);
    cb = block(fd, buf, PAGE, INT64_MIN);
    request("[aio_read EINVAL] the smallest offset", aio_read, &cb);
    cb = block(fd, buf, PAGE, INT64_MAX);
    request("[aio_read offset too large] read at the largest offset", aio_read, &cb);
    request("[aio_write EFBIG] write at the largest offset", aio_write, &cb);
    cb = block(fd, buf, PAGE, INT64_MAX - PAGE);
    request("[aio_read offset too large] read a page before the largest offset", aio_read, &cb);
    request("[aio_write EFBIG] write a page before the largest offset", aio_write, &cb);
    cb = block(fd, buf, (size_t)SSIZE_MAX + 1, 0);
    request("[aio_read EINVAL] more bytes than can be", aio_read, &cb);
    request("[aio_write EINVAL] write more bytes than can be", aio_write, &cb);
    cb = block(fd, UNMAPPED, PAGE, 0);
    request("[aio_read EFAULT] read to a bad buffer", aio_read, &cb);
    request("[aio_write EFAULT] write from a bad buffer", aio_write, &cb);
    cb = block(fd, KERNEL_ADDRESS, PAGE, 0);
    request("[aio_read EFAULT] read to the kernel's memory", aio_read, &cb);
    unsigned char *last = last_page();
    cb = block(fd, last, 2 * PAGE, 0);
    request("[aio_read EFAULT] read to half a buffer", aio_read, &cb);
    cb = block(none[1], UNMAPPED, 16, 0);
    request("[aio_write EFAULT] write to a pipe from a bad buffer", aio_write, &cb);
    put(ends[1], "x");
    cb = block(ends[0], UNMAPPED, 16, 0);
    request("[aio_read EFAULT] read of a pipe to a bad buffer", aio_read, &cb);
    cb = block(ends[0], buf, 16, -1);
    put(ends[1], "x");
    request("[aio_read EINVAL] read of a pipe at offset -1", aio_read, &cb);
    cb = block(ends[1], buf, 16, -1);
    request("[aio_write EINVAL] write to a pipe at offset -1", aio_write, &cb);
    close(fd);
}

/* The priority is the only field that is checked before a request is queued. */
static void priorities(void)
{
    int fd = temp_file(4 * PAGE);
    struct aiocb cb = block(fd, buf, 16, 0);
    for (int priority = -1; priority <= 21; priority += priority == 0 ? 20 : 1) {
        char read_name[80], write_name[80], sync_name[80];
        int odd = priority < 0 || priority > 20;
        const char *bad = odd ? "EINVAL reqprio" : "reqprio";
        snprintf(read_name, sizeof read_name, "[aio_read %s] read with priority %d", bad, priority);
        snprintf(write_name, sizeof write_name, "[aio_write %s] write with priority %d", bad,
                 priority);
        snprintf(sync_name, sizeof sync_name, "[aio_fsync %s] sync with priority %d",
                 odd ? "reqprio out of range" : "reqprio", priority);
        cb.aio_reqprio = priority;
        request(read_name, aio_read, &cb);
        if (priority < 0 || priority > 20)
            say(priority < 0 ? "[aio_error an errno; aio_return error] the refused one"
                             : "the other refused one",
                "%s", state(&cb));
        request(write_name, aio_write, &cb);
        cb.aio_reqprio = priority;
        if (aio_fsync(O_SYNC, &cb)) {
            say(sync_name, "refused %s", call(-1));
        } else {
            finish(&cb);
            say(sync_name, "%s", state(&cb));
        }
    }
    cb.aio_fildes = -1;
    cb.aio_reqprio = 21;
    request("[aio_read EINVAL reqprio] priority 21 and a bad descriptor", aio_read, &cb);
    close(fd);
}

static void files(void)
{
    int ends[2], full = open("/dev/full", O_RDWR);
    struct aiocb cb = block(full, buf, 16, 0);
    request("[aio_write ENOSPC] write to full", aio_write, &cb);
    if (pipe2(ends, O_NONBLOCK))
        die("pipe2");
    cb = block(ends[0], buf, 16, 0);
    request("[aio_read EAGAIN of the file] read of an empty non-blocking pipe", aio_read, &cb);
    while (write(ends[1], buf, PAGE) > 0)
        ;
    cb = block(ends[1], buf, PAGE, 0);
    request("[aio_write EAGAIN of the file] write to a full non-blocking pipe", aio_write, &cb);
    close(ends[0]);
    /* SIGPIPE goes to the thread that writes. This thread blocks the signal, so the program
     * survives. */
    request("[aio_write EPIPE] write to a pipe without reader", aio_write, &cb);
    close(ends[1]);
    int memory = memfd_create("m", MFD_ALLOW_SEALING);
    if (ftruncate(memory, PAGE) || fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE))
        die("memfd");
    cb = block(memory, buf, 16, 0);
    request("[aio_write EPERM] write to a sealed memfd", aio_write, &cb);
    int memory_file = open("/proc/self/mem", O_RDONLY);
    cb = block(memory_file, buf, 16, 0);
    request("[aio_read EIO] read of no memory", aio_read, &cb);
    close(memory_file);
    close(memory);
    close(full);
}

static void too_large(void)
{
    int fd = temp_file(PAGE);
    struct rlimit limit = {2 * PAGE, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit))
        die("setrlimit");
    /* SIGXFSZ has its default action: a write of a part must not raise it. */
    struct aiocb cb = block(fd, buf, 2 * PAGE, PAGE);
    request("[aio_write EFBIG] write across the largest size", aio_write, &cb);
    signal(SIGXFSZ, SIG_IGN);
    cb = block(fd, buf, 16, 2 * PAGE);
    request("[aio_write EFBIG] write behind the largest size", aio_write, &cb);
    close(fd);
}

int main(void)
{
    buf = pages(2 * PAGE);
    in_child(too_large);
    descriptors();
    arguments();
    priorities();
    files();
    return 0;
}
