/* Bad buffers, lengths, offsets and files: each gives its errno and nothing else. */
#include "common.h"

static io_context_t ctx;
static struct iocb iocb;

static void reads(const char *name, int fd, void *buf, size_t n, long long offset)
{
    char line[96];
    io_prep_pread(&iocb, fd, buf, n, offset);
    snprintf(line, sizeof line, "read, %s", name);
    request(ctx, line, &iocb);
}

static void writes(const char *name, int fd, void *buf, size_t n, long long offset)
{
    char line[96];
    io_prep_pwrite(&iocb, fd, buf, n, offset);
    snprintf(line, sizeof line, "write, %s", name);
    request(ctx, line, &iocb);
}

static void both(const char *name, int fd, void *buf, size_t n, long long offset)
{
    reads(name, fd, buf, n, offset);
    writes(name, fd, buf, n, offset);
}

int main(void)
{
    ctx = setup(64);
    int fd = temp_file(4 * PAGE);
    unsigned char *buf = pages(8 * PAGE), *edge = last_page();

    both("NULL buffer", fd, NULL, PAGE, 0);
    both("NULL buffer, length 0", fd, NULL, 0, 0);
    both("bad address", fd, UNMAPPED, PAGE, 0);
    both("bad address, length 0", fd, UNMAPPED, 0, 0);
    both("kernel address", fd, KERNEL_ADDRESS, 512, 0);
    both("half of the buffer is mapped", fd, edge, 2 * PAGE, 0);
    both("nothing of the buffer is mapped", fd, edge + PAGE, PAGE, 0);
    unsigned char *frozen = pages(PAGE), *closed_page = pages(PAGE);
    mprotect(frozen, PAGE, PROT_READ);
    mprotect(closed_page, PAGE, PROT_NONE);
    both("read-only buffer", fd, frozen, PAGE, 0);
    both("forbidden buffer", fd, closed_page, PAGE, 0);
    int small = temp_file(2 * PAGE);
    unsigned char *mapped = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, small, 0);
    if (mapped == MAP_FAILED || ftruncate(small, 0))
        die("mmap");
    both("buffer behind the end of its file", fd, mapped, PAGE, 0);

    reads("length SSIZE_MAX", fd, buf, SSIZE_MAX, 2 * PAGE);
    both("length SSIZE_MAX + 1", fd, buf, (size_t)SSIZE_MAX + 1, 0);
    both("length SIZE_MAX", fd, buf, SIZE_MAX, 0);
    reads("length 4 GiB + 16", fd, buf, (1UL << 32) + 16, 2 * PAGE);
    reads("length 4 GiB", fd, buf, 1UL << 32, 2 * PAGE);
    both("offset -1", fd, buf, PAGE, -1);
    both("offset -2", fd, buf, PAGE, -2);
    both("offset LLONG_MIN", fd, buf, PAGE, LLONG_MIN);
    both("offset LLONG_MAX", fd, buf, PAGE, LLONG_MAX);
    both("offset LLONG_MAX - 100", fd, buf, PAGE, LLONG_MAX - 100);
    reads("offset 2^62", fd, buf, PAGE, 1LL << 62);
    writes("offset 2^62", fd, buf, PAGE, 1LL << 62);
    both("offset -1, length 0", fd, buf, 0, -1);
    both("closed descriptor", 900, buf, PAGE, 0);
    both("closed descriptor and NULL buffer", 900, NULL, PAGE, 0);

    int listener = listening();
    both("listening socket", listener, buf, PAGE, 0);
    close(listener);

    int seen = reopen(fd, O_RDWR);
    both("descriptor still open", seen, buf, PAGE, 0);
    close(seen);
    both("descriptor closed after use", seen, buf, PAGE, 0);
    int folder = open("/", O_RDONLY | O_DIRECTORY);
    if (folder != seen)
        dup2(folder, seen);
    both("number is a folder since", seen, buf, PAGE, 0);

    int cut = temp_file(16 * PAGE);
    reads("before the file is cut", cut, buf, PAGE, 8 * PAGE);
    if (ftruncate(cut, 8 * PAGE + 10))
        die("ftruncate");
    reads("file cut to 10 bytes of it", cut, buf, PAGE, 8 * PAGE);
    if (ftruncate(cut, PAGE))
        die("ftruncate");
    reads("file cut before it", cut, buf, PAGE, 8 * PAGE);

    struct { unsigned long soft, hard; } limit = {3 * PAGE, (unsigned long)-1};
    if (syscall(SYS_prlimit64, 0, 1, &limit, NULL))
        die("prlimit");
    writes("below RLIMIT_FSIZE", cut, buf, PAGE, 2 * PAGE);
    writes("over RLIMIT_FSIZE", cut, buf, 2 * PAGE, 2 * PAGE);
    /* SIGXFSZ had its default action until here: a partial write must not raise it. */
    signal(SIGXFSZ, SIG_IGN);
    writes("behind RLIMIT_FSIZE", cut, buf, PAGE, 3 * PAGE);
    limit.soft = (unsigned long)-1;
    if (syscall(SYS_prlimit64, 0, 1, &limit, NULL))
        die("prlimit");

    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        both("direct", direct, buf, PAGE, 0);
        both("direct, odd buffer", direct, buf + 1, PAGE, 0);
        both("direct, odd length", direct, buf, 100, 0);
        both("direct, odd offset", direct, buf, PAGE, 100);
        both("direct, length 0", direct, buf, 0, 0);
        both("direct, NULL buffer", direct, NULL, PAGE, 0);
        both("direct, bad address", direct, (void *)PAGE, PAGE, 0);
        both("direct, read-only buffer", direct, frozen, PAGE, 0);
        both("direct, half of the buffer is mapped", direct, edge, 2 * PAGE, 0);
        reads("direct, at the end", direct, buf, PAGE, 1 << 20);
        both("direct, offset -1", direct, buf, PAGE, -1);
    } else {
        say("direct", "cannot open: %s", code(direct));
    }

    /* One bad request among many: all the others complete. */
    static struct iocb many[32];
    struct iocb *list[32];
    static struct io_event events[32];
    for (int i = 0; i < 32; i++) {
        list[i] = &many[i];
        io_prep_pread(list[i], fd, i % 4 == 1 ? UNMAPPED : buf, 512, 0);
    }
    answer("submit of 32, each fourth with a bad buffer", io_submit(ctx, 32, list));
    reap(ctx, 32, events);
    int good = 0, bad = 0;
    for (int i = 0; i < 32; i++) {
        good += (long)events[i].res == 512 && (events[i].obj - many) % 4 != 1;
        bad += (long)events[i].res == -EFAULT && (events[i].obj - many) % 4 == 1;
    }
    say("of 32", "%d good, %d bad", good, bad);
    answer("destroy", io_destroy(ctx));
    return 0;
}
