//! Threads with a small stack.

#[path = "../../libaio/tests/support/small_stack.rs"]
mod small_stack;
mod support;

#[test]
fn the_least_stack_of_a_thread_is_enough() {
    let test = "the_least_stack_of_a_thread_is_enough";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let arguments = small_stack::arguments(|reason| support::skipped(test, reason));
    let expected = "a ring: 0\n\
                    cached: 1 and 40 right\n\
                    direct: 1 and 40 right\n\
                    a poll: 1\n\
                    buffers: 0\n\
                    files: 0\n";
    // Calls through functions, calls that become jumps, and calls that come as signals.
    let ways = [("-luring", "never"), ("-l:liburing.a", "auto"), ("-l:liburing.a", "signals")];
    for (library, trap) in ways {
        let Some(program) = support::compile_with(library, test, "small_stack.c", folder.path())
        else {
            return;
        };
        let trap = format!("URINGLET_TRAP={trap}");
        let mut command = vec![&*trap, program.to_str().expect("text")];
        command.extend(arguments);
        let output = support::run("env", &command, folder.path(), true);
        assert!(output.status.success(), "{trap}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{trap}");
    }
}
