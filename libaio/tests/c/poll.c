/* POLL: ready at once, later, never; the reported events, and which fields must be empty. */
#include "common.h"

/* Prints the requested events that were reported, errors and hang-ups. The kernel sometimes reports
 * more (POLLRDNORM beside POLLIN), depending on how it learned of the events. */
static void mask(const char *name, const struct io_event *event, short asked)
{
    if ((long)event->res < 0)
        answer(name, (long)event->res);
    else
        say(name, "%#lx", event->res & (unsigned)(asked | POLLERR | POLLHUP));
}

static void *write_later(void *fd)
{
    until_asleep(getpid());
    if (write(*(int *)fd, "x", 1) != 1)
        die("write");
    return NULL;
}

int main(void)
{
    io_context_t ctx = setup(16);
    int ends[2], pair[2], fd = temp_file(PAGE);
    struct iocb iocb, other;
    struct io_event events[4];
    struct timespec moment = {0, 20000000};
    char byte;
    if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("pipe");

    io_prep_poll(&iocb, ends[1], POLLOUT);
    request(ctx, "write end of a pipe", &iocb);
    io_prep_poll(&iocb, ends[1], POLLIN | POLLOUT);
    request(ctx, "write end, both", &iocb);
    io_prep_poll(&iocb, fd, POLLIN | POLLOUT);
    request(ctx, "a file", &iocb);
    io_prep_poll(&iocb, fd, POLLIN);
    request(ctx, "a file, POLLIN", &iocb);
    io_prep_poll(&iocb, 900, POLLIN);
    request(ctx, "a closed descriptor", &iocb);
    io_prep_poll(&iocb, -1, POLLIN);
    request(ctx, "-1", &iocb);
    io_prep_poll(&iocb, reopen(fd, O_PATH), POLLIN);
    request(ctx, "an O_PATH descriptor", &iocb);
    io_prep_poll(&iocb, ends[1], 0x10000 | POLLOUT);
    request(ctx, "events above 16 bits", &iocb);
    io_prep_poll(&iocb, ends[1], POLLOUT);
    iocb.u.c.nbytes = 1;
    request(ctx, "with a length", &iocb);
    io_prep_poll(&iocb, ends[1], POLLOUT);
    iocb.u.c.offset = 1;
    request(ctx, "with an offset", &iocb);
    io_prep_poll(&iocb, ends[1], POLLOUT);
    iocb.aio_rw_flags = 1;
    request(ctx, "with rw_flags", &iocb);
    io_prep_poll(&iocb, ends[1], POLLOUT);
    iocb.aio_reqprio = 5;
    request(ctx, "with reqprio", &iocb);

    io_prep_poll(&iocb, ends[0], POLLIN);
    answer("an empty pipe", submit1(ctx, &iocb));
    answer("nothing yet", io_getevents(ctx, 1, 4, events, &moment));
    pthread_t thread;
    pthread_create(&thread, NULL, write_later, &ends[1]);
    answer("after a write by another thread", io_getevents(ctx, 1, 4, events, NULL));
    pthread_join(thread, NULL);
    mask("its events", &events[0], POLLIN);
    request(ctx, "again, still readable", &iocb);
    if (read(ends[0], &byte, 1) != 1)
        die("read");

    io_prep_poll(&iocb, ends[0], POLLIN);
    io_prep_poll(&other, ends[0], POLLIN | POLLOUT | POLLPRI);
    answer("two on one pipe", io_submit(ctx, 2, (struct iocb *[]){&iocb, &other}));
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 2, events);
    mask("first of two on one pipe", &events[0], POLLIN);
    mask("second of two on one pipe", &events[1], POLLIN);
    if (read(ends[0], &byte, 1) != 1)
        die("read");

    /* A request holds its file: closing the number changes nothing. The engine may close its
     * duplicate of the descriptor after the answer has come. */
    int before = open_descriptors(), copy = dup(ends[0]);
    io_prep_poll(&iocb, copy, POLLIN);
    answer("on a copy of the descriptor", submit1(ctx, &iocb));
    close(copy);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 1, events);
    mask("on a copy that was closed, events", &events[0], POLLIN);
    if (read(ends[0], &byte, 1) != 1)
        die("read");

    /* Another file that gets the number, and is ready, changes nothing either. */
    int loud = eventfd(1, EFD_NONBLOCK), numbers[3];
    static struct iocb several[3];
    struct iocb *list[3];
    for (int i = 0; i < 3; i++) {
        list[i] = &several[i];
        numbers[i] = fcntl(ends[0], F_DUPFD, 300);
        io_prep_poll(list[i], numbers[i], POLLIN);
    }
    answer("three numbers of one file", io_submit(ctx, 3, list));
    if (dup2(loud, numbers[0]) < 0 || dup3(loud, numbers[1], O_CLOEXEC) < 0 ||
        close_range(numbers[2], numbers[2], 0))
        die("dup2");
    if (fcntl(loud, F_DUPFD, numbers[2]) != numbers[2])
        die("the number is not free");
    answer("what has the numbers is ready", io_getevents(ctx, 1, 4, events, &moment));
    answer("cancel one of them", io_cancel(ctx, &several[1], events));
    reap(ctx, 1, events);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    reap(ctx, 2, events);
    yes("what had them becomes so", (events[0].res & POLLIN) && (events[1].res & POLLIN));
    if (read(ends[0], &byte, 1) != 1)
        die("read");
    for (int i = 0; i < 3; i++)
        close(numbers[i]);
    close(loud);
    /* Waits until the engine has closed its duplicates. */
    for (int i = 0; i < 20000 && open_descriptors() > before; i++)
        usleep(1000);
    say("descriptors left", "%d", open_descriptors() - before);

    io_prep_poll(&iocb, ends[0], 0);
    answer("for no events", submit1(ctx, &iocb));
    answer("for no events, nothing yet", io_getevents(ctx, 1, 4, events, &moment));
    close(ends[1]);
    reap(ctx, 1, events);
    mask("for no events, after the writer is gone", &events[0], 0);

    io_prep_poll(&iocb, pair[0], POLLIN | POLLRDHUP);
    answer("a socket", submit1(ctx, &iocb));
    shutdown(pair[1], SHUT_RDWR);
    reap(ctx, 1, events);
    yes("a socket after shutdown", (events[0].res & POLLIN) && (events[0].res & POLLRDHUP));

    int counter = eventfd(0, EFD_NONBLOCK), watched = eventfd(0, 0);
    io_prep_poll(&iocb, watched, POLLIN);
    io_set_eventfd(&iocb, counter);
    answer("with an eventfd", submit1(ctx, &iocb));
    uint64_t value = 0;
    yes("with an eventfd, not yet", read(counter, &value, sizeof value) < 0 && errno == EAGAIN);
    eventfd_write(watched, 1);
    struct pollfd wait = {counter, POLLIN, 0};
    say("with an eventfd, fires", "%d", poll(&wait, 1, 20000));
    say("with an eventfd, in the ring then", "%u", ready(ctx));
    if (read(counter, &value, sizeof value) != sizeof value)
        die("eventfd");
    say("with an eventfd, count", "%llu", (unsigned long long)value);
    reap(ctx, 1, events);
    mask("with an eventfd, events", &events[0], POLLIN);

    static struct iocb many[200];
    io_context_t large = setup(256);
    int armed = 0;
    uint64_t drained;
    if (read(watched, &drained, sizeof drained) != sizeof drained)
        die("eventfd");
    for (int i = 0; i < 200; i++) {
        io_prep_poll(&many[i], watched, POLLIN);
        armed += submit1(large, &many[i]) == 1;
    }
    say("200 on one eventfd", "%d", armed);
    eventfd_write(watched, 1);
    static struct io_event all[200];
    reap(large, 200, all);
    int right = 0;
    for (int i = 0; i < 200; i++)
        right += (all[i].res & POLLIN) != 0;
    say("200 on one eventfd, fired", "%d", right);
    answer("destroy", io_destroy(ctx));
    answer("destroy the large one", io_destroy(large));
    return 0;
}
