//! Values too large for a small stack, built in place.
#![allow(unsafe_code)]

/// Builds a value in place. The stack needs room for that one value only, and only during this
/// call.
///
/// # Safety
/// `at` is valid for a write, and aligned.
#[inline(never)]
pub(crate) unsafe fn put<T>(at: *mut T, make: impl FnOnce() -> T) {
    // SAFETY: the caller's contract.
    unsafe { at.write(make()) }
}

/// Builds each field of a struct in place, in the order given; `with` names fields that were built
/// before. Does not compile unless every field is named.
///
/// An unsafe call: `at` is valid for writes, and aligned.
macro_rules! fill {
    ($at:expr, $type:ident with { $($made:ident),* } {
        $($(#[$attribute:meta])* $field:ident: $value:expr,)*
    }) => {{
        let at: *mut $type = $at;
        let _every_field = |whole: &$type| {
            let $type { $($made: _,)* $($(#[$attribute])* $field: _,)* } = whole;
        };
        $($(#[$attribute])* $crate::place::put(&raw mut (*at).$field, || $value);)*
    }};
}
pub(crate) use fill;
