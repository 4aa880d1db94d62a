//! Every constant of time and number that policy rests on: unit, value, and what it was measured
//! on. Measured on virtual machines of two CPUs; docs/decisions has the longer tables.

use std::ops::RangeInclusive;
use std::time::Duration;

// What makes a request a slow one, in microseconds, and in bytes for each microsecond.

/// A direct transfer that takes longer than this has waited for a device: a system call takes less.
/// A cold read that is tried without waiting, and takes less, has not started the device (17 us
/// where it has).
pub(crate) const SLEPT_DIRECT_US: u64 = 3;
/// A cached read: a copy of a page takes half a microsecond, the quickest device ten.
pub(crate) const SLEPT_READ_US: u64 = 15;
/// Bytes that are copied in one microsecond: a quarter of a nanosecond each, taken double.
pub(crate) const COPIED_PER_US: u64 = 2048;
/// An fsync that waits for nothing: what waits for a device takes ten times as long.
pub(crate) const QUICK_SYNC_US: u64 = 5;
/// Handing one request to the kernel takes longer than this if the kernel is not asynchronous
/// there.
pub(crate) const SLOW_SUBMIT_US: u64 = 60;
/// A try without waiting that took longer has waited for something.
pub(crate) const TRY_SLOW_US: u64 = 100;

// How often is looked.

/// One in this many inline requests is timed: a time stamp costs 10 ns. As often, a doubtful
/// descriptor is asked after.
pub(crate) const TIMED_EVERY: u64 = 8;
/// Batches for the kernel between two looks at the descriptor's flags.
pub(crate) const FRESH_EVERY: u32 = 64;
/// A slow hand-over is tried again after about this many requests.
pub(crate) const SUBMIT_AGAIN_EVERY: u64 = 256;

// What is large.

/// Copies from this size on take long enough to be worth another thread, in bytes.
pub(crate) const LARGE: u32 = 256 << 10;
/// Bytes of a buffer that are asked for before the call that uses them: as many lines as a CPU
/// fetches at a time.
pub(crate) const PREFETCH_MAX: usize = 1024;
/// Threads that execute large copies of one context side by side: more wait for memory.
pub(crate) const COPIERS_MAX: usize = 4;

// What a waiter does.

/// A waiter that has enough goes on for what it can still take: this many requests at most, and
/// none after one that took this long.
pub(crate) const FAVOURS: u32 = 32;
pub(crate) const FAVOUR_US: u64 = 10;
/// It looks what others have completed before the first of this many requests.
pub(crate) const LOOK_EVERY: u32 = 8;
/// A waiter waits this long for a worker to give it the baton.
pub(crate) const ASK_US: u64 = 5;
/// A waiter's first nap while another thread holds the baton, which is also a poll's, and the
/// longest.
pub(crate) const NAP_US: (u64, u64) = (50, 1000);
/// A poll waits so long, in all, for requests that are known not to sleep: their threads may be
/// preempted, on a busy machine for longer than 0.1 s. A submitter without room waits a tenth of it
/// for numbers of cancelled requests to leave their rings.
pub(crate) const SOON_US: u64 = 1_000_000;
/// The same for requests that a hung file system may hold up.
pub(crate) const PERHAPS_US: u64 = 2_000;
/// A holder of the baton that is in one request for so long loses it to a poll.
pub(crate) const STUCK_US: u64 = 20;
/// A poll looks this many times before it naps.
pub(crate) const LOOKS: u32 = 400;
/// A poll of a placed context waits so long for what another CPU executes.
pub(crate) const LOOK_ON_US: u64 = 500;
/// Looking at the kernel's ring costs as much as looking at thirty requests: not more often than
/// this.
pub(crate) const COLLECT_EVERY_US: u64 = 5;

// Cold reads.

/// The most reads that are on their way from the device: what others ask of it waits behind them.
/// A worker serves other contexts after as many.
pub(crate) const COMING_MAX: usize = 64;
/// The same while fsyncs of this process are under way.
pub(crate) const COMING_BESIDE_SYNCS: usize = 16;

// Fsyncs.

/// A worker looks this many times in a row for others that came meanwhile.
pub(crate) const SYNC_ROUNDS: usize = 16;

// Workers.

/// The most workers of a process for work that ends, and for work that may wait without end and
/// does not show yet that it does.
pub(crate) const WORKERS_MAX: usize = 64;
/// The most threads of a process for work that may wait without end. Each takes some 20 KiB.
pub(crate) const PATIENT_MAX: usize = 1024;
/// Looks in which all of these wait, and none takes another request, before those behind them are
/// refused: about ten seconds, as a server that starts again takes some.
pub(crate) const REFUSE_TICKS: u32 = 10_000;
/// A thread with nothing to do for this long ends.
pub(crate) const RETIRE_AFTER: Duration = Duration::from_secs(2);
/// Workers on their way to work before another one is woken.
pub(crate) const ON_THE_WAY_MAX: usize = 2;
/// Workers per CPU that are enough for requests that do not take long and do not wait in large
/// numbers: with more, each finds its queue empty when it is done, and has to sleep and be woken.
pub(crate) const ENOUGH_PER_CPU: usize = 8;
/// More of them as long as one request waits for this many at work.
pub(crate) const FOR_EACH_WAITING: usize = 3;
/// A context may have this many workers for each that is free: 48 of 64 if it is alone.
pub(crate) const SHARE_OF_FREE: usize = 3;
/// Requests that take this long get as many workers as there may be.
pub(crate) const LONG_US: u64 = 400;
/// The longest that an idle worker looks for work before it sleeps.
pub(crate) const IDLE_SPIN_US_MAX: u64 = 40;
/// The shortest and the longest that a worker spins before it gives the baton back. As long as the
/// longest, a waiter looks for what a worker beside it completes, before it sleeps.
pub(crate) const HOLDER_SPIN_US: (u64, u64) = (2, 20);

