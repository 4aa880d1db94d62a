//! Tests of the file beside.

#![allow(unsafe_code)]

use super::Poller;
use crate::board::Sink;
use crate::board::{Board, Dispatcher as _, without_taker};
use crate::front::Entry;
use crate::instance::Instance;
use crate::own;
use crate::queue::IoEvent;
use crate::request::Kind;
use crate::sync::lock;
use crate::{Context, EngineKind, Sqe};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A read that was submitted as one of a file, and that a thread has started.
fn started<'a>(
    board: &'a Board,
    fd: i32,
    buffer: &mut [u8; 1],
    number: u64,
) -> crate::request::Started<'a> {
    let slot = board.free_slots().take_one(&mut ()).unwrap();
    // SAFETY: just taken.
    let mut request = unsafe { board.in_hand(slot) };
    request.sqe = Sqe::read(fd, &mut buffer[..], 0).user_data(number);
    (request.kind, request.notify) = (Kind::Read, -1);
    request.slot().fill(number, fd, -1);
    request.slot().submitted_as(number, Kind::Read);
    request.slot().begin();
    request
}

/// Two reads of one pipe, of which the second one is the first to be found to be of a stream:
/// `after` is what happens before the first one is, too.
fn reads_in_order(nonblocking: bool, after: impl FnOnce(&Poller)) {
    let builder = Context::builder().entries(4).engine(EngineKind::Workers);
    let instance = Instance::new(&builder).unwrap();
    let board = instance.board();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let fd = reader.as_raw_fd();
    let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }, 0);
    writer.write_all(b"ab").unwrap();
    let mut buffers = [[0; 1]; 2];
    let [first, second] = buffers.each_mut();
    let (first, second) = (started(board, fd, first, 1), started(board, fd, second, 2));
    instance.reroute(second);
    after(instance.poller());
    instance.reroute(first);
    without_taker(|taker| instance.wait(2, 2, None, None, taker));
    assert_eq!(instance.reap(2, |cqe| assert_eq!(cqe.res, 1)), 2);
    assert_eq!(buffers.concat(), b"ab", "O_NONBLOCK: {nonblocking}");
}

#[test]
fn reads_that_turn_out_to_be_of_a_pipe_in_the_wrong_order_are_done_in_that_of_submission() {
    for nonblocking in [false, true] {
        reads_in_order(nonblocking, |_| {});
        // The thread has seen that there is data for the second one.
        reads_in_order(nonblocking, |poller| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let is_held = || lock(&poller.state).waiting.iter().any(|one| one.held);
            while !is_held() {
                assert!(Instant::now() < deadline, "it is not held back");
                std::thread::yield_now();
            }
        });
    }
}

/// Counts completions.
#[derive(Debug)]
struct Count(Arc<AtomicUsize>);

impl Sink for Count {
    fn complete(&self, _: &IoEvent) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn released(&self) {}
}

#[test]
fn the_first_of_a_stream_is_never_cancelled_and_those_behind_it_always_are() {
    let builder = Context::builder().entries(4);
    let count = Arc::new(AtomicUsize::new(0));
    let instance = Instance::with_sink(&builder, Box::new(Count(Arc::clone(&count)))).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 2]);
    instance.leave_alone();
    let poller = instance.poller();
    // As if the thread were there: this one does what it does.
    let eventfd = own::eventfd() as RawFd;
    (lock(&poller.state).alive, lock(&poller.state).eventfd) = (true, eventfd);
    let serve = || {
        let ready = lock(&poller.state).take_ready(&[]);
        assert_eq!(ready.len(), 1, "the first one");
        ready.into_iter().for_each(|(waiting, revents)| poller.serve(waiting, revents));
    };
    for round in 1..=2 {
        let [first, second] = buffers.each_mut();
        let reads = [first, second].map(|buffer| Sqe::read(fd, &mut buffer[..], 0));
        let entries = reads.map(|sqe| Entry { sqe, data: 0, notify: -1 });
        // SAFETY: the buffers outlive the requests, which end below.
        assert_eq!(unsafe { instance.submit(&entries) }.accepted, 2);
        if round == 2 {
            // The thread has tried the first one, and has done nothing else since.
            serve();
        }
        let found = instance.cancel_all_on(fd);
        assert_eq!((found.canceled, found.running), (1, 1), "round {round}");
        writer.write_all(b"x").unwrap();
        lock(&poller.state).waiting.iter_mut().for_each(|one| one.tried = false);
        serve();
        assert_eq!(count.load(Ordering::Relaxed), 2 * round);
        lock(&poller.state).served.clear();
    }
    own::close(eventfd);
    instance.close();
}
