//! SIGSYS: its handler makes the call in the place of the instruction. Once the handler is set,
//! programs must not block the signal: a blocked SIGSYS would end them. Their own handler gets
//! other SIGSYS signals.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use uringlet::front;
use uringlet::front::descriptors::Next;
use uringlet::front::waits::SignalSet;

use super::filter::MARK;
use super::make;
use crate::sigsys::{may_trap, set_of_wait};

static SIGACTION: Next = Next::new(c"sigaction");
static SIGNAL: Next = Next::new(c"signal");
static SIGPROCMASK: Next = Next::new(c"sigprocmask");
static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask");
static SIGSUSPEND: Next = Next::new(c"sigsuspend");

uringlet::at_load!(find);

extern "C" fn find() {
    for next in [&SIGACTION, &SIGNAL, &SIGPROCMASK, &PTHREAD_SIGMASK, &SIGSUSPEND] {
        next.find();
    }
}

/// The fields of siginfo_t for SIGSYS (sigaction(2)).
#[repr(C)]
struct Info {
    signal: c_int,
    errno: c_int,
    code: c_int,
    /// The address after the instruction.
    instruction: usize,
    number: c_int,
    architecture: u32,
}

/// The code of a signal that a filter has sent.
const SYS_SECCOMP: c_int = 1;

/// The program's action for SIGSYS, once this library has set its own handler; null before. Never
/// freed, because a handler may be reading it.
static PROGRAMS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

type Handler = unsafe extern "C-unwind" fn(c_int, *mut Info, *mut c_void);

/// The program's action, if this library has set its own handler for SIGSYS.
#[inline]
fn programs() -> Option<libc::sigaction> {
    // SAFETY: null, or leaked by `set_programs`.
    unsafe { PROGRAMS.load(Ordering::Acquire).as_ref() }.copied()
}

fn set_programs(action: libc::sigaction) {
    PROGRAMS.store(Box::into_raw(Box::new(action)), Ordering::Release);
}

/// Sets the handler permanently. False: it is refused.
pub(super) fn handle() -> bool {
    if programs().is_some() {
        return true;
    }
    // SAFETY: zero is a handler, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = trapped as *const () as usize;
    // A handler of another signal may make a trapped call while this handler waits. This handler
    // runs on the stack of the call: a signal stack can be too small for requests.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: zero is a handler, and an empty mask.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the present action.
    if unsafe { next_sigaction(libc::SIGSYS, std::ptr::null(), &raw mut old) } != 0 {
        return false;
    }
    set_programs(old);
    // SAFETY: the action is complete. Null: the old action is not asked for.
    if unsafe { next_sigaction(libc::SIGSYS, &raw const action, null_mut()) } != 0 {
        PROGRAMS.store(null_mut(), Ordering::Release);
        return false;
    }
    // SAFETY: a set of our own. Null: the old set is not asked for.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGSYS);
        next_mask(&PTHREAD_SIGMASK)(libc::SIG_UNBLOCK, &raw const set, null_mut());
    }
    true
}

