/* PREAD and PWRITE: data, counts, ends of files, other kinds of descriptor. */
#include "common.h"

#define BLOCKS 16

static void blocks(io_context_t ctx, int fd, const char *kind)
{
    static unsigned char want[BLOCKS][PAGE], got[BLOCKS][PAGE];
    struct iocb iocbs[BLOCKS], *list[BLOCKS];
    struct io_event events[BLOCKS];
    char name[96];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            memset(want[i], 'a' + i, PAGE);
            list[i] = &iocbs[i];
            if (round == 0)
                io_prep_pwrite(list[i], fd, want[i], PAGE, (long long)i * PAGE);
            else
                io_prep_pread(list[i], fd, got[i], PAGE, (long long)i * PAGE);
            list[i]->data = (void *)(uintptr_t)(i + 1);
        }
        snprintf(name, sizeof name, "%s, %s, submit of %d", kind, round ? "read" : "write", BLOCKS);
        answer(name, io_submit(ctx, BLOCKS, list));
        reap(ctx, BLOCKS, events);
        int seen = 0, right = 0;
        for (int i = 0; i < BLOCKS; i++) {
            long which = events[i].obj - iocbs;
            if (which < 0 || which >= BLOCKS)
                die("an event without a request");
            seen |= 1 << which;
            right += events[i].res == PAGE && events[i].res2 == 0 &&
                     events[i].data == (void *)(uintptr_t)(which + 1);
        }
        snprintf(name, sizeof name, "%s, %s, each once", kind, round ? "read" : "write");
        yes(name, seen == (1 << BLOCKS) - 1);
        snprintf(name, sizeof name, "%s, %s, right", kind, round ? "read" : "write");
        say(name, "%d", right);
    }
    snprintf(name, sizeof name, "%s, equal bytes", kind);
    yes(name, memcmp(want, got, sizeof want) == 0);
}

