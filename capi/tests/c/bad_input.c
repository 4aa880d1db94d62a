/* Bad arguments get a negative errno. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "check.h"

static void ignore(const struct uringlet_cqe *cqe, void *arg)
{
    (void)cqe;
    (void)arg;
}

/* Checks that no function accepts this address as a context. */
static void refused(struct uringlet *u)
{
    struct uringlet_stats stats = {.size = sizeof(stats)};
    struct uringlet_range range = {.fd = 0, .res = 0, .off = 0, .buf = NULL, .len = 0};
    struct uringlet_cqe cqe;

    EQUAL(uringlet_destroy(u, -1), -EINVAL);
    EQUAL(uringlet_destroy(u, 0), -EINVAL);
    EQUAL(uringlet_event_fd(u), -EINVAL);
    CHECK(!uringlet_get_sqe(u));
    CHECK(!uringlet_engine(u));
    CHECK(!u || !uringlet_explain(u));
    EQUAL(uringlet_submit(u), -EINVAL);
    EQUAL(uringlet_wait(u, 0, 0), -EINVAL);
    EQUAL(uringlet_wait(u, 1, -1), -EINVAL);
    EQUAL(uringlet_peek(u, &cqe, 1), -EINVAL);
    EQUAL(uringlet_peek(u, NULL, 0), -EINVAL);
    EQUAL(uringlet_for_each(u, 1, ignore, NULL), -EINVAL);
    EQUAL(uringlet_run(u, 1, -1), -EINVAL);
    EQUAL(uringlet_cancel(u, 0), -EINVAL);
    EQUAL(uringlet_cancel_fd(u, 0), -EINVAL);
    EQUAL(uringlet_read_many(u, &range, 1), -EINVAL);
    EQUAL(uringlet_get_stats(u, &stats), -EINVAL);
}

static void handles(void)
{
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uringlet *u = context(8), *other, *again;
    uintptr_t at = (uintptr_t)u;
    uint64_t number = 88172645463325252u;

    CHECK(page != MAP_FAILED);
    refused(NULL);
    refused((struct uringlet *)page);
    refused((struct uringlet *)&page);
    refused((struct uringlet *)(at + 8));
    refused((struct uringlet *)(at + 4096));
    refused((struct uringlet *)(at - 4096));
    refused((struct uringlet *)UINTPTR_MAX);
    for (int i = 0; i < 100000; i++) {
        uintptr_t forged;

        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        /* Half of the forged addresses are near the real one. */
        forged = i % 2 ? (uintptr_t)number : at + (uintptr_t)(number % 1024 - 512) * 64;
        if (forged != at) {
            EQUAL(uringlet_submit((struct uringlet *)forged), -EINVAL);
            EQUAL(uringlet_cancel((struct uringlet *)forged, 0), -EINVAL);
        }
    }
    other = context(8);
    CHECK(other != u);
    EQUAL(uringlet_destroy(u, -1), 0);
    refused(u);
    uringlet_prep_nop(entry(other));
    EQUAL(result(other), 0);
    EQUAL(uringlet_destroy(other, -1), 0);
    refused(u);
    refused(other);
    again = context(8);
    EQUAL(uringlet_destroy(again, -1), 0);
    refused(again);
}

static int create_with(struct uringlet_options options)
{
    struct uringlet *u = (struct uringlet *)1;
    int ret = uringlet_create(&u, &options);

    CHECK(ret < 0 ? !u : !!u);
    if (!ret)
        EQUAL(uringlet_destroy(u, 0), 0);
    return ret;
}

