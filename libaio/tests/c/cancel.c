/* io_cancel: a request that waits, and all requests that cannot be cancelled. */
#include "common.h"

int main(void)
{
    io_context_t ctx = setup(64), other = setup(4);
    int ends[2], fd = temp_file(64 * PAGE);
    struct iocb iocb, second, never;
    struct io_event event, events[32];
    struct timespec moment = {0, 20000000};
    unsigned char *buf = pages(64 * PAGE);
    if (pipe(ends))
        die("pipe");

    io_prep_poll(&iocb, ends[0], POLLIN);
    iocb.data = (void *)77;
    answer("submit a poll", submit1(ctx, &iocb));
    answer("cancel it in another context", io_cancel(other, &iocb, &event));
    memset(&event, 0xee, sizeof event);
    struct io_event untouched = event;
    answer("cancel it", io_cancel(ctx, &iocb, &event));
    yes("the event argument is left alone", memcmp(&event, &untouched, sizeof event) == 0);
    answer("cancel it again", io_cancel(ctx, &iocb, &event));
    answer("its event", io_getevents(ctx, 1, 1, &event, &moment));
    say("its result", "%s, %lu", code((long)event.res), event.res2);
    yes("its tags", event.obj == &iocb && event.data == (void *)77);
    answer("cancel it when it is reaped", io_cancel(ctx, &iocb, &event));
    answer("no second event", io_getevents(ctx, 1, 1, &event, &moment));
    answer("submit it once more", submit1(ctx, &iocb));
    answer("cancel without an event argument", io_cancel(ctx, &iocb, NULL));
    reap(ctx, 1, &event);

    io_prep_poll(&iocb, ends[0], POLLIN);
    io_prep_poll(&second, ends[0], POLLIN);
    answer("submit two polls", io_submit(ctx, 2, (struct iocb *[]){&iocb, &second}));
    answer("cancel the second", io_cancel(ctx, &second, &event));
    reap(ctx, 1, &event);
    yes("it is the second", event.obj == &second);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 1, &event);
    yes("the first fires", event.obj == &iocb && (event.res & POLLIN));

    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("submit a poll that is ready", submit1(ctx, &iocb));
    while (ready(ctx) == 0)
        usleep(1000);
    answer("cancel it unreaped", io_cancel(ctx, &iocb, &event));
    reap(ctx, 1, &event);
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        die("read");

    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    answer("submit a read", submit1(ctx, &iocb));
    while (ready(ctx) == 0)
        usleep(1000);
    answer("cancel a finished read", io_cancel(ctx, &iocb, &event));
    reap(ctx, 1, &event);
    answer("cancel a reaped read", io_cancel(ctx, &iocb, &event));

    io_prep_poll(&never, ends[0], POLLIN);
    answer("cancel what was never submitted", io_cancel(ctx, &never, &event));
    answer("cancel NULL", io_cancel(ctx, NULL, &event));
    answer("cancel at a bad address", io_cancel(ctx, UNMAPPED, &event));
    answer("cancel in a bad context", io_cancel(UNMAPPED, &never, &event));
    answer("cancel NULL in a bad context", io_cancel(UNMAPPED, NULL, &event));

    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("submit a poll for its key", submit1(ctx, &iocb));
    unsigned key = iocb.key;
    iocb.key = 4711;
    answer("cancel with a wrong key", io_cancel(ctx, &iocb, &event));
    iocb.key = key;
    answer("cancel with the right key", io_cancel(ctx, &iocb, &event));
    reap(ctx, 1, &event);

    /* The iocb is looked up by its address only: its present content does not matter. */
    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("submit a poll and wipe its block", submit1(ctx, &iocb));
    memset(&iocb, 0, sizeof iocb);
    answer("cancel the wiped one", io_cancel(ctx, &iocb, &event));
    reap(ctx, 1, &event);

    int counter = eventfd(0, EFD_NONBLOCK);
    uint64_t value = 0;
    io_prep_poll(&iocb, ends[0], POLLIN);
    io_set_eventfd(&iocb, counter);
    answer("submit a poll with an eventfd", submit1(ctx, &iocb));
    answer("cancel it with its eventfd", io_cancel(ctx, &iocb, &event));
    struct pollfd wait = {counter, POLLIN, 0};
    say("the eventfd fires", "%d", poll(&wait, 1, 20000));
    if (read(counter, &value, sizeof value) != sizeof value)
        die("eventfd");
    say("eventfd count", "%llu", (unsigned long long)value);
    reap(ctx, 1, &event);

    /* Cancels the last of 32 direct reads, which may be in flight. All of them still complete. */
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        static struct iocb many[32];
        struct iocb *list[32];
        for (int i = 0; i < 32; i++) {
            list[i] = &many[i];
            io_prep_pread(list[i], direct, buf + i * PAGE, PAGE, (long long)i * PAGE);
        }
        answer("submit 32 direct reads", io_submit(ctx, 32, list));
        long cancelled = io_cancel(ctx, &many[31], &event);
        answer("cancel the last of them", cancelled);
        reap(ctx, 32, events);
        int right = 0;
        for (int i = 0; i < 32; i++)
            right += events[i].res == PAGE || events[i].obj == &many[31];
        say("all complete", "%d", right);
    } else {
        say("submit 32 direct reads", "cannot open: %s", code(direct));
    }
    answer("destroy", io_destroy(ctx));
    answer("destroy the other", io_destroy(other));
    return 0;
}
