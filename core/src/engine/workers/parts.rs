//! A large cached read that is alone: it is done in parts (`split.rs`), by the thread that waits for it and workers, where that has been quicker.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use super::Workers;
use super::split::{End, PART_MIN};
use super::threads::{Busy, cpus};
use crate::descriptor;
use crate::exec;
use crate::instance::{By, Instance, Taker};
use crate::sqe::{Sqe, opcode};
use crate::sys::{self, MAX_RW_COUNT};

/// Reads before the first trial of the other way, and at most between two, to which the number doubles while the answer stays.
const GAP: (u32, u32) = (32, 1024);
/// Reads of a trial. The first few after each change of way do not count: a worker is still on its way.
const TRIAL: u32 = 8;
const WARM: u32 = 3;
/// A way is judged by the median of so many.
const SAMPLES: usize = (TRIAL - WARM) as usize;
/// A second CPU has to save so many percent of the time.
const WORTH: u64 = 10;
/// A waiter looks out this long for the parts that workers have.
const LAST_PARTS_US: u64 = 50;
/// A worker looks out for the next read at most this long.
const PATIENCE_US: u64 = 60;

/// Which way has been quicker: whole, or in parts.
#[derive(Debug, Default)]
pub(super) struct Gain {
    trials: Mutex<Trials>,
    /// The last one was done in parts, and so will be the next one.
    in_parts: AtomicBool,
    /// How long a worker has lately looked out for the next one with success, in ticks.
    patience: AtomicU64,
    /// When one has last left.
    left: AtomicU64,
    /// When it last said that it is busy.
    span: AtomicU64,
}

#[derive(Debug, Default)]
struct Trials {
    /// The answer.
    in_parts: bool,
    /// The other way is being tried.
    trial: bool,
    /// Reads in this phase, and until the next trial.
    reads: u32,
    gap: u32,
    /// The last ticks for 64 KiB of each way.
    ticks: [[u64; SAMPLES]; 2],
}

impl Trials {
    /// Is the next one to be done in parts?
    fn next(&mut self) -> bool {
        self.reads += 1;
        if self.trial && self.reads > TRIAL {
            self.judge();
            (self.trial, self.reads) = (false, 1);
        } else if !self.trial && self.reads > self.gap.max(GAP.0) {
            (self.trial, self.reads) = (true, 1);
        }
        self.in_parts != self.trial
    }

    /// The last one has taken so many ticks.
    fn took(&mut self, ticks: u64, len: u32) {
        if let Some(counted) = self.reads.checked_sub(WARM + 1) {
            let way = usize::from(self.in_parts != self.trial);
            self.ticks[way][counted as usize % SAMPLES] = (ticks << 16) / u64::from(len.max(1));
        }
    }

    fn judge(&mut self) {
        let [whole, parts] = self.ticks.map(|mut ticks| {
            ticks.sort_unstable();
            ticks[SAMPLES / 2]
        });
        let quicker = parts * 100 < whole * (100 - WORTH);
        self.gap =
            if quicker == self.in_parts { (self.gap * 2).clamp(GAP.0, GAP.1) } else { GAP.0 };
        self.in_parts = quicker;
    }
}

impl Gain {
    /// Is the next one to be done in parts? `None`: not now, and it does not count, as another thread is asking the same.
    fn chooses_parts(&self) -> Option<bool> {
        let in_parts = self.trials.try_lock().ok()?.next();
        self.in_parts.store(in_parts, Ordering::Relaxed);
        Some(in_parts)
    }

    fn took(&self, ticks: u64, len: u32) {
        if let Ok(mut trials) = self.trials.try_lock() {
            trials.took(ticks, len);
        }
    }

