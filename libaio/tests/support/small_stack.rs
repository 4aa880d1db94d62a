//! Stacks of the threads that `house/small_stack.c` makes.

/// What the program is told: nothing, for the least stack that there is. In a debug build, the
/// length of one that has room for its frames, in KiB; said aloud.
pub fn arguments(skipped: impl FnOnce(&str)) -> &'static [&'static str] {
    if cfg!(debug_assertions) {
        skipped("frames of debug builds are larger: with 64 KiB instead of the least stack");
        return &["64"];
    }
    &[]
}
