//! Reads of pages that are not in memory: the right bytes, each once, and none behind one that is stuck.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use super::stuck::{Blocker, PAGE};
use super::{BLOCK, PIPES, errno};
use crate::common::{
    LONG, Random, SEED, bounded, by_user_data, context, excepted, file_with, finish, pattern, push,
    reap_all, seed, skip, submit_all, wait_for,
};
use uringlet::Sqe;

const PAGES: usize = 1024;
const DEPTH: usize = 32;

/// A file that the page cache can let go.
fn file() -> (File, Vec<u8>) {
    let content = pattern(3, PAGES * PAGE + 100);
    let file = file_with(&content);
    file.sync_all().unwrap();
    (file, content)
}

/// From here on its pages have to be read from the device, if there is one.
fn drop_cache(file: &File) {
    // SAFETY: advice on a file of ours.
    let ret = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(ret, 0);
}

/// Can they be dropped at all?
fn is_in_memory(file: &File) -> bool {
    let mut byte = 0u8;
    let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one live iovec, of a live byte.
    unsafe { libc::preadv2(file.as_raw_fd(), &iov, 1, 0, libc::RWF_NOWAIT) == 1 }
}

#[test]
fn cold_reads_find_what_is_there_while_the_cache_comes_and_goes() {
    const REQUESTS: u64 = 20_000;
    let _bounded = bounded(4 * LONG);
    let seed = seed();
    println!("{SEED}={seed}");
    let mut random = Random::new(seed);
    let (file, content) = file();
    let mut context = context(DEPTH as u32);
    let mut buffers = vec![vec![0u8; 4 * PAGE]; DEPTH];
    // Of each buffer: where it reads, how much, and the number of its request.
    let mut doing = vec![(0, 0, None); DEPTH];
    let (mut next, mut completed) = (0, 0);
    while completed < REQUESTS {
        if random.one_in(50) {
            drop_cache(&file);
        }
        for (slot, doing) in doing.iter_mut().enumerate().filter(|(_, doing)| doing.2.is_none()) {
            if next < REQUESTS {
                // Some reach beyond the end, some begin there.
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
            // Whatever has become of it.
            let _ = context.cancel(random.below(next as usize) as u64);
        }
        let in_flight = doing.iter().filter(|doing| doing.2.is_some()).count();
        wait_for(&mut context, 1 + random.below(in_flight.min(3)));
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
    if excepted(|| {}) {
        return;
    }
    let Some(blocker) = Blocker::new() else {
        return skip("userfaultfd(2) is not permitted: nothing blocks a read at will");
    };
    let (file, content) = file();
    drop_cache(&file);
    if is_in_memory(&file) {
        return skip("temporary files are in memory here: no read has to wait for a page");
    }
    let mut context = context(DEPTH as u32);
    let mut buffers = vec![vec![0u8; PAGE]; DEPTH - 1];
    drop_cache(&file);
    // Far from each other: none has its page read ahead for another.
    let offset = |at: usize| (at * 61 % PAGES * PAGE) as u64;
    for round in 0..4 {
        // That it is slow has to be seen first.
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], offset(round * DEPTH + at));
            push(&mut context, sqe.user_data(at as u64));
        }
        finish(&mut context);
    }
    drop_cache(&file);
    let fd = file.as_raw_fd();
    push(&mut context, Sqe::read(fd, blocker.buffer(), offset(0)).user_data(PIPES));
    for (at, buffer) in buffers.iter_mut().enumerate() {
        push(&mut context, Sqe::read(fd, &mut buffer[..], offset(at + 1)).user_data(at as u64));
    }
    submit_all(&mut context);
    wait_for(&mut context, DEPTH - 1);
    assert!(blocker.wait_for_a_victim(), "somebody reads");
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(errno(context.cancel(PIPES)), libc::EALREADY, "it is being executed");
    blocker.release();
    wait_for(&mut context, 1);
    assert_eq!(by_user_data(&reap_all(&mut context)), [(PIPES, BLOCK as i32)].into());
    assert_eq!(results.len(), DEPTH - 1);
    for (at, buffer) in buffers.iter().enumerate() {
        assert_eq!(results[&(at as u64)], PAGE as i32);
        let there = offset(at + 1) as usize;
        assert!(buffer[..] == content[there..there + PAGE]);
    }
}
