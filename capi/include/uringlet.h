/* uringlet: asynchronous file I/O for Linux in user space.
 *
 * Licensed under Apache-2.0 or MIT, at your option. uringlet(7) is the manual.
 *
 * Functions return 0 or a count, or a negative errno; errno itself stays as it is. For a NULL,
 * forged or destroyed context they return -EINVAL. In the child of a fork, they return -EINVAL for
 * every context of the parent.
 *
 * One thread at a time submits to a context and reaps from it. A call returns -EBUSY while another
 * thread's call uses the context. Any thread may cancel.
 */
#ifndef URINGLET_H
#define URINGLET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; uringlet_version() returns that of the library. */
#define URINGLET_VERSION_MAJOR 0
#define URINGLET_VERSION_MINOR 1
#define URINGLET_VERSION_PATCH 0
#define URINGLET_VERSION                                                       \
    (URINGLET_VERSION_MAJOR * 0x10000 + URINGLET_VERSION_MINOR * 0x100 +       \
     URINGLET_VERSION_PATCH)

/* The offset that means "the file position": read(2) instead of pread(2). */
#define URINGLET_FILE_POSITION UINT64_MAX

/* The maximum number of entries of a context. */
#define URINGLET_ENTRIES_MAX 65536

/* A context. Programs use only its address. */
struct uringlet;

/* A request, laid out as io_uring's. The uringlet_prep functions fill it. user_data is the
 * program's own, and is returned in the completion. */
struct uringlet_sqe {
    uint8_t opcode;
    uint8_t flags;    /* must be 0 */
    uint16_t ioprio;
    int32_t fd;
    uint64_t off;
    uint64_t addr;
    uint32_t len;
    uint32_t op_flags; /* RWF_*, O_*, AT_*, advice or poll events */
    uint64_t user_data;
    uint16_t buf_index;   /* must be 0, as all members below */
    uint16_t personality;
    int32_t file_index;
    uint64_t addr3;
    uint64_t pad;
};

/* A completion, laid out as io_uring's. */
struct uringlet_cqe {
    uint64_t user_data;
    int32_t res;    /* bytes, a descriptor or an event mask; or a negative errno */
    uint32_t flags; /* 0 */
};

/* Flag in uringlet_options: count what the context does, for uringlet_get_stats(). */
#define URINGLET_WITH_STATS 1u

/* How to make a context. A field of 0 means its default; size has to be set. */
struct uringlet_options {
    size_t size;        /* sizeof(struct uringlet_options) */
    uint32_t entries;   /* requests in flight or unreaped: 1 to 65536; 128 by default */
    uint32_t workers;   /* threads that may execute its requests: 1 to 64; 64 by default */
    const char *engine; /* "auto" by default, "workers", "linux_aio", "io_uring" and so on */
    uint32_t flags;     /* URINGLET_WITH_STATS */
    uint32_t reserved;  /* must be 0 */
};

/* Options with their defaults: struct uringlet_options options = URINGLET_OPTIONS_INIT; */
#define URINGLET_OPTIONS_INIT { sizeof(struct uringlet_options), 0, 0, NULL, 0, 0 }

/* The counters of a context. */
struct uringlet_stats {
    size_t size; /* sizeof(struct uringlet_stats); the library sets it to the bytes it has filled */
    uint64_t submitted;
    uint64_t reads;
    uint64_t writes;
    uint64_t fsyncs;
    uint64_t polls;
    uint64_t others;
    uint64_t canceled; /* cancelled requests, which count as none of the five kinds above */
    uint64_t errors;   /* executed requests whose result is an error */
    uint64_t bytes_read;
    uint64_t bytes_written;
    uint64_t by_program; /* executed by a thread of the program, while it waited */
    uint64_t by_threads; /* executed by a thread of the library */
    uint64_t by_kernel;  /* executed by the kernel, or by the C library's threads */
};

/* One of the reads of uringlet_read_many(). */
struct uringlet_range {
    int32_t fd;
    int32_t res; /* set: bytes read, or a negative errno */
    uint64_t off;
    void *buf;
    size_t len;
};

/* What user_data of a request points to for uringlet_run(): usually the first member of a larger
 * structure. */
struct uringlet_handler {
    void (*done)(struct uringlet_handler *handler, int32_t res);
};

