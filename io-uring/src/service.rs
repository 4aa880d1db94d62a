//! One thread for the polls of all rings of the process: it sleeps in epoll_wait(2), and is gone
//! when it has had nothing to do for a while.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uringlet::front::{self, OwnDescriptor, PerProcess};

use crate::sys;

/// Without anything to do the thread ends after this.
const RETIRE_NS: u64 = 2_000_000_000;
/// The token of the descriptor that wakes the thread.
const WAKE: u64 = u64::MAX;

/// What is told of events: a ring.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// A descriptor that the request with this key watches is ready.
    fn on_poll(self: Arc<Self>, key: u64, seen: u32);
}

/// How a descriptor is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) events: u32,
    /// It stays after an event, and tells of the next edge.
    pub(crate) multi: bool,
}

impl Watch {
    /// What is watched for the events that a program asks for.
    pub(crate) fn of(events: u32, multi: bool) -> Self {
        const OURS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
        Self { events: events & !OURS & 0xffff, multi }
    }
}

/// Polls that one registration serves.
#[derive(Debug)]
struct Group {
    /// The number that is registered: the program's, or that of `copy`.
    fd: i32,
    copy: Option<OwnDescriptor>,
    /// The program's number, as it was.
    number: i32,
    watch: Watch,
    /// By ring and request.
    members: HashMap<(usize, u64), Arc<dyn Watcher>>,
}

#[derive(Debug, Default)]
struct ServiceState {
    epoll: Option<OwnDescriptor>,
    wake: Option<OwnDescriptor>,
    alive: bool,
    groups: HashMap<u64, Group>,
    /// Groups that take more members, by the program's number. A number has few of them.
    open: HashMap<i32, Vec<(Watch, u64)>>,
    /// Registered under the program's own number.
    plain: HashMap<i32, u64>,
    next: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Service {
    state: Mutex<ServiceState>,
    /// Groups, for who only wants to know whether there are any.
    groups: AtomicUsize,
}

static SERVICE: PerProcess<Service> = PerProcess::new();

fn current() -> Option<&'static Service> {
    SERVICE.current()
}

/// That of this process. The child of a fork has one of its own.
fn of_this_process() -> &'static Service {
    let Ok(service) = SERVICE.current_or(|| Ok::<_, Infallible>(Service::default()));
    service
}

/// A poll that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll(u64);

/// Watches a descriptor: [`Watcher::on_poll`] is called with its events.
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
    if !watch.multi
        && let Some(token) = state.open_group(fd, watch)
        && let Some(group) = state.groups.get_mut(&token)
    {
        group.members.insert((Arc::as_ptr(&watcher).addr(), key), watcher);
        return Ok(Poll(token));
    }
    let epoll = state.epoll()?;
    state.next += 1;
    let token = state.next;
    let edge = if watch.multi { libc::EPOLLET as u32 } else { 0 };
    let add = |fd| sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, watch.events | edge, token);
    let (mut registered, mut copy) = (fd, None);
    // Before it is registered: an event may come at once.
    let is_plain = !state.plain.contains_key(&fd);
    let mut answer = if is_plain { add(fd) } else { -libc::EEXIST };
    if answer == -libc::EEXIST {
        let other = OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)?;
        registered = other.number();
        answer = add(registered);
        copy = Some(other);
    }
    if answer < 0 {
        return Err(answer);
    }
    if copy.is_none() {
        state.plain.insert(fd, token);
    }
    if !watch.multi {
        state.open.entry(fd).or_default().push((watch, token));
    }
    let member = ((Arc::as_ptr(&watcher).addr(), key), watcher);
    let members = HashMap::from([member]);
    state.groups.insert(token, Group { fd: registered, copy, number: fd, watch, members });
    service.groups.store(state.groups.len(), Ordering::Relaxed);
    if !state.alive {
        service.look_again(state);
    }
    Ok(Poll(token))
}

/// A transfer on this descriptor is about to be executed, and may take what a poll waits for: polls
/// that tell once look before it.
pub(crate) fn look(fd: i32) {
    let Some(service) = current().filter(|service| service.groups.load(Ordering::Relaxed) > 0)
    else {
        return;
    };
    let found: Vec<(u64, u32)> = {
        let state = service.lock();
        if !state.plain.contains_key(&fd) {
            return;
        }
        let of_it = state.open.get(&fd).into_iter().flatten();
        of_it.map(|&(watch, token)| (token, watch.events)).collect()
    };
    for (token, events) in found {
        let seen = sys::poll_now(fd, (events & 0xffff) as i16);
        if seen > 0 {
            service.happened(token, seen as u32);
        }
    }
}

/// Is this the number of an epoll?
pub(crate) fn is_epoll(fd: i32) -> bool {
    let mut state = of_this_process().lock();
    let _made = state.epoll();
    // A descriptor that is in no epoll of the program's.
    let own = state.wake.as_ref().map_or(-1, OwnDescriptor::number);
    sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, own, 0, 0) == -libc::ENOENT
}

/// Tells of what has happened by now, in place of the thread.
pub(crate) fn look_at_all() {
    let Some(service) = current().filter(|service| service.groups.load(Ordering::Relaxed) > 0)
    else {
        return;
    };
    let Ok(epoll) = service.lock().epoll() else { return };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    let count = sys::epoll_wait(epoll, &mut events, Some(0));
    for event in &events[..usize::try_from(count).unwrap_or(0)] {
        if event.u64 != WAKE {
            service.happened(event.u64, event.events);
        }
    }
}

