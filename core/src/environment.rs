//! Environment variables.
#![allow(unsafe_code)]

use std::ffi::OsString;

/// A variable of uringlet's. A program that gains privileges when it is started has none
/// (AT_SECURE, getauxval(3)). The user who starts such a program must not change what it does.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: asks for a number.
    let gains_privileges = !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if gains_privileges { None } else { std::env::var_os(name) }
}
