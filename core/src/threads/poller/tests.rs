//! Tests of the file beside.

#![allow(unsafe_code)]

use super::Poller;
use crate::board::{Board, Dispatcher as _, without_taker};
use crate::instance::Instance;
use crate::request::Kind;
use crate::sync::lock;
use crate::{Context, EngineKind, Sqe};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
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
