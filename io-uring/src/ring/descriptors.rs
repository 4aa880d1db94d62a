//! Descriptors of the program's: the ring's own, which threads wait for, and others that are closed
//! while requests need them.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::front::{OwnDescriptor, Patience};

use super::state::{Core, Locked, calls_here, is_any_held_here};
use super::types::{Request, Stage};
use crate::calls::Call;
use crate::files::{File, Registered};
use crate::prepare;
use crate::sys;
use crate::tuning::{CALL_TRIES, NUMBER_TRIES, SIGNAL_TRIES};

impl Core {
    /// Makes the descriptor unreadable if the program has reaped all completions.
    pub(crate) fn freshen(self: &Arc<Self>) {
        if self.is_stale() {
            self.settle();
        }
    }

    /// Makes the descriptor readable or not, as the completions require. Waits for a thread that
    /// holds the lock, because such a thread only reads and writes memory. In a signal handler on
    /// that thread, does nothing: the interrupted code updates the descriptor.
    fn settle(self: &Arc<Self>) {
        let mut patience = Patience::default();
        for _ in 0..SIGNAL_TRIES {
            if self.is_held_here() {
                return;
            }
            if let Some(locked) = self.try_lock() {
                return self.follow_up(locked.give_back());
            }
            patience.wait();
        }
    }

    /// Duplicates the ring's descriptor. The duplicate outlives the program's descriptor. If no
    /// duplicate can be made, the program's descriptor is made readable for good.
    fn hold(&self, fd: i32) {
        if self.eventfd.get().is_none() {
            match OwnDescriptor::duplicate(fd) {
                Some(other) => _ = self.eventfd.set(other),
                None => sys::eventfd_set(fd),
            }
        }
    }

    /// A thread is about to wait for the ring's descriptor `fd`. Until [`unwatch`](Self::unwatch)
    /// it is readable while there are completions.
    pub(crate) fn watch(self: &Arc<Self>, fd: i32) {
        self.hold(fd);
        self.readiness.watch();
        self.settle();
    }

    /// As [`watch`](Self::watch), after an [`unwatch`](Self::unwatch).
    pub(crate) fn watch_again(self: &Arc<Self>) {
        self.readiness.watch();
        self.settle();
    }

    pub(crate) fn unwatch(&self) {
        self.readiness.unwatch();
    }

    /// As [`watch`](Self::watch), but permanently: the descriptor is waited for in ways whose end
    /// cannot be seen, such as an epoll.
    pub(crate) fn watch_for_ever(self: &Arc<Self>, fd: i32) {
        self.hold(fd);
        if self.readiness.watch_for_ever() {
            self.settle();
        }
    }

    /// The program is about to close descriptors: requests on them keep their files.
    pub(crate) fn before_close(self: &Arc<Self>, fds: &RangeInclusive<i32>) {
        // Nothing is done if this thread has a ring's lock: it must not wait for another lock. It
        // is in a signal handler then, or closes a descriptor of this library.
        if self.has_requests() && !is_any_held_here() {
            let (executes, calls) = self.with(|locked| {
                locked.keep_files(fds);
                let executes = self.executing.load(Ordering::Relaxed) > 0;
                (executes || !locked.sending.is_empty(), locked.has_calls(fds))
            });
            self.await_tries();
            if calls {
                self.await_calls(fds);
            }
            if executes {
                // A transfer or a send that was tried by its submitter may be a request now.
                self.with(|locked| locked.keep_files(fds));
            }
        }
    }

    /// Waits for threads that use the numbers of descriptors. The wait is bounded, because this may
    /// be a signal handler on such a thread.
    pub(super) fn await_tries(&self) {
        let mut patience = Patience::default();
        for _ in 0..NUMBER_TRIES {
            let counts = [&self.trying, &self.executing];
            if counts.iter().all(|count| count.load(Ordering::Acquire) == 0) {
                return;
            }
            patience.wait();
        }
    }

    /// Waits for calls on sockets with these numbers, and for requests on them that go to the
    /// engine. Their threads do not wait, but may be preempted.
    fn await_calls(self: &Arc<Self>, fds: &RangeInclusive<i32>) {
        let mut patience = Patience::default();
        for _ in 0..CALL_TRIES {
            if calls_here() || !self.with(|locked| locked.has_calls(fds)) {
                return;
            }
            patience.wait();
        }
    }
}

impl Locked<'_> {
    /// Are calls on sockets with these numbers being made, or are requests with these numbers on
    /// their way to the engine?
    fn has_calls(&self, fds: &RangeInclusive<i32>) -> bool {
        let is_tried = |one: &Request| match one.stage {
            Stage::Tried => matches!(one.call.as_deref(), Some(Call::Socket { .. })),
            Stage::Engine => self.core.trying.load(Ordering::Relaxed) > 0,
            _ => false,
        };
        let any_of = |fd: i32| {
            let mut all = self.by_number.all(fd as u64);
            all.any(|at| is_tried(&self.requests[at as usize]))
        };
        // A close of several numbers does not look for requests.
        self.sending.iter().any(|fd| fds.contains(fd))
            || fds.start() == fds.end() && any_of(*fds.start())
    }

    /// Requests on these numbers get duplicates of the descriptors. A request for which no
    /// duplicate can be made keeps its number only.
    fn keep_files(&mut self, fds: &RangeInclusive<i32>) {
        let (mut known, mut lines) = (Vec::<(i32, File)>::new(), Vec::new());
        let all: Vec<u32> = if fds.start() == fds.end() {
            self.by_number.all(*fds.start() as u64).collect()
        } else {
            (0..self.requests.len() as u32).collect()
        };
        for at in all {
            let request = self.request(at);
            let waits = matches!(
                request.stage,
                Stage::Ready | Stage::Behind | Stage::Tried | Stage::Engine | Stage::Poll(_)
            );
            let is_on = waits && request.file.is_none() && fds.contains(&request.fd);
            if !is_on || !prepare::has_file(request.opcode) {
                continue;
            }
            let found = known.iter().find(|(fd, _)| *fd == request.fd);
            let file = found.map(|(_, file)| file.clone()).or_else(|| {
                let descriptor = OwnDescriptor::duplicate(request.fd)?;
                known.push((request.fd, File { descriptor }));
                known.last().map(|(_, file)| file.clone())
            });
            let Some(file) = file else { continue };
            lines.extend(request.line.map(|line| (line, file.descriptor.number())));
            request.file = Some(Arc::new(Registered { value: file, tag: 0 }));
        }
        lines.into_iter().for_each(|(line, to)| self.move_line(line, to));
    }
}
