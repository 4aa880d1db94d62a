//! Buffers that a program unmaps while their requests are in flight.

#[path = "support/environment.rs"]
mod environment;
mod support;

#[test]
fn what_is_mapped_after_a_buffer_has_gone_is_not_written_to() {
    let (manifest, library) = (env!("CARGO_MANIFEST_DIR"), support::library());
    let program = environment::Program::new("unmapped", manifest, &library, "libaio.so.1");
    let expected = "contexts that are made and work: 96 of 96\n\
                    requests that end with EFAULT: 32 of 32\n\
                    contexts that work and go: 96 and 96 of 96\n";
    assert_eq!(program.answers(), expected);
}
