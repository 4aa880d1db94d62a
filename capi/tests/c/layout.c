/* Prints sizes and offsets, for a comparison with the library's own structures. */
#include <stddef.h>
#include <stdio.h>

#include "uringlet.h"

#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define FIELD(type, field)                                                                        \
    printf(#type "." #field " %zu %zu\n", offsetof(struct type, field),                           \
           sizeof(((struct type *)0)->field))

int main(void)
{
    SIZE(uringlet_sqe);
    FIELD(uringlet_sqe, opcode);
    FIELD(uringlet_sqe, flags);
    FIELD(uringlet_sqe, ioprio);
    FIELD(uringlet_sqe, fd);
    FIELD(uringlet_sqe, off);
    FIELD(uringlet_sqe, addr);
    FIELD(uringlet_sqe, len);
    FIELD(uringlet_sqe, op_flags);
    FIELD(uringlet_sqe, user_data);
    FIELD(uringlet_sqe, buf_index);
    FIELD(uringlet_sqe, personality);
    FIELD(uringlet_sqe, file_index);
    FIELD(uringlet_sqe, addr3);
    FIELD(uringlet_sqe, pad);
    SIZE(uringlet_cqe);
    FIELD(uringlet_cqe, user_data);
    FIELD(uringlet_cqe, res);
    FIELD(uringlet_cqe, flags);
    SIZE(uringlet_options);
    FIELD(uringlet_options, size);
    FIELD(uringlet_options, entries);
    FIELD(uringlet_options, workers);
    FIELD(uringlet_options, engine);
    FIELD(uringlet_options, flags);
    FIELD(uringlet_options, reserved);
    SIZE(uringlet_range);
    FIELD(uringlet_range, fd);
    FIELD(uringlet_range, res);
    FIELD(uringlet_range, off);
    FIELD(uringlet_range, buf);
    FIELD(uringlet_range, len);
    SIZE(uringlet_handler);
    FIELD(uringlet_handler, done);
    SIZE(uringlet_stats);
    FIELD(uringlet_stats, size);
    FIELD(uringlet_stats, submitted);
    FIELD(uringlet_stats, reads);
    FIELD(uringlet_stats, writes);
    FIELD(uringlet_stats, fsyncs);
    FIELD(uringlet_stats, polls);
    FIELD(uringlet_stats, others);
    FIELD(uringlet_stats, canceled);
    FIELD(uringlet_stats, errors);
    FIELD(uringlet_stats, bytes_read);
    FIELD(uringlet_stats, bytes_written);
    FIELD(uringlet_stats, by_program);
    FIELD(uringlet_stats, by_threads);
    FIELD(uringlet_stats, by_kernel);
    printf("VERSION %d\n", URINGLET_VERSION);
    printf("ENTRIES_MAX %d\n", URINGLET_ENTRIES_MAX);
    printf("WITH_STATS %u\n", URINGLET_WITH_STATS);
    printf("FILE_POSITION %d\n", URINGLET_FILE_POSITION == UINT64_MAX);
    return 0;
}
