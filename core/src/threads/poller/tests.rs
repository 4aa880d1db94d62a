//! Tests of `threads/poller.rs`.

#![allow(unsafe_code)]

use super::{Poller, Untried};
use crate::board::{Board, Dispatcher as _, Executor, Sink, without_taker};
use crate::front::Entry;
use crate::instance::Instance;
use crate::own;
use crate::request::Kind;
use crate::router::facts::Facts;
use crate::sync::{lock, lock_counted};
use crate::sys::aio::IoEvent;
use crate::{Context, EngineKind, Sqe, sys};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A read that was submitted as one of a file, and that a thread has started.
fn started<'a>(
    board: &'a Board,
    fd: i32,
    buffer: &mut [u8; 1],
    number: u64,
) -> crate::request::Started<'a> {
    let slot = board.free_slots().take_one(&mut ()).unwrap();
    // SAFETY: the slot was just taken, so this thread alone has it.
    let mut request = unsafe { board.in_hand(slot) };
    request.sqe = Sqe::read(fd, &mut buffer[..], 0).user_data(number);
    (request.kind, request.notify) = (Kind::Read, -1);
    request.slot().fill(number, fd, -1);
    request.slot().submitted_as(number, Kind::Read);
    request.slot().begin();
    request
}

/// Two reads of one pipe. The second read is found to be of a stream before the first one is.
/// `after` runs between the two.
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
        // The poller's thread has seen the second read before the first, and holds it back.
        reads_in_order(nonblocking, |poller| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let is_held = || lock(&poller.state).streams.waiting().any(|one| one.held);
            while !is_held() {
                assert!(Instant::now() < deadline, "it is not held back");
                std::thread::yield_now();
            }
        });
    }
}

/// Stores the results.
#[derive(Debug)]
struct Results {
    all: Arc<Mutex<Vec<i64>>>,
    as_io_uring: bool,
}

impl Sink for Results {
    unsafe fn complete(&self, event: &IoEvent) {
        lock(&self.all).push(event.res);
    }

    fn released(&self) {}

    fn begins_streams_at_once(&self) -> bool {
        !self.as_io_uring
    }

    fn ends_short_writes(&self) -> bool {
        self.as_io_uring
    }
}

/// A context whose poller has no thread: the test's thread acts in its place.
fn without_thread(as_io_uring: bool) -> (Arc<Instance>, Arc<Mutex<Vec<i64>>>) {
    let results = Arc::default();
    let sink = Box::new(Results { all: Arc::clone(&results), as_io_uring });
    let instance = Instance::with_sink(&Context::builder().entries(4), sink).unwrap();
    instance.leave_alone();
    let eventfd = own::eventfd() as RawFd;
    let mut state = lock(&instance.poller().state);
    (state.alive, state.eventfd) = (true, eventfd);
    drop(state);
    (instance, results)
}

/// Submits a read of one byte for each buffer, with this priority.
fn submit<const N: usize>(
    instance: &Arc<Instance>,
    fd: RawFd,
    buffers: [&mut [u8; 1]; N],
    priority: u16,
) {
    // The number may have been a file's, in another test.
    Facts::forget(&(fd..=fd));
    let reads = buffers.map(|buffer| Sqe { ioprio: priority, ..Sqe::read(fd, buffer, 0) });
    let entries = reads.map(|sqe| Entry { sqe, data: 0, notify: -1 });
    // SAFETY: the buffers outlive the requests, which end in each test.
    assert_eq!(unsafe { instance.submit(&entries) }.accepted, N);
}

fn submit_two(instance: &Arc<Instance>, fd: RawFd, buffers: &mut [[u8; 1]; 2]) {
    submit(instance, fd, buffers.each_mut(), 0);
}

/// The requests that the thread takes off its list now.
fn take(poller: &Poller) -> Vec<(super::PolledRequest, i16)> {
    let streams = &mut lock(&poller.state).streams;
    let mut taken = Vec::new();
    while let Some(fd) = streams.next_due() {
        taken.extend(streams.take_ready(fd));
    }
    taken
}

fn serve(poller: &Poller, ready: Vec<(super::PolledRequest, i16)>) {
    for (waiting, revents) in ready {
        let served = (waiting.fd, waiting.events);
        let is_back = poller.serve(waiting, revents, Executor::Poller);
        lock(&poller.state).streams.was_served(served, is_back);
    }
}

