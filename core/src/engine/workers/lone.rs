//! A request that will sleep and is alone: its waiter can do it in one system call and sleep in there, or start it with one
//! call and sleep in the next. The second way costs a call, but on some machines and devices a thread that sleeps there runs
//! again much sooner. So both are tried.

use std::sync::Mutex;

use crate::engine::trial::Trial;

/// Requests of one window, and how many before them do not count.
const WINDOW: u32 = 32;
const SKIPPED: u32 = 2;
/// Longer than this between two requests: their program was elsewhere, or their device is so slow that it does not matter.
const LONGEST_US: u64 = 1000;

/// What is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A direct read: `pread`, or handed to the kernel.
    DirectRead,
    /// A direct write: `pwrite`, or handed to the kernel.
    DirectWrite,
    /// A cached read whose page is not expected to be there: `pread`, or asked for without waiting first.
    Cold,
}

/// For each sort, which way is taken.
#[derive(Debug)]
pub(super) struct Lone([Mutex<Trial>; 3]);

impl Lone {
    pub(super) fn new(ticks_per_us: u64) -> Self {
        let trial = || Mutex::new(Trial::new(WINDOW, SKIPPED, LONGEST_US * ticks_per_us));
        Self([trial(), trial(), trial()])
    }

    /// One has come, `now` in ticks. Is it to be done in two calls?
    pub(super) fn in_two_calls(&self, sort: Sort, now: u64) -> bool {
        // Another waiter is at it.
        self.0[sort as usize].try_lock().is_ok_and(|mut trial| trial.next(now))
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::{SKIPPED, Sort, Trial, WINDOW};
    use crate::descriptor::Facts;
    use crate::engine::workers::Workers;
    use crate::engine::workers::threads::leave_alone;
    use crate::front::Entry;
    use crate::instance::{Instance, without_taker};
    use crate::{Context, Sqe};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    const LEN: usize = 4096;

    #[repr(C, align(4096))]
    struct Page([u8; LEN]);

    #[test]
    fn a_direct_request_that_is_quicker_in_two_calls_goes_to_the_kernel() {
        let skip = |reason| {
            let name = "a_direct_request_that_is_quicker_in_two_calls_goes_to_the_kernel";
            crate::skipped(name, reason);
        };
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; LEN], 0).unwrap();
        // SAFETY: a call on a descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) } != 0 {
            return skip("no O_DIRECT here");
        }
        let instance = Instance::new(&Context::builder().entries(4).stats(true)).unwrap();
        leave_alone(&instance);
        let workers = Workers::of(&instance);
        for sort in [Sort::DirectRead, Sort::DirectWrite] {
            // It is quicker, and not doubted before so many requests have come.
            let trial = Trial::new(WINDOW, SKIPPED, u64::MAX).beginning_with(true);
            *workers.lone.0[sort as usize].lock().unwrap() = trial;
        }
        const ROUNDS: u8 = 20;
        for round in 0..ROUNDS {
            // What was learned about the number is of a file of another test; or that handing over is slow, as it may be beside other tests.
            Facts::forget(&(file.as_raw_fd()..=file.as_raw_fd()));
            let mut page = Page([round; LEN]);
            let write = Sqe::write(file.as_raw_fd(), &raw const page.0[..], 0);
            let read = Sqe::read(file.as_raw_fd(), &raw mut page.0[..], 0);
            for sqe in [write, read] {
                let entry = Entry { sqe, data: 0, notify: -1 };
                // SAFETY: the page outlives the request, which is waited for.
                assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
                without_taker(|taker| instance.wait(1, 1, None, None, taker));
                assert_eq!(instance.reap(1, |cqe| assert_eq!(cqe.res, LEN as i32)), 1);
            }
            assert!(page.0.iter().all(|&byte| byte == round));
        }
        match workers.kernel.kind() {
            None => skip("no kernel interface here"),
            Some(_) => assert_eq!(instance.stats().unwrap().by_kernel, 2 * u64::from(ROUNDS)),
        }
    }
}
