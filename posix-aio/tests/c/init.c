/* aio_init: it takes hints at any time, and never fails. */
#include "common.h"

static unsigned char buf[PAGE];

static void with(const char *name, struct aioinit init)
{
    int fd = temp_file(PAGE);
    struct aiocb cb = block(fd, buf, 16, 0);
    aio_init(&init);
    request(name, aio_read, &cb);
    close(fd);
}

static void usual(void)
{
    with("[aio_init success] 4 threads, 128 requests",
         (struct aioinit){.aio_threads = 4, .aio_num = 128});
    with("[aio_init success] again, when aio is in use",
         (struct aioinit){.aio_threads = 64, .aio_num = 2048, .aio_idle_time = 5});
}

static void zeroes(void)
{
    with("[aio_init out of range] all zeroes", (struct aioinit){0});
}

static void negative(void)
{
    with("[aio_init out of range] negative numbers",
         (struct aioinit){.aio_threads = -1, .aio_num = -1, .aio_idle_time = -1});
}

/* A hint of one thread does not limit the number of requests. */
static void one_thread(void)
{
    enum { N = 200 };
    static struct aiocb cbs[N];
    static unsigned char bytes[N];
    struct aioinit init = {.aio_threads = 1, .aio_num = 32};
    int fd = temp_file(PAGE), right = 0;
    aio_init(&init);
    for (int i = 0; i < N; i++) {
        cbs[i] = block(fd, &bytes[i], 1, i);
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = 0; i < N; i++)
        right += finish(&cbs[i]) == 0 && aio_return(&cbs[i]) == 1 && bytes[i] == i % 251;
    say("[aio_init success] 1 thread, 200 reads", "%d right", right);
    close(fd);
}

int main(void)
{
    in_child(usual);
    in_child(zeroes);
    in_child(negative);
    in_child(one_thread);
    return 0;
}
