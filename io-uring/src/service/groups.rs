//! The descriptors that the epoll of all rings watches, and the polls of each.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use uringlet::front::OwnDescriptor;

use super::stays::Stays;
use crate::numbers::ByNumber;
use crate::sys::{self, sockets};
use crate::tuning::STRAYS;

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
    /// A receive from a socket waits, and a try has found no data. The registration stays for the
    /// next receive.
    pub(crate) stays: bool,
    /// The program has asked for a poll. Otherwise a call waits.
    pub(crate) is_poll: bool,
}

/// Events that every poll reports.
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The events that a receive waits for.
pub(super) const COMES: u32 = libc::EPOLLIN as u32 | ALWAYS;

impl Watch {
    /// The watch for the events that a program asks for.
    pub(crate) fn of(events: u32, multi: bool) -> Self {
        const OURS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
        Self { events: events & !OURS & 0xffff, multi, stays: false, is_poll: true }
    }
}

/// A poll of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) events: u32,
    /// As [`Watch::is_poll`].
    pub(super) is_poll: bool,
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
    /// The events that the epoll watches. Without `stays` and `multi`, the epoll watches none after
    /// it has reported some (`EPOLLONESHOT`).
    pub(super) armed: u32,
    /// Set for a socket with receives: [`COMES`] stays watched while the group has no members.
    stays: Option<Stays>,
    /// The polls by ring and request.
    pub(super) members: ByNumber<(usize, u64), Member>,
}

impl Group {
    /// The events for the epoll.
    pub(super) fn mask(&self) -> u32 {
        let how = match (self.multi, &self.stays) {
            (true, _) => libc::EPOLLET as u32,
            (_, Some(_)) => 0,
            (_, None) => libc::EPOLLONESHOT as u32,
        };
        self.armed | how
    }

    /// The events that members wait for and, with `stays`, those of the next receive.
    fn wanted(&self) -> u32 {
        let least = if self.stays.is_some() { COMES } else { 0 };
        self.members.values().fold(least, |events, one| events | one.events)
    }

    /// Removes the members that these events are for, and returns the number of polls among them. A
    /// multishot stays.
    fn take_ready(&mut self, seen: u32, found: &mut Found) -> usize {
        if self.multi {
            self.members.iter().for_each(|(&(_, key), one)| found.add(&one.watcher, key, seen));
            return 0;
        }
        let mut polls = 0;
        for ((_, key), one) in self.members.extract_if(|_, one| seen & one.events != 0) {
            found.add(&one.watcher, key, seen);
            polls += usize::from(one.is_poll);
        }
        polls
    }
}

/// May data be there that no event reports (`SO_RCVLOWAT`)?
fn hides_data(fd: i32) -> bool {
    sockets::option(fd, libc::SO_RCVLOWAT).is_ok_and(|least| least > 1)
}

/// Events, by the ring that gets them.
#[derive(Debug, Default)]
pub(super) struct Found(pub(super) Vec<(Arc<dyn Watcher>, Events)>);

impl Found {
    fn add(&mut self, watcher: &Arc<dyn Watcher>, key: u64, seen: u32) {
        // The watcher is most often that of the last event.
        let is_it = |(other, _): &&mut (Arc<dyn Watcher>, _)| Arc::ptr_eq(other, watcher);
        match self.0.iter_mut().rev().find(is_it) {
            Some((_, events)) => events.push((key, seen)),
            None => self.0.push((Arc::clone(watcher), vec![(key, seen)])),
        }
    }
}

/// [`Groups::ring`] if the members are of several rings, or were.
pub(super) const SEVERAL: usize = usize::MAX;

