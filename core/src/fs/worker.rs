//! Functions that a worker of the engine calls: for operations that have no opcode, and for several
//! system calls in one operation.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::driver::{Fs, Header};
use super::handle::{File, outcome};
use super::op::{Op, Steps};
use super::wakers::Flights;
use crate::exec::{CALL, CallFunction};
use crate::sqe::Sqe;
use crate::sys::Ret;

/// Makes a system call on a worker, and repeats it after `EINTR`. Returns a count or a negative
/// errno.
pub(super) fn uninterrupted(mut call: impl FnMut() -> Ret) -> i32 {
    loop {
        let result = call();
        if result != -(libc::EINTR as Ret) {
            return result as i32;
        }
    }
}

/// A request that has a worker call `function` with the address of `with`.
pub(super) fn call<T>(function: CallFunction, with: &T) -> Sqe {
    let with = ptr::from_ref(with).addr() as u64;
    Sqe { opcode: CALL, addr: function as usize as u64, off: with, ..Sqe::nop() }
}

/// The header of the slot in which an operation has its final place. A worker that is called with
/// the operation's address finds the header here.
#[derive(Debug)]
pub(super) struct Behind(Cell<*const Header>);

// SAFETY: used by the worker only, while the engine has the slot.
unsafe impl Send for Behind {}

impl Behind {
    pub(super) fn nothing() -> Self {
        Self(Cell::new(ptr::null()))
    }

    pub(super) fn set(&self, header: &Header) {
        self.0.set(header);
    }

    /// The header.
    ///
    /// # Safety
    /// The header was set, and a request of the operation is under way, which the calling worker
    /// executes.
    pub(super) unsafe fn get(&self) -> &Header {
        // SAFETY: the caller's contract.
        unsafe { &*self.0.get() }
    }
}

type Function<T> = Box<dyn FnOnce(&Header) -> io::Result<T> + Send>;

/// An operation of several system calls, which a worker of the engine makes.
pub struct OnWorker<T> {
    function: UnsafeCell<Option<Function<T>>>,
    output: UnsafeCell<Option<io::Result<T>>>,
    header: Behind,
    flights: Option<Arc<Flights>>,
    home: OnceLock<Fs>,
}

impl<T: Send + 'static> OnWorker<T> {
    /// An operation that calls this function.
    pub(super) fn op(function: impl FnOnce(&Header) -> io::Result<T> + Send + 'static) -> Op<Self> {
        Op::new(Self {
            function: UnsafeCell::new(Some(Box::new(function))),
            output: UnsafeCell::new(None),
            header: Behind::nothing(),
            flights: None,
            home: OnceLock::new(),
        })
    }

    /// As [`OnWorker::op`], on a file.
    pub(super) fn of(
        file: &File,
        function: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Op<Self> {
        let own = file.clone();
        let op = Self::op(move |_| function(&own)).map(|this| {
            this.flights = Some(Arc::clone(file.flights()));
        });
        match file.fs() {
            Some(fs) => op.on(fs),
            None => op,
        }
    }

    /// As [`OnWorker::op`], with paths: `EINVAL` if there is a NUL in one.
    pub(super) fn at<const N: usize>(
        paths: [&Path; N],
        function: impl FnOnce(&Header, [&Path; N]) -> io::Result<T> + Send + 'static,
    ) -> Op<Self> {
        let is_sound = paths.iter().all(|path| !path.as_os_str().as_bytes().contains(&0));
        let owned = paths.map(Path::to_path_buf);
        let mut op = Self::op(move |header| function(header, owned.each_ref().map(|p| &**p)));
        op.is_sound = is_sound;
        op
    }
}

/// Calls the function of an operation.
///
/// # Safety
/// The address of an `OnWorker<T>` whose request is under way. The caller executes the request.
unsafe extern "C" fn run<T>(operation: u64) -> i32 {
    // SAFETY: the caller's contract: the operation does not move until the request is over.
    let operation = unsafe { &*ptr::with_exposed_provenance::<OnWorker<T>>(operation as usize) };
    // SAFETY: until the request is over, only this worker accesses `function` and `output`.
    let function = unsafe { (*operation.function.get()).take() };
    // SAFETY: set by `pin`, and the caller's contract.
    let header = unsafe { operation.header.get() };
    let Some(function) = function else { return -libc::EINVAL };
    match catch_unwind(AssertUnwindSafe(|| function(header))) {
        // SAFETY: as above.
        Ok(output) => unsafe { *operation.output.get() = Some(output) },
        Err(_) => return -libc::EIO,
    }
    0
}

// SAFETY: the request names the operation itself, which contains all that the function uses.
unsafe impl<T: Send + 'static> Steps for OnWorker<T> {
    type Output = io::Result<T>;

    fn home(&self) -> &OnceLock<Fs> {
        &self.home
    }

    fn flights(&self) -> Option<&Arc<Flights>> {
        self.flights.as_ref()
    }

    fn pin(&self, header: &Header) {
        self.header.set(header);
    }

    fn request(&self) -> Sqe {
        call(run::<T>, self)
    }

    fn end(self, result: i32) -> io::Result<T> {
        outcome(result)?;
        self.output.into_inner().unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
    }
}

impl<T> fmt::Debug for OnWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnWorker").finish_non_exhaustive()
    }
}
