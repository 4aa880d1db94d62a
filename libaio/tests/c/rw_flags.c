/* aio_rw_flags: RWF_* on reads and writes, and when they are refused. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(16);
    int fd = temp_file(4 * PAGE), ends[2];
    unsigned char *buf = pages(PAGE);
    struct iovec iov = {buf, PAGE};
    struct iocb iocb;
    struct { const char *name; int flags; } flags[] = {
        {"none", 0}, {"HIPRI", 1}, {"DSYNC", 2}, {"SYNC", 4}, {"NOWAIT", 8}, {"DSYNC and SYNC", 6},
        {"NOAPPEND", 0x20}, {"ATOMIC", 0x40}, {"DONTCACHE", 0x80}, {"NOSIGNAL", 0x100},
        {"DSYNC and NOSIGNAL", 0x102}, {"bit 9", 0x200}, {"bit 20", 1 << 20},
        {"bit 30", 1 << 30}, {"the sign bit", INT_MIN}, {"all", -1}, {"APPEND and NOAPPEND", 0x30},
    };
    char name[96];
    for (size_t i = 0; i < COUNT(flags); i++) {
        io_prep_pread(&iocb, fd, buf, PAGE, 0);
        iocb.aio_rw_flags = flags[i].flags;
        snprintf(name, sizeof name, "read, %s", flags[i].name);
        request(ctx, name, &iocb);
        io_prep_preadv2(&iocb, fd, &iov, 1, 0, flags[i].flags);
        snprintf(name, sizeof name, "readv, %s", flags[i].name);
        request(ctx, name, &iocb);
        io_prep_pwrite(&iocb, fd, buf, PAGE, 0);
        iocb.aio_rw_flags = flags[i].flags;
        snprintf(name, sizeof name, "write, %s", flags[i].name);
        request(ctx, name, &iocb);
        io_prep_pwritev2(&iocb, fd, &iov, 1, 0, flags[i].flags);
        snprintf(name, sizeof name, "writev, %s", flags[i].name);
        request(ctx, name, &iocb);
    }
    struct stat stat;
    fstat(fd, &stat);
    say("size", "%lld", (long long)stat.st_size);
    io_prep_pwritev2(&iocb, fd, &iov, 1, 0, 0x10);
    request(ctx, "writev, APPEND", &iocb);
    fstat(fd, &stat);
    say("size after APPEND", "%lld", (long long)stat.st_size);
    io_prep_preadv2(&iocb, fd, &iov, 1, 0, 0x10);
    request(ctx, "readv, APPEND", &iocb);
    int append = reopen(fd, O_WRONLY | O_APPEND);
    io_prep_pwritev2(&iocb, append, &iov, 1, 0, 0x20);
    request(ctx, "writev to O_APPEND, NOAPPEND", &iocb);
    fstat(fd, &stat);
    say("size after NOAPPEND", "%lld", (long long)stat.st_size);

    if (pipe(ends))
        die("pipe");
    io_prep_pread(&iocb, ends[0], buf, 8, 0);
    iocb.aio_rw_flags = 8;
    request(ctx, "read of an empty pipe, NOWAIT", &iocb);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    request(ctx, "read of a pipe, NOWAIT", &iocb);
    close(ends[0]);
    io_prep_pwrite(&iocb, ends[1], buf, 8, 0);
    iocb.aio_rw_flags = 0x100;
    request(ctx, "write to a pipe without a reader, NOSIGNAL", &iocb);
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        io_prep_pread(&iocb, direct, buf, PAGE, 0);
        iocb.aio_rw_flags = 1;
        request(ctx, "direct read, HIPRI", &iocb);
        io_prep_pwrite(&iocb, direct, buf, PAGE, 0);
        iocb.aio_rw_flags = 2;
        request(ctx, "direct write, DSYNC", &iocb);
    }
    answer("destroy", io_destroy(ctx));
    return 0;
}
