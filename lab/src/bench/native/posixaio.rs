//! POSIX AIO by the C library's own functions (aio(7)).

#![allow(unsafe_code)]

use crate::bench::drive::{Queue, Request, unless_interrupted};
use crate::bench::manner::EventLoop;
use crate::bench::workload::Operation;
use std::cell::UnsafeCell;
use std::io::Error;
use std::mem::zeroed;
use std::ptr;

/// One control block for each slot. A process has one instance of POSIX AIO, not one for each
/// queue.
pub struct Posixaio {
    /// Written to by the C library while a request is in flight.
    blocks: Vec<UnsafeCell<libc::aiocb>>,
    /// Slot and operation of each prepared request.
    prepared: Vec<(usize, Operation)>,
    /// The list for aio_suspend(3): everything in flight.
    list: Vec<*const libc::aiocb>,
    /// The slots of `list`.
    slots: Vec<usize>,
}

impl Posixaio {
    /// # Errors
    /// Never fails: a refusal shows at the first request.
    #[allow(clippy::unnecessary_wraps, reason = "as the other engines")]
    pub fn new(depth: usize) -> Result<Self, String> {
        size_once();
        // SAFETY: zeroes are a valid aiocb: integers and pointers.
        let block = || UnsafeCell::new(unsafe { zeroed() });
        Ok(Self {
            blocks: std::iter::repeat_with(block).take(depth).collect(),
            prepared: Vec::with_capacity(depth),
            list: Vec::with_capacity(depth),
            slots: Vec::with_capacity(depth),
        })
    }
}

/// `struct aioinit` of the GNU C library's aio.h, which the libc crate does not have.
#[cfg(target_env = "gnu")]
#[repr(C)]
struct AioInit {
    threads: libc::c_int,
    num: libc::c_int,
    locks: libc::c_int,
    usedba: libc::c_int,
    debug: libc::c_int,
    numusers: libc::c_int,
    idle_time: libc::c_int,
    reserved: libc::c_int,
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn aio_init(init: *const AioInit);
}

/// Raises the C library's maximum number of threads, one for each descriptor, from 20 to 128. A new
/// maximum has an effect only before the first request of the process. So 128 must also be enough
/// for the 64 duplicates of uringlet's engine `posix_aio`. The native engine needs one thread only.
fn size_once() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: zeroes are a valid AioInit: integers.
            let init: AioInit = unsafe { zeroed() };
            let init = AioInit { threads: 128, num: 4096, idle_time: 1, ..init };
            // SAFETY: `init` is laid out as aio.h says, and only read.
            unsafe { aio_init(&raw const init) };
        });
    }
}

impl Queue for Posixaio {
    #[inline]
    unsafe fn prepare(&mut self, request: Request) {
        let Request { fd, operation, buffer, offset, slot } = request;
        let block = self.blocks[slot].get();
        // SAFETY: the slot is not in flight, so nothing else uses its block. Only public fields are
        // set: the C library's private fields keep their values.
        unsafe {
            (*block).aio_fildes = fd;
            (*block).aio_buf = buffer.cast();
            (*block).aio_nbytes = buffer.len();
            (*block).aio_offset = offset.cast_signed();
            (*block).aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        }
        self.prepared.push((slot, operation));
    }

    #[inline]
    fn submit(&mut self) -> std::io::Result<()> {
        for (slot, operation) in self.prepared.drain(..) {
            let block = self.blocks[slot].get();
            // SAFETY: the block is filled, and neither moved nor freed before the request is
            // complete (drop waits). The caller of `prepare` keeps the buffer valid.
            let result = unsafe {
                match operation {
                    Operation::Read => libc::aio_read(block),
                    Operation::Write => libc::aio_write(block),
                    Operation::Fsync => libc::aio_fsync(libc::O_SYNC, block),
                }
            };
            if result != 0 {
                return Err(Error::last_os_error());
            }
            self.list.push(block);
            self.slots.push(slot);
        }
        Ok(())
    }

    #[inline]
    fn wait(&mut self) -> std::io::Result<()> {
        let count = i32::try_from(self.list.len()).expect("a depth is at most 4096");
        // SAFETY: `list` has `count` pointers to blocks of requests that were handed over.
        match unsafe { libc::aio_suspend(self.list.as_ptr(), count, ptr::null()) } {
            0 => Ok(()),
            _ => unless_interrupted::<()>(Err(Error::last_os_error())),
        }
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        let mut at = 0;
        while at < self.list.len() {
            let block = self.list[at];
            // SAFETY: the block's request was handed over and not given back yet.
            match unsafe { libc::aio_error(block) } {
                libc::EINPROGRESS => at += 1,
                errno => {
                    // SAFETY: the request is complete; this is called once for each, and the
                    // pointer was made from one that may be written through.
                    let result = unsafe { libc::aio_return(block.cast_mut()) };
                    self.list.swap_remove(at);
                    let slot = self.slots.swap_remove(at);
                    take(slot, if errno == 0 { result as i64 } else { -i64::from(errno) });
                }
            }
        }
    }

    fn event_loop(&mut self) -> Result<EventLoop, String> {
        Err("aio(7) counts no eventfd up".into())
    }
}

impl Drop for Posixaio {
    /// Waits for all requests: until then, the C library uses their blocks and buffers.
    fn drop(&mut self) {
        self.prepared.clear();
        while !self.list.is_empty() {
            match self.wait() {
                Ok(()) => self.reap(|_, _| ()),
                // Waiting is no longer possible, and the C library may still use the buffers.
                Err(_) => std::process::abort(),
            }
        }
    }
}
