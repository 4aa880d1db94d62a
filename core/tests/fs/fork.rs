//! In the child of a fork(2), operations on the parent's files fail, unless they have ended before
//! the fork. Nothing hangs.
#![allow(unsafe_code, clippy::single_range_in_vec_init)]

use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use uringlet::fs::{BufResult, Coalesce, File};

use crate::{file_of, pipe};

/// Runs `child` in a child process, and returns its exit status. A signal ends the child process
/// after 30 seconds at the latest.
pub(crate) fn in_child(child: impl FnOnce() -> Option<i32>) -> i32 {
    // SAFETY: the child makes only calls that glibc allows after a fork, and does not unwind.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: no memory is passed.
        unsafe { libc::alarm(30) };
        let step = child().unwrap_or(0);
        // SAFETY: ends the process.
        unsafe { libc::_exit(step) };
    }
    let mut status = 0;
    // SAFETY: a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child hangs, or has crashed: {status:x}");
    libc::WEXITSTATUS(status)
}

pub(crate) fn is_invalid<T, B>(output: &BufResult<T, B>) -> bool {
    output.0.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

#[test]
fn in_a_child_operations_fail_with_their_buffers_and_nothing_hangs() {
    let (named, data) = file_of(10_000);
    let (reader, mut writer) = pipe();
    let (file, stream) = (File::open(named.path()).wait().unwrap(), File::from(reader));
    let mut context = Context::from_waker(Waker::noop());
    let mut read = || {
        let mut read = stream.read_at(vec![3u8; 4], 0);
        assert!(Pin::new(&mut read).poll(&mut context).is_pending());
        read
    };
    let (polled, waited, dropped, cancelled) = (read(), read(), read(), read());
    let mut ended = file.read_at(vec![0u8; 10], 0).forced_async().submit();
    let ended_output = loop {
        if let Poll::Ready(output) =
            Pin::new(&mut ended).poll(&mut Context::from_waker(Waker::noop()))
        {
            break output;
        }
        std::thread::yield_now();
    };
    assert_eq!(ended_output.unwrap().1, data[..10]);
    let lazy = file.read_at(vec![0u8; 10], 0);
    let mut ranges = stream.read_ranges(&[0..4], Coalesce::default());
    assert!(Pin::new(&mut ranges).poll(&mut Context::from_waker(Waker::noop())).is_pending());

    let mut ours = Some((polled, waited, dropped, cancelled, lazy, ranges));
    let path = named.path().to_owned();
    let taken = &mut ours;
    let status = in_child(|| {
        let (mut polled, waited, dropped, cancelled, lazy, ranges) = taken.take()?;
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(output) = Pin::new(&mut polled).poll(&mut context) else { return Some(1) };
        if !is_invalid(&output) || output.1 != [3; 4] {
            return Some(2);
        }
        if !is_invalid(&waited.wait()) {
            return Some(3);
        }
        drop(dropped);
        if !is_invalid(&cancelled.cancel().wait()) {
            return Some(4);
        }
        if !is_invalid(&lazy.wait()) || !is_invalid(&file.write_at([1], 0).wait()) {
            return Some(5);
        }
        // Operations on files that the child opens succeed.
        let Ok(own) = File::open(&path).wait() else { return Some(6) };
        let BufResult(result, buffer) = own.read_at(vec![0u8; 100], 0).forced_async().wait();
        if result.is_err() || buffer != data[..100] {
            return Some(7);
        }
        let written = pollster::block_on(uringlet::fs::read(&path));
        if written.is_err() || written.ok()? != data {
            return Some(8);
        }
        for ranges in [ranges, file.read_ranges(&[0..4], Coalesce::default())] {
            let error = pollster::block_on(ranges).err();
            if error.and_then(|error| error.raw_os_error()) != Some(libc::EINVAL) {
                return Some(9);
            }
        }
        drop((own, file, stream));
        None
    });
    assert_eq!(status, 0, "the step that failed");

    // The parent's operations are unchanged.
    let (polled, waited, dropped, cancelled, lazy, ranges) = ours.take().unwrap();
    writer.write_all(b"abcdefghijklmnopqrst").unwrap();
    for read in [polled, waited, dropped, cancelled] {
        assert_eq!(read.wait().unwrap().0, 4);
    }
    assert_eq!(pollster::block_on(ranges).unwrap()[0][..], *b"qrst");
    assert_eq!(lazy.wait().unwrap().1, data[..10]);
}

#[test]
fn children_are_made_while_requests_come_and_go() {
    let (named, data) = file_of(100_000);
    let file = File::open(named.path()).wait().unwrap();
    let stops = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stops.load(std::sync::atomic::Ordering::Relaxed) {
                    let read = file.read_exact_at(vec![0u8; 70_000], 1000).forced_async();
                    let ((), buffer) = pollster::block_on(read).unwrap();
                    assert!(buffer == data[1000..71_000]);
                }
            });
        }
        for _ in 0..50 {
            let reads: Vec<_> =
                (0..20).map(|_| file.read_at(vec![0u8; 5000], 0).forced_async().submit()).collect();
            let mut ours = Some(reads);
            let taken = &mut ours;
            let status = in_child(|| {
                for (at, read) in taken.take()?.into_iter().enumerate() {
                    if at % 2 == 0 {
                        drop(read);
                        continue;
                    }
                    // A read that had ended before is unchanged.
                    let output = read.wait();
                    if !is_invalid(&output) && output.0.is_err() {
                        return Some(1);
                    }
                }
                None
            });
            assert_eq!(status, 0);
            for read in ours.take().unwrap() {
                assert_eq!(read.wait().unwrap().1, data[..5000]);
            }
        }
        stops.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