int main(void)
{
    io_context_t ctx = setup(64);
    int fd = temp_file(10 * PAGE + 100);
    struct iocb iocb;
    unsigned char *buf = pages(64 * PAGE);

    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    request(ctx, "read", &iocb);
    yes("read, bytes", holds(buf, PAGE, 0));
    io_prep_pread(&iocb, fd, buf, 4097, 4095);
    request(ctx, "read over page borders", &iocb);
    yes("read over page borders, bytes", holds(buf, 4097, 4095));
    io_prep_pread(&iocb, fd, buf, 1, 777);
    request(ctx, "read of 1", &iocb);
    yes("read of 1, bytes", holds(buf, 1, 777));
    io_prep_pread(&iocb, fd, buf, 64 * PAGE, 0);
    request(ctx, "read longer than the file", &iocb);
    yes("read longer than the file, bytes", holds(buf, 10 * PAGE + 100, 0));
    io_prep_pread(&iocb, fd, buf, PAGE, 10 * PAGE + 50);
    request(ctx, "read over the end", &iocb);
    io_prep_pread(&iocb, fd, buf, PAGE, 10 * PAGE + 100);
    request(ctx, "read at the end", &iocb);
    io_prep_pread(&iocb, fd, buf, PAGE, 1LL << 40);
    request(ctx, "read far behind the end", &iocb);
    io_prep_pread(&iocb, fd, buf, 0, 0);
    request(ctx, "read of 0", &iocb);
    io_prep_pwrite(&iocb, fd, buf, 0, 0);
    request(ctx, "write of 0", &iocb);
    memset(buf, 'w', PAGE);
    io_prep_pwrite(&iocb, fd, buf, 511, 20 * PAGE);
    request(ctx, "write behind the end", &iocb);
    struct stat stat;
    fstat(fd, &stat);
    say("size after it", "%lld", (long long)stat.st_size);
    io_prep_pread(&iocb, fd, buf, PAGE, 15 * PAGE);
    request(ctx, "read of the hole", &iocb);
    yes("the hole is zero", buf[0] == 0 && memcmp(buf, buf + 1, PAGE - 1) == 0);
    say("file position", "%lld", (long long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 123, SEEK_SET);
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    request(ctx, "read while the position is elsewhere", &iocb);
    say("file position afterwards", "%lld", (long long)lseek(fd, 0, SEEK_CUR));

    blocks(ctx, fd, "buffered");
    int other = reopen(fd, O_RDWR | O_DSYNC);
    blocks(ctx, other, "O_DSYNC");
    close(other);
    other = reopen(fd, O_RDWR | O_NONBLOCK);
    blocks(ctx, other, "O_NONBLOCK");
    close(other);

    other = unseen(reopen(fd, O_WRONLY));
    io_prep_pread(&iocb, other, buf, PAGE, 0);
    request(ctx, "read of a write-only descriptor", &iocb);
    io_prep_pwrite(&iocb, other, buf, PAGE, 0);
    request(ctx, "write to a write-only descriptor", &iocb);
    close(other);
    other = unseen(reopen(fd, O_RDONLY));
    io_prep_pwrite(&iocb, other, buf, PAGE, 0);
    request(ctx, "write to a read-only descriptor", &iocb);
    io_prep_pwrite(&iocb, other, buf, 0, 0);
    request(ctx, "write of 0 to a read-only descriptor", &iocb);
    close(other);
    other = unseen(reopen(fd, O_PATH));
    io_prep_pread(&iocb, other, buf, PAGE, 0);
    request(ctx, "read of an O_PATH descriptor", &iocb);
    close(other);

    int ends[2];
    if (pipe2(ends, O_NONBLOCK))
        die("pipe");
    io_prep_pread(&iocb, ends[0], buf, 8, 0);
    request(ctx, "read of an empty pipe without waiting", &iocb);
    io_prep_pwrite(&iocb, ends[1], "twelve bytes", 12, 0);
    request(ctx, "write to a pipe", &iocb);
    io_prep_pread(&iocb, ends[0], buf, 6, 0);
    request(ctx, "read of a pipe", &iocb);
    io_prep_pread(&iocb, ends[0], buf + 6, 100, 4711);
    request(ctx, "read of a pipe, with an offset", &iocb);
    yes("pipe bytes", memcmp(buf, "twelve bytes", 12) == 0);
    io_prep_pwrite(&iocb, ends[0], buf, 8, 0);
    request(ctx, "write to the read end", &iocb);
    close(ends[1]);
    io_prep_pread(&iocb, ends[0], buf, 8, 0);
    request(ctx, "read of a pipe without writers", &iocb);
    close(ends[0]);
    if (pipe(ends))
        die("pipe");
    signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    io_prep_pwrite(&iocb, ends[1], buf, 8, 0);
    request(ctx, "write to a pipe without readers", &iocb);
    close(ends[1]);

    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    io_prep_pwrite(&iocb, pair[0], "socket", 6, 0);
    request(ctx, "write to a socket", &iocb);
    io_prep_pread(&iocb, pair[1], buf, 3, 0);
    request(ctx, "read of a socket", &iocb);
    io_prep_pread(&iocb, pair[1], buf + 3, 8, 5);
    request(ctx, "read of a socket, with an offset", &iocb);
    close(pair[0]);
    close(pair[1]);

    struct { const char *path, *name; int flags; } devices[] = {
        {"/dev/zero", "zero", O_RDWR},
        {"/dev/null", "null", O_RDWR},
        {"/dev/full", "full", O_RDWR},
        {"/proc/self/status", "proc", O_RDONLY},
    };
    for (size_t i = 0; i < COUNT(devices); i++) {
        char name[64];
        int device = open(devices[i].path, devices[i].flags);
        if (device < 0)
            die("cannot open %s", devices[i].path);
        memset(buf, 1, PAGE);
        io_prep_pread(&iocb, device, buf, 16, 0);
        snprintf(name, sizeof name, "read of %s", devices[i].name);
        request(ctx, name, &iocb);
        io_prep_pwrite(&iocb, device, buf, 16, 0);
        snprintf(name, sizeof name, "write to %s", devices[i].name);
        request(ctx, name, &iocb);
        close(device);
    }
    int counter = eventfd(3, 0);
    io_prep_pread(&iocb, counter, buf, 8, 0);
    request(ctx, "read of an eventfd", &iocb);
    io_prep_pwrite(&iocb, counter, buf, 8, 0);
    request(ctx, "write to an eventfd", &iocb);
    int folder = open("/", O_RDONLY | O_DIRECTORY);
    io_prep_pread(&iocb, folder, buf, 8, 0);
    request(ctx, "read of a directory", &iocb);

    /* The request is copied at submit: its iocb may be used again at once. */
    struct iocb *list = &iocb;
    struct io_event events[32];
    for (int i = 0; i < 32; i++) {
        io_prep_pread(&iocb, fd, buf + i * PAGE, PAGE, (long long)(i % 8) * PAGE);
        iocb.data = (void *)(uintptr_t)i;
        if (io_submit(ctx, 1, &list) != 1)
            die("submit");
        memset(&iocb, 0xff, sizeof iocb);
    }
    reap(ctx, 32, events);
    unsigned sum = 0;
    int right = 0;
    for (int i = 0; i < 32; i++) {
        sum += (unsigned)(uintptr_t)events[i].data;
        right += events[i].res == PAGE && events[i].obj == &iocb;
    }
    say("one request block used 32 times", "%d right, tags add up to %u", right, sum);
    answer("destroy", io_destroy(ctx));
    return 0;
}
