/* What io_uring_setup(2) accepts and refuses. */
#define _GNU_SOURCE
#include "common.h"

static void try(const char *what, unsigned entries, struct io_uring_params params)
{
    int fd = io_uring_setup(entries, &params);
    if (fd < 0) {
        printf("%s: %d\n", what, fd);
        return;
    }
    printf("%s: %u and %u entries\n", what, params.sq_entries, params.cq_entries);
    close(fd);
}

/* A ring with SQPOLL. The results of its calls do not depend on the number of entries that the
 * polling thread has taken. */
static void polled(void)
{
    struct io_uring_params params = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 10 };
    struct io_uring ring;
    MUST(io_uring_queue_init_params(8, &ring, &params) == 0);
    for (int asked = 0; asked < 4; asked += 3) {
        struct io_uring_sqe *sqe = entry(&ring, 1);
        io_uring_prep_nop(sqe);
        sqe->user_data = 1;
        ring.sq.sqe_head = ring.sq.sqe_tail;
        __atomic_store_n(ring.sq.ktail, ring.sq.sqe_tail, __ATOMIC_RELEASE);
        printf("woken for %d: %d\n", asked,
               io_uring_enter(ring.ring_fd, asked, 0, IORING_ENTER_SQ_WAKEUP, NULL));
        completions(&ring, "taken", 1);
    }
    printf("woken for nothing: %d\n",
           io_uring_enter(ring.ring_fd, 5, 0, IORING_ENTER_SQ_WAKEUP, NULL));
    /* An entry that cannot be prepared does not end its batch. */
    for (int at = 0; at < 3; at++) {
        struct io_uring_sqe *sqe = entry(&ring, at);
        io_uring_prep_nop(sqe);
        sqe->opcode = at == 1 ? 200 : sqe->opcode;
        sqe->user_data = at;
    }
    printf("submit: %d\n", io_uring_submit(&ring));
    sorted(&ring, "one of them bad", 3);
    io_uring_queue_exit(&ring);
}

#define WITH(...) (struct io_uring_params){ __VA_ARGS__ }

int main(void)
{
    try("plain", 1, WITH(0));
    try("rounded", 100, WITH(0));
    try("none", 0, WITH(0));
    try("too many", 40000, WITH(0));
    try("clamped", 40000, WITH(.flags = IORING_SETUP_CLAMP));
    try("completions", 8, WITH(.flags = IORING_SETUP_CQSIZE, .cq_entries = 100));
    try("too few completions", 8, WITH(.flags = IORING_SETUP_CQSIZE, .cq_entries = 4));
    try("no completions", 8, WITH(.flags = IORING_SETUP_CQSIZE));
    try("reserved", 8, WITH(.resv = { 1 }));
    try("unknown", 8, WITH(.flags = 1u << 30));
    try("affinity without polling", 8, WITH(.flags = IORING_SETUP_SQ_AFF));
    try("deferred without single", 8, WITH(.flags = IORING_SETUP_DEFER_TASKRUN));
    try("flag without cause", 8, WITH(.flags = IORING_SETUP_TASKRUN_FLAG));
    try("deferred", 8, WITH(.flags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER));
    try("cooperative", 8, WITH(.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG));
    try("polled", 8, WITH(.flags = IORING_SETUP_IOPOLL));
    try("polling", 8, WITH(.flags = IORING_SETUP_SQPOLL));
    /* The library leaves this mode to the kernel. */
    try("polled by a hybrid", 8, WITH(.flags = IORING_SETUP_IOPOLL | 1u << 17));
    try("attached to nothing", 8, WITH(.flags = IORING_SETUP_ATTACH_WQ, .wq_fd = 0));
    printf("bad address: %d\n", io_uring_setup(8, (void *)8));
    struct io_uring ring;
    MUST(io_uring_queue_init(4, &ring, IORING_SETUP_R_DISABLED) == 0);
    struct io_uring_sqe *sqe = entry(&ring, 1);
    io_uring_prep_nop(sqe);
    sqe->user_data = 1;
    printf("disabled: %d\n", io_uring_submit(&ring));
    printf("enabled: %d\n", io_uring_register(ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    printf("enabled: %d\n", io_uring_enter(ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL));
    completions(&ring, "enabled", 1);
    printf("twice: %d\n", io_uring_register(ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    io_uring_queue_exit(&ring);
    polled();
    return 0;
}
