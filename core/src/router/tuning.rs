//! Every constant of time and number in the policy: unit, value, and what it was measured on.
//! Measured on virtual machines of two CPUs; docs/decisions has the longer tables. The baton is the
//! right to execute a context's inline requests, one after the other.

use std::ops::RangeInclusive;
use std::time::Duration;

// When a request counts as slow, in microseconds, and in bytes for each microsecond.

/// A direct transfer that takes longer than this has waited for a device: a system call takes less.
/// A cold read that is tried without waiting, and takes less, has not started the device (17 us if
/// it has).
pub(crate) const SLEPT_DIRECT_US: u64 = 3;
/// A cached read that takes longer than this has slept: a copy of a page takes half a microsecond,
/// the quickest device ten.
pub(crate) const SLEPT_READ_US: u64 = 15;
/// Bytes that are copied in one microsecond. Copying a byte takes a quarter of a nanosecond. This
/// number allows half a nanosecond.
pub(crate) const COPIED_PER_US: u64 = 2048;
/// An fsync that takes less waits for nothing: one that waits for a device takes ten times as long.
pub(crate) const QUICK_SYNC_US: u64 = 5;
/// Handing one request to the kernel takes longer than this if the kernel is not asynchronous for
/// it.
pub(crate) const SLOW_SUBMIT_US: u64 = 60;
/// A try without waiting that takes longer has waited after all, for example for file metadata.
pub(crate) const TRY_SLOW_US: u64 = 100;

// How often things are checked.

/// One in this many inline requests is timed: a time stamp costs 10 ns. If the hints about a
/// descriptor are doubtful, one in this many timed transfers has the kernel asked again. A waiter
/// that executes requests checks as often for completions of other threads.
pub(crate) const TIMED_EVERY: u64 = 8;
/// Batches for the kernel between two checks of the descriptor's flags.
pub(crate) const FRESH_EVERY: u32 = 64;
/// After about this many requests, a slow hand-over is tried again. A worker beside the program
/// checks as often whether it was preempted.
pub(crate) const SELDOM_EVERY: u64 = 256;

// Sizes of requests and buffers, in bytes, and the number of threads for large requests.

/// Copies from this size on take long enough to be worth another thread, in bytes.
pub(crate) const LARGE: u32 = 256 << 10;
/// Bytes of a buffer that are prefetched before the call that uses them: as many cache lines as a
/// CPU fetches at a time.
pub(crate) const PREFETCH_MAX: usize = 1024;
/// The maximum number of workers that execute large copies of one context in parallel: more would
/// wait for memory.
pub(crate) const COPIERS_MAX: usize = 4;

// The work of a waiter.

/// A waiter that has enough completions goes on until it has executed this many requests in all. It
/// stops earlier, after a request that took this long (the second constant).
pub(crate) const FAVOURS: u64 = 32;
pub(crate) const FAVOUR_US: u64 = 10;
/// A waiter waits this long for a worker to give it the baton.
pub(crate) const ASK_US: u64 = 5;
/// The first and the longest nap of a waiter while another thread holds the baton. Each nap of a
/// poll that waits for other threads is as long as the first.
pub(crate) const NAP_US: (u64, u64) = (50, 1000);
/// The total time that a poll waits for requests that are known not to sleep: their threads may be
/// preempted, on a busy machine for more than 0.1 s. A submitter that finds no free slot waits a
/// tenth of this time. Meanwhile, other threads may take the numbers of cancelled requests out of
/// queues, and free slots. A process that exits or executes another program also waits a tenth of
/// this time for each request that is known not to sleep. If the calling thread is in a signal
/// handler, it may have interrupted itself in such a request, which cannot end then.
pub(crate) const SOON_US: u64 = 1_000_000;
/// The total time that a poll waits for requests that a hung file system may hold up.
pub(crate) const PERHAPS_US: u64 = 2_000;
/// A poll checks this many times before it naps.
pub(crate) const LOOKS: u32 = 400;
/// The time that a poll waits for requests that another CPU executes, if the context has a
/// placement.
pub(crate) const LOOK_ON_US: u64 = 500;
/// A poll that finds nothing to execute collects the kernel's completions at most once in this
/// time. To collect them costs as much as to look at the states of thirty requests.
pub(crate) const COLLECT_EVERY_US: u64 = 5;

// Cold reads.

/// The maximum number of reads that are on their way from the device: other requests to the device
/// wait behind them. A worker that has executed this many goes on to other contexts.
pub(crate) const COMING_MAX: usize = 64;
/// The same limit while fsyncs of this process are under way.
pub(crate) const COMING_BESIDE_SYNCS: usize = 16;

// Fsyncs.

/// A worker checks this many times in a row for other fsyncs that came meanwhile.
pub(crate) const SYNC_ROUNDS: usize = 16;

