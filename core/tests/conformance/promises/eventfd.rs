//! A context counts up an eventfd for its completions. Requests are cancelled by descriptor.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;

use super::{BLOCK, push_reads};
use crate::common::{
    LONG, bounded, builder, by_user_data, context, file_with, pattern, push, reap_all, submit_all,
    wait_for,
};
use uringlet::affinity::Affinity;
use uringlet::{Builder, Cqe, Sqe};

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

/// How a loop learns of completions, and takes them.
#[derive(Clone, Copy)]
enum Loop {
    /// The loop reads the eventfd, and reaps until nothing is left.
    Reads,
    /// The loop does not read the eventfd, because epoll(7) reports edges (`EPOLLET`). It reaps
    /// until nothing is left.
    Edges,
    /// The loop reads the eventfd, and reaps once. The array has room for more completions than
    /// there can be.
    ReapsOnce,
}

/// An event loop like those of programs. It sleeps on the context's own eventfd, with requests of
/// several kinds in flight, each submitted by a call of its own. If the loop was not woken for a
/// completion, it would sleep without end.
fn runs(how: Loop, builder: Builder) {
    const DEPTH: u64 = 12;
    const ROUNDS: u64 = 4_000;
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    // Direct requests use this file: direct and buffered writes to one page may fail with EIO.
    let other = file_with(&pattern(2, 64 * BLOCK));
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let direct = options.open(format!("/proc/self/fd/{}", other.as_raw_fd()));
    let direct = direct.as_ref().unwrap_or(&other);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut context = builder.entries(DEPTH as u32).build().unwrap();
    let bell = context.eventfd().unwrap().try_clone_to_owned().map(File::from).unwrap();
    // SAFETY: makes a descriptor, which is nobody else's.
    let epoll = unsafe { File::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let edges = if matches!(how, Loop::Edges) { libc::EPOLLET } else { 0 };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | edges) as u32, u64: 0 };
    let (add, fd) = (libc::EPOLL_CTL_ADD, epoll.as_raw_fd());
    // SAFETY: one event.
    assert_eq!(unsafe { libc::epoll_ctl(fd, add, bell.as_raw_fd(), &raw mut event) }, 0);
    let mut buffers: Vec<Aligned> = (0..DEPTH).map(|_| Aligned([0; BLOCK])).collect();
    let (mut begun, mut ended) = (0, 0);
    let mut free: Vec<u64> = (0..DEPTH).collect();
    while ended < ROUNDS {
        while begun < ROUNDS
            && let Some(at) = free.pop()
        {
            let buffer = &mut buffers[at as usize].0[..];
            let offset = begun * 7 % 64 * BLOCK as u64;
            let sqe = match begun % 11 {
                0 | 6 => {
                    writer.write_all(&[0; BLOCK]).unwrap();
                    Sqe::read(reader.as_raw_fd(), buffer, 0)
                }
                1 => Sqe::write(file.as_raw_fd(), buffer, offset),
                2 => Sqe::write(direct.as_raw_fd(), buffer, offset),
                3 | 4 => Sqe::read(file.as_raw_fd(), buffer, offset),
                5 if begun % 3 == 0 => Sqe::fsync(file.as_raw_fd()),
                _ => Sqe::read(direct.as_raw_fd(), buffer, offset),
            };
            push(&mut context, sqe.user_data(at));
            submit_all(&mut context);
            begun += 1;
        }
        // SAFETY: room for one event.
        if unsafe { libc::epoll_wait(fd, &raw mut event, 1, -1) } != 1 {
            // The kernel's work for an io_uring interrupts the call.
            assert_eq!(std::io::Error::last_os_error().kind(), ErrorKind::Interrupted);
            continue;
        }
        if edges == 0 {
            let _ = (&bell).read(&mut [0; 8]);
        }
        let mut cqes = [Cqe::default(); 2 * DEPTH as usize];
        let reaped = match how {
            Loop::ReapsOnce => {
                let reaped = context.reap_into(&mut cqes);
                cqes[..reaped].to_vec()
            }
            _ => reap_all(&mut context),
        };
        for cqe in reaped {
            assert!(cqe.res == BLOCK as i32 || cqe.res == 0, "{cqe:?}");
            free.push(cqe.user_data);
            ended += 1;
        }
    }
    assert_eq!((begun, free.len() as u64), (ROUNDS, DEPTH));
}

#[repr(C, align(4096))]
struct Aligned([u8; BLOCK]);

#[test]
fn a_loop_that_reads_the_contexts_eventfd_is_woken_for_every_completion() {
    runs(Loop::Reads, builder());
    runs(Loop::ReapsOnce, builder());
}

#[test]
fn a_loop_that_is_told_of_edges_is_woken_for_every_completion() {
    runs(Loop::Edges, builder());
}

/// The kernel has less room than there are requests, so some are handed over later.
#[test]
fn a_loop_with_more_requests_than_the_kernel_takes_is_woken_for_every_completion() {
    runs(Loop::Reads, builder().kernel_room(2));
}

/// Other threads collect what a placed context has completed.
#[test]
fn a_loop_of_a_placed_context_is_woken_for_every_completion() {
    for how in [Loop::Reads, Loop::ReapsOnce, Loop::Edges] {
        runs(how, builder().queue_affinity(Affinity::Application));
        runs(how, builder().completion_affinity(Affinity::Application));
    }
}
