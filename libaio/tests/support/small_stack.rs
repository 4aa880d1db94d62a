//! Stacks of the threads that `house/small_stack.c` makes.

/// The program's arguments. There is none for the smallest stack. In a debug build, whose frames
/// are larger, there is a length in KiB, and `skipped` gets a message.
pub fn arguments(skipped: impl FnOnce(&str)) -> &'static [&'static str] {
    if cfg!(debug_assertions) {
        skipped("frames of debug builds are larger: with 64 KiB instead of the least stack");
        return &["64"];
    }
    &[]
}
