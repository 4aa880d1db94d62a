/* A control block may be freed as soon as its completion was seen: nothing accesses it after that.
 *
 * The program executes itself again with MALLOC_PERTURB_ set, so that the C library overwrites
 * freed memory. If the C library's checking allocator is installed, the program then uses it. */
#include "common.h"

enum { ROUNDS = 300, DEPTH = 16 };
static int fd;

static void checked(char **arguments)
{
    static const char library[] = "libc_malloc_debug.so.0";
    if (getenv("MALLOC_PERTURB_"))
        return;
    char preload[2 * PATH_MAX];
    const char *before = getenv("LD_PRELOAD");
    void *there = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (there) {
        snprintf(preload, sizeof preload, "%s%s%s", before ? before : "", before ? ":" : "",
                 library);
        setenv("LD_PRELOAD", preload, 1);
        setenv("MALLOC_CHECK_", "3", 1);
    }
    setenv("MALLOC_PERTURB_", "165", 1);
    execv("/proc/self/exe", arguments);
    die("execv");
}

struct one {
    struct aiocb cb;
    unsigned char data[512];
};

static struct one *fresh(int i)
{
    struct one *one = malloc(sizeof *one);
    if (!one)
        die("malloc");
    one->cb = block(fd, one->data, sizeof one->data, i * 512);
    return one;
}

static int retire(struct one *one)
{
    int right = aio_error(&one->cb) == 0 && aio_return(&one->cb) == 512 &&
                holds(one->data, 512, (size_t)one->cb.aio_offset);
    memset(one, 0xff, sizeof *one);
    free(one);
    return right;
}

/* Polls the request in a loop, so that its end is seen as early as possible. */
static long polled(void)
{
    long right = 0;
    for (int round = 0; round < ROUNDS * DEPTH / 4; round++) {
        struct one *one = fresh(round % 32);
        if (aio_read(&one->cb))
            die("aio_read");
        while (aio_error(&one->cb) == EINPROGRESS)
            ;
        right += retire(one);
    }
    return right;
}

static long suspended(void)
{
    long right = 0;
    struct one *ones[DEPTH];
    const struct aiocb *list[DEPTH];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEPTH; i++) {
            ones[i] = fresh(i);
            list[i] = &ones[i]->cb;
            if (aio_read(&ones[i]->cb))
                die("aio_read");
        }
        for (int left = DEPTH; left;) {
            aio_suspend(list, DEPTH, NULL);
            for (int i = 0; i < DEPTH; i++)
                if (list[i] && aio_error(list[i]) != EINPROGRESS) {
                    list[i] = NULL;
                    right += retire(ones[i]);
                    left--;
                }
        }
    }
    return right;
}

static long list_waited(void)
{
    long right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct one *ones[DEPTH];
        struct aiocb **list = malloc(DEPTH * sizeof *list);
        for (int i = 0; i < DEPTH; i++) {
            ones[i] = fresh(i);
            ones[i]->cb.aio_lio_opcode = LIO_READ;
            list[i] = &ones[i]->cb;
        }
        if (lio_listio(LIO_WAIT, list, DEPTH, NULL))
            die("lio_listio");
        free(list);
        for (int i = 0; i < DEPTH; i++)
            right += retire(ones[i]);
    }
    return right;
}

static volatile int notes, right_notes;

static void note(union sigval value)
{
    int right = retire(value.sival_ptr);
    __atomic_add_fetch(&right_notes, right, __ATOMIC_RELAXED);
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELEASE);
}

/* The list, its notification and the blocks are all freed as early as possible. */
static void notified(void)
{
    for (int round = 0; round < 20; round++) {
        struct aiocb **list = malloc(DEPTH * sizeof *list);
        struct sigevent *event = calloc(1, sizeof *event);
        for (int i = 0; i < DEPTH; i++) {
            struct one *one = fresh(i);
            one->cb.aio_lio_opcode = LIO_READ;
            one->cb.aio_sigevent = (struct sigevent){.sigev_notify = SIGEV_THREAD,
                                                     .sigev_notify_function = note,
                                                     .sigev_value.sival_ptr = one};
            list[i] = &one->cb;
        }
        event->sigev_notify = SIGEV_NONE;
        if (lio_listio(LIO_NOWAIT, list, DEPTH, event))
            die("lio_listio");
        memset(event, 0xff, sizeof *event);
        free(event);
        free(list);
        until(&notes, (round + 1) * DEPTH);
    }
}

/* A cancelled request may be freed, too, when aio_cancel returns. */
static void freed_when_cancelled(void)
{
    static unsigned char byte[16];
    int ends[2], gone = 0;
    make_pipe(ends);
    struct aiocb first = block(ends[0], byte, 16, 0);
    if (aio_read(&first))
        die("aio_read");
    for (int i = 0; i < 1000; i++) {
        struct one *one = fresh(0);
        one->cb.aio_fildes = ends[0];
        if (aio_read(&one->cb))
            die("aio_read");
        gone += aio_cancel(ends[0], &one->cb) == AIO_CANCELED;
        memset(one, 0xff, sizeof *one);
        free(one);
    }
    put(ends[1], "x");
    say("[aio_cancel AIO_CANCELED] 1000 freed when cancelled", "%d, the first %d", gone,
        finish(&first));
    close(ends[0]);
    close(ends[1]);
}

int main(int count, char **arguments)
{
    (void)count;
    checked(arguments);
    fd = temp_file(4 * PAGE);
    in_child(freed_when_cancelled);
    say("[aio_error freed blocks] freed when aio_error says so", "%ld right", polled());
    say("[aio_suspend freed blocks] freed when aio_suspend returns", "%ld right", suspended());
    say("[lio_listio freed blocks] freed when lio_listio returns", "%ld right", list_waited());
    notified();
    say("[lio_listio freed blocks] freed in their notification", "%d right", right_notes);
    return 0;
}
