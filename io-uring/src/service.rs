//! The polls of all rings of the process, in one epoll.
//!
//! The *poll thread* sleeps until something is ready, and ends when it has had nothing to do for a
//! while. A thread that waits in io_uring_enter(2) sleeps on the epoll, too, and is preferred
//! (`service/seat.rs`). The thread that takes events out of the epoll reports them to the rings
//! before another thread takes events. So a thread that [looks](look_at_all) has seen all earlier
//! events.

use std::cell::Cell;
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use uringlet::front::{self, Guard, PerProcess, lock, lock_counted};

use crate::sys;
use crate::timers::{self, Expires};
use crate::tuning::{CONFIRM_AFTER_NS, EVENTS, POLL_THREAD_IDLE, POLL_THREAD_LOOK, WAITER_GRACE};

mod groups;
mod seat;
mod stays;

use self::groups::{ALWAYS, COMES, Found, Groups, Member, SEVERAL};
pub(crate) use self::groups::{Events, Watch, Watcher};
use self::seat::Seat;

#[derive(Debug, Default)]
pub(crate) struct Service {
    state: Mutex<Groups>,
    /// Held by the thread that takes events, until it has reported them to the rings.
    takes: Mutex<Vec<libc::epoll_event>>,
    /// As [`Groups::live`], for threads that read it without the lock.
    live: AtomicUsize,
    /// As [`Groups::polls`], likewise.
    polls: AtomicUsize,
    /// Events were taken, and rings have not been notified yet.
    tells: AtomicBool,
    seat: Seat,
    /// As [`Groups::made`] and [`Groups::ring`], for threads that want the seat.
    made: OnceLock<[i32; 2]>,
    ring: AtomicUsize,
}

thread_local! {
    /// This thread is taking events. A signal handler on this thread does not wait until they are
    /// taken.
    static TAKES: Cell<Takes> = const { Cell::new(Takes::No) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    No,
    Yes,
    /// As `Yes`, and a nested call has asked for another look at the events.
    Again,
}

static SERVICE: PerProcess<Service> = PerProcess::new();

/// The service of this process, if any poll is watched, or an event is still to be reported.
fn busy() -> Option<&'static Service> {
    // `live` is read first: for the last one-shot poll, `tells` is set before `live` becomes 0.
    let is_busy = |service: &&Service| {
        service.live.load(Ordering::Acquire) > 0 || service.tells.load(Ordering::Acquire)
    };
    SERVICE.current().filter(is_busy)
}

/// The service of this process, if the program has a poll.
fn polled() -> Option<&'static Service> {
    SERVICE.current().filter(|service| service.polls.load(Ordering::Acquire) > 0)
}

/// Locks the service. `None`: there is none, or this is a signal handler whose thread has this lock
/// or one of the engine's.
fn free(service: Option<&'static Service>) -> Option<(&'static Service, Guard<'static, Groups>)> {
    let service = service.filter(|_| !front::holds_lock())?;
    Some((service, service.lock()))
}

/// The service of this process. The child of a fork has one of its own.
fn of_this_process() -> &'static Service {
    let Ok(service) = SERVICE.current_or(|| Ok::<_, Infallible>(Service::default()));
    service
}

/// A poll that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll(u64);

/// Watches a descriptor: [`Watcher::on_polls`] is called with its events.
///
/// # Errors
/// A negative errno. `-EPERM`: files of this kind are always ready.
pub(crate) fn watch(
    fd: i32,
    watch: Watch,
    watcher: Arc<dyn Watcher>,
    key: u64,
) -> Result<Poll, i32> {
    let service = of_this_process();
    let mut state = service.lock();
    let made = state.made()?;
    let _set_once = service.made.set(made);
    let [epoll, _] = made;
    let watch = Watch { events: watch.events | ALWAYS, ..watch };
    let token = match state.join(epoll, fd, watch) {
        Some(token) => token,
        None => state.register(epoll, fd, watch)?,
    };
    let Watch { events, is_poll, .. } = watch;
    service.enlist(state, (token, key), Member { events, is_poll, watcher })
}

/// As [`watch`], for a receive that waits for an event before its first try. `None`: the receive
/// has to be tried.
pub(crate) fn watch_untried(fd: i32, watcher: Arc<dyn Watcher>, key: u64) -> Option<Poll> {
    let service = SERVICE.current()?;
    let mut state = service.lock();
    let token = state.join_untried(fd)?;
    service.enlist(state, (token, key), Member { events: COMES, is_poll: false, watcher }).ok()
}

