//! Cold reads through io_uring: there each of them goes on by itself when its page has come, and one call starts many. Whether that is quicker
//! than to read them here, in the order in which they come, depends on the device and the file system, so it is tried.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::Workers;
use super::lane::Flags;
use crate::engine::trial::Trial;
use crate::instance::Instance;
use crate::request::Request;
use crate::sys;

/// Reads of one window, and how many before them do not count: those in flight when the way changes.
const WINDOW: u32 = 256;
const SKIPPED: u32 = 128;
/// Longer than this between two reads: their program was elsewhere.
const LONGEST_US: u64 = 1000;
/// A context has a ring only after so many.
const FIRST: u32 = 256;

/// What the last context that has tried has found, with which others begin.
static FOUND: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const THREADS: u8 = 1;
const RING: u8 = 2;

/// Whether a context's cold reads go through io_uring.
#[derive(Debug)]
pub(super) struct ByRing {
    trial: Mutex<Option<Trial>>,
    /// Reads before the first trial.
    seen: AtomicU32,
    longest: u64,
}

impl ByRing {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        let longest = LONGEST_US * ticks_per_us;
        Self { trial: Mutex::new(None), seen: AtomicU32::new(0), longest }
    }

    /// One has come, `now` in ticks. Shall the ring have it?
    fn next(&self, now: u64) -> bool {
        if self.seen.load(Ordering::Relaxed) < FIRST {
            self.seen.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // Another submitter is at it.
        let Ok(mut trial) = self.trial.try_lock() else { return false };
        let before = FOUND.load(Ordering::Relaxed);
        let begun = || {
            let trial = Trial::new(WINDOW, SKIPPED, self.longest);
            if before == NOTHING { trial } else { trial.beginning_with(before == RING) }
        };
        let trial = trial.get_or_insert_with(begun);
        let by_ring = trial.next(now);
        let found = trial.found().map_or(before, |ring| if ring { RING } else { THREADS });
        if found != before {
            FOUND.store(found, Ordering::Relaxed);
        }
        by_ring
    }
}

impl Workers {
    /// Is this cold read, one of several, to be handed to io_uring? Not where so many are held that fewer than those have to be on
    /// their way, for the sake of others who use the device.
    #[inline(never)]
    pub(super) fn is_for_ring(
        &self,
        instance: &Instance,
        request: &Request,
        flags: &mut Flags,
    ) -> bool {
        let held = instance.free_slots();
        self.kernel.can_be_ring()
            && request.refused == 0
            && held.held_more_than(1)
            && !held.held_more_than(2 * self.coming_max())
            && self.ring.next(sys::ticks())
            && self.kernel.use_ring(instance)
            // The number may stand for a pipe by now, for whose data the ring would wait past the end of the context.
            && flags.have_offsets(request.sqe.fd)
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    #![allow(unsafe_code)]

    use super::{FIRST, LONGEST_US, SKIPPED, Trial, WINDOW, Workers};
    use crate::engine::kernel::hold_rings;
    use crate::engine::workers::threads::leave_alone;
    use crate::front::Entry;
    use crate::instance::{Instance, without_taker};
    use crate::{Context, EngineKind, Sqe, descriptor};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const LEN: usize = 512;
    const COUNT: usize = 16;

    /// A context that has found the ring quicker, or not.
    fn instance(engine: EngineKind, by_ring: bool) -> Arc<Instance> {
        let builder = Context::builder().entries(64).engine(engine).stats(true);
        let instance = Instance::new(&builder).unwrap();
        let ring = &Workers::of(&instance).ring;
        ring.seen.store(FIRST, Ordering::Relaxed);
        let trial = Trial::new(WINDOW, SKIPPED, LONGEST_US).beginning_with(by_ring);
        *ring.trial.lock().unwrap() = Some(trial);
        instance
    }

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        (0..COUNT).for_each(|at| {
            file.write_all_at(&[at as u8 + 1; LEN], (at * LEN) as u64).unwrap();
        });
        file
    }

