//! Deadlines: one thread for the whole process, which sleeps until the first of them. It is made
//! with the first deadline, and ends when there was none for a while.
//!
//! A deadline is armed with an object to call, and disarmed when it is not needed any more. This
//! module does not know what deadlines are for.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::Threads;
use crate::process;
use crate::queue::Sleep;
use crate::router::tuning::RETIRE_AFTER;
use crate::sync::lock;

/// The object that a deadline calls.
pub trait Expire: Send + Sync {
    /// Called when the deadline has passed, by the thread of all deadlines, with no lock held. It
    /// must not block.
    fn expire(&self);
}

/// A deadline that was armed. Dropping it leaves the deadline armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armed {
    key: Key,
    generation: u64,
}

impl Armed {
    /// Calls `what` at `deadline` (`CLOCK_MONOTONIC`), or a little later; at once, if that time is
    /// past.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOMEM`: the thread of all deadlines does not exist and cannot be made.
    pub fn new(deadline: Instant, what: Arc<dyn Expire>) -> io::Result<Self> {
        let threads = Threads::of_this_process();
        let make = || threads.spawner.spawn("timer", move || threads.timers.run());
        let key = threads.timers.arm(deadline, what, make)?;
        Ok(Self { key, generation: process::generation() })
    }

    /// True: `what` will not be called. False: `what` was called or is being called, or the
    /// deadline was disarmed before. In the child of a fork, where the parent's deadlines do not
    /// exist: true.
    pub fn disarm(self) -> bool {
        self.generation != process::generation()
            || Threads::of_this_process().timers.disarm(self.key)
    }
}

/// The time, and a number that distinguishes deadlines of the same time.
type Key = (Instant, u64);

pub(crate) struct Timers {
    state: Mutex<TimerState>,
    wake: Sleep,
}

struct TimerState {
    armed: BTreeMap<Key, Arc<dyn Expire>>,
    last: u64,
    alive: bool,
    /// The end of the thread's sleep; `None` while it is awake.
    sleeps_until: Option<Instant>,
}

/// What the thread does next.
enum NextDeadline {
    Expire(Vec<Arc<dyn Expire>>),
    Sleep(u32, Instant),
    /// Nothing is armed: the thread sleeps, and ends if that stays so.
    Idle(u32, Instant),
}

impl Timers {
    pub(crate) fn new() -> Self {
        let (armed, last, alive, sleeps_until) = (BTreeMap::new(), 0, false, None);
        Self {
            state: Mutex::new(TimerState { armed, last, alive, sleeps_until }),
            wake: Sleep::new(),
        }
    }