// Reads by the submitter.

/// Reads up to this length are tried when they are issued through io_uring's ABI. An event loop
/// hands over reads up to this length that may sleep: the kernel copies what it finds on the spot.
/// A copy of 64 KiB takes some 7 us.
pub(crate) const TRIED_MAX: u32 = 64 << 10;

// Handing over to the kernel.

/// A submitter hands over by itself if the lane had no more requests than these lately. With
/// qemu-img and direct requests, 4 in flight became 1.4 times as fast so; 32 in flight became
/// slower by a third, since a worker hands over several with one call.
pub(crate) const AT_ONCE_MAX: usize = 8;

// A worker beside the program.

/// This many queued requests are worth a call: waking a thread takes as long as executing them.
pub(crate) const BESIDE_QUEUED: usize = 4;
/// A worker that executed fewer than these was not worth its call.
pub(crate) const BESIDE_PAYS: u64 = 32;
/// One that takes longer to come found no idle CPU: on one, it comes within 20 to 100 us.
pub(crate) const BESIDE_LATE_US: u64 = 400;
/// A preempted worker that was away for less than this has a spare CPU all the same. A thread that
/// shares a CPU with it has the CPU for some milliseconds at a time.
pub(crate) const BESIDE_AWAY_US: u64 = 300;
/// A worker asks after this many requests whether it was preempted.
pub(crate) const BESIDE_ASKS_EVERY: u32 = 256;
/// None is called for this long after a sign that no CPU is spare, or that it has too little to do:
/// the first time, and at most.
pub(crate) const BESIDE_PAUSE_US: (u64, u64) = (10_000, 1_000_000);
/// A waiter looks once in so long for what a worker beside it completes.
pub(crate) const BESIDE_LOOK_US: u64 = 1;

// Does the program come to wait?

/// Bounds of a count: a wait that came adds one, a request that nobody came for subtracts one.
/// Above 0, the program is believed to come.
pub(crate) const COMING_COUNTS: RangeInclusive<i32> = -16..=8;
/// Requests that were found lying about count for this many. A program whose thread was only
/// preempted between submitting and waiting is still believed; the second time in a row it is not.
pub(crate) const LYING_ABOUT: i32 = 6;
/// Completions that a wait keeps aside for the reap after it. A poll of one request executes as
/// many on the way, and a look at what the kernel has done collects as many at a time.
pub(crate) const TAKEN_MAX: u32 = 64;

// The watchdog.

/// Between two looks at a context. A holder is stuck if it is in the same request in two looks. A
/// cached write that takes longer is a slow one: these come in bursts, with the file's lock held,
/// for which other threads would only wait. A thread that may have missed something looks again
/// after this: for requests that may have ended elsewhere, for a second completion of the kernel's,
/// for what is left to a context that is closed. A real-time thread that polls in vain for this
/// long, without a longer pause, sleeps for a [`MOMENT`].
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The same while requests do nothing but pass through the kernel, once this many looks in a row
/// have found no others. A tick is 10 to 15 us of CPU time on a virtual machine. That was 4 to 10 %
/// of what direct requests take at depth 8.
pub(crate) const CALM_TICK: Duration = Duration::from_millis(4);
pub(crate) const CALM_LOOKS: u32 = 16;
/// Looks at a context with nothing to do before it is let go.
pub(crate) const QUIET_TICKS: u32 = 4;
/// Looks for which every worker of a pool is inside a request, and none takes another: a slow disk
/// completes one of 64 more often than that.
pub(crate) const STARVED_TICKS: u32 = 50;

// The kernel lane.

/// Requests that are handed over with one call while the kernel has few, if they do not lie next to
/// each other. The block layer holds back all requests of a call until it has seen the last.
pub(crate) const TOGETHER: usize = 4;

// Awaited files.

/// Operations that one poll of a task does on the spot, and their bytes (about 100 us of copying),
/// before other tasks have their turn.
pub(crate) const HITS: u32 = 128;
pub(crate) const HIT_BYTES: u32 = 1 << 20;
/// Requests in the kernel's hands at a time: Linux AIO's are few on some hosts.
pub(crate) const AWAITED_ROOM: u32 = 1024;

// Real-time threads.

/// Enough for a few requests.
pub(crate) const MOMENT: Duration = Duration::from_micros(200);

// Cancelling and closing.

/// More looks than a thread takes that is preempted between two steps of a request, to come back.
pub(crate) const PREEMPTED_LOOKS: u32 = 10_000;

/// Before the process ends or becomes another, so long is waited for the next of the requests that
/// are known not to sleep and that other threads have in hand. The thread may itself have one, and
/// be in a signal handler.
pub(crate) const LEAVE_US: u64 = 100_000;
/// After this long a request that is being executed counts as having begun its system call.
pub(crate) const BEGUN: Duration = Duration::from_secs(1);
/// Naps meanwhile: this many short ones, and then of a [`TICK`].
pub(crate) const SHORT_NAPS: (u32, Duration) = (1000, Duration::from_micros(20));
/// After this long a context that is destroyed looks again, and the poller tries again where
/// poll(2) itself fails.
pub(crate) const LATER: Duration = Duration::from_millis(10);
