//! The descriptors that the epoll of all rings watches, and the polls of each.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use uringlet::front::OwnDescriptor;

use crate::numbers::ByNumber;
use crate::sys;

/// Requests by their keys, each with the events for it.
pub(crate) type Events = Vec<(u64, u32)>;

/// The receiver of events: a ring.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// The requests with these keys watch descriptors that are ready, with these events. Returns
    /// work to be done without a lock.
    fn on_polls(self: Arc<Self>, events: Events) -> Box<dyn FnOnce()>;
}

/// How a descriptor is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) events: u32,
    /// The poll is a multishot: it stays after an event, and reports the next edge.
    pub(crate) multi: bool,
}

impl Watch {
    /// The watch for the events that a program asks for.
    pub(crate) fn of(events: u32, multi: bool) -> Self {
        const OURS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
        Self { events: events & !OURS & 0xffff, multi }
    }
}

/// A poll of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) events: u32,
    pub(super) watcher: Arc<dyn Watcher>,
}

/// Polls that one registration serves: all one-shot polls of a number, or one multishot poll.
#[derive(Debug)]
pub(super) struct Group {
    /// The registered number: the program's, or that of `copy`.
    pub(super) fd: i32,
    copy: Option<OwnDescriptor>,
    /// The program's number at the registration.
    number: i32,
    pub(super) multi: bool,
    /// The events that the epoll watches: none after it has reported some (`EPOLLONESHOT`).
    pub(super) armed: u32,
    /// The polls by ring and request.
    pub(super) members: ByNumber<(usize, u64), Member>,
}

impl Group {
    /// The events for the epoll.
    pub(super) fn mask(&self) -> u32 {
        self.armed | if self.multi { libc::EPOLLET as u32 } else { libc::EPOLLONESHOT as u32 }
    }

    /// Removes the members that these events are for. A multishot stays.
    fn take_ready(&mut self, seen: u32, found: &mut Found) {
        if self.multi {
            self.members.iter().for_each(|(&(_, key), one)| found.add(&one.watcher, key, seen));
            return;
        }
        for ((_, key), one) in self.members.extract_if(|_, one| seen & one.events != 0) {
            found.add(&one.watcher, key, seen);
        }
        self.armed = self.members.values().fold(0, |events, one| events | one.events);
    }
}

/// Events, by the ring that gets them.
#[derive(Debug, Default)]
pub(super) struct Found(pub(super) Vec<(Arc<dyn Watcher>, Events)>);

impl Found {
    fn add(&mut self, watcher: &Arc<dyn Watcher>, key: u64, seen: u32) {
        // This is most often the ring of the last event.
        let is_it = |(other, _): &&mut (Arc<dyn Watcher>, _)| Arc::ptr_eq(other, watcher);
        match self.0.iter_mut().rev().find(is_it) {
            Some((_, events)) => events.push((key, seen)),
            None => self.0.push((Arc::clone(watcher), vec![(key, seen)])),
        }
    }
}

/// The members are of several rings, or were.
pub(super) const SEVERAL: usize = usize::MAX;

/// The epoll, and its registrations.
#[derive(Debug, Default)]
pub(super) struct Groups {
    epoll: Option<OwnDescriptor>,
    /// An eventfd, for the thread that has the seat.
    bell: Option<OwnDescriptor>,
    pub(super) alive: bool,
    /// A group under the program's own number that has lost its last member stays, for the next
    /// poll.
    pub(super) groups: ByNumber<u64, Group>,
    /// Groups that accept more members, by the program's number.
    pub(super) open: ByNumber<i32, u64>,
    /// Groups that are registered under the program's own number.
    pub(super) plain: ByNumber<i32, u64>,
    next: u64,
    /// The number of groups with members.
    pub(super) live: usize,
    /// The ring of all members, by its address; or [`SEVERAL`].
    pub(super) ring: usize,
}

impl Groups {
    /// The numbers of the epoll and the eventfd.
    pub(super) fn made(&mut self) -> Result<[i32; 2], i32> {
        if self.epoll.is_none() {
            let (epoll, bell) = (sys::epoll_create(), sys::eventfd());
            if epoll < 0 || bell < 0 {
                [epoll, bell].into_iter().filter(|&fd| fd >= 0).for_each(|fd| _ = sys::close(fd));
                return Err(epoll.min(bell));
            }
            // The copies have numbers that programs do not expect.
            let own = |fd: i32| match OwnDescriptor::duplicate(fd) {
                Some(own) => {
                    // The descriptor is not closed as the program's: that asks all rings, and their
                    // locks may be held by threads that wait for this one.
                    sys::close(fd);
                    own
                }
                // SAFETY: made above, and nobody else's.
                None => OwnDescriptor::adopt(unsafe { OwnedFd::from_raw_fd(fd) }),
            };
            (self.epoll, self.bell) = (Some(own(epoll)), Some(own(bell)));
        }
        Ok([&self.epoll, &self.bell].map(|one| one.as_ref().map_or(-1, OwnDescriptor::number)))
    }

