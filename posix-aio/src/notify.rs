//! Notifications: a queued signal, or a thread, as sigevent(7) says.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uringlet::front;

use crate::abi::{SI_ASYNCIO, Sigevent};

/// Does the event send a notification? A signal 0 does not.
///
/// # Safety
/// A sigevent as in sigevent(7); fields that its kind does not use may be uninitialized.
#[inline]
pub(crate) unsafe fn tells(event: *const Sigevent) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        match (*event).notify {
            libc::SIGEV_SIGNAL => (*event).signo != 0,
            libc::SIGEV_THREAD => true,
            _ => false,
        }
    }
}

/// A notification that can be sent.
pub(crate) enum Prepared {
    Nothing,
    Signal { signo: c_int, value: usize },
    Thread(Arc<Gate>, Option<MutexGuard<'static, ()>>),
}

/// A notification's thread waits here until the request has its result.
#[derive(Debug)]
pub(crate) struct Gate {
    open: Mutex<()>,
    function: unsafe extern "C-unwind" fn(usize),
    value: usize,
}

/// Prepares the notification of a request. [`Prepared::go`] sends it, once the result is stored.
///
/// # Errors
/// The errno: the signal does not exist, or no thread can be made.
///
/// # Safety
/// As [`tells`]; function and attributes, if there are any, are the program's.
#[inline]
pub(crate) unsafe fn prepare(event: *const Sigevent) -> Result<Prepared, c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        match (*event).notify {
            libc::SIGEV_SIGNAL if (*event).signo == 0 => Ok(Prepared::Nothing),
            libc::SIGEV_SIGNAL if (1..=64).contains(&(*event).signo) => {
                Ok(Prepared::Signal { signo: (*event).signo, value: (*event).value })
            }
            libc::SIGEV_SIGNAL => Err(libc::EINVAL),
            libc::SIGEV_THREAD => prepare_thread(event),
            _ => Ok(Prepared::Nothing),
        }
    }
}

/// # Safety
/// As [`prepare`].
#[cold]
unsafe fn prepare_thread(event: *const Sigevent) -> Result<Prepared, c_int> {
    // SAFETY: the caller's contract.
    let Sigevent { function, value, attributes, .. } = unsafe { event.read() };
    let Some(function) = function else { return Ok(Prepared::Nothing) };
    let gate = Arc::new(Gate { open: Mutex::new(()), function, value });
    // SAFETY: the mutex lives as long as the `Arc` beside which the guard is kept; see
    // `Prepared::go`.
    let open: &'static Mutex<()> = unsafe { &(*Arc::as_ptr(&gate)).open };
    let closed = open.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's contract.
    unsafe { make_thread(attributes, &gate) }?;
    Ok(Prepared::Thread(gate, Some(closed)))
}

/// # Safety
/// As [`prepare`].
unsafe fn make_thread(
    attributes: *const libc::pthread_attr_t,
    gate: &Arc<Gate>,
) -> Result<(), c_int> {
    type Run = extern "C" fn(*mut c_void) -> *mut c_void;
    type Unwinds = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    // SAFETY: the C library can unwind a thread through `run`. The two types differ only because
    // the `libc` crate declares pthread_create(3) with a function that does not unwind.
    let run = unsafe { std::mem::transmute::<Unwinds, Run>(run) };
    let argument = Arc::into_raw(Arc::clone(gate));
    let mut thread = 0;
    // SAFETY: attributes of the program's or of ours; `run` takes the argument.
    let made = unsafe {
        if attributes.is_null() {
            let mut detached = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut detached);
            libc::pthread_attr_setdetachstate(&raw mut detached, libc::PTHREAD_CREATE_DETACHED);
            let argument = argument.cast_mut().cast();
            let made = libc::pthread_create(&raw mut thread, &raw const detached, run, argument);
            libc::pthread_attr_destroy(&raw mut detached);
            made
        } else {
            libc::pthread_create(&raw mut thread, attributes, run, argument.cast_mut().cast())
        }
    };
    if made != 0 {
        // SAFETY: no thread was made, so the reference is still this function's.
        drop(unsafe { Arc::from_raw(argument) });
        return Err(made);
    }
    Ok(())
}

/// The thread of a notification, with all signals unblocked, as in the C library. The program's
/// function may end the thread, so this frame has nothing to drop. `argument` is a reference to a
/// [`Gate`].
extern "C-unwind" fn run(argument: *mut c_void) -> *mut c_void {
    // SAFETY: from `make_thread`, and taken once.
    let gate = unsafe { Arc::from_raw(argument.cast::<Gate>()) };
    let (function, value) = (gate.function, gate.value);
    drop(gate.open.lock().unwrap_or_else(PoisonError::into_inner));
    drop(gate);
    front::unblock_signals();
    // SAFETY: the program's function, with its value.
    unsafe { function(value) };
    std::ptr::null_mut()
}

impl Prepared {
    /// Sends the notification. A signal is lost if the user has too many pending signals.
    #[inline]
    pub(crate) fn go(self) {
        match self {
            Self::Nothing => {}
            Self::Signal { signo, value } => queue_signal(signo, value),
            Self::Thread(gate, closed) => {
                // The order matters: the guard refers to the mutex inside the gate.
                drop(closed);
                drop(gate);
            }
        }
    }
}

/// Sends the notification of a list.
///
/// # Safety
/// As [`prepare`].
pub(crate) unsafe fn send(event: *const Sigevent) {
    // SAFETY: the caller's contract.
    if let Ok(prepared) = unsafe { prepare(event) } {
        prepared.go();
    }
}

/// sigqueue(3) to this process, with the code of asynchronous I/O.
#[cold]
fn queue_signal(signo: c_int, value: usize) {
    /// `siginfo_t` with the fields of sigqueue(3).
    #[repr(C)]
    struct Info {
        signo: c_int,
        errno: c_int,
        code: c_int,
        pad: c_int,
        pid: libc::pid_t,
        uid: libc::uid_t,
        value: usize,
        rest: [u8; 128 - 32],
    }
    const { assert!(size_of::<Info>() == size_of::<libc::siginfo_t>()) };
    // SAFETY: getpid(2) and getuid(2) take no arguments and cannot fail.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let info = Info { signo, errno: 0, code: SI_ASYNCIO, pad: 0, pid, uid, value, rest: [0; 96] };
    // SAFETY: `Info` is as long as a siginfo_t, and has its layout for signals of a process.
    front::queue_signal(signo, unsafe { &*(&raw const info).cast::<libc::siginfo_t>() });
}
