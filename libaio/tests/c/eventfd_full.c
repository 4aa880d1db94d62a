/* IOCB_FLAG_RESFD with an eventfd whose counter is full, or nearly. A notification does not block,
 * and the event comes nevertheless. The kernel's notification can raise the counter to its maximum,
 * which poll reports as an error. write(2) can raise the counter only to one less. */
#include "common.h"

#define FULL 0xfffffffffffffffeULL

static io_context_t ctx;
static const char *kind;
static int fd;
/* The value of the last read from a counter. */
static uint64_t last;

static void name_it(char *name, const char *what)
{
    snprintf(name, 96, "[io_submit eventfd] %s, %s", kind, what);
}

/* Reads `n` pages in one submit; true if all events came, and were right. */
static int reads(int n, const int *counters)
{
    static unsigned char buf[8 * PAGE] __attribute__((aligned(PAGE)));
    static struct iocb iocbs[8];
    struct iocb *list[8];
    struct io_event events[8];
    int right = 0;
    for (int i = 0; i < n; i++) {
        list[i] = &iocbs[i];
        io_prep_pread(list[i], fd, buf + i * PAGE, PAGE, (long long)i * PAGE);
        io_set_eventfd(list[i], counters[i]);
    }
    if (io_submit(ctx, n, list) != n)
        die("submit");
    reap(ctx, n, events);
    for (int i = 0; i < n; i++)
        right += events[i].res == PAGE;
    return right == n;
}

/* The count of an eventfd, without a read. */
static uint64_t count_of(int counter)
{
    char path[64], line[256];
    unsigned long long value = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", counter);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "eventfd-count: %llx", &value);
    if (file)
        fclose(file);
    return value;
}

/* Reads a counter. Prints its count (FULL at most) and the answer of poll. First waits until the
 * count is at least `least`, because an event may be in the ring just before it is counted. */
static void say_count(const char *what, int counter, uint64_t least)
{
    for (int i = 0; i < 20000 && count_of(counter) < least; i++)
        usleep(1000);
    struct pollfd wait = {counter, POLLIN | POLLOUT, 0};
    uint64_t value;
    char name[96];
    name_it(name, what);
    poll(&wait, 1, 0);
    if (read(counter, &value, sizeof value) != sizeof value)
        die("eventfd");
    last = value;
    if (value > FULL)
        value = FULL;
    say(name, "%llx, poll %x", (unsigned long long)value, wait.revents & ~POLLERR);
}

static void with(int counter, const char *what, uint64_t before, int n)
{
    int counters[8];
    char name[96];
    for (int i = 0; i < 8; i++)
        counters[i] = counter;
    if (write(counter, &before, sizeof before) != sizeof before)
        die("eventfd");
    snprintf(name, sizeof name, "[io_submit eventfd] %s, %s, events", kind, what);
    yes(name, reads(n, counters));
    say_count(what, counter, before < FULL - (uint64_t)n ? before + (uint64_t)n : FULL);
}

static void *fire(void *end)
{
    until_asleep((pid_t)getpid());
    if (write(*(int *)end, "x", 1) != 1)
        die("write");
    return NULL;
}

static void kinds(int flags)
{
    int counter = eventfd(0, flags), many[8];
    char name[96], byte;
    uint64_t full = FULL;

    with(counter, "empty", 0, 3);
    with(counter, "room for two, two reads", FULL - 2, 2);
    with(counter, "room for two, three reads", FULL - 2, 3);
    with(counter, "room for one, eight reads", FULL - 1, 8);
    with(counter, "no room", FULL, 1);
    name_it(name, "no room, the very count");
    say(name, "%llx", (unsigned long long)last);
    with(counter, "empty again", 0, 1);

    /* Reads with eight full eventfds at the same time. */
    for (int i = 0; i < 8; i++)
        if ((many[i] = eventfd(0, flags)) < 0 || write(many[i], &full, sizeof full) != sizeof full)
            die("eventfd");
    name_it(name, "eight without room, events");
    yes(name, reads(8, many));
    say_count("the last of eight", many[7], FULL);
    for (int i = 0; i < 8; i++)
        close(many[i]);

    /* Another thread ends the request while this thread sleeps. */
    struct iocb iocb;
    struct io_event event;
    pthread_t thread;
    int ends[2];
    if (pipe(ends) || write(counter, &full, sizeof full) != sizeof full)
        die("pipe");
    io_prep_poll(&iocb, ends[0], POLLIN);
    io_set_eventfd(&iocb, counter);
    name_it(name, "no room, submit of a poll");
    answer(name, submit1(ctx, &iocb));
    if (pthread_create(&thread, NULL, fire, &ends[1]))
        die("pthread_create");
    reap(ctx, 1, &event);
    pthread_join(thread, NULL);
    name_it(name, "no room, the poll fires");
    yes(name, event.obj == &iocb && read(ends[0], &byte, 1) == 1);
    say_count("no room, after a poll", counter, FULL);
    close(ends[0]);
    close(ends[1]);
    close(counter);
}

int main(void)
{
    ctx = setup(16);
    fd = temp_file(8 * PAGE);
    kind = "blocking";
    kinds(0);
    kind = "non-blocking";
    kinds(EFD_NONBLOCK);
    int direct = reopen(fd, O_RDWR | O_DIRECT);
    if (direct >= 0) {
        fd = direct;
        kind = "direct";
        with(eventfd(0, 0), "room for one, eight reads", FULL - 1, 8);
    }
    answer("destroy", io_destroy(ctx));
    return 0;
}