    pub(super) fn epoll(&mut self) -> Result<i32, i32> {
        self.made().map(|[epoll, _]| epoll)
    }

    /// Adds a poll to the group of a number, and has the epoll watch its events.
    pub(super) fn join(&mut self, epoll: i32, fd: i32, watch: Watch) -> Option<u64> {
        let token = *self.open.get(&fd).filter(|_| !watch.multi)?;
        let group = self.groups.get_mut(&token)?;
        let before = group.armed;
        group.armed |= watch.events;
        if group.armed == before
            || sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, group.mask(), token) == 0
        {
            return Some(token);
        }
        // The number names another file now.
        self.forget_number(fd, token);
        None
    }

    /// A new group without members.
    pub(super) fn register(&mut self, epoll: i32, fd: i32, watch: Watch) -> Result<u64, i32> {
        let plain = self.plain.get(&fd).copied();
        let is_used = |token| self.groups.get(token).is_some_and(|one| !one.members.is_empty());
        let copy = match plain {
            Some(token) if is_used(&token) => {
                Some(OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)?)
            }
            Some(token) => {
                self.forget_number(fd, token);
                None
            }
            None => None,
        };
        let registered = copy.as_ref().map_or(fd, OwnDescriptor::number);
        let (is_plain, Watch { events: armed, multi }) = (copy.is_none(), watch);
        let members = ByNumber::default();
        let group = Group { fd: registered, copy, number: fd, multi, armed, members };
        self.next += 1;
        let (token, mask) = (self.next, group.mask());
        let mut answer = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, registered, mask, token);
        if answer == -libc::EEXIST {
            // The number of a group that is forgotten.
            answer = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, registered, mask, token);
        }
        if answer < 0 {
            return Err(answer);
        }
        if is_plain {
            self.plain.insert(fd, token);
        }
        if !multi {
            self.open.insert(fd, token);
        }
        self.groups.insert(token, group);
        Ok(token)
    }

    /// The epoll has reported events of a group.
    pub(super) fn happened(&mut self, token: u64, seen: u32, found: &mut Found) {
        let Some(group) = self.groups.get_mut(&token) else { return };
        let had_members = !group.members.is_empty();
        group.take_ready(seen, found);
        if group.members.is_empty() {
            if had_members {
                self.is_empty_now(token);
            }
        } else if !group.multi
            && let Some(epoll) = &self.epoll
        {
            let (epoll, mask) = (epoll.number(), group.mask());
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, mask, token);
        }
    }

    /// A group has lost its last member.
    pub(super) fn is_empty_now(&mut self, token: u64) {
        self.live -= 1;
        let Some(group) = self.groups.get_mut(&token) else { return };
        // The number may name another file when it is polled again: the registration ends here.
        group.armed = 0;
        if group.multi || group.copy.is_some() {
            let (fd, number) = (group.fd, group.number);
            if let Some(epoll) = &self.epoll {
                sys::epoll_ctl(epoll.number(), libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            self.forget_number(number, token);
        }
    }

    /// A number no longer leads to this group. The group is removed if it has no members.
    fn forget_number(&mut self, fd: i32, token: u64) {
        for numbers in [&mut self.plain, &mut self.open] {
            if numbers.get(&fd) == Some(&token) {
                numbers.remove(&fd);
            }
        }
        if self.groups.get(&token).is_some_and(|group| group.members.is_empty()) {
            self.groups.remove(&token);
        }
    }

    /// A number is about to name another file.
    pub(super) fn leave_number(&mut self, epoll: i32, fd: i32) {
        self.open.remove(&fd);
        let Some(token) = self.plain.remove(&fd) else { return };
        let Some(group) = self.groups.get_mut(&token) else { return };
        if group.members.is_empty() {
            self.groups.remove(&token);
            return;
        }
        // Without a free descriptor, no more events are reported.
        if let Some(copy) = OwnDescriptor::duplicate(fd) {
            let (number, mask) = (copy.number(), group.mask());
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, number, mask, token);
            (group.fd, group.copy) = (number, Some(copy));
        }
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
}
