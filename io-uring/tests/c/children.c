/* WAITID: children that end, stop and go on, what ends a wait, and what is refused. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { WAITID = 50 };

static struct io_uring ring;
static siginfo_t info;

static struct io_uring_sqe *wait_(int type, int id, siginfo_t *to, int options, int user_data)
{
    struct io_uring_sqe *sqe = entry(&ring, 0);
    sqe->opcode = WAITID;
    sqe->fd = id;
    sqe->len = type;
    sqe->off = (unsigned long)to;
    sqe->splice_fd_in = options;
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

/* A child that ends with this status when its pipe is closed. */
static int child(int status, int *end)
{
    int ends[2];
    MUST(pipe2(ends, O_CLOEXEC) == 0);
    int pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? status : 1);
    }
    close(ends[0]);
    *end = ends[1];
    return pid;
}

static void told(const char *what, int pid)
{
    printf("%s: signal %d, code %d, status %d, the child's: %d, own user: %d\n", what,
           info.si_signo, info.si_code, info.si_status, info.si_pid == pid,
           info.si_uid == getuid());
    memset(&info, 0, sizeof info);
}

static void ends(void)
{
    static const int types[] = { P_PID, P_ALL, P_PGID, P_PIDFD };
    for (int at = 0; at < 4; at++) {
        int end, pid = child(7 + at, &end);
        int pidfd = syscall(SYS_pidfd_open, pid, 0);
        int id = types[at] == P_PID ? pid : types[at] == P_PIDFD ? pidfd : 0;
        printf("[type %d]\n", types[at]);
        wait_(types[at], id, &info, WEXITED | WNOHANG, 1);
        printf("not to wait: %d\n", result());
        wait_(types[at], id, &info, WEXITED | WNOWAIT, 1);
        io_uring_submit(&ring);
        printf("before: %u\n", io_uring_cq_ready(&ring));
        close(end);
        completions(&ring, "it ends", 1);
        told("it ends", pid);
        wait_(types[at], id, &info, WEXITED, 1);
        printf("reaped: %d\n", result());
        told("reaped", pid);
        wait_(types[at], id, &info, WEXITED, 1);
        printf("gone: %d\n", result());
        close(pidfd);
    }
    int end, pid = child(3, &end);
    close(end);
    wait_(P_PID, pid, NULL, WEXITED, 1);
    printf("nothing is told: %d\n", result());
    pid = child(3, &end);
    close(end);
    wait_(P_PID, pid, (void *)8, WEXITED, 1);
    printf("nowhere: %d\n", result());
    printf("it is gone: %d\n", waitpid(pid, NULL, WNOHANG) == -1);
}

static void stops(void)
{
    int end, pid = child(5, &end);
    printf("[stops]\n");
    wait_(P_PID, pid, &info, WSTOPPED, 1);
    io_uring_submit(&ring);
    MUST(kill(pid, SIGSTOP) == 0);
    completions(&ring, "stopped", 1);
    told("stopped", pid);
    wait_(P_PID, pid, &info, WCONTINUED | WEXITED, 1);
    io_uring_submit(&ring);
    MUST(kill(pid, SIGCONT) == 0);
    completions(&ring, "goes on", 1);
    told("goes on", pid);
    wait_(P_PID, pid, &info, WEXITED, 1);
    io_uring_submit(&ring);
    MUST(kill(pid, SIGKILL) == 0);
    completions(&ring, "killed", 1);
    told("killed", pid);
    close(end);
}

