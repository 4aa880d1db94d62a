/* Each inline function of the header makes the same entry as the exported one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/stat.h>

#include "check.h"

static void *library;

static void *exported(const char *name)
{
    void *at = dlsym(library, name);

    if (!at) {
        fprintf(stderr, "%s is not exported\n", name);
        exit(EXIT_FAILURE);
    }
    return at;
}

/* ISO C has no cast from data to functions: the pointer goes through memory. */
#define TWIN(name, type, ...)                                                                     \
    do {                                                                                          \
        struct uringlet_sqe ours_, theirs_;                                                       \
        void (*twin_) type;                                                                       \
        void *at_ = exported("uringlet_" #name);                                                  \
        memcpy(&twin_, &at_, sizeof(twin_));                                                      \
        memset(&ours_, 0xa5, sizeof(ours_));                                                      \
        memset(&theirs_, 0xa5, sizeof(theirs_));                                                  \
        uringlet_##name(&ours_, __VA_ARGS__);                                                     \
        twin_(&theirs_, __VA_ARGS__);                                                             \
        if (memcmp(&ours_, &theirs_, sizeof(ours_))) {                                            \
            fprintf(stderr, "uringlet_%s makes another entry\n", #name);                          \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
        EQUAL(strncmp(#name, "prep_", 5) || ours_.user_data == 0xa5a5a5a5a5a5a5a5u, 1);           \
        count++;                                                                                  \
    } while (0)

int main(int argc, char **argv)
{
    struct uringlet_sqe ours, theirs;
    struct uringlet_cqe cqe = {.user_data = 77};
    struct iovec iov[2];
    struct statx stat;
    char buf[8];
    int count = 0;
    void (*nop)(struct uringlet_sqe *);
    void *(*get)(const struct uringlet_cqe *);
    void *at;

    CHECK(argc == 2);
    library = dlopen(argv[1], RTLD_NOW);
    CHECK(library);

    TWIN(prep_read, (struct uringlet_sqe *, int, void *, size_t, uint64_t), 3, buf, 8, 1 << 20);
    TWIN(prep_read, (struct uringlet_sqe *, int, void *, size_t, uint64_t), 3, buf,
         (size_t)1 << 40, URINGLET_FILE_POSITION);
    TWIN(prep_write, (struct uringlet_sqe *, int, const void *, size_t, uint64_t), 3, buf, 8, 9);
    TWIN(prep_readv, (struct uringlet_sqe *, int, const struct iovec *, unsigned, uint64_t), 3,
         iov, 2, 9);
    TWIN(prep_writev, (struct uringlet_sqe *, int, const struct iovec *, unsigned, uint64_t), 3,
         iov, 2, 9);
    TWIN(prep_fsync, (struct uringlet_sqe *, int), 3);
    TWIN(prep_fdatasync, (struct uringlet_sqe *, int), 3);
    TWIN(prep_fsync_flags, (struct uringlet_sqe *, int, unsigned), 3, URINGLET_FSYNC_DATASYNC);
    TWIN(prep_sync_file_range, (struct uringlet_sqe *, int, uint64_t, uint32_t, unsigned), 3, 4,
         5, 6);
    TWIN(prep_fallocate, (struct uringlet_sqe *, int, int, uint64_t, uint64_t), 3, 4, 5, 6);
    TWIN(prep_ftruncate, (struct uringlet_sqe *, int, uint64_t), 3, 4);
    TWIN(prep_fadvise, (struct uringlet_sqe *, int, uint64_t, uint32_t, int), 3, 4, 5, 6);
    TWIN(prep_openat, (struct uringlet_sqe *, int, const char *, int, mode_t), AT_FDCWD, "a", 4,
         0644);
    TWIN(prep_close, (struct uringlet_sqe *, int), 3);
    TWIN(prep_statx, (struct uringlet_sqe *, int, const char *, int, unsigned, struct statx *), 3,
         "a", 4, 5, &stat);
    TWIN(prep_unlinkat, (struct uringlet_sqe *, int, const char *, int), 3, "a", AT_REMOVEDIR);
    TWIN(prep_renameat,
         (struct uringlet_sqe *, int, const char *, int, const char *, unsigned), 3, "a", -4, "b",
         5);
    TWIN(prep_mkdirat, (struct uringlet_sqe *, int, const char *, mode_t), 3, "a", 0755);
    TWIN(prep_poll_add, (struct uringlet_sqe *, int, short), 3, POLLIN | POLLOUT);
    TWIN(prep_poll_add, (struct uringlet_sqe *, int, short), 3, (short)0x8001);
    TWIN(sqe_set_data, (struct uringlet_sqe *, void *), buf);
    TWIN(sqe_set_data64, (struct uringlet_sqe *, uint64_t), 99);
    TWIN(sqe_set_rw_flags, (struct uringlet_sqe *, int), 8);

    at = exported("uringlet_prep_nop");
    memcpy(&nop, &at, sizeof(nop));
    memset(&ours, 0xa5, sizeof(ours));
    memset(&theirs, 0xa5, sizeof(theirs));
    uringlet_prep_nop(&ours);
    nop(&theirs);
    EQUAL(memcmp(&ours, &theirs, sizeof(ours)), 0);
    at = exported("uringlet_cqe_get_data");
    memcpy(&get, &at, sizeof(get));
    CHECK(get(&cqe) == uringlet_cqe_get_data(&cqe) && get(&cqe) == (void *)77);
    printf("%d twins\n", count + 2);
    return EXIT_SUCCESS;
}
