//! The same C program on the C library's POSIX AIO and on this drop-in: equal answers expected.
//!
//! Each program in `c/` prints `name: answer` lines. Where an answer differs on purpose,
//! [`DIFFERENCES`] says so and why; an entry that does not occur (any more) is a failure too.
//! What the answers cover makes the matrix in the README.

use machinery::matrix::{Function, Untested, check as check_matrix};
use machinery::{Build, Difference, Occurs, Suite, differs};

#[path = "../../libaio/tests/support/differential.rs"]
mod machinery;
#[path = "../../libaio/tests/support/mod.rs"]
mod support;

const DIFFERENCES: &[Difference] = &[];

/// The cases of each function: success, each errno of its manual page, notifications, and what else can be told apart.
const FUNCTIONS: &[Function] = &[
    (
        "aio_read",
        &[
            "success",
            "EAGAIN",
            "EBADF",
            "EINVAL",
            "EINVAL reqprio",
            "EOVERFLOW",
            "ENOSYS",
            "EFAULT",
            "EISDIR",
            "EIO",
            "EAGAIN of the file",
            "SIGEV_NONE",
            "SIGEV_SIGNAL",
            "SIGEV_SIGNAL of no signal",
            "SIGEV_THREAD",
            "SIGEV_THREAD attributes",
            "unknown sigev_notify",
            "reqprio",
            "order",
            "several threads",
            "63 blocked",
            "closed descriptor",
            "in a child",
            "exit",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_write",
        &[
            "success",
            "EAGAIN",
            "EBADF",
            "EINVAL",
            "EINVAL reqprio",
            "EFBIG",
            "ENOSYS",
            "EFAULT",
            "ENOSPC",
            "EPIPE",
            "EPERM",
            "EAGAIN of the file",
            "SIGEV_NONE",
            "SIGEV_SIGNAL",
            "SIGEV_THREAD",
            "SIGEV_THREAD attributes",
            "reqprio",
            "order",
            "in a child",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_fsync",
        &[
            "success",
            "success O_SYNC",
            "success O_DSYNC",
            "EAGAIN",
            "EBADF",
            "EINVAL",
            "EINVAL reqprio",
            "ENOSYS",
            "ECANCELED",
            "SIGEV_NONE",
            "SIGEV_SIGNAL",
            "SIGEV_THREAD",
            "reqprio",
            "order",
            "in a child",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_error",
        &[
            "0",
            "EINPROGRESS",
            "ECANCELED",
            "an errno",
            "EINVAL",
            "ENOSYS",
            "never submitted",
            "freed blocks",
            "in a handler",
            "in a child",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_return",
        &[
            "success",
            "error",
            "cancelled",
            "twice",
            "EINPROGRESS",
            "EINVAL",
            "ENOSYS",
            "never submitted",
            "in a handler",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_suspend",
        &[
            "success",
            "EAGAIN",
            "EINTR",
            "EINVAL",
            "ENOSYS",
            "NULL entries",
            "empty list",
            "timeout out of range",
            "several threads",
            "pthread_cancel",
            "freed blocks",
            "in a child",
            "mixed names",
            "old version",
        ],
    ),
    (
        "aio_cancel",
        &[
            "AIO_CANCELED",
            "AIO_NOTCANCELED",
            "AIO_ALLDONE",
            "EBADF",
            "EINVAL",
            "ENOSYS",
            "notifies",
            "never submitted",
            "race",
            "mixed names",
            "old version",
        ],
    ),
    (
        "lio_listio",
        &[
            "LIO_WAIT success",
            "LIO_NOWAIT success",
            "LIO_NOP",
            "empty list",
            "EAGAIN",
            "EINTR",
            "EINVAL mode",
            "EINVAL nent",
            "EINVAL unqueueable",
            "EIO",
            "ENOSYS",
            "SIGEV_NONE of the list",
            "SIGEV_SIGNAL of the list",
            "SIGEV_THREAD of the list",
            "SIGEV_SIGNAL of a request",
            "SIGEV_THREAD of a request",
            "list's sigevent with LIO_WAIT",
            "undocumented opcode",
            "order",
            "freed blocks",
            "mixed names",
            "old version",
        ],
    ),
    ("aio_init", &["success", "out of range"]),
];

const THERE: &str = "it is there";
const TAKEN: &str = "never answered: what a block says is taken as it is";

const UNTESTED: &[Untested] = &[
    ("aio_read", "ENOSYS", THERE),
    ("aio_write", "ENOSYS", THERE),
    ("aio_fsync", "ENOSYS", THERE),
    ("aio_error", "ENOSYS", THERE),
    ("aio_error", "EINVAL", TAKEN),
    ("aio_return", "ENOSYS", THERE),
    ("aio_return", "EINVAL", TAKEN),
    ("aio_suspend", "ENOSYS", THERE),
    ("aio_cancel", "ENOSYS", THERE),
    ("lio_listio", "ENOSYS", THERE),
];

static SUITE: Suite = Suite {
    library: support::library,
    expected: "POSIX_AIO_EXPECTED",
    manifest: env!("CARGO_MANIFEST_DIR"),
    link: &["-ldl"],
    builds: &[
        Build { suffix: "", flags: &[] },
        // With these, every function that a program calls is its 64 variant.
        Build { suffix: "64", flags: &["-D_FILE_OFFSET_BITS=64"] },
    ],
    programs: PROGRAMS,
    differences: DIFFERENCES,
};

macro_rules! programs {
    ($($name:ident),* $(,)?) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { SUITE.check(stringify!($name)); })*
    };
}

programs! {
    cancel,
    errors,
    fork,
    freed,
    fsync,
    house,
    init,
    lio_nowait,
    lio_wait,
    names,
    notify_signal,
    notify_thread,
    old_versions,
    order,
    read_write,
    resources,
    state,
    suspend,
    suspend_threads,
}

#[test]
fn every_program_is_in_the_list() {
    SUITE.check_list();
}

#[test]
fn the_matrix_is_what_the_programs_cover() {
    check_matrix(&SUITE, FUNCTIONS, UNTESTED);
}
