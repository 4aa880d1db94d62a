//! A cancel affects requests that have not started, once, and leaves nothing behind.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{BLOCK, errno, push_reads};
use crate::common::{
    LONG, Random, bounded, by_user_data, context, file_with, pattern, push, reap_all, submit_all,
    wait_for, wait_until,
};
use uringlet::{Context, Sqe};

#[test]
fn a_waiting_poll_can_be_cancelled() {
    let _bound = bounded(2 * LONG);
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut context = context(4);
    push(&mut context, Sqe::poll_add(reader.as_raw_fd(), libc::POLLIN).user_data(7));
    assert_eq!(errno(context.cancel(7)), libc::ENOENT, "pushed is not submitted");
    submit_all(&mut context);
    assert_eq!(errno(context.cancel(8)), libc::ENOENT);
    assert_eq!(errno(context.cancel(7)), 0);
    wait_for(&mut context, 1);
    assert_eq!(by_user_data(&reap_all(&mut context)), HashMap::from([(7, -libc::ECANCELED)]));
    assert_eq!(errno(context.cancel(7)), libc::ENOENT);
}

/// The engine remembers that the number named a file. So a worker may try the read, and then find
/// that the number names a pipe now. A cancel must succeed at each of these moments.
#[test]
fn a_read_of_a_pipe_can_be_cancelled_where_a_file_had_its_number() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, BLOCK));
    let (reader, _writer) = std::io::pipe().unwrap();
    let place = file.try_clone().unwrap();
    let is_now = |fd: i32| {
        // SAFETY: dup2(2) reads no memory; `place` stays open.
        assert_eq!(unsafe { libc::dup2(fd, place.as_raw_fd()) }, place.as_raw_fd());
    };
    let (mut context, mut random, mut byte) = (context(4), Random::new(1), [0u8]);
    for round in 0..5_000 {
        is_now(file.as_raw_fd());
        push(&mut context, Sqe::read(place.as_raw_fd(), &mut byte[..], 0));
        submit_all(&mut context);
        wait_for(&mut context, 1);
        assert_eq!(by_user_data(&reap_all(&mut context)), HashMap::from([(0, 1)]));
        is_now(reader.as_raw_fd());
        push(&mut context, Sqe::read(place.as_raw_fd(), &mut byte[..], 0));
        submit_all(&mut context);
        (0..random.below(5_000)).for_each(|_| std::hint::spin_loop());
        assert_eq!(errno(context.cancel(0)), 0, "round {round}");
        wait_for(&mut context, 1);
        let cancelled = HashMap::from([(0, -libc::ECANCELED)]);
        assert_eq!(by_user_data(&reap_all(&mut context)), cancelled);
    }
}

/// Tells threads to stop, also if the test panics.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A context that is full of submitted reads, each with a buffer.
fn full_of_reads(file: &File, buffers: &mut Vec<[u8; BLOCK]>) -> Context {
    let mut context = context(8);
    buffers.resize(context.entries(), [0; BLOCK]);
    push_reads(&mut context, file, buffers);
    submit_all(&mut context);
    context
}

#[test]
fn cancelled_requests_that_were_reaped_hold_no_room() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = Vec::new();
    for round in 0..200 {
        let mut context = full_of_reads(&file, &mut buffers);
        let most = context.entries();
        for at in 0..most as u64 {
            let answer = errno(context.cancel(at));
            assert!([0, libc::EALREADY, libc::ENOENT].contains(&answer), "{answer}");
        }
        let mut reaped = 0;
        while reaped < most {
            // This thread does not call `wait`, in which it might execute requests. Other threads
            // execute the requests that were not cancelled.
            assert!(wait_until(|| {
                reaped += reap_all(&mut context).len();
                reaped == most
            }));
        }
        (0..most).for_each(|_| push(&mut context, Sqe::nop()));
        assert_eq!(context.submit().ok(), Some(most), "round {round}: all was reaped");
        assert_eq!(context.destroy().len(), most);
    }
}

#[test]
fn one_that_was_cancelled_and_reaped_makes_room_for_one() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = Vec::new();
    for round in 0..200 {
        let mut context = full_of_reads(&file, &mut buffers);
        let most = context.entries();
        (0..most as u64).for_each(|at| drop(context.cancel(at)));
        // One completion is reaped. The others stay, and keep their slots.
        assert!(wait_until(|| context.reap().is_some()));
        push(&mut context, Sqe::nop());
        assert_eq!(context.submit().ok(), Some(1), "round {round}: one was reaped");
        assert_eq!(context.destroy().len(), most);
    }
}