/// Acts as if poll(2) had returned that all are ready.
fn all_are_ready(poller: &Poller) {
    let streams = &mut lock(&poller.state).streams;
    streams.waiting().for_each(|one| one.tried = false);
    streams.all_are_due();
}

#[test]
fn the_first_of_a_stream_is_never_cancelled_and_those_behind_it_always_are() {
    let (instance, results) = without_thread(false);
    let poller = instance.poller();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 2]);
    for round in 0..2 {
        submit_two(&instance, fd, &mut buffers);
        if round == 1 {
            // The thread has tried the first read, and has done nothing else since.
            for (waiting, revents) in take(poller) {
                poller.serve(waiting, revents, Executor::Poller);
            }
        }
        let found = instance.cancel_all_on(fd);
        assert_eq!((found.canceled, found.running), (1, 1), "round {round}");
        writer.write_all(b"x").unwrap();
        all_are_ready(poller);
        serve(poller, take(poller));
        assert_eq!(std::mem::take(&mut *lock(&results)), [-i64::from(libc::ECANCELED), 1]);
    }
    instance.close();
    own::close(lock(&poller.state).eventfd);
}

#[test]
fn while_the_first_of_a_stream_is_tried_a_later_one_goes_before_those_of_larger_priorities() {
    let (instance, results) = without_thread(false);
    let poller = instance.poller();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 3]);
    let [first, large, small] = buffers.each_mut();
    submit(&instance, fd, [first], 0);
    let tried = take(poller);
    submit(&instance, fd, [large], 20);
    submit(&instance, fd, [small], 10);
    serve(poller, tried);
    writer.write_all(b"abc").unwrap();
    for _ in 0..3 {
        all_are_ready(poller);
        serve(poller, take(poller));
    }
    assert_eq!(*lock(&results), [1; 3]);
    assert_eq!(buffers.concat(), b"acb");
    instance.close();
    own::close(lock(&poller.state).eventfd);
}

#[test]
fn of_a_closed_stream_the_first_has_its_file_and_the_second_none_whatever_has_its_number() {
    for is_tried_meanwhile in [false, true] {
        let (instance, results) = without_thread(false);
        let poller = instance.poller();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 2]);
        submit_two(&instance, fd, &mut buffers);
        let tried = take(poller);
        if is_tried_meanwhile {
            // The first read is off the list. The second one does not become the first because of
            // that.
            assert!(
                poller.keep_files(&(fd..=fd), true, &mut own::Copies::default()),
                "the first one may come back"
            );
        }
        serve(poller, tried);
        instance.before_close(fd);
        // A descriptor that never becomes readable has the number now.
        let other = own::eventfd() as RawFd;
        // SAFETY: two descriptors, of which the second one is replaced.
        assert_eq!(unsafe { libc::dup2(other, fd) }, fd);
        // The first read finds no data yet.
        serve(poller, take(poller));
        let bad = -i64::from(libc::EBADF);
        assert_eq!(*lock(&results), [bad], "tried meanwhile: {is_tried_meanwhile}");
        writer.write_all(b"xy").unwrap();
        all_are_ready(poller);
        serve(poller, take(poller));
        assert_eq!(*lock(&results), [bad, 1]);
        assert_eq!(buffers, [*b"x", [0]]);
        instance.close();
        own::close(other);
        own::close(lock(&poller.state).eventfd);
    }
}

#[test]
fn a_short_write_to_a_stream_ends_there_or_waits_for_room_as_the_front_end_says() {
    for ends_short_writes in [false, true] {
        let (instance, results) = without_thread(ends_short_writes);
        let poller = instance.poller();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        Facts::forget(&(fd..=fd));
        // SAFETY: no memory is passed.
        let room = unsafe { libc::fcntl(fd, libc::F_GETPIPE_SZ) } as usize;
        let mut content = vec![7; room + 1000];
        let iovec = [libc::iovec { iov_base: content.as_mut_ptr().cast(), iov_len: content.len() }];
        for sqe in [Sqe::write(fd, &content[..], 0), Sqe::writev(fd, &raw const iovec[..], 0)] {
            let entry = [Entry { sqe, data: 0, notify: -1 }];
            // SAFETY: buffer and vector outlive the request, which ends below.
            assert_eq!(unsafe { instance.submit(&entry) }.accepted, 1);
            serve(poller, take(poller));
            let expected = if ends_short_writes { room } else { room + 1000 };
            reader.read_exact(&mut vec![0; room]).unwrap();
            if !ends_short_writes {
                assert!(lock(&results).is_empty(), "the rest waits");
                all_are_ready(poller);
                serve(poller, take(poller));
                reader.read_exact(&mut [0; 1000]).unwrap();
            }
            assert_eq!(std::mem::take(&mut *lock(&results)), [expected as i64]);
        }
        instance.close();
        own::close(lock(&poller.state).eventfd);
    }
}

