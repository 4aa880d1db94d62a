/* A full file system: ENOSPC for writes, no error for reads. Needs a mount of its own. */
#include "common.h"
#include <sys/mount.h>

int main(void)
{
    const char *folder = getenv("TMPDIR");
    char path[PATH_MAX], file[PATH_MAX + 8];
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
        skip("needs a mount namespace: root, or user namespaces");
    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    snprintf(path, sizeof path, "%s/full-XXXXXX", folder ? folder : "/tmp");
    if (!mkdtemp(path))
        die("mkdtemp");
    if (mount("tmpfs", path, "tmpfs", 0, "size=64k")) {
        rmdir(path);
        skip("cannot mount a tmpfs here");
    }
    snprintf(file, sizeof file, "%s/f", path);
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    if (fd < 0)
        die("cannot open %s", file);

    io_context_t ctx = setup(64);
    static unsigned char block[PAGE], back[PAGE];
    static struct iocb iocbs[32];
    struct iocb *list[32], iocb;
    static struct io_event events[32];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 32; i++) {
        list[i] = &iocbs[i];
        io_prep_pwrite(list[i], fd, block, PAGE, (long long)i * PAGE);
    }
    answer("submit 32 writes to 16 pages", io_submit(ctx, 32, list));
    reap(ctx, 32, events);
    int written = 0, full = 0;
    for (int i = 0; i < 32; i++) {
        written += (long)events[i].res == PAGE;
        full += (long)events[i].res == -ENOSPC;
    }
    say("written, full", "%d, %d", written, full);
    io_prep_pwrite(&iocb, fd, block, PAGE, 100 * PAGE);
    request(ctx, "one more write", &iocb);
    io_prep_pread(&iocb, fd, back, PAGE, 0);
    request(ctx, "a read beside it", &iocb);
    io_prep_fsync(&iocb, fd);
    request(ctx, "an fsync beside it", &iocb);
    if (ftruncate(fd, 0))
        die("ftruncate");
    static unsigned char large[20 * PAGE];
    io_prep_pwrite(&iocb, fd, large, sizeof large, 0);
    request(ctx, "a write that fits in part", &iocb);
    answer("destroy", io_destroy(ctx));
    close(fd);
    if (umount2(path, MNT_DETACH) || rmdir(path))
        die("umount");
    return 0;
}
