/* A program with an allocator of its own, which makes system calls by number and is used from the first instruction on. */
#include "common.h"
#include <stdalign.h>

static _Alignas(64) unsigned char heap[64 << 20];
static size_t used;
static long calls, foreign;
static int lock;

static void *take(size_t size, size_t alignment)
{
    /* Not to be entered twice by one thread, as it would be from a signal handler or from syscall() itself. */
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        syscall(SYS_sched_yield);
    if (syscall(SYS_gettid) <= 0)
        abort();
    calls++;
    size_t at = (used + 16 + alignment - 1) / alignment * alignment;
    if (at + size > sizeof heap)
        abort();
    *(size_t *)(heap + at - 8) = size;
    used = at + size;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    return heap + at;
}

void *malloc(size_t size)
{
    return take(size, 16);
}

void free(void *at)
{
    if (at && ((unsigned char *)at < heap || (unsigned char *)at >= heap + sizeof heap))
        foreign++;
}

void *calloc(size_t n, size_t size)
{
    return take(n * size, 16);
}

void *realloc(void *old, size_t size)
{
    void *new = take(size, 16);
    if (old) {
        size_t before = *(size_t *)((unsigned char *)old - 8);
        memcpy(new, old, before < size ? before : size);
    }
    return new;
}

void *memalign(size_t alignment, size_t size)
{
    return take(size, alignment < 16 ? 16 : alignment);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
    *at = memalign(alignment, size);
    return 0;
}

int main(void)
{
    int fd = temp_file(64 * PAGE), direct = reopen(fd, O_RDWR | O_DIRECT);
    static struct iocb iocbs[64];
    struct iocb *list[64];
    struct io_event events[64];
    unsigned char *buf = pages(64 * PAGE);
    io_context_t ctx = setup(64);
    long right = 0, settled = 0, settled_at = 0;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < 64; i++) {
            list[i] = &iocbs[i];
            io_prep_pread(list[i], direct >= 0 && round % 2 ? direct : fd, buf + i * PAGE, PAGE, i * PAGE);
        }
        if (io_submit(ctx, 64, list) != 64)
            die("submit");
        reap(ctx, 64, events);
        for (int i = 0; i < 64; i++)
            right += events[i].res == PAGE && holds(buf + (events[i].obj - iocbs) * PAGE, PAGE, (size_t)(events[i].obj - iocbs) * PAGE);
        if (round == 199) {
            settled = calls;
            settled_at = right;
        }
    }
    say("right", "%ld", right);
    /* Threads come and go, and take memory; requests do not. */
    yes("under one allocation in 16 requests", (calls - settled) * 16 < right - settled_at);
    answer("destroy", io_destroy(ctx));
    yes("it was used", calls > 0);
    say("freed what was not its own", "%ld", foreign);
    return 0;
}
