//! Environment variables.
#![allow(unsafe_code)]

use std::ffi::OsString;

/// The value of one of uringlet's variables. A program that gains privileges when it is started
/// gets `None` (AT_SECURE, getauxval(3)). The user who starts such a program must not change what
/// it does.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: the call takes and returns numbers, and touches no memory of the program.
    let gains_privileges = !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if gains_privileges { None } else { std::env::var_os(name) }
}
