//! The same C program on the C library's POSIX AIO and on this drop-in: equal answers expected.
//!
//! Each program in `c/` prints `name: answer` lines. Where an answer differs on purpose,
//! [`DIFFERENCES`] says why. An entry that no longer occurs is a failure, too. The answers make up
//! the matrix in the README.

use machinery::{Build, Difference, Occurs, Suite, differs};

mod library;
#[path = "../../libaio/tests/support/differential.rs"]
mod machinery;
mod matrix;

const THREADS: &str =
    "natively at most 20 threads (aio_init) work, and one that waits for data is one of them";
const OWN: &str = "natively it is left to a thread that only the parent has";
const GONE: &str =
    "the parent's requests are not known in a child, where nobody would complete them";
const PARALLEL: &str = "requests on regular files run side by side; which of two that overlap \
                        comes last is not promised";
const APART: &str = "a read that waits must not keep the answer from being written";
const INLINE: &str = "where no thread can be started, the request is executed by the call itself";

const DIFFERENCES: &[Difference] = &[
    differs(
        ("house", "a read of a file behind 63 reads of empty pipes"),
        ("EINPROGRESS", "return 512"),
        Occurs::Always,
        THREADS,
    ),
    differs(
        ("order", "of 64 writes to one place the last one stays, 50 times"),
        ("yes", "no"),
        Occurs::May,
        PARALLEL,
    ),
    differs(
        ("order", "a write to a socket behind a read of it that waits"),
        ("EINPROGRESS", "return 5"),
        Occurs::Always,
        APART,
    ),
    differs(
        ("fork", "cancel the parent's running request"),
        ("AIO_NOTCANCELED", "AIO_ALLDONE"),
        Occurs::Always,
        GONE,
    ),
    differs(
        ("fork", "cancel the parent's queued request"),
        ("AIO_CANCELED", "AIO_ALLDONE"),
        Occurs::Always,
        GONE,
    ),
    differs(("fork", "a wait for the parent's"), ("-EAGAIN", "0"), Occurs::Always, GONE),
    differs(
        ("fork", "a child while the parent's helper idles"),
        ("EINPROGRESS", "return 16"),
        Occurs::Always,
        OWN,
    ),
    differs(
        ("resources", "a read without a thread"),
        ("refused -EAGAIN, then error EAGAIN, return 0", "return 16"),
        Occurs::Always,
        INLINE,
    ),
    differs(
        ("resources", "a write without a thread"),
        ("refused -EAGAIN, then error EAGAIN, return 0", "return 16"),
        Occurs::Always,
        INLINE,
    ),
    differs(
        ("resources", "a sync without a thread"),
        ("refused -EAGAIN, then error EAGAIN, return 0", "return 0"),
        Occurs::Always,
        INLINE,
    ),
    differs(
        ("resources", "a list that waits, without a thread"),
        ("-EAGAIN, then error EAGAIN, return 0", "0, then return 16"),
        Occurs::Always,
        INLINE,
    ),
    differs(
        ("resources", "a list that does not wait, without a thread"),
        ("-EAGAIN, then error EAGAIN, return 0", "0, then return 16"),
        Occurs::Always,
        INLINE,
    ),
];

static SUITE: Suite = Suite {
    library: library::path,
    expected: "POSIX_AIO_EXPECTED",
    manifest: env!("CARGO_MANIFEST_DIR"),
    link: &["-ldl"],
    builds: &[
        Build { suffix: "", flags: &[] },
        // With these flags, every function that a program calls is its 64 variant.
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
    event_loop,
    fork,
    freed,
    fsync,
    house,
    init,
    leaks,
    little_memory,
    lio_nowait,
    lio_wait,
    names,
    notify_signal,
    notify_thread,
    old_versions,
    order,
    own_malloc,
    privileges,
    read_write,
    resources,
    state,
    stream_writes,
    suspend,
    suspend_threads,
}

/// Runs on the C library's own aio. The threads of that aio take no signal of the program, and
/// serve requests whether a thread waits or not.
#[test]
fn on_the_engine_posix_aio() {
    for name in ["notify_signal", "lio_nowait", "order", "suspend_threads"] {
        SUITE.check_on("posix_aio", name);
    }
}

#[test]
fn every_program_is_in_the_list() {
    SUITE.check_list();
}

#[test]
fn the_matrix_is_what_the_programs_cover() {
    matrix::MATRIX.check(&SUITE);
}
