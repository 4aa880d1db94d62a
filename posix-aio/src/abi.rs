//! The layouts and numbers of the C library's aio.h, on 64-bit machines.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicU64};

/// `struct aiocb`, 168 bytes. The same as `struct aiocb64`.
#[repr(C)]
#[derive(Debug)]
pub struct Aiocb {
    pub(crate) fildes: c_int,
    pub(crate) lio_opcode: c_int,
    pub(crate) reqprio: c_int,
    pub(crate) buf: *mut c_void,
    pub(crate) nbytes: usize,
    pub(crate) sigevent: Sigevent,
    /// Reserved for the C library; here the process that submitted the request ([`crate::state`]).
    pub(crate) owner: AtomicU64,
    unused: [MaybeUninit<c_int>; 2],
    /// 0, `EINPROGRESS`, or an errno.
    pub(crate) error: AtomicI32,
    pub(crate) value: AtomicIsize,
    pub(crate) offset: i64,
    reserved: [MaybeUninit<u8>; 32],
}

/// `struct sigevent`, 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sigevent {
    /// `union sigval`.
    pub(crate) value: usize,
    pub(crate) signo: c_int,
    pub(crate) notify: c_int,
    pub(crate) function: Option<unsafe extern "C-unwind" fn(usize)>,
    pub(crate) attributes: *const libc::pthread_attr_t,
    pad: [MaybeUninit<usize>; 4],
}

pub(crate) const LIO_READ: c_int = 0;
pub(crate) const LIO_WRITE: c_int = 1;
pub(crate) const LIO_NOP: c_int = 2;
/// `aio_lio_opcode` of a request of aio_fsync(3), with `O_DSYNC` and with `O_SYNC`.
pub(crate) const LIO_DSYNC: c_int = 3;
pub(crate) const LIO_SYNC: c_int = 4;

pub(crate) const LIO_WAIT: c_int = 0;
pub(crate) const LIO_NOWAIT: c_int = 1;

pub(crate) const AIO_CANCELED: c_int = 0;
pub(crate) const AIO_NOTCANCELED: c_int = 1;
pub(crate) const AIO_ALLDONE: c_int = 2;

/// The maximum `aio_reqprio` of a request: `sysconf(_SC_AIO_PRIO_DELTA_MAX)`.
pub(crate) const PRIO_DELTA_MAX: c_int = 20;

/// `SI_ASYNCIO` of sigaction(2).
pub(crate) const SI_ASYNCIO: c_int = -4;

#[cfg(test)]
mod tests {
    use super::{Aiocb, Sigevent};
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<Aiocb>(), size_of::<libc::aiocb>());
        assert_eq!((size_of::<Aiocb>(), size_of::<Sigevent>()), (168, 64));
        let offsets = [
            (offset_of!(Aiocb, lio_opcode), offset_of!(libc::aiocb, aio_lio_opcode)),
            (offset_of!(Aiocb, reqprio), offset_of!(libc::aiocb, aio_reqprio)),
            (offset_of!(Aiocb, buf), offset_of!(libc::aiocb, aio_buf)),
            (offset_of!(Aiocb, nbytes), offset_of!(libc::aiocb, aio_nbytes)),
            (offset_of!(Aiocb, sigevent), offset_of!(libc::aiocb, aio_sigevent)),
            (offset_of!(Aiocb, offset), offset_of!(libc::aiocb, aio_offset)),
            (offset_of!(Aiocb, error), 112),
            (offset_of!(Aiocb, value), 120),
            (offset_of!(Sigevent, signo), offset_of!(libc::sigevent, sigev_signo)),
            (offset_of!(Sigevent, notify), offset_of!(libc::sigevent, sigev_notify)),
            (offset_of!(Sigevent, function), 16),
            (offset_of!(Sigevent, attributes), 24),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
    }
}
