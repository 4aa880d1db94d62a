//! Cached reads of files whose pages are usually not in memory: each is tried without waiting (preadv2(2), `RWF_NOWAIT`),
//! which starts the device, and those whose page is still on its way are read one after the other by one worker.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering, fence};

use once_cell::race::OnceBox;

use super::{Help, Lane, Progress, Stuck, Which, run};
use crate::board::{Board, By, Taker, without_taker};
use crate::descriptor;
use crate::exec::{self, Tried};
use crate::queue::IndexRing;
use crate::request::{Queued, Route, Started};
use crate::reserve::has_memory;
use crate::router::tuning::{COLD_TURN, FAVOURS, TRY_SLOW_US, TRY_STARTED_US};
use crate::router::{Call, coming_max, facts};
use crate::sqe::Sqe;
use crate::sys;
use crate::word::readers::Readers;

/// The cold reads of a context: made with the first one, as most contexts have none.
#[derive(Debug)]
pub(crate) struct Cold {
    slots: usize,
    queues: OnceBox<Queues>,
}

#[derive(Debug)]
struct Queues {
    /// Those that are to be tried without waiting.
    untried: IndexRing,
    /// By a worker, whether or not waiters come.
    for_workers: AtomicBool,
    /// Those whose pages are on their way.
    coming: IndexRing,
    readers: Readers,
}

/// What a try has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Read and completed.
    Present,
    Coming,
    /// Cancelled, or passed on.
    Gone,
}

