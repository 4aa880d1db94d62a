/* Contexts leave no descriptor and no memory behind. */
#include <dirent.h>

#include "check.h"

/* Threads of the engine come and go with at most this many descriptors of their own. A
 * descriptor for each context, or for each tenth, would be more. */
#define OF_THREADS 10

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    CHECK(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static long kib(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;

    CHECK(file);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "VmData: %ld kB", &kib) == 1)
            break;
    fclose(file);
    CHECK(kib > 0);
    return kib;
}

static void use_one(int file, int pipe, int with_event_fd)
{
    struct uringlet *u = context(16);
    char bufs[8][8];

    if (with_event_fd)
        CHECK(uringlet_event_fd(u) >= 0);
    for (unsigned at = 0; at < 8; at++)
        uringlet_prep_read(entry(u), file, bufs[at], 8, at);
    CHECK(uringlet_wait(u, 8, -1) == 8);
    /* Some requests are left in flight, some unreaped, some not submitted. */
    uringlet_prep_read(entry(u), pipe, bufs[0], 1, URINGLET_FILE_POSITION);
    EQUAL(uringlet_submit(u), 1);
    uringlet_prep_nop(entry(u));
    EQUAL(uringlet_destroy(u, -1), 0);
}

int main(void)
{
    const char *engine = getenv("URINGLET_TEST_ENGINE");
    /* The kernel takes milliseconds to destroy a context of its own. */
    int is_kernels = engine && strchr(engine, '_');
    int first = is_kernels ? 20 : 200, rounds = is_kernels ? 100 : 5000;
    int together = is_kernels ? 20 : 2000;
    int file = file_of("some content of it", 18), pipes[2], before;
    long memory, grown = 0;

    EQUAL(pipe(pipes), 0);
    for (int at = 0; at < first; at++)
        use_one(file, pipes[0], at % 2);
    /* In some passes, a thread of the engine starts, with descriptors and a stack. A leak shows in
     * every pass, so one pass without growth is enough. */
    for (int pass = 0; pass < 5; pass++) {
        before = descriptors();
        memory = kib();
        for (int at = 0; at < rounds; at++)
            use_one(file, pipes[0], at % 2);
        grown = kib() - memory;
        if (descriptors() <= before && grown < 4096)
            break;
    }
    CHECK(descriptors() < before + OF_THREADS);
    CHECK(grown < 4096);
    /* Now many contexts exist at the same time. */
    {
        static struct uringlet *many[2000];

        for (int at = 0; at < together; at++)
            many[at] = context(8);
        for (int at = 0; at < together; at++)
            EQUAL(uringlet_destroy(many[at], -1), 0);
    }
    CHECK(descriptors() < before + OF_THREADS);
    return EXIT_SUCCESS;
}
