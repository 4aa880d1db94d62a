//! Random requests from four threads on files with known contents: none is lost, none repeated.
//!
//! `URINGLET_STRESS_REQUESTS` is the total number (10_000_000 by hand), `URINGLET_TEST_SEED`
//! repeats a run. With the engine `faulty` and `URINGLET_TEST_FAULTS=all`, transfers also fail or
//! end early (`ci/soak.sh`).

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{
    LONG, Random, SEED, all_faults, bounded, context, file_with, from_env, push, reap_all, seed,
    wait_for,
};
use uringlet::{Canceller, Context, Sqe};

const THREADS: u64 = 4;
const DEPTH: usize = 64;
const REGIONS: usize = 256;
const REGION: usize = 256;

fn requests() -> u64 {
    from_env("URINGLET_STRESS_REQUESTS", 400_000)
}

/// The content of region `region` in its version `version`.
fn fill(buffer: &mut [u8], region: usize, version: u64) {
    let mut random = Random::new(region as u64 ^ version << 16);
    for word in buffer.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Nop,
    /// Reads the present version.
    Read {
        region: usize,
    },
    /// Writes the next version.
    Write {
        region: usize,
    },
}

/// A context with its file, and the content that the file must have.
struct Station {
    context: Context,
    canceller: Canceller,
    file: File,
    random: Random,
    versions: Vec<u64>,
    /// The content of each region.
    content: Vec<[u8; REGION]>,
    readers: Vec<u32>,
    writing: Vec<bool>,
    doing: Vec<(u64, Doing)>,
    /// Each buffer is in a box of its own. So borrowing one buffer does not borrow another one that
    /// a request uses.
    #[expect(clippy::vec_box, reason = "a box is not borrowed with the vector")]
    buffers: Vec<Box<[u8; REGION]>>,
    /// Requests whose cancel succeeded and which have no completion yet.
    cancelled: Vec<u64>,
    next: u64,
    in_flight: usize,
    completed: u64,
}

impl Station {
    fn new(seed: u64) -> Self {
        let mut content = vec![[0; REGION]; REGIONS];
        for (region, part) in content.iter_mut().enumerate() {
            fill(part, region, 0);
        }
        let context = context(DEPTH as u32);
        Self {
            canceller: context.canceller(),
            context,
            file: file_with(content.as_flattened()),
            content,
            random: Random::new(seed),
            versions: vec![0; REGIONS],
            readers: vec![0; REGIONS],
            writing: vec![false; REGIONS],
            doing: vec![(0, Doing::Nothing); DEPTH],
            buffers: vec![Box::new([0; REGION]); DEPTH],
            cancelled: Vec::new(),
            next: 0,
            in_flight: 0,
            completed: 0,
        }
    }

    fn request(&mut self, slot: usize) -> (Doing, Sqe) {
        let region = self.random.below(REGIONS);
        let (fd, offset) = (self.file.as_raw_fd(), (region * REGION) as u64);
        let buffer = &mut self.buffers[slot][..];
        match self.random.below(10) {
            0 => (Doing::Nop, Sqe::nop()),
            1..4 if !self.writing[region] && self.readers[region] == 0 => {
                self.writing[region] = true;
                self.versions[region] += 1;
                fill(buffer, region, self.versions[region]);
                (Doing::Write { region }, Sqe::write(fd, buffer, offset))
            }
            _ if !self.writing[region] => {
                self.readers[region] += 1;
                buffer.fill(0);
                (Doing::Read { region }, Sqe::read(fd, buffer, offset))
            }
            _ => (Doing::Nop, Sqe::nop()),
        }
    }

    fn push_some(&mut self, left: u64) {
        let most = (DEPTH - self.in_flight).min(usize::try_from(left).unwrap_or(DEPTH));
        let batch = self.random.below(most + 1);
        let mut slot = 0;
        for _ in 0..batch {
            while !matches!(self.doing[slot].1, Doing::Nothing) {
                slot += 1;
            }
            let (doing, sqe) = self.request(slot);
            self.doing[slot] = (self.next, doing);
            push(&mut self.context, sqe.user_data(self.next << 8 | slot as u64));
            self.next += 1;
            self.in_flight += 1;
        }
        while self.context.pushed() > 0 {
            // A cancelled request may hold its slot for a moment after its completion was reaped.
            if self.context.submit().is_err() {
                self.context.wait(0, None).unwrap();
                std::thread::yield_now();
            }
        }
    }

    fn cancel_some(&mut self) {
        while self.in_flight > 0 && self.random.one_in(8) {
            let slot = self.random.below(DEPTH);
            let (number, doing) = self.doing[slot];
            if matches!(doing, Doing::Nothing) {
                continue;
            }
            match self.canceller.cancel(number << 8 | slot as u64) {
                Ok(()) => self.cancelled.push(number),
                Err(error) => {
                    let expected = [libc::EALREADY, libc::ENOENT];
                    assert!(expected.contains(&error.raw_os_error().unwrap()), "{error}");
                }
            }
        }
    }

