//! Linux AIO by its raw system calls.

#![allow(unsafe_code)]

use super::last_errno;
use crate::bench::drive::{Queue, Request};
use crate::bench::manner::EventLoop;
use crate::bench::workload::Operation;
use crate::machine::sysctl;
use std::io::Error;
use std::os::fd::AsRawFd as _;
use std::ptr;

/// `struct iocb` of linux/aio_abi.h. The order of its second and third field depends on the byte
/// order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: i32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    reqprio: i16,
    fd: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_FSYNC: u16 = 2;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

/// A Linux AIO context.
pub struct Libaio {
    context: libc::c_ulong,
    iocbs: Vec<Iocb>,
    prepared: Vec<*mut Iocb>,
    events: Vec<IoEvent>,
    ready: usize,
    /// The eventfd to count up at each completion.
    eventfd: Option<u32>,
}

// SAFETY: the pointers in `prepared` point into `iocbs`, which moves with them. The kernel lets any
// thread use a context.
unsafe impl Send for Libaio {}

impl Libaio {
    /// # Errors
    /// The reason of the kernel's refusal.
    pub fn new(depth: usize) -> Result<Self, String> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: `context` is 0 as io_setup(2) demands, and lives through the call.
        if unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) } < 0 {
            let error = Error::last_os_error();
            let cause = match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    let of = |name| sysctl(name).unwrap_or_default();
                    let (used, most) = (of("fs/aio-nr"), of("fs/aio-max-nr"));
                    format!(
                        " (fs.aio-max-nr is one number for the whole host: {used} of {most} used)"
                    )
                }
                Some(libc::ENOSYS | libc::EPERM) => " (no AIO in this kernel, or a sandbox)".into(),
                _ => String::new(),
            };
            return Err(format!("io_setup refused: {error}{cause}"));
        }
        Ok(Self {
            context,
            iocbs: vec![Iocb::default(); depth],
            prepared: Vec::with_capacity(depth),
            events: vec![IoEvent::default(); depth],
            ready: 0,
            eventfd: None,
        })
    }

    /// Waits for at least `least` events, and takes all that are ready. A signal ends the wait
    /// without an event.
    #[inline]
    fn get(&mut self, least: usize) -> std::io::Result<()> {
        let (number, context, most) = (libc::SYS_io_getevents, self.context, self.events.len());
        let events = self.events.as_mut_ptr();
        let none = ptr::null_mut::<libc::timespec>();
        // SAFETY: `events` has room for `most` events.
        let got = unsafe { libc::syscall(number, context, least, most, events, none) };
        match usize::try_from(got) {
            Ok(0) if least > 0 => return Err(Error::other("io_getevents gave no event")),
            Ok(got) => self.ready = got,
            // A signal (such as Ctrl-C): the loop continues.
            Err(_) if last_errno() == i64::from(libc::EINTR) => {}
            Err(_) => return Err(Error::last_os_error()),
        }
        Ok(())
    }
}

impl Queue for Libaio {
    #[inline]
    unsafe fn prepare(&mut self, request: Request) {
        let Request { fd, operation, buffer, offset, slot } = request;
        let iocb = &raw mut self.iocbs[slot];
        let whole_file = Iocb {
            data: slot as u64,
            opcode: IOCB_CMD_FSYNC,
            fd: fd.cast_unsigned(),
            flags: if self.eventfd.is_some() { IOCB_FLAG_RESFD } else { 0 },
            resfd: self.eventfd.unwrap_or(0),
            ..Iocb::default()
        };
        let part = |opcode| Iocb {
            opcode,
            buf: buffer.cast::<u8>() as u64,
            nbytes: buffer.len() as u64,
            offset: offset.cast_signed(),
            ..whole_file
        };
        let filled = match operation {
            Operation::Read => part(IOCB_CMD_PREAD),
            Operation::Write => part(IOCB_CMD_PWRITE),
            // The kernel refuses an fsync with a buffer or an offset.
            Operation::Fsync => whole_file,
        };
        // SAFETY: the pointer was just made from an element of the vector.
        unsafe { iocb.write(filled) };
        self.prepared.push(iocb);
    }

    #[inline]
    fn submit(&mut self) -> std::io::Result<()> {
        let mut rest = self.prepared.as_mut_slice();
        while !rest.is_empty() {
            // SAFETY: `rest` points to pointers to filled iocbs, which the kernel copies. The
            // callers of `prepare` keep their buffers valid.
            let accepted = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_mut_ptr())
            };
            match usize::try_from(accepted) {
                Ok(0) => return Err(Error::other("io_submit accepted nothing")),
                Ok(accepted) => rest = &mut rest[accepted..],
                Err(_) => return Err(Error::last_os_error()),
            }
        }
        self.prepared.clear();
        Ok(())
    }

    #[inline]
    fn wait(&mut self) -> std::io::Result<()> {
        self.get(1)
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        for event in &self.events[..self.ready] {
            take(event.data as usize, event.res);
        }
        self.ready = 0;
    }

    fn event_loop(&mut self) -> Result<EventLoop, String> {
        let event_loop = EventLoop::new()?;
        self.eventfd = Some(event_loop.eventfd().as_raw_fd().cast_unsigned());
        Ok(event_loop)
    }

    #[inline]
    fn collect(&mut self) -> std::io::Result<()> {
        self.get(0)
    }
}

impl Drop for Libaio {
    fn drop(&mut self) {
        // SAFETY: made by io_setup and destroyed once. The call waits for what is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_aio_abi() {
        assert_eq!((size_of::<Iocb>(), size_of::<IoEvent>()), (64, 32));
        assert_eq!((offset_of!(Iocb, opcode), offset_of!(Iocb, fd)), (16, 20));
        assert_eq!((offset_of!(Iocb, buf), offset_of!(Iocb, offset)), (24, 40));
        assert_eq!((offset_of!(Iocb, flags), offset_of!(Iocb, resfd)), (56, 60));
    }
}
