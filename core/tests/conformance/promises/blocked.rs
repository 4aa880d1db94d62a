//! Requests that block hold up nothing else: reads of empty pipes, and opens of FIFOs, of which
//! there are more than workers.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use super::{BLOCK, PIPES, Pipes, errno, files_among_pipes, push_reads};
use crate::common::{
    LONG, bounded, by_user_data, c_path, close_fd, context, file_with, isolated, make_fifo,
    none_wakes, open_both_ends, our_threads, pattern, push, reap_all, sees_system_calls, skip,
    submit_all, threads_opening, wait_for, wait_until,
};
use uringlet::{Context, Sqe};

/// More than the maximum number of workers (64). Workers that wait in an open are not counted in
/// it.
const OPENS: usize = 200;

#[test]
fn blocked_pipe_reads_hold_up_no_file_read_and_can_be_cancelled() {
    let _bound = bounded(4 * LONG);
    let mut pipes = Pipes::new(40);
    let mut context = files_among_pipes(&mut pipes);
    for at in 0..40 {
        assert_eq!(errno(context.cancel(PIPES + at)), 0, "cancel {at}");
        assert_eq!(errno(context.cancel(PIPES + at)), libc::ENOENT, "once is enough");
    }
    wait_for(&mut context, 40);
    let results = by_user_data(&reap_all(&mut context));
    assert!((0..40).all(|at| results[&(PIPES + at)] == -libc::ECANCELED));
    for (reader, writer) in &mut pipes.ends {
        writer.write_all(b"untouched").unwrap();
        let mut buf = [0; 9];
        reader.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"untouched", "a cancelled read takes nothing");
    }
    assert_eq!(context.destroy(), []);
}

#[test]
fn blocked_pipe_reads_complete_when_data_arrives() {
    let _bound = bounded(4 * LONG);
    let mut pipes = Pipes::new(40);
    let mut context = files_among_pipes(&mut pipes);
    for (at, (_, writer)) in pipes.ends.iter_mut().enumerate() {
        writer.write_all(&[at as u8; 10]).unwrap();
    }
    wait_for(&mut context, 40);
    let results = by_user_data(&reap_all(&mut context));
    assert!((0..40).all(|at| results[&(PIPES + at)] == 10));
    for (at, buffer) in pipes.buffers.iter().enumerate() {
        assert_eq!(buffer[..10], [at as u8; 10]);
    }
}

#[test]
fn blocked_opens_stop_nothing_else_and_are_all_released() {
    isolated(|| {
        if !sees_system_calls() {
            return skip("/proc/self/syscall cannot be read: nobody sees the requests start");
        }
        let dir = tempfile::tempdir().unwrap();
        let fifos: Vec<PathBuf> = (0..OPENS).map(|at| dir.path().join(format!("{at}"))).collect();
        let mut context = context(1024);
        let paths: Vec<CString> = fifos.iter().map(|fifo| c_path(fifo)).collect();
        for (at, (fifo, path)) in fifos.iter().zip(&paths).enumerate() {
            make_fifo(fifo);
            let open = Sqe::openat(libc::AT_FDCWD, path, libc::O_RDONLY, 0);
            push(&mut context, open.user_data(PIPES + at as u64));
        }
        submit_all(&mut context);
        assert!(wait_until(|| threads_opening() == OPENS), "{} started", threads_opening());
        let file = file_with(&pattern(1, 64 * BLOCK));
        let mut buffers = vec![[0u8; BLOCK]; 500];
        push_reads(&mut context, &file, &mut buffers);
        submit_all(&mut context);
        wait_for(&mut context, 500);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(results.len(), 500);
        assert!((0..500).all(|at| results[&at] == BLOCK as i32));
        // These requests need workers of both pools: for work that ends by itself, and for work
        // that may wait without end. They run one at a time, then all together.
        let path = c_path(dir.path());
        let mut status = std::mem::MaybeUninit::<libc::statx>::uninit();
        let others = [
            Sqe::openat(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_DIRECTORY, 0),
            Sqe::statx(libc::AT_FDCWD, &path, 0, libc::STATX_SIZE, status.as_mut_ptr()),
            Sqe::fsync(file.as_raw_fd()),
            Sqe::ftruncate(file.as_raw_fd(), 1),
        ];
        for together in [1, others.len()] {
            for (at, some) in others.chunks(together).enumerate() {
                for (which, sqe) in some.iter().enumerate() {
                    push(&mut context, sqe.user_data((at * together + which) as u64));
                }
                submit_all(&mut context);
                // The wait has a deadline, so this thread executes none of these requests.
                let missing = some.len();
                assert_eq!(context.wait(missing, Some(LONG)).unwrap(), missing, "held up: {at}");
                reap_all(&mut context).iter().for_each(|cqe| match cqe.user_data {
                    0 => close_fd(cqe.res),
                    other => assert_eq!(cqe.res, 0, "{other}"),
                });
            }
        }
        assert_eq!(threads_opening(), OPENS);
        assert_eq!(errno(context.cancel(PIPES)), libc::EALREADY);
        let _both: Vec<File> = fifos.iter().map(|fifo| open_both_ends(fifo)).collect();
        wait_for(&mut context, OPENS);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(results.len(), OPENS);
        results.into_values().for_each(close_fd);
        assert_eq!(context.destroy(), []);
    });
}

