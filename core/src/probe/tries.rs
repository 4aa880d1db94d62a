//! The calls that are tried: none leaves anything behind.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::sys::aio::{IoEvent, Iocb};
use crate::sys::{self, Ret, call};

/// A refused call and its errno (positive).
pub(super) type Refused = (&'static str, i32);

fn check(name: &'static str, ret: Ret) -> Result<Ret, Refused> {
    if ret < 0 { Err((name, -ret as i32)) } else { Ok(ret) }
}

/// Makes a ring of one entry, enters it with nothing to do, and closes it. A thread of its own does
/// that: some time after the close, the kernel interrupts the thread that has made a ring. A wait
/// of the calling thread would end with EINTR.
pub(super) fn io_uring() -> Result<(), Refused> {
    in_thread(make_ring).unwrap_or_else(|_| make_ring())
}

fn make_ring() -> Result<(), Refused> {
    // The size of struct io_uring_params; zeros ask for no option.
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
    check("io_submit", unsafe { sys::io_submit(context.0, 0, std::ptr::null()) })?;
    context.take(0, 0).map(drop)
}

/// Starts a thread and waits for its end.
pub(super) fn thread() -> Result<(), Refused> {
    in_thread(|| ())
}

/// Calls `f` in a thread of its own, and returns its answer.
fn in_thread<R: Send + 'static>(f: fn() -> R) -> Result<R, Refused> {
    // A signal for the process must not be handled by the new thread, which inherits this mask.
    let mask = sys::block_signals();
    let thread = std::thread::Builder::new().name("uringlet-probe".into()).spawn(f);
    sys::restore_signals(mask);
    match thread {
        Ok(thread) => Ok(thread.join().expect("the thread does not panic")),
        Err(error) => Err(("clone", error.raw_os_error().unwrap_or(libc::EAGAIN))),
    }
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

/// Reads `len` bytes with pread(2), to `at` of the buffer.
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

/// The times of a batch of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TriedBatch {
    /// Nanoseconds that io_submit(2) took.
    pub(super) submit_ns: u64,
    /// Nanoseconds from the start of io_submit(2) until all were complete.
    pub(super) total_ns: u64,
    /// Reads that were complete when io_submit(2) returned.
    pub(super) done_at_return: u32,
    /// Reads that were complete at the end.
    pub(super) reads: u32,
}

/// Reads `reads` blocks of `block` bytes from the beginning of the file through Linux AIO, all
/// submitted at once.
pub(super) fn read_batch(
    fd: RawFd,
    buffer: &mut Buffer,
    reads: usize,
    block: usize,
) -> Result<TriedBatch, Refused> {
    assert!(reads * block <= buffer.len);
    // A context of this call alone: its drop waits for all requests, even after an error.
    let context = AioContext::new(reads)?;
    let memory = buffer.bytes().as_mut_ptr() as u64;
    let iocb = |n: usize| {
        let at = n * block;
        Iocb::pread(fd, memory + at as u64, block as u64, at as i64)
    };
    let iocbs: Vec<Iocb> = (0..reads).map(iocb).collect();
    let pointers: Vec<u64> = iocbs.iter().map(|iocb| std::ptr::from_ref(iocb) as u64).collect();
    let begin = sys::monotonic_ns();
    // SAFETY: the kernel copies pointers and iocbs during the call. `context` is dropped at the end
    // of this function, which waits for the requests; `buffer` is borrowed until then.
    let ret = unsafe { sys::io_submit(context.0, reads, pointers.as_ptr()) };
    let submitted = sys::monotonic_ns();
    let accepted = check("io_submit", ret)? as usize;
    let done_at_return = context.take(0, accepted)?;
    let mut done = done_at_return;
    while done < accepted {
        done += context.take(1, accepted - done)?;
    }
    Ok(TriedBatch {
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
        sys::io_setup(requests).map(Self).map_err(|errno| ("io_setup", -errno))
    }

    /// Takes at most `most` completions, and waits for at least `min`.
    fn take(&self, min: usize, most: usize) -> Result<usize, Refused> {
        let mut events = vec![IoEvent::default(); most];
        loop {
            let ret = sys::io_pgetevents(self.0, min, &mut events, None, None);
            if ret != -(libc::EINTR as Ret) {
                let count = check("io_getevents", ret)? as usize;
                let failed = events[..count].iter().find(|event| event.res < 0);
                return match failed {
                    Some(event) => Err(("read by io_submit", -event.res as i32)),
                    None => Ok(count),
                };
            }
        }
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // Waits until no request uses its buffer any more.
        sys::io_destroy(self.0);
    }
}
