//! Waits for a child and passes signals on to it, without a handler and without a race.
//!
//! Signals are blocked and read one by one from a signalfd(2). So none of them can end this process
//! between the child's end and the summary. Signals that stop a process stay unblocked. A terminal
//! sends these to the child as well, and a shell has to see that this process is stopped, too.

#![allow(unsafe_code)]

use super::inherited;
use crate::observe;
use libc::{c_int, pid_t, signalfd_siginfo};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// The signals that a terminal sends to its foreground group.
const OF_TERMINALS: [c_int; 5] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGCONT, libc::SIGWINCH];

/// The signals that stop a process unless it handles them.
const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

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
    let mut watched = SigSet::all();
    STOPS.into_iter().for_each(|signal| watched.remove(signal));
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let restore = move || before.thread_set_mask().map_err(io::Error::from);
    let own = rustix::process::getpid();
    let begin = move || {
        // If this command is killed, the kernel kills the program, too.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The first process of a new PID namespace has no parent that it could see.
        if rustix::process::getppid().is_some_and(|parent| parent != own) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        inherited::restore();
        restore()
    };
    // SAFETY: the closure runs between fork and exec; it allocates nothing and makes only
    // async-signal-safe calls: prctl(2), getppid(2), pthread_sigmask(3), and those of `inherited`.
    unsafe { command.pre_exec(begin) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            restore()?;
            return Err(error);
        }
    };
    started(child.id());
    let mut due = interval.map(|interval| Instant::now() + interval);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        remove_other_zombies(child.id().cast_signed());
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
        // The child was not waited for yet, so its process id is not reused.
        let child = child.id().cast_signed();
        if passes_on(&info, Places::of(child)) {
            pass_on(&info, child);
        }
    }
}

/// Ends this process by the signal that has ended the program: shells and supervisors tell such an
/// end from an exit status. Returns the exit status if there was no such signal, or if the process
/// is the first of its PID namespace, which the signal does not end.
pub fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // SAFETY: the calls take numbers, and a set that lives across them. The signal's action is
        // to end this process, as was the program's.
        unsafe {
            // The program has left a core file, if any.
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(signal);
        }
    }
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Waits for other processes that have ended, until none is left or the child has ended, too. The
/// first process of a container becomes the parent of each process whose parent has ended.
fn remove_other_zombies(child: pid_t) {
    loop {
        // SAFETY: each field of the structure may be zero.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG;
        // SAFETY: the call writes to the structure. With WNOWAIT, it reaps no process.
        let found = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options | libc::WNOWAIT) };
        // SAFETY: a successful call sets the number of a process, or leaves 0.
        let other = unsafe { info.si_pid() };
        if found != 0 || other == 0 || other == child {
            return;
        }
        // SAFETY: as above. No other thread of this process waits for children.
        unsafe { libc::waitid(libc::P_PID, other.cast_unsigned(), &raw mut info, options) };
    }
}

/// What decides whether the child has got a signal that this process has got.
#[derive(Clone, Copy)]
struct Places {
    child: pid_t,
    own: pid_t,
    /// Both are in one process group. A program such as timeout(1) makes a group of its own.
    same_group: bool,
    /// This process leads its session. If the terminal goes away, the leader alone is told.
    leads: bool,
}

impl Places {
    fn of(child: pid_t) -> Self {
        // In a container, the leader of the group or of the session may be outside. Its number is
        // 0 then, which rustix cannot represent.
        // SAFETY: the calls take and return numbers.
        let (own, group, session) = unsafe { (libc::getpid(), libc::getpgid(0), libc::getsid(0)) };
        // SAFETY: as above. An error means that the child has ended.
        let same_group = unsafe { libc::getpgid(child) } == group;
        Self { child, own, same_group, leads: session == own }
    }
}

/// Is this signal passed on to the child?
fn passes_on(info: &signalfd_siginfo, places: Places) -> bool {
    let signal = info.ssi_signo.cast_signed();
    // These codes say that a process has sent the signal. The kernel fills in the sender. For
    // sigqueue(3), the C library does so.
    let sender = info.ssi_pid.cast_signed();
    let is_sent = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
    let is_of_session = matches!(signal, libc::SIGHUP | libc::SIGCONT) && places.leads;
    match signal {
        // A terminal signals its whole foreground group, the child included: it must not get the
        // signal twice.
        _ if info.ssi_code == libc::SI_KERNEL && OF_TERMINALS.contains(&signal) => {
            !places.same_group || is_of_session
        }
        // If the child is the sender, it has signalled its group, and got the signal itself. If
        // this process is the sender, one of its writes has failed (SIGPIPE, SIGXFSZ).
        _ if is_sent && (sender == places.child || sender == places.own) => false,
        // The kernel says that the child has ended, stopped or gone on: not passed on.
        libc::SIGCHLD => is_sent,
        _ => true,
    }
}

/// Sends the signal to the child, with its value if it has one. Real-time signals are not in
/// [`Signal`].
fn pass_on(info: &signalfd_siginfo, child: pid_t) {
    let signal = info.ssi_signo.cast_signed();
    let value = libc::sigval { sival_ptr: info.ssi_ptr as usize as *mut libc::c_void };
    // SAFETY: the call passes the value on as a number.
    let is_queued = || unsafe { libc::sigqueue(child, signal, value) } == 0;
    if info.ssi_code != libc::SI_QUEUE || !is_queued() {
        // SAFETY: kill(2) takes two numbers. An error means that the child has ended.
        unsafe { libc::kill(child, signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_passed_on_unless_the_child_has_it_already() {
        let (child, own) = (7, 8);
        let here = Places { child, own, same_group: true, leads: false };
        let passes_at = |places, signal: c_int, code: c_int, sender: pid_t| {
            // SAFETY: each field of the structure may be zero.
            let mut info: signalfd_siginfo = unsafe { std::mem::zeroed() };
            info.ssi_signo = signal.cast_unsigned();
            info.ssi_code = code;
            info.ssi_pid = sender.cast_unsigned();
            passes_on(&info, places)
        };
        let passes = |signal, code, sender| passes_at(here, signal, code, sender);
        for signal in 1..=libc::SIGRTMAX() {
            for code in [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL] {
                assert!(passes(signal, code, 9), "signal {signal}, code {code}");
                assert!(!passes(signal, code, child), "signal {signal}, code {code}");
                assert!(!passes(signal, code, own), "signal {signal}, code {code}");
            }
            let is_of_terminals = OF_TERMINALS.contains(&signal);
            let comes_from_child = signal == libc::SIGCHLD;
            let expected = !is_of_terminals && !comes_from_child;
            assert_eq!(passes(signal, libc::SI_KERNEL, 0), expected, "signal {signal}");
        }
        let apart = Places { same_group: false, ..here };
        let leader = Places { leads: true, ..here };
        assert!(passes_at(apart, libc::SIGINT, libc::SI_KERNEL, 0), "^C, and the child is apart");
        assert!(passes_at(leader, libc::SIGHUP, libc::SI_KERNEL, 0), "the terminal has gone");
        assert!(!passes_at(leader, libc::SIGINT, libc::SI_KERNEL, 0), "^C");
        assert!(!passes(libc::SIGCHLD, libc::CLD_EXITED, child));
        // A timer that was set before `uringlet run` was executed.
        assert!(passes(libc::SIGALRM, libc::SI_KERNEL, 0));
    }
}
