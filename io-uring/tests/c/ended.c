/* Threads that end: their requests write to no memory any more, their timeouts go on, and the
 * rings that they have registered are released. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>

enum what { READ, ASYNC, POLL, MULTISHOT, CHAIN, TIMEOUT, FILES, WHATS };

static const char *const names[] = { "read",  "read by a worker", "poll", "multishot poll",
                                     "chain", "timeout", "file" };
static struct __kernel_timespec soon = { 0, 30000000 };
static struct io_uring ring;
static enum what what;
static int ends[2], file;
/* The buffer of the reads. It is static, so that it can be checked after the thread has ended. */
static char memory[8];

static void *submits(void *unused)
{
    struct io_uring_sqe *sqe = entry(&ring, 1);
    switch (what) {
    case POLL:
        io_uring_prep_poll_add(sqe, ends[0], POLLIN);
        break;
    case MULTISHOT:
        io_uring_prep_poll_multishot(sqe, ends[0], POLLIN);
        break;
    case TIMEOUT:
        io_uring_prep_timeout(sqe, &soon, 0, 0);
        break;
    case FILES:
        io_uring_prep_write(sqe, file, "of a thread", 11, 0);
        break;
    default:
        io_uring_prep_read(sqe, ends[0], memory, 4, 0);
    }
    sqe->flags = what == ASYNC ? IOSQE_ASYNC : what == CHAIN ? IOSQE_IO_LINK : 0;
    sqe->user_data = 1;
    if (what == CHAIN) {
        sqe = entry(&ring, 2);
        io_uring_prep_read(sqe, ends[0], memory, 4, 0);
        sqe->user_data = 2;
    }
    MUST(io_uring_submit(&ring) > 0);
    return unused;
}

static void one(void)
{
    pthread_t thread;
    memcpy(memory, "same", 5);
    MUST(pipe(ends) == 0 && pthread_create(&thread, NULL, submits, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    if (what == POLL || what == MULTISHOT)
        printf("%s: %u before its event\n", names[what], io_uring_cq_ready(&ring));
    MUST(write(ends[1], "GONE", 4) == 4);
    completions(&ring, names[what], what == CHAIN ? 2 : 1);
    char written[16] = "";
    printf("memory: %s, in the file: %zd\n", memory, pread(file, written, sizeof written, 0));
    close(ends[0]);
    close(ends[1]);
}

static pthread_key_t key;

/* Runs when its thread ends. The ring that the thread has registered can still be used then. */
static void at_end(void *unused)
{
    (void)unused;
    io_uring_prep_nop(entry(&ring, 1));
    printf("submitted by a destructor: %d\n", io_uring_submit(&ring));
}

static void *registers(void *with_destructor)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && io_uring_register_ring_fd(&ring) == 1);
    io_uring_prep_nop(entry(&ring, 1));
    MUST(io_uring_submit(&ring) == 1);
    if (with_destructor)
        MUST(pthread_setspecific(key, &ring) == 0);
    return NULL;
}

static int descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    MUST(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static void registered(void)
{
    struct rlimit limit = { 256, 256 };
    int before = 0, grown = -1;
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    MUST(pthread_key_create(&key, at_end) == 0);
    for (int round = 0; round < 300; round++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, registers, round == 0 ? &key : NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
        io_uring_queue_exit(&ring);
        if (round == 10)
            before = descriptors();
    }
    /* The kernel closes the rings a little later. */
    for (int tries = 0; tries < 1000 && grown != 0; tries++) {
        grown = descriptors() > before;
        usleep(1000);
    }
    printf("rings of threads that ended: descriptors grow: %d\n", grown);
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0 && (file = scratch()) >= 0);
    for (what = READ; what < WHATS; what++)
        one();
    io_uring_queue_exit(&ring);
    registered();
    return 0;
}
