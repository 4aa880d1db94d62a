/* Random programs with requests that wait: on pipes, sockets, listeners and epolls, and for futexes
 * and children. Data, clients, a cancel or the end of their thread ends them. Their files and
 * buffers may be registered, with tags. All other entries end at once. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { WAITERS = 6, SLOTS = 4, FIRST_WAITER = 100, FIRST_TAG = 200, SEEN = 64 };

enum kind {
    READ,
    READ_INTO_BUFFER,
    READV,
    RECEIVE,
    RECEIVE_MESSAGE,
    READ_INTO_GROUP,
    RECEIVE_INTO_GROUP,
    ACCEPT,
    POLL,
    NEWER,
    READ_LIST = NEWER,
    EPOLL,
    FUTEX,
    FUTEX_OF_TWO,
    CHILD,
    LASTS,
    MULTISHOT = LASTS,
    RECEIVE_MORE,
    ACCEPT_MORE,
    TIMEOUT,
    KINDS
};

/* What ends the requests that still wait at the end of the program. */
enum end { BY_DATA, BY_CANCEL, BY_THREAD, ENDS };

static struct waiter {
    enum kind kind;
    int on;           /* the index of its file in `all.pipes`, or -1 */
    int slot, buffer; /* or -1 */
    unsigned tags[2]; /* of its file and its buffer, or 0 */
    int word; /* the index of the futex that it waits for */
    struct futex_waiter words[2];
    struct child child;
    siginfo_t info;
    struct epoll_event events[2];
    struct iovec part;
    struct msghdr message;
    char bytes[8];
} waiters[WAITERS];

static struct {
    struct io_uring ring;
    enum end end;
    int waiters, drains, defers, wakes;
    int pipes[WAITERS][2]; /* a listener has no second end */
    int inner[WAITERS]; /* what an epoll watches, or -1 */
    unsigned words[3], own[WAITERS][2]; /* futexes */
    int on[SLOTS]; /* the pipe that a slot stands for, or -1 */
    __u64 tags[2][SLOTS];
    unsigned last_tag; /* the last one that was given */
    struct io_uring_cqe seen[SEEN];
    int count;
    char buffers[SLOTS][8];
} all;

static pthread_barrier_t barrier;

static __u64 draw_tag(void)
{
    return pick(3) ? ++all.last_tag : 0;
}

static void draw_waiters(void)
{
    all.waiters = 1 + pick(WAITERS);
    for (int at = 0; at < all.waiters; at++) {
        struct waiter *one = &waiters[at];
        *one = (struct waiter){ .kind = pick(all.end == BY_DATA ? LASTS : KINDS), .slot = -1 };
        if (!is_new && one->kind >= NEWER && one->kind < LASTS)
            one->kind = POLL;
        /* A request whose thread has ended does not get a child's state. */
        if (one->kind == CHILD && all.end == BY_THREAD)
            one->kind = POLL;
        int has_file = one->kind != TIMEOUT && (one->kind < FUTEX || one->kind > CHILD);
        one->on = has_file ? (int)pick(WAITERS) : -1;
        if (has_file && pick(2)) {
            one->slot = pick(SLOTS);
            one->on = all.on[one->slot];
            one->tags[0] = all.tags[0][one->slot];
        }
        /* Operations have to suit their file: in the library, a request that fails waits for the
         * earlier ones of its descriptor. Accepts must not end with their thread, because the
         * kernel may lose such an accept. */
        int accepts = one->kind == ACCEPT || one->kind == ACCEPT_MORE;
        int polls = one->kind == POLL || one->kind == MULTISHOT;
        int is_listener = one->on >= 0 && all.pipes[one->on][1] < 0;
        int is_epoll = one->on >= 0 && all.inner[one->on] >= 0;
        int fits = accepts ? is_listener && all.end != BY_THREAD :
                             !is_listener && is_epoll == (one->kind == EPOLL);
        if (one->on >= 0 && !polls && !fits)
            one->kind = POLL;
        int has_buffer = one->kind == READ_INTO_BUFFER || one->kind == READ_LIST;
        one->buffer = has_buffer ? (int)pick(SLOTS) : -1;
        one->word = pick(3);
        if (one->kind == CHILD)
            one->child = pool[--pooled];
        if (one->buffer >= 0)
            one->tags[1] = all.tags[1][one->buffer];
        printf("waiter %d: kind %d on %d, slot %d, buffer %d\n", at, one->kind, one->on, one->slot,
               one->buffer);
    }
}

