/* Requests on a file whose server does not answer.
 *
 * hung FILE buffered|direct fresh|known steps|exit|kill|close */
#include "../c/common.h"
#include "../../../libaio/tests/support/hung.h"

enum kind { READ, WRITE, SYNC };

struct request {
    struct aiocb cb;
    unsigned char *buffer;
    size_t offset;
    enum kind kind;
    int may_be_cancelled;
    volatile int notified;
};

static struct request requests[64];
static int count;

static void notified(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    struct request *request = info->si_value.sival_ptr;
    __atomic_add_fetch(&request->notified, 1, __ATOMIC_RELEASE);
}

static struct aiocb *next(int fd, enum kind kind, size_t offset)
{
    struct request *request = &requests[count];
    if (count == (int)COUNT(requests))
        die("too many requests");
    memset(request, 0, sizeof *request);
    request->buffer = pages(PAGE);
    memset(request->buffer, kind == WRITE ? count : 0, PAGE);
    request->offset = offset;
    request->kind = kind;
    request->cb = block(fd, request->buffer, PAGE, (off_t)offset);
    request->cb.aio_lio_opcode = kind == WRITE ? LIO_WRITE : LIO_READ;
    request->cb.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    request->cb.aio_sigevent.sigev_signo = SIGRTMIN;
    request->cb.aio_sigevent.sigev_value.sival_ptr = request;
    count++;
    return &request->cb;
}

static size_t read_at(void)
{
    return READS_BEGIN + (size_t)count * APART / 2;
}

static size_t write_at(void)
{
    return WRITES_BEGIN + (size_t)count * APART / 2;
}

/* Submits two reads, a write and an fsync, at offsets that were not used before. Returns the first
 * read. */
static struct aiocb *submit(int fd)
{
    int first = count;
    begin("submit");
    int got = aio_read(next(fd, READ, read_at()));
    got |= aio_read(next(fd, READ, read_at()));
    got |= aio_write(next(fd, WRITE, write_at()));
    got |= aio_fsync(O_SYNC, next(fd, SYNC, 0));
    end("submit", got);
    if (got)
        die("a request is not accepted");
    return &requests[first].cb;
}

static void wait_for(struct aiocb *cb)
{
    const struct aiocb *list[] = {cb};
    while (aio_error(cb) == EINPROGRESS)
        if (aio_suspend(list, 1, NULL) && errno != EINTR)
            die("aio_suspend");
}

/* Waits for all requests, and checks that each has ended once and without an error. With `closed`,
 * a request that had not begun may have found its descriptor closed. */
static void check(int fd, int closed)
{
    for (int i = 0; i < count; i++)
        wait_for(&requests[i].cb);
    for (int i = 0; i < count; i++) {
        struct request *request = &requests[i];
        int error = aio_error(&request->cb);
        long got = aio_return(&request->cb);
        until(&request->notified, 1);
        if ((error == ECANCELED && request->may_be_cancelled) || (error == EBADF && closed))
            continue;
        if (error || got != (request->kind == SYNC ? 0 : PAGE))
            die("request %d: error %d, return %s", i, error, code(got));
        if (request->kind == READ && !holds(request->buffer, PAGE, request->offset))
            die("request %d has read something else", i);
        if (request->kind == WRITE && !written(fd, i, request->offset))
            die("request %d has written something else", i);
    }
    for (int i = 0; i < count; i++)
        if (requests[i].notified != 1)
            die("request %d has ended %d times", i, requests[i].notified);
}

/* Makes reads, writes and fsyncs that the server answers. */
static void get_known(int fd)
{
    for (int round = 0; round < 12; round++) {
        count = 0;
        aio_read(next(fd, READ, (size_t)round % 4 * PAGE));
        wait_for(&requests[0].cb);
        aio_write(next(fd, WRITE, WRITES_BEGIN - PAGE));
        wait_for(&requests[1].cb);
        aio_fsync(O_SYNC, next(fd, SYNC, 0));
        check(fd, 0);
        for (int i = 0; i < count; i++)
            munmap(requests[i].buffer, PAGE);
    }
    count = 0;
}

static void steps(int fd, int other)
{
    struct timespec while_held = {0, 200000000};
    struct aiocb *first = submit(fd);
    begin("aio_error");
    end("aio_error", -aio_error(first));
    first = submit(fd);
    const struct aiocb *list[] = {first, &requests[count - 2].cb};
    begin("timed aio_suspend");
    end("timed aio_suspend", aio_suspend(list, COUNT(list), &while_held) ? -errno : 0);
    first = submit(fd);
    requests[count - 4].may_be_cancelled = 1;
    begin("aio_cancel");
    end("aio_cancel", aio_cancel(fd, first));
    submit(other);
    for (int i = count - 4; i < count; i++)
        requests[i].may_be_cancelled = 1;
    begin("aio_cancel of all");
    end("aio_cancel of all", aio_cancel(other, NULL));
    struct aiocb *batch[] = {
        next(fd, READ, read_at()),
        next(fd, WRITE, write_at()),
        next(fd, READ, read_at()),
    };
    begin("lio_listio");
    end("lio_listio", lio_listio(LIO_NOWAIT, batch, COUNT(batch), NULL) ? -errno : 0);
    submit(fd);
    begin("another file");
    int local = temp_file(4 * PAGE);
    struct aiocb *read = next(local, READ, PAGE);
    if (aio_read(read))
        die("aio_read");
    wait_for(read);
    end("another file", 0);
    wait_to_be_told();
    check(fd, 0);
    close(local);
}

int main(int arguments, char **argument)
{
    if (arguments != 5)
        die("FILE buffered|direct fresh|known steps|exit|kill|close");
    const char *task = argument[4];
    struct sigaction action = {.sa_sigaction = notified, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    /* Turns off the alarm: the test that runs this program handles a hang itself. */
    alarm(0);
    int fd = open_hung(argument[1], argument[2]), other = open_hung(argument[1], argument[2]);
    if (!strcmp(argument[3], "known")) {
        get_known(fd);
        get_known(other);
    }
    wait_to_be_told();
    if (!strcmp(task, "steps")) {
        steps(fd, other);
        puts("done");
        return 0;
    }
    submit(fd);
    begin(task);
    if (!strcmp(task, "exit"))
        return 0;
    if (!strcmp(task, "kill"))
        for (;;)
            pause();
    end(task, close(fd));
    wait_to_be_told();
    check(other, 1);
    puts("done");
    return 0;
}
