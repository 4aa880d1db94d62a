//! A context counts up an eventfd for its completions. Requests are cancelled by descriptor.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _};

use super::{BLOCK, push_reads};
use crate::common::{
    LONG, bounded, by_user_data, context, file_with, pattern, push, reap_all, submit_all, wait_for,
};
use uringlet::Sqe;

fn eventfd() -> File {
    // SAFETY: makes a descriptor, which is nobody else's.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    }
}

#[test]
fn an_eventfd_tells_of_every_completion() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let eventfd = eventfd();
    let mut context = context(8);
    context.set_eventfd(Some(eventfd.as_fd())).unwrap();
    let mut buffers = vec![[0; BLOCK]; 8];
    for _ in 0..50 {
        push_reads(&mut context, &file, &mut buffers);
        submit_all(&mut context);
        let mut reaped = 0;
        while reaped < 8 {
            let mut poll =
                libc::pollfd { fd: eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            assert_eq!(unsafe { libc::poll(&raw mut poll, 1, -1) }, 1);
            (&eventfd).read_exact(&mut [0; 8]).unwrap();
            reaped += reap_all(&mut context).len();
        }
    }
}

#[test]
fn an_eventfd_that_was_taken_back_is_not_told() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let eventfd = eventfd();
    let mut context = context(8);
    context.set_eventfd(Some(eventfd.as_fd())).unwrap();
    context.set_eventfd(None).unwrap();
    let mut buffers = vec![[0; BLOCK]; 8];
    push_reads(&mut context, &file, &mut buffers);
    submit_all(&mut context);
    wait_for(&mut context, 8);
    drop(context);
    let left = (&eventfd).read(&mut [0; 8]).unwrap_err();
    assert_eq!(left.kind(), std::io::ErrorKind::WouldBlock, "told");
}

/// The context uses a duplicate of the descriptor. It does not write to the number that the program
/// has closed.
#[test]
fn an_eventfd_that_was_closed_is_told_all_the_same() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let eventfd = eventfd();
    let copy = eventfd.try_clone().unwrap();
    let mut context = context(8);
    context.set_eventfd(Some(eventfd.as_fd())).unwrap();
    let mut buffers = vec![[0; BLOCK]; 8];
    push_reads(&mut context, &file, &mut buffers);
    drop(eventfd);
    // Entries keep the eventfd that was set when they were pushed.
    context.set_eventfd(None).unwrap();
    submit_all(&mut context);
    wait_for(&mut context, 8);
    // A completion is visible before its eventfd is counted up.
    let mut told = 0;
    while told < 8 {
        let mut poll = libc::pollfd { fd: copy.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, -1) }, 1);
        let mut count = [0; 8];
        (&copy).read_exact(&mut count).unwrap();
        told += u64::from_ne_bytes(count);
    }
    assert_eq!(told, 8);
}

#[test]
fn what_waits_on_a_descriptor_is_cancelled_by_it() {
    let _bound = bounded(2 * LONG);
    let errno = |result: std::io::Result<usize>| result.map_err(|e| e.raw_os_error().unwrap());
    let (reader, _writer) = std::io::pipe().unwrap();
    let (other, mut other_writer) = std::io::pipe().unwrap();
    let mut context = context(4);
    let canceller = context.canceller();
    assert_eq!(errno(canceller.cancel_fd(&reader)), Err(libc::ENOENT));
    for (at, fd) in [(0, &reader), (1, &other), (2, &reader)] {
        push(&mut context, Sqe::poll_add(fd.as_raw_fd(), libc::POLLIN).user_data(at));
    }
    submit_all(&mut context);
    assert_eq!(errno(canceller.cancel_fd(&reader)), Ok(2));
    wait_for(&mut context, 2);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results, [(0, -libc::ECANCELED), (2, -libc::ECANCELED)].into());
    std::io::Write::write_all(&mut other_writer, b"x").unwrap();
    wait_for(&mut context, 1);
    assert_eq!(by_user_data(&reap_all(&mut context)), [(1, i32::from(libc::POLLIN))].into());
}
