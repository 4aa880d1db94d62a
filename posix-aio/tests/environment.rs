//! The environment variables, in programs that are linked to the library.

#[path = "../../libaio/tests/support/environment.rs"]
mod environment;
#[path = "../../libaio/tests/support/mod.rs"]
mod support;

fn program() -> environment::Program {
    let manifest = env!("CARGO_MANIFEST_DIR");
    environment::Program::new("environment", manifest, &support::library(), "libposix_aio.so")
}

#[test]
fn a_program_that_clears_its_environment_has_been_heard() {
    program().keeps_what_it_was_told_at_its_start();
}

#[test]
fn a_setuid_program_is_told_nothing() {
    if let Some(reason) = program().is_told_nothing_where_it_gains_privileges() {
        support::skipped("a_setuid_program_is_told_nothing", reason);
    }
}
