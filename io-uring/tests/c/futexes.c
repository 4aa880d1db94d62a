/* FUTEX_WAIT, FUTEX_WAKE and FUTEX_WAITV: what wakes, what ends a wait, and what is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { WAIT = 51, WAKE, WAITV, SIZE_32 = 2, PRIVATE = 128 };
#define ALL 0xffffffffull

struct waiter {
    unsigned long long value, address;
    unsigned flags, reserved;
};

static struct io_uring ring;
static unsigned words[4];

static struct io_uring_sqe *futex(int opcode, unsigned *word, unsigned long long value,
                                  unsigned long long mask, int flags, int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = opcode;
    sqe->fd = flags;
    sqe->addr = (unsigned long)word;
    sqe->addr2 = value;
    sqe->addr3 = mask;
    sqe->user_data = user_data;
    return sqe;
}

static struct io_uring_sqe *waitv(struct waiter *list, unsigned count, int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = WAITV;
    sqe->addr = (unsigned long)list;
    sqe->len = count;
    sqe->user_data = user_data;
    return sqe;
}

static int result(void)
{
    struct io_uring_cqe *cqe;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
    int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

static long wake(unsigned *word, int count)
{
    return syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void woken(void)
{
    printf("[woken]\n");
    futex(WAIT, words, 1, ALL, SIZE_32 | PRIVATE, 1);
    printf("another value: %d\n", result());
    /* A wait can be woken as soon as the submit has returned. */
    for (int round = 0; round < 50; round++) {
        futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1);
        io_uring_submit(&ring);
        MUST(wake(words, 1) == 1);
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0 && cqe->res == 0);
        io_uring_cqe_seen(&ring, cqe);
    }
    for (int at = 0; at < 3; at++)
        futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1);
    io_uring_submit(&ring);
    printf("before: %u\n", io_uring_cq_ready(&ring));
    futex(WAKE, words, 2, ALL, SIZE_32 | PRIVATE, 2);
    io_uring_submit(&ring);
    sorted(&ring, "two of three", 3);
    futex(WAKE, words, INT_MAX, ALL, SIZE_32 | PRIVATE, 2);
    io_uring_submit(&ring);
    sorted(&ring, "the rest", 2);
    futex(WAKE, words, 1, ALL, SIZE_32 | PRIVATE, 2);
    printf("nobody: %d\n", result());
    futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1);
    io_uring_submit(&ring);
    futex(WAKE, words, 0, ALL, SIZE_32 | PRIVATE, 2);
    printf("none of one: %d\n", result());
    futex(WAKE, words, 1, 2, SIZE_32 | PRIVATE, 2);
    io_uring_submit(&ring);
    sorted(&ring, "by a mask", 2);
    /* A shared futex has another key. */
    futex(WAIT, words, 0, ALL, SIZE_32, 1);
    io_uring_submit(&ring);
    futex(WAKE, words, 1, ALL, SIZE_32 | PRIVATE, 2);
    printf("private, of a shared one: %d\n", result());
    futex(WAKE, words, 1, ALL, SIZE_32, 2);
    io_uring_submit(&ring);
    sorted(&ring, "shared", 2);
}

static void *nothing(void *none)
{
    return none;
}

static void *wakes(void *word)
{
    while (wake(word, 1) == 0)
        sched_yield();
    return NULL;
}

static void vectors(void)
{
    struct waiter list[4];
    printf("[several]\n");
    for (int at = 0; at < 4; at++)
        list[at] = (struct waiter){ 0, (unsigned long)&words[at], SIZE_32 | PRIVATE, 0 };
    for (int at = 0; at < 4; at++) {
        waitv(list, 4, 1);
        io_uring_submit(&ring);
        printf("before: %u\n", io_uring_cq_ready(&ring));
        printf("wakes %ld\n", wake(&words[at], 1));
        completions(&ring, "one of four", 1);
    }
    /* The list is not needed once it was submitted. */
    waitv(list, 4, 1);
    io_uring_submit(&ring);
    memset(list, 0xff, sizeof list);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, wakes, &words[2]) == 0);
    completions(&ring, "by a thread", 1);
    pthread_join(thread, NULL);
    for (int at = 0; at < 4; at++)
        list[at] = (struct waiter){ at == 3, (unsigned long)&words[at], SIZE_32 | PRIVATE, 0 };
    waitv(list, 4, 1);
    printf("another value: %d\n", result());
    waitv(list, 0, 1);
    printf("none: %d\n", result());
    waitv(list, 129, 1);
    printf("too many: %d\n", result());
    waitv((void *)8, 1, 1);
    printf("nowhere: %d\n", result());
    list[0].flags = 0;
    waitv(list, 1, 1);
    printf("another size: %d\n", result());
    list[0].flags = SIZE_32 | PRIVATE;
    list[0].reserved = 1;
    waitv(list, 1, 1);
    printf("reserved: %d\n", result());
    list[0].reserved = 0;
    list[0].address = 8;
    waitv(list, 1, 1);
    printf("a word nowhere: %d\n", result());
    list[0].address = (unsigned long)words + 1;
    waitv(list, 1, 1);
    printf("not aligned: %d\n", result());
    list[0].address = (unsigned long)words;
    static const char *const names[] = { "fd", "offset", "flags", "buffer", "slot", "address" };
    for (int at = 0; at < 6; at++) {
        struct io_uring_sqe *sqe = waitv(list, 1, 1);
        list[0].value = 1;
        sqe->fd = at == 0;
        sqe->off = at == 1;
        sqe->rw_flags = at == 2;
        sqe->buf_index = at == 3;
        sqe->splice_fd_in = at == 4;
        sqe->addr3 = at == 5;
        printf("%s: %d\n", names[at], result());
    }
}

