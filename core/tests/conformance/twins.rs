//! Random programs that submit, wait, reap and cancel freely, and end or are destroyed at any
//! point. Completed requests are repeated on a twin file with plain calls, and nothing else may
//! have happened. With the feature `faulty` the test also runs under faults. The program then
//! repeats failed or short requests.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use uringlet::{Builder, Context, Cqe, Sqe};

use crate::common::{
    LONG, bounded, builder, create, from_env, pattern, push, reap_all, skip, wait_for, wait_until,
};

/// Each lane makes one transfer at a time, in a range of the file of its own.
const LANES: usize = 8;
/// The number of parts of a lane. A transfer moves some or all of them.
const UNITS: usize = 4;
/// The alignment of direct transfers.
const ALIGNED: usize = 4096;
const ENTRIES: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    /// Pushes a transfer of this many parts of a unit each, if the lane is idle.
    Transfer {
        lane: usize,
        write: bool,
        start: usize,
        parts: usize,
        seed: u64,
    },
    Sync(bool),
    Submit,
    Cancel(usize),
    /// Waits for this percentage of the requests in flight.
    Wait(usize),
    Reap(usize),
    /// With nothing else in flight: truncates the file at a lane, and restores its length.
    Truncate(usize),
    /// With nothing else in flight: punches a hole over a lane's range.
    Punch(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let transfer = (0..LANES, any::<bool>(), 0..UNITS, 1..=UNITS, 0..1000u64);
    prop_oneof![
        12 => transfer.prop_map(|(lane, write, start, parts, seed)| Step::Transfer {
            lane, write, start, parts: parts.min(UNITS - start), seed,
        }),
        1 => any::<bool>().prop_map(Step::Sync),
        4 => Just(Step::Submit),
        3 => (0..LANES).prop_map(Step::Cancel),
        2 => (0..=100usize).prop_map(Step::Wait),
        3 => (0..LANES).prop_map(Step::Reap),
        1 => (0..LANES).prop_map(Step::Truncate),
        1 => (0..LANES).prop_map(Step::Punch),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Sync,
    Alone,
    /// Bytes `from` to `to` of the lane.
    Transfer {
        lane: usize,
        write: bool,
        from: usize,
        to: usize,
    },
}

struct Program {
    /// The context is dropped first, because it may use the buffers until then.
    context: Context,
    ours: File,
    twin: File,
    unit: usize,
    faulty: bool,
    buffers: Vec<Vec<u8>>,
    iovecs: Vec<Vec<libc::iovec>>,
    busy: [Option<u64>; LANES],
    doing: HashMap<u64, Doing>,
    cancelled: HashSet<u64>,
    next: u64,
    over: bool,
}

impl Program {
    fn new(builder: Builder, ours: File, twin: File, unit: usize, faulty: bool) -> Self {
        for file in [&ours, &twin] {
            file.set_len((LANES * UNITS * unit) as u64).unwrap();
        }
        Self {
            context: builder.entries(ENTRIES).build().unwrap(),
            ours,
            twin,
            unit,
            faulty,
            buffers: vec![vec![0; UNITS * unit + ALIGNED]; LANES],
            iovecs: vec![Vec::new(); LANES],
            busy: [None; LANES],
            doing: HashMap::new(),
            cancelled: HashSet::new(),
            next: 0,
            over: false,
        }
    }

    fn lane_offset(&self, lane: usize) -> u64 {
        (lane * UNITS * self.unit) as u64
    }

    /// The aligned part of a lane's buffer.
    fn buffer(&mut self, lane: usize) -> &mut [u8] {
        let start = self.buffers[lane].as_ptr().align_offset(ALIGNED);
        &mut self.buffers[lane][start..][..UNITS * self.unit]
    }

    fn push(&mut self, sqe: Sqe, doing: Doing) {
        push(&mut self.context, sqe.user_data(self.next));
        self.doing.insert(self.next, doing);
        if let Doing::Transfer { lane, .. } = doing {
            self.busy[lane] = Some(self.next);
        }
        self.next += 1;
    }

    fn push_transfer(
        &mut self,
        lane: usize,
        write: bool,
        (from, to): (usize, usize),
        parts: usize,
    ) {
        let (fd, offset) = (self.ours.as_raw_fd(), self.lane_offset(lane) + from as u64);
        let part = (to - from) / parts;
        let buffer = &mut self.buffer(lane)[from..to];
        if !write {
            buffer.fill(0xee);
        }
        let sqe = if parts == 1 {
            if write { Sqe::write(fd, &*buffer, offset) } else { Sqe::read(fd, buffer, offset) }
        } else {
            let iovec = |part: &mut [u8]| libc::iovec {
                iov_base: part.as_mut_ptr().cast(),
                iov_len: part.len(),
            };
            // The vectors are kept until the submit, as a push requires.
            let iovecs = buffer.chunks_mut(part).map(iovec).collect();
            self.iovecs[lane] = iovecs;
            let iovecs = &self.iovecs[lane][..];
            if write { Sqe::writev(fd, iovecs, offset) } else { Sqe::readv(fd, iovecs, offset) }
        };
        self.push(sqe, Doing::Transfer { lane, write, from, to });
    }

    fn submit(&mut self) {
        // A cancelled request may hold its slot for a moment: all entries will be accepted, but not
        // always at once.
        assert!(wait_until(|| {
            let _ = self.context.submit();
            self.context.pushed() == 0
        }));
    }

    fn reap(&mut self, most: usize) {
        for _ in 0..most {
            let Some(cqe) = self.context.reap() else { return };
            self.complete(cqe);
        }
    }

    fn complete(&mut self, Cqe { user_data, res, .. }: Cqe) {
        let doing = self.doing.remove(&user_data);
        let doing = doing.unwrap_or_else(|| panic!("{user_data} completed twice: {res}"));
        if let Doing::Transfer { lane, .. } = doing {
            self.busy[lane] = None;
        }
        let cancelled = self.cancelled.remove(&user_data);
        if res == -libc::ECANCELED {
            return assert!(cancelled || self.over, "{user_data} was not cancelled: {doing:?}");
        }
        assert!(!cancelled, "{user_data} was cancelled and gave {res}: {doing:?}");
        let failed = self.faulty && [-libc::EIO, -libc::EAGAIN].contains(&res);
        match doing {
            Doing::Sync => assert!(res == 0 || failed, "{res}"),
            Doing::Alone => assert_eq!(res, 0),
            Doing::Transfer { lane, write, from, to } => {
                let done = if failed { 0 } else { res };
                let whole = done == (to - from) as i32;
                let right =
                    whole || failed || self.faulty && (1..(to - from) as i32).contains(&done);
                assert!(right, "{res} of {doing:?}");
                let middle = from + done as usize;
                let offset = self.lane_offset(lane) + from as u64;
                let mut bytes = self.buffer(lane)[from..middle].to_vec();
                if write {
                    self.twin.write_all_at(&bytes, offset).unwrap();
                } else {
                    let found = bytes.clone();
                    self.twin.read_exact_at(&mut bytes, offset).unwrap();
                    assert!(found == bytes, "what {doing:?} has read");
                }
                if !whole && !self.over {
                    self.push_transfer(lane, write, (middle, to), 1);
                }
            }
        }
    }

    /// Waits until nothing is in flight.
    fn finish(&mut self) {
        while !self.doing.is_empty() {
            self.submit();
            let all = self.doing.len();
            wait_for(&mut self.context, all);
            for cqe in reap_all(&mut self.context) {
                self.complete(cqe);
            }
        }
    }

    fn alone(&mut self, sqe: Sqe) {
        self.push(sqe, Doing::Alone);
        self.finish();
    }

    fn execute(&mut self, step: &Step) {
        match *step {
            Step::Transfer { lane, write, start, parts, seed } => {
                if self.busy[lane].is_some() {
                    return;
                }
                let (from, to) = (start * self.unit, (start + parts) * self.unit);
                if write {
                    let content = pattern(seed, to - from);
                    self.buffer(lane)[from..to].copy_from_slice(&content);
                }
                self.push_transfer(lane, write, (from, to), parts);
            }
            Step::Sync(data) => {
                // Keeps as many entries free as there are lanes, for their transfers.
                if self.doing.len() + LANES < ENTRIES as usize {
                    let fd = self.ours.as_raw_fd();
                    self.push(if data { Sqe::fdatasync(fd) } else { Sqe::fsync(fd) }, Doing::Sync);
                }
            }
            Step::Submit => self.submit(),
            Step::Cancel(lane) => {
                let Some(user_data) = self.busy[lane] else { return };
                match self.context.cancel(user_data) {
                    Ok(()) => assert!(self.cancelled.insert(user_data), "cancelled twice"),
                    Err(error) => {
                        let expected = [libc::EALREADY, libc::ENOENT];
                        assert!(expected.contains(&error.raw_os_error().unwrap()), "{error}");
                    }
                }
            }
            Step::Wait(hundredths) => {
                let submitted = self.doing.len() - self.context.pushed();
                wait_for(&mut self.context, submitted * hundredths / 100);
            }
            Step::Reap(most) => self.reap(most),
            Step::Truncate(lane) => {
                self.finish();
                let (fd, whole) = (self.ours.as_raw_fd(), self.lane_offset(LANES));
                let cut = self.lane_offset(lane);
                for len in [cut, whole] {
                    self.alone(Sqe::ftruncate(fd, len));
                    self.twin.set_len(len).unwrap();
                }
            }
            Step::Punch(lane) => {
                self.finish();
                let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
                let (offset, len) = (self.lane_offset(lane), self.lane_offset(1));
                // SAFETY: a call on a descriptor.
                let done = unsafe {
                    libc::fallocate(self.twin.as_raw_fd(), mode, offset as i64, len as i64)
                };
                // If the file system has no holes, the call on the twin fails.
                if done == 0 {
                    let fd = self.ours.as_raw_fd();
                    self.alone(Sqe::fallocate(fd, mode as u32, offset, len));
                }
            }
        }
    }

    /// Destroys the context with requests in flight.
    fn destroy(mut self) -> (File, File) {
        self.over = true;
        // The newest entries may be pushed and not submitted. The destroy drops these.
        let submitted = self.next - self.context.pushed() as u64;
        let rest = Context::new(1).unwrap();
        let context = std::mem::replace(&mut self.context, rest);
        context.destroy().into_iter().for_each(|cqe| self.complete(cqe));
        self.doing.retain(|&user_data, _| user_data < submitted);
        assert!(self.doing.is_empty(), "never completed: {:?}", self.doing);
        assert!(self.cancelled.is_empty(), "cancelled and never completed: {:?}", self.cancelled);
        (self.ours, self.twin)
    }
}

fn open_direct(path: &std::path::Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Runs random programs on contexts of this builder, which gets a seed.
fn check(direct: bool, faulty: bool, builder: impl Fn(u64) -> Builder) {
    let _bound = bounded(LONG * 8);
    // The file is in the build folder, so that direct I/O is that of a real disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if direct && open_direct(&create(dir.path(), "direct").0).is_err() {
        return skip("the file system of the target folder has no O_DIRECT");
    }
    let mut runner = TestRunner::new(ProptestConfig {
        cases: from_env("PROPTEST_CASES", 64) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let steps = prop::collection::vec(step(), 1..120);
    let case = (steps, any::<bool>(), 1..4usize, any::<u64>());
    let ran = runner.run(&case, |(steps, destroy, workers, seed)| {
        let (path, mut ours) = create(dir.path(), "ours");
        let (_, twin) = create(dir.path(), "twin");
        if direct {
            ours = open_direct(&path)?;
        }
        let unit = if direct { ALIGNED } else { 700 };
        let builder = builder(seed).workers_max(workers);
        let mut program = Program::new(builder, ours, twin, unit, faulty);
        steps.iter().for_each(|step| program.execute(step));
        if !destroy {
            program.finish();
        }
        let (ours, twin) = program.destroy();
        drop((ours, twin));
        let content = |name| std::fs::read(dir.path().join(name)).unwrap();
        prop_assert!(content("ours") == content("twin"), "the contents differ");
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}\n{runner}");
    }
}

#[test]
fn buffered_programs_do_what_completed_and_nothing_else() {
    check(false, false, |_| builder());
}

#[test]
fn direct_programs_do_what_completed_and_nothing_else() {
    check(true, false, |_| builder());
}

#[cfg(feature = "faulty")]
mod under_faults {
    use uringlet::Faults;

    use super::check;
    use crate::common::builder;

    #[test]
    fn buffered_programs_get_their_data_through() {
        check(false, true, |seed| builder().faulty(Faults::all(seed)));
    }

    #[test]
    fn direct_programs_get_their_data_through() {
        check(true, true, |seed| builder().faulty(Faults::all(seed)));
    }

    #[test]
    fn nothing_but_short_transfers_still_gets_through() {
        let short = |seed| Faults { short: 900, held: 0, ..Faults::all(seed) };
        check(false, true, |seed| builder().faulty(Faults { eio: 0, eagain: 0, ..short(seed) }));
    }
}