#[test]
fn a_read_that_is_being_tried_while_its_number_gets_another_file_keeps_its_own() {
    let (instance, results) = without_thread(true);
    let poller = instance.poller();
    let ((reader, mut writer), (other, mut others)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 2]);
    submit_two(&instance, fd, &mut buffers);
    let tried = take(poller);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| instance.before_close_range(&(fd..=fd), false));
        // `before_close_range` waits for the request that is being tried, and finds it when it is
        // on the list again.
        serve(poller, tried);
        closing.join().unwrap();
    });
    // SAFETY: two descriptors, of which the second one is replaced.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    others.write_all(b"no").unwrap();
    writer.write_all(b"xy").unwrap();
    for _ in 0..2 {
        all_are_ready(poller);
        serve(poller, take(poller));
    }
    assert_eq!(*lock(&results), [1, 1]);
    assert_eq!(buffers.concat(), b"xy");
    instance.close();
    own::close(lock(&poller.state).eventfd);
}

#[test]
fn a_handler_that_ends_a_descriptor_waits_for_no_lock_of_its_thread() {
    let (instance, results) = without_thread(true);
    let poller = instance.poller();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 2]);
    submit_two(&instance, fd, &mut buffers);
    let interrupted = lock_counted(&poller.state);
    instance.before_close_range(&(fd..=fd), false);
    drop(interrupted);
    writer.write_all(b"xy").unwrap();
    for _ in 0..2 {
        all_are_ready(poller);
        serve(poller, take(poller));
    }
    assert_eq!((&*lock(&results), &buffers.concat()[..]), (&vec![1, 1], &b"xy"[..]));
    instance.close();
    own::close(lock(&poller.state).eventfd);
}

#[test]
fn of_many_streams_that_wait_only_those_that_are_ready_are_looked_at() {
    let (instance, results) = without_thread(true);
    let poller = instance.poller();
    own::close(lock(&poller.state).eventfd);
    assert!(lock(&poller.state).prepare());
    let mut pipes: Vec<_> = (0..4).map(|_| std::io::pipe().unwrap()).collect();
    let mut buffers = [[0u8; 1]; 4];
    for ((reader, _), buffer) in pipes.iter().zip(&mut buffers) {
        let fd = reader.as_raw_fd();
        Facts::forget(&(fd..=fd));
        let entry = [Entry { sqe: Sqe::read(fd, &mut buffer[..], 0), data: 0, notify: -1 }];
        // SAFETY: the buffers outlive the requests, which end below.
        assert_eq!(unsafe { instance.submit(&entry) }.accepted, 1);
    }
    assert_eq!(poller.serve_due(), (false, false));
    pipes[2].1.write_all(b"x").unwrap();
    let mut state = lock(&poller.state);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    let tokens = |events: &[libc::epoll_event], count| -> Vec<u64> {
        let tokens = events[..count as usize].iter().map(|event| event.u64);
        tokens.filter(|&token| token != super::WAKE).collect()
    };
    let count = sys::epoll_wait(state.epoll, &mut events, Some(Duration::ZERO));
    let [token] = tokens(&events, count)[..] else { panic!("{count} events") };
    state.streams.is_ready(token, libc::POLLIN);
    let fd = pipes[2].0.as_raw_fd();
    assert_eq!((state.streams.next_due(), state.streams.next_due()), (Some(fd), None));
    // After another registration the stream has another token: the event of an earlier file of this
    // number is ignored.
    let epoll = state.epoll;
    assert_eq!(state.streams.arm(epoll, fd), super::StreamWatch::Yes);
    state.streams.is_ready(token, libc::POLLIN);
    assert_eq!(state.streams.next_due(), None);
    drop(state);
    pipes.iter_mut().for_each(|(_, writer)| writer.write_all(b"x").unwrap());
    lock(&poller.state).streams.all_are_due();
    all_are_ready(poller);
    assert_eq!(poller.serve_due(), (false, false));
    assert_eq!(*lock(&results), [1; 4]);
    let state = lock(&poller.state);
    [state.epoll, state.eventfd].into_iter().for_each(own::close);
}

