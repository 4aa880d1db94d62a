/* Random batches of entries whose results do not depend on an undefined order. Other kinds are in
 * random_newer.h, random_waits.h and random_forks.h. The arguments are the first seed and the
 * number of batches. */
#define _GNU_SOURCE
#include "common.h"

enum {
    MOST = 14,
    GROUP = 20,
    DEFERS = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN
};

static unsigned long long state;

static unsigned pick(unsigned below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 11) % below;
}

static int file, full[2], empty[2], sockets[2];
static char buffers[MOST][16];
static struct __kernel_timespec soon = { 0, 1000000 }, late = { 1000, 0 };
/* Rings that get messages. The second ring has deferred task work. */
static struct io_uring told[2];

/* Fills a message to a ring, or to a file that is no ring. Its flags may be unknown. */
static void draw_message(struct io_uring_sqe *sqe, int at)
{
    int to = pick(5);
    io_uring_prep_msg_ring(sqe, to < 4 ? told[to % 2].ring_fd : file, pick(100), at,
                           pick(8) ? 0 : 1 << 30);
}

static void prints_messages(void)
{
    for (int at = 0; at < 2; at++) {
        MUST(io_uring_get_events(&told[at]) >= 0);
        int count = io_uring_cq_ready(&told[at]);
        printf("messages to %d: %d\n", at, count);
        sorted(&told[at], "message", count);
    }
}

/* Flags of a read or write, mostly none: RWF_HIPRI is refused, as 0x200 is, and RWF_DSYNC, RWF_SYNC
 * and RWF_NOAPPEND change nothing. */
static int draw_flags(int is_refused)
{
    static const int FLAGS[] = { RWF_DSYNC, RWF_SYNC, 0x20, RWF_HIPRI, 0x200 };
    return pick(4) ? 0 : FLAGS[pick(is_refused ? 5 : 3)];
}

#include "random_newer.h"

/* Fills an entry. Returns true if the entry waits without end: the next entry then has to be a
 * linked timeout (`soon`), which ends it. */