/// Is it known that this number is that of a Unix socket?
pub(crate) fn is_unix(fd: i32) -> bool {
    free(SERVICE.current()).is_some_and(|(_, mut state)| state.is_unix(fd))
}

/// Is any poll watched?
#[inline]
pub(crate) fn is_busy() -> bool {
    busy().is_some()
}

/// A transfer on this descriptor is about to be executed, and may take data that polls wait for.
/// Those polls are checked first.
pub(crate) fn look(fd: i32) {
    let Some((service, state)) = free(polled()) else { return };
    let has_polls = state.has_polls(state.plain.get(&fd), u32::MAX);
    drop(state);
    if has_polls {
        service.take();
    }
}

/// A transfer on this descriptor has succeeded, so these events were true. An event that came after
/// [`look`] may have been consumed by the transfer. So the events are reported to one-shot polls.
pub(crate) fn went_through(fd: i32, events: u32) {
    let Some((service, state)) = free(polled()) else { return };
    let has_polls = state.has_polls(state.open.get(&fd), events);
    drop(state);
    if has_polls {
        service.take_with(Some((fd, events)));
    }
}

/// Does this number name an epoll?
pub(crate) fn is_epoll(fd: i32) -> bool {
    // Tries to remove a descriptor that no epoll of the program has: only an epoll answers
    // `-ENOENT`.
    let own = of_this_process().lock().made().map_or(-1, |[_, bell]| bell);
    sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, own, 0, 0) == -libc::ENOENT
}

/// Reports all events up to now, in place of the poll thread.
pub(crate) fn look_at_all() {
    if let Some(service) = busy() {
        service.take();
    }
}

/// The calling thread is about to wait for completions of the ring at this address. If all polls
/// are of that ring, the thread gets the seat (`service/seat.rs`) until it calls [`rise`]. Then
/// this returns the epoll, which reports the ring's events, and an eventfd that only this thread
/// uses. `None`: nothing is polled, or a poll is of another ring.
///
/// # Errors
/// All polls are of that ring, but another thread has the seat.
pub(crate) fn sit(ring: usize) -> Result<Option<[i32; 2]>, ()> {
    let Some(service) = busy().filter(|service| service.is_of(ring)) else { return Ok(None) };
    match service.made.get() {
        Some(_) if !service.seat.take() => Err(()),
        made => Ok(made.copied()),
    }
}

/// Is any poll watched, and are all of the ring at this address?
pub(crate) fn is_of(ring: usize) -> bool {
    busy().is_some_and(|service| service.is_of(ring))
}

/// The calling thread no longer waits. If it has the seat (`service/seat.rs`), it gives it up.
pub(crate) fn rise() {
    if let Some(service) = SERVICE.current() {
        service.seat.leave();
    }
}

/// A thread makes further calls on sockets for events that it has taken. The poll thread sees by
/// this that the thread is still active.
pub(crate) fn goes_on() {
    if let Some(service) = SERVICE.current() {
        service.seat.goes_on();
    }
}

/// As [`Seat::turns`].
#[cfg(test)]
pub(crate) fn turns() -> u32 {
    of_this_process().seat.turns()
}

/// Changes the events of a multishot poll, and reports the events that are true now. False: the
/// poll is no longer watched.
pub(crate) fn change(poll: Poll, events: u32) -> bool {
    let Some(service) = busy() else { return false };
    let mut state = service.lock();
    let Ok(epoll) = state.epoll() else { return false };
    let Some(group) = state.groups.get_mut(&poll.0).filter(|group| group.multi) else {
        return false;
    };
    group.armed = events | ALWAYS;
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, group.mask(), poll.0) == 0
}

/// Stops watching a poll, of the watcher at this address. An event of the poll may still be
/// reported afterwards.
pub(crate) fn unwatch(poll: Poll, key: u64, watcher: usize) {
    let Some(service) = busy() else { return };
    let mut state = service.lock();
    let Some(group) = state.groups.get_mut(&poll.0) else { return };
    let Some(member) = group.members.remove(&(watcher, key)) else { return };
    let is_empty = group.members.is_empty();
    state.polls -= usize::from(member.is_poll);
    if is_empty {
        state.is_empty_now(poll.0);
    }
    service.show(&state);
}

