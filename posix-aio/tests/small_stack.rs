//! Threads with a small stack.

#[path = "../../libaio/tests/support/environment.rs"]
mod environment;
#[path = "../../libaio/tests/support/small_stack.rs"]
mod small_stack;
#[path = "../../libaio/tests/support/mod.rs"]
mod support;

#[test]
fn the_least_stack_of_a_thread_is_enough() {
    let test = "the_least_stack_of_a_thread_is_enough";
    let (manifest, library) = (env!("CARGO_MANIFEST_DIR"), support::library());
    let program = environment::Program::new("small_stack", manifest, &library, "libposix_aio.so");
    let arguments = small_stack::arguments(|reason| support::skipped(test, reason));
    let expected = "cached: 1 and 40 right\n\
                    direct: 1 and 40 right\n";
    assert_eq!(program.answers_to(arguments), expected);
}