/* The library's version, for a comparison with URINGLET_VERSION. */
uint32_t uringlet_version(void);

/* The text of an errno, negative or not. The text is valid until this thread calls this function
 * again. */
const char *uringlet_strerror(int err);

/* The engine of a context, and what was refused and why. For u NULL: why this thread's last
 * failed uringlet_create() failed. The text is valid until this thread calls this function or
 * uringlet_create() again. Returns NULL if there is no such context. */
const char *uringlet_explain(const struct uringlet *u);

/* Makes a context. options may be NULL. */
int uringlet_create(struct uringlet **out, const struct uringlet_options *options);

/* Ends a context. timeout_ns < 0: cancels requests that have not started, and waits for the
 * others. Else waits at most this long for all requests. -ETIME if some have not ended: the
 * context stays. */
int uringlet_destroy(struct uringlet *u, int64_t timeout_ns);

/* The engine's name. NULL if there is no such context. */
const char *uringlet_engine(const struct uringlet *u);

/* A descriptor that is readable while completions wait, for epoll(7) or poll(2). The program
 * must not read or close it. -EBUSY if requests are in flight at the first call. */
int uringlet_event_fd(struct uringlet *u);

/* A zeroed entry, which the next submit reads. NULL if there is none: submit first. NULL also
 * without a context, or if another thread uses it. */
struct uringlet_sqe *uringlet_get_sqe(struct uringlet *u);

/* Submits the entries; never blocks. Returns the number accepted. It can be less than all: the
 * rest is kept for the next submit. -EAGAIN: there is no room for any, reap first. */
int uringlet_submit(struct uringlet *u);

/* Submits, and waits until min completions can be reaped, or until all requests have completed.
 * Waits at most timeout_ns, without end if it is negative. Returns the number that can be reaped.
 * -EINTR: a signal handler ran. */
int uringlet_wait(struct uringlet *u, unsigned min, int64_t timeout_ns);

/* Takes up to n completions without waiting. */
int uringlet_peek(struct uringlet *u, struct uringlet_cqe *out, unsigned n);

/* Takes up to max completions without waiting, and calls f with each. f may use the context. */
int uringlet_for_each(struct uringlet *u, unsigned max,
                      void (*f)(const struct uringlet_cqe *cqe, void *arg), void *arg);

/* As uringlet_wait(), and then calls the handler that each user_data points to (0: none). */
int uringlet_run(struct uringlet *u, unsigned min, int64_t timeout_ns);

/* Cancels one submitted request that has not started: it completes with -ECANCELED. -EALREADY:
 * it is being executed. -ENOENT: there is no such request. Any thread may call this. */
int uringlet_cancel(struct uringlet *u, uint64_t user_data);

/* As uringlet_cancel(), for all requests on a descriptor. Returns the number of cancelled ones. */
int uringlet_cancel_fd(struct uringlet *u, int fd);

/* Reads all ranges, and waits for all. Returns the number of ranges without an error. -EBUSY if the
 * context has entries or requests. */
ssize_t uringlet_read_many(struct uringlet *u, struct uringlet_range *ranges, unsigned n);

/* The counters of the context. -ENODATA without URINGLET_WITH_STATS. */
int uringlet_get_stats(const struct uringlet *u, struct uringlet_stats *out);

/* The operations, with io_uring's numbers. */
enum {
    URINGLET_OP_NOP = 0,
    URINGLET_OP_READV = 1,
    URINGLET_OP_WRITEV = 2,
    URINGLET_OP_FSYNC = 3,
    URINGLET_OP_POLL_ADD = 6,
    URINGLET_OP_SYNC_FILE_RANGE = 8,
    URINGLET_OP_FALLOCATE = 17,
    URINGLET_OP_OPENAT = 18,
    URINGLET_OP_CLOSE = 19,
    URINGLET_OP_STATX = 21,
    URINGLET_OP_READ = 22,
    URINGLET_OP_WRITE = 23,
    URINGLET_OP_FADVISE = 24,
    URINGLET_OP_RENAMEAT = 35,
    URINGLET_OP_UNLINKAT = 36,
    URINGLET_OP_MKDIRAT = 37,
    URINGLET_OP_FTRUNCATE = 55
};

/* op_flags of an fsync that leaves metadata out. */
#define URINGLET_FSYNC_DATASYNC 1u

struct statx;