static void options(void)
{
    struct {
        struct uringlet_options known;
        char later[64];
    } future;
    struct uringlet_options good = {.size = sizeof(good)}, bad;
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uringlet *u;

    CHECK(page != MAP_FAILED);
    EQUAL(create_with(good), 0);
    EQUAL(uringlet_create(NULL, NULL), -EFAULT);
    EQUAL(uringlet_create((struct uringlet **)8, NULL), -EFAULT);
    EQUAL(uringlet_create(&u, (struct uringlet_options *)8), -EFAULT);
    CHECK(!strcmp(uringlet_explain(NULL), "options are at 0x8, expected 32 bytes to read"));

    bad = good;
    bad.size = 0;
    EQUAL(create_with(bad), -EINVAL);
    bad.size = sizeof(bad) - 1;
    EQUAL(create_with(bad), -EINVAL);
    CHECK(!strcmp(uringlet_explain(NULL), "size is 31, expected 32 or more"));
    bad.size = SIZE_MAX;
    EQUAL(create_with(bad), -E2BIG);
    CHECK(strstr(uringlet_explain(NULL), "size is ") && strstr(uringlet_explain(NULL), "4096"));
    bad = good;
    bad.entries = URINGLET_ENTRIES_MAX + 1;
    EQUAL(create_with(bad), -EINVAL);
    CHECK(!strcmp(uringlet_explain(NULL), "entries is 65537, expected 1 to 65536"));
    bad.entries = UINT32_MAX;
    EQUAL(create_with(bad), -EINVAL);
    bad = good;
    bad.workers = 65;
    EQUAL(create_with(bad), -EINVAL);
    CHECK(!strcmp(uringlet_explain(NULL), "workers is 65, expected 1 to 64"));
    bad = good;
    bad.engine = "fast";
    EQUAL(create_with(bad), -EINVAL);
    CHECK(strstr(uringlet_explain(NULL), "engine is fast"));
    bad.engine = "";
    EQUAL(create_with(bad), -EINVAL);
    CHECK(strstr(uringlet_explain(NULL), "engine is '', expected"));
    bad = good;
    bad.flags = 2;
    EQUAL(create_with(bad), -EINVAL);
    CHECK(strstr(uringlet_explain(NULL), "flags are 0x2"));
    bad = good;
    bad.reserved = 1;
    EQUAL(create_with(bad), -EINVAL);
    CHECK(!strcmp(uringlet_explain(NULL), "reserved is 0x1, expected 0"));

    /* A program with a larger structure, which uses none or one of the new members. */
    memset(&future, 0, sizeof(future));
    future.known.size = sizeof(future);
    EQUAL(uringlet_create(&u, &future.known), 0);
    EQUAL(uringlet_destroy(u, 0), 0);
    future.later[63] = 1;
    EQUAL(uringlet_create(&u, &future.known), -E2BIG);

    /* Structures that begin in accessible memory and end outside. */
    EQUAL(mprotect(page + 4096, 4096, PROT_NONE), 0);
    memset(&future, 0, sizeof(future));
    future.known.size = sizeof(future);
    memcpy(page + 4096 - sizeof(good), &future.known, sizeof(good));
    EQUAL(uringlet_create(&u, (struct uringlet_options *)(void *)(page + 4096 - sizeof(good))),
          -EFAULT);
    memcpy(page + 4096 - sizeof(good), &good, sizeof(good));
    EQUAL(uringlet_create(&u, (struct uringlet_options *)(void *)(page + 4096 - sizeof(good))),
          0);
    EQUAL(uringlet_destroy(u, 0), 0);
}

static void requests(void)
{
    struct uringlet_stats stats = {.size = sizeof(stats)};
    struct uringlet *u = context(4);
    int fd = file_of("content", 7);
    struct uringlet_sqe *sqe;
    struct uringlet_cqe cqe;
    static char low[16];
    char buf[16];

    uringlet_prep_read(entry(u), -1, buf, 4, 0);
    EQUAL(result(u), -EBADF);
    uringlet_prep_read(entry(u), fd, NULL, 4, 0);
    EQUAL(result(u), -EFAULT);
    /* The kernel cuts these lengths to 2 GiB. It checks that 2 GiB from the buffer on are user
     * addresses. `low` is static, because fewer user addresses lie above a buffer on the stack. */
    uringlet_prep_read(entry(u), fd, low, SIZE_MAX, 7);
    EQUAL(result(u), 0);
    uringlet_prep_read(entry(u), fd, (void *)8, SIZE_MAX, 0);
    EQUAL(result(u), -EFAULT);
    uringlet_prep_readv(entry(u), fd, NULL, UINT32_MAX, 0);
    EQUAL(result(u), -EINVAL);
    uringlet_prep_read(entry(u), fd, buf, 4, (uint64_t)INT64_MAX + 5);
    EQUAL(result(u), -EINVAL);
    sqe = entry(u);
    memset(sqe, 0xff, sizeof(*sqe));
    EQUAL(result(u), -EINVAL);
    sqe = entry(u);
    uringlet_prep_nop(sqe);
    sqe->flags = 1;
    EQUAL(result(u), -EINVAL);
    /* An unchanged entry does nothing. */
    entry(u);
    EQUAL(result(u), 0);

    EQUAL(uringlet_peek(u, NULL, 1), -EFAULT);
    EQUAL(uringlet_peek(u, NULL, 0), 0);
    EQUAL(uringlet_peek(u, &cqe, UINT32_MAX), 0);
    EQUAL(uringlet_for_each(u, 1, NULL, NULL), -EINVAL);
    EQUAL(uringlet_read_many(u, NULL, 1), -EFAULT);
    EQUAL(uringlet_read_many(u, NULL, 0), 0);
    EQUAL(uringlet_get_stats(u, &stats), -ENODATA);
    EQUAL(uringlet_cancel(u, 5), -ENOENT);
    EQUAL(uringlet_cancel_fd(u, -1), -ENOENT);
    /* Nothing is in flight: there is nothing to wait for. */
    EQUAL(uringlet_wait(u, UINT32_MAX, -1), 0);
    EQUAL(uringlet_wait(u, UINT32_MAX, INT64_MIN), 0);
    EQUAL(uringlet_wait(u, UINT32_MAX, INT64_MAX), 0);
    EQUAL(uringlet_run(u, UINT32_MAX, -1), 0);
    EQUAL(uringlet_destroy(u, INT64_MAX), 0);
}

int main(void)
{
    handles();
    options();
    requests();
    CHECK(*uringlet_strerror(INT32_MIN) && *uringlet_strerror(0) && *uringlet_strerror(99999));
    CHECK(!strcmp(uringlet_strerror(-ENOENT), "No such file or directory"));
    const char *first = uringlet_strerror(ENOENT), *second = uringlet_strerror(-99999);
    CHECK(strstr(first, "No such file") && strstr(second, "99999"));
    errno = 1234;
    refused(NULL);
    EQUAL(errno, 1234);
    return EXIT_SUCCESS;
}
