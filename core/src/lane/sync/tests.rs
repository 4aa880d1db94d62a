//! Tests of `lane/sync.rs`.

use super::{Arrival, Executor, each_linked};
use crate::board::without_taker;
use crate::descriptor;
use crate::front::Entry;
use crate::instance::Instance;
use crate::lane::{Lane, Withdraw};
use crate::request::Kind;
use crate::router::facts::Facts;
use crate::{Context, EngineKind, Sqe};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;

const FSYNCS: u64 = 6;

/// A context with fsyncs that all wait at a seat, as if one were under way. Every second one is an
/// fdatasync.
fn waiting(fd: RawFd) -> (Arc<Instance>, usize) {
    let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
    let instance = Instance::new(&builder).unwrap();
    let sync = &instance.lanes().sync;
    let Arrival::Leads(seat) = sync.0.arrive(fd, 0, |_| ()) else { panic!("not free") };
    let entries = std::array::from_fn::<_, { FSYNCS as usize }, _>(|key| {
        let sqe = if key % 2 == 0 { Sqe::fsync(fd) } else { Sqe::fdatasync(fd) };
        Entry { sqe: sqe.user_data(key as u64), data: 0, notify: -1 }
    });
    // SAFETY: fsyncs have no buffers.
    assert_eq!(unsafe { instance.submit(&entries) }.accepted, entries.len());
    let mut linked = 0;
    while linked < FSYNCS {
        // The poll passes the fsyncs from the inline queue on to the seat, unless a worker does.
        instance.poll();
        std::thread::yield_now();
        linked = 0;
        if let Some(newest) = sync.0.newest_waiting(seat) {
            each_linked(instance.board(), newest, |_| linked += 1);
        }
    }
    (instance, seat)
}

/// Waits for all fsyncs, and returns their results.
fn results(instance: &Arc<Instance>) -> [Option<i32>; FSYNCS as usize] {
    let mut results = [None; FSYNCS as usize];
    while results.contains(&None) {
        without_taker(|taker| instance.wait(1, u32::MAX, None, None, taker));
        instance.reap(u32::MAX, |cqe| {
            let before = results[cqe.user_data as usize].replace(cqe.res);
            assert_eq!(before, None, "completed twice");
        });
    }
    results
}

fn together(instance: &Instance) -> u64 {
    instance.stats().unwrap().syncs_together
}

#[test]
fn one_call_does_for_all_that_wait_and_a_cancelled_one_is_left_out() {
    let file = tempfile::tempfile().unwrap();
    let (instance, seat) = waiting(file.as_raw_fd());
    assert!(instance.cancel(2).is_ok(), "it has not begun");
    let sync = &instance.lanes().sync;
    without_taker(|taker| sync.execute_waiting(instance.board(), seat, taker));
    let canceled = Some(-libc::ECANCELED);
    assert_eq!(results(&instance), [Some(0), Some(0), canceled, Some(0), Some(0), Some(0)]);
    assert_eq!(together(&instance), 4, "all but the first and the cancelled one");
    assert_eq!(instance.board().free_slots().held(), 0);
    assert_eq!(sync.0.arrive(1, 0, |_| ()), Arrival::Leads(seat), "free again");
}

#[test]
fn a_thread_of_the_program_does_its_own_only() {
    let file = tempfile::tempfile().unwrap();
    let builder = Context::builder().entries(2).engine(EngineKind::Workers);
    let instance = Instance::new(&builder).unwrap();
    let sync = &instance.lanes().sync;
    let slots = instance.board().free_slots().take_counted(2, &mut ());
    for &slot in slots.as_slice() {
        // SAFETY: the slot was just taken, so this thread alone has it.
        let mut request = unsafe { instance.board().in_hand(slot) };
        (request.sqe, request.kind) = (Sqe::fsync(file.as_raw_fd()), Kind::Sync);
        request.slot().fill(u64::from(slot), file.as_raw_fd(), -1);
        without_taker(|taker| sync.execute(instance.board(), request, Executor::Waiter, taker));
        assert_eq!(sync.0.arrive(1, 0, |_| ()), Arrival::Leads(0), "it has no seat");
        assert_eq!(sync.0.leave(0), None);
    }
    assert_eq!(instance.available(), 2);
}

#[test]
fn those_that_wait_are_executed_before_their_descriptor_is_closed() {
    let file = tempfile::tempfile().unwrap();
    let (instance, _) = waiting(file.as_raw_fd());
    // The fsync that is under way never ends.
    instance.before_close(file.as_raw_fd());
    assert_eq!(instance.available(), FSYNCS as u32);
    assert_eq!(together(&instance), FSYNCS - 1);
    assert_eq!(results(&instance), [Some(0); FSYNCS as usize]);
}

