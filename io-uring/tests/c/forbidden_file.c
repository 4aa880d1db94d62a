/* A security module refuses the file of each ring with EACCES, here a filter does. The library must
 * serve the program's rings then, although the call as such is allowed. */
#define _GNU_SOURCE
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* io_uring_setup(2) has EACCES. A call for no entries is left to the kernel: it makes no ring. */
static int forbid(void)
{
    const unsigned entries = offsetof(struct seccomp_data, args[0]);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, entries),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(void)
{
    for (int round = 0; round < 2; round++) {
        struct io_uring ring;
        struct io_uring_cqe *cqe;
        if (round == 0 && forbid())
            return perror("a filter"), 1;
        if (io_uring_queue_init(4, &ring, 0))
            return fprintf(stderr, "round %d: no ring\n", round), 1;
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &cqe) || cqe->res)
            return fprintf(stderr, "round %d: no completion\n", round), 1;
        io_uring_cqe_seen(&ring, cqe);
        io_uring_queue_exit(&ring);
    }
    puts("done");
    return 0;
}