static void fill_newer_waiter(struct io_uring_sqe *sqe, struct waiter *one, int fd)
{
    unsigned *own = all.own[one - waiters];
    sqe->fd = fd;
    sqe->len = 1;
    switch (one->kind) {
    case READ_LIST:
        one->part.iov_base = all.buffers[one->buffer];
        sqe->opcode = READV_FIXED;
        sqe->addr = (unsigned long)&one->part;
        sqe->buf_index = one->buffer;
        break;
    case EPOLL:
        sqe->opcode = EPOLL_WAIT;
        sqe->addr = (unsigned long)one->events;
        break;
    case FUTEX:
        io_uring_prep_nop(sqe);
        sqe->opcode = FUTEX_WAIT_;
        sqe->fd = PRIVATE_32;
        sqe->addr = (unsigned long)&all.words[one->word];
        sqe->addr3 = ALL_BITS;
        break;
    case FUTEX_OF_TWO:
        for (int at = 0; at < 2; at++)
            one->words[at] = (struct futex_waiter){ 0, (unsigned long)&own[at], PRIVATE_32, 0 };
        sqe->opcode = FUTEX_WAITV_;
        sqe->fd = 0;
        sqe->addr = (unsigned long)one->words;
        sqe->len = 2;
        break;
    default:
        sqe->opcode = WAITID;
        sqe->fd = one->child.pid;
        sqe->len = P_PID;
        sqe->off = (unsigned long)&one->info;
        sqe->splice_fd_in = WEXITED;
    }
}

