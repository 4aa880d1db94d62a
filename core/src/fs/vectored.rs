//! Reads and writes at an offset, of several buffers in one call.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

use compio_buf::{BufResult, IoBuf, IoBufMut};

use super::driver::{Fs, Header};
use super::handle::{File, outcome};
use super::op::Steps;
use super::transfer::{Direction, In, Out};
use super::wakers::Flights;
use crate::exec::IOV_MAX;
use crate::request::Iovec;
use crate::sqe::Sqe;

/// The operation of [`File::read_vectored_at`].
pub type ReadVectored<B> = Vectored<B, In>;

/// The operation of [`File::write_vectored_at`].
pub type WriteVectored<B> = Vectored<B, Out>;

/// The direction of a request with several buffers.
///
/// # Safety
/// As for [`Direction`].
pub unsafe trait VectorDirection<B>: Direction<B> {
    /// A transfer of the buffers that these vectors name, at an offset of the file.
    fn vectored(fd: RawFd, vectors: &[Iovec], offset: u64) -> Sqe;
}

// SAFETY: the request transfers to the memory of these vectors only.
unsafe impl<B: IoBufMut + Send> VectorDirection<B> for In {
    fn vectored(fd: RawFd, vectors: &[Iovec], offset: u64) -> Sqe {
        Sqe::readv(fd, vectors, offset)
    }
}

// SAFETY: the request transfers from the memory of these vectors only.
unsafe impl<B: IoBuf + Send> VectorDirection<B> for Out {
    fn vectored(fd: RawFd, vectors: &[Iovec], offset: u64) -> Sqe {
        Sqe::writev(fd, vectors, offset)
    }
}

/// A read or write of several buffers.
pub struct Vectored<B, D> {
    file: File,
    offset: u64,
    buffers: UnsafeCell<Vec<B>>,
    /// The buffers' addresses and lengths, taken once the operation does not move any more.
    vectors: UnsafeCell<Vec<Iovec>>,
    kind: PhantomData<fn() -> D>,
}

// SAFETY: the addresses are of the buffers, which are `Send`.
unsafe impl<B: Send, D> Send for Vectored<B, D> {}

impl<B, D> Vectored<B, D> {
    pub(super) fn new(file: &File, buffers: Vec<B>, offset: u64) -> Self {
        let (buffers, vectors) = (UnsafeCell::new(buffers), UnsafeCell::default());
        Self { file: file.clone(), offset, buffers, vectors, kind: PhantomData }
    }
}

// SAFETY: the operation owns the buffers and the vectors, and changes neither until the request has
// ended. By the contract of compio-buf's traits, the buffers' memory stays valid until then.
unsafe impl<B: Send + 'static, D: VectorDirection<B>> Steps for Vectored<B, D> {
    type Output = BufResult<usize, Vec<B>>;

    fn home(&self) -> &OnceLock<Fs> {
        self.file.home()
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        Some(self.file.flights())
    }

    fn prepare(&mut self) -> Result<(), i32> {
        if self.buffers.get_mut().len() > IOV_MAX { Err(-libc::EINVAL) } else { Ok(()) }
    }

    fn pin(&self, _: &Header) {
        // SAFETY: no request has these addresses yet, so nothing else uses buffers and vectors.
        let (buffers, vectors) = unsafe { (&mut *self.buffers.get(), &mut *self.vectors.get()) };
        vectors.extend(buffers.iter_mut().map(|buffer| {
            let (address, length) = D::memory(buffer);
            Iovec { iov_base: address as *mut _, iov_len: length }
        }));
    }

    fn request(&self) -> Sqe {
        // An offset of -1 would mean the file position. The kernel takes 2^63 as another negative
        // offset, and refuses it.
        let offset = self.offset.min(1 << 63);
        // SAFETY: nobody changes the vectors any more.
        D::vectored(self.file.number(), unsafe { &*self.vectors.get() }, offset)
    }

    fn bytes(&self) -> u64 {
        // SAFETY: as above.
        unsafe { &*self.vectors.get() }.iter().map(|vector| vector.iov_len as u64).sum()
    }

    fn end(self, result: i32) -> BufResult<usize, Vec<B>> {
        let result = outcome(result).map(|count| count as usize);
        let (mut buffers, vectors) = (self.buffers.into_inner(), self.vectors.into_inner());
        let mut rest = *result.as_ref().unwrap_or(&0);
        for (buffer, vector) in buffers.iter_mut().zip(vectors) {
            let count = rest.min(vector.iov_len);
            // SAFETY: this many bytes were transferred, at most the length that `memory` returned.
            unsafe { D::advance(buffer, count) };
            rest -= count;
        }
        BufResult(result, buffers)
    }
}

impl<B, D> std::fmt::Debug for Vectored<B, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vectored").field("file", &self.file).finish_non_exhaustive()
    }
}
