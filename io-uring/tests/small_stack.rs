//! Threads with a small stack.

#[path = "../../libaio/tests/support/small_stack.rs"]
mod small_stack;
mod support;

#[test]
fn the_least_stack_of_a_thread_is_enough() {
    let test = "the_least_stack_of_a_thread_is_enough";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = support::compile(test, "small_stack.c", folder.path()) else { return };
    let arguments = small_stack::arguments(|reason| support::skipped(test, reason));
    let output = support::run(program.to_str().expect("text"), arguments, folder.path(), true);
    let expected = "a ring: 0\n\
                    cached: 1 and 40 right\n\
                    direct: 1 and 40 right\n\
                    a poll: 1\n\
                    buffers: 0\n\
                    files: 0\n";
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
