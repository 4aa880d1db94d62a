/* Requests on a file whose server does not answer.
 *
 * hung FILE buffered|direct fresh|known steps|destroy|exit|kill|close */
#include "../c/common.h"
#include "../support/hung.h"

struct request {
    struct iocb iocb;
    unsigned char *buffer;
    size_t offset;
    int ends, may_be_cancelled;
    long res;
};

static struct request requests[64];
static int count;
static int fd;

static struct iocb *next(int opcode, size_t offset)
{
    struct request *request = &requests[count];
    if (count == (int)COUNT(requests))
        die("too many requests");
    request->buffer = pages(PAGE);
    request->offset = offset;
    memset(request->buffer, opcode == IO_CMD_PWRITE ? count : 0, PAGE);
    memset(&request->iocb, 0, sizeof request->iocb);
    request->iocb.aio_lio_opcode = (short)opcode;
    request->iocb.aio_fildes = fd;
    request->iocb.data = request;
    if (opcode != IO_CMD_FSYNC) {
        request->iocb.u.c.buf = request->buffer;
        request->iocb.u.c.nbytes = PAGE;
        request->iocb.u.c.offset = (long long)offset;
    }
    count++;
    return &request->iocb;
}

/* Submits two reads, a write and an fsync, at offsets that were not used before. */
static void submit(io_context_t ctx)
{
    struct iocb *list[] = {
        next(IO_CMD_PREAD, READS_BEGIN + (size_t)count * APART),
        next(IO_CMD_PREAD, READS_BEGIN + (size_t)count * APART),
        next(IO_CMD_PWRITE, WRITES_BEGIN + (size_t)count * APART),
        next(IO_CMD_FSYNC, 0),
    };
    begin("submit");
    long got = io_submit(ctx, COUNT(list), list);
    end("submit", got);
    if (got != COUNT(list))
        die("io_submit: %s", code(got));
}

static long collect(io_context_t ctx, long min, struct timespec *timeout)
{
    struct io_event events[COUNT(requests)];
    long got = io_getevents(ctx, min, COUNT(events), events, timeout);
    for (long i = 0; i < got; i++) {
        struct request *request = events[i].data;
        request->ends++;
        request->res = (long)events[i].res;
    }
    return got;
}

/* Reaps all events, once each. */
static void collect_all(io_context_t ctx)
{
    int left = 0;
    for (int i = 0; i < count; i++)
        left += !requests[i].ends;
    while (left > 0) {
        long got = collect(ctx, left, NULL);
        if (got < 0)
            die("io_getevents: %s", code(got));
        left -= (int)got;
    }
    if (collect(ctx, 0, NULL))
        die("more events than requests");
}

static void check(void)
{
    for (int i = 0; i < count; i++) {
        struct request *request = &requests[i];
        int opcode = request->iocb.aio_lio_opcode;
        if (request->ends != 1)
            die("request %d has ended %d times", i, request->ends);
        if (request->may_be_cancelled && request->res == -ECANCELED)
            continue;
        if (request->res != (opcode == IO_CMD_FSYNC ? 0 : PAGE))
            die("request %d: %s", i, code(request->res));
        if (opcode == IO_CMD_PREAD && !holds(request->buffer, PAGE, request->offset))
            die("request %d has read something else", i);
        if (opcode == IO_CMD_PWRITE && !written(request->iocb.aio_fildes, i, request->offset))
            die("request %d has written something else", i);
    }
}

/* Makes reads, writes and fsyncs that the server answers. */
static void get_known(io_context_t ctx)
{
    for (int round = 0; round < 12; round++) {
        count = 0;
        memset(requests, 0, sizeof requests);
        struct iocb *list[] = {
            next(IO_CMD_PREAD, (size_t)round % 4 * PAGE),
            next(IO_CMD_PWRITE, WRITES_BEGIN - PAGE),
            next(IO_CMD_FSYNC, 0),
        };
        if (io_submit(ctx, COUNT(list), list) != COUNT(list))
            die("io_submit");
        collect_all(ctx);
        for (int i = 0; i < count; i++)
            munmap(requests[i].buffer, PAGE);
    }
    count = 0;
    memset(requests, 0, sizeof requests);
}

