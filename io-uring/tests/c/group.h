/* A group of COUNT buffers of SIZE bytes, which the program provides in a ring. */
#ifndef GROUP_H
#define GROUP_H

#include <sys/syscall.h>

/* `struct io_uring_buf_reg`: older headers lack the flags. */
struct group {
    unsigned long long address;
    unsigned entries;
    unsigned short id, flags;
    unsigned long long rest[3];
};

static struct io_uring ring;
static char memory[COUNT][SIZE];
static struct io_uring_buf_ring *provided;

/* IORING_REGISTER_PBUF_STATUS. */
enum { STATUS = 26 };

static inline int registers(unsigned opcode, void *arg, unsigned count)
{
    int answer = syscall(__NR_io_uring_register, ring.ring_fd, opcode, arg, count);
    return answer < 0 ? -errno : answer;
}

/* The index of the next buffer that the kernel takes from a group, or an errno. */
static inline int head(unsigned group)
{
    unsigned status[10] = { group };
    int answer = registers(STATUS, status, 1);
    return answer < 0 ? answer : (int)status[1];
}

#endif