#[test]
fn cancelled_ones_cost_no_room_and_the_others_stay() {
    let file = tempfile::tempfile().unwrap();
    let (instance, seat) = waiting(file.as_raw_fd());
    for key in [0, 2, 5] {
        assert!(instance.cancel(key).is_ok());
    }
    assert_eq!(instance.reap(3, |cqe| assert_eq!(cqe.res, -libc::ECANCELED)), 3);
    assert_eq!(instance.board().free_slots().held(), FSYNCS as usize, "they are in the list");
    instance.lanes().sync.withdraw(instance.board(), &Withdraw::Canceled);
    assert_eq!(instance.board().free_slots().held(), 3);
    let mut left = 0;
    let newest = instance.lanes().sync.0.newest_waiting(seat).expect("three");
    each_linked(instance.board(), newest, |_| left += 1);
    assert_eq!(left, 3);
    instance.close();
}

#[test]
fn one_alone_is_executed_by_who_waits_for_it_and_wakes_nobody() {
    let file = tempfile::tempfile().unwrap();
    // A file of another test may have had this descriptor's number. The engine forgets what it
    // has learned about that file.
    let fd = file.as_raw_fd();
    Facts::forget(&(fd..=fd));
    descriptor::fresh(fd).unwrap();
    descriptor::prove(fd, true);
    let builder = Context::builder().entries(1).engine(EngineKind::Workers).stats(true);
    let instance = Instance::new(&builder).unwrap();
    instance.leave_alone();
    let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()), data: 0, notify: -1 };
    for _ in 0..4 {
        // SAFETY: fsyncs have no buffers.
        assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
        without_taker(|taker| instance.wait(1, 1, None, None, taker));
        assert_eq!(instance.reap(1, |cqe| assert_eq!(cqe.res, 0)), 1);
    }
    let stats = instance.stats().unwrap();
    assert_eq!((stats.by_waiter, stats.wakeups), (4, 0));
}

#[test]
fn one_that_waits_for_nothing_is_executed_with_the_inline_requests() {
    // SAFETY: the name is a NUL-terminated string.
    let fd = unsafe { libc::memfd_create(c"fsync".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and the file is its only owner.
    let file = unsafe { File::from_raw_fd(fd) };
    let builder = Context::builder().entries(32).engine(EngineKind::Workers).stats(true);
    let instance = Instance::new(&builder).unwrap();
    instance.leave_alone();
    let fsyncs = |n: u32| {
        let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()), data: 0, notify: -1 };
        for _ in 0..n {
            // SAFETY: fsyncs have no buffers.
            assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
        }
        without_taker(|taker| instance.wait(n, n, None, None, taker));
        assert_eq!(instance.reap(n, |cqe| assert_eq!(cqe.res, 0)), n);
    };
    let facts = || descriptor::known(fd).unwrap();
    // What is remembered of the number may be about a file of another test that syncs quickly.
    Facts::forget(&(fd..=fd));
    // The engine finds out the kind of the file system.
    facts();
    descriptor::prove(fd, true);
    assert!(!facts().syncs_quickly());
    let quick = |n: u32| (0..n).for_each(|_| descriptor::learn_sync(fd, 1, 1));
    quick(2);
    assert!(!facts().syncs_quickly());
    // This fsync is timed. If it is quick, it is the third quick one in a row. If it is slow, the
    // next two quick ones are not enough.
    fsyncs(1);
    if !facts().syncs_quickly() {
        quick(2);
        assert!(!facts().syncs_quickly(), "nothing was learned");
    }
    let passed_on = || instance.lanes().pool.taken();
    // An fsync above may have been slow. Three quick ones make the next one an inline request
    // again.
    quick(3);
    let before = passed_on();
    fsyncs(1);
    assert_eq!(passed_on(), before, "executed as any inline request");
    // This is learned as a slow fsync: the next one is expected to wait for the device.
    descriptor::learn_sync(fd, u64::MAX, 1);
    assert!(!facts().syncs_quickly());
    fsyncs(1);
    assert_eq!(passed_on(), before + 1);
}

#[test]
fn what_is_wrong_is_said_to_each() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let (instance, seat) = waiting(reader.as_raw_fd());
    let sync = &instance.lanes().sync;
    without_taker(|taker| sync.execute_waiting(instance.board(), seat, taker));
    assert_eq!(results(&instance), [Some(-libc::EINVAL); FSYNCS as usize]);
}

#[test]
fn closing_does_not_wait_for_one_that_hangs() {
    let file = tempfile::tempfile().unwrap();
    let (instance, _) = waiting(file.as_raw_fd());
    instance.close();
    assert_eq!(results(&instance), [Some(-libc::ECANCELED); FSYNCS as usize]);
}
