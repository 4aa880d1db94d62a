/*
 * The interface of libaio for programs that are built against uringlet's drop-in: names and layouts
 * that the two have in common. 64-bit Linux only.
 *
 * Manual pages: io_setup(2), io_submit(2), io_getevents(2), io_cancel(2), io_destroy(2).
 */
#ifndef LIBAIO_H
#define LIBAIO_H

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifndef __LP64__
#error "only 64-bit programs can use uringlet's libaio"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian programs can use uringlet's libaio"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A context for asynchronous I/O; 0 before io_setup. */
typedef struct io_context *io_context_t;

/* The operation of an iocb. */
typedef enum io_iocb_cmd {
	IO_CMD_PREAD = 0,
	IO_CMD_PWRITE = 1,
	IO_CMD_FSYNC = 2,
	IO_CMD_FDSYNC = 3,
	IO_CMD_POLL = 5,
	IO_CMD_NOOP = 6,
	IO_CMD_PREADV = 7,
	IO_CMD_PWRITEV = 8
} io_iocb_cmd_t;

/* A transfer with one buffer, or none. */
struct io_iocb_common {
	void *buf;
	unsigned long nbytes;
	long long offset;
	long long __pad3;
	unsigned flags; /* 1: count up resfd; 2: aio_reqprio is an I/O priority */
	unsigned resfd;
};

/* A transfer with several buffers. */
struct io_iocb_vector {
	const struct iovec *vec;
	unsigned long nr;
	long long offset;
};

/* A poll for these events (poll(2)). */
struct io_iocb_poll {
	int events;
};

/* One request: 64 bytes, as the kernel has them. */
struct iocb {
	void *data; /* comes back in the io_event */
	unsigned key;
	int aio_rw_flags; /* RWF_* of preadv2(2) */
	short aio_lio_opcode; /* one of io_iocb_cmd_t */
	short aio_reqprio;
	int aio_fildes;
	union {
		struct io_iocb_common c;
		struct io_iocb_vector v;
		struct io_iocb_poll poll;
	} u;
};

/* One completion: 32 bytes, as the kernel has them. */
struct io_event {
	void *data;
	struct iocb *obj;
	unsigned long res; /* a count, or a negative errno */
	unsigned long res2;
};

typedef void (*io_callback_t)(io_context_t ctx, struct iocb *iocb, long res, long res2);

/* All these functions return a negative errno if they fail, and leave errno as it is. */
int io_setup(int maxevents, io_context_t *ctxp);
int io_destroy(io_context_t ctx);
int io_submit(io_context_t ctx, long nr, struct iocb *ios[]);
int io_cancel(io_context_t ctx, struct iocb *iocb, struct io_event *event);
int io_getevents(io_context_t ctx, long min_nr, long nr, struct io_event *events,
		 struct timespec *timeout);
int io_pgetevents(io_context_t ctx, long min_nr, long nr, struct io_event *events,
		  struct timespec *timeout, sigset_t *sigmask);

/* The older interface, with a callback in each iocb's data. */
int io_queue_init(int maxevents, io_context_t *ctxp);
int io_queue_release(io_context_t ctx);
int io_queue_run(io_context_t ctx);
int io_queue_wait(io_context_t ctx, struct timespec *timeout);

static inline void io_set_callback(struct iocb *iocb, io_callback_t callback)
{
	union {
		io_callback_t function;
		void *data;
	} both;

	both.function = callback;
	iocb->data = both.data;
}

/* Initializes a request, for the functions below. Programs do not call this function. */
static inline void __io_prep(struct iocb *iocb, int command, int fd)
{
	memset(iocb, 0, sizeof(*iocb));
	iocb->aio_lio_opcode = (short)command;
	iocb->aio_fildes = fd;
}

static inline void __io_prep_buffer(struct iocb *iocb, int command, int fd, void *buf,
				    size_t count, long long offset)
{
	__io_prep(iocb, command, fd);
	iocb->u.c.buf = buf;
	iocb->u.c.nbytes = count;
	iocb->u.c.offset = offset;
}

static inline void __io_prep_vector(struct iocb *iocb, int command, int fd, const struct iovec *iov,
				    int iovcnt, long long offset, int flags)
{
	__io_prep(iocb, command, fd);
	iocb->aio_rw_flags = flags;
	iocb->u.v.vec = iov;
	iocb->u.v.nr = (unsigned long)iovcnt;
	iocb->u.v.offset = offset;
}

static inline void io_prep_pread(struct iocb *iocb, int fd, void *buf, size_t count,
				 long long offset)
{
	__io_prep_buffer(iocb, IO_CMD_PREAD, fd, buf, count, offset);
}

static inline void io_prep_pwrite(struct iocb *iocb, int fd, void *buf, size_t count,
				  long long offset)
{
	__io_prep_buffer(iocb, IO_CMD_PWRITE, fd, buf, count, offset);
}

static inline void io_prep_preadv(struct iocb *iocb, int fd, const struct iovec *iov, int iovcnt,
				  long long offset)
{
	__io_prep_vector(iocb, IO_CMD_PREADV, fd, iov, iovcnt, offset, 0);
}

static inline void io_prep_pwritev(struct iocb *iocb, int fd, const struct iovec *iov, int iovcnt,
				   long long offset)
{
	__io_prep_vector(iocb, IO_CMD_PWRITEV, fd, iov, iovcnt, offset, 0);
}

static inline void io_prep_preadv2(struct iocb *iocb, int fd, const struct iovec *iov, int iovcnt,
				   long long offset, int flags)
{
	__io_prep_vector(iocb, IO_CMD_PREADV, fd, iov, iovcnt, offset, flags);
}

static inline void io_prep_pwritev2(struct iocb *iocb, int fd, const struct iovec *iov, int iovcnt,
				    long long offset, int flags)
{
	__io_prep_vector(iocb, IO_CMD_PWRITEV, fd, iov, iovcnt, offset, flags);
}

static inline void io_prep_poll(struct iocb *iocb, int fd, int events)
{
	__io_prep(iocb, IO_CMD_POLL, fd);
	iocb->u.poll.events = events;
}

static inline void io_prep_fsync(struct iocb *iocb, int fd)
{
	__io_prep(iocb, IO_CMD_FSYNC, fd);
}

static inline void io_prep_fdsync(struct iocb *iocb, int fd)
{
	__io_prep(iocb, IO_CMD_FDSYNC, fd);
}

static inline int __io_submit_with(io_context_t ctx, struct iocb *iocb, io_callback_t callback)
{
	io_set_callback(iocb, callback);
	return io_submit(ctx, 1, &iocb);
}

static inline int io_poll(io_context_t ctx, struct iocb *iocb, io_callback_t callback, int fd,
			  int events)
{
	io_prep_poll(iocb, fd, events);
	return __io_submit_with(ctx, iocb, callback);
}

static inline int io_fsync(io_context_t ctx, struct iocb *iocb, io_callback_t callback, int fd)
{
	io_prep_fsync(iocb, fd);
	return __io_submit_with(ctx, iocb, callback);
}

static inline int io_fdsync(io_context_t ctx, struct iocb *iocb, io_callback_t callback, int fd)
{
	io_prep_fdsync(iocb, fd);
	return __io_submit_with(ctx, iocb, callback);
}

static inline void io_set_eventfd(struct iocb *iocb, int eventfd)
{
	iocb->u.c.flags |= 1;
	iocb->u.c.resfd = (unsigned)eventfd;
}

#ifdef __cplusplus
}
#endif

#endif