    /// How long a worker is to look out for the next one.
    pub(super) fn patience(&self) -> u64 {
        if self.in_parts.load(Ordering::Relaxed) {
            self.patience.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// A worker leaves: none has come while it looked out.
    pub(super) fn leaves(&self) {
        self.patience.store(self.patience.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        self.left.store(sys::ticks(), Ordering::Relaxed);
    }

    /// A worker has to be called.
    fn patience_would_have_paid(&self, ticks_per_us: u64) {
        let longest = PATIENCE_US * ticks_per_us;
        if sys::ticks().wrapping_sub(self.left.load(Ordering::Relaxed)) < longest {
            self.patience.store(longest, Ordering::Relaxed);
        }
    }

    /// Are there CPUs for parts, another one for each context that has such reads?
    fn has_cpus(&self, now_us: u64, busy: &Busy) -> bool {
        let span = Busy::span(now_us);
        if self.span.swap(span, Ordering::Relaxed) != span {
            busy.add(span);
        }
        busy.count(span) * 2 <= cpus()
    }
}

/// Can it be done in parts: is it a plain read of several parts, at offsets that a file can have?
fn has_parts(sqe: &Sqe) -> bool {
    let end = sqe.off.saturating_add(sqe.len.into());
    let plain = sqe.opcode == opcode::READ && sqe.op_flags == 0;
    plain && sqe.len >= 2 * PART_MIN && end <= i64::MAX as u64
}

impl Workers {
    /// Executes a copy, whose number the caller has popped. Gives the ticks that it took.
    pub(super) fn run_copy(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        taker: &mut Taker<'_>,
    ) -> u64 {
        // SAFETY: popped by us, so not freed; only read, as whoever cancels it at this moment does.
        let request = unsafe { instance.slot(slot).shared() };
        let (sqe, wary) = (&request.sqe, request.wary);
        let (len, alone) = (sqe.len, !wary && has_parts(sqe) && self.copies.is_empty());
        let now_us = || sys::ticks() / self.ticks_per_us;
        if !alone || !self.gain.has_cpus(now_us(), &self.threads.busy) {
            return self.run(instance, slot, by, true, taker);
        }
        let chosen = self.gain.chooses_parts();
        let ticks = if chosen == Some(true) {
            self.run_in_parts(instance, slot, by, taker)
        } else {
            self.run(instance, slot, by, true, taker)
        };
        if chosen.is_some() && ticks > 0 {
            self.gain.took(ticks, len);
        }
        ticks
    }

    /// Gives the ticks that it took; 0 if it was cancelled.
    fn run_in_parts(
        &self,
        instance: &Arc<Instance>,
        slot: u32,
        by: By,
        taker: &mut Taker<'_>,
    ) -> u64 {
        if !instance.start(slot) {
            return 0;
        }
        let begin = sys::ticks();
        // SAFETY: started by us just now, and not passed on before the reference's last use.
        let request = unsafe { instance.slot(slot).request() };
        let len = request.sqe.len.min(MAX_RW_COUNT as u32);
        let read = Sqe { len, ..request.sqe };
        if request.refused != 0 || !self.split.begin(slot, &read) {
            return self.execute(instance, slot, by, true, taker);
        }
        // Pairs with the one of a worker that leaves (`work_at_copies`).
        fence(Ordering::SeqCst);
        if self.copies_for_workers() > 0 {
            self.gain.patience_would_have_paid(self.ticks_per_us);
            self.call_worker(instance);
        }
        while self.read_part(instance, by, taker) {}
        self.wait_for_last_parts();
        sys::ticks().wrapping_sub(begin)
    }

    /// Others have the last parts of a read: looks out for its end as long as a few take.
    pub(super) fn wait_for_last_parts(&self) {
        let since = sys::ticks();
        while self.split.is_in_use()
            && sys::ticks().wrapping_sub(since) < LAST_PARTS_US * self.ticks_per_us
        {
            std::hint::spin_loop();
        }
    }

    /// Reads a part of a large read, and completes that if it was the last. False: no part is left.
    pub(super) fn read_part(
        &self,
        instance: &Arc<Instance>,
        by: By,
        taker: &mut Taker<'_>,
    ) -> bool {
        let end = if by == By::Waiter { End::Front } else { End::Back };
        let Some(part) = self.split.take(end) else { return false };
        let begin = sys::ticks();
        // SAFETY: the kernel checks the buffer, which is the request's until its completion, which waits for this.
        let result = unsafe { exec::read(&part.sqe) };
        let ticks = sys::ticks().wrapping_sub(begin);
        descriptor::learn(part.sqe.fd, false, ticks, self.ticks_per_us, part.sqe.len.into());
        if self.split.end(&part, result) {
            match self.split.result() {
                result if result == -libc::ESPIPE => self.reroute(instance, part.slot),
                result => {
                    instance.count(|stats| &stats.reads_in_parts);
                    instance.finish_for(part.slot, result, by, taker);
                }
            }
            // Only now: the waiter looks out for this, and finds the completion then.
            self.split.leave();
        }
        true
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::{By, GAP, Trials, Workers, has_parts};
    use crate::descriptor::Facts;
    use crate::engine::workers::threads::leave_alone;
    use crate::front::Entry;
    use crate::instance::{Instance, without_taker};
    use crate::{Context, EngineKind, Sqe, opcode};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The result of a read that is done in parts.
    fn in_parts_of(instance: &std::sync::Arc<Instance>, sqe: Sqe) -> i32 {
        let workers = Workers::of(instance);
        // A read that took long, should a thread have been away in the midst of it, says nothing about the next.
        Facts::forget(&(sqe.fd..=sqe.fd));
        // SAFETY: the caller keeps the buffer until the result is there, or it is none.
        let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
        assert_eq!(submitted.accepted, 1);
        // The other thread, which has ended the one before, may still be about to leave it.
        while workers.split.is_in_use() {
            std::thread::yield_now();
        }
        let slot = workers.copies.pop().expect("nobody else takes it");
        without_taker(|taker| workers.run_in_parts(instance, slot, By::Waiter, taker));
        let mut result = None;
        while result.is_none() {
            without_taker(|taker| instance.wait(1, 1, None, None, taker));
            instance.reap(1, |cqe| result = Some(cqe.res));
        }
        result.unwrap()
    }

    /// Reads parts, as a worker does, while the test runs.
    fn with_a_reader(instance: &Arc<Instance>, test: impl FnOnce()) {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let workers = Workers::of(instance);
                    if !without_taker(|taker| workers.read_part(instance, By::Pool, taker)) {
                        std::thread::yield_now();
                    }
                }
            });
            let _stop = Stop(&stop);
            test();
        });
    }

    #[test]
    fn only_plain_large_reads_at_offsets_have_parts() {
        let read = |len, off| Sqe { opcode: opcode::READ, len, off, ..Sqe::default() };
        assert!(has_parts(&read(1 << 20, 0)) && has_parts(&read(1 << 20, 1 << 62)));
        assert!(!has_parts(&read(4096, 0)));
        assert!(!has_parts(&read(1 << 20, crate::FILE_POSITION)));
        assert!(!has_parts(&read(1 << 20, i64::MAX as u64)));
        assert!(!has_parts(&Sqe { op_flags: libc::RWF_NOWAIT as u32, ..read(1 << 20, 0) }));
        assert!(!has_parts(&Sqe { opcode: opcode::READV, ..read(1 << 20, 0) }));
    }

    #[test]
    fn a_read_in_parts_is_one_read() {
        const LEN: usize = (1 << 20) + 100;
        let data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&data, 0).unwrap();
        let builder = Context::builder().entries(4).engine(EngineKind::Workers).stats(true);
        let instance = Instance::new(&builder).unwrap();
        leave_alone(&instance);
        let mut buffer = vec![0; 2 << 20];
        with_a_reader(&instance, || {
            for round in 0..200usize {
                let offset = round * 4999;
                buffer.fill(255);
                let sqe = Sqe::read(file.as_raw_fd(), &raw mut buffer[..], offset as u64);
                assert_eq!(in_parts_of(&instance, sqe), (LEN - offset) as i32);
                assert_eq!(buffer[..LEN - offset], data[offset..]);
            }
        });
        assert_eq!(instance.stats().unwrap().reads_in_parts, 200);
        let nowhere =
            std::ptr::slice_from_raw_parts_mut(std::ptr::without_provenance_mut(4096), 1 << 20);
        let sqe = Sqe::read(file.as_raw_fd(), nowhere, 0);
        assert_eq!(in_parts_of(&instance, sqe), -libc::EFAULT);
        let sqe = Sqe::read(file.as_raw_fd(), &raw mut buffer[..], LEN as u64);
        assert_eq!(in_parts_of(&instance, sqe), 0);
        assert_eq!(instance.free_slots().held(), 0);
    }

    /// So many of 10,000 reads are done in parts, where they take these times: whole, and in parts; the first few of a trial longer.
    fn in_parts(trials: &mut Trials, (whole, parts): (u64, u64)) -> usize {
        let mut in_a_row = 0;
        (0..10_000)
            .filter(|_| {
                let way = trials.next();
                in_a_row = if way { in_a_row + 1 } else { 0 };
                let late = if (1..3).contains(&in_a_row) { 10 * whole } else { 0 };
                trials.took(if way { parts } else { whole } + late, 1 << 20);
                way
            })
            .count()
    }

    #[test]
    fn what_is_quicker_stays_and_the_other_way_is_tried_now_and_then() {
        let mut trials = Trials::default();
        assert!((100..500).contains(&in_parts(&mut trials, (1000, 950))), "saves too little");
        assert_eq!(trials.gap, GAP.1);
        assert!((9_000 - GAP.1 as usize..9_990).contains(&in_parts(&mut trials, (1000, 600))));
        assert!((1..GAP.1 as usize + 500).contains(&in_parts(&mut trials, (1000, 1200))));
    }
}