/// # Safety
/// Called by the kernel.
unsafe extern "C-unwind" fn trapped(signal: c_int, info: *mut Info, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t.
    let Info { code, errno, number, .. } = *unsafe { &*info };
    if code == SYS_SECCOMP && errno == c_int::from(MARK) {
        let number = i64::from(number);
        // SAFETY: a call of the program's, with the arguments in the registers.
        unsafe { registers::answer(context.cast(), |arguments| make(number, arguments)) };
    } else {
        // SAFETY: as the kernel called us.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Handles a SIGSYS that the program, or another filter, has sent: takes the program's action.
unsafe fn pass_on(signal: c_int, info: *mut Info, context: *mut c_void) {
    match programs() {
        Some(action) if action.sa_sigaction == libc::SIG_IGN => {}
        Some(action) if action.sa_sigaction != libc::SIG_DFL => {
            // SAFETY: the program's handler; one that takes fewer arguments does not look at them.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(action.sa_sigaction) };
            // SAFETY: as the kernel called us.
            unsafe { handler(signal, info, context) };
        }
        _ => {
            // SAFETY: zero is the default action (`SIG_DFL`), which ends the process.
            let action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the action is complete, and the signal is for this thread.
            unsafe {
                next_sigaction(signal, &raw const action, null_mut());
                libc::raise(signal);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RSI, ucontext_t};

    /// # Safety
    /// `context` is the kernel's.
    pub(super) unsafe fn answer(context: *mut ucontext_t, f: impl FnOnce([usize; 6]) -> isize) {
        // SAFETY: the caller's contract.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let arguments = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9];
        let answer = f(arguments.map(|register| registers[register as usize] as usize));
        registers[REG_RAX as usize] = answer as i64;
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use libc::ucontext_t;

    /// # Safety
    /// `context` is the kernel's.
    pub(super) unsafe fn answer(context: *mut ucontext_t, f: impl FnOnce([usize; 6]) -> isize) {
        // SAFETY: the caller's contract.
        let registers = unsafe { &mut (*context).uc_mcontext.regs };
        let answer = f(std::array::from_fn(|at| registers[at] as usize));
        registers[0] = answer as u64;
    }
}

/// # Safety
/// As the C library's sigaction(2).
unsafe fn next_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    type Function =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    let next = front::enter(|| SIGACTION.get());
    // SAFETY: the C library's function, with the arguments of the caller. It sets errno itself.
    unsafe { std::mem::transmute::<*mut c_void, Function>(next)(signal, new, old) }
}

/// # Safety
/// As sigsuspend(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sigsuspend(set: usize) -> c_int {
    type Function = unsafe extern "C-unwind" fn(usize) -> c_int;
    let mut place = SignalSet::default();
    // SAFETY: the caller's contract.
    let set = unsafe { set_of_wait(set, &mut place) };
    let next = front::enter(|| SIGSUSPEND.get());
    // SAFETY: the C library's function, with the set of the caller or a copy of it. It sets errno
    // itself.
    unsafe { std::mem::transmute::<*mut c_void, Function>(next)(set) }
}

/// A set of signals without SIGSYS.
///
/// # Safety
/// As sigdelset(3).
unsafe fn without(mut set: libc::sigset_t) -> libc::sigset_t {
    // SAFETY: a set of our own.
    unsafe { libc::sigdelset(&raw mut set, libc::SIGSYS) };
    set
}

/// # Safety
/// As sigaction(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !may_trap() {
        // SAFETY: the caller's contract.
        return unsafe { next_sigaction(signal, new, old) };
    }
    // SAFETY: the caller's contract.
    let own = unsafe { new.as_ref() }.map(|&action| libc::sigaction {
        // SAFETY: the mask of a valid action is a valid set.
        sa_mask: unsafe { without(action.sa_mask) },
        ..action
    });
    if signal == libc::SIGSYS
        && let Some(programs) = programs()
    {
        // SAFETY: the caller's contract.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = programs;
        }
        if let Some(own) = own {
            set_programs(own);
        }
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { next_sigaction(signal, own.as_ref().map_or(new, std::ptr::from_ref), old) }
}

/// # Safety
/// As signal(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if signal == libc::SIGSYS
        && let Some(programs) = programs()
    {
        // SAFETY: zero is a handler, and an empty mask.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        set_programs(new);
        return programs.sa_sigaction;
    }
    type Function = unsafe extern "C" fn(c_int, usize) -> usize;
    let next = front::enter(|| SIGNAL.get());
    // SAFETY: the C library's function, with the arguments of the caller. It sets errno itself.
    unsafe { std::mem::transmute::<*mut c_void, Function>(next)(signal, handler) }
}

type Mask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

fn next_mask(next: &Next) -> Mask {
    let next = front::enter(|| next.get());
    // SAFETY: one of the C library's two functions of this type.
    unsafe { std::mem::transmute::<*mut c_void, Mask>(next) }
}

/// # Safety
/// As pthread_sigmask(3).
unsafe fn mask(
    next: &Next,
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let next = next_mask(next);
    // SAFETY: the caller's contract.
    let own = unsafe { set.as_ref() }
        .filter(|_| how != libc::SIG_UNBLOCK && may_trap())
        // SAFETY: the set is valid, by the caller's contract.
        .map(|&set| unsafe { without(set) });
    // SAFETY: the C library's function, with the arguments of the caller or a copy of the set. It
    // sets errno itself.
    unsafe { next(how, own.as_ref().map_or(set, std::ptr::from_ref), old) }
}

/// # Safety
/// As sigprocmask(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { mask(&SIGPROCMASK, how, set, old) }
}

/// # Safety
/// As pthread_sigmask(3).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { mask(&PTHREAD_SIGMASK, how, set, old) }
}