static int fill(struct io_uring_sqe *sqe, int at, int after_link)
{
    char *buffer = buffers[at];
    int is_due = 0;
    if (is_new && pick(3) == 0)
        return fill_newer(sqe, at, after_link);
    unsigned kind = pick(after_link ? 22 : 20);
    switch (is_shared && kind > 15 && kind < 20 ? 0 : kind) {
    case 0:
        io_uring_prep_nop(sqe);
        break;
    case 1:
        io_uring_prep_close(sqe, dup(pick(2) ? file : pick(2) ? empty[0] : sockets[0]));
        break;
    case 2:
        io_uring_prep_read(sqe, file, buffer, 16, pick(100));
        sqe->rw_flags = draw_flags(1);
        break;
    case 3:
        io_uring_prep_read(sqe, file, buffer, 16, 4096 - pick(20));
        break;
    case 4:
        io_uring_prep_read(sqe, -1, buffer, 16, 0);
        break;
    case 5:
        io_uring_prep_write(sqe, file, "0123456789abcdef", 1 + pick(16), 200 + 16 * at);
        sqe->rw_flags = draw_flags(1);
        break;
    case 6:
        io_uring_prep_nop(sqe);
        sqe->opcode = 200;
        break;
    case 7:
        io_uring_prep_timeout(sqe, &soon, 0, pick(2) ? IORING_TIMEOUT_ETIME_SUCCESS : 0);
        break;
    case 8:
        io_uring_prep_timeout_remove(sqe, 12345, 0);
        break;
    case 9:
        io_uring_prep_cancel(sqe, (void *)12345, 0);
        break;
    case 10:
        io_uring_prep_poll_add(sqe, full[1], POLLOUT);
        break;
    case 11:
        io_uring_prep_fsync(sqe, file, pick(2));
        break;
    case 12:
        io_uring_prep_read(sqe, pick(4), buffer, 16, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
        break;
    case 13:
        /* The kernel may execute a read behind a link on a worker. No timeout ends such a read. */
        if (after_link) {
            io_uring_prep_nop(sqe);
            break;
        }
        io_uring_prep_read(sqe, empty[0], buffer, 1, 0);
        sqe->rw_flags = draw_flags(0);
        is_due = 1;
        break;
    case 14:
        /* This send waits for no receiver, and nothing comes back. */
        io_uring_prep_send(sqe, sockets[0], buffer, 1 + pick(16), 0);
        break;
    case 15:
        io_uring_prep_recv(sqe, pick(4) ? sockets[0] : file, buffer, 16, MSG_DONTWAIT);
        break;
    case 16:
        io_uring_prep_provide_buffers(sqe, buffer, 16, 1 + pick(3), GROUP, pick(10));
        break;
    case 17:
        io_uring_prep_remove_buffers(sqe, 1 + pick(3), GROUP + 1);
        break;
    case 18:
        /* No group has this number. */
        io_uring_prep_recv(sqe, sockets[0], NULL, 0, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = GROUP + 1;
        break;
    case 19:
        draw_message(sqe, at);
        break;
    case 20:
        io_uring_prep_link_timeout(sqe, &late, 0);
        break;
    default:
        io_uring_prep_nop(sqe);
        sqe->ioprio = 89;
    }
    return is_due;
}

/* Sets up a ring in a random mode. Returns whether several threads may submit to it. */
static int set_up(struct io_uring *ring)
{
    static const unsigned modes[] = {
        0,
        IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SINGLE_ISSUER,
        DEFERS,
    };
    struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 16 };
    params.flags |= modes[pick(4)];
    if (pick(2))
        params.flags |= IORING_SETUP_SUBMIT_ALL;
    printf("set up: flags %u\n", params.flags);
    MUST(io_uring_queue_init_params(16, ring, &params) == 0);
    return !(params.flags & IORING_SETUP_SINGLE_ISSUER);
}

/* Submits all entries. In a ring with deferred task work, each call for events posts only what
 * follows from the call before it. */
static void submit(struct io_uring *ring, int left)
{
    while (left > 0) {
        int taken = io_uring_submit(ring);
        printf("submit %d\n", taken);
        MUST(taken > 0);
        left -= taken;
        for (int at = 0; at < MOST; at++)
            MUST(io_uring_get_events(ring) >= 0);
    }
}

#include "random_waits.h"

/* Takes the completions of a number of requests, and the notices that some of them announce. Prints
 * them in the order of the requests. */
static void take_all(struct io_uring *ring, int count)
{
    struct io_uring_cqe all[2 * MOST], *cqe;
    int have = 0;
    for (int left = count; left > 0; have++) {
        MUST(have < 2 * MOST && io_uring_wait_cqe(ring, &cqe) == 0);
        all[have] = *cqe;
        left += (cqe->flags & IORING_CQE_F_MORE ? 1 : 0) - 1;
        io_uring_cqe_seen(ring, cqe);
    }
    qsort(all, have, sizeof *all, by_user_data);
    for (int at = 0; at < have; at++)
        printf("result: %llu gives %d, flags %u\n", (unsigned long long)all[at].user_data,
               all[at].res, all[at].flags);
    printf("%u more\n", io_uring_cq_ready(ring));
}

/* Random entries, which all end. */
static void batch(struct io_uring *ring)
{
    int count = 1 + pick(MOST - 1), is_due = 0, links = 0;
    drains = pick(2);
    for (int at = 0; at < count; at++) {
        struct io_uring_sqe *sqe = entry(ring, at);
        if (is_due) {
            io_uring_prep_link_timeout(sqe, &soon, 0);
            sqe->user_data = at;
            is_due = links = 0;
            continue;
        }
        is_due = fill(sqe, at, links);
        sqe->user_data = at;
        /* An entry that never ends by itself has its timeout behind it. */
        if (is_due && at == count - 1)
            count++;
        unsigned flags = is_due ? 0 : pick(8);
        /* A zero-copy send is in no chain: in the kernel, it posts a notice even if the chain
         * cancels it. */
        links = is_due || (flags < 4 && sqe->opcode != SEND_ZC && sqe->opcode != SENDMSG_ZC);
        if (links)
            sqe->flags |= !is_due && flags == 0 ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
        if (drains && pick(10) == 0)
            sqe->flags |= IOSQE_IO_DRAIN;
        printf("entry %d: opcode %u, flags %u\n", at, sqe->opcode, sqe->flags);
    }
    submit(ring, count);
    take_all(ring, count);
    prints_newer(count);
}

static void program(void)
{
    struct io_uring ring;
    int list[TABLE] = { file };
    set_up(&ring);
    for (int at = 1; at < TABLE; at++)
        list[at] = -1;
    MUST(io_uring_register_files(&ring, list, TABLE) == 0);
    if (is_new) {
        MUST(io_uring_register_file_alloc_range(&ring, FIRST_FREE, TABLE - FIRST_FREE) == 0);
        registers_buffers(&ring);
    }
    batch(&ring);
    prints_messages();
    io_uring_queue_exit(&ring);
}

static void *nothing(void *none)
{
    return none;
}

/* Files and rings of this process. */
static void opens_files(void)
{
    MUST((file = scratch()) >= 0 && ftruncate(file, 4096) == 0 && pipe(full) == 0 &&
         pipe(empty) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    opens_newer();
    /* Linux 6.18 loses waiters for futexes when a process gets its second thread. */
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void sets_up_rings(void)
{
    struct iovec parts[3] = { { fixed, sizeof fixed }, { NULL, 0 }, { fixed, 2 * PART } };
    for (int at = 0; at < 2; at++)
        MUST(io_uring_queue_init(64, &told[at], at ? DEFERS : 0) == 0);
    MUST(io_uring_queue_init(2, &lender, 0) == 0);
    MUST(io_uring_register_buffers(&lender, parts, 3) == 0);
}

static void leaves_rings(void)
{
    for (int at = 0; at < 2; at++)
        io_uring_queue_exit(&told[at]);
    io_uring_queue_exit(&lender);
}

#include "random_forks.h"

int main(int argc, char **argv)
{
    unsigned long long first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    unsigned long long count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    /* The output is buffered: what a child prints comes before what its parent prints while the
     * child lives. */
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    opens_files();
    sets_up_rings();
    for (unsigned long long seed = first; seed < first + count; seed++) {
        printf("program %llu\n", seed);
        state = seed * 2654435761u + 88172645463325252ull;
        any_program();
    }
    ends_children();
    return 0;
}
