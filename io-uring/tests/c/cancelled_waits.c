/* Thousands of waits that are cancelled, by user_data, by descriptor or all at once: each ends
 * once, and none leaves a thread or a descriptor. The argument is the number of rounds. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
    WAITID = 50,
    FUTEX_WAIT_,
    FUTEX_WAITV_ = 53,
    EPOLL_WAIT = 59,
    READV_FIXED,
    PIPE = 62,
    PRIVATE_32 = 130,
    EACH = 20,
    FEW = 16
};

enum kind { EPOLL, FUTEX, FUTEXES, CHILD, PIDFD, GROUP, LIST, KINDS };

static struct io_uring ring;
static int epoll, ends[2], child, pidfd;
static unsigned words[2];
static struct { unsigned long long value, address; unsigned flags, reserved; } list[2];
static char byte;
static struct iovec part = { &byte, 1 };
static struct epoll_event event = { .events = EPOLLIN };

static void fill(struct io_uring_sqe *sqe, enum kind kind)
{
    static const int opcodes[] = { EPOLL_WAIT, FUTEX_WAIT_, FUTEX_WAITV_, WAITID,
                                   WAITID,     WAITID,      READV_FIXED };
    sqe->opcode = opcodes[kind];
    sqe->len = 1;
    switch (kind) {
    case EPOLL:
        sqe->fd = epoll;
        sqe->addr = (unsigned long)&event;
        break;
    case FUTEX:
        sqe->fd = PRIVATE_32;
        sqe->addr = (unsigned long)words;
        sqe->len = 0;
        sqe->addr3 = 0xffffffff;
        break;
    case FUTEXES:
        sqe->addr = (unsigned long)list;
        sqe->len = 2;
        break;
    case LIST:
        sqe->fd = ends[0];
        sqe->addr = (unsigned long)&part;
        break;
    default:
        sqe->len = kind == CHILD ? P_PID : kind == PIDFD ? P_PIDFD : P_PGID;
        sqe->fd = kind == CHILD ? child : kind == PIDFD ? pidfd : getpgrp();
        sqe->splice_fd_in = WEXITED;
    }
}

static int entries_of(const char *name)
{
    DIR *all = opendir(name);
    int count = 0;
    MUST(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* Threads that have done their work may still be about to end. */
static const char *left(const char *name, int before)
{
    for (int look = 0; look < 100000; look++) {
        if (entries_of(name) <= before + FEW)
            return "none";
        sched_yield();
    }
    return "many";
}

/* Takes the completions of `cancels` cancels and of all waits. Adds up the results of the
 * cancels. */
static void takes(int cancels, int *answers, int *cancelled)
{
    for (int count = cancels + EACH; count > 0; count--) {
        struct io_uring_cqe *cqe;
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        if (cqe->user_data >= 1000)
            *answers += cqe->res;
        else
            *cancelled += cqe->res == -ECANCELED;
        io_uring_cqe_seen(&ring, cqe);
    }
}

static void rounds(enum kind kind, int how, int count)
{
    int answers = 0, cancelled = 0, cancels = how == 0 ? EACH : 1;
    for (int round = 0; round < count; round++) {
        for (int at = 0; at < EACH; at++) {
            struct io_uring_sqe *sqe = entry(&ring, 0);
            fill(sqe, kind);
            sqe->user_data = 1 + at;
        }
        MUST(io_uring_submit(&ring) == EACH);
        for (int at = 0; at < cancels; at++) {
            struct io_uring_sqe *sqe = entry(&ring, 0);
            if (how == 0)
                io_uring_prep_cancel64(sqe, 1 + at, 0);
            else if (how == 1)
                io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY);
            else
                io_uring_prep_cancel_fd(sqe, kind == EPOLL ? epoll : ends[0],
                                        IORING_ASYNC_CANCEL_ALL);
            sqe->user_data = 1000;
        }
        MUST(io_uring_submit(&ring) == cancels);
        takes(cancels, &answers, &cancelled);
    }
    printf("kind %d, cancelled in way %d: %d rounds, %d ends, answers %d\n", kind, how, count,
           cancelled, answers);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 20, over[2];
    MUST(io_uring_queue_init(64, &ring, 0) == 0 && pipe(ends) == 0 && pipe(over) == 0);
    needs(&ring, PIPE);
    for (int at = 0; at < 2; at++) {
        list[at].address = (unsigned long)&words[at];
        list[at].flags = PRIVATE_32;
    }
    epoll = epoll_create1(0);
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    struct iovec buffer = part;
    MUST(io_uring_register_buffers(&ring, &buffer, 1) == 0);
    child = fork();
    MUST(child >= 0);
    if (child == 0) {
        close(over[1]);
        _exit(read(over[0], &byte, 1) != 0);
    }
    close(over[0]);
    pidfd = syscall(SYS_pidfd_open, child, 0);
    for (int kind = 0; kind < KINDS; kind++) {
        int threads = entries_of("/proc/self/task"), files = entries_of("/proc/self/fd");
        for (int how = 0; how < (kind == EPOLL || kind == LIST ? 3 : 2); how++)
            rounds(kind, how, count);
        printf("kind %d: threads left: %s, descriptors: %s\n", kind,
               left("/proc/self/task", threads), left("/proc/self/fd", files));
    }
    close(over[1]);
    MUST(waitpid(child, NULL, 0) == child);
    io_uring_queue_exit(&ring);
    return 0;
}