/* The functions below are exported by the library, too, for languages without inline functions.
 *
 * Functions that prepare an entry set everything but user_data. A submit accepts the entry; from
 * then on, the data buffers belong to the request until its completion was reaped. This submit also
 * reads paths and arrays of iovecs, which may change afterwards. */

static inline void uringlet_prep_any(struct uringlet_sqe *sqe, uint8_t opcode, int fd,
                                     uint64_t addr, uint32_t len, uint64_t off, uint32_t op_flags)
{
    sqe->opcode = opcode;
    sqe->flags = 0;
    sqe->ioprio = 0;
    sqe->fd = fd;
    sqe->off = off;
    sqe->addr = addr;
    sqe->len = len;
    sqe->op_flags = op_flags;
    sqe->buf_index = 0;
    sqe->personality = 0;
    sqe->file_index = 0;
    sqe->addr3 = 0;
    sqe->pad = 0;
}

static inline uint64_t uringlet_address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/* A length, cut to the 32 bits that an entry has. The kernel transfers at most 0x7ffff000 bytes in
 * any case (read(2)). */
static inline uint32_t uringlet_length(size_t len)
{
    return len > UINT32_MAX ? UINT32_MAX : (uint32_t)len;
}

/* Completes with 0 without doing anything. */
static inline void uringlet_prep_nop(struct uringlet_sqe *sqe)
{
    uringlet_prep_any(sqe, URINGLET_OP_NOP, -1, 0, 0, 0, 0);
}

/* pread(2). Result: bytes read. */
static inline void uringlet_prep_read(struct uringlet_sqe *sqe, int fd, void *buf, size_t len,
                                      uint64_t off)
{
    uringlet_prep_any(sqe, URINGLET_OP_READ, fd, uringlet_address(buf), uringlet_length(len), off,
                      0);
}

/* pwrite(2). Result: bytes written. */
static inline void uringlet_prep_write(struct uringlet_sqe *sqe, int fd, const void *buf,
                                       size_t len, uint64_t off)
{
    uringlet_prep_any(sqe, URINGLET_OP_WRITE, fd, uringlet_address(buf), uringlet_length(len), off,
                      0);
}

/* preadv2(2). Result: bytes read. */
static inline void uringlet_prep_readv(struct uringlet_sqe *sqe, int fd, const struct iovec *iov,
                                       unsigned n, uint64_t off)
{
    uringlet_prep_any(sqe, URINGLET_OP_READV, fd, uringlet_address(iov), n, off, 0);
}

/* pwritev2(2). Result: bytes written. */
static inline void uringlet_prep_writev(struct uringlet_sqe *sqe, int fd, const struct iovec *iov,
                                        unsigned n, uint64_t off)
{
    uringlet_prep_any(sqe, URINGLET_OP_WRITEV, fd, uringlet_address(iov), n, off, 0);
}

/* fsync(2). Covers every write to the file that completed before the fsync was submitted. */
static inline void uringlet_prep_fsync(struct uringlet_sqe *sqe, int fd)
{
    uringlet_prep_any(sqe, URINGLET_OP_FSYNC, fd, 0, 0, 0, 0);
}

/* fdatasync(2). */
static inline void uringlet_prep_fdatasync(struct uringlet_sqe *sqe, int fd)
{
    uringlet_prep_any(sqe, URINGLET_OP_FSYNC, fd, 0, 0, 0, URINGLET_FSYNC_DATASYNC);
}

/* fsync(2), or fdatasync(2) with URINGLET_FSYNC_DATASYNC. Other flags: the result is -EINVAL. */
static inline void uringlet_prep_fsync_flags(struct uringlet_sqe *sqe, int fd, unsigned flags)
{
    uringlet_prep_any(sqe, URINGLET_OP_FSYNC, fd, 0, 0, 0, flags);
}

/* sync_file_range(2), with SYNC_FILE_RANGE_* flags. */
static inline void uringlet_prep_sync_file_range(struct uringlet_sqe *sqe, int fd, uint64_t off,
                                                 uint32_t len, unsigned flags)
{
    uringlet_prep_any(sqe, URINGLET_OP_SYNC_FILE_RANGE, fd, 0, len, off, flags);
}

