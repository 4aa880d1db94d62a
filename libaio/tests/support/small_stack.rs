//! Stacks of the threads that `house/small_stack.c` makes.

/// The program's arguments: nothing, for the smallest stack. In a debug build, a length in KiB with
/// room for its frames, with a message.
pub fn arguments(skipped: impl FnOnce(&str)) -> &'static [&'static str] {
    if cfg!(debug_assertions) {
        skipped("frames of debug builds are larger: with 64 KiB instead of the least stack");
        return &["64"];
    }
    &[]
}
