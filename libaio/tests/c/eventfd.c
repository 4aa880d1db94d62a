/* IOCB_FLAG_RESFD: one count per event, and the event is in the ring first. */
#include "common.h"

static void batches(io_context_t ctx, int fd, const char *kind)
{
    static struct iocb iocbs[16];
    struct iocb *list[16];
    static struct io_event events[16];
    unsigned char *buf = pages(16 * PAGE);
    int counter = eventfd(0, 0);
    long early = 0, total = 0;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 16; i++) {
            list[i] = &iocbs[i];
            io_prep_pread(list[i], fd, buf + i * PAGE, PAGE, (long long)i * PAGE);
            io_set_eventfd(list[i], counter);
        }
        if (io_submit(ctx, 16, list) != 16)
            die("submit");
        for (int got = 0; got < 16;) {
            uint64_t value;
            if (read(counter, &value, sizeof value) != sizeof value)
                die("eventfd");
            early += ready(ctx) < value;
            reap(ctx, (long)value, events);
            got += (int)value;
            total += (long)value;
        }
    }
    char name[64];
    snprintf(name, sizeof name, "%s, counted", kind);
    say(name, "%ld", total);
    snprintf(name, sizeof name, "%s, counts before the event", kind);
    say(name, "%ld", early);
    close(counter);
}

int main(void)
{
    io_context_t ctx = setup(64);
    int fd = temp_file(64 * PAGE), counter = eventfd(0, EFD_NONBLOCK);
    unsigned char buf[PAGE];
    struct iocb iocb, plain;
    struct io_event events[8];
    uint64_t value;

    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    io_set_eventfd(&iocb, counter);
    request(ctx, "read", &iocb);
    if (read(counter, &value, sizeof value) != sizeof value)
        value = 0;
    say("read, count", "%llu", (unsigned long long)value);
    io_prep_pread(&plain, fd, buf, PAGE, 0);
    request(ctx, "read without", &plain);
    yes("read without, no count", read(counter, &value, sizeof value) < 0 && errno == EAGAIN);
    iocb.aio_lio_opcode = IO_CMD_NOOP;
    request(ctx, "refused", &iocb);
    yes("refused, no count", read(counter, &value, sizeof value) < 0 && errno == EAGAIN);
    io_prep_pread(&iocb, fd, UNMAPPED, PAGE, 0);
    io_set_eventfd(&iocb, counter);
    request(ctx, "failed", &iocb);
    if (read(counter, &value, sizeof value) != sizeof value)
        value = 0;
    say("failed, count", "%llu", (unsigned long long)value);

    static struct iocb several[8];
    struct iocb *list[8];
    int counters[3] = {eventfd(0, 0), eventfd(0, 0), eventfd(0, EFD_SEMAPHORE)};
    for (int i = 0; i < 8; i++) {
        list[i] = &several[i];
        io_prep_pread(list[i], fd, buf, 16, i);
        io_set_eventfd(list[i], counters[i % 3]);
    }
    answer("submit to three eventfds", io_submit(ctx, 8, list));
    reap(ctx, 8, events);
    for (int i = 0; i < 3; i++) {
        char name[64];
        struct pollfd wait = {counters[i], POLLIN, 0};
        /* All events are reaped, so all counts are there or about to be. */
        uint64_t sum = 0, want = i == 2 ? 2 : 3;
        while (sum < want && poll(&wait, 1, 20000) == 1 && read(counters[i], &value, 8) == 8)
            sum += value;
        snprintf(name, sizeof name, "count of eventfd %d", i);
        say(name, "%llu", (unsigned long long)sum);
    }

    /* The request holds its eventfd: closing the number changes nothing. */
    int watch = eventfd(0, 0), copy = dup(watch), ends[2];
    if (pipe(ends))
        die("pipe");
    io_prep_poll(&iocb, ends[0], POLLIN);
    io_set_eventfd(&iocb, copy);
    answer("submit with a copy of the eventfd", submit1(ctx, &iocb));
    close(copy);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    struct pollfd wait = {watch, POLLIN, 0};
    say("the eventfd fires although its number is closed", "%d", poll(&wait, 1, 2000));
    reap(ctx, 1, events);
    if (read(watch, &value, sizeof value) != sizeof value)
        die("eventfd");

    /* Another eventfd that gets the number of the request's eventfd is not signalled. */
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        die("read");
    int other = eventfd(0, EFD_NONBLOCK), number = fcntl(watch, F_DUPFD, 200);
    static struct iocb waiting[16];
    for (int i = 0; i < 16; i++) {
        list[i % 8] = &waiting[i];
        io_prep_poll(&waiting[i], ends[0], POLLIN);
        io_set_eventfd(&waiting[i], number);
        if (i % 8 == 7)
            answer(i < 8 ? "submit of 8 more" : "and of 8 more", io_submit(ctx, 8, list));
    }
    if (dup2(other, number) != number || write(ends[1], "x", 1) != 1)
        die("dup2");
    uint64_t sum = 0;
    while (sum < 16 && poll(&wait, 1, 20000) == 1 &&
           read(watch, &value, sizeof value) == sizeof value)
        sum += value;
    say("count of the eventfd that had the number", "%llu", (unsigned long long)sum);
    yes("the one that has it is untouched", read(other, &value, sizeof value) < 0);
    reap(ctx, 16, events);

    batches(ctx, fd, "buffered");
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0)
        batches(ctx, direct, "direct");
    answer("destroy", io_destroy(ctx));
    return 0;
}
