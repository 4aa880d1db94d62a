/* Registered files and buffers, tags, direct descriptors and eventfds. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/uio.h>

static struct io_uring ring;

static void run(struct io_uring_sqe *sqe, int user_data, const char *what)
{
    sqe->user_data = user_data;
    io_uring_submit_and_wait(&ring, 1);
    completions(&ring, what, 1);
}

int main(void)
{
    MUST(io_uring_queue_init(32, &ring, 0) == 0);
    int fd = scratch(), event = eventfd(0, EFD_NONBLOCK), none = -1;
    char buffer[64] = "what is written", in[64] = { 0 };
    unsigned long long counted = 0;
    struct io_uring_sqe *sqe;
    int list[3] = { fd, -1, fd };
    printf("files %d\n", io_uring_register_files(&ring, list, 3));
    printf("twice %d\n", io_uring_register_files(&ring, list, 3));
    close(fd);
    sqe = entry(&ring, 1);
    io_uring_prep_write(sqe, 0, buffer, 16, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    run(sqe, 1, "closed by the program");
    sqe = entry(&ring, 2);
    io_uring_prep_read(sqe, 1, in, 16, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    run(sqe, 2, "empty slot");
    sqe = entry(&ring, 3);
    io_uring_prep_read(sqe, 9, in, 16, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    run(sqe, 3, "no slot");
    sqe = entry(&ring, 4);
    io_uring_prep_read(sqe, 2, in, 16, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    run(sqe, 4, "read");
    printf("%s\n", in);
    printf("update %d\n", io_uring_register_files_update(&ring, 0, &none, 1));
    printf("update %d\n", io_uring_register_files_update(&ring, 3, &none, 1));
    printf("unregister %d\n", io_uring_unregister_files(&ring));
    printf("unregister %d\n", io_uring_unregister_files(&ring));
    int file = scratch();
    unsigned long long tags[1] = { 900 };
    printf("tagged %d\n", io_uring_register_files_tags(&ring, &file, (const void *)tags, 1));
    printf("unregister %d\n", io_uring_unregister_files(&ring));
    completions(&ring, "tag", 1);
    struct iovec part = { buffer, sizeof buffer };
    printf("buffers %d\n", io_uring_register_buffers(&ring, &part, 1));
    sqe = entry(&ring, 5);
    io_uring_prep_write_fixed(sqe, file, buffer + 8, 8, 0, 0);
    run(sqe, 5, "fixed");
    sqe = entry(&ring, 6);
    io_uring_prep_write_fixed(sqe, file, buffer + 60, 8, 0, 0);
    run(sqe, 6, "beyond");
    sqe = entry(&ring, 7);
    io_uring_prep_read_fixed(sqe, file, buffer, 8, 0, 3);
    run(sqe, 7, "no buffer");
    printf("unregister %d\n", io_uring_unregister_buffers(&ring));
    struct iovec bad = { (void *)4096, 4096 };
    printf("bad %d\n", io_uring_register_buffers(&ring, &bad, 1));
    printf("sparse %d\n", io_uring_register_files_sparse(&ring, 4));
    sqe = entry(&ring, 8);
    io_uring_prep_openat_direct(sqe, AT_FDCWD, "/dev/zero", O_RDONLY, 0, 2);
    run(sqe, 8, "direct");
    sqe = entry(&ring, 9);
    io_uring_prep_read(sqe, 2, in, 16, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    run(sqe, 9, "direct read");
    sqe = entry(&ring, 10);
    io_uring_prep_close_direct(sqe, 2);
    run(sqe, 10, "direct close");
    sqe = entry(&ring, 11);
    io_uring_prep_close_direct(sqe, 2);
    run(sqe, 11, "direct close again");
    MUST(io_uring_register_eventfd(&ring, event) == 0);
    printf("eventfd again %d\n", io_uring_register_eventfd(&ring, event));
    sqe = entry(&ring, 12);
    io_uring_prep_nop(sqe);
    run(sqe, 12, "told");
    printf("read %zd, %llu\n", read(event, &counted, 8), counted);
    printf("unregister %d\n", io_uring_unregister_eventfd(&ring));
    printf("unregister %d\n", io_uring_unregister_eventfd(&ring));
    /* Fills in lengths of 64 bits, as newer versions of liburing do. */
    char *pages = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED);
    memset(pages, 7, 1 << 16);
    sqe = entry(&ring, 13);
    io_uring_prep_madvise(sqe, pages, 0, MADV_DONTNEED);
    sqe->off = 1 << 15;
    run(sqe, 13, "long advice on memory");
    printf("first %d, last %d\n", pages[0], pages[(1 << 16) - 1]);
    sqe = entry(&ring, 14);
    io_uring_prep_fadvise(sqe, file, 0, 0, POSIX_FADV_WILLNEED);
    sqe->addr = 5ull << 30;
    run(sqe, 14, "long advice on a file");
    sqe = entry(&ring, 15);
    io_uring_prep_fadvise(sqe, file, 0, 0, POSIX_FADV_WILLNEED);
    sqe->addr = -1ull;
    run(sqe, 15, "more than there can be");
    io_uring_queue_exit(&ring);
    return 0;
}
