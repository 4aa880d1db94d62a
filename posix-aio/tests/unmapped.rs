//! Buffers that a program unmaps while their requests are in flight.

#[path = "../../libaio/tests/support/environment.rs"]
mod environment;
#[path = "../../libaio/tests/support/mod.rs"]
mod support;

#[test]
fn what_is_mapped_after_a_buffer_has_gone_is_not_written_to() {
    let (manifest, library) = (env!("CARGO_MANIFEST_DIR"), support::library());
    let program = environment::Program::new("unmapped", manifest, &library, "libposix_aio.so");
    let expected = "reads by threads that come now: 64 of 64 right\n\
                    requests that end with EFAULT: 32 of 32\n\
                    reads after that: 64 of 64 right\n";
    assert_eq!(program.answers(), expected);
}
