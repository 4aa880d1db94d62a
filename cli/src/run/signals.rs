//! Waits for a child and passes signals on to it, without a handler and without a race.
//!
//! The signals are blocked and taken one by one with sigtimedwait(2), so nothing can
//! interrupt us between the child's end and the summary.

#![allow(unsafe_code)]

use crate::observe;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::{Duration, Instant};

/// Those that a person or a supervisor sends; passed on to the child.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Starts the command and waits until it has ended. `started` gets its process id, `tick` is called at
/// every `interval` meanwhile.
///
/// The signals stay blocked in this thread afterwards: the process is about to end, and the
/// summary comes first.
///
/// # Errors
/// The command could not be started.
pub fn run_to_the_end(
    command: &mut Command,
    started: impl FnOnce(u32),
    interval: Option<Duration>,
    mut tick: impl FnMut(),
) -> io::Result<ExitStatus> {
    let watched = signal_set(PASSED_ON.into_iter().chain([libc::SIGCHLD]));
    let mut before = MaybeUninit::uninit();
    // SAFETY: `watched` is an initialised set, `before` is room for one.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &watched, before.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // SAFETY: pthread_sigmask succeeded, so it wrote the old mask.
    let before = unsafe { before.assume_init() };
    let restore = move || {
        // SAFETY: `before` is an initialised set; pthread_sigmask is async-signal-safe.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    };
    // SAFETY: the closure runs between fork and exec; it allocates nothing and makes one
    // async-signal-safe call.
    unsafe { command.pre_exec(restore) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            restore()?;
            return Err(error);
        }
    };
    started(child.id());
    let pid = libc::pid_t::try_from(child.id()).expect("a process id is a pid_t");
    let mut due = interval.map(|interval| Instant::now() + interval);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let (Some(at), Some(interval)) = (due, interval)
            && Instant::now() >= at
        {
            tick();
            due = Some(observe::next(at, interval));
        }
        let Some(info) = take_signal(&watched, due) else { continue };
        if info.si_signo == libc::SIGCHLD {
            continue;
        }
        // A terminal (SI_KERNEL) signals its whole foreground group, the child included: once is enough.
        if info.si_code != libc::SI_KERNEL {
            // SAFETY: no memory is involved, and the child has not been waited for, so its
            // process id cannot belong to another process.
            unsafe { libc::kill(pid, info.si_signo) };
        }
    }
}

/// The next signal of the set; `None` if something else was there, or none came until `due`.
fn take_signal(watched: &libc::sigset_t, due: Option<Instant>) -> Option<libc::siginfo_t> {
    let time = due.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        let (tv_sec, tv_nsec) = (left.as_secs() as libc::time_t, left.subsec_nanos().into());
        libc::timespec { tv_sec, tv_nsec }
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: an initialised set, room for one siginfo_t, and a timespec or null, which waits for ever.
    let signal = unsafe { libc::sigtimedwait(watched, info.as_mut_ptr(), time) };
    // SAFETY: a signal was returned, so the siginfo was written.
    (signal > 0).then(|| unsafe { info.assume_init() })
}

fn signal_set(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is room for one set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset initialises the set and cannot fail on a valid pointer.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: `set` is an initialised set; the signals are valid numbers.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}
