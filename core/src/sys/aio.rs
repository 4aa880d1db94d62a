//! Linux AIO: its structures (linux/aio_abi.h) and calls.

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Ret, timespec};

/// `struct io_event` of libaio(3), the entry of an aio ring: 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoEvent {
    /// The `data` of the iocb.
    pub data: u64,
    /// The address of the iocb.
    pub obj: u64,
    /// A count, or a negative errno.
    pub res: i64,
    /// Always 0.
    pub res2: i64,
}

/// `struct iocb` of linux/aio_abi.h, on little-endian machines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Iocb {
    pub(crate) data: u64,
    pub(crate) key: u32,
    pub(crate) rw_flags: u32,
    pub(crate) opcode: u16,
    pub(crate) reqprio: i16,
    pub(crate) fd: u32,
    pub(crate) buf: u64,
    pub(crate) nbytes: u64,
    pub(crate) offset: i64,
    pub(crate) reserved2: u64,
    pub(crate) flags: u32,
    pub(crate) resfd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && cfg!(target_endian = "little"));

impl Iocb {
    /// A read of `len` bytes from `offset`, to address `buf`.
    pub(crate) fn pread(fd: RawFd, buf: u64, len: u64, offset: i64) -> Self {
        let opcode = command::PREAD;
        Self { opcode, fd: fd as u32, buf, nbytes: len, offset, ..Self::default() }
    }
}

pub(crate) mod command {
    pub(crate) const PREAD: u16 = 0;
    pub(crate) const PWRITE: u16 = 1;
    pub(crate) const FSYNC: u16 = 2;
    pub(crate) const FDSYNC: u16 = 3;
    pub(crate) const POLL: u16 = 5;
    pub(crate) const PREADV: u16 = 7;
    pub(crate) const PWRITEV: u16 = 8;
}

pub(crate) const FLAG_RESFD: u32 = 1;

/// io_setup(2): the context, or a negative errno.
pub(crate) fn io_setup(events: usize) -> Result<u64, i32> {
    let mut context = 0u64;
    // SAFETY: `context` is 0, as the call demands, and lives through it.
    let ret = unsafe { call!(io_setup, events, &raw mut context) };
    if ret < 0 { Err(ret as i32) } else { Ok(context) }
}

/// io_destroy(2).
pub(crate) fn io_destroy(context: u64) -> Ret {
    // SAFETY: the kernel checks the number.
    unsafe { call!(io_destroy, context) }
}

/// io_submit(2).
///
/// # Safety
/// `iocbs` points to `n` pointers to iocbs. The buffers of each iocb belong to its request until
/// the request completes.
pub(crate) unsafe fn io_submit(context: u64, n: usize, iocbs: *const u64) -> Ret {
    // SAFETY: the caller's contract.
    unsafe { call!(io_submit, context, n, iocbs) }
}

/// io_pgetevents(2); io_getevents(2) if there is no signal mask.
pub(crate) fn io_pgetevents(
    context: u64,
    min: usize,
    events: &mut [IoEvent],
    timeout: Option<Duration>,
    mask: Option<&u64>,
) -> Ret {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (n, events) = (events.len(), events.as_mut_ptr());
    let Some(mask) = mask else {
        // SAFETY: room for `n` events, and a timespec or null.
        return unsafe { call!(io_getevents, context, min, n, events, time) };
    };
    let set = (std::ptr::from_ref(mask), size_of::<u64>());
    // SAFETY: as above; `set` is the mask's address and size.
    unsafe { call!(io_pgetevents, context, min, n, events, time, &raw const set) }
}
