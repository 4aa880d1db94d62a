/* aio_read and aio_write on each kind of file. */
#include "common.h"

static unsigned char *buf;

static void bytes(const char *name, int good)
{
    yes(name, good);
}

static void regular(void)
{
    int fd = temp_file(4 * PAGE + 100);
    struct aiocb cb = block(fd, buf, PAGE, PAGE);
    request("[aio_read success; aio_error 0; aio_return success] a page", aio_read, &cb);
    bytes("the page's bytes", holds(buf, PAGE, PAGE));
    cb = block(fd, buf, 100, 7);
    request("[aio_read success] 100 bytes at 7", aio_read, &cb);
    bytes("the 100 bytes", holds(buf, 100, 7));
    cb = block(fd, buf, PAGE, 4 * PAGE);
    request("[aio_read success] across the end", aio_read, &cb);
    cb = block(fd, buf, PAGE, 4 * PAGE + 100);
    request("[aio_read success] at the end", aio_read, &cb);
    cb = block(fd, buf, PAGE, (off_t)1 << 40);
    request("[aio_read success] far behind the end", aio_read, &cb);
    cb = block(fd, buf, 0, 0);
    request("[aio_read success] 0 bytes", aio_read, &cb);
    cb = block(fd, NULL, 0, 0);
    request("[aio_read success] 0 bytes to NULL", aio_read, &cb);
    say("the file position after reads", "%ld", (long)lseek(fd, 0, SEEK_CUR));
    if (lseek(fd, 10, SEEK_SET) != 10)
        die("lseek");
    memset(buf, 'w', PAGE);
    cb = block(fd, buf, PAGE, 2 * PAGE);
    request("[aio_write success; aio_error 0; aio_return success] write a page", aio_write, &cb);
    cb = block(fd, buf, 0, 0);
    request("[aio_write success] write 0 bytes", aio_write, &cb);
    cb = block(fd, buf, 10, 8 * PAGE);
    request("[aio_write success] write behind the end", aio_write, &cb);
    say("the file position after writes", "%ld", (long)lseek(fd, 0, SEEK_CUR));
    say("the size after writes", "%ld", (long)lseek(fd, 0, SEEK_END));
    unsigned char back[PAGE + 1];
    if (pread(fd, back, PAGE + 1, 2 * PAGE) != PAGE + 1)
        die("pread");
    bytes("what was written", memcmp(back, buf, PAGE) == 0 && back[PAGE] != 'w');
    if (pread(fd, back, 10, 8 * PAGE - 5) != 10)
        die("pread");
    bytes("a hole before it", back[0] == 0 && back[4] == 0 && back[5] == 'w');
    cb = block(fd, buf, PAGE, 0);
    cb.aio_lio_opcode = LIO_WRITE;
    request("[aio_read success] read, whatever the opcode says", aio_read, &cb);
    cb.aio_lio_opcode = 77;
    request("[aio_write success] write, whatever the opcode says", aio_write, &cb);
    close(fd);
}

static void large(void)
{
    size_t size = 8 << 20;
    int fd = temp_file(size);
    unsigned char *all = pages(size);
    struct aiocb cb = block(fd, all, size, 0);
    request("[aio_read success] 8 MiB", aio_read, &cb);
    int right = 1;
    for (size_t at = 0; at < size; at += PAGE)
        right &= holds(all + at, PAGE, at);
    bytes("the 8 MiB", right);
    request("[aio_write success] write 8 MiB", aio_write, &cb);
    munmap(all, size);
    int sparse = temp_file(0);
    cb = block(sparse, buf, 16, (off_t)5 << 30);
    request("[aio_write success] write at 5 GiB", aio_write, &cb);
    say("the size then", "%lld", (long long)lseek(sparse, 0, SEEK_END));
    request("[aio_read success] read at 5 GiB", aio_read, &cb);
    close(sparse);
    close(fd);
}

static void direct(void)
{
    int fd = temp_file(16 * PAGE), other = reopen(fd, O_RDWR | O_DIRECT);
    if (other < 0) {
        say("direct", "%s", code(other));
        return;
    }
    struct aiocb cb = block(other, buf, PAGE, 3 * PAGE);
    request("[aio_read success] direct", aio_read, &cb);
    bytes("direct, bytes", holds(buf, PAGE, 3 * PAGE));
    request("[aio_write success] direct write", aio_write, &cb);
    cb = block(other, buf, PAGE, 16 * PAGE);
    request("[aio_read success] direct, at the end", aio_read, &cb);
    cb = block(other, buf + 1, PAGE, 0);
    request("[aio_read EINVAL] direct, misaligned", aio_read, &cb);
    request("[aio_write EINVAL] direct write, misaligned", aio_write, &cb);
    close(other);
    close(fd);
}

