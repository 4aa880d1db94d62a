//! A poll is a wait for zero completions. It finds the completions of all buffered requests that
//! were submitted before, if they do not sleep.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    LONG, bounded, context, excepted, file_with, from_env, isolated, push, submit_all,
};
use uringlet::Sqe;

/// The total number of writes. `ci/polls.sh` makes ten million.
const WRITES: &str = "URINGLET_TEST_POLLS";

#[test]
fn a_poll_sees_each_buffered_write_that_was_submitted_before_it() {
    if excepted(|| ()) {
        return;
    }
    // The engine does not notice if other tests close files whose server may hang. If this file got
    // the number of such a file, a poll would not execute its writes. So the test has a process of
    // its own. If the variable is set, the test runs alone, and longer than `isolated` allows.
    if std::env::var_os(WRITES).is_some() {
        polls_after_writes();
    } else {
        isolated(|| {
            polls_after_writes();
        });
    }
}

fn polls_after_writes() {
    let writes = from_env(WRITES, 20_000);
    let _bound = bounded(LONG * (4 + writes / 100_000) as u32);
    let file = file_with(&[]);
    let data = vec![7u8; 1 << 20];
    let mut context = context(64);
    let (mut missed, mut written) = (0, 0u64);
    while written < writes {
        // Mostly small writes, several at a time now and then, and one in a thousand of the maximum
        // size.
        let count = if written % 16 == 0 { 8 } else { 1 };
        for at in 0..count {
            let number = written + at;
            let length = match number % 1000 {
                0 => 1 << 20,
                _ => 512 << (number % 5),
            };
            let offset = number % 64 * 4096;
            let sqe = Sqe::write(file.as_raw_fd(), &data[..length], offset);
            push(&mut context, sqe.user_data(length as u64));
        }
        submit_all(&mut context);
        written += count;
        let seen = context.wait(0, None).unwrap() as u64;
        missed += count - seen.min(count);
        context.wait(count as usize, None).unwrap();
        for _ in 0..count {
            let cqe = context.reap().expect("it has completed");
            assert_eq!(i64::from(cqe.res), cqe.user_data as i64);
        }
        assert!(context.reap().is_none());
    }
    assert_eq!(missed, 0, "of {written} writes");
}

/// A transfer of one of four kinds.
fn transfer(kind: u64, file: &File, buffer: &mut [u8], parts: &[libc::iovec; 2]) -> Sqe {
    match kind % 4 {
        0 => Sqe::read(file.as_raw_fd(), buffer, 0),
        1 => Sqe::write(file.as_raw_fd(), &*buffer, 0),
        2 => Sqe::readv(file.as_raw_fd(), &parts[..], 0),
        _ => Sqe::writev(file.as_raw_fd(), &parts[..], 0),
    }
}

#[test]
fn a_poll_sees_the_first_transfers_of_a_new_descriptor_beside_busy_threads() {
    if excepted(|| ()) {
        return;
    }
    // The descriptor numbers are new to this process, so the engine knows nothing about them.
    isolated(|| {
        let _bound = bounded(4 * LONG);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut buffer = vec![7u8; 8192];
        std::fs::write(&path, &buffer).unwrap();
        let part = |at: usize, buffer: &mut Vec<u8>| libc::iovec {
            iov_base: buffer[at..].as_mut_ptr().cast(),
            iov_len: 4096,
        };
        let parts = [part(0, &mut buffer), part(4096, &mut buffer)];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 * std::thread::available_parallelism().map_or(2, |cpus| cpus.get()) {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut context = context(8);
            // The files stay open, so that each has a number of its own, about which nothing is
            // known.
            let mut files = Vec::new();
            let mut missed = Vec::new();
            for first in 0..100 {
                let file = File::options().read(true).write(true).open(&path).unwrap();
                for kind in first..first + 4 {
                    push(&mut context, transfer(kind, &file, &mut buffer, &parts));
                    submit_all(&mut context);
                    if context.wait(0, None).unwrap() == 0 {
                        missed.push((first, kind % 4));
                        context.wait(1, None).unwrap();
                    }
                    assert_eq!(context.reap().map(|cqe| cqe.res), Some(8192));
                }
                files.push(file);
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(missed, [], "descriptor and kind");
        });
    });
}
