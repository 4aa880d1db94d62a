//! Counters and histograms of contexts. Nothing is counted unless statistics were asked for. The
//! counters are in memory that another process can read.
#![allow(unsafe_code)]

mod histogram;
mod region;

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use self::histogram::Histogram;
pub use self::histogram::{Distribution, Latency};
use self::region::ContextPlace;
pub use self::region::{ContextNow, ProcessId, Region, observe, publish_to};
pub(crate) use self::region::{STATS, observe_as};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one or more contexts, in memory that may be shared between processes.
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            /// The maximum number of workers that existed at a time.
            pub(crate) workers_max: AtomicU64,
            pub(crate) submit: Histogram,
            pub(crate) completion: Histogram,
        }

        /// The counters at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// The maximum number of workers that existed at a time.
            pub workers_max: u64,
            /// Duration of submit calls.
            pub submit: Distribution,
            /// The time from the beginning of a submit to the completion of each of its requests.
            pub completion: Distribution,
        }

        impl Counters {
            fn read(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    workers_max: self.workers_max.load(Ordering::Relaxed),
                    submit: self.submit.read(),
                    completion: self.completion.read(),
                }
            }
        }

        impl Snapshot {
            /// Adds the counters of other contexts.
            fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
                self.workers_max = self.workers_max.max(other.workers_max);
                self.submit.add(&other.submit);
                self.completion.add(&other.completion);
            }

            /// What was counted since `earlier`, an earlier snapshot of the same contexts;
            /// `workers_max` is unchanged.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(earlier.$name),)*
                    workers_max: self.workers_max,
                    submit: self.submit.since(&earlier.submit),
                    completion: self.completion.since(&earlier.completion),
                }
            }
        }
    };
}

counters! {
    /// Contexts made.
    contexts,
    /// Requests that a submit has accepted.
    submitted,
    /// Completed reads.
    reads,
    /// Completed writes.
    writes,
    /// Completed fsyncs, fdatasyncs and sync_file_ranges.
    fsyncs,
    /// Completed polls.
    polls,
    /// Completed requests of any other kind.
    others,
    /// Requests cancelled before they were executed. They count in none of the kinds above.
    canceled,
    /// Completed requests whose result is an error.
    errors,
    /// Bytes that reads have transferred.
    bytes_read,
    /// Bytes that writes have transferred.
    bytes_written,
    /// Requests executed by a thread of the program, while it waited.
    by_waiter,
    /// Requests executed by a worker that held the baton: the right to execute a context's inline
    /// requests, one after the other.
    by_worker,
    /// Requests executed by a worker without the baton.
    by_pool,
    /// Requests completed by the poller, the thread that waits for pipes, sockets and terminals.
    by_poller,
    /// Requests executed by the kernel, or by the C library's threads.
    by_kernel,
    /// Requests executed by a holder of the baton that had lost it when the request was done.
    after_losing_baton,
    /// Times that a worker was woken or made.
    wakeups,
    /// Times that the baton was taken from a blocked holder.
    handovers,
    /// Times that a worker was called to execute queued requests beside a thread of the program.
    calls_beside,
    /// Calls counted in `calls_beside` whose worker found its CPU busy, and left.
    beside_busy,
    /// Calls counted in `calls_beside` whose worker had too little to do, or was sent away.
    beside_idle,
    /// Buffered reads whose pages were not in memory. The device was asked for the pages before a
    /// thread waited for them.
    reads_ahead,
    /// Fsyncs that shared the call of another fsync. They had come while an earlier fsync of their
    /// descriptor was under way.
    syncs_together,
    /// Of a placed context: requests executed, or handed to the kernel, in the submitter's cell
    /// (NUMA node, last-level cache or core).
    submissions_local,
    /// Of a placed context: requests executed, or handed to the kernel, in another cell.
    submissions_remote,
    /// Of a placed context: requests completed in the cell that serves the disk's interrupt. If
    /// that cell is not known, requests completed in the cell that has executed them.
    completions_local,
    /// Of a placed context: requests completed outside the cell that serves the disk's interrupt.
    completions_remote,
    /// Of a placed context: requests completed in the submitter's cell.
    completions_home,
    /// Of a placed context: requests completed in another cell than the submitter's.
    completions_away,
    /// Of a placed context: times that a request went from one CPU to another.
    cpu_handovers,
}

impl Snapshot {
    /// Executed requests of all kinds.
    pub fn requests(&self) -> u64 {
        [self.reads, self.writes, self.fsyncs, self.polls, self.others]
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// Requests that were submitted, and neither executed nor cancelled. Requests of killed
    /// processes count, too, although they will never complete.
    pub fn in_flight(&self) -> u64 {
        // The difference may be negative: other threads change the counters while they are read.
        self.submitted.saturating_sub(self.requests().saturating_add(self.canceled))
    }
}

/// The counters into which one context counts: the process's, or its own.
#[derive(Debug)]
pub(crate) struct Counting {
    counters: CountersOf,
    place: Option<ContextPlace>,
    /// The values of the process's counters when the context was made, to be subtracted later.
    /// `None` if the context's own counts will not be asked for.
    before: Option<Box<Snapshot>>,
}

#[derive(Debug)]
enum CountersOf {
    Process(&'static Counters),
    Own(Box<Counters>),
}

impl Deref for Counting {
    type Target = Counters;

    #[inline]
    fn deref(&self) -> &Counters {
        match &self.counters {
            CountersOf::Process(counters) => counters,
            CountersOf::Own(counters) => counters,
        }
    }
}

impl Counting {
    /// The counters for a new context. These are the process's counters, if the process counts.
    /// Otherwise they are the context's own, if `wanted`.
    pub(crate) fn new(wanted: bool) -> Option<Self> {
        let Some((counters, place)) = region::claim() else {
            // SAFETY: all zeroes are valid atomics.
            let own = || unsafe { Box::new(MaybeUninit::zeroed()).assume_init() };
            let counters = wanted.then(|| CountersOf::Own(own()))?;
            return Some(Self { counters, place: None, before: None });
        };
        let before = wanted.then(|| Box::new(counters.read()));
        Some(Self { counters: CountersOf::Process(counters), place, before })
    }

    /// What was counted since the context was made, if that was wanted. Counts of other contexts
    /// that share the counters are included.
    pub(crate) fn read(&self) -> Option<Snapshot> {
        let now = Counters::read(self);
        match &self.counters {
            CountersOf::Process(_) => Some(now.since(self.before.as_deref()?)),
            CountersOf::Own(_) => Some(now),
        }
    }

    /// Notes what executes the context's requests, and why.
    pub(crate) fn note(&self, choice: &dyn std::fmt::Display) {
        if let Some(place) = &self.place {
            place.note(&choice.to_string());
        }
    }
}
