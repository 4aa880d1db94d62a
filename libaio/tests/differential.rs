//! The same C program on the original library and on this one: equal answers expected.
//!
//! Each program in `c/` prints `name: answer` lines. [`DIFFERENCES`] lists intended differences
//! with their reasons; an entry that no longer occurs is a failure, too.

use machinery::{Build, Difference, Occurs, Suite, differs};

#[path = "support/differential.rs"]
mod machinery;
mod matrix;
mod support;

const KEY: &str = "requests are not written to: aio_key stays what it was";
const NUMBER_REUSED: &str = "what is known about a descriptor is not asked for again per request: \
                             the call itself finds out";
const SATURATES: &str =
    "the kernel's signal reaches 2^64 - 1, and poll tells of an error; a write reaches one less";
const QUEUED: &str = "a request that has not been started can be cancelled; natively there is none";

const LEFT: &str = "what was submitted is executed by the thread that waits for it: no library \
                    sees a SIGKILL, nor a read(2) by itself";

const ADDRESS: &str = "the address is the handle";
const METHOD: &str =
    "files that the kernel has no asynchronous method for are read and written all the same";

const DIFFERENCES: &[Difference] = &[
    differs(("submit_errors", "key after submit"), ("0", "4711"), Occurs::Always, KEY),
    differs(
        ("submit_errors", "request block in read-only memory"),
        ("-EFAULT", "1"),
        Occurs::Always,
        KEY,
    ),
    differs(
        ("faults", "read, descriptor closed after use"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "write, descriptor closed after use"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "read, number is a folder since"),
        ("submit -EINVAL", "res -EISDIR"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("faults", "write, number is a folder since"),
        ("submit -EBADF", "res -EBADF"),
        Occurs::May,
        NUMBER_REUSED,
    ),
    differs(
        ("eventfd_full", "blocking, no room, the very count"),
        ("ffffffffffffffff", "fffffffffffffffe"),
        Occurs::Always,
        SATURATES,
    ),
    differs(
        ("eventfd_full", "non-blocking, no room, the very count"),
        ("ffffffffffffffff", "fffffffffffffffe"),
        Occurs::Always,
        SATURATES,
    ),
    differs(
        ("cancel", "cancel the last of them"),
        ("-EINVAL", "-EINPROGRESS"),
        Occurs::May,
        QUEUED,
    ),
    differs(
        ("cancel", "cancel with a wrong key"),
        ("-EINVAL", "-EINPROGRESS"),
        Occurs::Always,
        KEY,
    ),
    differs(
        ("cancel", "cancel with the right key"),
        ("-EINPROGRESS", "-EINVAL"),
        Occurs::Always,
        "it was cancelled with the wrong one",
    ),
    differs(
        ("moved_ring", "a read through the new address"),
        ("res 4096", "submit -EINVAL"),
        Occurs::Always,
        ADDRESS,
    ),
    differs(("moved_ring", "destroy the new address"), ("0", "-EINVAL"), Occurs::Always, ADDRESS),
    differs(("leaving", "SIGKILL"), ("yes", "no"), Occurs::May, LEFT),
    differs(("leaving", "a read(2) of the same process"), ("yes", "no"), Occurs::May, LEFT),
    differs(
        ("read_write", "read of a socket, with an offset"),
        ("res -ESPIPE", "res 3"),
        Occurs::Always,
        "the offset is ignored for sockets as it is for pipes",
    ),
    differs(
        ("read_write", "write to full"),
        ("submit -EINVAL", "res -ENOSPC"),
        Occurs::Always,
        METHOD,
    ),
    differs(("read_write", "read of proc"), ("submit -EINVAL", "res 16"), Occurs::Always, METHOD),
    differs(
        ("read_write", "write to an eventfd"),
        ("submit -EINVAL", "res 8"),
        Occurs::Always,
        METHOD,
    ),
    differs(
        ("read_write", "read of a directory"),
        ("submit -EINVAL", "res -EISDIR"),
        Occurs::Always,
        METHOD,
    ),
];

static SUITE: Suite = Suite {
    library: support::library,
    expected: "LIBAIO_EXPECTED",
    manifest: env!("CARGO_MANIFEST_DIR"),
    link: &["-laio", "-ldl"],
    builds: &[Build { suffix: "", flags: &[] }],
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
    append_order,
    bounds,
    cancel,
    cancel_thread,
    close_all,
    close_in_flight,
    destroy,
    destroy_race,
    ends,
    eintr,
    enospc,
    event_loop,
    eventfd,
    eventfd_full,
    faults,
    fork,
    fork_threads,
    fsync,
    getevents,
    gone,
    handles,
    house,
    ioprio,
    jumps,
    leaks,
    leaving,
    little_memory,
    moved_ring,
    old_versions,
    own_malloc,
    own_table,
    partial_submit,
    pgetevents,
    poll,
    poll_files,
    poll_visible,
    privileges,
    queue_legacy,
    read_write,
    ring,
    rw_flags,
    setup_destroy,
    stream_writes,
    submit_errors,
    syscall,
    threads,
    vectored,
    vfork,
}

/// On this engine, a thread of the engine counts up the eventfds of requests if no thread of the
/// program waits.
#[test]
fn on_the_engine_posix_aio() {
    for name in ["eventfd", "eventfd_full", "ring", "read_write"] {
        SUITE.check_on("posix_aio", name);
    }
}

/// A number is closed, or gets another file, while requests on it are in flight. These two engines,
/// which every machine has, hold the files of requests in other ways than the default one.
#[test]
fn closing_in_flight_on_other_engines() {
    for engine in ["workers", "posix_aio"] {
        SUITE.check_on(engine, "close_in_flight");
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