/* fallocate(2), with FALLOC_FL_* mode. */
static inline void uringlet_prep_fallocate(struct uringlet_sqe *sqe, int fd, int mode,
                                           uint64_t off, uint64_t len)
{
    uringlet_prep_any(sqe, URINGLET_OP_FALLOCATE, fd, len, (uint32_t)mode, off, 0);
}

/* ftruncate(2). */
static inline void uringlet_prep_ftruncate(struct uringlet_sqe *sqe, int fd, uint64_t len)
{
    uringlet_prep_any(sqe, URINGLET_OP_FTRUNCATE, fd, 0, 0, len, 0);
}

/* posix_fadvise(2), with POSIX_FADV_* advice; len 0: to the end. */
static inline void uringlet_prep_fadvise(struct uringlet_sqe *sqe, int fd, uint64_t off,
                                         uint32_t len, int advice)
{
    uringlet_prep_any(sqe, URINGLET_OP_FADVISE, fd, 0, len, off, (uint32_t)advice);
}

/* openat(2). Result: the descriptor. */
static inline void uringlet_prep_openat(struct uringlet_sqe *sqe, int dirfd, const char *path,
                                        int flags, mode_t mode)
{
    uringlet_prep_any(sqe, URINGLET_OP_OPENAT, dirfd, uringlet_address(path), (uint32_t)mode, 0,
                      (uint32_t)flags);
}

/* close(2). */
static inline void uringlet_prep_close(struct uringlet_sqe *sqe, int fd)
{
    uringlet_prep_any(sqe, URINGLET_OP_CLOSE, fd, 0, 0, 0, 0);
}

/* statx(2), with AT_* flags and a STATX_* mask. */
static inline void uringlet_prep_statx(struct uringlet_sqe *sqe, int dirfd, const char *path,
                                       int flags, unsigned mask, struct statx *out)
{
    uringlet_prep_any(sqe, URINGLET_OP_STATX, dirfd, uringlet_address(path), mask,
                      uringlet_address(out), (uint32_t)flags);
}

/* unlinkat(2), with AT_REMOVEDIR or 0. */
static inline void uringlet_prep_unlinkat(struct uringlet_sqe *sqe, int dirfd, const char *path,
                                          int flags)
{
    uringlet_prep_any(sqe, URINGLET_OP_UNLINKAT, dirfd, uringlet_address(path), 0, 0,
                      (uint32_t)flags);
}

/* renameat2(2), with RENAME_* flags. */
static inline void uringlet_prep_renameat(struct uringlet_sqe *sqe, int old_dirfd,
                                          const char *old_path, int new_dirfd,
                                          const char *new_path, unsigned flags)
{
    uringlet_prep_any(sqe, URINGLET_OP_RENAMEAT, old_dirfd, uringlet_address(old_path),
                      (uint32_t)new_dirfd, uringlet_address(new_path), flags);
}

/* mkdirat(2). */
static inline void uringlet_prep_mkdirat(struct uringlet_sqe *sqe, int dirfd, const char *path,
                                         mode_t mode)
{
    uringlet_prep_any(sqe, URINGLET_OP_MKDIRAT, dirfd, uringlet_address(path), (uint32_t)mode, 0,
                      0);
}

/* Waits once until one of these events occurs (POLLIN and so on, poll(2)). Result: the events
   that occurred. */
static inline void uringlet_prep_poll_add(struct uringlet_sqe *sqe, int fd, short events)
{
    uringlet_prep_any(sqe, URINGLET_OP_POLL_ADD, fd, 0, 0, 0, (uint16_t)events);
}

/* Sets what the completion returns: an address, or a number. */
static inline void uringlet_sqe_set_data(struct uringlet_sqe *sqe, void *data)
{
    sqe->user_data = uringlet_address(data);
}

static inline void uringlet_sqe_set_data64(struct uringlet_sqe *sqe, uint64_t data)
{
    sqe->user_data = data;
}

/* RWF_* flags of a read or write (preadv2(2)). */
static inline void uringlet_sqe_set_rw_flags(struct uringlet_sqe *sqe, int flags)
{
    sqe->op_flags = (uint32_t)flags;
}

/* The address that uringlet_sqe_set_data() has set. */
static inline void *uringlet_cqe_get_data(const struct uringlet_cqe *cqe)
{
    return (void *)(uintptr_t)cqe->user_data;
}

#ifdef __cplusplus
}
#endif

#endif
