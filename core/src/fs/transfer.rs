//! Reads and writes at an offset, with buffers that belong to them.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::io;

use compio_buf::{BufResult, IoBuf, IoBufMut};

use super::driver::Fs;
use super::handle::File;
use super::op::Steps;
use crate::sqe::Sqe;
use crate::sys::MAX_RW_COUNT;

/// How far an operation has come, and when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// One request is enough, however much it transfers.
    Once,
    /// Everything is transferred.
    All,
}

/// A buffer's memory and what of it is transferred.
#[derive(Debug)]
struct Span {
    file: File,
    offset: u64,
    until: Until,
    /// The buffer's, asked of it once, in its final place.
    address: Cell<u64>,
    length: Cell<usize>,
    done: Cell<usize>,
}

impl Span {
    fn new(file: &File, offset: u64, until: Until) -> Self {
        Self {
            file: file.clone(),
            offset,
            until,
            address: Cell::new(0),
            length: Cell::new(0),
            done: Cell::new(0),
        }
    }

    fn settle(&self, address: u64, length: usize) {
        self.address.set(address);
        self.length.set(length);
    }

    /// What is left: address, length, offset.
    fn left(&self) -> (u64, usize, u64) {
        let done = self.done.get();
        let length = (self.length.get() - done).min(MAX_RW_COUNT);
        // Not as a request means "the file position": the kernel refuses what it calls a negative
        // offset.
        let offset = self.offset.saturating_add(done as u64).min(1 << 63);
        (self.address.get() + done as u64, length, offset)
    }

    fn bytes(&self) -> u64 {
        self.left().1 as u64
    }

    /// As [`Steps::after`].
    fn after(&self, result: i32) -> Option<i32> {
        let Ok(count) = usize::try_from(result) else { return Some(result) };
        let done = (self.done.get() + count).min(self.length.get());
        self.done.set(done);
        let is_over = self.until == Until::Once || count == 0 || done == self.length.get();
        is_over.then_some(result)
    }

    /// The result of the whole operation: everything, or why not.
    fn all(&self, result: i32, short: io::ErrorKind) -> io::Result<()> {
        match result {
            errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
            _ if self.done.get() < self.length.get() => Err(short.into()),
            _ => Ok(()),
        }
    }

    fn count(&self, result: i32) -> io::Result<usize> {
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(self.done.get()) }
    }
}

/// What [`File::read_at`] does.
#[derive(Debug)]
pub struct Read<B>(Reading<B>);

/// What [`File::read_exact_at`] does.
#[derive(Debug)]
pub struct ReadExact<B>(Reading<B>);

#[derive(Debug)]
struct Reading<B> {
    span: Span,
    buffer: UnsafeCell<B>,
}

impl<B: IoBufMut + Send> Reading<B> {
    fn new(file: &File, buffer: B, offset: u64, until: Until) -> Self {
        Self { span: Span::new(file, offset, until), buffer: UnsafeCell::new(buffer) }
    }

    fn attempt(&mut self) -> Option<i32> {
        let buffer = self.buffer.get_mut().as_uninit();
        let (address, length) = (buffer.as_mut_ptr() as u64, buffer.len());
        // SAFETY: the buffer is borrowed meanwhile.
        let result = unsafe { self.span.file.read_now(address, length, self.span.offset) }?;
        self.span.settle(address, length);
        // What is there is all there is: the end of the file.
        self.span.done.set(usize::try_from(result).unwrap_or(0));
        Some(result)
    }

    fn settle(&self) {
        // SAFETY: not out with the kernel yet.
        let buffer = unsafe { &mut *self.buffer.get() }.as_uninit();
        self.span.settle(buffer.as_mut_ptr() as u64, buffer.len());
    }

    fn request(&self) -> Sqe {
        let (address, length, offset) = self.span.left();
        let buffer = std::ptr::slice_from_raw_parts_mut(address as *mut u8, length);
        Sqe::read(self.span.file.number(), buffer, offset)
    }

    /// The buffer, with its length.
    fn into_buffer(self) -> B {
        let mut buffer = self.buffer.into_inner();
        // SAFETY: so many bytes from its start were written, of as many as it has said there are.
        unsafe { buffer.advance_to(self.span.done.get()) };
        buffer
    }
}

// SAFETY: the buffer is the operation's, so what it has said of its memory stays true until it is
// touched again, which happens at the end; compio-buf has its implementors answer for that.
unsafe impl<B: IoBufMut + Send> Steps for Read<B> {
    type Output = BufResult<usize, B>;
    const INLINE: bool = true;

    fn fs(&self) -> Option<&Fs> {
        self.0.span.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.0.span.file.adopt(fs);
    }

