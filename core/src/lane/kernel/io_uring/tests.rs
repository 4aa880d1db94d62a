//! Tests of `lane/kernel/io_uring.rs`.

use super::Uring;
use crate::board::without_taker;
use crate::front::Entry;
use crate::instance::Instance;
use crate::{Context, EngineKind, Sqe, sys};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const ROUNDS: u8 = 100;

#[test]
fn a_second_issuer_has_the_first_one_look_again_once() {
    let Ok(uring) = Uring::new(4) else {
        let name = "a_second_issuer_has_the_first_one_look_again_once";
        return crate::skipped(name, "io_uring is refused here");
    };
    let told = || {
        let mut count = 0u64;
        // SAFETY: an eventfd of this test, which does not block, and eight bytes.
        let n = unsafe { libc::read(uring.fds.wake(), (&raw mut count).cast(), 8) };
        if n == 8 { count } else { 0 }
    };
    (0..2).for_each(|_| uring.issue());
    assert!(uring.is_issuer());
    assert_eq!(told(), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..2).for_each(|_| uring.issue()));
    });
    assert_eq!(told(), 1);
    uring.issue();
    assert!(!uring.is_issuer());
    assert_eq!(told(), 0);
}

/// The kernel finishes requests in the thread that has handed them over. That thread computes until
/// another thread has collected them.
#[test]
fn requests_of_a_thread_that_computes_are_collected_by_others() {
    let builder = Context::builder().entries(4).engine(EngineKind::IoUring);
    let Ok(instance) = Instance::new(&builder) else {
        let name = "requests_of_a_thread_that_computes_are_collected_by_others";
        return crate::skipped(name, "io_uring is refused here");
    };
    // The file is in the folder of this program: folders for temporary files are often not on a
    // disk.
    let program = std::env::current_exe().unwrap();
    let file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
    for round in 0..ROUNDS {
        file.write_all_at(&[round; PAGE], u64::from(round) * 16 * PAGE as u64).unwrap();
    }
    file.sync_all().unwrap();
    sys::fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED as u32);
    sys::fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM as u32);
    let (handed, taken) = (AtomicU8::new(0), AtomicU8::new(0));
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while handed.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                let begin = Instant::now();
                // One round waits and sleeps, the next one polls.
                let min = u32::from(round % 2);
                while instance.reap(1, |cqe| assert_eq!(cqe.res, PAGE as i32)) == 0 {
                    without_taker(|taker| instance.wait(min, 1, None, None, taker));
                }
                longest = longest.max(begin.elapsed());
                taken.store(round, Ordering::Release);
            }
        });
        let mut buffer = [0; PAGE];
        for round in 0..ROUNDS {
            let at = u64::from(round) * 16 * PAGE as u64;
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], at);
            let entry = Entry { sqe, data: 0, notify: -1 };
            // SAFETY: the buffer outlives the request, whose completion is waited for below.
            assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
            without_taker(|taker| instance.wait(0, 1, None, None, taker));
            handed.store(round + 1, Ordering::Release);
            while taken.load(Ordering::Acquire) <= round {
                std::hint::spin_loop();
            }
            assert_eq!(buffer, [round; PAGE]);
        }
    });
    println!("waited {longest:?} at most");
    instance.close();
}
