//! Tests of `lane/cold.rs`.

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

/// A file whose pages are expected not to be in memory, and mostly are not.
fn cold_file(reads: usize) -> File {
    // The file is in the folder of this program: folders for temporary files are often not on a
    // disk.
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

/// While this value lives, pages from an offset on count as missing for reads that this thread
/// tries.
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

    /// A context in which only the test's thread executes requests.
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

    /// Can the file's reads be tried without waiting?
    fn can_be_tried(&mut self, name: &str) -> bool {
        let sqe = Sqe::read(self.file.as_raw_fd(), &mut self.buffers[0][..], 0);
        // SAFETY: the buffer outlives the call.
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

    /// Moves all untried reads to `coming`, as if no page had been in memory.
    fn all_coming(&self) {
        while let Some(slot) = self.cold().untried.pop() {
            self.cold().coming.push(&[slot]);
        }
    }

    /// Yields until all reads have completed, without waiting in the context.
    fn come_by_themselves(&self) {
        let deadline = Instant::now() + LONG;
        while (self.instance.board().completions().available() as usize) < self.buffers.len() {
            assert!(Instant::now() < deadline, "some never came");
            std::thread::yield_now();
        }
    }

    /// Reaps all completions, and checks that no read has completed twice. Returns the result of
    /// each read, `None` if it has not completed.
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
        // If the first try took long, because this thread was preempted, the second read was left
        // to a worker.
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
    // A poll ends early if a try takes long, because this thread was preempted.
    while reads.cold().may_try() {
        reads.instance.poll();
    }
    assert_eq!((reads.cold().coming.len(), reads.cold().untried.len()), (COMING_MAX, 32));
    reads.wait(COMING_MAX + 32);
    reads.all_right();
}

/// Submits two requests: a cold read of a present page, and an inline one. Checks that `poll`
/// executes this many of them.
fn executed_by(name: &str, executed: u64, poll: impl Fn(&Arc<Instance>)) {
    let mut reads = Reads::alone(1);
    let (written, data) = (tempfile::tempfile().unwrap(), [1; LEN]);
    if !reads.can_be_tried(name) {
        return;
    }
    for _ in 0..100 {
        (0..8).for_each(|_| facts::learn_tried(reads.file.as_raw_fd(), false));
        // A write in which this thread was preempted looks as if it had slept. What was learned
        // from such a write is forgotten.
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
        // The engine now expects waiters.
        (0..8).for_each(|_| instance.router().waiters.one_came());
        let sqe = Sqe::read(fd, &raw mut buffer, 0);
        let notify = crate::instance::submit::TOLD_OTHERWISE;
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
        // The test enters as a reader that never leaves, as if that reader was stuck.
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

/// Installs a sandbox that refuses preadv2(2) to this thread, and to threads that it starts.
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
        // The test has a process of its own. Engine threads that this thread starts have the
        // filter, too, and would serve contexts of other tests.
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
    // Asks whether the file system is local. A try would show that, but is refused here.
    descriptor::prove(fd, false);
    let (quick_us, rate) = (15, sys::ticks_per_us());
    let (mut quick_in_a_row, deadline) = (0, Instant::now() + LONG);
    while descriptor::known(fd).unwrap().sleeps(false) {
        // After twenty quick rounds in a row, the file must have left the lane. A round is quick if
        // its two reads took at most `quick_us` together.
        assert!(quick_in_a_row < 20 && Instant::now() < deadline, "it is tried without end");
        let begin = sys::ticks();
        reads.submit();
        reads.wait(2);
        let quick = sys::ticks().wrapping_sub(begin) <= quick_us * rate;
        quick_in_a_row = if quick { quick_in_a_row + 1 } else { 0 };
        reads.all_right();
    }
    assert_eq!(reads.stats().reads_ahead, 0);
}
