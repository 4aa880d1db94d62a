//! Threads with little stack.

#[path = "support/environment.rs"]
mod environment;
#[path = "support/small_stack.rs"]
mod small_stack;
mod support;

#[test]
fn the_least_stack_of_a_thread_is_enough() {
    let test = "the_least_stack_of_a_thread_is_enough";
    let (manifest, library) = (env!("CARGO_MANIFEST_DIR"), support::library());
    let program = environment::Program::new("small_stack", manifest, &library, "libaio.so.1");
    let arguments = small_stack::arguments(|reason| support::skipped(test, reason));
    let expected = "io_setup: 0\n\
                    cached: 1 and 40 right\n\
                    direct: 1 and 40 right\n\
                    io_destroy: 0\n";
    assert_eq!(program.answers_to(arguments), expected);
}
