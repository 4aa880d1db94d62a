/* Children are forked while other threads of the parent are busy. A lock that such a thread holds
 * must not block a child. */
#include "common.h"

#define THREADS 3
#define CHILDREN 40

static int fd, direct, stop;
static long done;

/* One round through the engine: buffered and direct reads, a poll, the end of the context. */
static int round_trip(unsigned char *buf)
{
    struct iocb iocbs[9], *list[9];
    struct io_event events[9];
    int counter = eventfd(1, EFD_CLOEXEC), right = 0;
    io_context_t ctx = NULL;
    if (counter < 0 || set_up(16, &ctx))
        return 0;
    for (int i = 0; i < 8; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], i % 2 && direct >= 0 ? direct : fd, buf + i * PAGE, PAGE, i * PAGE);
    }
    list[8] = &iocbs[8];
    io_prep_poll(list[8], counter, POLLIN);
    if (io_submit(ctx, 9, list) != 9)
        return 0;
    reap(ctx, 9, events);
    for (int i = 0; i < 9; i++)
        right += events[i].res == (events[i].obj == &iocbs[8] ? POLLIN : PAGE);
    close(counter);
    return io_destroy(ctx) == 0 && right == 9;
}

static void *work(void *argument)
{
    unsigned char *buf = pages(8 * PAGE);
    (void)argument;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        if (!round_trip(buf))
            die("a thread's round");
        __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    unsigned char *buf = pages(8 * PAGE);
    int well = 0;
    fd = temp_file(8 * PAGE);
    direct = reopen(fd, O_RDWR | O_DIRECT);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) < THREADS)
        sched_yield();
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int right = round_trip(buf);
            /* A child of the child. The child has only its first thread and the library's. */
            pid_t second = right && i % 10 == 0 ? fork() : -1;
            int status = 0;
            if (second == 0)
                _exit(!round_trip(buf));
            if (second > 0 && (waitpid(second, &status, 0) != second || status))
                _exit(2);
            _exit(!(right && round_trip(buf)));
        }
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            die("fork");
        well += status == 0;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    say("children that ended well", "%d of %d", well, CHILDREN);
    return 0;
}
