//! The C library's aio(7), with a pool of duplicated descriptors per file (published as "fd pool", 2008).
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Backend, Done};
use crate::config::EngineKind;
use crate::instance::Instance;
use crate::queue::SleepEnd;

#[derive(Debug)]
pub(super) struct PosixAio;

impl PosixAio {
    pub(super) fn new(_slots: usize, _pool: usize) -> Result<Self, i32> {
        Err(-libc::ENOSYS)
    }
}

impl Backend for PosixAio {
    fn kind(&self) -> EngineKind {
        EngineKind::PosixAio
    }
    fn room(&self) -> usize {
        0
    }
    fn submit(&self, _: &Instance, _: &[u32], _: bool) -> (usize, i32) {
        (0, -libc::ENOSYS)
    }
    fn harvest(&self, _: &Instance, _: &mut [Done]) -> usize {
        0
    }
    fn sleep(&self, _: &Instance, _: usize, _: Option<Duration>, _: Option<u64>, _: &mut [Done]) -> (usize, SleepEnd) {
        (0, SleepEnd::Again)
    }
    fn wake_fd(&self) -> RawFd {
        -1
    }
    fn events(&self) -> RawFd {
        -1
    }
}
