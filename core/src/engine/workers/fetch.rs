//! Pages for queued writes: a write of part of a page that is not in memory has it read first, under the lock of its file.
//! One after the other they would wait for the device; asked for ahead, they wait together.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Workers;
use super::baton::Turn;
use super::lane::Lane;
use crate::descriptor::Facts;
use crate::instance::Instance;
use crate::request::Kind;
use crate::sqe::{FILE_POSITION, Sqe, opcode};
use crate::sys;

const PAGE: u64 = 4096;
/// A request that took longer than this may have waited for a page.
const SLOW_US: u64 = 20;
/// Asking for a page takes longer than this if it is not there.
const ABSENT_US: u64 = 3;
/// After a slow one, and after each page that was not there, so many more requests are looked at.
const LOOK_AT: u32 = 64;
/// At a time, so that the first of them need not wait long.
const AT_A_TIME: usize = 32;

/// What the holder of the baton knows. Only hints: it may lose the baton.
#[derive(Debug, Default)]
pub(super) struct Fetch {
    /// Requests that are still to be looked at.
    left: AtomicU32,
    /// Up to here in the inline queue they were.
    until: AtomicU64,
}

impl Fetch {
    /// Is there a reason to look?
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    fn looked_at_one(&self) {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
    }
}

/// The pages that a write only changes in part: their offsets.
fn partial_pages(offset: u64, len: u64) -> impl Iterator<Item = u64> {
    let end = offset.saturating_add(len);
    let (first, last) = (offset / PAGE * PAGE, end / PAGE * PAGE);
    let first_is_whole = offset == first && end >= first.saturating_add(PAGE);
    let head = (len > 0 && !first_is_whole).then_some(first);
    let tail = (len > 0 && end != last && last != first).then_some(last);
    head.into_iter().chain(tail)
}

/// Does it write to the page cache at a place of its own, by [`Lane::Inline`]?
fn is_cached_write(sqe: &Sqe, kind: Kind, lane: u8) -> bool {
    kind == Kind::Write
        && sqe.opcode == opcode::WRITE
        && lane == Lane::Inline as u8
        && sqe.off != FILE_POSITION
        && Facts::known(sqe.fd).is_ok_and(|facts| !facts.is_direct() && facts.seems_seekable())
}

impl Workers {
    /// Notes how long an inline request took.
    #[inline]
    pub(super) fn took(&self, ticks: u64) {
        if ticks > SLOW_US * self.ticks_per_us {
            self.fetch.left.store(LOOK_AT, Ordering::Relaxed);
        }
    }

    /// Asks for the pages of the next writes, if that has been worth it lately.
    #[cold]
    pub(super) fn fetch_pages(&self, instance: &Instance, turn: &Turn) {
        let mut writes = [(0, 0, 0); AT_A_TIME];
        let mut found = 0;
        if self.inline.len() < 2 {
            // Alone, it waits no longer than it would for its page.
            return self.fetch.looked_at_one();
        }
        {
            // Nobody takes a request out of the queue meanwhile, but for the oldest one, which a thread that has lost the baton
            // may have in hand, and which is executed next anyway.
            let _alone = self.taking.alone();
            if !self.baton.is_held_in(turn) {
                return;
            }
            let left = self.fetch.left.load(Ordering::Relaxed) as usize;
            let from = self.fetch.until.load(Ordering::Relaxed).max(self.inline.taken() + 1);
            let ahead = (from..).zip(self.inline.peek_from(from)).take(AT_A_TIME.min(left));
            for (position, slot) in ahead {
                // Should the right be taken from this thread, another one may take the request meanwhile.
                if let Some((sqe, kind, lane)) = instance.slot(slot).hint()
                    && is_cached_write(&sqe, kind, lane)
                {
                    writes[found] = (sqe.fd, sqe.off, u64::from(sqe.len));
                    found += 1;
                }
                self.fetch.until.store(position + 1, Ordering::Relaxed);
                self.fetch.looked_at_one();
            }
        }
        for &(fd, offset, len) in &writes[..found] {
            for page in partial_pages(offset, len) {
                self.fetch_page(instance, fd, page);
            }
        }
    }