    /// Arms a deadline; `make` makes the thread.
    fn arm(
        &self,
        deadline: Instant,
        what: Arc<dyn Expire>,
        make: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Key> {
        let mut state = lock(&self.state);
        if !state.alive {
            // The lock is held, so that nobody counts on a thread that cannot be made.
            make()?;
            state.alive = true;
        }
        state.last += 1;
        let key = (deadline, state.last);
        state.armed.insert(key, what);
        let is_earlier = state.sleeps_until.is_some_and(|until| deadline < until);
        drop(state);
        if is_earlier {
            self.rouse();
        }
        Ok(key)
    }

    fn disarm(&self, key: Key) -> bool {
        let mut state = lock(&self.state);
        let gone = state.armed.remove(&key);
        // Without a deadline the thread must not sleep on until a distant time.
        let oversleeps = state.armed.is_empty()
            && state.sleeps_until.is_some_and(|until| until > Instant::now() + RETIRE_AFTER);
        if oversleeps {
            // The thread is woken once, even if more deadlines are disarmed before it runs.
            state.sleeps_until = None;
        }
        drop(state);
        if oversleeps {
            self.rouse();
        }
        gone.is_some()
    }

    fn rouse(&self) {
        self.wake.change();
        self.wake.wake_all();
    }

    fn next(&self) -> NextDeadline {
        let mut state = lock(&self.state);
        // The ticket is taken under the lock. A thread that changes the deadlines later changes the
        // word later, too.
        let ticket = self.wake.ticket();
        let now = Instant::now();
        let mut due = Vec::new();
        while let Some(first) = state.armed.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        if !due.is_empty() {
            state.sleeps_until = None;
            return NextDeadline::Expire(due);
        }
        match state.armed.first_key_value() {
            Some((&(until, _), _)) => {
                state.sleeps_until = Some(until);
                NextDeadline::Sleep(ticket, until)
            }
            None => {
                let until = now + RETIRE_AFTER;
                state.sleeps_until = Some(until);
                NextDeadline::Idle(ticket, until)
            }
        }
    }

    /// The main loop of the thread.
    fn run(&self) {
        loop {
            let (ticket, until, idle) = match self.next() {
                NextDeadline::Expire(due) => {
                    due.iter().for_each(|what| what.expire());
                    continue;
                }
                NextDeadline::Sleep(ticket, until) => (ticket, until, false),
                NextDeadline::Idle(ticket, until) => (ticket, until, true),
            };
            let time = until.saturating_duration_since(Instant::now());
            self.wake.sleep(ticket, Some(time), false);
            if idle && self.retires(until) {
                return;
            }
        }
    }

    /// Does the thread end now? It does if no deadline was armed until `until`.
    fn retires(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        let retires = state.armed.is_empty() && Instant::now() >= until;
        if retires {
            state.alive = false;
            state.sleeps_until = None;
        }
        retires
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Sends the timer's number when it expires.
    struct Tell(u32, Mutex<Sender<u32>>);

    impl Expire for Tell {
        fn expire(&self) {
            let _ = lock(&self.1).send(self.0);
        }
    }

    const FAR: Duration = Duration::from_secs(3600);

    #[test]
    fn deadlines_are_called_in_their_order_and_not_before_them() {
        let (sender, receiver) = channel();
        let begin = Instant::now();
        let arm = |number: u32, after: Duration| {
            let tell = Tell(number, Mutex::new(sender.clone()));
            Armed::new(begin + after, Arc::new(tell)).unwrap()
        };
        let far = arm(9, FAR);
        for number in [3, 1, 2] {
            arm(number, Duration::from_millis(50) * number);
        }
        let gone = arm(8, Duration::from_millis(120));
        assert!(gone.disarm());
        for number in 1..=3 {
            assert_eq!(receiver.recv().unwrap(), number);
            assert!(begin.elapsed() >= Duration::from_millis(50) * number);
        }
        assert!(!gone.disarm() && far.disarm() && !far.disarm());
        // A deadline in the past is called at once.
        let past = arm(7, Duration::ZERO);
        assert_eq!(receiver.recv().unwrap(), 7);
        assert!(!past.disarm());
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn many_threads_arm_and_disarm_and_each_deadline_is_called_or_disarmed() {
        const EACH: u32 = 2000;
        let (sender, receiver) = channel();
        let disarmed: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        let armed: Vec<_> = (0..EACH)
                            .map(|number| {
                                let after = match number % 3 {
                                    0 => FAR,
                                    _ => Duration::from_micros(u64::from(number) * 7 % 900),
                                };
                                let tell = Tell(number, Mutex::new(sender.clone()));
                                Armed::new(Instant::now() + after, Arc::new(tell)).unwrap()
                            })
                            .collect();
                        armed.into_iter().filter(|armed| armed.disarm()).count() as u32
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        drop(sender);
        // The channel ends when the last deadline was dropped.
        let called = receiver.iter().count() as u32;
        assert_eq!(called + disarmed, 4 * EACH);
        assert!(disarmed >= 4 * EACH / 3);
    }

    #[test]
    fn without_a_thread_nothing_is_armed() {
        let (sender, _) = channel();
        let timers = Timers::new();
        let tell: Arc<dyn Expire> = Arc::new(Tell(1, Mutex::new(sender)));
        let kind = io::ErrorKind::WouldBlock;
        let error = timers.arm(Instant::now(), Arc::clone(&tell), || Err(kind.into())).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(Arc::strong_count(&tell), 1);
        // The next deadline tries again to make the thread.
        let mut made = false;
        let armed = timers.arm(Instant::now() + FAR, tell, || {
            made = true;
            Ok(())
        });
        assert!(made && timers.disarm(armed.unwrap()));
    }

    /// The test takes the steps of the thread.
    #[test]
    fn the_thread_sleeps_for_the_first_deadline_and_ends_when_idle() {
        let (sender, _) = channel();
        let timers = Timers::new();
        let tell: Arc<dyn Expire> = Arc::new(Tell(1, Mutex::new(sender)));
        let begin = Instant::now();
        let arm = |after| timers.arm(begin + after, Arc::clone(&tell), || Ok(())).unwrap();
        let far = arm(2 * FAR);
        let NextDeadline::Sleep(ticket, until) = timers.next() else { panic!("there is one") };
        assert_eq!(until, begin + 2 * FAR);
        // An earlier deadline ends the sleep; a later one does not.
        let earlier = arm(FAR);
        assert_ne!(timers.wake.ticket(), ticket);
        let NextDeadline::Sleep(ticket, until) = timers.next() else { panic!("there are two") };
        assert_eq!(until, begin + FAR);
        assert!(timers.disarm(arm(3 * FAR)) && timers.disarm(far));
        assert_eq!(timers.wake.ticket(), ticket);
        // Disarming the last deadline ends the sleep, too, once.
        assert!(timers.disarm(earlier));
        let roused = timers.wake.ticket();
        assert_ne!(roused, ticket);
        assert!(timers.disarm(arm(FAR)));
        assert_eq!(timers.wake.ticket(), roused);
        let NextDeadline::Idle(_, until) = timers.next() else { panic!("there is none") };
        assert!(!timers.retires(until), "the time is not over");
        assert!(timers.retires(Instant::now()) && !lock(&timers.state).alive);
    }
}