static void ended(void)
{
    struct __kernel_timespec soon = { 0, 1000000 };
    int end, pid = child(5, &end);
    printf("[what ends a wait]\n");
    wait_(P_PID, pid, &info, WEXITED, 1);
    io_uring_submit(&ring);
    io_uring_prep_cancel(entry(&ring, 0), (void *)1, 0);
    io_uring_submit(&ring);
    sorted(&ring, "cancel", 2);
    told("cancel", 0);
    wait_(P_ALL, 0, &info, WEXITED, 1)->flags |= IOSQE_IO_LINK;
    io_uring_prep_link_timeout(entry(&ring, 0), &soon, 0);
    io_uring_submit(&ring);
    sorted(&ring, "timeout", 2);
    wait_(P_PID, pid, &info, WEXITED, 1)->flags |= IOSQE_IO_LINK;
    struct io_uring_sqe *sqe = entry(&ring, 0);
    io_uring_prep_nop(sqe);
    sqe->user_data = 2;
    io_uring_submit(&ring);
    close(end);
    completions(&ring, "chain", 2);
    told("chain", pid);
    /* Two requests wait for one child. */
    pid = child(5, &end);
    wait_(P_PID, pid, &info, WEXITED, 1);
    wait_(P_PID, pid, NULL, WEXITED, 2);
    io_uring_submit(&ring);
    close(end);
    struct io_uring_cqe *cqe;
    int sum = 0, good = 0;
    for (int at = 0; at < 2; at++) {
        MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
        sum += cqe->res;
        good += cqe->res == 0;
        io_uring_cqe_seen(&ring, cqe);
    }
    printf("one of two: %d, %d\n", good, sum);
    memset(&info, 0, sizeof info);
}

/* Waits that are cancelled one after the other leave no threads. */
static void again(void)
{
    int end, pid = child(5, &end), threads = 0, ends = 0;
    for (int at = 0; at < 100; at++) {
        wait_(P_PID, pid, &info, WEXITED, 1);
        io_uring_submit(&ring);
        struct io_uring_sqe *sqe = entry(&ring, 0);
        io_uring_prep_cancel(sqe, (void *)1, 0);
        sqe->user_data = 2;
        io_uring_submit(&ring);
        for (int one = 0; one < 2; one++) {
            struct io_uring_cqe *cqe;
            MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
            ends += cqe->user_data == 1;
            io_uring_cqe_seen(&ring, cqe);
        }
    }
    DIR *all = opendir("/proc/self/task");
    MUST(all);
    while (readdir(all))
        threads++;
    closedir(all);
    wait_(P_PID, pid, &info, WEXITED, 1);
    io_uring_submit(&ring);
    close(end);
    completions(&ring, "one more", 1);
    printf("[again and again]\nends: %d, threads: %s\n", ends, threads < 50 ? "few" : "many");
    told("one more", pid);
}

/* A pidfd or a process group stands for the children that it names when the request begins to
 * wait. */
static void later(void)
{
    int end, pid = child(6, &end), pidfd = syscall(SYS_pidfd_open, pid, 0), status;
    printf("[later]\n");
    wait_(P_PIDFD, pidfd, &info, WEXITED, 1);
    io_uring_submit(&ring);
    MUST(close(pidfd) == 0);
    close(end);
    completions(&ring, "a closed pidfd", 1);
    told("a closed pidfd", pid);
    int other_end, other = child(8, &other_end);
    pid = child(6, &end);
    pidfd = syscall(SYS_pidfd_open, pid, 0);
    wait_(P_PIDFD, pidfd, &info, WEXITED, 1);
    io_uring_submit(&ring);
    int of_other = syscall(SYS_pidfd_open, other, 0);
    MUST(dup2(of_other, pidfd) == pidfd);
    close(other_end);
    close(end);
    completions(&ring, "a pidfd that is another", 1);
    told("a pidfd that is another", pid);
    MUST(waitpid(other, NULL, 0) == other && close(of_other) == 0);
    /* A nonblocking pidfd: the request does not wait. */
    MUST(close(pidfd) == 0);
    pid = child(6, &end);
    pidfd = syscall(SYS_pidfd_open, pid, O_NONBLOCK);
    memset(&info, 0xff, sizeof info);
    wait_(P_PIDFD, pidfd, &info, WEXITED, 1);
    printf("a nonblocking pidfd: %d, ", result());
    printf("%d %d\n", info.si_signo, info.si_pid);
    close(end);
    MUST(waitid(P_PID, pid, &info, WEXITED | WNOWAIT) == 0);
    memset(&info, 0, sizeof info);
    wait_(P_PIDFD, pidfd, &info, WEXITED, 1);
    printf("when it has ended: %d\n", result());
    told("when it has ended", pid);
    close(pidfd);
    /* A process that leaves its group. */
    fflush(stdout);
    int leaver = fork();
    MUST(leaver >= 0);
    if (leaver == 0) {
        MUST(io_uring_queue_init(8, &ring, 0) == 0);
        pid = child(6, &end);
        wait_(P_PGID, 0, &info, WEXITED, 1);
        io_uring_submit(&ring);
        MUST(setpgid(0, 0) == 0);
        close(end);
        completions(&ring, "the group before", 1);
        told("the group before", pid);
        fflush(stdout);
        _exit(0);
    }
    MUST(waitpid(leaver, &status, 0) == leaver && status == 0);
}

