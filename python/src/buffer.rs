//! Memory of Python objects, held for as long as a request may use it.
//!
//! The engine's threads end requests that nobody waits for, and must not call Python. So a [`Hold`]
//! that is dropped, and not released, puts its object into a list. Every wake-up of an asyncio loop
//! and most calls that take a buffer empty the list.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyErr, ffi};
use uringlet::fs::{IoBuf, IoBufMut, SetLen};

use crate::ready::Home;

/// A `Py_buffer` that never moves, because the object that exports it may have stored its address.
struct View(Box<ffi::Py_buffer>);

impl View {
    fn of(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: an object and a structure to be filled, with the interpreter attached.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } {
            0 => Ok(Self(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn release(mut self, _: Python<'_>) {
        // SAFETY: filled by `PyObject_GetBuffer`, released once, with the interpreter attached.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}

enum Kept {
    View(View),
    Object(Py<PyAny>),
}

/// The address and the number of the bytes. The pointer comes from the interpreter, so that code
/// that has just made the bytes may write through it. A slice would claim that nobody writes, and
/// that all bytes are initialized.
fn memory_of(bytes: &Bound<'_, PyBytes>) -> (*mut u8, usize) {
    // SAFETY: bytes, with the interpreter attached.
    let (address, length) =
        unsafe { (ffi::PyBytes_AsString(bytes.as_ptr()), ffi::PyBytes_Size(bytes.as_ptr())) };
    (address.cast(), usize::try_from(length).unwrap_or(0))
}

/// The first `count` bytes: the object itself if it has no more, or else a copy.
///
/// # Safety
/// These bytes are initialized, and nobody writes to them any more.
///
/// # Errors
/// `MemoryError`.
pub(crate) unsafe fn cut(bytes: &Bound<'_, PyBytes>, count: usize) -> PyResult<Py<PyAny>> {
    let (address, length) = memory_of(bytes);
    if count == length {
        return Ok(bytes.clone().into_any().unbind());
    }
    let count = ffi::Py_ssize_t::try_from(count.min(length)).unwrap_or(0);
    // SAFETY: gives a new reference, or null with an exception. The bytes are initialized, by the
    // caller's contract.
    unsafe {
        let raw = ffi::PyBytes_FromStringAndSize(address.cast_const().cast(), count);
        Ok(Bound::from_owned_ptr_or_err(bytes.py(), raw)?.unbind())
    }
}

/// Memory of a Python object, which neither moves nor goes away while this is held.
pub(crate) struct Hold {
    /// The object, or `None` once it was released.
    kept: Option<Kept>,
    /// The loop that is woken to release the object if a thread of the engine has dropped this.
    home: Option<Home>,
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory stays where it is whichever thread has the hold, and only threads that have
// the interpreter attached touch the object.
unsafe impl Send for Hold {}

impl Hold {
    fn view(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let view = View::of(object, flags)?;
        let length = usize::try_from(view.0.len).unwrap_or(0);
        let address = NonNull::new(view.0.buf.cast::<u8>()).unwrap_or(NonNull::dangling());
        Ok(Self { kept: Some(Kept::View(view)), home: None, address, length })
    }

    /// A contiguous writable buffer, for a read.
    ///
    /// # Errors
    /// `TypeError` or `BufferError`, from the object.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::view(object, ffi::PyBUF_WRITABLE)
    }

    /// A contiguous buffer, for a write.
    ///
    /// # Errors
    /// As [`Hold::writable`].
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::view(object, ffi::PyBUF_SIMPLE)
    }

    /// The memory of new bytes, which nobody else has seen.
    ///
    /// # Errors
    /// `MemoryError`, `OverflowError`.
    pub(crate) fn new_bytes(py: Python<'_>, length: usize) -> PyResult<(Self, Py<PyBytes>)> {
        let length = ffi::Py_ssize_t::try_from(length)
            .map_err(|_| pyo3::exceptions::PyOverflowError::new_err("too many bytes"))?;
        // SAFETY: gives a new reference, or null with an exception. Without a source the bytes are
        // not initialised. Nobody sees them before a request has filled them.
        let bytes = unsafe {
            let raw = ffi::PyBytes_FromStringAndSize(ptr::null(), length);
            Bound::from_owned_ptr_or_err(py, raw)?.cast_into_unchecked::<PyBytes>()
        };
        let hold = Self::of_bytes(&bytes);
        Ok((hold, bytes.unbind()))
    }

    /// The memory of bytes.
    pub(crate) fn of_bytes(bytes: &Bound<'_, PyBytes>) -> Self {
        let (address, length) = memory_of(bytes);
        let address = NonNull::new(address).unwrap_or(NonNull::dangling());
        let kept = Some(Kept::Object(bytes.clone().into_any().unbind()));
        Self { kept, home: None, address, length }
    }

    /// The part after `at` bytes.
    pub(crate) fn from(mut self, at: usize) -> Self {
        let at = at.min(self.length);
        // SAFETY: within the memory, or at its end.
        self.address = unsafe { self.address.add(at) };
        self.length -= at;
        self
    }

    /// Sets the loop that is woken when a thread of the engine has dropped the buffer.
    pub(crate) fn at(mut self, home: &Home) -> Self {
        self.home = Some(Home::clone(home));
        self
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Address and length.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.address(), self.length)
    }

    /// Releases the object now.
    pub(crate) fn release(mut self, py: Python<'_>) {
        match self.kept.take() {
            Some(Kept::View(view)) => view.release(py),
            Some(Kept::Object(object)) => drop(object),
            None => {}
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            leave(kept);
            if let Some(ready) = self.home.as_ref().and_then(|home| home.get()) {
                ready.call();
            }
        }
    }
}

/// An object that a thread with the interpreter will release, and the next one in the list.
struct Left {
    kept: Kept,
    next: *mut Left,
}

static LEFT: AtomicPtr<Left> = AtomicPtr::new(ptr::null_mut());

/// Puts an object into the list. The list has no lock: in the child of a fork, a thread that does
/// not exist there might hold it.
fn leave(kept: Kept) {
    let left = Box::into_raw(Box::new(Left { kept, next: LEFT.load(Ordering::Relaxed) }));
    loop {
        // SAFETY: no other thread knows `left` before the exchange.
        let next = unsafe { (*left).next };
        match LEFT.compare_exchange_weak(next, left, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            // SAFETY: as above.
            Err(other) => unsafe { (*left).next = other },
        }
    }
}

/// Releases what threads without the interpreter have dropped.
#[inline]
pub(crate) fn sweep(py: Python<'_>) {
    if !LEFT.load(Ordering::Relaxed).is_null() {
        sweep_all(py);
    }
}

#[cold]
fn sweep_all(py: Python<'_>) {
    let mut at = LEFT.swap(ptr::null_mut(), Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: from `leave`, and this thread alone has taken the list.
        let left = unsafe { Box::from_raw(at) };
        at = left.next;
        match left.kept {
            Kept::View(view) => view.release(py),
            Kept::Object(object) => drop(object),
        }
    }
}

/// A buffer of a read.
pub(crate) struct Target(pub(crate) Hold);

/// A buffer of a write.
pub(crate) struct Source(pub(crate) Hold);

impl IoBuf for Target {
    /// Before the read, no byte counts as initialized.
    fn as_init(&self) -> &[u8] {
        &[]
    }
}

impl SetLen for Target {
    unsafe fn set_len(&mut self, _: usize) {}
}

impl IoBufMut for Target {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let Hold { address, length, .. } = self.0;
        // SAFETY: the hold keeps the memory valid. The program must not use the buffer in another
        // thread during the read, as with `readinto`.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr().cast(), length) }
    }
}

impl IoBuf for Source {
    fn as_init(&self) -> &[u8] {
        // SAFETY: the hold keeps the memory valid. The program must not write to the buffer in
        // another thread during the request.
        unsafe { std::slice::from_raw_parts(self.0.address(), self.0.length()) }
    }
}