// Workers.

/// The maximum number of workers of a process for work that ends. The workers for work that may
/// wait without end have the same limit. Workers that were found to wait do not count.
pub(crate) const WORKERS_MAX: usize = 64;
/// The maximum number of threads of a process for work that may wait without end. Each takes some
/// 20 KiB.
pub(crate) const PATIENT_MAX: usize = 1024;
/// Queued requests that may wait without end are refused if all threads for them wait, for this
/// many checks in a row. That is about ten seconds, so that a server has time to restart.
pub(crate) const REFUSE_TICKS: u32 = 10_000;
/// A thread with nothing to do for this long ends.
pub(crate) const RETIRE_AFTER: Duration = Duration::from_secs(2);
/// The maximum number of woken workers that have not begun to work. No further worker is woken
/// meanwhile.
pub(crate) const ON_THE_WAY_MAX: usize = 2;
/// Workers per CPU that are enough for requests that do not take long, and do not wait in large
/// numbers. With more, each finds its queue empty when it is done, and has to sleep and be woken.
pub(crate) const ENOUGH_PER_CPU: usize = 8;
/// More workers are used while the waiting requests, times this number, exceed the working workers.
pub(crate) const FOR_EACH_WAITING: usize = 3;
/// A context may have this many workers for each of [`WORKERS_MAX`] that does not work: 48 of 64 if
/// it is alone.
pub(crate) const SHARE_OF_FREE: usize = 3;
/// If requests of the pool lane take this long on average, up to [`WORKERS_MAX`] workers are called
/// for them.
pub(crate) const LONG_US: u64 = 400;
/// The longest time that an idle worker spins for work before it sleeps.
pub(crate) const IDLE_SPIN_US_MAX: u64 = 40;
/// How long a worker spins for more work before it gives the baton back. The first value is the
/// least time after a worker had to be called, and the second is the maximum. A spin without work
/// halves the time, down to 0. A waiter waits as long as the second value for completions of a
/// worker beside it, before it sleeps. Such a worker waits as long for the baton. A holder that is
/// in one request for longer loses the baton to a poll.
pub(crate) const HOLDER_SPIN_US: (u64, u64) = (2, 20);

// Transfers by the submitter.

/// Transfers up to this length are tried, without waiting for a device, when they are issued
/// through io_uring's ABI. An event loop hands over reads up to this length that may sleep: the
/// kernel copies what is in memory at once. A copy of 64 KiB takes some 7 us.
pub(crate) const TRIED_MAX: u32 = 64 << 10;

// Handing over to the kernel.

/// A submitter hands requests to the kernel itself if its context lately had at most this many that
/// were queued for the kernel, or in it. With qemu-img and direct requests, 4 in flight became 1.4
/// times as fast. 32 in flight became slower by a third, because a worker hands over several with
/// one call.
pub(crate) const AT_ONCE_MAX: usize = 8;

/// An event loop that did not come in time is expected again after this many submits that have
/// found completions. The number doubles each time, until the loop polls.
pub(crate) const ENOUGH_FOUND: u32 = 2;

// A worker beside the program.

/// This many queued requests are worth calling a worker: waking a thread takes as long as executing
/// them.
pub(crate) const BESIDE_QUEUED: usize = 4;
/// A worker that executed fewer requests than these was not worth its call.
pub(crate) const BESIDE_PAYS: u64 = 32;
/// A worker that takes longer to come found no idle CPU. On an idle one it comes within 20 to 100
/// us; on a virtual CPU that the host has to bring back first, within 2 ms.
pub(crate) const BESIDE_LATE_US: u64 = 2_000;
/// A preempted worker still has an idle CPU if it was away for a smaller part of its time than one
/// in this many, or for less than a [`TICK`]. Hosts take a tenth of the time of a virtual CPU. A
/// thread that shares its CPU has the CPU for some milliseconds at a time, and is away for half of
/// the time.
pub(crate) const BESIDE_AWAY_PART: u64 = 3;
/// How long a worker spins for more work before it leaves: at most, and for each request that it
/// has executed. The program's thread is preempted for 20 to 50 us at a time, for instance by a
/// watchdog's check. Calling the worker again takes as long. A worker that spins for most of the
/// time is not worth its CPU.
pub(crate) const BESIDE_SPIN_US: [u64; 2] = [50, 2];
/// No worker is called for this long after a sign that no CPU is idle, or that a worker has too
/// little to do: the first pause, and the maximum.
pub(crate) const BESIDE_PAUSE_US: (u64, u64) = (1_000, 1_000_000);
/// A pause that begins this soon after the last one is longer than the last one. A worker's time
/// away from its CPU is counted anew after as long.
pub(crate) const BESIDE_SOON_US: u64 = 10_000;
/// A waiter that looks on for a larger part of its time than this sends the worker beside it away.
/// With less, the worker brings a third (fio, which looks on for 0.4 of its time). A program that
/// does nothing but wait looks on for 0.75 to 0.95, and has the same rate alone. The part is
/// computed each time that workers were beside it for a quarter of the shortest pause.
pub(crate) const BESIDE_LOOKS_ON: (u64, u64) = (2, 3);
/// A waiter checks once in this time for completions of a worker beside it.
pub(crate) const BESIDE_LOOK_US: u64 = 1;