/* Reads from another file, and waits for the completion. */
static void read_local(io_context_t ctx)
{
    struct timespec limit = {60, 0};
    int hung = fd, at = count;
    fd = temp_file(4 * PAGE);
    struct iocb *iocb = next(IO_CMD_PREAD, PAGE);
    if (submit1(ctx, iocb) != 1)
        die("io_submit");
    while (!requests[at].ends)
        if (collect(ctx, 1, &limit) <= 0)
            die("io_getevents");
    fd = hung;
}

/* Reads of another file, each signalled by an eventfd that this thread polls. */
static void poll_local(io_context_t ctx)
{
    int hung = fd, counter = eventfd(0, EFD_NONBLOCK), plain = temp_file(4 * PAGE);
    fd = reopen(plain, O_RDWR | O_DIRECT);
    if (fd < 0)
        fd = plain;
    for (int round = 0; round < 4; round++) {
        struct pollfd set = {counter, POLLIN, 0};
        uint64_t told;
        int at = count;
        struct iocb *iocb = next(IO_CMD_PREAD, PAGE);
        io_set_eventfd(iocb, counter);
        if (submit1(ctx, iocb) != 1)
            die("io_submit");
        while (!requests[at].ends) {
            if (poll(&set, 1, 60000) != 1 || read(counter, &told, sizeof told) != sizeof told)
                die("poll");
            collect(ctx, 0, NULL);
        }
    }
    close(counter);
    fd = hung;
}

static void steps(io_context_t ctx)
{
    struct timespec while_held = {0, 200000000}, none = {0, 0};
    submit(ctx);
    begin("poll");
    end("poll", collect(ctx, 0, NULL));
    submit(ctx);
    begin("poll with a timeout");
    end("poll with a timeout", collect(ctx, 1, &none));
    submit(ctx);
    begin("timed wait");
    end("timed wait", collect(ctx, COUNT(requests) / 2, &while_held));
    submit(ctx);
    struct io_event event;
    requests[count - 4].may_be_cancelled = 1;
    begin("cancel");
    end("cancel", io_cancel(ctx, &requests[count - 4].iocb, &event));
    submit(ctx);
    begin("another file");
    read_local(ctx);
    end("another file", 0);
    begin("an eventfd");
    poll_local(ctx);
    end("an eventfd", 0);
    submit(ctx);
    begin("another context");
    io_context_t other = setup(8);
    read_local(other);
    if (io_destroy(other))
        die("io_destroy");
    end("another context", 0);
    wait_to_be_told();
    collect_all(ctx);
    check();
}

/* Destroys the context with requests in flight. Checks that they have the right results, and that
 * no buffer is written to after the call. */
static void destroy(io_context_t ctx)
{
    submit(ctx);
    begin("destroy");
    long got = io_destroy(ctx);
    unsigned char *then[] = {pages(PAGE), pages(PAGE)};
    for (int i = 0; i < 2; i++)
        memcpy(then[i], requests[i].buffer, PAGE);
    end("destroy", got);
    wait_to_be_told();
    for (int i = 0; i < 2; i++) {
        if (memcmp(then[i], requests[i].buffer, PAGE))
            die("read %d went on after io_destroy", i);
        if (!holds(then[i], PAGE, requests[i].offset))
            die("read %d is not done", i);
    }
}

int main(int arguments, char **argument)
{
    if (arguments != 5)
        die("FILE buffered|direct fresh|known steps|destroy|exit|kill|close");
    const char *task = argument[4];
    io_context_t ctx = setup(64);
    fd = open_hung(argument[1], argument[2]);
    if (!strcmp(argument[3], "known"))
        get_known(ctx);
    wait_to_be_told();
    if (!strcmp(task, "steps")) {
        steps(ctx);
        io_destroy(ctx);
        puts("done");
        return 0;
    }
    if (!strcmp(task, "destroy")) {
        destroy(ctx);
        puts("done");
        return 0;
    }
    submit(ctx);
    begin(task);
    if (!strcmp(task, "exit"))
        return 0;
    if (!strcmp(task, "kill"))
        for (;;)
            pause();
    end(task, close(fd));
    wait_to_be_told();
    collect_all(ctx);
    fd = open_hung(argument[1], argument[2]);
    for (int i = 0; i < count; i++)
        requests[i].iocb.aio_fildes = fd;
    check();
    puts("done");
    return 0;
}