    fn reap(&mut self) {
        for cqe in reap_all(&mut self.context) {
            let (number, slot) = (cqe.user_data >> 8, (cqe.user_data & 0xff) as usize);
            let (expected, doing) = self.doing[slot];
            assert_eq!(number, expected, "lost, repeated or never submitted: {doing:?}");
            let at = self.cancelled.iter().position(|&cancelled| cancelled == number);
            assert_eq!(cqe.res == -libc::ECANCELED, at.is_some(), "{number} gave {}", cqe.res);
            at.map(|at| self.cancelled.swap_remove(at));
            let done = || if at.is_some() { 0 } else { transferred(cqe.res) };
            match doing {
                Doing::Nothing => panic!("{number} completed twice"),
                Doing::Nop => assert!(at.is_some() || cqe.res == 0),
                Doing::Read { region } => {
                    let done = done();
                    self.readers[region] -= 1;
                    let mut wanted = [0; REGION];
                    wanted[..done].copy_from_slice(&self.content[region][..done]);
                    assert!(*self.buffers[slot] == wanted, "region {region}, request {number}");
                }
                Doing::Write { region } => {
                    let done = done();
                    self.writing[region] = false;
                    self.content[region][..done].copy_from_slice(&self.buffers[slot][..done]);
                }
            }
            self.doing[slot].1 = Doing::Nothing;
            self.in_flight -= 1;
            self.completed += 1;
        }
    }

    /// Submits, cancels, waits and reaps once. Returns the number of new requests, at most `left`.
    fn turn(&mut self, left: u64) -> u64 {
        let before = self.next;
        self.push_some(left);
        self.cancel_some();
        match self.random.below(4) {
            0 => {}
            1 => drop(self.context.wait(0, None).unwrap()),
            2 => {
                let some = self.random.below(self.in_flight + 1);
                wait_for(&mut self.context, some);
            }
            _ => {
                let some = self.random.below(self.in_flight + 1);
                let time = Duration::from_micros(self.random.below(50) as u64);
                self.context.wait(some, Some(time)).unwrap();
            }
        }
        self.reap();
        self.next - before
    }

    /// Waits for the rest, verifies the file, and destroys the context.
    fn end(mut self) -> u64 {
        wait_for(&mut self.context, self.in_flight);
        self.reap();
        assert_eq!((self.in_flight, self.completed), (0, self.next));
        assert_eq!(self.cancelled, []);
        for region in 0..REGIONS {
            use std::os::unix::fs::FileExt as _;
            let mut found = [0; REGION];
            self.file.read_exact_at(&mut found, (region * REGION) as u64).unwrap();
            assert!(found == self.content[region], "region {region}");
        }
        assert_eq!(self.context.destroy(), []);
        self.completed
    }
}

/// The number of bytes that a transfer has moved, if it was not cancelled.
#[track_caller]
fn transferred(result: i32) -> usize {
    match usize::try_from(result) {
        Ok(bytes) if bytes == REGION || all_faults() && (1..REGION).contains(&bytes) => bytes,
        Err(_) if all_faults() && [-libc::EIO, -libc::EAGAIN].contains(&result) => 0,
        _ => panic!("a transfer of {REGION} bytes gave {result}"),
    }
}

fn limit() -> Duration {
    // On a slow machine, a request takes a tenth of these 10 µs.
    LONG * 8 + Duration::from_micros(10 * requests())
}

#[test]
fn four_threads_with_a_context_each_lose_and_repeat_nothing() {
    let _bound = bounded(limit());
    let (seed, all) = (seed(), requests());
    println!("{SEED}={seed}");
    let completed: u64 = std::thread::scope(|scope| {
        let each = |thread| {
            let mut left = all / THREADS + u64::from(thread < all % THREADS);
            let mut station = Station::new(seed ^ thread << 32);
            while left > 0 {
                left -= station.turn(left);
            }
            station.end()
        };
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || each(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(completed, all);
}

#[test]
fn contexts_that_move_between_threads_lose_and_repeat_nothing() {
    let _bound = bounded(limit());
    let (seed, all) = (seed(), requests());
    println!("{SEED}={seed}");
    let stations = Mutex::new((0..6).map(|at| Station::new(seed ^ at << 40)).collect::<Vec<_>>());
    let left = AtomicU64::new(all);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (stations, left) = (&stations, &left);
            scope.spawn(move || {
                let mut random = Random::new(seed ^ thread << 48);
                loop {
                    // The context goes from one thread to another with requests in flight.
                    let mut station = {
                        let mut stations = stations.lock().unwrap();
                        let at = random.below(stations.len());
                        stations.swap_remove(at)
                    };
                    for _ in 0..=random.below(8) {
                        let share = left.load(Ordering::Relaxed).min(DEPTH as u64);
                        // The share is taken from `left` first, and the unused part is given back,
                        // because other threads take shares, too.
                        let taken =
                            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                                left.checked_sub(share)
                            });
                        if taken.is_ok() {
                            let used = station.turn(share);
                            left.fetch_add(share - used, Ordering::Relaxed);
                        }
                    }
                    stations.lock().unwrap().push(station);
                    if left.load(Ordering::Relaxed) == 0 {
                        return;
                    }
                }
            });
        }
    });
    let stations = stations.into_inner().unwrap();
    assert_eq!(stations.len(), 6);
    assert_eq!(stations.into_iter().map(Station::end).sum::<u64>(), all);
}
