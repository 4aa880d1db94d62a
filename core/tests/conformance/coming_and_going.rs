//! Several threads make, use and destroy contexts behind the handles of one table. A handle leads
//! to its own context or to none, and every accepted request completes once.
//!
//! `URINGLET_STRESS_ROUNDS` is the number of steps of each thread (by hand, for about a minute:
//! 2_000_000).
#![allow(unsafe_code)]

use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use uringlet::table::{Pages, Removed, Table};
use uringlet::{Context, Sqe};

use crate::common::{
    LONG, Random, SEED, bounded, builder, excepted, file_with, from_env, isolated, pattern, run,
    seed, wait_until,
};

const THREADS: usize = 4;
/// The number of handles. It is small, so that several threads often use the same handle.
const HANDLES: usize = 6;

/// The value behind a handle. It contains the number of the handle, so that mix-ups are detected.
struct Behind {
    number: usize,
    context: Mutex<Context>,
}

struct World {
    table: Table<Behind>,
    pages: Vec<Pages>,
    alive: Vec<Mutex<bool>>,
    used: AtomicU64,
    missed: AtomicU64,
    made: AtomicUsize,
}

impl World {
    fn new() -> Self {
        let table = Table::new().unwrap();
        let pages = (0..HANDLES).map(|_| table.allocate(1).unwrap()).collect();
        let alive = (0..HANDLES).map(|_| Mutex::new(false)).collect();
        let zero = AtomicU64::default;
        Self { table, pages, alive, used: zero(), missed: zero(), made: AtomicUsize::new(0) }
    }

    fn make(&self, number: usize) {
        let mut alive = self.alive[number].lock().unwrap();
        if !*alive {
            let context = Mutex::new(builder().entries(4).build().unwrap());
            let behind = Box::new(Behind { number, context });
            // SAFETY: pages of this table. `alive` is false: nothing is published there, and the
            // earlier removal has returned.
            unsafe { self.table.publish_at(self.pages[number].address(), behind) };
            self.made.fetch_add(1, Ordering::Relaxed);
            *alive = true;
        }
    }

    /// The thread that comes first destroys the context. A later one finds nothing.
    fn destroy(&self, number: usize) {
        let taken = self.table.remove(self.pages[number].address(), |_| ());
        if let Removed::Value(behind) = taken {
            let left = behind.context.into_inner().unwrap().destroy();
            assert!(left.is_empty(), "everything was reaped: {left:?}");
            // Only now may another context use the handle.
            *self.alive[number].lock().unwrap() = false;
        }
    }

    fn look_up(&self, number: usize, fd: i32) {
        let Some(behind) = self.table.get(self.pages[number].address()) else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        assert_eq!(behind.number, number, "another handle's context");
        let mut context = behind.context.lock().unwrap();
        let mut buffer = [0u8; 64];
        let sqe = Sqe::read(fd, &mut buffer[..], 0).user_data(number as u64);
        // SAFETY: the buffer stays until the completion was reaped, below.
        unsafe { context.push(sqe).unwrap() };
        assert_eq!(context.submit().unwrap(), 1);
        assert_eq!(context.wait(1, None).unwrap(), 1);
        let cqe = context.reap().unwrap();
        assert_eq!((cqe.user_data, cqe.res), (number as u64, 64));
        assert!(context.reap().is_none());
        assert_eq!(buffer, pattern(3, 64)[..]);
        self.used.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn contexts_come_and_go_under_the_eyes_of_others() {
    let rounds = from_env("URINGLET_STRESS_ROUNDS", 4000);
    let _bound = bounded(LONG * 8 + Duration::from_millis(rounds));
    let seed = seed();
    println!("{SEED}={seed}");
    let file = file_with(&pattern(3, 4096));
    let world = World::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, fd) = (&world, file.as_raw_fd());
            scope.spawn(move || {
                let mut random = Random::new(seed ^ (thread as u64) << 32);
                for _ in 0..rounds {
                    let number = random.below(HANDLES);
                    match random.below(8) {
                        0 => world.make(number),
                        1 => world.destroy(number),
                        _ => world.look_up(number, fd),
                    }
                }
            });
        }
    });
    for number in 0..HANDLES {
        world.destroy(number);
        assert!(world.table.get(world.pages[number].address()).is_none());
    }
    let (used, missed) = (world.used.into_inner(), world.missed.into_inner());
    assert!(used > 0 && missed > 0 && world.made.into_inner() > HANDLES, "{used} {missed}");
}

fn entries_of(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The names of the process's threads, except of ending ones.
fn thread_names() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .collect()
}

/// The resident memory of the process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Takes values up to the first one that is `enough`, inclusive.
fn take_until(values: impl Iterator<Item = usize>, enough: impl Fn(&usize) -> bool) -> Vec<usize> {
    let mut taken = Vec::new();
    for value in values {
        taken.push(value);
        if enough(&value) {
            break;
        }
    }
    taken
}

#[test]
fn ten_thousand_contexts_leave_nothing_behind() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        let file = file_with(&pattern(3, 4096));
        let mut buffer = [0u8; 64];
        let mut come_and_go = |times: usize| {
            for _ in 0..times {
                let mut context = builder().entries(128).build().unwrap();
                assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buffer[..], 0)), 64);
            }
        };
        // Things that are made once for the process are no leak.
        come_and_go(2000);
        let counts = || (entries_of("/proc/self/fd"), entries_of("/proc/self/task"));
        let (descriptors, threads) = counts();
        // 10,000 leaked contexts would take at least 50 MB, in each round. Without a leak a round
        // may need memory, too. The allocator keeps a varying amount, and a thread without a CPU
        // may hold many contexts for a while. So one round with little growth is enough.
        let grown = (0..5).map(|_| {
            let bytes = resident();
            come_and_go(10_000);
            resident().saturating_sub(bytes)
        });
        let grown: Vec<usize> = take_until(grown, |&bytes| bytes < 4 << 20);
        // A thread that is ending may hold the last contexts.
        let settled = || counts().0 <= descriptors && counts().1 <= threads;
        assert!(wait_until(settled), "{:?}, before: {descriptors}, {threads}", counts());
        assert!(grown.last() < Some(&(4 << 20)), "{grown:?} bytes for 10,000 contexts each");
    });
}

#[test]
fn four_thousand_contexts_live_at_a_time() {
    const CONTEXTS: usize = 4096;
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        let file = file_with(&pattern(3, 4096));
        let mut contexts: Vec<Context> =
            (0..CONTEXTS).map(|_| builder().entries(128).build().unwrap()).collect();
        let mut buffers = vec![[0u8; 64]; CONTEXTS];
        for _ in 0..3 {
            for (context, buffer) in contexts.iter_mut().zip(&mut buffers) {
                let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], 0);
                // SAFETY: the buffers outlive the requests.
                unsafe { context.push(sqe).unwrap() };
                assert_eq!(context.submit().unwrap(), 1);
            }
            for context in &mut contexts {
                assert_eq!(context.wait(1, None).unwrap(), 1);
                assert_eq!(context.reap().map(|cqe| cqe.res), Some(64));
            }
        }
        // The engine has workers, the watchdog and the poller. If a file system sleeps, io_uring
        // makes further threads in the program.
        let threads = thread_names().into_iter().filter(|name| !name.starts_with("iou-wrk-"));
        let threads: Vec<String> = threads.collect();
        assert!(threads.len() <= 64 + 2 + 2, "threads of ours, and the test's two: {threads:?}");
    });
}