    /// Reads the file, whose pages are expected not to be there, with many requests at a time. Gives how many the kernel had.
    fn read(instance: &Arc<Instance>, file: &File) -> u64 {
        let fd = file.as_raw_fd();
        // What was learned about the number is of a file of another test.
        descriptor::Facts::forget(&(fd..=fd));
        descriptor::Facts::fresh(fd).unwrap();
        (0..8).for_each(|_| descriptor::learn_tried(fd, false));
        let before = instance.stats().unwrap().by_kernel;
        let mut buffers = [[0; LEN]; COUNT];
        let entries = buffers.iter_mut().enumerate().map(|(at, buffer)| {
            let sqe = Sqe::read(fd, &mut buffer[..], (at * LEN) as u64);
            Entry { sqe: sqe.user_data(at as u64), data: 0, notify: -1 }
        });
        let entries: Vec<_> = entries.collect();
        // SAFETY: the buffers outlive the requests, which are waited for.
        assert_eq!(unsafe { instance.submit(&entries) }.accepted, COUNT);
        without_taker(|taker| instance.wait(COUNT as u32, u32::MAX, None, None, taker));
        let mut completed = Vec::new();
        instance.reap(u32::MAX, |cqe| {
            assert_eq!(cqe.res, LEN as i32);
            completed.push(cqe.user_data);
        });
        completed.sort_unstable();
        assert_eq!(completed, (0..COUNT as u64).collect::<Vec<_>>(), "each once");
        let right = |(at, buffer): (usize, &[u8; LEN])| *buffer == [at as u8 + 1; LEN];
        assert!(buffers.iter().enumerate().all(right));
        instance.stats().unwrap().by_kernel - before
    }

    #[test]
    fn cold_reads_go_through_the_ring_where_that_is_quicker_and_there_is_one() {
        let file = file();
        let threads = instance(EngineKind::Auto, false);
        leave_alone(&threads);
        assert_eq!((read(&threads, &file), Workers::of(&threads).kernel.kind()), (0, None));
        let ring = instance(EngineKind::Auto, true);
        leave_alone(&ring);
        let by_kernel = read(&ring, &file);
        if Workers::of(&ring).kernel.kind().is_none() {
            let name = "cold_reads_go_through_the_ring_where_that_is_quicker_and_there_is_one";
            return crate::skipped(name, "io_uring is refused here");
        }
        assert_eq!(by_kernel, COUNT as u64);
        assert_eq!(Workers::of(&ring).kernel.kind(), Some(EngineKind::IoUring));
        // No more than so many contexts have one.
        let without = instance(EngineKind::Auto, true);
        leave_alone(&without);
        let held = hold_rings();
        assert_eq!(read(&without, &file), 0);
        drop(held);
        assert_eq!(Workers::of(&without).kernel.kind(), None);
        assert_eq!(read(&without, &file), 0, "it is not asked for again");
        drop((ring, threads));
    }

    #[test]
    fn a_number_that_stands_for_a_pipe_by_now_is_not_handed_to_the_ring() {
        let instance = instance(EngineKind::Auto, true);
        let number = file();
        read(&instance, &number);
        let (reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: both are open.
        let replaced = unsafe { libc::dup2(reader.as_raw_fd(), number.as_raw_fd()) };
        assert_eq!(replaced, number.as_raw_fd());
        let mut buffers = [[0; 1]; 2];
        let entries = buffers.each_mut().map(|buffer| {
            let sqe = Sqe::read(number.as_raw_fd(), &mut buffer[..], 0);
            Entry { sqe, data: 0, notify: -1 }
        });
        let before = instance.stats().unwrap().by_kernel;
        // SAFETY: the buffers outlive the requests, which are waited for.
        assert_eq!(unsafe { instance.submit(&entries) }.accepted, 2);
        writer.write_all(b"ab").unwrap();
        without_taker(|taker| instance.wait(2, 2, None, None, taker));
        assert_eq!(instance.reap(2, |cqe| assert_eq!(cqe.res, 1)), 2);
        assert_eq!(buffers.concat(), b"ab");
        assert_eq!(instance.stats().unwrap().by_kernel, before);
    }

    #[test]
    fn workers_alone_have_no_ring() {
        let instance = instance(EngineKind::Workers, true);
        assert_eq!(read(&instance, &file()), 0);
    }
}
