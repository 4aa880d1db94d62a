//! Test programs, which report their own errors.

use crate::support::{bounded, compile, crate_folder, finished, program, skipped, tree};

/// The exit status for "cannot be tested here"; the reason is on its stderr.
const SKIPPED: i32 = 77;
/// The engines that move data.
const ENGINES: [&str; 4] = ["auto", "workers", "linux_aio", "io_uring"];

/// Runs a program on each engine.
#[track_caller]
fn check(name: &str) {
    let program = compile(&crate_folder().join(format!("tests/c/{name}.c")));
    for engine in ENGINES {
        let ran = bounded(&program).env("URINGLET_TEST_ENGINE", engine).output();
        let ran = ran.expect("timeout(1)");
        if ran.status.code() == Some(SKIPPED) {
            let reason = String::from_utf8_lossy(&ran.stderr);
            skipped(&format!("{name}.c on {engine}"), reason.trim());
            continue;
        }
        finished(&format!("{name}.c on {engine}"), &ran);
    }
}

#[test]
fn every_operation_has_the_result_of_its_call() {
    check("operations");
}

#[test]
fn bad_input_is_answered_with_an_errno() {
    check("bad_input");
}

#[test]
fn queues_have_room_and_contexts_an_end() {
    check("queue");
}

#[test]
fn the_event_descriptor_is_readable_while_completions_wait() {
    check("event_fd");
}

#[test]
fn another_thread_is_told_that_the_context_is_busy() {
    check("threads");
}

#[test]
fn contexts_leave_nothing_behind() {
    check("leaks");
}

#[test]
fn inline_functions_have_exported_twins() {
    let ran = program("tests/c/twins.c").arg(tree().shared_library()).output();
    let text = finished("twins", &ran.expect("timeout(1)"));
    assert_eq!(text, "25 twins\n");
}
