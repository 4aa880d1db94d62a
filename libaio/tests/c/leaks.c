/* Many contexts, many children and many started programs leave nothing behind: counted in
 * /proc/self. */
#include "common.h"

static int fd;
static _Alignas(PAGE) unsigned char buf[PAGE];

static long mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    long n = 0;
    for (int c; (c = getc(file)) != EOF;)
        n += c == '\n';
    fclose(file);
    return n;
}

/* Prints which call of a cycle has failed. */
static int went_wrong(const char *call, int i, long ret)
{
    fprintf(stderr, "cycle %d: %s gave %ld\n", i, call, ret);
    return 0;
}

/* Makes and destroys a context. Every tenth cycle also submits a read, so that the engine makes
 * threads and kernel contexts. */
static int cycle(int i)
{
    struct iocb iocb;
    struct io_event event;
    io_context_t ctx = NULL;
    long ret = set_up(1 + i % 64, &ctx);
    if (ret)
        return went_wrong("io_setup", i, ret);
    if (i % 10 == 0) {
        io_prep_pread(&iocb, fd, buf, PAGE, 0);
        if ((ret = submit1(ctx, &iocb)) != 1)
            return went_wrong("io_submit", i, ret);
        if (i % 20 == 0 && (ret = io_getevents(ctx, 1, 1, &event, NULL)) != 1)
            return went_wrong("io_getevents", i, ret);
        if (i % 20 == 0 && event.res != PAGE)
            return went_wrong("the read", i, event.res);
    }
    ret = io_destroy(ctx);
    return ret == 0 || went_wrong("io_destroy", i, ret);
}

/* The original's io_destroy waits for the kernel, some 10 ms each time. */
static long fewer_for_the_original(long n)
{
    return is_original() ? n / 50 : n;
}

static void all_at_once(long n)
{
    static io_context_t many[500];
    for (long i = 0; i < n; i++)
        many[i] = setup(4);
    for (long i = 0; i < n; i++)
        io_destroy(many[i]);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return strcmp(argv[1], "child") ? 1 : 0;
    fd = temp_file(16 * PAGE);
    int direct = reopen(fd, O_RDWR | O_DIRECT), plain = fd, right = 0;
    long contexts = fewer_for_the_original(10000), at_once = fewer_for_the_original(500);
    for (int i = 0; i < 100; i++)
        cycle(i);
    /* Many contexts at once come first: memory that malloc keeps after them is no leak. */
    all_at_once(at_once);
    long descriptors = open_descriptors(), maps = mappings(), memory = status("VmRSS:"),
         size = status("VmSize:");
    for (int i = 0; i < contexts; i++) {
        fd = direct >= 0 && i % 100 == 0 ? direct : plain;
        right += cycle(i);
    }
    fd = plain;
    yes("contexts are made, used and destroyed", right == contexts);
    yes("threads are at most 70", settled("Threads:", 70) <= 70);
    /* The engine may have opened descriptors of its own meanwhile. */
    yes("descriptors, at most 2 more", open_descriptors() - descriptors <= 2);
    yes("mappings, at most 150 more", mappings() - maps <= 150);
    yes("memory in use, at most 8 MiB more", status("VmRSS:") - memory <= 8 << 10);
    yes("address space, at most 1 GiB more", status("VmSize:") - size <= 1 << 20);

    for (int round = 0; round < 3; round++)
        all_at_once(at_once);
    yes("descriptors, after many at once", open_descriptors() - descriptors <= 2);
    yes("memory in use, after many at once", status("VmRSS:") - memory <= 8 << 10);

    /* Children that end while a request of the parent is in flight. */
    static struct iocb iocb;
    struct io_event event;
    int exited = 0;
    io_context_t ctx = setup(8);
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    long forks = number("URINGLET_TEST_FORKS", 2000);
    for (long i = 0; i < forks; i++) {
        if (submit1(ctx, &iocb) != 1)
            die("submit");
        pid_t pid = fork();
        if (pid == 0)
            _exit(i % 50 == 0 && !cycle(0));
        int code;
        reap(ctx, 1, &event);
        if (pid < 0 || waitpid(pid, &code, 0) != pid)
            die("fork");
        exited += code == 0 && event.res == PAGE;
    }
    yes("every child ended well", exited == forks);
    /* Programs that are started while a request is in flight. */
    long starts = number("URINGLET_TEST_EXECS", 100);
    int started = 0;
    for (long i = 0; i < starts; i++) {
        if (submit1(ctx, &iocb) != 1)
            die("submit");
        pid_t pid = i % 2 ? vfork() : fork();
        if (pid == 0) {
            execl("/proc/self/exe", argv[0], "child", NULL);
            _exit(1);
        }
        int code;
        reap(ctx, 1, &event);
        if (pid < 0 || waitpid(pid, &code, 0) != pid)
            die("fork");
        started += code == 0 && event.res == PAGE;
    }
    yes("every program started", started == starts);
    answer("destroy", io_destroy(ctx));
    yes("descriptors, in the end", open_descriptors() - descriptors <= 2);
    yes("threads, in the end", settled("Threads:", 70) <= 70);
    yes("memory in use, in the end", status("VmRSS:") - memory <= 8 << 10);
    return 0;
}
