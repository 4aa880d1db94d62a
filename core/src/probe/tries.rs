//! The calls that are tried: each leaves nothing behind.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use syscalls::Sysno;

use crate::sys::{self, Ret, call};

/// A refused call and its errno (positive).
pub(super) type Refused = (&'static str, i32);

fn check(name: &'static str, ret: Ret) -> Result<Ret, Refused> {
    if ret < 0 { Err((name, -ret as i32)) } else { Ok(ret) }
}

/// Makes a ring of one entry, enters it with nothing to do, and closes it.
pub(super) fn io_uring() -> Result<(), Refused> {
    // The size of struct io_uring_params; zeroes ask for nothing special.
    let mut params = [0u64; 15];
    // SAFETY: `params` is writable and as large as the kernel's structure.
    let fd = check("io_uring_setup", unsafe { call!(io_uring_setup, 1, params.as_mut_ptr()) })?;
    // SAFETY: nothing is submitted or waited for, and no memory is passed.
    let entered = unsafe { call!(io_uring_enter, fd, 0, 0, 0, 0, 0) };
    sys::close(fd as RawFd);
    check("io_uring_enter", entered).map(drop)
}

/// Makes a context for one request, submits nothing, and destroys it.
pub(super) fn linux_aio() -> Result<(), Refused> {
    let context = AioContext::new(1)?;
    // SAFETY: no iocb is passed, so none is read.
    check("io_submit", unsafe { call!(io_submit, context.0, 0, 0) })?;
    // SAFETY: room for no event is passed, so none is written.
    check("io_getevents", unsafe { call!(io_getevents, context.0, 0, 0, 0, 0) }).map(drop)
}

/// Starts a thread and waits for its end.
pub(super) fn thread() -> Result<(), Refused> {
    // A signal for the process must not choose this thread.
    let mask = sys::block_signals();
    let thread = std::thread::Builder::new().name("uringlet-probe".into()).spawn(|| ());
    sys::restore_signals(mask);
    match thread {
        // It cannot panic.
        Ok(thread) => drop(thread.join()),
        Err(error) => return Err(("clone", error.raw_os_error().unwrap_or(libc::EAGAIN))),
    }
    Ok(())
}

/// preadv2(2) with these flags.
pub(super) fn read(fd: RawFd, buffer: &mut [u8], flags: i32) -> Result<usize, Refused> {
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `iov` describes `buffer`, which is ours until the call returns.
    check("preadv2", unsafe { sys::preadv2(fd, &raw const iov, 1, 0, flags as u32) })
        .map(|count| count as usize)
}

/// pwritev2(2) with these flags.
pub(super) fn write(fd: RawFd, buffer: &[u8], flags: i32) -> Result<usize, Refused> {
    let iov = libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() };
    // SAFETY: `iov` describes `buffer`, which is only read, and lives until the call returns.
    check("pwritev2", unsafe { sys::pwritev2(fd, &raw const iov, 1, 0, flags as u32) })
        .map(|count| count as usize)
}

/// pread(2) into `len` bytes at `at` of the buffer.
pub(super) fn read_at(
    fd: RawFd,
    buffer: &mut Buffer,
    at: usize,
    len: usize,
    offset: u64,
) -> Result<usize, Refused> {
    let part = &mut buffer.bytes()[at..at + len];
    // SAFETY: `part` is writable for its whole length and ours until the call returns.
    check("pread", unsafe { sys::pread(fd, part.as_mut_ptr() as u64, part.len(), offset) })
        .map(|count| count as usize)
}

/// Zeroed memory that begins on a page boundary.
pub(super) struct Buffer {
    mapping: sys::Mapping,
    len: usize,
}