/// The program is about to close descriptors: polls on their numbers get duplicates, and
/// registrations without polls end.
pub(crate) fn before_close(fds: &RangeInclusive<i32>) {
    // Also if no poll is watched: registrations may stay without polls.
    let Some((_, mut state)) = free(SERVICE.current()) else { return };
    let Ok(epoll) = state.epoll() else { return };
    if fds.start() == fds.end() {
        return state.leave_number(epoll, *fds.start());
    }
    let all = state.plain.keys().chain(state.open.keys());
    let closed: Vec<i32> = all.copied().filter(|fd| fds.contains(fd)).collect();
    closed.into_iter().for_each(|fd| state.leave_number(epoll, fd));
}

/// The timer of [`Service::confirm`].
struct Confirms;

impl Expires for Confirms {
    fn on_timer(self: Arc<Self>, _: u64) {
        if let Some(service) = SERVICE.current() {
            service.confirm();
        }
    }
}

impl Service {
    /// Adds a member to a group.
    fn enlist(
        &'static self,
        mut state: Guard<'_, Groups>,
        (token, key): (u64, u64),
        member: Member,
    ) -> Result<Poll, i32> {
        let epoll = state.epoll()?;
        let Some(group) = state.groups.get_mut(&token) else { return Err(-libc::ENOENT) };
        let (is_first, ring) = (group.members.is_empty(), Arc::as_ptr(&member.watcher).addr());
        let is_poll = member.is_poll;
        group.members.insert((ring, key), member);
        let is_alone = state.live == 0 || state.ring == ring;
        state.ring = if is_alone { ring } else { SEVERAL };
        self.ring.store(state.ring, Ordering::Relaxed);
        state.live += usize::from(is_first);
        state.polls += usize::from(is_poll);
        self.show(&state);
        let begins = !std::mem::replace(&mut state.alive, true);
        let is_timed = state.trusted.is_empty() || std::mem::replace(&mut state.is_timed, true);
        drop(state);
        if begins && front::spawn("ring", move || self.run(epoll)).is_err() {
            self.lock().alive = false;
        }
        if !is_timed {
            self.confirm_later();
        }
        Ok(Poll(token))
    }

    /// Sets the timer of [`Service::confirm`]. Members may have joined a group without a system
    /// call. `confirm` registers the number's file again if the number names another file now.
    fn confirm_later(&self) {
        let deadline = sys::now(libc::CLOCK_MONOTONIC).saturating_add(CONFIRM_AFTER_NS);
        if timers::set(deadline, Arc::new(Confirms), 0).is_err() {
            self.lock().is_timed = false;
        }
    }

    fn confirm(&self) {
        let mut state = self.lock();
        let (round, groups) = (state.round, std::mem::take(&mut state.trusted));
        state.round = round.wrapping_add(1);
        drop(state);
        // Other threads can take the lock between two groups.
        for token in groups {
            let odd = self.lock().confirm(token, round);
            if let Some(fd) = odd {
                self.take_with(Some((fd, COMES)));
            }
        }
        let mut state = self.lock();
        state.is_timed = !state.trusted.is_empty();
        let goes_on = state.is_timed;
        drop(state);
        if goes_on {
            self.confirm_later();
        }
    }

