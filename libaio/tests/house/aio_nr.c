/* Prints by how much a context with direct reads raises the host's fs.aio-nr, and how many contexts
 * can be made with few descriptors. Other programs make and end contexts meanwhile. So a reading
 * counts only if fs.aio-nr is the same before and after it. A figure counts if at least AGREE
 * readings agree on it, and at most half as many agree on any other figure. */
#include "../c/common.h"
#include <sys/resource.h>

enum { LOOKS = 1000, AGREE = 16, READS = 8, MANY = 1000 };

static int fd;

static long figure(const char *path)
{
    char text[32] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) {
        fprintf(stderr, "SKIPPED: %s cannot be read\n", path);
        exit(0);
    }
    close(file);
    return atol(text);
}

/* Makes a context for `n` requests, and reads with it. */
static io_context_t used(int n)
{
    static unsigned char buf[READS * PAGE] __attribute__((aligned(PAGE)));
    static struct iocb iocbs[READS];
    struct io_event events[READS];
    io_context_t ctx = setup(n);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < READS; i++) {
            struct iocb *list = &iocbs[i];
            io_prep_pread(list, fd, buf + i * PAGE, PAGE, (long long)i * PAGE);
            if (io_submit(ctx, 1, &list) != 1)
                die("submit");
        }
        reap(ctx, READS, events);
        for (int i = 0; i < READS; i++)
            if (events[i].res != PAGE)
                die("read: %s", code((long)events[i].res));
    }
    return ctx;
}

static int count(const long *all, int looks, long one)
{
    int found = 0;
    for (int i = 0; i < looks; i++)
        found += all[i] == one;
    return found;
}

static void taken_by(int n)
{
    long taken[LOOKS];
    int looks = 0;
    char name[64];
    snprintf(name, sizeof name, "a context for %d takes", n);
    for (int i = 0; i < LOOKS; i++) {
        long before = figure("/proc/sys/fs/aio-nr");
        io_context_t ctx = used(n);
        long between = figure("/proc/sys/fs/aio-nr");
        io_destroy(ctx);
        if (figure("/proc/sys/fs/aio-nr") != before)
            continue;
        long one = taken[looks++] = between - before;
        int agree = count(taken, looks, one), most = 0;
        for (int j = 0; j < looks; j++)
            if (taken[j] != one && count(taken, looks, taken[j]) > most)
                most = count(taken, looks, taken[j]);
        if (agree >= AGREE && agree >= 2 * most) {
            answer(name, one);
            return;
        }
    }
    die("no %d of %d looks agree", AGREE, LOOKS);
}

int main(void)
{
    static io_context_t many[MANY];
    int plain = temp_file(READS * PAGE), made = 0, got = 0;
    fd = reopen(plain, O_RDONLY | O_DIRECT);
    if (fd < 0) {
        fprintf(stderr, "SKIPPED: no direct reads here\n");
        return 0;
    }
    if (figure("/proc/sys/fs/aio-max-nr") - figure("/proc/sys/fs/aio-nr") < 8 * MANY) {
        fprintf(stderr, "SKIPPED: little is left of fs.aio-max-nr\n");
        return 0;
    }
    taken_by(1);
    taken_by(8);
    taken_by(200);
    struct rlimit few = {128, 128};
    if (setrlimit(RLIMIT_NOFILE, &few))
        die("setrlimit");
    while (made < MANY && !(got = io_setup(1, &many[made])))
        made++;
    say("contexts with few descriptors", "%d, then %s", made, code(got));
    return 0;
}