#[test]
fn every_request_completes_once_while_another_thread_cancels() {
    const REQUESTS: u64 = 20_000;
    const DEPTH: usize = 64;
    let _bound = bounded(4 * LONG);
    let content = pattern(1, 64 * BLOCK);
    let file = file_with(&content);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut context = context(DEPTH as u32);
    let canceller = context.canceller();
    let (newest, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (cancelled, mut results) = (Mutex::new(HashSet::new()), HashMap::new());
    let mut taken = 0;
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (canceller, newest, over, cancelled) =
                (canceller.clone(), &newest, &over, &cancelled);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !over.load(Ordering::Relaxed) {
                    let back = random.below(DEPTH) as u64;
                    let user_data = newest.load(Ordering::Relaxed).saturating_sub(back);
                    match errno(canceller.cancel(user_data)) {
                        0 => assert!(cancelled.lock().unwrap().insert(user_data), "twice"),
                        error => assert!([libc::EALREADY, libc::ENOENT].contains(&error)),
                    }
                }
            });
        }
        let _over = SetAtEnd(&over);
        let mut random = Random::new(3);
        let mut buffers = vec![[0u8; BLOCK]; DEPTH];
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut at = HashMap::new();
        let (mut next, mut pipe_reads) = (0, 0);
        while results.len() < REQUESTS as usize {
            while next < REQUESTS && !free.is_empty() && !random.one_in(8) {
                let slot = free.pop().unwrap();
                let buffer = &mut buffers[slot];
                let sqe = match random.below(8) {
                    0 => Sqe::nop(),
                    1 => Sqe::fdatasync(file.as_raw_fd()),
                    2 => Sqe::poll_add(writer.as_raw_fd(), libc::POLLOUT),
                    3 if pipe_reads < 16 => {
                        pipe_reads += 1;
                        Sqe::read(reader.as_raw_fd(), &mut buffer[..4], 0)
                    }
                    _ => {
                        let offset = random.below(64) * BLOCK;
                        Sqe::read(file.as_raw_fd(), &mut buffer[..], offset as u64)
                    }
                };
                at.insert(next, (slot, sqe));
                push(&mut context, sqe.user_data(next));
                next += 1;
            }
            // A cancelled request may hold its slot for a moment: all entries will be accepted, but
            // not always at once.
            assert!(wait_until(|| {
                let _ = context.submit();
                context.pushed() == 0
            }));
            newest.store(next, Ordering::Relaxed);
            // Writes enough bytes for all reads that wait for the pipe, so that these reads race
            // with their cancels.
            writer.write_all(&vec![5; 4 * pipe_reads]).unwrap();
            let in_flight = at.len();
            let least = random.below(in_flight.min(4) + 1);
            wait_for(&mut context, least);
            let mut left_in_pipe = 0;
            for cqe in reap_all(&mut context) {
                let (slot, sqe) = at.remove(&cqe.user_data).expect("accepted, and not seen before");
                if sqe.fd == reader.as_raw_fd() {
                    pipe_reads -= 1;
                    taken += cqe.res.max(0) as usize;
                }
                let expected = match sqe.fd {
                    fd if fd == reader.as_raw_fd() => 4,
                    fd if fd == writer.as_raw_fd() => i32::from(libc::POLLOUT),
                    _ => sqe.len as i32,
                };
                assert!([expected, -libc::ECANCELED].contains(&cqe.res), "{} {sqe:?}", cqe.res);
                if cqe.res == BLOCK as i32 {
                    assert!(buffers[slot][..] == content[sqe.off as usize..][..BLOCK]);
                }
                assert_eq!(results.insert(cqe.user_data, cqe.res), None);
                free.push(slot);
            }
            // SAFETY: a live integer, which gets the number of bytes in the pipe.
            unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut left_in_pipe) };
            assert_eq!(left_in_pipe % 4, 0, "a read takes its four bytes or none");
            let spare = left_in_pipe as usize;
            if pipe_reads == 0 && spare > 0 {
                (&reader).read_exact(&mut vec![0; spare]).unwrap();
            }
        }
    });
    assert_eq!(context.destroy(), []);
    assert_eq!(taken % 4, 0);
    let of_results = results.iter().filter(|&(_, &res)| res == -libc::ECANCELED);
    let of_results: HashSet<u64> = of_results.map(|(&user_data, _)| user_data).collect();
    let cancelled = cancelled.into_inner().unwrap();
    let differ: Vec<&u64> = of_results.symmetric_difference(&cancelled).collect();
    assert!(differ.is_empty(), "Ok is -ECANCELED, and nothing else is: {differ:?}");
}