impl Buffer {
    pub(super) fn new(len: usize) -> Result<Self, Refused> {
        match sys::Mapping::new(len, libc::PROT_READ | libc::PROT_WRITE) {
            Ok(mapping) => Ok(Self { mapping, len }),
            Err(errno) => Err(("mmap", -errno)),
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` readable and writable bytes and is borrowed like the slice.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base(), self.len) }
    }
}

/// A struct iocb (linux/aio_abi.h).
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    // The next two are swapped on big-endian machines; both are 0 here.
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

const IOCB_CMD_PREAD: u16 = 0;

/// A struct io_event (linux/aio_abi.h).
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

/// How long a batch of reads took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Nanoseconds that io_submit(2) took.
    pub(super) submit_ns: u64,
    /// Nanoseconds from its beginning until all were complete.
    pub(super) total_ns: u64,
    /// Complete when it returned.
    pub(super) done_at_return: u32,
    /// Complete at the end.
    pub(super) reads: u32,
}

/// Reads `reads` blocks of `block` bytes from the beginning of the file through Linux AIO, all
/// submitted at once.
pub(super) fn read_batch(
    fd: RawFd,
    buffer: &mut Buffer,
    reads: usize,
    block: usize,
) -> Result<Batch, Refused> {
    assert!(reads * block <= buffer.len);
    // Of this call alone: its end waits for all requests, whatever has failed in between.
    let context = AioContext::new(reads)?;
    let memory = buffer.bytes().as_mut_ptr() as u64;
    let iocbs: Vec<Iocb> = (0..reads)
        .map(|n| Iocb {
            opcode: IOCB_CMD_PREAD,
            fd: fd as u32,
            buf: memory + (n * block) as u64,
            len: block as u64,
            offset: (n * block) as i64,
            ..Iocb::default()
        })
        .collect();
    let pointers: Vec<u64> = iocbs.iter().map(|iocb| std::ptr::from_ref(iocb) as u64).collect();
    let begin = sys::monotonic_ns();
    // SAFETY: the kernel copies pointers and iocbs during the call. `buffer` stays borrowed until
    // `context` is dropped, which waits for the requests.
    let ret = unsafe { call!(io_submit, context.0, reads, pointers.as_ptr()) };
    let submitted = sys::monotonic_ns();
    let accepted = check("io_submit", ret)? as usize;
    let done_at_return = context.take(0, accepted)?;
    let mut done = done_at_return;
    while done < accepted {
        done += context.take(1, accepted - done)?;
    }
    Ok(Batch {
        submit_ns: submitted - begin,
        total_ns: sys::monotonic_ns() - begin,
        done_at_return: done_at_return as u32,
        reads: accepted as u32,
    })
}

/// A Linux AIO context.
struct AioContext(u64);

impl AioContext {
    fn new(requests: usize) -> Result<Self, Refused> {
        let mut context = 0u64;
        // SAFETY: `context` is 0, as the call demands, and lives through it.
        check("io_setup", unsafe { call!(io_setup, requests, &raw mut context) })?;
        Ok(Self(context))
    }

    /// Takes at most `most` completions and waits for at least `min`.
    fn take(&self, min: usize, most: usize) -> Result<usize, Refused> {
        let mut events = vec![Event::default(); most];
        loop {
            // SAFETY: `events` has room for `most` events; without a timeout no other memory is passed.
            let ret = unsafe { call!(io_getevents, self.0, min, most, events.as_mut_ptr(), 0) };
            if ret != -(libc::EINTR as Ret) {
                let count = check("io_getevents", ret)? as usize;
                let failed = events[..count].iter().find(|event| event.result < 0);
                return match failed {
                    Some(event) => Err(("read by io_submit", -event.result as i32)),
                    None => Ok(count),
                };
            }
        }
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // SAFETY: the context is ours. The call waits until its requests have let go of their buffers.
        unsafe { call!(io_destroy, self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!((size_of::<Iocb>(), size_of::<Event>()), (64, 32));
        let offsets = [
            offset_of!(Iocb, opcode),
            offset_of!(Iocb, fd),
            offset_of!(Iocb, buf),
            offset_of!(Iocb, len),
            offset_of!(Iocb, offset),
            offset_of!(Iocb, flags),
        ];
        assert_eq!(offsets, [16, 20, 24, 32, 40, 56]);
        assert_eq!(offset_of!(Event, result), 16);
    }
}
