/* unload LIBRARY: loads the library, and unloads it while its threads are running. Does both a
 * second time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <libaio.h>

#define CHECK(truth) \
    do { \
        if (!(truth)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #truth); \
            exit(1); \
        } \
    } while (0)

static char buf[4096];

/* True if a thread with a name of the library's threads exists. */
static int threads(void)
{
    char command[128];
    snprintf(command, sizeof command, "grep -qs '^uringlet-' /proc/%d/task/*/comm", getpid());
    return system(command) == 0;
}

int main(int argc, char **argv)
{
    int ends[2];
    CHECK(argc == 2 && pipe(ends) == 0);
    int fd = open("/proc/self/exe", O_RDONLY);
    CHECK(fd >= 0);
    for (int round = 0; round < 2; round++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        int (*setup)(int, io_context_t *) =
            (int (*)(int, io_context_t *))dlvsym(library, "io_setup", "LIBAIO_0.4");
        int (*submit)(io_context_t, long, struct iocb **) =
            (int (*)(io_context_t, long, struct iocb **))dlsym(library, "io_submit");
        int (*get)(io_context_t, long, long, struct io_event *, struct timespec *) =
            (int (*)(io_context_t, long, long, struct io_event *, struct timespec *))dlsym(
                library, "io_getevents");
        int (*destroy)(io_context_t) = (int (*)(io_context_t))dlsym(library, "io_destroy");
        CHECK(setup && submit && get && destroy);
        io_context_t ctx = NULL;
        CHECK(setup(8, &ctx) == 0);
        struct iocb iocb, wait, *list[] = {&iocb, &wait};
        struct io_event events[2];
        io_prep_pread(&iocb, fd, buf, sizeof buf, 0);
        io_prep_poll(&wait, ends[0], POLLIN);
        CHECK(submit(ctx, 2, list) == 2);
        CHECK(write(ends[1], "x", 1) == 1 && get(ctx, 2, 2, events, NULL) == 2);
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
        CHECK(threads());
        CHECK(destroy(ctx) == 0);
        CHECK(dlclose(library) == 0);
        /* After dlclose(3), the threads still run code of the library until they end. */
        for (int i = 0; threads(); i++) {
            CHECK(i < 2000);
            usleep(10000);
        }
    }
    puts("unloaded twice");
    return 0;
}
