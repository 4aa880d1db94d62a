//! Tests of `lane/inline.rs`.

#![allow(unsafe_code)]

use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::board::without_taker;
use crate::config::Builder;
use crate::instance::Instance;
use crate::instance::submit::Entry;
use crate::router::facts::{Facts, Said};
use crate::sqe::{FILE_POSITION, Sqe};

const AT_START: &[u8] = b"ffff";
const APPENDED: &[u8] = b"aaa";

/// The contents of a file after these writes, appends or writes at the start. They are submitted
/// `together` or one by one, and executed by the wait that follows.
fn written(appends: &[bool], together: bool) -> Vec<u8> {
    let instance = Instance::new(&Builder::default().entries(8)).unwrap();
    instance.leave_alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    let append = std::fs::File::options().append(true).open(file.path()).unwrap();
    // What is remembered of these descriptor numbers is about files of other tests.
    for fd in [file.as_file().as_raw_fd(), append.as_raw_fd()] {
        Facts::forget(&(fd..=fd));
    }
    let entry = |&appends: &bool| {
        let at_start = Sqe::write(file.as_file().as_raw_fd(), AT_START, 0);
        let append = Sqe::write(append.as_raw_fd(), APPENDED, FILE_POSITION);
        Entry { sqe: if appends { append } else { at_start }, data: 0, notify: -1 }
    };
    let entries: Vec<_> = appends.iter().map(entry).collect();
    for some in entries.chunks(if together { entries.len() } else { 1 }) {
        // SAFETY: the buffers are static.
        assert_eq!(unsafe { instance.submit(some) }.accepted, some.len());
    }
    let count = entries.len() as u32;
    without_taker(|taker| instance.wait(count, count, None, None, taker));
    assert_eq!(instance.reap(count, |cqe| assert!(cqe.res > 0)), count);
    instance.close();
    let mut found = Vec::new();
    file.reopen().unwrap().read_to_end(&mut found).unwrap();
    found
}

#[test]
fn a_write_at_an_offset_and_an_append_behind_it_are_executed_in_this_order() {
    for together in [false, true] {
        assert_eq!(written(&[false, true], together), b"ffffaaa");
        assert_eq!(written(&[true, false], together), b"ffff");
        assert_eq!(written(&[false, true, false, true, true], together), b"ffffaaaaaaaaa");
        assert_eq!(written(&[true, true, false], together), b"ffffaa");
    }
}

/// A descriptor number that the engine has looked up as that of a plain file. Now it names a file
/// that appends, and the engine has not looked it up again. Nothing else in this process uses the
/// number.
struct Reused {
    number: i32,
    path: tempfile::TempPath,
}

impl Reused {
    /// `local`: the engine remembers that the file system is a local one.
    fn new(number: i32, local: bool) -> Self {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open =
            |append| std::fs::File::options().write(true).append(append).open(&path).unwrap();
        let becomes = |file: &std::fs::File| {
            // SAFETY: nothing else in this process uses the number.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        };
        becomes(&open(false));
        Facts::forget(&(number..=number));
        let said = Said {
            flags: libc::O_WRONLY,
            seekable: true,
            device: false,
            socket: false,
            local: Some(local),
        };
        Facts::note(number, &said);
        becomes(&open(true));
        Self { number, path }
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        // SAFETY: the number is this value's.
        unsafe { libc::close(self.number) };
        Facts::forget(&(self.number..=self.number));
    }
}

/// Submits writes of these bytes to `fd`, at the start of the file, one by one.
fn submit_writes(instance: &Instance, fd: i32, parts: &'static [&'static [u8]]) {
    for &part in parts {
        let entry = Entry { sqe: Sqe::write(fd, part, 0), data: 0, notify: -1 };
        // SAFETY: the buffers are static.
        assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
    }
}

/// Waits for `count` completions, for at most `timeout`. Reaps, and returns the number.
fn wait_and_reap(instance: &Instance, count: u32, timeout: Option<Duration>) -> u32 {
    without_taker(|taker| instance.wait(count, count, timeout, None, taker));
    instance.reap(count, |cqe| assert!(cqe.res > 0, "{}", cqe.res))
}

#[test]
fn an_append_that_was_not_known_as_one_waits_for_a_holder_that_has_lost_the_baton() {
    let instance = Instance::new(&Builder::default().entries(8)).unwrap();
    instance.leave_alone();
    let (reused, plain) = (Reused::new(903, true), tempfile::NamedTempFile::new().unwrap());
    // The watchdog does this before it takes the baton away.
    let lane = &instance.lanes().inline;
    lane.losers.fetch_add(1, Ordering::SeqCst);
    submit_writes(&instance, reused.number, &[b"one ", b"two ", b"three "]);
    let fd = plain.as_file().as_raw_fd();
    Facts::forget(&(fd..=fd));
    submit_writes(&instance, fd, &[b"not held up"]);
    submit_writes(&instance, reused.number, &[b"four "]);
    assert_eq!(wait_and_reap(&instance, 1, None), 1);
    assert_eq!(std::fs::read(plain.path()).unwrap(), b"not held up");
    assert_eq!(wait_and_reap(&instance, 1, Some(Duration::ZERO)), 0);
    assert_eq!(reused.content(), b"", "the holder may be at an earlier one");
    lane.one_loser_less(instance.board(), true);
    assert_eq!(wait_and_reap(&instance, 4, None), 4);
    assert_eq!(reused.content(), b"one two three four ");
    instance.close();
}

#[test]
fn an_append_that_a_thread_with_a_deadline_leaves_to_others_keeps_its_order() {
    let instance = Instance::new(&Builder::default().entries(8)).unwrap();
    instance.leave_alone();
    let reused = Reused::new(904, false);
    submit_writes(&instance, reused.number, &[b"one ", b"two ", b"three "]);
    assert_eq!(wait_and_reap(&instance, 3, Some(Duration::ZERO)), 0);
    submit_writes(&instance, reused.number, &[b"four "]);
    assert_eq!(wait_and_reap(&instance, 4, None), 4);
    assert_eq!(reused.content(), b"one two three four ");
    instance.close();
}

#[test]
fn a_worker_beside_the_program_leaves_for_requests_that_may_wait_without_end() {
    let instance = Instance::new(&Builder::default().entries(8)).unwrap();
    instance.leave_alone();
    let [log, plain] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    let append = std::fs::File::options().append(true).open(log.path()).unwrap();
    let (append, fd) = (append.as_raw_fd(), plain.as_file().as_raw_fd());
    let flags = libc::O_WRONLY | libc::O_APPEND;
    Facts::forget(&(append..=append));
    let local = Some(false);
    Facts::note(append, &Said { flags, seekable: true, device: false, socket: false, local });
    Facts::forget(&(fd..=fd));
    submit_writes(&instance, append, &[b"one "]);
    submit_writes(&instance, fd, &[b"later"]);
    let lane = &instance.lanes().inline;
    assert_eq!(lane.hanging.load(Ordering::SeqCst), 1, "the server may hold the append up");
    let turn = lane.take_baton().unwrap();
    lane.hold_beside(instance.board(), instance.router(), turn, &mut |_, _| false);
    assert!(!lane.queue.is_empty(), "the worker has stayed");
    assert!(lane.take_baton().is_some_and(|turn| lane.baton.leave(turn)), "it has the baton");
    assert_eq!(wait_and_reap(&instance, 2, None), 2);
    assert_eq!(std::fs::read(log.path()).unwrap(), b"one ");
    instance.close();
}
