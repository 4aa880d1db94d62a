//! The structures of Linux AIO (linux/aio_abi.h).

use std::os::fd::RawFd;

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
    /// A read of `len` bytes from `offset` on, to address `buf`.
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