    fn lock(&self) -> Guard<'_, Groups> {
        lock_counted(&self.state)
    }

    fn is_of(&self, ring: usize) -> bool {
        self.ring.load(Ordering::Relaxed) == ring
    }

    /// The poll thread. It does not sleep in epoll_wait(2): a thread that looks would miss events
    /// that the poll thread had taken, and not reported yet.
    fn run(&self, epoll: i32) {
        // With the kernel's rings, the program's own thread does this work. So this thread asks to
        // run soon after it is woken.
        front::run_soon();
        let mut turns = self.seat.turns();
        loop {
            let time = if self.lock().live == 0 { POLL_THREAD_IDLE } else { POLL_THREAD_LOOK };
            let woken = sys::poll(epoll, libc::POLLIN, Some(time.as_nanos() as u64));
            let mut state = self.lock();
            if woken == 0 && time == POLL_THREAD_IDLE && state.live == 0 {
                state.alive = false;
                return;
            }
            drop(state);
            if woken != 0
                && self.is_left_to_the_thread(epoll, &mut turns)
                && !self.take()
                && !self.is_of(SEVERAL)
            {
                // A socket stays ready until its next receive is submitted: sleeps instead of
                // spinning.
                std::thread::sleep(WAITER_GRACE);
            }
            // The changes of `turns` that this thread has caused are no sign of a waiter.
            turns = self.seat.turns();
        }
    }

    /// Do waiting threads leave the event to the poll thread? The function waits while they come
    /// and go, because the answer is unknown then. `seen`: the value of `Seat::turns` at the last
    /// call.
    fn is_left_to_the_thread(&self, epoll: i32, seen: &mut u32) -> bool {
        loop {
            let before = std::mem::replace(seen, self.seat.turns());
            if self.is_of(SEVERAL) || before == *seen && !self.seat.is_taken() {
                return true;
            }
            std::thread::sleep(WAITER_GRACE);
            if self.seat.turns() == *seen {
                let is_left = sys::poll_now(epoll, libc::POLLIN) != 0;
                if is_left {
                    self.seat.is_late();
                }
                return is_left;
            }
        }
    }

    /// Takes all events up to now, and tells the rings. False: no ring had an event.
    fn take(&self) -> bool {
        self.take_with(None)
    }

    /// As [`take`](Self::take). `passed`: a descriptor number, and events that were true. The
    /// one-shot polls of that number get these events, too.
    fn take_with(&self, mut passed: Option<(i32, u32)>) -> bool {
        let mut has_told = false;
        if TAKES.get() != Takes::No {
            TAKES.set(Takes::Again);
            return has_told;
        }
        loop {
            TAKES.set(Takes::Yes);
            let told = self.take_once(passed.take());
            has_told |= !told.is_empty();
            told.into_iter().for_each(|after| after());
            if TAKES.replace(Takes::No) == Takes::Yes {
                return has_told;
            }
        }
    }

    #[inline(never)]
    fn take_once(&self, mut passed: Option<(i32, u32)>) -> Vec<Box<dyn FnOnce()>> {
        let mut after = Vec::new();
        let mut events = lock(&self.takes);
        events.resize(EVENTS, libc::epoll_event { events: 0, u64: 0 });
        let Ok(epoll) = self.lock().epoll() else { return after };
        // Each group has at most one event, so that this number of rounds is enough.
        for _ in 0..=self.live.load(Ordering::Relaxed) / EVENTS {
            let count = sys::epoll_wait_now(epoll, &mut events);
            let events = &events[..usize::try_from(count).unwrap_or(0)];
            let found = self.happened(events, passed.take());
            after.extend(found.0.into_iter().map(|(watcher, events)| watcher.on_polls(events)));
            self.tells.store(false, Ordering::Release);
            if events.len() < EVENTS {
                break;
            }
        }
        after
    }

    fn happened(&self, events: &[libc::epoll_event], passed: Option<(i32, u32)>) -> Found {
        let (mut found, mut state) = (Found::default(), self.lock());
        for event in events {
            state.happened(event.u64, event.events, &mut found);
        }
        state.were_taken();
        if let Some((fd, seen)) = passed
            && let Some(&token) = state.open.get(&fd)
        {
            state.happened(token, seen, &mut found);
        }
        self.tells.store(!found.0.is_empty(), Ordering::Relaxed);
        self.show(&state);
        found
    }

    /// Shows the numbers to threads that read them without the lock.
    fn show(&self, state: &Groups) {
        self.live.store(state.live, Ordering::Release);
        self.polls.store(state.polls, Ordering::Release);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(unsafe_code)]

    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use std::time::Duration;

    /// A ring that forwards the events that it gets.
    #[derive(Debug)]
    struct Told(Mutex<Sender<(u64, u32)>>);

    impl Watcher for Told {
        fn on_polls(self: Arc<Self>, events: Events) -> Box<dyn FnOnce()> {
            Box::new(move || {
                let sender = lock(&self.0);
                events.into_iter().for_each(|event| _ = sender.send(event));
            })
        }
    }

    const READS: Watch =
        Watch { events: libc::EPOLLIN as u32, multi: false, stays: false, is_poll: true };

    #[test]
    fn what_a_transfer_has_taken_is_told_to_polls_that_tell_once_and_no_look_finds_any_more() {
        let (sender, events) = channel();
        let watcher: Arc<dyn Watcher> = Arc::new(Told(Mutex::new(sender)));
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let fd = reader.as_raw_fd();
        let poll = |key, multi| watch(fd, Watch { multi, ..READS }, Arc::clone(&watcher), key);
        poll(1, false).expect("a poll");
        let many = poll(2, true).expect("a poll");
        look(fd);
        went_through(fd, libc::EPOLLOUT as u32);
        assert_eq!(events.try_recv().ok(), None);
        went_through(fd, (libc::EPOLLIN | libc::EPOLLRDNORM) as u32);
        went_through(fd, (libc::EPOLLIN | libc::EPOLLRDNORM) as u32);
        assert_eq!(events.try_iter().map(|(key, _)| key).collect::<Vec<_>>(), [1]);
        unwatch(many, 2, Arc::as_ptr(&watcher).addr());
    }

    #[test]
    fn a_handler_that_has_interrupted_its_thread_under_the_lock_waits_for_nothing() {
        let (sender, events) = channel();
        let watcher: Arc<dyn Watcher> = Arc::new(Told(Mutex::new(sender)));
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let fd = reader.as_raw_fd();
        watch(fd, READS, watcher, 1).expect("a poll");
        let interrupted = of_this_process().lock();
        before_close(&(0..=i32::MAX));
        look(fd);
        went_through(fd, libc::EPOLLIN as u32);
        drop(interrupted);
        writer.write_all(b"x").expect("room");
        assert_eq!(events.recv().expect("an event"), (1, libc::EPOLLIN as u32));
    }

    #[test]
    fn the_thread_ends_when_its_last_poll_was_taken_back() {
        let (sender, events) = channel();
        let watcher: Arc<dyn Watcher> = Arc::new(Told(Mutex::new(sender)));
        let [mut ends, others] = [(); 2].map(|()| std::io::pipe().expect("a pipe"));
        let poll = |fd: i32, key| watch(fd, READS, Arc::clone(&watcher), key).expect("a poll");
        // There are two polls, so the poll thread stays after the first event, and sleeps for the
        // second poll.
        poll(ends.0.as_raw_fd(), 1);
        let other = poll(others.0.as_raw_fd(), 2);
        ends.1.write_all(b"x").expect("room");
        assert_eq!(events.recv().expect("an event"), (1, libc::EPOLLIN as u32));
        unwatch(other, 2, Arc::as_ptr(&watcher).addr());
        while of_this_process().lock().alive {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Another thread serves the next poll. The number was given to another file meanwhile.
        let number = others.0.as_raw_fd();
        let mut next = std::io::pipe().expect("a pipe");
        // SAFETY: the number is of this test.
        assert_eq!(unsafe { libc::dup2(next.0.as_raw_fd(), number) }, number);
        poll(number, 3);
        next.1.write_all(b"x").expect("room");
        assert_eq!(events.recv().expect("an event"), (3, libc::EPOLLIN as u32));
    }

    /// A receive has waited for the first socket. Then the socket's number names a second socket,
    /// by a call that the library does not see. `waits` has another receive wait for that number:
    /// the receive has to get an event of the second socket.
    fn reuse_unseen(keeps_first: bool, waits: impl Fn(i32, Arc<dyn Watcher>)) {
        let (sender, events) = channel();
        let watcher: Arc<dyn Watcher> = Arc::new(Told(Mutex::new(sender)));
        let pair = || std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let ([first, mut to_first], [second, mut to_second]) = (pair().into(), pair().into());
        let _first = keeps_first.then(|| first.try_clone().expect("a number"));
        let fd = first.as_raw_fd();
        let stays = Watch { stays: true, ..READS };
        let poll = watch(fd, stays, Arc::clone(&watcher), 1).expect("a poll");
        unwatch(poll, 1, Arc::as_ptr(&watcher).addr());
        sys::replace(fd, second.as_raw_fd());
        let _ = to_first.write_all(b"x");
        waits(fd, watcher);
        to_second.write_all(b"x").expect("room");
        assert!(events.iter().any(|(key, _)| key == 2));
    }

    #[test]
    fn a_receive_that_waits_without_a_call_finds_the_file_that_has_its_number_unseen() {
        reuse_unseen(false, |fd, watcher| {
            watch_untried(fd, watcher, 2).expect("the first receive was tried in vain");
        });
    }

    #[test]
    fn a_file_without_a_number_that_stays_ready_is_forgotten() {
        reuse_unseen(true, |fd, watcher| {
            watch(fd, READS, watcher, 2).expect("a poll");
        });
        let [epoll, _] = of_this_process().lock().made().expect("an epoll");
        while sys::poll_now(epoll, libc::POLLIN) != 0 {
            look_at_all();
            of_this_process().take();
        }
    }
}