/// Has a poll that tells many times look for other events, and at once for those that are there.
/// False: it is not watched any more.
pub(crate) fn change(poll: Poll, events: u32) -> bool {
    let Some(service) = current() else { return false };
    let mut state = service.lock();
    let Ok(epoll) = state.epoll() else { return false };
    let Some(group) = state.groups.get_mut(&poll.0).filter(|group| group.watch.multi) else {
        return false;
    };
    group.watch.events = events;
    let edge = events | libc::EPOLLET as u32;
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, edge, poll.0) == 0
}

/// Takes a poll back, of the watcher at this address. It may be on its way all the same.
pub(crate) fn unwatch(poll: Poll, key: u64, watcher: usize) {
    let Some(service) = current() else { return };
    let mut state = service.lock();
    let Some(group) = state.groups.get_mut(&poll.0) else { return };
    let _one = group.members.remove(&(watcher, key));
    if group.members.is_empty() {
        state.remove(poll.0);
        service.groups.store(state.groups.len(), Ordering::Relaxed);
    }
}

/// The program is about to close descriptors: what is watched under their numbers gets others.
pub(crate) fn before_close(fds: &RangeInclusive<i32>) {
    let Some(service) = current().filter(|service| service.groups.load(Ordering::Relaxed) > 0)
    else {
        return;
    };
    let mut state = service.lock();
    let Ok(epoll) = state.epoll() else { return };
    let tokens: Vec<u64> =
        state.plain.iter().filter(|(fd, _)| fds.contains(fd)).map(|(_, &token)| token).collect();
    for token in tokens {
        let Some(group) = state.groups.get_mut(&token) else { continue };
        let (fd, watch) = (group.fd, group.watch);
        let edge = if watch.multi { libc::EPOLLET as u32 } else { 0 };
        // Without a free descriptor, no more events are told.
        if let Some(copy) = OwnDescriptor::duplicate(fd) {
            let events = watch.events | edge;
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, copy.number(), events, token);
            group.fd = copy.number();
            group.copy = Some(copy);
        }
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
        state.plain.remove(&fd);
    }
    state.open.retain(|fd, _| !fds.contains(fd));
}

impl ServiceState {
    fn epoll(&mut self) -> Result<i32, i32> {
        if self.epoll.is_none() {
            let (epoll, wake) = (sys::epoll_create(), sys::eventfd());
            if epoll < 0 || wake < 0 {
                [epoll, wake].into_iter().filter(|&fd| fd >= 0).for_each(|fd| _ = sys::close(fd));
                return Err(epoll.min(wake));
            }
            // Out of the way of the numbers that programs expect.
            let own = |fd: OwnedFd| {
                OwnDescriptor::duplicate(fd.as_raw_fd()).unwrap_or_else(|| OwnDescriptor::adopt(fd))
            };
            // SAFETY: made above, and nobody else's.
            let (epoll, wake) =
                unsafe { (own(OwnedFd::from_raw_fd(epoll)), own(OwnedFd::from_raw_fd(wake))) };
            let (add, events) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32);
            sys::epoll_ctl(epoll.number(), add, wake.number(), events, WAKE);
            (self.epoll, self.wake) = (Some(epoll), Some(wake));
        }
        Ok(self.epoll.as_ref().map_or(-1, OwnDescriptor::number))
    }

    /// The group of a number that takes more members, if there is one.
    fn open_group(&self, fd: i32, watch: Watch) -> Option<u64> {
        let found = self.open.get(&fd)?.iter().find(|(other, _)| *other == watch);
        found.map(|&(_, token)| token)
    }

    /// Forgets a group.
    fn remove(&mut self, token: u64) -> Option<Group> {
        let group = self.groups.remove(&token)?;
        if let Some(epoll) = &self.epoll {
            sys::epoll_ctl(epoll.number(), libc::EPOLL_CTL_DEL, group.fd, 0, 0);
        }
        if group.copy.is_none() {
            self.plain.remove(&group.fd);
        }
        if let Some(open) = self.open.get_mut(&group.number) {
            open.retain(|&(_, other)| other != token);
            if open.is_empty() {
                self.open.remove(&group.number);
            }
        }
        Some(group)
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, ServiceState> {
        // Nothing in the critical sections panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look at the lists again, or makes it.
    fn look_again(&'static self, mut state: MutexGuard<'_, ServiceState>) {
        if state.alive {
            if let Some(wake) = &state.wake {
                sys::eventfd_set(wake.number());
            }
            return;
        }
        let Ok(epoll) = state.epoll() else { return };
        state.alive = true;
        drop(state);
        if front::spawn("ring", move || self.run(epoll)).is_err() {
            self.lock().alive = false;
        }
    }

    fn run(&self, epoll: i32) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            let idle = self.lock().groups.is_empty();
            let count = sys::epoll_wait(epoll, &mut events, idle.then_some(RETIRE_NS));
            if count == 0 && idle {
                let mut state = self.lock();
                if state.groups.is_empty() {
                    state.alive = false;
                    return;
                }
            }
            for event in &events[..usize::try_from(count).unwrap_or(0)] {
                let (token, seen) = (event.u64, event.events);
                if token == WAKE {
                    if let Some(wake) = &self.lock().wake {
                        sys::eventfd_clear(wake.number());
                    }
                    continue;
                }
                self.happened(token, seen);
            }
        }
    }

    fn happened(&self, token: u64, seen: u32) {
        let members = {
            let mut state = self.lock();
            match state.groups.get(&token) {
                None => return,
                Some(group) if group.watch.multi => group.members.clone(),
                Some(_) => {
                    let group = state.remove(token);
                    self.groups.store(state.groups.len(), Ordering::Relaxed);
                    group.map(|group| group.members).unwrap_or_default()
                }
            }
        };
        for ((_, key), watcher) in members {
            watcher.on_poll(key, seen);
        }
    }
}
