/* An allocator of the program's own, which makes system calls by number and is used from the
 * first instruction on. Also counts new threads, which allocate. */
#include <dlfcn.h>

/* `odd` makes the heap begin at an unaligned address. */
static _Alignas(128) struct { char odd[65]; unsigned char heap[64 << 20]; } memory;
#define heap memory.heap
static size_t used;
static long calls, foreign, threads;
static int lock;

static void *take(size_t size, size_t alignment)
{
    /* A thread that has the lock would wait here without end. So neither a signal handler nor
     * syscall() itself may allocate meanwhile. */
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        syscall(SYS_sched_yield);
    if (syscall(SYS_gettid) <= 0)
        abort();
    calls++;
    size_t first = (size_t)heap;
    size_t at = (first + used + 16 + alignment - 1) / alignment * alignment - first;
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

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                   void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return real(thread, attributes, body, argument);
}

/* Allocations since the last call of this function. For each new thread, 16 are left out. */
static long allocations(void)
{
    static long before;
    long now = calls - 16 * threads, taken = now - before;
    before = now;
    return taken;
}