static void *submit_waiters(void *is_thread)
{
    for (int at = 0; at < all.waiters; at++) {
        struct waiter *one = &waiters[at];
        struct io_uring_sqe *sqe = entry(&all.ring, at);
        int fd = one->slot >= 0 ? one->slot : one->on >= 0 ? all.pipes[one->on][0] : -1;
        one->part = (struct iovec){ one->bytes, 1 };
        switch (one->kind) {
        case READ:
            io_uring_prep_read(sqe, fd, one->bytes, 1, 0);
            break;
        case READ_INTO_BUFFER:
            io_uring_prep_read_fixed(sqe, fd, all.buffers[one->buffer], 1, 0, one->buffer);
            break;
        case READV:
            io_uring_prep_readv(sqe, fd, &one->part, 1, 0);
            break;
        case RECEIVE:
            io_uring_prep_recv(sqe, fd, one->bytes, 1, 0);
            break;
        case RECEIVE_MESSAGE:
            one->message = (struct msghdr){ .msg_iov = &one->part, .msg_iovlen = 1 };
            io_uring_prep_recvmsg(sqe, fd, &one->message, 0);
            break;
        case READ_INTO_GROUP:
            io_uring_prep_read(sqe, fd, NULL, 1, 0);
            break;
        case RECEIVE_INTO_GROUP:
            io_uring_prep_recv(sqe, fd, NULL, 1, 0);
            break;
        case RECEIVE_MORE:
            io_uring_prep_recv_multishot(sqe, fd, NULL, 0, 0);
            break;
        case ACCEPT:
            io_uring_prep_accept(sqe, fd, NULL, NULL, 0);
            break;
        case ACCEPT_MORE:
            io_uring_prep_multishot_accept(sqe, fd, NULL, NULL, 0);
            break;
        case POLL:
            io_uring_prep_poll_add(sqe, fd, POLLIN);
            break;
        case MULTISHOT:
            io_uring_prep_poll_multishot(sqe, fd, POLLIN);
            break;
        case TIMEOUT:
            io_uring_prep_timeout(sqe, &late, 0, 0);
            break;
        default:
            fill_newer_waiter(sqe, one, fd);
        }
        if (one->kind == READ_INTO_GROUP || one->kind == RECEIVE_INTO_GROUP ||
            one->kind == RECEIVE_MORE) {
            sqe->flags |= IOSQE_BUFFER_SELECT;
            sqe->buf_group = at;
        }
        sqe->flags |= one->slot >= 0 ? IOSQE_FIXED_FILE : 0;
        sqe->user_data = FIRST_WAITER + at;
    }
    submit(&all.ring, all.waiters);
    if (is_thread) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* Fills a cancel of at most one request, or of all. Behind a drain, workers of the kernel
 * execute cancels, and a cancel by file may find another cancel. So behind a drain, a cancel is
 * by user_data only. */
static void draw_cancel(struct io_uring_sqe *sqe)
{
    int number = pick(WAITERS), slot = pick(SLOTS + 1);
    const struct waiter *one = &waiters[pick(all.waiters)];
    switch (pick(all.drains ? 4 : 8)) {
    case 0:
    case 1:
        io_uring_prep_cancel64(sqe, FIRST_WAITER + pick(WAITERS), 0);
        break;
    case 2:
        io_uring_prep_poll_remove(sqe, FIRST_WAITER + pick(WAITERS));
        break;
    case 3:
        io_uring_prep_timeout_remove(sqe, FIRST_WAITER + pick(WAITERS), 0);
        break;
    case 4:
        io_uring_prep_cancel_fd(sqe, all.pipes[number][0], IORING_ASYNC_CANCEL_ALL);
        break;
    case 5:
        io_uring_prep_cancel_fd(sqe, slot, IORING_ASYNC_CANCEL_FD_FIXED | IORING_ASYNC_CANCEL_ALL);
        break;
    case 6:
        /* In the kernel, a request whose futex was just woken hides others from a cancel. */
        io_uring_prep_cancel64(sqe, all.wakes ? FIRST_WAITER : 0,
                               all.wakes ? 0 : IORING_ASYNC_CANCEL_ANY);
        break;
    default: {
        int same = 0;
        for (int at = 0; at < all.waiters; at++)
            same += waiters[at].on == one->on;
        int fd = one->on < 0 ? -1 : all.pipes[one->on][0];
        io_uring_prep_cancel_fd(sqe, fd, same > 1 ? IORING_ASYNC_CANCEL_ALL : 0);
    }
    }
}

static int minus_one = -1;

/* Fills an entry that does not wait. Behind a drain, several workers of the kernel would change
 * slots at once, so slots stay as they are. No cancel is for requests of another thread: the kernel
 * ends these only when that thread runs. Linked entries are issued by task work, which the kernel
 * may interrupt for other threads. Only a ring with deferred task work has a certain order, so only
 * there a cancel may be behind a link. */
static void fill_beside(struct io_uring_sqe *sqe, int at, int after_link)
{
    int cancels = all.end != BY_THREAD && (all.defers || !after_link);
    if (is_new && pick(6) == 0) {
        int is_used = all.wakes && !after_link;
        sqe->opcode = FUTEX_WAKE_;
        sqe->fd = PRIVATE_32;
        sqe->addr = (unsigned long)(is_used ? &all.words[pick(3)] : &words[1]);
        sqe->addr2 = pick(4);
        sqe->addr3 = ALL_BITS;
        return;
    }
    switch (pick(cancels ? 12 : 7)) {
    case 0:
    case 1:
        io_uring_prep_nop(sqe);
        break;
    case 2:
        io_uring_prep_nop(sqe);
        sqe->opcode = 200;
        break;
    case 3:
        io_uring_prep_read(sqe, -1, buffers[at], 16, 0);
        break;
    case 4:
        io_uring_prep_poll_add(sqe, full[1], POLLOUT);
        break;
    case 5:
        all.drains ? io_uring_prep_nop(sqe) : io_uring_prep_close_direct(sqe, pick(SLOTS + 1));
        break;
    case 6:
        if (all.drains)
            io_uring_prep_nop(sqe);
        else
            io_uring_prep_files_update(sqe, pick(2) ? &file : &minus_one, 1, pick(SLOTS));
        break;
    default:
        draw_cancel(sqe);
    }
}

/* Takes all completions, and waits until `count` of them have a smaller user_data than `below`. */
static void take(int count, unsigned below)
{
    struct __kernel_timespec longest = { 10, 0 };
    struct io_uring_cqe *cqe;
    for (int have = 0, error = 0;;) {
        /* A ring with deferred task work may still have something to post. */
        MUST(io_uring_get_events(&all.ring) >= 0);
        while (io_uring_peek_cqe(&all.ring, &cqe) == 0) {
            MUST(all.count < SEEN);
            all.seen[all.count++] = *cqe;
            io_uring_cqe_seen(&all.ring, cqe);
        }
        have = 0;
        for (int at = 0; at < all.count; at++)
            have += all.seen[at].user_data < below;
        if (error)
            printf("%d of %d come: %d\n", have, count, error);
        if (have >= count || error)
            return;
        error = io_uring_wait_cqe_timeout(&all.ring, &cqe, &longest);
    }
}

static int place(unsigned user_data)
{
    for (int at = 0; at < all.count; at++)
        if (all.seen[at].user_data == user_data)
            return at;
    return SEEN;
}

static int is_left(int at)
{
    return place(FIRST_WAITER + at) == SEEN;
}

static void registers(void)
{
    int files[SLOTS];
    struct iovec parts[SLOTS];
    for (int at = 0; at < SLOTS; at++) {
        all.on[at] = pick(WAITERS);
        files[at] = all.pipes[all.on[at]][0];
        parts[at] = (struct iovec){ all.buffers[at], sizeof all.buffers[at] };
        all.tags[0][at] = draw_tag();
        all.tags[1][at] = draw_tag();
    }
    errno = -io_uring_register_files_tags(&all.ring, files, all.tags[0], SLOTS);
    MUST(errno == 0);
    MUST(io_uring_register_buffers_tags(&all.ring, parts, all.tags[1], SLOTS) == 0);
}

/* Provides a group for each waiter. A group has two buffers, or none. */
static void provides(void)
{
    static struct io_uring_buf_ring *rings;
    enum { PAGE = 4096, ENTRIES = 4 };
    if (!rings)
        rings = mmap(NULL, WAITERS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    MUST(rings != MAP_FAILED);
    memset(rings, 0, WAITERS * PAGE);
    for (int at = 0; at < WAITERS; at++) {
        struct io_uring_buf_ring *one = (void *)((char *)rings + at * PAGE);
        struct io_uring_buf_reg reg = { .ring_addr = (unsigned long)one, .ring_entries = ENTRIES,
                                        .bgid = at };
        int count = pick(8) ? 2 : 0;
        for (int id = 0; id < count; id++)
            io_uring_buf_ring_add(one, waiters[at].bytes, 4, 10 * at + id, ENTRIES - 1, id);
        io_uring_buf_ring_advance(one, count);
        MUST(io_uring_register_buf_ring(&all.ring, &reg, 0) == 0);
    }
}

/* Updates slots that may be in use. */
static void updates(void)
{
    for (int count = pick(3); count > 0; count--) {
        unsigned slot = pick(SLOTS), other = pick(WAITERS);
        __u64 tag = draw_tag();
        struct iovec part = { all.buffers[slot], 4 };
        int answer =
            pick(2)
                ? io_uring_register_files_update_tag(&all.ring, slot, &all.pipes[other][0], &tag, 1)
                : io_uring_register_buffers_update_tag(&all.ring, slot, &part, &tag, 1);
        printf("update of %u: %d\n", slot, answer);
    }
}

/* Ends a request that waits for a child or a futex. */
static void happens(struct waiter *one)
{
    unsigned *word = one->kind == FUTEX ? &all.words[one->word] :
                                          &all.own[one - waiters][one->word % 2];
    if (one->kind == CHILD)
        is_to_end(&one->child);
    if (one->kind == FUTEX || one->kind == FUTEX_OF_TWO)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, WAITERS, NULL, NULL, 0);
}

/* Writes data to a pipe or socket, or connects to a listener and closes the connection. */
static void comes(int at, int count)
{
    struct sockaddr_un name;
    socklen_t len = sizeof name;
    if (all.pipes[at][1] >= 0) {
        MUST(write(all.pipes[at][1], "123456789", count) == count);
        return;
    }
    MUST(getsockname(all.pipes[at][0], (struct sockaddr *)&name, &len) == 0);
    for (; count > 0; count--) {
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        MUST(connect(client, (struct sockaddr *)&name, len) == 0 && close(client) == 0);
    }
}

/* Ends all requests that still wait. */
static void ends_all(int entries)
{
    if (all.end != BY_CANCEL) {
        for (int at = 0; at < WAITERS; at++) {
            int needed = 0;
            for (int of = 0; of < all.waiters; of++)
                needed += waiters[of].on == at && is_left(of);
            /* More than what reads take, so that polls see the rest. */
            if (needed)
                comes(at, needed + 1);
        }
    }
    for (int at = 0; at < all.waiters; at++)
        if (all.end != BY_CANCEL && is_left(at))
            happens(&waiters[at]);
    int timeouts = 0;
    for (int at = 0; at < all.waiters; at++)
        timeouts += waiters[at].kind == TIMEOUT && is_left(at);
    if (all.end == BY_THREAD)
        take(all.waiters + entries - timeouts, FIRST_TAG);
    /* Workers may still execute entries behind a drain. With drains, each waiter has a cancel, in
     * place of one cancel for all requests. */
    struct io_uring_sync_cancel_reg cancel = { .timeout = { -1, -1 } };
    for (int at = 0; at < all.waiters && all.end == BY_CANCEL && all.drains; at++) {
        cancel.addr = FIRST_WAITER + at;
        printf("cancel of %d: %d\n", at, io_uring_register_sync_cancel(&all.ring, &cancel));
    }
    cancel.flags = IORING_ASYNC_CANCEL_ANY;
    if (!all.drains && (all.end == BY_CANCEL || timeouts))
        printf("cancel of the rest: %d\n", io_uring_register_sync_cancel(&all.ring, &cancel));
    take(all.waiters + entries, FIRST_TAG);
    if (pick(2))
        printf("unregister buffers: %d\n", io_uring_unregister_buffers(&all.ring));
    printf("unregister files: %d\n", io_uring_unregister_files(&all.ring));
    io_uring_unregister_buffers(&all.ring);
    take(all.waiters + entries + all.last_tag - FIRST_TAG, -1);
}

/* The result of a completion. An accepted socket is closed, and its number is not compared. */
static int result_of(const struct io_uring_cqe *cqe)
{
    int at = (int)cqe->user_data - FIRST_WAITER;
    int accepts = at >= 0 && at < all.waiters &&
                  (waiters[at].kind == ACCEPT || waiters[at].kind == ACCEPT_MORE);
    return accepts && cqe->res >= 0 ? close(cqe->res) : cqe->res;
}

/* Prints what a request has left in memory. A child that was not waited for ends. */
static void prints_newer_waiter(int at)
{
    struct waiter *one = &waiters[at];
    if (one->kind == EPOLL && one->events[0].events)
        printf("%d has event %x of %d\n", at, one->events[0].events,
               (int)one->events[0].data.u64);
    if (one->kind != CHILD)
        return;
    if (one->info.si_signo)
        printf("%d has seen signal %d, code %d, status %d\n", at, one->info.si_signo,
               one->info.si_code, one->info.si_status);
    else
        ends(one->child);
}

static void prints_all(void)
{
    for (int at = 0; at < all.waiters; at++)
        for (int of = 0; of < 2; of++)
            if (waiters[at].tags[of] && place(waiters[at].tags[of]) < place(FIRST_WAITER + at))
                printf("tag %u comes before what uses it\n", waiters[at].tags[of]);
    qsort(all.seen, all.count, sizeof *all.seen, by_user_data);
    for (int at = 0; at < all.count; at++)
        printf("result: %llu gives %d, flags %u\n", (unsigned long long)all.seen[at].user_data,
               result_of(&all.seen[at]), all.seen[at].flags);
    printf("%u more\n", io_uring_cq_ready(&all.ring));
    for (int at = 0; at < all.waiters; at++)
        prints_newer_waiter(at);
}

/* A pipe, a pair of sockets, an epoll that watches a pipe, or a listener with a name of the
 * kernel's choice. */
static void opens(int *pair, int *inner)
{
    struct sockaddr any = { .sa_family = AF_UNIX };
    *inner = -1;
    switch (pick(is_new ? 4 : 3)) {
    case 3:
        MUST(pipe(pair) == 0);
        *inner = pair[0];
        pair[0] = epoll_of(*inner, EPOLLIN);
        break;
    case 0:
        MUST(pipe(pair) == 0);
        break;
    case 1:
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        break;
    default:
        pair[0] = socket(AF_UNIX, SOCK_STREAM, 0);
        pair[1] = -1;
        MUST(bind(pair[0], &any, sizeof any.sa_family) == 0 && listen(pair[0], SEEN) == 0);
    }
}

/* A program whose requests wait. `forks` forks a process meanwhile, or is NULL. */
static void waiting_program(pid_t (*forks)(void))
{
    pthread_t thread;
    int status = 0;
    all.count = 0;
    all.last_tag = FIRST_TAG;
    for (int at = 0; at < WAITERS; at++)
        opens(all.pipes[at], &all.inner[at]);
    int many = set_up(&all.ring);
    all.defers = all.ring.flags & IORING_SETUP_DEFER_TASKRUN;
    all.end = pick(many ? ENDS : BY_THREAD);
    registers();
    draw_waiters();
    provides();
    if (all.end == BY_THREAD) {
        MUST(pthread_barrier_init(&barrier, NULL, 2) == 0);
        MUST(pthread_create(&thread, NULL, submit_waiters, &all) == 0);
        pthread_barrier_wait(&barrier);
    } else {
        submit_waiters(NULL);
    }
    pid_t child = forks ? forks() : 0;
    int entries = pick(MOST + 1);
    int has_drained = 0, links = 0;
    all.drains = all.end != BY_THREAD && pick(3) == 0;
    all.wakes = all.end != BY_THREAD && !all.drains && pick(2);
    for (int at = 0; at < entries; at++) {
        struct io_uring_sqe *sqe = entry(&all.ring, at);
        fill_beside(sqe, at, links);
        sqe->user_data = at;
        unsigned flags = pick(8);
        /* The last entry has no link: a worker of the kernel would execute a chain that is left
         * open. */
        links = flags < 4 && at < entries - 1 && sqe->opcode != FUTEX_WAKE_;
        if (links)
            sqe->flags |= flags == 0 ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
        if (all.drains && pick(8) == 0) {
            sqe->flags |= IOSQE_IO_DRAIN;
            has_drained = 1;
        }
        printf("entry %d: opcode %u, flags %u", at, sqe->opcode, sqe->flags);
        if (sqe->opcode == IORING_OP_ASYNC_CANCEL)
            printf(", of %d, flags %u", (int)sqe->addr, sqe->cancel_flags);
        putchar('\n');
    }
    submit(&all.ring, entries);
    if (!has_drained)
        take(entries, FIRST_WAITER);
    updates();
    if (all.end == BY_THREAD) {
        pthread_barrier_wait(&barrier);
        MUST(pthread_join(thread, NULL) == 0);
    }
    ends_all(entries);
    MUST(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
    prints_all();
    io_uring_queue_exit(&all.ring);
    for (int at = 0; at < WAITERS; at++) {
        close(all.pipes[at][0]);
        close(all.pipes[at][1]);
        close(all.inner[at]);
    }
}
