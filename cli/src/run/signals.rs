//! Waits for a child and passes signals on to it, without a handler and without a race.
//!
//! The signals are blocked and read one by one from a signalfd(2). So none of them can end this
//! process between the child's end and the summary.

#![allow(unsafe_code)]

use crate::observe;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The signals that a person or a supervisor sends; passed on to the child.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Starts the command and waits until it has ended. `started` gets its process id, and `tick` is
/// called at every `interval` meanwhile.
///
/// The signals stay blocked in this thread afterwards: the process is about to end, and the summary
/// comes first.
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
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let restore = move || before.thread_set_mask().map_err(io::Error::from);
    let begin = move || {
        // If this command is killed, the kernel kills the program, too.
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
    let pid = Pid::from_raw(child.id().cast_signed());
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
        let left = due.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An error ends the wait, as a signal or the timeout does.
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], left.as_ref());
        let Some(info) = signals.read_signal()? else { continue };
        let signal = Signal::try_from(info.ssi_signo.cast_signed())?;
        // A terminal (SI_KERNEL) signals its whole foreground group, the child included: it must
        // not get the signal twice.
        if signal != Signal::SIGCHLD && info.ssi_code != libc::SI_KERNEL {
            // The child was not waited for yet, so its process id is not reused.
            let _ = kill(pid, signal);
        }
    }
}