/// Submits a read of one byte, which the submitter tries if it `is_tried`.
fn submit_read(instance: &Arc<Instance>, fd: RawFd, buffer: &mut [u8; 1], is_tried: bool) {
    let entry = [Entry { sqe: Sqe::read(fd, &mut buffer[..], 0), data: 0, notify: -1 }];
    // SAFETY: the buffers outlive the requests, which end in each test.
    let submit = || unsafe { instance.submit(&entry) }.accepted;
    assert_eq!(if is_tried { instance.try_streams_of(submit) } else { submit() }, 1);
}

#[test]
fn a_submitter_tries_a_transfer_only_if_none_of_its_stream_is_before_it() {
    let (instance, results) = without_thread(true);
    let poller = instance.poller();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fd, mut buffers) = (reader.as_raw_fd(), [[0u8; 1]; 5]);
    Facts::forget(&(fd..=fd));
    let [first, second, third, fourth, fifth] = buffers.each_mut();
    writer.write_all(b"a").unwrap();
    submit_read(&instance, fd, first, true);
    assert_eq!(std::mem::take(&mut *lock(&results)), [1], "by its submitter");
    submit_read(&instance, fd, second, true);
    assert!(take(poller).is_empty(), "it was tried, and waits for an event");
    writer.write_all(b"bcde").unwrap();
    submit_read(&instance, fd, third, true);
    assert!(lock(&results).is_empty(), "it stays behind the second one");
    all_are_ready(poller);
    let tried = take(poller);
    submit_read(&instance, fd, fourth, true);
    assert!(lock(&results).is_empty(), "the second one is being executed");
    serve(poller, tried);
    for _ in 0..2 {
        serve(poller, take(poller));
    }
    submit_read(&instance, fd, fifth, true);
    assert_eq!(*lock(&results), [1; 4]);
    assert_eq!(buffers.concat(), b"abcde");
    assert!(lock(&poller.state).streams.served.is_empty());
    instance.close();
    own::close(lock(&poller.state).eventfd);
}

/// If the poller's thread were noted as existing although it does not exist, nobody would make it.
#[test]
fn a_read_that_is_cancelled_before_there_is_a_thread_leaves_it_to_the_next_one_to_make_it() {
    let (instance, results) = without_thread(true);
    let (poller, (reader, _writer)) = (instance.poller(), std::io::pipe().unwrap());
    let (fd, mut buffer) = (reader.as_raw_fd(), [0; 1]);
    Facts::forget(&(fd..=fd));
    lock(&poller.state).alive = false;
    // As in a submit that will try the read, and has not done so yet.
    let left = Untried::begin();
    submit_read(&instance, fd, &mut buffer, false);
    assert!(left.end());
    assert_eq!(instance.cancel(0), Ok(()));
    assert!(!lock(&poller.state).alive);
    instance.close();
    assert_eq!(*lock(&results), [i64::from(-libc::ECANCELED)]);
    own::close(lock(&poller.state).eventfd);
}

#[test]
fn reads_tried_by_several_submitters_get_each_byte_once_in_the_order_of_their_thread() {
    const THREADS: usize = 4;
    const READS: usize = 500;
    let results = Arc::default();
    let sink = Box::new(Results { all: Arc::clone(&results), as_io_uring: true });
    let instance = Instance::with_sink(&Context::builder().entries(4096), sink).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let fd = reader.as_raw_fd();
    Facts::forget(&(fd..=fd));
    let mut buffers = vec![[[0u8; 1]; READS]; THREADS];
    let all: Vec<u8> = (0..THREADS * READS).map(|at| (at / 8) as u8).collect();
    std::thread::scope(|scope| {
        for (thread, buffers) in buffers.iter_mut().enumerate() {
            let instance = &instance;
            scope.spawn(move || {
                for (at, buffer) in buffers.iter_mut().enumerate() {
                    submit_read(instance, fd, buffer, (at + thread) % 3 != 0);
                }
            });
        }
        for part in all.chunks(37) {
            writer.write_all(part).unwrap();
            std::thread::yield_now();
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while lock(&results).len() < all.len() {
        assert!(Instant::now() < deadline, "{} of {}", lock(&results).len(), all.len());
        std::thread::yield_now();
    }
    assert!(lock(&results).iter().all(|&one| one == 1));
    // The written bytes never get smaller.
    assert!(buffers.iter().all(|own| own.is_sorted()));
    let mut read: Vec<u8> = buffers.concat().concat();
    let mut written = all;
    read.sort_unstable();
    written.sort_unstable();
    assert_eq!(read, written);
    instance.close();
}
