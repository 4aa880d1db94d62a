//! What is done before the program closes one of its descriptors, which requests in flight may
//! still need. Also closes the context itself.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::Instance;
use crate::board::without_taker;
use crate::lane::Withdraw;
use crate::own::Copies;
use crate::process;
use crate::queue::Sleeper;
use crate::router::tuning::{BEGUN, LATER, SHORT_NAPS, TICK};
use crate::sync::holds_lock;
use crate::sys;

impl Instance {
    /// The program is about to close `fd`. Executes the requests on it that have not started, and
    /// waits for the started ones. After about a second, their system calls count as begun. So no
    /// request finds its descriptor closed, or another file under its number. Requests that wait in
    /// the poller or in the worker lane get a duplicate of the descriptor. An eventfd that requests
    /// will count up is duplicated, too.
    pub fn before_close(&self, fd: i32) {
        self.before_close_range(&(fd..=fd), true);
    }

    /// As [`Instance::before_close`], for a range of descriptors that begins at 0 or above. `gone`:
    /// the numbers will name no file. Otherwise another file takes the number in the same moment
    /// (dup2(2)). Does nothing in the child of a vfork(2), and in a signal handler whose thread
    /// holds one of the engine's locks.
    pub fn before_close_range(&self, fds: &RangeInclusive<i32>, gone: bool) {
        let all = self.offer(u32::MAX, u32::MAX, true, false);
        let (mut naps, mut since, mut copies) = (0, None, Copies::default());
        let mut needed = false;
        self.board
            .free_slots()
            .each_held(|index| needed |= self.board.slot(index).needs_one_of(fds));
        if !needed || holds_lock() || process::is_borrowed() {
            return;
        }
        self.board.keep_eventfds(fds);
        while self.is_usable() {
            let mut waiting = false;
            self.withdraw(&Withdraw::On(fds));
            self.board.free_slots().each_held(|index| {
                let needs_number = || self.lanes.kernel.needs_numbers();
                waiting |= self.board.slot(index).is_waiting_for(fds, needs_number);
            });
            if !waiting {
                self.board
                    .free_slots()
                    .each_held(|index| waiting |= !self.board.slot(index).forget_number(fds));
            }
            // The poller may have been trying a request (executing it without waiting) during the
            // checks above. If the request is back on the poller's list, `keep_files` gives it a
            // duplicate. If the poller is still trying it, `keep_files` returns true.
            waiting |= self.threads.poller.keep_files(fds, gone, &mut copies);
            if !waiting {
                return;
            }
            if !without_taker(|taker| self.help(&all, taker)) {
                // Other threads execute these requests. No thread can see whether their system
                // calls have begun. A call that has begun holds the file open by itself. After
                // [`BEGUN`] each call counts as begun. It may never end, so this thread does not
                // wait for its end.
                if since.get_or_insert_with(Instant::now).elapsed() > BEGUN {
                    return;
                }
                sys::nap(if naps < SHORT_NAPS.0 { SHORT_NAPS.1 } else { TICK });
                naps += 1;
            }
        }
    }

    /// Is a request on this descriptor, or will a request count the descriptor up, as its eventfd?
    /// If so, [`before_close`](Self::before_close) may wait.
    pub fn needs(&self, fd: i32) -> bool {
        let (slots, fds) = (self.board.free_slots(), fd..=fd);
        let mut needs = false;
        slots.each_held(|index| needs |= self.board.slot(index).needs_one_of(&fds));
        needs
    }

    /// Destroys the context: cancels requests that have not started, waits for the others, and
    /// refuses everything from then on. Completed requests can still be reaped. Waiting threads are
    /// woken, and return.
    ///
    /// A strict context, as of libaio, executes requests that have not started. It cancels only
    /// polls, and requests on pipes and sockets, which may wait without end. io_destroy(2) cancels
    /// no others either: io_submit(2) has executed buffered requests, and begun direct ones.
    pub fn close(&self) {
        if !self.board.close() || !self.is_of_this_process() {
            return;
        }
        self.dismiss_reactor();
        let completions = self.board.completions();
        completions.close();
        loop {
            // The withdrawal is repeated: a submit that found the context open may still push
            // requests.
            self.withdraw(&Withdraw::All);
            self.board.free_slots().each_held(|index| {
                if self.board.slot(index).is_polling() {
                    self.cancel_slot(index, self.board.slot(index).key());
                }
            });
            self.board.collect_reaped();
            // If every held slot has a completion in the ring, no thread uses a request any more.
            let available = completions.available();
            if self.board.free_slots().held() == available as usize {
                return self.lanes.kernel.close();
            }
            let sleeper = Sleeper {
                need: available + 1,
                concern: None,
                stay_up: &|| false,
                even_if_closed: true,
                restarts: false,
            };
            without_taker(|taker| self.sleep(&sleeper, Some(LATER), None, None, taker));
        }
    }
}
