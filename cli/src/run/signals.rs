//! Waits for a child and passes signals on to it, without a handler and without a race.
//!
//! The signals are blocked and taken one by one with sigtimedwait(2), so nothing can
//! interrupt us between the child's end and the summary.

#![allow(unsafe_code)]

use crate::observe;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::{Duration, Instant};

/// Those that a person or a supervisor sends; passed on to the child.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Starts the command and waits until it has ended. `started` gets its process id, `tick` is called
/// at every `interval` meanwhile.
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
    let watched: SigSet = PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
    let before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let restore = move || before.thread_set_mask().map_err(io::Error::from);
    let begin = move || {
        // Whoever kills us means the program.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        restore()
    };
    // SAFETY: the closure runs between fork and exec; it allocates nothing and makes two
    // async-signal-safe calls, prctl(2) and pthread_sigmask(3).
    unsafe { command.pre_exec(begin) };
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
        // A terminal (SI_KERNEL) signals its whole foreground group, the child included: once is
        // enough.
        if info.si_code != libc::SI_KERNEL {
            // SAFETY: no memory is involved, and the child has not been waited for, so its
            // process id cannot belong to another process.
            unsafe { libc::kill(pid, info.si_signo) };
        }
    }
}

/// The next signal of the set; `None` if something else was there, or none came until `due`.
fn take_signal(watched: &SigSet, due: Option<Instant>) -> Option<libc::siginfo_t> {
    let time = due.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        let (tv_sec, tv_nsec) = (left.as_secs() as libc::time_t, left.subsec_nanos().into());
        libc::timespec { tv_sec, tv_nsec }
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: an initialised set, room for one siginfo_t, and a timespec or null, which waits for
    // ever.
    let signal = unsafe { libc::sigtimedwait(watched.as_ref(), info.as_mut_ptr(), time) };
    // SAFETY: a signal was returned, so the siginfo was written.
    (signal > 0).then(|| unsafe { info.assume_init() })
}
