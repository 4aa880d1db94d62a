//! One of the program's event loops drives a context: it hands over queued requests to the kernel,
//! and collects completions. That wakes no thread of the engine. "The loop comes" means that it
//! does both. If the loop does not come in time, engine threads do both.
//!
//! There are three kinds of event loops. A tokio runtime registers a [`Reactor`]. Under a drop-in,
//! a thread is detected that hands requests over, and then sleeps in poll(2) or the like
//! (`front/waits.rs`). And a program sleeps on an eventfd that its [`Context`](crate::Context) has
//! made: it collects when it reaps. If it does not come, the watchdog collects in its place.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Instance;
use crate::board::{Dispatcher, Executor};
use crate::errno;
use crate::lane::kernel::HandOver;
use crate::router::tuning::ENOUGH_FOUND;
use crate::router::{Call, KernelScope};
use crate::sync::{lock, this_thread};
use crate::sys;
use crate::threads::Threads;
use crate::threads::loops;
use crate::threads::tenant::{Collecting, Tenant};

/// An event loop that drives a context.
pub(crate) trait Reactor: Send + Sync + fmt::Debug {
    /// Asks the loop to call [`Instance::drive`] soon. Never blocks.
    fn call(&self);
}

/// The value of [`Driven::thread`] if no thread is known: the program drives the context whenever
/// it reaps. The program sleeps on an eventfd that the context has made.
const PROGRAM: usize = usize::MAX;

/// The event loop that drives a context.
#[derive(Debug, Default)]
pub(super) struct Driven {
    by: Mutex<Option<Arc<dyn Reactor>>>,
    /// The loop is relied on: no engine thread hands over or collects in its place.
    comes: AtomicBool,
    /// Since its last call of poll(2) or the like, the loop has not come in time, or has slept
    /// where completions do not wake it.
    stays_away: AtomicBool,
    /// The number of the loop's submits that have found completions since `stays_away` was set.
    found: AtomicU32,
    /// The value of `found` from which on the loop is expected again.
    enough: AtomicU32,
    /// The thread whose calls of poll(2) or the like drive the context ([`this_thread`]); 0 for
    /// none, or if a runtime drives it; [`PROGRAM`].
    thread: AtomicUsize,
    /// The program was called to reap ([`PROGRAM`]), and has not come yet.
    is_called: AtomicBool,
    /// The eventfd of completions has ended a sleep, and was not read since. It is read before the
    /// next sleep.
    undrained: AtomicBool,
}

impl Driven {
    #[inline]
    pub(super) fn comes(&self) -> bool {
        self.comes.load(Ordering::Relaxed)
    }

    /// As [`Driven::comes`], ordered after an earlier store. Either the thread that ends the
    /// driving sees that store, or this call sees that the driving has ended.
    pub(super) fn still_comes(&self) -> bool {
        self.comes.load(Ordering::SeqCst)
    }

    fn by(&self) -> Option<Arc<dyn Reactor>> {
        lock(&self.by).clone()
    }

    #[inline]
    fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    /// Does a runtime drive the context, and hand over queued requests?
    #[inline]
    pub(super) fn by_runtime(&self) -> bool {
        self.comes() && self.thread() == 0
    }
}