/* A process in a PID namespace of its own. Its /proc shows the PIDs of the outer namespace. */
static void apart(void)
{
    int status, end;
    printf("[apart]\n");
    fflush(stdout);
    int outer = fork();
    MUST(outer >= 0);
    if (outer == 0) {
        if (unshare(CLONE_NEWPID) < 0)
            unshare(CLONE_NEWUSER | CLONE_NEWPID);
        int inner = fork();
        MUST(inner >= 0);
        if (inner > 0) {
            MUST(waitpid(inner, &status, 0) == inner);
            _exit(status != 0);
        }
        MUST(io_uring_queue_init(8, &ring, 0) == 0);
        int pid = child(6, &end), pidfd = syscall(SYS_pidfd_open, pid, 0);
        wait_(P_PIDFD, pidfd, &info, WEXITED, 1);
        io_uring_submit(&ring);
        close(end);
        completions(&ring, "a pidfd", 1);
        told("a pidfd", pid);
        fflush(stdout);
        _exit(0);
    }
    MUST(waitpid(outer, &status, 0) == outer && status == 0);
}

static void refused(void)
{
    int end, pid = child(5, &end);
    printf("[refused]\n");
    wait_(P_PID, pid, &info, 0, 1);
    printf("no options: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED | 0x100, 1);
    printf("unknown options: %d\n", result());
    wait_(9, pid, &info, WEXITED, 1);
    printf("no such type: %d\n", result());
    wait_(P_PID, 0, &info, WEXITED, 1);
    printf("no process: %d\n", result());
    wait_(P_PID, -1, &info, WEXITED, 1);
    printf("less than none: %d\n", result());
    wait_(P_PID, getpid(), &info, WEXITED, 1);
    printf("no child: %d\n", result());
    wait_(P_PIDFD, 0, &info, WEXITED, 1);
    printf("no descriptor of a process: %d\n", result());
    wait_(P_PIDFD, 999, &info, WEXITED, 1);
    printf("no descriptor: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->rw_flags = 1;
    printf("flags: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->addr = 1;
    printf("an address: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->addr3 = 1;
    printf("another address: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->buf_index = 1;
    printf("a buffer: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->ioprio = 1;
    printf("a priority: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED | WNOHANG, 1)->flags |= IOSQE_FIXED_FILE;
    printf("a registered file: %d\n", result());
    wait_(P_PID, pid, &info, WEXITED, 1)->flags |= IOSQE_BUFFER_SELECT;
    printf("selects a buffer: %d\n", result());
    close(end);
    MUST(waitpid(pid, NULL, 0) == pid);
    memset(&info, 0, sizeof info);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    needs(&ring, WAITID);
    wait_(P_ALL, 0, &info, WEXITED, 1);
    printf("no children: %d\n", result());
    ends();
    stops();
    ended();
    again();
    later();
    apart();
    refused();
    /* A request waits when the ring is closed. The child can be waited for afterwards. */
    int end, pid = child(9, &end), status;
    wait_(P_PID, pid, &info, WEXITED, 1);
    io_uring_submit(&ring);
    io_uring_queue_exit(&ring);
    close(end);
    MUST(waitpid(pid, &status, 0) == pid);
    printf("afterwards: %d\n", WEXITSTATUS(status));
    return 0;
}