#[test]
fn contexts_whose_requests_never_end_leave_workers_for_others() {
    isolated(|| {
        let dir = tempfile::tempdir().unwrap();
        let fifos: Vec<PathBuf> = (0..200).map(|at| dir.path().join(format!("{at}"))).collect();
        fifos.iter().for_each(|fifo| make_fifo(fifo));
        let paths: Vec<CString> = fifos.iter().map(|fifo| c_path(fifo)).collect();
        let mut flooded = [context(128), context(128)];
        for (at, path) in paths.iter().enumerate() {
            let open = Sqe::openat(libc::AT_FDCWD, path, libc::O_RDONLY, 0);
            push(&mut flooded[at % 2], open.user_data(PIPES + at as u64));
        }
        flooded.iter_mut().for_each(submit_all);
        // With a deadline a waiter executes nothing that may sleep: each fsync needs a worker.
        let file = file_with(&pattern(1, BLOCK));
        let mut quiet: Vec<Context> = (0..20).map(|_| context(4)).collect();
        for _ in 0..5 {
            for one in &mut quiet {
                push(one, Sqe::fsync(file.as_raw_fd()).user_data(1));
                submit_all(one);
            }
            for one in &mut quiet {
                assert_eq!(one.wait(1, Some(LONG)).unwrap(), 1, "held up by the others");
                assert_eq!(one.reap().map(|cqe| cqe.res), Some(0));
            }
        }
        let workers = our_threads().into_iter().filter(|one| one.name == "uringlet-worker");
        assert!(workers.count() <= 64);
        let _both: Vec<File> = fifos.iter().map(|fifo| open_both_ends(fifo)).collect();
        for one in &mut flooded {
            wait_for(one, 100);
            let results = by_user_data(&reap_all(one));
            assert_eq!(results.len(), 100);
            results.into_values().for_each(|fd| {
                assert!(fd >= 0, "opened: {fd}");
                close_fd(fd);
            });
        }
    });
}

#[test]
fn a_waiter_behind_blocked_opens_uses_no_cpu() {
    isolated(|| {
        if !sees_system_calls() {
            return skip("/proc/self/syscall cannot be read: nobody sees the requests start");
        }
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        make_fifo(&fifo);
        let path = c_path(&fifo);
        let mut context = context(128);
        for at in 0..80 {
            let open = Sqe::openat(libc::AT_FDCWD, &path, libc::O_RDONLY, 0);
            push(&mut context, open.user_data(at));
        }
        submit_all(&mut context);
        assert!(wait_until(|| threads_opening() == 80), "{} started", threads_opening());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| context.wait(80, None).unwrap());
            // The watchdog ticks while requests wait for a worker.
            let rests = wait_until(|| none_wakes("uringlet-watch"));
            let _both = open_both_ends(&fifo);
            assert_eq!(waiter.join().unwrap(), 80);
            assert!(rests, "some thread wakes again and again");
        });
        reap_all(&mut context).iter().for_each(|cqe| close_fd(cqe.res));
    });
}