/// The epoll, and its registrations.
#[derive(Debug, Default)]
pub(super) struct Groups {
    epoll: Option<OwnDescriptor>,
    /// An eventfd, for the thread that has the seat.
    bell: Option<OwnDescriptor>,
    pub(super) alive: bool,
    /// The groups by their tokens. A group under the program's own number that has lost its last
    /// member stays, for the next poll.
    pub(super) groups: ByNumber<u64, Group>,
    /// Groups that accept more members, by the program's number.
    pub(super) open: ByNumber<i32, u64>,
    /// Groups that are registered under the program's own number.
    pub(super) plain: ByNumber<i32, u64>,
    next: u64,
    /// The number of groups with members.
    pub(super) live: usize,
    /// The number of members that are polls.
    pub(super) polls: usize,
    /// The ring of all members, by its address; or [`SEVERAL`].
    pub(super) ring: usize,
    /// Groups that members have joined without a system call.
    pub(super) trusted: Vec<u64>,
    /// The number of times that trusted groups were confirmed.
    pub(super) round: u32,
    /// A timer is set for the next time that groups are confirmed.
    pub(super) is_timed: bool,
    /// The last take had a stray event, which no group has asked for; and the number of such takes
    /// in a row.
    is_stray: bool,
    strays: u32,
}

impl Groups {
    /// The numbers of the epoll and the eventfd, which are made if there are none.
    pub(super) fn made(&mut self) -> Result<[i32; 2], i32> {
        if self.epoll.is_none() {
            let (epoll, bell) = (sys::epoll_create(), sys::eventfd());
            if epoll < 0 || bell < 0 {
                [epoll, bell].into_iter().filter(|&fd| fd >= 0).for_each(|fd| _ = sys::close(fd));
                return Err(epoll.min(bell));
            }
            // The copies have numbers from 40 on: programs choose lower numbers by hand.
            let own = |fd: i32| match OwnDescriptor::duplicate(fd) {
                Some(own) => {
                    // A system call of this library closes the descriptor. The exported close(2)
                    // would take the locks of all rings, and threads that hold them may wait for
                    // this one.
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
        let (before, stayed) = (group.armed, group.stays.is_some());
        group.armed |= watch.events;
        if watch.stays {
            group.stays.get_or_insert_default().missed();
        }
        if group.armed == before && group.stays.is_some() == stayed {
            self.trust(token);
            return Some(token);
        }
        if sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, group.mask(), token) == 0 {
            return Some(token);
        }
        // The number names another file now.
        self.forget_number(fd, token);
        None
    }

    /// The group of a number, for a receive that is left untried.
    pub(super) fn join_untried(&mut self, fd: i32) -> Option<u64> {
        let &token = self.open.get(&fd)?;
        if !self.groups.get_mut(&token)?.stays.as_mut()?.is_left_untried(|| hides_data(fd)) {
            return None;
        }
        self.trust(token);
        Some(token)
    }

    /// Is the number that of a Unix socket that stays registered? Asked once.
    pub(super) fn is_unix(&mut self, fd: i32) -> bool {
        let stays = self.open.get(&fd).and_then(|token| self.groups.get_mut(token)?.stays.as_mut());
        let ask = || sockets::option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX);
        stays.is_some_and(|stays| *stays.is_unix.get_or_insert_with(ask))
    }

    /// A member joins a group without a system call. If the program has closed the number unseen,
    /// and uses it again, its new file is not registered: [`confirm`](Self::confirm) finds that.
    fn trust(&mut self, token: u64) {
        let round = self.round;
        let group = self.groups.get_mut(&token);
        let Some(stays) = group.and_then(|group| group.stays.as_mut()) else { return };
        stays.joined = round;
        if !std::mem::replace(&mut stays.is_listed, true) {
            self.trusted.push(token);
        }
    }

    /// Registers the file that the number names now, unless that file is registered. Does so if
    /// members wait, and the last one has joined before this round. Returns the number if its
    /// receives must be tried. Then the number names no file that can be waited for, or a socket
    /// with data that no event reports.
    pub(super) fn confirm(&mut self, token: u64, round: u32) -> Option<i32> {
        let group = self.groups.get_mut(&token)?;
        let stays = group.stays.as_mut()?;
        stays.is_listed = stays.joined == round && !group.members.is_empty();
        if stays.is_listed {
            self.trusted.push(token);
            return None;
        }
        if group.members.is_empty() {
            return None;
        }
        let (epoll, fd, mask) = (self.epoll.as_ref()?.number(), group.fd, group.mask());
        let fails = |op| sys::epoll_ctl(epoll, op, fd, mask, token) < 0;
        let is_odd = fails(libc::EPOLL_CTL_MOD) && fails(libc::EPOLL_CTL_ADD);
        let stays = self.groups.get_mut(&token)?.stays.as_mut()?;
        stays.is_unix = None;
        (is_odd || stays.hides_data_now(hides_data(fd))).then_some(fd)
    }

    /// Do polls of this group wait for one of these events?
    pub(super) fn has_polls(&self, token: Option<&u64>, events: u32) -> bool {
        let group = token.and_then(|token| self.groups.get(token));
        let waits = |one: &Member| one.is_poll && one.events & events != 0;
        group.is_some_and(|group| group.members.values().any(waits))
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
        let (is_plain, Watch { events: armed, multi, stays, .. }) = (copy.is_none(), watch);
        let members = ByNumber::default();
        let mut stays = (stays && is_plain).then(Stays::default);
        stays.as_mut().map(Stays::missed);
        let group = Group { fd: registered, copy, number: fd, multi, armed, stays, members };
        self.next += 1;
        let (token, mask) = (self.next, group.mask());
        let mut answer = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, registered, mask, token);
        if answer == -libc::EEXIST {
            // The number is still registered for a group that was forgotten.
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
        let Some(group) = self.groups.get_mut(&token) else {
            self.is_stray = true;
            return;
        };
        let before = (group.members.len(), group.armed, group.stays.is_some());
        self.polls -= group.take_ready(seen, found);
        let left = group.members.len();
        self.is_stray |= before.0 == 0 && !before.2;
        group.stays.take_if(|stays| !stays.goes_on(left < before.0));
        if !group.multi {
            group.armed = group.wanted();
            let changes = if before.2 { group.armed != before.1 } else { left > 0 };
            if changes && let Some(epoll) = &self.epoll {
                let (epoll, mask) = (epoll.number(), group.mask());
                sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, group.fd, mask, token);
            }
        }
        if before.0 > 0 && left == 0 {
            self.is_empty_now(token);
        }
    }

