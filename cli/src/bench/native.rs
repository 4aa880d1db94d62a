//! The native sides: the shortest honest loops over pread/pwrite, Linux AIO and io_uring.
//!
//! They make their own system calls and share nothing with uringlet, so that its overhead shows.
//! Neither registers files or buffers: no engine here does.

#![allow(unsafe_code)]

use super::engine::{Figure, Meter, Queue, check};
use super::workload::Job;
use crate::machine::sysctl;
use io_uring::{opcode, types};
use std::io::Error;
use std::os::fd::RawFd;
use std::ptr;

/// Plain pread(2) or pwrite(2), one after the other.
///
/// # Errors
/// A request failed or was short.
pub fn psync(job: &mut Job<'_>) -> Result<Figure, String> {
    let buffer = job.buffers.slot(0);
    let (start, len) = (buffer.cast(), buffer.len());
    let mut done = 0;
    let mut meter = Meter::start(job.duration, job.stop);
    while meter.goes_on(done)
        && let Some(offset) = job.offsets.next()
    {
        job.last[0] = Some(offset);
        let offset = offset.cast_signed();
        // SAFETY: the buffer belongs to the job and is as long as given.
        let result = unsafe {
            if job.write {
                libc::pwrite(job.fd, start, len, offset)
            } else {
                libc::pread(job.fd, start, len, offset)
            }
        };
        check(if result < 0 { -last_errno() } else { result as i64 }, job.block)?;
        done += 1;
    }
    Ok(meter.stop(done))
}

fn last_errno() -> i64 {
    i64::from(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// `struct iocb` of linux/aio_abi.h. The order of its second and third field depends on the byte order.
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

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

/// Linux AIO by its raw system calls.
pub struct Libaio {
    context: libc::c_ulong,
    iocbs: Vec<Iocb>,
    prepared: Vec<*mut Iocb>,
    events: Vec<IoEvent>,
    ready: usize,
}

impl Libaio {
    /// # Errors
    /// Why the kernel refuses.
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
        })
    }
}

impl Queue for Libaio {
    #[inline]
    unsafe fn prepare(
        &mut self,
        fd: RawFd,
        write: bool,
        buffer: *mut [u8],
        offset: u64,
        slot: usize,
    ) {
        let iocb = &raw mut self.iocbs[slot];
        let filled = Iocb {
            data: slot as u64,
            opcode: if write { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD },
            fd: fd.cast_unsigned(),
            buf: buffer.cast::<u8>() as u64,
            nbytes: buffer.len() as u64,
            offset: offset.cast_signed(),
            ..Iocb::default()
        };
        // SAFETY: the pointer was just made from a place in the vector.
        unsafe { iocb.write(filled) };
        self.prepared.push(iocb);
    }

    #[inline]
    fn submit_and_wait(&mut self) -> std::io::Result<()> {
        let mut rest = self.prepared.as_mut_slice();
        while !rest.is_empty() {
            // SAFETY: `rest` points to pointers to filled iocbs, which the kernel copies; the buffers in
            // them are promised by `prepare`.
            let accepted = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_mut_ptr())
            };
            match usize::try_from(accepted) {
                Ok(accepted) => rest = &mut rest[accepted..],
                Err(_) => return Err(Error::last_os_error()),
            }
        }
        self.prepared.clear();
        let most = self.events.len();
        let events = self.events.as_mut_ptr();
        let none = ptr::null_mut::<libc::timespec>();
        // SAFETY: `events` has room for `most` events.
        let got = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.context, 1usize, most, events, none)
        };
        match usize::try_from(got) {
            Ok(got) => self.ready = got,
            // A signal (Ctrl-C, for one): the loop comes back.
            Err(_) if last_errno() == i64::from(libc::EINTR) => {}
            Err(_) => return Err(Error::last_os_error()),
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        for event in &self.events[..self.ready] {
            take(event.data as usize, event.res);
        }
        self.ready = 0;
    }
}

impl Drop for Libaio {
    fn drop(&mut self) {
        // SAFETY: made by io_setup and destroyed once. The call waits for what is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// io_uring through the `io-uring` crate.
pub struct IoUring {
    ring: io_uring::IoUring,
    in_flight: usize,
}

impl IoUring {
    /// The quickest setup that this kernel knows: completions run in our own wait, then without
    /// interrupting us, then plain.
    ///
    /// # Errors
    /// Why the kernel refuses.
    pub fn new(depth: usize) -> Result<Self, String> {
        let entries = u32::try_from(depth).map_err(|error| error.to_string())?;
        let own_wait = || {
            let mut builder = io_uring::IoUring::builder();
            builder.setup_single_issuer().setup_defer_taskrun().build(entries)
        };
        let cooperative = || io_uring::IoUring::builder().setup_coop_taskrun().build(entries);
        let unknown = |error: &Error| error.raw_os_error() == Some(libc::EINVAL);
        let mut made = own_wait();
        if made.as_ref().is_err_and(unknown) {
            made = cooperative();
        }
        if made.as_ref().is_err_and(unknown) {
            made = io_uring::IoUring::new(entries);
        }
        match made {
            Ok(ring) => Ok(Self { ring, in_flight: 0 }),
            Err(error) => {
                let setting = sysctl("kernel/io_uring_disabled");
                let cause = match (error.raw_os_error(), setting.as_deref()) {
                    (Some(libc::EPERM), Some(level @ ("1" | "2"))) => {
                        format!(" (kernel.io_uring_disabled = {level})")
                    }
                    (Some(libc::EPERM | libc::EACCES), _) => " (a sandbox: seccomp or LSM)".into(),
                    (Some(libc::ENOSYS), _) => " (no io_uring in this kernel, or a sandbox)".into(),
                    (Some(libc::ENOMEM), _) => " (the limit of locked memory, ulimit -l)".into(),
                    _ => String::new(),
                };
                Err(format!("io_uring_setup refused: {error}{cause}"))
            }
        }
    }
}

impl Queue for IoUring {
    #[inline]
    unsafe fn prepare(
        &mut self,
        fd: RawFd,
        write: bool,
        buffer: *mut [u8],
        offset: u64,
        slot: usize,
    ) {
        let (start, len) = (buffer.cast::<u8>(), buffer.len() as u32);
        let fd = types::Fd(fd);
        let entry = if write {
            opcode::Write::new(fd, start, len).offset(offset).build()
        } else {
            opcode::Read::new(fd, start, len).offset(offset).build()
        };
        // SAFETY: the caller keeps the buffer until the slot comes back; drop waits for it.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        assert!(pushed.is_ok(), "a ring of `depth` entries refused one of `depth` requests");
        self.in_flight += 1;
    }

    #[inline]
    fn submit_and_wait(&mut self) -> std::io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn reap(&mut self, mut take: impl FnMut(usize, i64)) {
        for cqe in self.ring.completion() {
            self.in_flight -= 1;
            take(cqe.user_data() as usize, i64::from(cqe.result()));
        }
    }
}

impl Drop for IoUring {
    /// Closing a ring does not wait for its requests, and they still use the buffers.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.submit_and_wait() {
                Ok(()) => self.reap(|_, _| ()),
                // Nothing can be waited for any more; freeing the buffers would be worse than a leak.
                Err(_) => std::process::abort(),
            }
        }
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
