//! One suite for every engine: `URINGLET_TEST_ENGINE` is the engine (`auto` by default), and
//! `common::context` or `common::builder` makes every context here. `matrix.rs` runs the suite for
//! all engines, in sandboxes too.
//!
//! [`EXCEPTIONS`] lists tests that mean nothing on an engine, with the reason. On that engine they
//! are skipped, with a message.
#![allow(unsafe_code)]

mod common;

mod bad_input;
mod coming_and_going;
mod matrix;
mod operations;
mod promises;
mod random_programs;
mod reused;
mod room;
mod stress;
mod twins;

/// A test, the engines on which it means nothing, and the reason.
pub const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    (
        "promises::polls::a_poll_sees_each_buffered_write_that_was_submitted_before_it",
        &["io_uring", "posix_aio", "faulty"],
        "they are executed by threads of the kernel's or the C library's, or held back as a fault",
    ),
    (
        "promises::polls::a_poll_sees_the_first_transfers_of_a_new_descriptor_beside_busy_threads",
        &["io_uring", "posix_aio", "faulty"],
        "they are executed by threads of the kernel's or the C library's, or held back as a fault",
    ),
    (
        "promises::stuck::a_blocked_holder_holds_up_nobody_when_nobody_waits",
        &["io_uring", "linux_aio", "posix_aio"],
        "the baton is not used: requests of files are handed over, and what blocks inside that \
         blocks its batch",
    ),
    (
        "promises::stuck::a_blocked_waiter_or_worker_loses_the_baton",
        &["io_uring", "linux_aio", "posix_aio"],
        "the baton is not used: requests of files are handed over, and what blocks inside that \
         blocks its batch",
    ),
    (
        "promises::cold::a_cold_read_that_is_stuck_holds_up_no_other",
        &["io_uring", "linux_aio", "posix_aio"],
        "requests of files are handed over, and what blocks inside that blocks its batch",
    ),
    (
        "promises::fork::a_child_of_a_fork_gets_einval_and_can_make_its_own",
        &["posix_aio"],
        "glibc's aio counts on threads that a child does not have: the engine is refused there",
    ),
    (
        "promises::threads::an_idle_context_uses_no_cpu",
        &["posix_aio"],
        "the C library's threads bear our names and end when idle for a second, which hides \
         their time",
    ),
    (
        "bad_input::entries_out_of_range_are_refused_and_the_bounds_work",
        &["linux_aio"],
        "the largest context takes all that fs.aio-max-nr allows from the tests beside it",
    ),
    (
        "coming_and_going::four_thousand_contexts_live_at_a_time",
        &["linux_aio"],
        "they take more than fs.aio-max-nr allows",
    ),
    (
        "coming_and_going::ten_thousand_contexts_leave_nothing_behind",
        &["linux_aio"],
        "the kernel takes 10 ms to end a context of its own",
    ),
    (
        "coming_and_going::four_thousand_contexts_live_at_a_time",
        &["posix_aio"],
        "the C library keeps a thread of its own for each",
    ),
    (
        "coming_and_going::four_thousand_contexts_live_at_a_time",
        &["faulty"],
        "a thread for each context lets go of the requests that are held back as a fault",
    ),
];
