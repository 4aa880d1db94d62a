//! Reads of pages that are not in memory. Each returns the right bytes once, on any thread, and
//! none waits behind a stuck read.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind::Interrupted;
use std::os::fd::AsRawFd as _;

use super::stuck::{Blocker, PAGE};
use super::without_threads::refuse_threads;
use super::{BLOCK, PIPES, errno};
use crate::common::{
    LONG, Random, SEED, bounded, builder, by_user_data, context, excepted, file_with, finish,
    isolated, pattern, push, reap_all, seed, skip, submit_all, wait_for, wait_until,
};
use uringlet::Sqe;

const PAGES: usize = 1024;
const DEPTH: usize = 32;

/// A file whose pages the kernel can drop from the cache, because they are written back.
fn file() -> (File, Vec<u8>) {
    let content = pattern(3, PAGES * PAGE + 100);
    let file = file_with(&content);
    file.sync_all().unwrap();
    (file, content)
}

/// Drops the file's pages from the cache. The kernel may keep some of them.
fn drop_cache(file: &File) {
    // SAFETY: advice on a file of ours.
    let ret = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(ret, 0);
}

#[test]
fn cold_reads_find_what_is_there_while_the_cache_comes_and_goes() {
    const REQUESTS: u64 = 20_000;
    let _bounded = bounded(4 * LONG);
    let seed = seed();
    println!("{SEED}={seed}");
    let mut random = Random::new(seed);
    let (file, content) = file();
    // A cancelled request may hold its slot for a while, so there are twice as many as buffers.
    let mut context = context(2 * DEPTH as u32);
    let mut buffers = vec![vec![0u8; 4 * PAGE]; DEPTH];
    // For each buffer: its offset, its length, and the number of its request.
    let mut doing = vec![(0, 0, None); DEPTH];
    let (mut next, mut completed) = (0, 0);
    while completed < REQUESTS {
        if random.one_in(50) {
            drop_cache(&file);
        }
        for (slot, doing) in doing.iter_mut().enumerate().filter(|(_, doing)| doing.2.is_none()) {
            if next < REQUESTS {
                // Some reads extend beyond the end of the file, or begin after it.
                let (at, len) = (random.below(content.len() + PAGE), random.below(4 * PAGE));
                let buffer = &mut buffers[slot][..len];
                buffer.fill(0);
                let sqe = Sqe::read(file.as_raw_fd(), buffer, at as u64).user_data(next);
                push(&mut context, sqe);
                *doing = (at, len, Some(next));
                next += 1;
            }
        }
        submit_all(&mut context);
        if random.one_in(20) {
            // The request may be in any state.
            let _ = context.cancel(random.below(next as usize) as u64);
        }
        let in_flight = doing.iter().filter(|doing| doing.2.is_some()).count();
        let wanted = 1 + random.below(in_flight.min(3));
        if random.one_in(2) {
            while context.wait(wanted, None).is_err_and(|error| error.kind() == Interrupted) {}
        } else {
            wait_for(&mut context, wanted);
        }
        for cqe in reap_all(&mut context) {
            let slot = doing.iter().position(|doing| doing.2 == Some(cqe.user_data));
            let slot = slot.expect("in flight, and not completed before");
            let (at, len, _) = std::mem::take(&mut doing[slot]);
            completed += 1;
            if cqe.res != -libc::ECANCELED {
                let end = (at + len).min(content.len());
                let there = &content[at.min(end)..end];
                assert_eq!(cqe.res as usize, there.len(), "{len} bytes at {at}");
                assert_eq!(&buffers[slot][..there.len()], there, "{len} bytes at {at}");
            }
        }
    }
}

#[test]
fn a_cold_read_that_is_stuck_holds_up_no_other() {
    if excepted(|| ()) {
        return;
    }
    let Some(blocker) = Blocker::new() else {
        return skip("userfaultfd(2) is not permitted: nothing blocks a read at will");
    };
    let _bounded = bounded(4 * LONG);
    let (file, content) = file();
    let mut context = builder().entries(DEPTH as u32).stats(true).build().expect("a context");
    let mut buffers = vec![vec![0u8; PAGE]; DEPTH - 1];
    // The reads are far from each other, so that none of them reads ahead for another.
    let offset = |at: usize| (at * 61 % PAGES * PAGE) as u64;
    drop_cache(&file);
    for round in 0..4 {
        // The engine has to learn first that the file is slow.
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], offset(round * DEPTH + at));
            push(&mut context, sqe.user_data(at as u64));
        }
        finish(&mut context);
    }
    if context.stats().is_none_or(|stats| stats.reads_ahead == 0) {
        return skip("pages of temporary files stay in memory, or the disk is as quick as that");
    }
    drop_cache(&file);
    let fd = file.as_raw_fd();
    push(&mut context, Sqe::read(fd, blocker.buffer(), offset(0)).user_data(PIPES));
    for (at, buffer) in buffers.iter_mut().enumerate() {
        push(&mut context, Sqe::read(fd, &mut buffer[..], offset(at + 1)).user_data(at as u64));
    }
    submit_all(&mut context);
    // This thread does not call `wait`. A waiter copies pages that have arrived, and would get
    // stuck when it copies one to the blocker's memory.
    let mut cqes = Vec::new();
    let others_came = wait_until(|| {
        cqes.extend(context.reap());
        cqes.len() == DEPTH - 1
    });
    let somebody_reads = blocker.wait_for_a_victim();
    let answer = errno(context.cancel(PIPES));
    blocker.release();
    assert!(others_came && somebody_reads, "{} came", cqes.len());
    assert_eq!(answer, libc::EALREADY, "it is being executed");
    wait_for(&mut context, 1);
    assert_eq!(by_user_data(&reap_all(&mut context)), [(PIPES, BLOCK as i32)].into());
    let results = by_user_data(&cqes);
    assert_eq!(results.len(), DEPTH - 1);
    for (at, buffer) in buffers.iter().enumerate() {
        assert_eq!(results[&(at as u64)], PAGE as i32);
        let there = offset(at + 1) as usize;
        assert!(buffer[..] == content[there..there + PAGE]);
    }
}

#[test]
fn where_no_thread_can_be_made_waiters_read_what_is_cold() {
    isolated(|| {
        let (file, content) = file();
        if !refuse_threads() {
            return skip("no way to have threads refused here");
        }
        let mut context = context(DEPTH as u32);
        let mut buffers = vec![vec![0u8; PAGE]; DEPTH];
        for round in 0..8 {
            drop_cache(&file);
            let offset = |at: u64| ((round * DEPTH as u64 + at) * 61 % PAGES as u64) * PAGE as u64;
            for (at, buffer) in (0..).zip(&mut buffers) {
                let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], offset(at));
                push(&mut context, sqe.user_data(at));
            }
            submit_all(&mut context);
            let mut results = HashMap::new();
            while results.len() < DEPTH {
                // A wait with a deadline, for one request only: it has to execute cold reads, too.
                wait_for(&mut context, 1);
                results.extend(by_user_data(&reap_all(&mut context)));
            }
            for (at, buffer) in (0..).zip(&buffers) {
                assert_eq!(results[&at], PAGE as i32);
                let there = offset(at) as usize;
                assert!(buffer[..] == content[there..there + PAGE]);
            }
        }
    });
}