impl Instance {
    /// Registers `reactor`, which is called when requests can be handed over. The loop also comes
    /// when completions count up the returned eventfd(2). `None`: another loop drives the context
    /// already, or the context has no io_uring.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn begin_to_be_driven(&self, reactor: Arc<dyn Reactor>) -> Option<RawFd> {
        // In the child of a fork, a thread that exists only in the parent may hold the lock.
        if !self.is_usable() {
            return None;
        }
        let mut by = lock(&self.driven.by);
        if by.is_some() {
            return None;
        }
        let events = self.lanes.kernel.events_for_reactor(&self.board)?;
        *by = Some(reactor);
        self.driven.thread.store(0, Ordering::Relaxed);
        self.driven.comes.store(true, Ordering::SeqCst);
        Some(events)
    }

    /// The event loop calls this to hand queued requests over, and to collect completions. False:
    /// the context is closed, and the loop need not come again.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn drive(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        if !self.driven.comes() {
            self.driven.comes.store(true, Ordering::SeqCst);
        }
        let kernel = &self.lanes.kernel;
        kernel.harvest_when_told(&self.board);
        if kernel.queued() > 0 {
            self.hand_over(Executor::Waiter);
        }
        true
    }

    /// The event loop has ended.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "a tokio runtime drives"))]
    pub(crate) fn end_to_be_driven(&self) {
        if self.is_of_this_process() {
            *lock(&self.driven.by) = None;
            self.leave_to_our_threads();
        }
    }

    /// The context is being closed: calls its event loop once more, and never again.
    pub(super) fn dismiss_reactor(&self) {
        let by = lock(&self.driven.by).take();
        self.driven.comes.store(false, Ordering::SeqCst);
        if let Some(by) = by {
            by.call();
        }
    }

    /// Calls the event loop to hand queued requests over. False: no loop is relied on.
    pub(super) fn call_reactor(&self) -> bool {
        if !self.driven.comes() {
            return false;
        }
        match self.driven.thread() {
            0 => self.driven.by().inspect(|by| by.call()).is_some(),
            _ if !self.lanes.kernel.can_at_once() => false,
            PROGRAM => {
                // A program that came and waited, instead of reaping, has left `is_called` set. So
                // the first queued request calls the program in any case.
                let is_first = self.lanes.kernel.queued() <= 1;
                let is_called = self.driven.is_called.swap(true, Ordering::AcqRel);
                is_called && !is_first || self.lanes.kernel.call_program()
            }
            // The calling thread drives the context itself: it hands over before it sleeps.
            thread if thread == this_thread() => true,
            _ => self.lanes.kernel.events().inspect(|&fd| _ = sys::eventfd_add(fd, 1)).is_some(),
        }
    }

    /// Does the calling thread hand its own requests over to the kernel at submit?
    pub(super) fn hands_over_at_once(&self) -> bool {
        let kernel = &self.lanes.kernel;
        if self.driven.by_runtime() || !kernel.can_at_once() {
            return false;
        }
        self.may_poll_next();
        let at_once = kernel.is_shallow();
        let driven = &self.driven;
        if at_once && self.is_left_by_its_loop() && !driven.stays_away.load(Ordering::Relaxed) {
            // This keeps the poller from watching completions that this thread will collect.
            driven.comes.store(true, Ordering::SeqCst);
        }
        at_once
    }

    /// Is the calling thread the one that drives the context, although it is not relied on now?
    #[inline]
    fn is_left_by_its_loop(&self) -> bool {
        !self.driven.comes() && loops::are_seen() && self.driven.thread() == this_thread()
    }

    /// The calling thread has handed over, and has looked for completions. `any`: it found some.
    /// After enough submits that found completions, the loop is relied on again: it collects
    /// without poll(2). Otherwise the poller's thread would collect first.
    #[inline]
    pub(super) fn has_submitted(&self, any: bool) {
        let driven = &self.driven;
        if any && self.is_left_by_its_loop() {
            let found = driven.found.load(Ordering::Relaxed) + 1;
            let enough = driven.enough.load(Ordering::Relaxed).max(ENOUGH_FOUND);
            let comes = found >= enough;
            driven.found.store(if comes { 0 } else { found }, Ordering::Relaxed);
            if comes {
                // If the loop then stays away again, the next time takes twice as many submits.
                driven.enough.store(enough.saturating_mul(2), Ordering::Relaxed);
                driven.stays_away.store(false, Ordering::Relaxed);
                driven.comes.store(true, Ordering::SeqCst);
            }
        }
        self.have_events_watched(true);
    }

    /// The calling thread submits, and may sleep in poll(2) or the like next. If such calls are
    /// seen, the thread drives the context from now on.
    #[inline]
    fn may_poll_next(&self) {
        if loops::are_seen() && self.driven.thread() != this_thread() {
            self.begins_to_poll();
        }
    }

    #[cold]
    fn begins_to_poll(&self) {
        if lock(&self.driven.by).is_none()
            && let Some(events) = self.lanes.kernel.events()
            && let Some(me) = self.me.upgrade()
        {
            let tenant: Arc<dyn Tenant> = me;
            if Threads::of_this_process().loops.add(&tenant, events) {
                self.driven.thread.store(this_thread(), Ordering::Relaxed);
            }
        }
    }

    /// As [`Tenant::drive_in_poll`].
    pub(super) fn drive_before_sleep(&self, told: &[RawFd]) -> Option<Collecting> {
        let kernel = &self.lanes.kernel;
        if !self.is_usable() || self.stands_by() || !kernel.can_at_once() {
            return None;
        }
        let events = kernel.events()?;
        if told.contains(&events) {
            // The eventfd is read only before the next sleep. So the program has its completion
            // sooner, and may submit more before the device is idle.
            self.driven.undrained.store(true, Ordering::Relaxed);
        } else if self.driven.undrained.load(Ordering::Relaxed) {
            self.driven.undrained.store(false, Ordering::Relaxed);
            // The eventfd is read before collecting: a later completion counts it up once more.
            sys::eventfd_drain(events);
        }
        if !self.driven.comes() {
            self.driven.stays_away.store(false, Ordering::Relaxed);
            self.driven.found.store(0, Ordering::Relaxed);
            self.driven.enough.store(ENOUGH_FOUND, Ordering::Relaxed);
            self.driven.comes.store(true, Ordering::SeqCst);
        }
        let any = kernel.harvest_when_told(&self.board);
        if kernel.queued() > 0 {
            kernel.hand_over(&self.board, HandOver { nobody_comes: true, at_once: true });
        }
        Some(Collecting { events, any })
    }

    /// The context has made this eventfd, on which its program sleeps: the program collects
    /// completions of the kernel when it reaps.
    ///
    /// A context with a placement posts completions on the CPUs of that placement, so its program
    /// does not collect.
    pub(crate) fn is_watched_by_program(&self, eventfd: RawFd) {
        if self.board.placed().is_none() {
            self.lanes.kernel.is_watched_by_program(eventfd);
            self.driven.thread.store(PROGRAM, Ordering::Relaxed);
        }
    }

    /// The program's eventfd is about to be closed. False: a thread is counting the eventfd up, and
    /// makes no progress. Then the eventfd must stay open.
    pub(crate) fn forget_program(&self) -> bool {
        !self.is_of_this_process() || self.lanes.kernel.forget_program()
    }

    /// The program reaps, and finds nothing in the queue: it collects from the kernel.
    pub(crate) fn collect_for_program(&self) {
        let kernel = &self.lanes.kernel;
        if kernel.counted_up() < 0 || !self.is_usable() {
            return;
        }
        let driven = &self.driven;
        if driven.is_called.load(Ordering::Relaxed) {
            driven.is_called.swap(false, Ordering::AcqRel);
        }
        if !driven.comes() && kernel.is_collected_by_program() {
            driven.comes.store(true, Ordering::SeqCst);
        }
        errno::kept(|| {
            kernel.harvest_for_program(&self.board);
            if kernel.queued() > 0 && kernel.can_at_once() {
                kernel.hand_over(&self.board, HandOver { nobody_comes: true, at_once: true });
            } else if kernel.queued() > 0 {
                self.call(Call::HandOver);
            }
        });
    }

    /// As [`Tenant::leave_poll`].
    pub(super) fn sleeps_unseen(&self) {
        if self.driven.comes() && self.is_usable() {
            errno::kept(|| self.leave_to_our_threads());
        }
    }

    /// Leaves the context to threads of the engine: a worker hands over queued requests, and the
    /// poller watches for completions. The event loop has ended, is late, or is about to sleep
    /// where completions do not wake it. A registered loop is called once more. A loop that comes
    /// drives the context again.
    #[cold]
    pub(super) fn leave_to_our_threads(&self) {
        if self.driven.comes.swap(false, Ordering::SeqCst) {
            self.driven.stays_away.store(true, Ordering::Relaxed);
            self.have_events_watched(true);
            if let Some(by) = self.driven.by() {
                by.call();
            }
        }
        if self.lanes.kernel.queued() > 0 {
            self.call(Call::HandOver);
        }
    }

    /// Makes the poller watch the kernel's completions, unless it watches already, or an event loop
    /// collects them.
    pub(super) fn have_events_watched(&self, nobody_comes: bool) {
        let is_collected = match self.driven.thread() {
            PROGRAM => self.lanes.kernel.is_collected_by_program(),
            _ => self.driven.comes(),
        };
        if is_collected {
            return;
        }
        if let Some(events) = self.lanes.kernel.events_to_watch(nobody_comes)
            && let Some(me) = self.me.upgrade()
        {
            let owner: Arc<dyn Dispatcher> = me;
            self.harvesters.get().poller.watch(&owner, events);
        }
    }

    /// The requests that the kernel lane takes now.
    #[inline]
    pub(super) fn kernel_scope(&self) -> KernelScope {
        match self.lanes.kernel.scope() {
            KernelScope::Direct if self.driven.by_runtime() => KernelScope::DirectAndReads,
            scope => scope,
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    #![allow(unsafe_code)]

    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use crate::board::without_taker;
    use crate::config::{Builder, EngineKind};
    use crate::descriptor;
    use crate::eventfd::Eventfd;
    use crate::front::waits::{self, NoHooks};
    use crate::instance::Instance;
    use crate::instance::submit::Entry;
    use crate::router::facts::{self, Facts};
    use crate::router::tuning::ENOUGH_FOUND;
    use crate::sqe::Sqe;
    use crate::sync::this_thread;
    use crate::threads::loops;

    const PAGE: usize = 4096;

    #[repr(align(4096))]
    struct Block([u8; PAGE]);

    /// A context that uses Linux AIO, and that no engine thread serves; and a file for direct
    /// reads. `None` with a message: not possible here.
    fn alone(name: &str) -> Option<(Arc<Instance>, std::fs::File)> {
        let skipped = |reason| {
            crate::skipped(name, reason);
            None
        };
        // The file is in the folder of this program: folders for temporary files are often not on a
        // disk.
        let program = std::env::current_exe().unwrap();
        let mut named = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
        named.write_all(&[7; PAGE]).unwrap();
        let mut options = std::fs::File::options();
        let Ok(file) = options.read(true).custom_flags(libc::O_DIRECT).open(named.path()) else {
            return skipped("no direct I/O on this file system");
        };
        loops::see();
        waits::find_next();
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        instance.leave_alone();
        // What was learned about the number is about a file of another test.
        let forget = || Facts::forget(&(file.as_raw_fd()..=file.as_raw_fd()));
        forget();
        let mut block = Box::new(Block([0; PAGE]));
        // There are two requests, so that the waiter sets up the kernel's interface. It would
        // execute a single request by itself.
        (0..2).for_each(|_| read(&instance, &file, &mut block, -1));
        without_taker(|taker| instance.wait(2, 2, None, None, taker));
        assert_eq!(reaped(&instance), 2);
        if instance.lanes().kernel.kind() != Some(EngineKind::LinuxAio) {
            return skipped("Linux AIO is refused here");
        }
        instance.router.waiters.leave_all_to_workers();
        // If the hand-over has taken long, that was learned, too, and is forgotten here.
        forget();
        Some((instance, file))
    }

    /// Submits a read of the file.
    fn read(instance: &Instance, file: &std::fs::File, block: &mut Block, notify: i32) {
        let sqe = Sqe::read(file.as_raw_fd(), &mut block.0[..], 0);
        // SAFETY: every test ends its requests, and has the block for longer.
        unsafe { instance.submit(&[Entry { sqe, data: 0, notify }]) };
    }

    fn reaped(instance: &Instance) -> u32 {
        instance.reap(8, |cqe| assert_eq!(cqe.res, PAGE as i32))
    }

    fn eventfd() -> std::fs::File {
        // SAFETY: the eventfd is new, and the file is its only owner.
        unsafe {
            std::fs::File::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))
        }
    }

    fn count_of(mut eventfd: &std::fs::File) -> u64 {
        let mut count = [0; 8];
        eventfd.read_exact(&mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    /// Calls poll(2) until a completion has counted up the second descriptor of the set, or the
    /// third is ready. False: the kernel has given the request back, because the device is busy
    /// with other programs. A worker would execute the request.
    fn polls(instance: &Instance, set: &mut [libc::pollfd; 3]) -> bool {
        loop {
            // Another test may have the lock of the list of contexts that event loops drive
            // (`threads/loops.rs`). Then the call drives none, and may sleep for all 10 ms.
            // SAFETY: `set` has three entries.
            let ready = unsafe { waits::poll::<NoHooks>(set.as_mut_ptr(), 3, 10) };
            let all = set.iter().filter(|one| one.revents != 0).count();
            assert_eq!((ready, set[0].revents), (all as i32, 0));
            if ready > 0 || !instance.lanes().pool.is_empty() {
                return ready > 0;
            }
        }
    }

    fn of_three(counter: &std::fs::File, other: i32) -> [libc::pollfd; 3] {
        let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let counter = poll(counter.as_raw_fd(), libc::POLLIN);
        [poll(-1, libc::POLLIN), counter, poll(other, libc::POLLOUT)]
    }

    const GIVEN_BACK: &str = "the device is busy";

    /// No engine thread gets a CPU: the polling thread collects completions, and counts its eventfd
    /// up.
    #[test]
    fn a_thread_that_hands_over_and_polls_needs_no_other_thread() {
        let name = "a_thread_that_hands_over_and_polls_needs_no_other_thread";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut block) = (eventfd(), Box::new(Block([0; PAGE])));
        let (_reader, writer) = std::io::pipe().unwrap();
        'rounds: for round in 0..100 {
            read(&instance, &file, &mut block, counter.as_raw_fd());
            // In every other round, another descriptor is always ready.
            let other = if round % 2 == 0 { -1 } else { writer.as_raw_fd() };
            let mut set = of_three(&counter, other);
            while set[1].revents == 0 {
                if !polls(&instance, &mut set) || !instance.lanes().pool.is_empty() {
                    crate::skipped(name, GIVEN_BACK);
                    break 'rounds;
                }
                assert_eq!(set[2].revents != 0, round % 2 != 0);
            }
            assert_eq!((set[1].revents, count_of(&counter)), (libc::POLLIN, 1), "round {round}");
            assert_eq!(reaped(&instance), 1);
        }
        instance.close();
    }

    #[test]
    fn a_loop_that_was_missed_is_not_relied_on_until_it_polls_again() {
        let name = "a_loop_that_was_missed_is_not_relied_on_until_it_polls_again";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut block) = (eventfd(), Box::new(Block([0; PAGE])));
        for round in 0..4 {
            read(&instance, &file, &mut block, counter.as_raw_fd());
            // Another test may have kept this thread out of the list of loops.
            let comes = instance.driven.comes();
            assert!(!comes || round % 2 == 0, "round {round}");
            if !polls(&instance, &mut of_three(&counter, -1)) {
                crate::skipped(name, GIVEN_BACK);
                break;
            }
            assert_eq!((count_of(&counter), reaped(&instance)), (1, 1));
            if round % 2 == 0 {
                // The watchdog does this if the loop has not come in time.
                instance.driven.comes.store(true, Ordering::SeqCst);
                instance.leave_to_our_threads();
            }
        }
        instance.close();
    }

    #[test]
    fn a_loop_that_collects_in_its_submits_is_relied_on_once_more() {
        let name = "a_loop_that_collects_in_its_submits_is_relied_on_once_more";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut block) = (eventfd(), Box::new(Block([0; PAGE])));
        while instance.driven.thread() != this_thread() {
            // Another test may have kept this thread out of the list of loops.
            read(&instance, &file, &mut block, counter.as_raw_fd());
            if !polls(&instance, &mut of_three(&counter, -1)) {
                crate::skipped(name, GIVEN_BACK);
                return instance.close();
            }
            reaped(&instance);
        }
        let is_missed = || {
            instance.driven.comes.store(true, Ordering::SeqCst);
            instance.leave_to_our_threads();
        };
        let submits = |times: u32, any: bool| {
            (0..times).for_each(|_| instance.has_submitted(any));
            instance.driven.comes()
        };
        for enough in [ENOUGH_FOUND, 2 * ENOUGH_FOUND, 4 * ENOUGH_FOUND] {
            is_missed();
            assert!(!submits(enough - 1, true) && !submits(9, false), "{enough}");
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!submits(9, true), "another thread"));
            });
            assert!(submits(1, true), "{enough}");
        }
        is_missed();
        assert!(instance.drive_before_sleep(&[]).is_some() && instance.driven.comes());
        is_missed();
        assert!(submits(ENOUGH_FOUND, true), "it has polled");
        instance.close();
    }

    /// A hand-over may take long only because its thread was preempted. What is learned from that
    /// must not keep a loop from handing over without waiting.
    #[test]
    fn a_loop_hands_over_also_where_hand_overs_have_waited() {
        let name = "a_loop_hands_over_also_where_hand_overs_have_waited";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut block, fd) = (eventfd(), Box::new(Block([0; PAGE])), file.as_raw_fd());
        let waits = || Facts::noted(fd).is_some_and(|facts| facts.submit_blocks(false, 1));
        descriptor::fresh(fd).unwrap();
        (0..3).for_each(|_| facts::learn_submit(fd, false, true));
        assert!(waits());
        read(&instance, &file, &mut block, counter.as_raw_fd());
        assert!(!waits(), "nothing was handed over");
        if polls(&instance, &mut of_three(&counter, -1)) {
            assert_eq!((count_of(&counter), reaped(&instance)), (1, 1));
        } else {
            crate::skipped(name, GIVEN_BACK);
        }
        instance.close();
    }

    #[test]
    fn a_submit_finds_what_has_completed_before() {
        let name = "a_submit_finds_what_has_completed_before";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut blocks) = (eventfd(), [(); 2].map(|()| Box::new(Block([0; PAGE]))));
        let [first, second] = &mut blocks;
        read(&instance, &file, first, counter.as_raw_fd());
        let events = instance.lanes().kernel.events().unwrap();
        let mut told = libc::pollfd { fd: events, events: libc::POLLIN, revents: 0 };
        // The eventfd is readable once the kernel has completed the first read.
        // SAFETY: `told` is an array of one entry.
        while unsafe { libc::poll(&raw mut told, 1, 10) } == 0 && instance.lanes().pool.is_empty() {
        }
        read(&instance, &file, second, counter.as_raw_fd());
        if !instance.lanes().pool.is_empty() {
            crate::skipped(name, GIVEN_BACK);
        } else {
            let found = reaped(&instance);
            assert!((1..=2).contains(&found) && count_of(&counter) == u64::from(found), "{found}");
        }
        instance.close();
    }

    /// The program sleeps on an eventfd of the context, as [`Context::eventfd`](crate::Context)
    /// makes it. No engine thread gets a CPU: the kernel counts the eventfd up, and the program
    /// collects.
    #[test]
    fn a_program_that_sleeps_on_the_contexts_eventfd_needs_no_other_thread() {
        let name = "a_program_that_sleeps_on_the_contexts_eventfd_needs_no_other_thread";
        let Some((instance, file)) = alone(name) else { return };
        let counter = Eventfd::new().unwrap();
        instance.is_watched_by_program(counter.as_raw_fd());
        let mut blocks: Vec<_> = (0..4).map(|_| Box::new(Block([0; PAGE]))).collect();
        for round in 0..100 {
            for block in &mut blocks {
                read(&instance, &file, block, counter.as_raw_fd());
            }
            let mut left = blocks.len() as u32;
            while left > 0 {
                let mut set =
                    libc::pollfd { fd: counter.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry.
                if unsafe { libc::poll(&raw mut set, 1, 1_000) } == 0 {
                    assert!(!instance.lanes().pool.is_empty(), "round {round}: not woken");
                    crate::skipped(name, GIVEN_BACK);
                    return instance.close();
                }
                counter.take();
                instance.collect_for_program();
                left -= reaped(&instance);
            }
            assert_eq!(instance.unreaped(), 0);
        }
        instance.close();
    }

    /// As above, but completions are also collected in place of the program. The program may have
    /// read the kernel's count before. So a collector other than the program's submit counts the
    /// eventfd up once more.
    #[test]
    fn what_others_collect_is_counted_up_once_more() {
        let name = "what_others_collect_is_counted_up_once_more";
        let Some((instance, file)) = alone(name) else { return };
        let (counter, mut block) = (Eventfd::new().unwrap(), Box::new(Block([0; PAGE])));
        instance.is_watched_by_program(counter.as_raw_fd());
        for at_submit in [false, true].repeat(10) {
            read(&instance, &file, &mut block, counter.as_raw_fd());
            // The submit may have found the completion itself.
            let at_submit = at_submit || instance.available() > 0;
            while instance.available() == 0 && instance.lanes().pool.is_empty() {
                let kernel = &instance.lanes().kernel;
                if at_submit {
                    kernel.harvest_at_submit(instance.board());
                } else {
                    without_taker(|taker| kernel.harvest(instance.board(), taker));
                }
            }
            if !instance.lanes().pool.is_empty() {
                crate::skipped(name, GIVEN_BACK);
                break;
            }
            // The kernel shows a completion before it counts.
            let (mut count, all) = (0, if at_submit { 1 } else { 2 });
            while count < all {
                let mut set =
                    libc::pollfd { fd: counter.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry.
                assert_eq!(unsafe { libc::poll(&raw mut set, 1, 10_000) }, 1);
                count += counter.take();
            }
            assert_eq!((count, reaped(&instance)), (all, 1));
        }
        instance.close();
    }

    /// For a request that names another eventfd, the kernel counts up the eventfd of the lane. So
    /// the poller collects the completion, not the program.
    #[test]
    fn a_program_does_not_collect_what_another_eventfd_tells_of() {
        let name = "a_program_does_not_collect_what_another_eventfd_tells_of";
        let Some((instance, file)) = alone(name) else { return };
        let (own, other) = (Eventfd::new().unwrap(), eventfd());
        instance.is_watched_by_program(own.as_raw_fd());
        let mut block = Box::new(Block([0; PAGE]));
        for (notify, program) in [(own.as_raw_fd(), true), (other.as_raw_fd(), false)] {
            read(&instance, &file, &mut block, notify);
            while reaped(&instance) == 0 && instance.lanes().pool.is_empty() {
                instance.collect_for_program();
            }
            if !instance.lanes().pool.is_empty() {
                crate::skipped(name, GIVEN_BACK);
                break;
            }
            assert_eq!(instance.lanes().kernel.is_collected_by_program(), program);
        }
        instance.close();
    }
}