    fn attempt(&mut self) -> Option<i32> {
        self.0.attempt()
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn request(&self) -> Sqe {
        self.0.request()
    }

    fn bytes(&self) -> u64 {
        self.0.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        self.0.span.after(result)
    }

    fn end(self, result: i32) -> BufResult<usize, B> {
        BufResult(self.0.span.count(result), self.0.into_buffer())
    }
}

// SAFETY: as for `Read`.
unsafe impl<B: IoBufMut + Send> Steps for ReadExact<B> {
    type Output = BufResult<(), B>;
    const INLINE: bool = true;

    fn fs(&self) -> Option<&Fs> {
        self.0.span.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.0.span.file.adopt(fs);
    }

    fn attempt(&mut self) -> Option<i32> {
        self.0.attempt()
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn request(&self) -> Sqe {
        self.0.request()
    }

    fn bytes(&self) -> u64 {
        self.0.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        self.0.span.after(result)
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        BufResult(self.0.span.all(result, io::ErrorKind::UnexpectedEof), self.0.into_buffer())
    }
}

/// What [`File::write_at`] and [`File::append`] do.
#[derive(Debug)]
pub struct Write<B>(Writing<B>);

/// What [`File::write_all_at`] does.
#[derive(Debug)]
pub struct WriteAll<B>(Writing<B>);

#[derive(Debug)]
struct Writing<B> {
    span: Span,
    flags: i32,
    buffer: UnsafeCell<B>,
}

impl<B: IoBuf + Send> Writing<B> {
    fn new(file: &File, buffer: B, offset: u64, until: Until, flags: i32) -> Self {
        Self { span: Span::new(file, offset, until), flags, buffer: UnsafeCell::new(buffer) }
    }

    fn settle(&self) {
        // SAFETY: not out with the kernel yet.
        let buffer = unsafe { &*self.buffer.get() }.as_init();
        self.span.settle(buffer.as_ptr() as u64, buffer.len());
    }

    fn request(&self) -> Sqe {
        let (address, length, offset) = self.span.left();
        let buffer = std::ptr::slice_from_raw_parts(address as *const u8, length);
        Sqe::write(self.span.file.number(), buffer, offset).rw_flags(self.flags)
    }
}

// SAFETY: as for `Read`.
unsafe impl<B: IoBuf + Send> Steps for Write<B> {
    type Output = BufResult<usize, B>;

    fn fs(&self) -> Option<&Fs> {
        self.0.span.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.0.span.file.adopt(fs);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn request(&self) -> Sqe {
        self.0.request()
    }

    fn bytes(&self) -> u64 {
        self.0.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        self.0.span.after(result)
    }

    fn end(self, result: i32) -> BufResult<usize, B> {
        BufResult(self.0.span.count(result), self.0.buffer.into_inner())
    }
}

// SAFETY: as for `Read`.
unsafe impl<B: IoBuf + Send> Steps for WriteAll<B> {
    type Output = BufResult<(), B>;

    fn fs(&self) -> Option<&Fs> {
        self.0.span.file.fs()
    }

    fn adopt(&mut self, fs: &Fs) {
        self.0.span.file.adopt(fs);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn request(&self) -> Sqe {
        self.0.request()
    }

    fn bytes(&self) -> u64 {
        self.0.span.bytes()
    }

    fn after(&self, result: i32) -> Option<i32> {
        self.0.span.after(result)
    }

    fn end(self, result: i32) -> BufResult<(), B> {
        BufResult(self.0.span.all(result, io::ErrorKind::WriteZero), self.0.buffer.into_inner())
    }
}

impl<B: IoBufMut + Send> Read<B> {
    pub(super) fn new(file: &File, buffer: B, offset: u64) -> Self {
        Self(Reading::new(file, buffer, offset, Until::Once))
    }
}

impl<B: IoBufMut + Send> ReadExact<B> {
    pub(super) fn new(file: &File, buffer: B, offset: u64) -> Self {
        Self(Reading::new(file, buffer, offset, Until::All))
    }
}

impl<B: IoBuf + Send> Write<B> {
    pub(super) fn new(file: &File, buffer: B, offset: u64) -> Self {
        Self(Writing::new(file, buffer, offset, Until::Once, 0))
    }

    pub(super) fn append(file: &File, buffer: B) -> Self {
        Self(Writing::new(file, buffer, 0, Until::Once, libc::RWF_APPEND))
    }
}

impl<B: IoBuf + Send> WriteAll<B> {
    pub(super) fn new(file: &File, buffer: B, offset: u64) -> Self {
        Self(Writing::new(file, buffer, offset, Until::All, 0))
    }
}
