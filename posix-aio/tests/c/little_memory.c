/* With hardly any free memory, requests are refused or executed, and the process lives on. */
#include "common.h"
#include "../../../libaio/tests/support/little_memory.h"

enum { STEPS = 48, N = 6000 };

static int fd;
static unsigned char buf[N][16];
static struct aiocb cbs[N];

static long room(int step)
{
    return step * (step < STEPS / 2 ? 16L : 256L) * KIB;
}

/* Makes reads, and some syncs behind them. N requests are more than the library has slots for. */
static int use(int requests)
{
    int accepted[N];
    for (int i = 0; i < requests; i++) {
        cbs[i] = block(fd, buf[i], 16, i % 64 * 16);
        accepted[i] = (i % 100 == 99 ? aio_fsync(O_SYNC, &cbs[i]) : aio_read(&cbs[i])) == 0;
        if (!accepted[i] && errno != EAGAIN && errno != ENOMEM)
            return 3;
    }
    for (int i = 0; i < requests; i++)
        if (accepted[i]) {
            int error = finish(&cbs[i]);
            if (error ? error != EAGAIN && error != ENOMEM
                      : aio_return(&cbs[i]) != (i % 100 == 99 ? 0 : 16))
                return 4;
        }
    return 0;
}

int main(void)
{
    fd = temp_file(PAGE);
    for (int requests = 8; requests <= N; requests += N - 8) {
        char name[80];
        snprintf(name, sizeof name,
                 "[aio_read EAGAIN; aio_fsync EAGAIN] %d requests with little memory", requests);
        with_little_memory(name, STEPS, room, use, requests);
    }
    return 0;
}
