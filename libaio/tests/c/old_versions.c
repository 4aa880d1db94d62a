/* The symbols at LIBAIO_0.1 that have newer versions: other arguments, the same contexts. */
#include "common.h"
#include <dlfcn.h>

int main(void)
{
    int (*cancel)(io_context_t, struct iocb *) = dlvsym(RTLD_DEFAULT, "io_cancel", "LIBAIO_0.1");
    int (*wait)(io_context_t, struct timespec *) =
        dlvsym(RTLD_DEFAULT, "io_queue_wait", "LIBAIO_0.1");
    int (*getevents)(io_context_t, long, struct io_event *, const struct timespec *) =
        dlvsym(RTLD_DEFAULT, "io_getevents", "LIBAIO_0.1");
    yes("all three are there", cancel && wait && getevents);
    yes("they are not the new ones",
        (void *)cancel != (void *)io_cancel && (void *)getevents != (void *)io_getevents);
    struct {
        const char *name, *version;
    } names[] = {
        {"io_submit", "LIBAIO_0.1"},     {"io_queue_init", "LIBAIO_0.1"},
        {"io_queue_run", "LIBAIO_0.1"},  {"io_queue_release", "LIBAIO_0.1"},
        {"io_setup", "LIBAIO_0.4"},      {"io_destroy", "LIBAIO_0.4"},
        {"io_cancel", "LIBAIO_0.4"},     {"io_getevents", "LIBAIO_0.4"},
        {"io_queue_wait", "LIBAIO_0.4"}, {"io_pgetevents", "LIBAIO_0.5"},
        {"io_setup", "LIBAIO_0.1"},      {"io_submit", "LIBAIO_0.4"},
        {"io_pgetevents", "LIBAIO_0.4"},
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s at %s", names[i].name, names[i].version);
        yes(name, dlvsym(RTLD_DEFAULT, names[i].name, names[i].version) != NULL);
    }
    if (!cancel || !wait || !getevents)
        return 0;

    io_context_t ctx = setup(16);
    int fd = temp_file(4 * PAGE), ends[2];
    static unsigned char buf[PAGE];
    struct iocb iocb, *list[3] = {&iocb, &iocb, &iocb};
    struct io_event events[4];
    struct timespec zero = {0, 0}, tenth = {0, 100000000};
    if (pipe(ends))
        die("pipe");
    answer("getevents, empty, no time", getevents(ctx, 4, events, &zero));
    double start = now();
    answer("getevents, empty, 100 ms", getevents(ctx, 4, events, &tenth));
    yes("it waits for one", now() - start >= 0.1);
    answer("getevents of 0, empty, 100 ms", getevents(ctx, 0, events, &tenth));
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    answer("submit", io_submit(ctx, 3, list));
    while (ready(ctx) < 3)
        usleep(1000);
    answer("getevents, forever", getevents(ctx, 2, events, NULL));
    answer("getevents, the rest", getevents(ctx, 4, events, &tenth));
    answer("getevents of a bad context", getevents(NULL, 4, events, &tenth));
    answer("wait, empty, 100 ms", wait(ctx, &tenth));
    answer("wait, empty, no time", wait(ctx, &zero));
    answer("wait, empty, forever", wait(ctx, NULL));

    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("submit a poll", submit1(ctx, &iocb));
    answer("cancel", cancel(ctx, &iocb));
    answer("cancel again", cancel(ctx, &iocb));
    answer("getevents after cancel", getevents(ctx, 4, events, NULL));
    answer("its result", (long)events[0].res);
    answer("cancel in a bad context", cancel(NULL, &iocb));
    answer("destroy", io_destroy(ctx));
    return 0;
}