    /// Events were taken. If too many takes in a row had stray events, a new epoll replaces this
    /// one. Stray events come from a file whose number the program closed without a call that this
    /// library sees. If another descriptor keeps that file open and ready, only a new epoll ends
    /// the events.
    pub(super) fn were_taken(&mut self) {
        self.strays = if std::mem::take(&mut self.is_stray) { self.strays + 1 } else { 0 };
        let Some(epoll) = self.epoll.as_ref().filter(|_| self.strays > STRAYS) else { return };
        let other = sys::epoll_create();
        if other < 0 {
            return;
        }
        for (&token, group) in self.groups.iter().filter(|(_, group)| group.armed != 0) {
            sys::epoll_ctl(other, libc::EPOLL_CTL_ADD, group.fd, group.mask(), token);
        }
        // Threads that sleep on the former epoll are woken, because the stray file is ready there.
        sys::replace(epoll.number(), other);
        sys::close(other);
        self.strays = 0;
    }

    /// A group has lost its last member.
    pub(super) fn is_empty_now(&mut self, token: u64) {
        self.live -= 1;
        let Some(group) = self.groups.get_mut(&token) else { return };
        // The number may name another file at the next poll. Without `stays`, nothing is armed any
        // more, so that the next poll makes a system call and notices that.
        group.armed = group.wanted();
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

    /// A number is about to name another file: its polls are registered under a duplicate.
    pub(super) fn leave_number(&mut self, epoll: i32, fd: i32) {
        self.open.remove(&fd);
        let Some(token) = self.plain.remove(&fd) else { return };
        let Some(group) = self.groups.get_mut(&token) else { return };
        if group.members.is_empty() {
            if group.stays.is_some() {
                // The socket may live on under another number, or in another process.
                sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
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