    /// A hint: should the number stand for another file by now, that one's page is read.
    fn fetch_page(&self, instance: &Instance, fd: RawFd, page: u64) {
        let begin = sys::ticks();
        let asked = sys::fadvise(fd, page, PAGE, libc::POSIX_FADV_WILLNEED as u32) == 0;
        if asked && sys::ticks().wrapping_sub(begin) > ABSENT_US * self.ticks_per_us {
            self.fetch.left.store(LOOK_AT, Ordering::Relaxed);
            instance.count(|stats| &stats.pages_ahead);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{LOOK_AT, PAGE, Workers, partial_pages};
    use crate::engine::workers::threads::leave_alone;
    use crate::front::Entry;
    use crate::instance::Instance;
    use crate::{Context, EngineKind, Sqe, sys};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    #[test]
    fn pages_written_in_part_are_named_once_each() {
        let pages = |offset, len| partial_pages(offset, len).collect::<Vec<_>>();
        assert_eq!(pages(1024, 1024), [0]);
        assert_eq!(pages(3072, 1024), [0]);
        assert_eq!(pages(4096, 1), [4096]);
        assert_eq!(pages(0, 4096), []);
        assert_eq!(pages(8192, 8192), []);
        assert_eq!(pages(1, 4096), [0, 4096]);
        assert_eq!(pages(4095, 2), [0, 4096]);
        assert_eq!(pages(4096, 5000), [8192]);
        assert_eq!(pages(100, 3 * 4096 - 100), [0]);
        assert_eq!(pages(512, 0), []);
        assert_eq!(pages(u64::MAX - 1, 100), [u64::MAX / PAGE * PAGE]);
    }

    const WRITES: usize = 8;

    /// Which of the file's pages are in memory?
    fn present(file: &File) -> [bool; WRITES] {
        let (len, fd) = (WRITES * PAGE as usize, file.as_raw_fd());
        let mut vec = [0u8; WRITES];
        // SAFETY: a new mapping, which nobody touches, and a byte for each of its pages.
        unsafe {
            let map =
                libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mincore(map, len, vec.as_mut_ptr()), 0);
            libc::munmap(map, len);
        }
        vec.map(|byte| byte & 1 == 1)
    }

    #[test]
    fn queued_writes_have_their_pages_asked_for() {
        let name = "queued_writes_have_their_pages_asked_for";
        // Beside this program: where temporary files belong there is often no disk below.
        let program = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        file.write_all_at(&vec![7; WRITES * PAGE as usize], 0).unwrap();
        file.sync_all().unwrap();
        sys::fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED as u32);
        if present(&file) != [false; WRITES] {
            return crate::skipped(name, "pages cannot be dropped here");
        }
        let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        leave_alone(&instance);
        let workers = Workers::of(&instance);
        let turn = workers.baton.take().expect("nobody else takes it");
        let data = [1; 512];
        let sqe = |at| Sqe::write(file.as_raw_fd(), &raw const data[..], at as u64 * PAGE + 512);
        let entries =
            std::array::from_fn::<_, WRITES, _>(|at| Entry { sqe: sqe(at), data: 0, notify: -1 });
        // SAFETY: `data` outlives the requests, which are waited for.
        assert_eq!(unsafe { instance.submit(&entries) }.accepted, WRITES);
        let before = workers.inline.taken();
        workers.fetch.left.store(LOOK_AT, Ordering::Relaxed);
        workers.fetch_pages(&instance, &turn);
        assert_eq!(workers.fetch.until.load(Ordering::Relaxed), before + WRITES as u64);
        // All but that of the first one, which is written next anyway.
        let deadline = Instant::now() + Duration::from_secs(60);
        while present(&file)[1..] != [true; WRITES - 1] {
            assert!(Instant::now() < deadline, "{:?}", present(&file));
            std::thread::yield_now();
        }
        assert!(!present(&file)[0]);
        assert!(workers.baton.leave(turn));
        crate::instance::without_taker(|taker| {
            instance.wait(WRITES as u32, WRITES as u32, None, None, taker);
        });
        assert_eq!(instance.reap(WRITES as u32, |cqe| assert_eq!(cqe.res, 512)), WRITES as u32);
        let mut found = vec![0; WRITES * PAGE as usize];
        file.read_exact_at(&mut found, 0).unwrap();
        let right = |(at, &byte): (usize, &u8)| {
            byte == if (512..1024).contains(&(at % PAGE as usize)) { 1 } else { 7 }
        };
        assert!(found.iter().enumerate().all(right), "the writes, and what was there");
    }
}