static void ended(void)
{
    struct __kernel_timespec soon = { 0, 1000000 };
    struct waiter list[2] = { { 0, (unsigned long)&words[0], SIZE_32 | PRIVATE, 0 },
                              { 0, (unsigned long)&words[1], SIZE_32 | PRIVATE, 0 } };
    printf("[what ends a wait]\n");
    for (int several = 0; several < 2; several++) {
        for (int how = 0; how < 4; how++) {
            struct io_uring_sqe *sqe = several ? waitv(list, 2, 1) :
                                                 futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1);
            if (how == 0)
                sqe->flags |= IOSQE_IO_LINK;
            else
                io_uring_submit(&ring);
            if (how == 0)
                io_uring_prep_link_timeout(entry(&ring, 0), &soon, 0);
            if (how == 1)
                io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
            if (how == 2)
                io_uring_prep_cancel(entry(&ring, 0), NULL, IORING_ASYNC_CANCEL_ANY);
            if (how == 3)
                io_uring_prep_cancel_fd(entry(&ring, 0), 0, 0);
            io_uring_submit(&ring);
            if (how == 3) {
                completions(&ring, "not by descriptor", 1);
                printf("wakes %ld\n", wake(words, 1));
            }
            sorted(&ring, "ends", how == 3 ? 1 : 2);
            printf("nobody: %ld\n", wake(words, 1));
        }
    }
    /* A cancel of waits for futexes returns the number of cancelled waits. */
    struct io_uring_sync_cancel_reg sync = { .addr = 1, .timeout = { -1, -1 } };
    for (int how = 0; how < 4; how++) {
        for (int at = 0; at < 3; at++)
            futex(WAIT, &words[at], 0, ALL, SIZE_32 | PRIVATE, 1 + at);
        io_uring_submit(&ring);
        sync.flags = how % 2 ? IORING_ASYNC_CANCEL_ANY : 0;
        if (how < 2) {
            io_uring_prep_cancel(entry(&ring, 0), (void *)1, sync.flags);
            io_uring_submit(&ring);
        } else {
            printf("synchronous: %d\n", io_uring_register_sync_cancel(&ring, &sync));
        }
        printf("left: ");
        for (int at = 0; at < 3; at++)
            printf("%ld ", wake(&words[at], 1));
        printf("\n");
        sorted(&ring, "cancels", how < 2 ? 4 : 3);
    }
    futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1)->flags |= IOSQE_IO_LINK;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->user_data = 2;
    io_uring_submit(&ring);
    printf("wakes %ld\n", wake(words, 1));
    completions(&ring, "chain", 2);
}

static void refused(int opcode)
{
    printf("[refused, operation %d]\n", opcode);
    for (int flags = 0; flags < 32; flags++) {
        /* 2 is valid (SIZE_32). Results for flags 4 and 8, for NUMA nodes, are not printed: only
         * the kernel has these flags. */
        if (flags == 2)
            continue;
        int odd = flags & 7 ? flags | (flags & 16 ? PRIVATE : 0) : 1 << flags;
        futex(opcode, words, 1, ALL, odd, 1);
        int got = result();
        if (!(flags & 12))
            printf("flags %d: %d\n", flags, got);
    }
    futex(opcode, words, 1, 0, SIZE_32 | PRIVATE, 1);
    printf("no mask: %d\n", result());
    futex(opcode, words, 0, 0, SIZE_32 | PRIVATE, 1);
    printf("no mask, of none: %d\n", result());
    futex(opcode, (void *)8, 0, ALL, SIZE_32, 1);
    printf("shared and nowhere, of none: %d\n", result());
    futex(opcode, (void *)((char *)words + 1), 0, ALL, SIZE_32 | PRIVATE, 1);
    printf("not aligned, of none: %d\n", result());
    futex(opcode, words, 1, 1ull << 32, SIZE_32 | PRIVATE, 1);
    printf("a long mask: %d\n", result());
    futex(opcode, words, 1ull << 32, ALL, SIZE_32 | PRIVATE, 1);
    printf("a long value: %d\n", result());
    futex(opcode, NULL, 1, ALL, SIZE_32 | PRIVATE, 1);
    printf("no address: %d\n", result());
    futex(opcode, (void *)((char *)words + 1), 1, ALL, SIZE_32 | PRIVATE, 1);
    printf("not aligned: %d\n", result());
    futex(opcode, (void *)8, 1, ALL, SIZE_32, 1);
    printf("shared and nowhere: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->len = 1;
    printf("a length: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->rw_flags = 1;
    printf("more flags: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->buf_index = 1;
    printf("a buffer: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->splice_fd_in = 1;
    printf("a slot: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->ioprio = 1;
    printf("a priority: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->flags |= IOSQE_FIXED_FILE;
    printf("a registered file: %d\n", result());
    futex(opcode, words, 1, ALL, SIZE_32 | PRIVATE, 1)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
}

int main(void)
{
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, WAITV);
    /* Linux 6.18 loses waiters when a process gets its second thread. */
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0);
    pthread_join(thread, NULL);
    woken();
    vectors();
    ended();
    refused(WAIT);
    refused(WAKE);
    /* A request waits when the ring is closed. After that it can no longer be woken. */
    futex(WAIT, words, 0, ALL, SIZE_32 | PRIVATE, 1);
    io_uring_submit(&ring);
    io_uring_queue_exit(&ring);
    while (wake(words, 1) != 0)
        sched_yield();
    return 0;
}
