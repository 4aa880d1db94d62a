//! Reads and writes at an offset, which own their buffers.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

use compio_buf::{BufResult, IoBuf, IoBufMut};

use super::driver::{Fs, Header};
use super::handle::{File, outcome};
use super::op::Steps;
use super::wakers::Flights;
use super::worker::uninterrupted;
use crate::sqe::Sqe;
use crate::sys::{self, MAX_RW_COUNT};

/// The operation of [`File::read_at`].
pub type Read<B> = FileTransfer<B, In, Once>;

/// The operation of [`File::read_exact_at`].
pub type ReadExact<B> = FileTransfer<B, In, Whole>;

/// The operation of [`File::write_at`] and [`File::append`].
pub type Write<B> = FileTransfer<B, Out, Once>;

/// The operation of [`File::write_all_at`].
pub type WriteAll<B> = FileTransfer<B, Out, Whole>;

/// A buffer's memory, and the part that is transferred.
#[derive(Debug)]
pub(super) struct Span {
    offset: u64,
    /// The buffer's address, taken once the operation does not move any more.
    address: Cell<u64>,
    length: Cell<usize>,
    done: Cell<usize>,
    /// The transfer is complete with this many bytes, even if the buffer has room for more.
    enough: usize,
    /// A transfer that ends within a unit of this many bytes has reached the end of the file.
    granule: usize,
}

impl Span {
    pub(super) fn new(offset: u64) -> Self {
        let zero = || Cell::new(0);
        Self {
            offset,
            address: Cell::new(0),
            length: zero(),
            done: zero(),
            enough: usize::MAX,
            granule: 1,
        }
    }

    pub(super) fn pin(&self, (address, length): (u64, usize)) {
        self.address.set(address);
        self.length.set(length);
    }

    /// The remaining part: address, length, offset.
    pub(super) fn left(&self) -> (u64, usize, u64) {
        let done = self.done.get();
        let length = (self.length.get() - done).min(MAX_RW_COUNT);
        // An offset of -1 would mean the file position. The kernel takes 2^63 as another negative
        // offset, and refuses it.
        let offset = self.offset.saturating_add(done as u64).min(1 << 63);
        (self.address.get() + done as u64, length, offset)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.left().1 as u64
    }

    /// Does the transfer begin and end at multiples of this many bytes?
    pub(super) fn is_aligned(&self, granule: usize) -> bool {
        self.offset.is_multiple_of(granule as u64) && self.length.get().is_multiple_of(granule)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.done.get() >= self.length.get().min(self.enough)
    }

    /// Writes the remaining bytes on a worker, until the file takes no more.
    pub(super) fn write_now(&self, fd: RawFd, header: &Header) -> io::Result<()> {
        /// The maximum number of bytes of one call.
        const PART: usize = 8 << 20;
        while !self.is_whole() && !header.is_stopped() {
            let (address, length, _) = self.left();
            let length = length.min(PART);
            // SAFETY: the operation owns the buffer, and its request is under way.
            let written = uninterrupted(|| unsafe { sys::call!(write, fd, address, length) });
            if outcome(written)? == 0 {
                return Ok(());
            }
            self.after(written);
        }
        if self.is_whole() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECANCELED)) }
    }

    /// The result of a transfer that has to be complete.
    pub(super) fn all(&self, result: i32, short: io::ErrorKind) -> io::Result<()> {
        outcome(result)?;
        if self.is_whole() { Ok(()) } else { Err(short.into()) }
    }

    /// As [`Steps::after`]. Another request follows until the transfer is complete, has reached the
    /// end of the file, or has failed.
    pub(super) fn after(&self, result: i32) -> Option<i32> {
        let Ok(count) = usize::try_from(result) else { return Some(result) };
        self.done.set((self.done.get() + count).min(self.length.get()));
        let is_end = count == 0 || count % self.granule != 0;
        (is_end || self.is_whole()).then_some(result)
    }
}

/// The direction of a transfer with this buffer.
///
/// # Safety
/// `memory` returns the buffer's memory, which does not move while the buffer is not used.
/// `request` transfers to or from the given address only.
pub unsafe trait Direction<B>: 'static {
    /// Does the first poll try these transfers?
    const INLINE: bool;
    /// The error of a transfer that ended before it was complete.
    const SHORT: io::ErrorKind;

    /// The buffer's address and length.
    fn memory(buffer: &mut B) -> (u64, usize);

    /// A transfer of this many bytes at an address.
    fn request(fd: RawFd, address: u64, length: usize, offset: u64) -> Sqe;

    /// Raises the buffer's length to the number of bytes read, if it is less.
    ///
    /// # Safety
    /// This many bytes from the start of `memory`'s result were transferred.
    unsafe fn advance(_buffer: &mut B, _count: usize) {}
}

/// The direction of a read: from the file.
#[derive(Debug)]
pub struct In;

// SAFETY: the contract of compio-buf's `IoBufMut` covers the buffer's memory.
unsafe impl<B: IoBufMut + Send> Direction<B> for In {
    const INLINE: bool = true;
    const SHORT: io::ErrorKind = io::ErrorKind::UnexpectedEof;

