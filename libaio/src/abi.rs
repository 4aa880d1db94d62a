//! The layouts and numbers of libaio.h and linux/aio_abi.h.

/// `struct iocb`, 64 bytes. Packed, so that one at any address can be read field by field.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Iocb {
    pub(crate) data: u64,
    /// Reserved for the kernel; not used.
    pub(crate) key: u32,
    pub(crate) rw_flags: u32,
    pub(crate) opcode: u16,
    pub(crate) reqprio: i16,
    pub(crate) fildes: u32,
    /// The address of the buffer or the iovecs. For a poll: the mask of the requested events.
    pub(crate) buf: u64,
    /// The length of the buffer in bytes, or the number of iovecs.
    pub(crate) nbytes: u64,
    pub(crate) offset: i64,
    pub(crate) reserved2: u64,
    pub(crate) flags: u32,
    pub(crate) resfd: u32,
}

pub(crate) const CMD_PREAD: u16 = 0;
pub(crate) const CMD_PWRITE: u16 = 1;
pub(crate) const CMD_FSYNC: u16 = 2;
pub(crate) const CMD_FDSYNC: u16 = 3;
pub(crate) const CMD_POLL: u16 = 5;
pub(crate) const CMD_PREADV: u16 = 7;
pub(crate) const CMD_PWRITEV: u16 = 8;

pub(crate) const FLAG_RESFD: u32 = 1;

/// Flag of an iocb: its `reqprio` is an I/O priority (ioprio_set(2)).
pub(crate) const FLAG_IOPRIO: u32 = 2;

/// The `RWF_*` flags that are accepted (preadv2(2)): HIPRI, DSYNC, SYNC, NOWAIT, APPEND, NOAPPEND,
/// DONTCACHE, NOSIGNAL.
pub(crate) const RWF_KNOWN: u32 = 0x1bf;
/// Since Linux 6.18.
pub(crate) const RWF_NOSIGNAL: u32 = 0x100;
pub(crate) const RWF_APPEND: u32 = 0x10;
pub(crate) const RWF_NOAPPEND: u32 = 0x20;

/// The header of an aio ring: `io_context_t` points to it. Events (`struct io_event`) follow.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RingHeader {
    pub(crate) id: u32,
    /// The number of places for events, one of which stays empty.
    pub(crate) nr: u32,
    pub(crate) head: std::sync::atomic::AtomicU32,
    pub(crate) tail: std::sync::atomic::AtomicU32,
    pub(crate) magic: u32,
    pub(crate) compat_features: u32,
    pub(crate) incompat_features: u32,
    pub(crate) header_length: u32,
}

pub(crate) const RING_MAGIC: u32 = 0xa10a_10a1;

#[cfg(test)]
mod tests {
    use super::{Iocb, RingHeader};
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<Iocb>(), 64);
        let offsets = [
            (offset_of!(Iocb, data), 0),
            (offset_of!(Iocb, key), 8),
            (offset_of!(Iocb, rw_flags), 12),
            (offset_of!(Iocb, opcode), 16),
            (offset_of!(Iocb, reqprio), 18),
            (offset_of!(Iocb, fildes), 20),
            (offset_of!(Iocb, buf), 24),
            (offset_of!(Iocb, nbytes), 32),
            (offset_of!(Iocb, offset), 40),
            (offset_of!(Iocb, reserved2), 48),
            (offset_of!(Iocb, flags), 56),
            (offset_of!(Iocb, resfd), 60),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
        assert_eq!(size_of::<RingHeader>(), 32);
        assert_eq!(offset_of!(RingHeader, tail), 12);
        assert_eq!(offset_of!(RingHeader, header_length), 28);
        assert_eq!(size_of::<uringlet::front::IoEvent>(), 32);
    }
}