impl Queues {
    fn new(slots: usize) -> Self {
        Self {
            untried: IndexRing::new(slots),
            for_workers: AtomicBool::new(false),
            coming: IndexRing::new(slots),
            readers: Readers::new(),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.untried.is_empty() && self.coming.is_empty()
    }

    /// Is there something to be tried, and room for what is not there?
    #[inline]
    fn may_try(&self) -> bool {
        !self.untried.is_empty() && self.coming.len() < coming_max()
    }

    /// What is left is for a worker. After the push, so that who takes note of it sees what was pushed.
    fn leave_to_workers(&self) {
        self.for_workers.store(true, Ordering::Release);
    }

    /// Another worker is to come and read.
    fn wants_reader(&self) -> bool {
        !self.coming.is_empty() && self.readers.are_too_few()
    }

    /// There is something to be tried, and by a worker.
    fn is_to_try(&self, waiters_come: bool) -> bool {
        self.may_try() && (!waiters_come || self.for_workers.load(Ordering::Relaxed))
    }
}

/// Every read has to complete before this waiter, who has `taken` some, may return; or nobody else can do it.
fn may_read(board: &Board, help: &Help, taken: u32) -> bool {
    let missing = help.min.saturating_sub(taken);
    let in_order = help.unbounded && missing > 0 && board.must_wait_for_all(missing);
    in_order || help.helpless
}

impl Cold {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, queues: OnceBox::new() }
    }

    /// Has it queues, or can it have them?
    #[inline]
    pub(crate) fn is_possible(&self) -> bool {
        self.queues.get().is_some() || self.make()
    }

    #[cold]
    fn make(&self) -> bool {
        let bytes = size_of::<Queues>() + 2 * self.slots * size_of::<u64>();
        has_memory(bytes) && self.queues.set(Box::new(Queues::new(self.slots))).is_ok()
            || self.queues.get().is_some()
    }

    /// There are none, which is so most of the time.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.get().is_none_or(Queues::is_empty)
    }

    /// Queues cold reads.
    pub(crate) fn push(&self, slots: &[u32], waiters_come: bool) {
        let queues = self.queues.get().expect("made when the route was chosen");
        queues.untried.push(slots);
        if !waiters_come || queues.coming.len() >= coming_max() {
            // No waiter tries more now; who reads does later.
            queues.leave_to_workers();
        }
    }

    /// A waiter tries what is queued, so that the device has work. It has taken some completions since `before`, and has `helped`
    /// somewhere else or not.
    #[inline(never)]
    pub(crate) fn help(
        &self,
        board: &Board,
        help: &Help,
        helped: bool,
        (before, taker): (u32, &mut Taker<'_>),
    ) -> bool {
        let Some(queues) = self.queues.get().filter(|queues| !queues.is_empty()) else {
            return false;
        };
        if help.unbounded
            && !helped
            && board.must_wait_for_all(1)
            && let Some(request) = board.pop(&queues.untried)
        {
            // It would sleep for this one anyway.
            if let Some(request) = board.start(request) {
                run::execute(board, request, By::Waiter, true, taker);
            }
            return true;
        }
        let mut tried = 0;
        let present = try_some(queues, board, By::Waiter, taker, |taker| {
            tried += 1;
            let come = taker.taken() - before + board.completions().available();
            let favour = tried >= FAVOURS && help.min > 0 && come >= help.min;
            favour || come >= help.max
        });
        taker.give_back(board);
        if self.for_workers(help.waiters_come) > 0 && !may_read(board, help, taker.taken() - before)
        {
            board.call(Call::Worker);
        }
        present > 0
    }

    /// A waiter reads what is on its way, the oldest first, if it would sleep for it anyway.
    pub(crate) fn help_read(&self, board: &Board, help: &Help, taker: &mut Taker<'_>) -> bool {
        let Some(queues) = self.queues.get().filter(|queues| !queues.is_empty()) else {
            return false;
        };
        if !may_read(board, help, 0) {
            return false;
        }
        let untried = || if help.helpless { board.pop(&queues.untried) } else { None };
        let Some(request) = board.pop(&queues.coming).or_else(untried) else { return false };
        if let Some(request) = board.start(request) {
            run::execute(board, request, By::Waiter, false, taker);
        }
        true
    }

    /// A worker tries what is queued, unless waiters do, and reads what is on its way, unless other workers do. False: there
    /// was nothing for it.
    pub(crate) fn work(
        &self,
        board: &Board,
        waiters_come: impl Fn() -> bool,
        others_wait: impl Fn() -> bool,
    ) -> bool {
        let Some(queues) = self.queues.get() else { return false };
        let tried = work_at_untried(queues, board, waiters_come());
        if queues.coming.is_empty() || !queues.readers.enter() {
            return tried;
        }
        for _ in 0..COLD_TURN {
            let Some(request) = board.pop(&queues.coming) else { break };
            if let Some(request) = board.start(request) {
                without_taker(|taker| run::execute(board, request, By::Pool, false, taker));
            }
            if queues.coming.len() < coming_max() / 2 {
                work_at_untried(queues, board, waiters_come());
            }
            if others_wait() {
                break;
            }
        }
        queues.readers.leave();
        if others_wait() && queues.wants_reader() {
            // This worker goes to those.
            board.call(Call::Worker);
        }
        true
    }

    /// Nobody else can: the caller executes what is there.
    pub(crate) fn pop_for_submitter<'a>(&self, board: &'a Board) -> Option<Started<'a>> {
        let queues = self.queues.get()?;
        board.pop_started(&queues.untried).or_else(|| board.pop_started(&queues.coming))
    }

    /// What workers are to do, as one request each.
    pub(crate) fn for_workers(&self, waiters_come: bool) -> usize {
        self.queues.get().map_or(0, |queues| {
            usize::from(queues.is_to_try(waiters_come)) + usize::from(queues.wants_reader())
        })
    }

    /// Is there something for a waiter, before it sleeps?
    #[inline]
    pub(crate) fn has_help_to_offer(&self, helpless: bool) -> bool {
        self.queues.get().is_some_and(|queues| queues.may_try() || helpless && !queues.is_empty())
    }
}

fn work_at_untried(queues: &Queues, board: &Board, waiters_come: bool) -> bool {
    if !queues.is_to_try(waiters_come) {
        return false;
    }
    // Acquire: whoever has set it has pushed what it is about.
    queues.for_workers.swap(false, Ordering::AcqRel);
    without_taker(|taker| try_some(queues, board, By::Pool, taker, |_| false));
    true
}

