/* Buffers are unmapped while their requests are in flight: nothing writes to memory that is
 * mapped there afterwards. */
#include "../../../libaio/tests/support/answers.h"
#include <aio.h>

#define HOLES 32
#define READS 64

/* Lengths in bytes of what the library may map: threads' stacks. */
static const size_t sizes[] = {264 << 10, 256 << 10, 320 << 10, 260 << 10, 1 << 20};

static unsigned char blocks[READS][PAGE], noise[1 << 20];

/* Threads of the library execute these reads, because each read asks for a signal when it ends. The
 * signal is ignored. */
static int right_reads(int fd)
{
    static struct aiocb cbs[READS];
    int right = 0;
    memset(blocks, 0, sizeof blocks);
    for (int i = 0; i < READS; i++) {
        cbs[i] = (struct aiocb){.aio_fildes = fd, .aio_buf = blocks[i], .aio_nbytes = PAGE};
        cbs[i].aio_offset = i * PAGE;
        cbs[i].aio_sigevent.sigev_notify = SIGEV_SIGNAL;
        cbs[i].aio_sigevent.sigev_signo = SIGURG;
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = 0; i < READS; i++) {
        while (aio_error(&cbs[i]) == EINPROGRESS)
            usleep(1000);
        right += aio_return(&cbs[i]) == PAGE && holds(blocks[i], PAGE, i * PAGE);
    }
    return right;
}

int main(void)
{
    static struct aiocb cbs[HOLES];
    static int ends[HOLES][2];
    void *buffers[HOLES];
    int fd = temp_file(READS * PAGE), ended = 0;
    memset(noise, 0xff, sizeof noise);
    for (int i = 0; i < HOLES; i++) {
        size_t size = sizes[i % COUNT(sizes)];
        if (pipe2(ends[i], O_CLOEXEC | O_NONBLOCK) || fcntl(ends[i][0], F_SETFL, 0))
            die("pipe");
        (void)fcntl(ends[i][1], F_SETPIPE_SZ, (int)size);
        buffers[i] = pages(size);
        /* One page more, so that this buffer is not adjacent to the next one. */
        pages(PAGE);
        cbs[i] = (struct aiocb){.aio_fildes = ends[i][0], .aio_buf = buffers[i]};
        cbs[i].aio_nbytes = size;
        cbs[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        if (aio_read(&cbs[i]))
            die("aio_read");
    }
    for (int i = 0; i < HOLES; i++)
        munmap(buffers[i], sizes[i % COUNT(sizes)]);
    say("reads by threads that come now", "%d of %d right", right_reads(fd), READS);
    for (int i = 0; i < HOLES; i++)
        if (write(ends[i][1], noise, sizes[i % COUNT(sizes)]) <= 0)
            die("write");
    for (int i = 0; i < HOLES; i++) {
        for (int naps = 0; aio_error(&cbs[i]) == EINPROGRESS && naps < 20000; naps++)
            usleep(1000);
        ended += aio_error(&cbs[i]) == EFAULT;
    }
    say("requests that end with EFAULT", "%d of %d", ended, HOLES);
    say("reads after that", "%d of %d right", right_reads(fd), READS);
    return 0;
}
