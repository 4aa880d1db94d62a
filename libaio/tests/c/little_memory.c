/* If almost no memory is free, calls are refused, and the process survives. */
#include "common.h"
#include "../support/little_memory.h"

enum { STEPS = 72 };

static int fd;
static _Alignas(PAGE) unsigned char buf[PAGE];

static int is_known(int got)
{
    return got == -ENOMEM || got == -EAGAIN;
}

/* The number of bytes that a step may take: less than 0.4 MiB, 6 to 12 MiB, or a little more than
 * 64 or 256 MiB. With the last two, a large reservation may succeed, and later ones fail. */
static long room(int step)
{
    if (step < 24)
        return step * 16L * KIB;
    if (step < 48)
        return step * 256L * KIB;
    return (step < 60 ? 64L : 256L) * MIB + step % 12 * 512L * KIB;
}

/* Makes contexts while there is memory, and reads with each of them. The machine also limits the
 * original's contexts (aio-max-nr), together with those of other programs. */
static int use(int entries)
{
    static io_context_t many[8];
    struct io_event event;
    struct iocb iocb;
    for (size_t i = 0; i < COUNT(many); i++) {
        int got = io_setup(entries, &many[i]);
        if (got)
            return is_known(got) && !many[i] ? 0 : 3;
        io_prep_pread(&iocb, fd, buf, PAGE, 0);
        got = submit1(many[i], &iocb);
        if (got == 1 ? io_getevents(many[i], 1, 1, &event, NULL) != 1 || event.res != PAGE
                     : !is_known(got))
            return 4;
    }
    return 0;
}

int main(void)
{
    fd = temp_file(PAGE);
    for (int entries = 1; entries <= 4096; entries *= 4096) {
        char name[80];
        snprintf(name, sizeof name, "[io_setup ENOMEM] contexts for %d with little memory",
                 entries);
        with_little_memory(name, STEPS, room, use, entries);
    }
    return 0;
}
