/* A million invalid handles for each call. The library refuses each of them, and reads no memory
 * through it. */
#include "common.h"

#define HANDLES 1000000

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Returns a value that is no handle: any value, a value near a real or a stale handle, or an
 * address of the program. */
static io_context_t forged(uintptr_t live, uintptr_t gone)
{
    static char mine[64];
    uintptr_t handle;
    switch (random64() % 8) {
    case 0: handle = random64() >> random64() % 64; break;
    case 1: handle = random64() & 0x7ffffffff000; break;
    case 2: handle = live + (random64() % 0x10000) * PAGE; break;
    case 3: handle = live - (random64() % 0x10000) * PAGE; break;
    case 4: handle = live + 1 + random64() % (PAGE - 1); break;
    case 5: handle = gone; break;
    case 6: handle = gone + (random64() % 16) * 64; break;
    default: handle = (uintptr_t)mine + random64() % 64; break;
    }
    return (io_context_t)(handle == live ? 0 : handle);
}

static long by_number(long number, io_context_t ctx, long a, void *b, void *c, void *d)
{
    long got = syscall(number, ctx, a, b, c, d, NULL);
    return got < 0 ? -errno : got;
}

int main(void)
{
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    struct timespec zero = {0, 0};
    static unsigned char buf[PAGE];
    int fd = temp_file(PAGE);
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    io_context_t live = setup(8), gone = setup(8);
    io_destroy(gone);
    long refused[8] = {0};
    for (int i = 0; i < HANDLES; i++) {
        io_context_t ctx = forged((uintptr_t)live, (uintptr_t)gone);
        refused[0] += io_submit(ctx, 1, &list) == -EINVAL;
        refused[1] += io_cancel(ctx, &iocb, &event) == -EINVAL;
        refused[2] += io_destroy(ctx) == -EINVAL;
        /* These calls are by number, because the original's functions read the ring at the
         * handle's address. */
        refused[3] += by_number(SYS_io_getevents, ctx, 1, (void *)1, &event, &zero) == -EINVAL;
        refused[4] += by_number(SYS_io_pgetevents, ctx, 1, (void *)1, &event, &zero) == -EINVAL;
        refused[5] += by_number(SYS_io_submit, ctx, 1, &list, NULL, NULL) == -EINVAL;
        refused[6] += by_number(SYS_io_destroy, ctx, 0, NULL, NULL, NULL) == -EINVAL;
    }
    static const char *const names[] = {"io_submit",
                                        "io_cancel",
                                        "io_destroy",
                                        "io_getevents by number",
                                        "io_pgetevents by number",
                                        "io_submit by number",
                                        "io_destroy by number"};
    for (size_t i = 0; i < COUNT(names); i++)
        say(names[i], "%ld of %d refused", refused[i], HANDLES);
    const char *expected = getenv("LIBAIO_EXPECTED");
    if (expected && strcmp(expected, "original"))
        for (int i = 0; i < HANDLES; i++) {
            io_context_t ctx = forged((uintptr_t)live, (uintptr_t)gone);
            if (io_getevents(ctx, 1, 1, &event, &zero) != -EINVAL ||
                io_pgetevents(ctx, 0, 1, &event, NULL, NULL) != -EINVAL ||
                io_queue_run(ctx) != -EINVAL || io_queue_wait(ctx, &zero) != -EINVAL ||
                io_queue_release(ctx) != -EINVAL)
                die("handle %p is followed", (void *)ctx);
        }
    request(live, "the real one still works", &iocb);
    answer("destroy", io_destroy(live));
    return 0;
}
