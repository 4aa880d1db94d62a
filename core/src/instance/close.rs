//! Closing: a descriptor of the program's, which requests in flight may still need, and the context itself.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{By, Instance, without_taker};
use crate::engine::{Contract, Help};
use crate::exec::{self, Mode};
use crate::own::{Copied, Copies};
use crate::process;
use crate::queue::Sleeper;
use crate::request::Kind;
use crate::sync::lock;
use crate::sys;

impl Instance {
    /// The program is about to close `fd`: executes the requests on it that have not been started,
    /// here and now, and waits for those that have, so that none of them meets a descriptor that is
    /// gone, or another file under its number. Requests in the poller stay there, with the file, and so does an
    /// eventfd that requests are to count up.
    pub fn before_close(self: &Arc<Self>, fd: i32) {
        self.before_close_range(&(fd..=fd));
    }

    /// As [`Instance::before_close`], for a range of descriptors that begins at 0 or above.
    pub fn before_close_range(self: &Arc<Self>, fds: &RangeInclusive<i32>) {
        /// After this long a request that is being executed counts as having begun its system call.
        const BEGUN: Duration = Duration::from_secs(1);
        /// Naps meanwhile: so many short ones, and then longer ones.
        const SHORT: (u32, Duration) = (1000, Duration::from_micros(20));
        const LONG: Duration = Duration::from_millis(1);
        let all = Help { min: u32::MAX, max: u32::MAX, unbounded: true, wary: false };
        let (mut naps, mut since) = (0, None);
        let mut needed = false;
        self.free.each_held(|index| needed |= self.slot(index).needs_one_of(fds));
        if !needed || process::is_borrowed() {
            return;
        }
        self.keep_eventfds(fds);
        while self.is_usable() {
            let mut waiting = false;
            self.engine.before_close(self, fds);
            self.free.each_held(|index| {
                let handing_over = || self.engine.is_handing_over();
                waiting |= self.slot(index).is_waiting_for(fds, handing_over);
            });
            if !waiting {
                self.free.each_held(|index| waiting |= !self.slot(index).forget_number(fds));
            }
            if !waiting {
                return;
            }
            if !without_taker(|taker| self.help(&all, taker)) {
                // Others execute them. Whether a system call has begun, and so holds the file,
                // nobody can see; after this long it has, and may never end.
                if since.get_or_insert_with(Instant::now).elapsed() > BEGUN {
                    return;
                }
                sys::nap(if naps < SHORT.0 { SHORT.1 } else { LONG });
                naps += 1;
            }
        }
    }

    /// Requests whose eventfd is about to be closed get another descriptor of it, which is kept as long as the context.
    fn keep_eventfds(&self, fds: &RangeInclusive<i32>) {
        let mut copies = Copies::default();
        self.free.each_held(|index| {
            let copy = |fd| copies.of(fd).map_or(-1, |copy| copy.fd());
            self.slot(index).move_notify(fds, copy);
        });
        copies.into_all().for_each(|copy| self.keep(copy));
    }

    /// Keeps a descriptor open as long as the context.
    pub(crate) fn keep(&self, copy: Arc<Copied>) {
        lock(&self.kept).push(copy);
    }

    /// Executes a request that the caller has withdrawn from its queue.
    fn execute_withdrawn(&self, index: u32) {
        // SAFETY: withdrawn, so it is the caller's alone.
        let request = unsafe { self.slot(index).request() };
        let mode = if request.stream { Mode::Stream } else { Mode::Plain };
        // SAFETY: copied in at submit; the buffers are the request's until its completion.
        let result = unsafe { exec::execute(request, mode) };
        if let Some(counters) = self.counters() {
            self.count_finished(counters, index, result, By::Waiter);
        }
        self.post_placed(index, result);
    }

    /// Destroys it: cancels what has not been started, waits for what has, refuses everything
    /// from then on. What has completed can still be reaped. Threads that wait are sent away.
    ///
    /// A strict one executes what has not been started, except what may wait for ever (polls,
    /// pipes, sockets): io_destroy(2) finds buffered requests executed and direct ones begun.
    pub fn close(self: &Arc<Self>) {
        if self.closed.swap(true, Ordering::SeqCst) || !self.is_of_this_process() {
            return;
        }
        self.completions.close();
        loop {
            // Again and again: a submit that had passed the check may still be pushing.
            self.engine.drain(self);
            self.free.each_held(|index| {
                if self.slot(index).is_polling() {
                    self.cancel_slot(index, self.slot(index).key());
                }
            });
            self.reaping(|reaped| self.completions.collect(reaped));
            // Every request that was accepted stands in the ring: nobody touches it any more.
            let available = self.completions.available();
            if self.free.held() == available as usize {
                return self.engine.closed();
            }
            let sleeper = Sleeper {
                need: available + 1,
                concerns: None,
                stay_up: &|| false,
                even_if_closed: true,
            };
            let time = Some(Duration::from_millis(10));
            without_taker(|taker| self.engine.sleep(self, &sleeper, time, None, taker));
        }
    }

    /// Ends a request whose number the caller popped because the context is being destroyed.
    pub(crate) fn end_popped(&self, index: u32) {
        if !self.start(index) {
            return;
        }
        self.slot(index).done();
        // SAFETY: started by us just now.
        let request = unsafe { self.slot(index).request() };
        let ends = !request.stream && request.kind != Kind::Poll;
        if self.strict && ends {
            self.execute_withdrawn(index);
        } else {
            self.post_canceled(index);
        }
    }
}