/// Tries what is queued until there is nothing, too much is on its way, one takes long, or `enough` says so after one. Gives how
/// many were present.
fn try_some(
    queues: &Queues,
    board: &Board,
    by: By,
    taker: &mut Taker<'_>,
    mut enough: impl FnMut(&Taker<'_>) -> bool,
) -> u32 {
    let (mut present, mut some_coming) = (0, false);
    loop {
        if queues.coming.len() >= coming_max() && !queues.untried.is_empty() {
            // Those who read go on with it.
            queues.leave_to_workers();
            break;
        }
        let Some(request) = board.pop(&queues.untried) else { break };
        let (outcome, ticks) = try_cold(queues, board, request, by, taker);
        match outcome {
            Outcome::Present => present += 1,
            Outcome::Coming => some_coming = true,
            Outcome::Gone => {}
        }
        if ticks > TRY_SLOW_US * board.ticks_per_us() {
            queues.leave_to_workers();
            break;
        }
        if enough(taker) {
            break;
        }
    }
    if some_coming {
        // Should there have been nothing in the queues while these were tried, the watch may have ended.
        fence(Ordering::SeqCst);
        board.call(Call::Nobody);
    }
    present
}

/// Reads a page that is there, and starts the device for one that is not. Gives the ticks that it took, too.
fn try_cold(
    queues: &Queues,
    board: &Board,
    request: Queued<'_>,
    by: By,
    taker: &mut Taker<'_>,
) -> (Outcome, u64) {
    let Some(request) = board.start(request) else { return (Outcome::Gone, 0) };
    let Sqe { fd, off, len, .. } = request.sqe;
    let rate = board.ticks_per_us();
    let begin = sys::ticks();
    // SAFETY: the buffer is the request's until its completion.
    let tried = unsafe { exec::try_read(&request.sqe) };
    let ticks = sys::ticks().wrapping_sub(begin);
    match tried {
        Tried::Done(result) => {
            if ticks > TRY_SLOW_US * rate {
                // O_DIRECT may have been switched on (fcntl(2)): it waits all the same then.
                let _ = descriptor::fresh(fd);
            }
            facts::learn_tried(fd, true);
            board.finish_for(request, result, by, taker);
            return (Outcome::Present, ticks);
        }
        Tried::Impossible => {
            board.forward(request, Route::Pool, By::Pool);
            return (Outcome::Gone, ticks);
        }
        Tried::WouldWait => {
            if ticks < TRY_STARTED_US * rate {
                // On its way already, or this kernel leaves it to whoever waits.
                sys::fadvise(fd, off, len.into(), libc::POSIX_FADV_WILLNEED as u32);
            }
            facts::learn_tried(fd, false);
            board.count(|stats| &stats.reads_ahead);
        }
        Tried::Failed => {}
    }
    queues.coming.push(&[request.queue()]);
    (Outcome::Coming, ticks)
}

/// Two parts: those to be tried, and those on their way.
impl Lane for Cold {
    fn progress(&self) -> [Progress; 2] {
        let Some(queues) = self.queues.get() else { return [Progress::NOTHING; 2] };
        let untried = Progress::of(&queues.untried);
        let may_try = untried.queued && queues.may_try();
        // Those that have to wait for room are in hand as long as others come.
        let untried = Progress { queued: may_try, in_hand: untried.queued && !may_try, ..untried };
        [untried, Progress::of(&queues.coming)]
    }

    fn unstick(&self, _: &Board, part: usize, _: bool) -> Stuck {
        if let Some(queues) = self.queues.get() {
            if part == 0 {
                queues.leave_to_workers();
            } else {
                queues.readers.are_stuck();
            }
        }
        Stuck { nobody_came: part == 0, call: Some(Call::WorkerNow) }
    }

    fn withdraw(&self, board: &Board, which: &Which<'_>) {
        let queues = self.queues.get().into_iter().flat_map(|all| [&all.untried, &all.coming]);
        match which {
            Which::Canceled => queues.for_each(|queue| board.purge(queue)),
            Which::All => queues.for_each(|queue| board.end_all(queue)),
            Which::On(_) => {}
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::Queues;
    use crate::board::without_taker;
    use crate::exec::{self, ABSENT_FROM, Tried};
    use crate::front::Entry;
    use crate::instance::Instance;
    use crate::router::facts::{self, Facts};
    use crate::router::tuning::COMING_MAX;
    use crate::{Context, EngineKind, Sqe, descriptor, sys};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    const LEN: usize = 512;
    const STRIDE: usize = 64 << 10;
    const LONG: Duration = Duration::from_secs(30);

    /// A file whose pages are expected, and mostly will be found, not to be in memory.
    fn cold_file(reads: usize) -> File {
        // Beside this program: where temporary files belong there is often no disk below.
        let program = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        for at in 0..reads {
            file.write_all_at(&[at as u8 + 1; LEN], (at * STRIDE) as u64).unwrap();
        }
        file.sync_all().unwrap();
        sys::fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED as u32);
        descriptor::fresh(file.as_raw_fd()).unwrap();
        (0..8).for_each(|_| facts::learn_tried(file.as_raw_fd(), false));
        file
    }

    /// Pages are not in memory while it lives, as far as this thread can see by trying.
    struct Absent;

    impl Absent {
        fn from(offset: u64) -> Self {
            ABSENT_FROM.set(offset);
            Self
        }
    }

    impl Drop for Absent {
        fn drop(&mut self) {
            ABSENT_FROM.set(u64::MAX);
        }
    }

    struct Reads {
        file: File,
        instance: Arc<Instance>,
        buffers: Vec<[u8; LEN]>,
    }

    impl Reads {
        fn new(count: usize) -> Self {
            let builder = Context::builder().entries(256).engine(EngineKind::Workers).stats(true);
            let instance = Instance::new(&builder).unwrap();
            Self { file: cold_file(count), instance, buffers: vec![[0; LEN]; count] }
        }

        /// Only the thread of the test executes.
        fn alone(count: usize) -> Self {
            let reads = Self::new(count);
            reads.instance.leave_alone();
            reads
        }

        fn submitted(count: usize) -> Self {
            let mut reads = Self::new(count);
            reads.submit();
            reads
        }

        /// Can its reads be tried without waiting?
        fn can_be_tried(&mut self, name: &str) -> bool {
            let sqe = Sqe::read(self.file.as_raw_fd(), &mut self.buffers[0][..], 0);
            // SAFETY: a read into the buffer.
            let can = !matches!(unsafe { exec::try_read(&sqe) }, Tried::Impossible);
            if !can {
                crate::skipped(name, "RWF_NOWAIT is refused here");
            }
            can
        }

        fn submit(&mut self) {
            let fd = self.file.as_raw_fd();
            let entries = self.buffers.iter_mut().enumerate().map(|(at, buffer)| {
                let sqe = Sqe::read(fd, &mut buffer[..], (at * STRIDE) as u64);
                Entry { sqe: sqe.user_data(at as u64), data: 0, notify: -1 }
            });
            let entries: Vec<_> = entries.collect();
            // SAFETY: the buffers are kept until the requests have ended.
            assert_eq!(unsafe { self.instance.submit(&entries) }.accepted, entries.len());
        }

        fn cold(&self) -> &Queues {
            self.instance.lanes().cold.queues.get().expect("there were some")
        }

        fn stats(&self) -> crate::stats::Snapshot {
            self.instance.stats().unwrap()
        }

        fn wait(&self, min: usize) {
            without_taker(|taker| self.instance.wait(min as u32, u32::MAX, None, None, taker));
        }

        /// As if all had been tried, and none had been there.
        fn all_coming(&self) {
            while let Some(slot) = self.cold().untried.pop() {
                self.cold().coming.push(&[slot]);
            }
        }

        /// Until all have completed; nobody waits for them meanwhile.
        fn come_by_themselves(&self) {
            let deadline = Instant::now() + LONG;
            while (self.instance.board().completions().available() as usize) < self.buffers.len() {
                assert!(Instant::now() < deadline, "some never came");
                std::thread::yield_now();
            }
        }

        /// The results, once each.
        fn results(&self) -> Vec<Option<i32>> {
            let mut results = vec![None; self.buffers.len()];
            self.instance.reap(u32::MAX, |cqe| {
                let before = results[cqe.user_data as usize].replace(cqe.res);
                assert_eq!(before, None, "completed twice");
            });
            results
        }

        fn all_right(&self) {
            assert!(self.results().iter().all(|&result| result == Some(LEN as i32)));
            let right = |(at, buffer): (usize, &[u8; LEN])| *buffer == [at as u8 + 1; LEN];
            assert!(self.buffers.iter().enumerate().all(right));
            assert_eq!(self.instance.board().free_slots().held(), 0);
        }
    }

    #[test]
    fn reads_of_absent_pages_are_tried_and_then_read() {
        let _absent = Absent::from(0);
        let mut reads = Reads::alone(16);
        reads.submit();
        reads.wait(16);
        reads.all_right();
        let stats = reads.stats();
        assert_eq!((stats.reads_ahead, stats.by_waiter), (16, 16));
    }

    #[test]
    fn a_waiter_that_has_enough_does_not_read_what_is_missing() {
        let name = "a_waiter_that_has_enough_does_not_read_what_is_missing";
        let _absent = Absent::from(STRIDE as u64);
        let (mut undisturbed, deadline) = (0, Instant::now() + LONG);
        while undisturbed < 10 {
            assert!(Instant::now() < deadline, "each try takes long");
            let mut reads = Reads::alone(2);
            if !reads.can_be_tried(name) {
                return;
            }
            reads.file.read_exact_at(&mut [0; LEN], 0).unwrap();
            reads.submit();
            reads.wait(1);
            let stats = reads.stats();
            // The first try took long, because this thread was away: the second one is left to a worker.
            let disturbed = reads.cold().for_workers.load(Ordering::Relaxed);
            reads.wait(2);
            reads.all_right();
            if !disturbed {
                assert_eq!((stats.reads_ahead, stats.by_waiter), (1, 1));
                undisturbed += 1;
            }
        }
    }

    #[test]
    fn no_more_than_the_bound_are_on_their_way() {
        let _absent = Absent::from(0);
        let mut reads = Reads::alone(COMING_MAX + 32);
        reads.submit();
        // One that takes long, because this thread was away, ends a poll.
        while reads.cold().may_try() {
            reads.instance.poll();
        }
        assert_eq!((reads.cold().coming.len(), reads.cold().untried.len()), (COMING_MAX, 32));
        reads.wait(COMING_MAX + 32);
        reads.all_right();
    }

    /// Where one of two requests is a cold read of a page that is present, and the other one is inline, `poll` executes so many of them.
    fn executed_by(name: &str, executed: u64, poll: impl Fn(&Arc<Instance>)) {
        let mut reads = Reads::alone(1);
        let (written, data) = (tempfile::tempfile().unwrap(), [1; LEN]);
        if !reads.can_be_tried(name) {
            return;
        }
        for _ in 0..100 {
            (0..8).for_each(|_| facts::learn_tried(reads.file.as_raw_fd(), false));
            // A write that took long, should this thread have been away in the midst of it, says nothing about the next.
            let fd = written.as_raw_fd();
            Facts::forget(&(fd..=fd));
            reads.file.read_exact_at(&mut [0; LEN], 0).unwrap();
            reads.submit();
            let sqe = Sqe::write(written.as_raw_fd(), &raw const data[..], 0).user_data(1);
            // SAFETY: `data` outlives the request.
            let write = unsafe { reads.instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
            assert_eq!(write.accepted, 1);
            let before = reads.stats().by_waiter;
            poll(&reads.instance);
            assert_eq!(reads.stats().by_waiter - before, executed);
            reads.wait(2);
            assert_eq!(reads.instance.reap(2, |cqe| assert_eq!(cqe.res, LEN as i32)), 2);
        }
    }

    #[test]
    fn a_poll_sees_what_is_present_and_what_is_inline() {
        let name = "a_poll_sees_what_is_present_and_what_is_inline";
        executed_by(name, 2, |instance| instance.poll());
    }

    #[test]
    fn a_poll_executes_no_more_than_its_caller_can_take() {
        let name = "a_poll_executes_no_more_than_its_caller_can_take";
        executed_by(name, 1, |instance| {
            without_taker(|taker| instance.wait(0, 1, None, None, taker));
        });
    }

    #[test]
    fn somebody_comes_where_nobody_waits() {
        let reads = Reads::submitted(16);
        reads.come_by_themselves();
        reads.all_right();
    }

    #[test]
    fn who_is_told_by_an_eventfd_is_served_while_another_thread_waits_now_and_then() {
        let reads = Reads::new(1);
        let (instance, fd) = (&reads.instance, reads.file.as_raw_fd());
        let mut buffer = [0; LEN];
        for _ in 0..100 {
            // Waiters come, as far as can be seen.
            (0..8).for_each(|_| instance.router().waiters.one_came());
            let sqe = Sqe::read(fd, &raw mut buffer, 0);
            let notify = crate::instance::TOLD_OTHERWISE;
            // SAFETY: the buffer outlives the request.
            let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify }]) };
            assert_eq!(submitted.accepted, 1);
            let deadline = Instant::now() + LONG;
            while instance.board().completions().available() == 0 {
                assert!(Instant::now() < deadline, "it never came");
                std::thread::yield_now();
            }
            assert_eq!(instance.reap(1, |cqe| assert_eq!(cqe.res, LEN as i32)), 1);
            sys::fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED as u32);
            (0..8).for_each(|_| facts::learn_tried(fd, false));
        }
    }

    #[test]
    fn another_reader_comes_for_one_that_is_stuck() {
        let reads = Reads::submitted(16);
        let readers = &reads.cold().readers;
        for _ in 0..2 {
            // They never come back.
            while !readers.enter() {
                readers.are_stuck();
            }
        }
        reads.all_coming();
        reads.come_by_themselves();
        reads.all_right();
    }

    #[test]
    fn what_is_on_its_way_can_be_cancelled_and_ends_with_the_context() {
        let mut reads = Reads::alone(16);
        reads.submit();
        reads.all_coming();
        assert!(reads.instance.cancel(15).is_ok());
        reads.instance.close();
        assert_eq!(reads.results(), [Some(-libc::ECANCELED); 16]);
        assert!(reads.cold().is_empty());
    }

    #[test]
    fn a_file_that_is_in_memory_again_leaves_the_lane_and_not_too_soon() {
        let file = cold_file(1);
        let sleeps = || descriptor::known(file.as_raw_fd()).unwrap().sleeps(false);
        assert!(sleeps());
        let mut present = 0;
        while sleeps() {
            facts::learn_tried(file.as_raw_fd(), true);
            present += 1;
        }
        assert!((40..100).contains(&present), "{present} reads");
    }

    /// Has a sandbox refuse preadv2(2) to this thread, and to those that it makes.
    fn refuse_preadv2() -> Result<(), seccompiler::Error> {
        use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
        let answer = SeccompAction::Errno(libc::EPERM as u32);
        let arch = std::env::consts::ARCH.try_into().expect("an architecture with filters");
        let rules = [(libc::SYS_preadv2, Vec::new())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap())
    }

    #[test]
    fn a_file_in_memory_leaves_the_lane_where_trying_is_refused() {
        const NAME: &str = "a_file_in_memory_leaves_the_lane_where_trying_is_refused";
        const CHILD: &str = "URINGLET_TEST_CHILD";
        if std::env::var_os(CHILD).is_none() {
            // In a process of its own: the threads that it makes serve all contexts.
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args([NAME, "--nocapture"]).env(CHILD, NAME).stdout(std::process::Stdio::null());
            let status = child.status();
            return assert!(status.unwrap().success());
        }
        if let Err(error) = refuse_preadv2() {
            return crate::skipped(NAME, format!("no filter: {error}"));
        }
        let mut reads = Reads::alone(2);
        reads.buffers.iter_mut().enumerate().for_each(|(at, buffer)| {
            reads.file.read_exact_at(buffer, (at * STRIDE) as u64).unwrap();
        });
        let fd = reads.file.as_raw_fd();
        // Its file system is asked which it is, as the refused call cannot tell.
        descriptor::prove(fd, false);
        let (quick_us, rate) = (15, sys::ticks_per_us());
        let (mut quick_in_a_row, deadline) = (0, Instant::now() + LONG);
        while descriptor::known(fd).unwrap().sleeps(false) {
            // Twenty quick reads are enough. Both of a round were, if they took no longer together.
            assert!(quick_in_a_row < 20 && Instant::now() < deadline, "it is tried for ever");
            let begin = sys::ticks();
            reads.submit();
            reads.wait(2);
            let quick = sys::ticks().wrapping_sub(begin) <= quick_us * rate;
            quick_in_a_row = if quick { quick_in_a_row + 1 } else { 0 };
            reads.all_right();
        }
        assert_eq!(reads.stats().reads_ahead, 0);
    }
}
