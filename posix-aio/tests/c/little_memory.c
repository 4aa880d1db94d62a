/* Where there is hardly any memory to be had, requests are refused, or executed all the same, and the process lives on. */
#include "common.h"
#include <sys/resource.h>

enum { STEPS = 48, N = 6000 };

static int fd;
static unsigned char buf[N][16];
static struct aiocb cbs[N];

/* From here on at most `more` bytes of address space. */
static void limit(long more)
{
    struct rlimit now = {0, 0};
    now.rlim_cur = now.rlim_max = (rlim_t)(status("VmSize:") * 1024 + more);
    if (setrlimit(RLIMIT_AS, &now))
        _exit(2);
}

/* Reads, and now and then a sync behind them; more than there are places for at a time. */
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
            if (error ? error != EAGAIN && error != ENOMEM : aio_return(&cbs[i]) != (i % 100 == 99 ? 0 : 16))
                return 4;
        }
    return 0;
}

int main(void)
{
    fd = temp_file(PAGE);
    for (int requests = 8; requests <= N; requests += N - 8) {
        int well = 0, other = 0;
        for (int step = 0; step < STEPS; step++) {
            fflush(stdout);
            pid_t pid = fork();
            if (pid == 0) {
                alarm(SECONDS_MAX);
                limit(step < STEPS / 2 ? step * 16384L : step * 262144L);
                _exit(use(requests));
            }
            int how;
            if (pid < 0 || waitpid(pid, &how, 0) != pid)
                die("fork");
            if (how == 0)
                well++;
            else
                other = how;
        }
        char name[80];
        snprintf(name, sizeof name, "[aio_read EAGAIN; aio_fsync EAGAIN] %d requests with little memory", requests);
        say(name, "%d as they should be, else status %d", well, other);
    }
    return 0;
}
