/* Random programs of several processes. */

/* Programs fork further programs up to the depth DEEPEST. */
enum { DEEPEST = 2, ROUNDS = 4 };

static int depth;

static void any_program(void);

/* Forks a process, which has files and rings of its own and executes a program, while this process
 * has requests in flight. */
static pid_t forks(void)
{
    if (depth == DEEPEST)
        return 0;
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child > 0)
        return child;
    depth++;
    printf("forked\n");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pick(2))
        io_uring_queue_exit(&all.ring);
    opens_files();
    sets_up_rings();
    any_program();
    ends_children();
    printf("ends\n");
    fflush(stdout);
    _exit(0);
}

static void has_ended(pid_t child)
{
    int status = 0;
    MUST(child == 0 || waitpid(child, &status, 0) == child);
    MUST(status == 0);
}

/* How a round of a ring of several processes goes: who submits, and who takes the results. */
enum round { OWN, CHILDS, TAKEN_BY_CHILD, TAKEN_BY_PARENT, ROUND_KINDS };

/* What the requests of a round wait for: a pipe, and a pair of sockets. */
static int data[2], pair[2];

static int submits_waiters(struct io_uring *ring)
{
    int count = 1 + pick(4);
    for (int at = 0; at < count; at++) {
        struct io_uring_sqe *sqe = entry(ring, at);
        switch (pick(4)) {
        case 0:
            io_uring_prep_read(sqe, data[0], buffers[at], 1, 0);
            break;
        case 1:
            io_uring_prep_recv(sqe, pair[0], buffers[at], 1, 0);
            break;
        case 2:
            io_uring_prep_poll_add(sqe, data[0], POLLIN);
            break;
        default:
            io_uring_prep_timeout(sqe, &soon, 0, 0);
        }
        sqe->user_data = at;
        printf("entry %d: opcode %u\n", at, sqe->opcode);
    }
    submit(ring, count);
    return count;
}

/* Writes more data than the requests take, and takes their completions. */
static void data_comes(struct io_uring *ring, int count)
{
    MUST(write(data[1], "12345", 5) == 5 && write(pair[1], "12345", 5) == 5);
    take_all(ring, count);
}

static void plays(struct io_uring *ring, enum round round)
{
    int told_[2], over[2], count = 0;
    char byte;
    MUST(pipe(data) == 0 && pipe(told_) == 0 && pipe(over) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    printf("round of kind %d\n", round);
    if (round == OWN)
        batch(ring);
    if (round == TAKEN_BY_CHILD)
        count = submits_waiters(ring);
    fflush(stdout);
    pid_t child = round == OWN ? 0 : fork();
    MUST(child >= 0);
    if (round != OWN && child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (round == CHILDS)
            batch(ring);
        if (round == TAKEN_BY_CHILD)
            data_comes(ring, count);
        if (round == TAKEN_BY_PARENT)
            count = submits_waiters(ring);
        fflush(stdout);
        MUST(write(told_[1], &count, sizeof count) == sizeof count);
        MUST(read(over[0], &byte, 1) == 1);
        _exit(0);
    }
    if (child > 0) {
        MUST(read(told_[0], &count, sizeof count) == sizeof count);
        if (round == TAKEN_BY_PARENT)
            data_comes(ring, count);
        MUST(write(over[1], "x", 1) == 1);
        has_ended(child);
    }
    for (int end = 0; end < 2; end++)
        MUST(close(data[end]) == 0 && close(pair[end]) == 0 && close(told_[end]) == 0 &&
             close(over[end]) == 0);
}

/* Several processes submit to one ring, one after the other, or take results of each other. */
static void shared_program(void)
{
    struct io_uring *ring =
        mmap(NULL, sizeof *ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(ring != MAP_FAILED);
    int many = set_up(ring);
    is_shared = 1;
    for (int round = 1 + pick(ROUNDS); round > 0; round--)
        plays(ring, many ? pick(ROUND_KINDS) : OWN);
    is_shared = 0;
    io_uring_queue_exit(ring);
    MUST(munmap(ring, sizeof *ring) == 0);
}

static void any_program(void)
{
    if (is_new && pooled < WAITERS) {
        /* The rings are closed before the fork, so that each ring belongs to one process. */
        leaves_rings();
        while (pooled < (depth ? WAITERS : POOL))
            pool[pooled++] = starts();
        sets_up_rings();
    }
    int forked = 0;
    switch (pick(16)) {
    case 0:
        shared_program();
        forked = 1;
        break;
    case 1:
        forked = 1;
        waiting_program(forks);
        break;
    default:
        if (pick(2))
            program();
        else
            waiting_program(NULL);
    }
    while (recv(sockets[1], buffers, sizeof buffers, MSG_DONTWAIT) > 0)
        ;
    if (forked) {
        leaves_rings();
        sets_up_rings();
    }
}