// Does the program come to wait?

/// The range of a count. A thread that comes to wait adds one, and requests that no waiter came for
/// subtract [`LYING_ABOUT`]. Above 0, the program is expected to come.
pub(crate) const COMING_COUNTS: RangeInclusive<i32> = -16..=8;
/// The amount that is subtracted when requests were found waiting, and no waiter came. A program
/// that has always come is still expected after one such finding: its thread may only have been
/// preempted between submit and wait. After two in a row it is not.
pub(crate) const LYING_ABOUT: i32 = 6;
/// The maximum number of completions that a wait keeps for the reap after it. A poll of a front end
/// executes requests until this many completions are there. The kernel's completions are collected
/// this many at a time.
pub(crate) const TAKEN_MAX: u32 = 64;

// The watchdog.

/// The time between two checks of a context. A holder is stuck if it is in the same request in two
/// checks. A cached write that takes longer counts as slow: such writes come in bursts, with the
/// file's lock held, for which other threads would only wait. A worker beside the program that was
/// off its CPU for less still has an idle CPU.
///
/// A thread that may have missed something checks again after this time. It may have missed
/// requests that ended elsewhere, a second completion of the kernel, or the last requests of a
/// context that is being closed. A real-time thread sleeps for a [`MOMENT`] if its polls have found
/// nothing for this long, without a pause of this length between two polls.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// The time between two checks while requests only pass through the kernel. It applies once
/// [`CALM_LOOKS`] checks in a row have found no other requests. One check takes 10 to 15 us of CPU
/// time on a virtual machine. With a check in each [`TICK`], that was 4 to 10 % of the CPU time of
/// direct requests at depth 8.
pub(crate) const CALM_TICK: Duration = Duration::from_millis(4);
pub(crate) const CALM_LOOKS: u32 = 16;
/// Checks of a context with nothing to do before its watch ends.
pub(crate) const QUIET_TICKS: u32 = 4;
/// A context with a placement counts as starved after this many checks in a row. Each check has
/// found that requests of the context wait, and that every worker of its CPUs is inside a request.
/// A slow disk completes one of 64 requests sooner.
pub(crate) const STARVED_TICKS: u32 = 50;

// The kernel lane.

/// At least this many requests are handed over with one call, if they are not adjacent and as many
/// are queued. The block layer holds back all requests of a call until it has seen the last.
pub(crate) const TOGETHER: usize = 4;

/// Although a waiter will come, a submitter hands queued requests over if they are at least this
/// many, and as many as the kernel has. A single request is left to that waiter, which comes next.
pub(crate) const EARLY: usize = 2;

// Awaited files.

/// The maximum number of operations that one `Future::poll` of a task executes at once, and of
/// their bytes (about 100 us of copying). Then other tasks run.
pub(crate) const HITS: u32 = 128;
pub(crate) const HIT_BYTES: u32 = 1 << 20;
/// The maximum number of requests in the kernel: some hosts allow few for Linux AIO (aio-max-nr).
pub(crate) const AWAITED_ROOM: u32 = 1024;

// Real-time threads.

/// How long a real-time thread sleeps if its polls have found nothing for a [`TICK`]. Other threads
/// execute a few requests in this time.
pub(crate) const MOMENT: Duration = Duration::from_micros(200);

// Cancelling and closing.

/// A thread that cancels a request checks this many times whether the thread that has the request
/// has gone on with it. Even a thread that is preempted between two steps has gone on by then. A
/// context that closes its eventfd checks a fifth as often (0.1 s) for a thread that counts the
/// eventfd up.
pub(crate) const PREEMPTED_LOOKS: u32 = 10_000;

/// After this time, a request that is being executed counts as having begun its system call.
pub(crate) const BEGUN: Duration = Duration::from_secs(1);
/// The naps of a thread that waits for [`BEGUN`]: this many short naps, and then naps of one
/// [`TICK`].
pub(crate) const SHORT_NAPS: (u32, Duration) = (1000, Duration::from_micros(20));
/// After this time a context that is being destroyed checks again. So does the poller, if epoll(7)
/// fails, or cannot watch a stream.
pub(crate) const LATER: Duration = Duration::from_millis(10);
