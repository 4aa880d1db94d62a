/* A program with an allocator of its own. */
#include "common.h"
#include "../../../libaio/tests/support/own_malloc.h"

enum { N = 64, ROUNDS = 400 };
static struct aiocb cbs[N];

int main(void)
{
    int fd = temp_file(N * PAGE), direct = reopen(fd, O_RDWR | O_DIRECT);
    unsigned char *buf = pages(N * PAGE);
    struct aiocb *list[N];
    long right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            cbs[i] = block(direct >= 0 && round % 2 ? direct : fd, buf + i * PAGE, PAGE,
                           (off_t)i * PAGE);
            cbs[i].aio_lio_opcode = LIO_READ;
            list[i] = &cbs[i];
            if (round % 4 == 0 && aio_read(&cbs[i]))
                die("aio_read");
        }
        if (round % 4 && lio_listio(round % 4 == 1 ? LIO_WAIT : LIO_NOWAIT, list, N, NULL))
            die("lio_listio");
        for (int i = 0; i < N; i++)
            right += finish(&cbs[i]) == 0 && aio_return(&cbs[i]) == PAGE &&
                     holds(buf + i * PAGE, PAGE, (size_t)i * PAGE);
        if (round == ROUNDS / 2 - 1)
            allocations();
    }
    say("[aio_read own malloc; lio_listio own malloc] right", "%ld", right);
    /* Lists allocate memory; requests do not. */
    yes("under one allocation in 32 requests", allocations() * 32 < N * ROUNDS / 2);
    yes("it was used", calls > 0);
    say("freed what was not its own", "%ld", foreign);
    return 0;
}