static void streams(void)
{
    int ends[2], pair[2];
    make_pipe(ends);
    struct aiocb cb = block(ends[1], "pipes", 5, 4711);
    request("[aio_write success] write to a pipe, with an offset", aio_write, &cb);
    cb = block(ends[0], buf, PAGE, 4711);
    request("[aio_read success] a pipe, with an offset", aio_read, &cb);
    bytes("from the pipe", memcmp(buf, "pipes", 5) == 0);
    close(ends[1]);
    cb = block(ends[0], buf, PAGE, 0);
    request("[aio_read success] a pipe without writer", aio_read, &cb);
    close(ends[0]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    cb = block(pair[1], "socks", 5, 4711);
    request("[aio_write success] write to a socket, with an offset", aio_write, &cb);
    cb = block(pair[0], buf, PAGE, 4711);
    request("[aio_read success] a socket, with an offset", aio_read, &cb);
    bytes("from the socket", memcmp(buf, "socks", 5) == 0);
    int counter = eventfd(0, 0);
    uint64_t three = 3;
    cb = block(counter, &three, 8, 0);
    request("[aio_write success] write to an eventfd", aio_write, &cb);
    three = 0;
    request("[aio_read success] an eventfd", aio_read, &cb);
    say("the eventfd's count", "%d", (int)three);
    close(counter);
    close(pair[0]);
    close(pair[1]);
}

static void devices(void)
{
    int zero = open("/dev/zero", O_RDWR), null = open("/dev/null", O_RDWR);
    int proc = open("/proc/self/comm", O_RDWR), memory = memfd_create("m", 0);
    memset(buf, 1, PAGE);
    struct aiocb cb = block(zero, buf, PAGE, 5);
    request("[aio_read success] zero", aio_read, &cb);
    bytes("zeroes", buf[0] == 0 && buf[PAGE - 1] == 0);
    cb = block(null, buf, PAGE, 5);
    request("[aio_read success] null", aio_read, &cb);
    request("[aio_write success] write to null", aio_write, &cb);
    cb = block(proc, buf, PAGE, 0);
    request("[aio_read success] a file in proc", aio_read, &cb);
    cb = block(memory, "memory", 6, 10);
    request("[aio_write success] write to a memfd", aio_write, &cb);
    cb = block(memory, buf, PAGE, 8);
    request("[aio_read success] a memfd", aio_read, &cb);
    bytes("from the memfd", memcmp(buf, "\0\0memory", 8) == 0);
    close(zero);
    close(null);
    close(proc);
    close(memory);
}

static void named_pipe_and_terminal(void)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/fifo", getenv("TMPDIR"));
    if (mkfifo(path, 0600))
        die("mkfifo");
    int fifo = open(path, O_RDWR), master = posix_openpt(O_RDWR | O_NOCTTY);
    unlink(path);
    struct aiocb cb = block(fifo, "named", 5, 3);
    request("[aio_write success] write to a named pipe", aio_write, &cb);
    cb = block(fifo, buf, PAGE, 0);
    request("[aio_read success] a named pipe", aio_read, &cb);
    close(fifo);
    if (master < 0 || grantpt(master) || unlockpt(master))
        die("a terminal");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    cb = block(slave, buf, PAGE, 7);
    if (aio_read(&cb))
        die("aio_read");
    struct aiocb line = block(master, "a line\nthe next", 15, 0);
    request("[aio_write success] write to a terminal", aio_write, &line);
    finish(&cb);
    say("[aio_read success] a line of a terminal", "%s", state(&cb));
    close(slave);
    close(master);
}

/* An append goes to the end of the file and ignores the offset. */
static void append(void)
{
    int fd = temp_file(100), other = reopen(fd, O_RDWR | O_APPEND);
    struct aiocb cb = block(other, "tail", 4, 0);
    request("[aio_write success] append", aio_write, &cb);
    char back[4] = "";
    if (pread(fd, back, 4, 100) != 4)
        die("pread");
    bytes("it is at the end", memcmp(back, "tail", 4) == 0);
    cb = block(other, buf, 4, 100);
    request("[aio_read success] read where it was opened for appending", aio_read, &cb);
    bytes("the bytes there", memcmp(buf, "tail", 4) == 0);
    close(other);
    close(fd);
}

int main(void)
{
    buf = pages(2 * PAGE);
    regular();
    large();
    direct();
    streams();
    devices();
    named_pipe_and_terminal();
    append();
    return 0;
}