    fn memory(buffer: &mut B) -> (u64, usize) {
        let buffer = buffer.as_uninit();
        (buffer.as_mut_ptr() as u64, buffer.len())
    }

    fn request(fd: RawFd, address: u64, length: usize, offset: u64) -> Sqe {
        Sqe::read(fd, std::ptr::slice_from_raw_parts_mut(address as *mut u8, length), offset)
    }

    unsafe fn advance(buffer: &mut B, count: usize) {
        // SAFETY: the caller's contract: this many bytes were written.
        unsafe { buffer.advance_to(count) };
    }
}

/// The direction of a write: to the file.
#[derive(Debug)]
pub struct Out;

// SAFETY: the contract of compio-buf's `IoBuf` covers the buffer's memory.
unsafe impl<B: IoBuf + Send> Direction<B> for Out {
    const INLINE: bool = false;
    const SHORT: io::ErrorKind = io::ErrorKind::WriteZero;

    fn memory(buffer: &mut B) -> (u64, usize) {
        let buffer = B::as_init(buffer);
        (buffer.as_ptr() as u64, buffer.len())
    }

    fn request(fd: RawFd, address: u64, length: usize, offset: u64) -> Sqe {
        Sqe::write(fd, std::ptr::slice_from_raw_parts(address as *const u8, length), offset)
    }
}

/// Decides when a transfer is complete, and what its result is.
pub trait Amount: 'static {
    /// The result of the future, beside the buffer.
    type Count;
    /// Must everything be transferred?
    const WHOLE: bool;

    /// The result after this many bytes.
    fn count(done: usize) -> Self::Count;
}

/// One request is enough, even if it is short. Only a transfer of the maximum length of one call is
/// continued.
#[derive(Debug)]
pub struct Once;

impl Amount for Once {
    type Count = usize;
    const WHOLE: bool = false;

    fn count(done: usize) -> usize {
        done
    }
}

/// Everything has to be transferred.
#[derive(Debug)]
pub struct Whole;

impl Amount for Whole {
    type Count = ();
    const WHOLE: bool = true;

    fn count(_: usize) {}
}

/// A read or a write.
#[derive(Debug)]
pub struct FileTransfer<B, D, A> {
    file: File,
    span: Span,
    flags: i32,
    buffer: UnsafeCell<B>,
    kind: PhantomData<fn() -> (D, A)>,
}

impl<B, D, A> FileTransfer<B, D, A> {
    pub(super) fn new(file: &File, buffer: B, offset: u64, flags: i32) -> Self {
        let (file, span, buffer) = (file.clone(), Span::new(offset), UnsafeCell::new(buffer));
        Self { file, span, flags, buffer, kind: PhantomData }
    }

    /// Makes this a transfer of a direct file, in steps of `granule` bytes. It is complete with
    /// `enough` bytes. If it ends within a step, it has reached the end of the file.
    pub(super) fn in_steps(mut self, enough: usize, granule: usize) -> Self {
        (self.span.enough, self.span.granule) = (enough, granule);
        self
    }
}

// SAFETY: the operation owns the buffer, and does not use it until the request has ended. By the
// contract of compio-buf's traits, the buffer's memory stays valid until then.
unsafe impl<B: Send + 'static, D: Direction<B>, A: Amount> Steps for FileTransfer<B, D, A> {
    type Output = BufResult<A::Count, B>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.home()
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        Some(self.file.flights())
    }

    fn attempt(&mut self) -> Option<i32> {
        if !D::INLINE {
            return None;
        }
        let (address, length) = D::memory(self.buffer.get_mut());
        // SAFETY: only reads are tried, and the buffer is borrowed meanwhile.
        let result = unsafe { self.file.read_now(address, length, self.span.offset) }?;
        self.span.pin((address, length));
        // A shorter result means that the end of the file was reached.
        self.span.done.set(usize::try_from(result).unwrap_or(0));
        Some(result)
    }

    fn pin(&self, _: &Header) {
        // SAFETY: no request has the buffer's address yet, so nothing else uses the buffer.
        self.span.pin(D::memory(unsafe { &mut *self.buffer.get() }));
    }

    fn request(&self) -> Sqe {
        let (address, length, offset) = self.span.left();
        D::request(self.file.number(), address, length, offset).rw_flags(self.flags)
    }

    fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        let before = self.span.done.get();
        let ended = self.span.after(result);
        match result {
            _ if A::WHOLE => ended,
            // A transfer of more than one call's maximum takes several calls; the first short one
            // ends it.
            _ if result as usize == MAX_RW_COUNT => ended,
            // Bytes that were transferred before the error are returned, as after a short transfer.
            ..0 if before > 0 => Some(0),
            _ => Some(result),
        }
    }

    fn end(self, result: i32) -> BufResult<A::Count, B> {
        let (done, mut buffer) = (self.span.done.get(), self.buffer.into_inner());
        // SAFETY: this many bytes were transferred, at most the length that `memory` returned.
        unsafe { D::advance(&mut buffer, done) };
        let result =
            if A::WHOLE { self.span.all(result, D::SHORT) } else { outcome(result).map(|_| ()) };
        BufResult(result.map(|()| A::count(done)), buffer)
    }
}
