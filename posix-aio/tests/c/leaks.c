/* Nothing is left behind by many requests, notifications, children and programs started: counted in
 * /proc/self.
 *
 * URINGLET_TEST_FORKS is the number of children, _EXECS that of started programs, and _EXITS that
 * of children that exit with requests in flight. _SECONDS is the time limit. */
#include "common.h"

static int fd;
static unsigned char buf[32][512];
static volatile int notes;

static void note(union sigval value)
{
    (void)value;
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELEASE);
}

/* Makes 32 requests on 8 descriptors, and cancels one of them. In every second round, it does not
 * call aio_return. In every tenth round, one request has a notification. */
static int cycle(int round)
{
    static struct aiocb cbs[32];
    int own[8], right = 0;
    for (int i = 0; i < 8; i++)
        if ((own[i] = dup(fd)) < 0)
            die("dup");
    notes = 0;
    for (int i = 0; i < 32; i++) {
        cbs[i] = block(own[i % 8], buf[i], 512, i * 512);
        if (i == 31 && round % 10 == 0)
            cbs[i].aio_sigevent =
                (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = note};
        if (i % 8 == 7 ? aio_fsync(O_DSYNC, &cbs[i]) : aio_read(&cbs[i]))
            die("submit");
    }
    aio_cancel(own[0], &cbs[24]);
    for (int i = 0; i < 32; i++) {
        int error = finish(&cbs[i]);
        right += error == 0 || (i == 24 && error == ECANCELED);
        if (round % 2)
            aio_return(&cbs[i]);
    }
    if (round % 10 == 0)
        until(&notes, 1);
    for (int i = 0; i < 8; i++)
        close(own[i]);
    return right == 32;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return strcmp(argv[1], "child") != 0;
    fd = temp_file(16 * PAGE);
    /* More children than usual need a longer time limit. */
    alarm((unsigned)number("URINGLET_TEST_SECONDS", SECONDS_MAX));
    long rounds = 500, right = 0;
    for (int i = 0; i < 50; i++)
        cycle(i);
    long descriptors = open_descriptors(), memory = status("VmRSS:"), size = status("VmSize:");
    for (int i = 0; i < rounds; i++)
        right += cycle(i);
    yes("[aio_read leaks; aio_fsync leaks; aio_cancel leaks] 500 times 32 requests",
        right == rounds);
    yes("threads are at most 70", settled("Threads:", 70) <= 70);
    /* The engine may have opened descriptors of its own meanwhile. */
    yes("descriptors, at most 2 more", open_descriptors() - descriptors <= 2);
    yes("memory in use, at most 8 MiB more", status("VmRSS:") - memory <= 8 << 10);
    yes("address space, at most 1 GiB more", status("VmSize:") - size <= 1 << 20);

    /* Children that end, and programs that are started, each with a request of the parent in
     * flight. */
    long forks = number("URINGLET_TEST_FORKS", 1000), starts = number("URINGLET_TEST_EXECS", 100),
         ended = 0, started = 0;
    for (long i = 0; i < forks + starts; i++) {
        struct aiocb cb = block(fd, buf[0], 512, 0);
        if (aio_read(&cb))
            die("aio_read");
        pid_t pid = i >= forks && i % 2 ? vfork() : fork();
        if (pid == 0) {
            if (i >= forks)
                execl("/proc/self/exe", argv[0], "child", NULL);
            _exit(i >= forks);
        }
        int code;
        if (pid < 0 || finish(&cb) || aio_return(&cb) != 512 || waitpid(pid, &code, 0) != pid)
            die("fork");
        *(i < forks ? &ended : &started) += code == 0;
    }
    yes("[aio_read leaks] every child ended well", ended == forks);
    yes("[aio_read leaks] every program started", started == starts);
    /* Children that exit with 128 requests in flight. */
    long left = number("URINGLET_TEST_EXITS", 100), gone = 0;
    for (long i = 0; i < left; i++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            static struct aiocb cbs[128];
            for (int j = 0; j < 128; j++) {
                cbs[j] = block(fd, buf[j % 32], 512, j * 512);
                if (j % 2 ? aio_read(&cbs[j]) : aio_write(&cbs[j]))
                    _exit(1);
            }
            exit(0);
        }
        int code;
        if (pid < 0 || waitpid(pid, &code, 0) != pid)
            die("fork");
        gone += code == 0;
    }
    yes("[aio_read exit; aio_write exit] programs end with 128 requests in flight", gone == left);
    yes("descriptors, in the end", open_descriptors() - descriptors <= 2);
    yes("threads, in the end", settled("Threads:", 70) <= 70);
    yes("memory in use, in the end", status("VmRSS:") - memory <= 8 << 10);
    return 0;
}
