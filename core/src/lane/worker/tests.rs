//! Tests of `lane/worker.rs`.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, RawFd};

use crate::board::Executor;
use crate::board::without_taker;
use crate::config::Builder;
use crate::instance::Instance;
use crate::instance::submit::Entry;
use crate::router::tuning::REFUSE_TICKS;
use crate::sqe::Sqe;
use crate::sys;
use crate::threads::tenant::{Tenant as _, Watched};

#[test]
fn what_waits_for_a_worker_has_its_file_after_the_program_has_closed_it() {
    let instance = Instance::new(&Builder::default().entries(4)).unwrap();
    instance.leave_alone();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "text").unwrap();
    let opened = std::fs::File::open(folder.path()).unwrap();
    // `submit` copies the entry and the path. Afterwards the request needs only the folder's
    // descriptor, which is closed below.
    let sqe = Sqe::openat(opened.as_raw_fd(), c"file", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    // SAFETY: the path is static.
    let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
    assert_eq!(submitted.accepted, 1);
    instance.before_close(opened.as_raw_fd());
    drop(opened);
    let (board, lanes) = (instance.board(), instance.lanes());
    let taken = lanes.worker.take(board, |request| {
        without_taker(|taker| lanes.execute(board, request, Executor::Pool, taker));
    });
    assert!(taken, "somebody has executed it");
    let mut result = None;
    instance.reap(1, |cqe| result = Some(cqe.res));
    let file: RawFd = result.unwrap();
    assert!(file >= 0, "{file}");
    sys::close(file);
    assert!(lanes.worker.kept.lock().unwrap().is_empty(), "the other descriptor is closed");
    instance.close();
}

#[test]
fn what_no_thread_can_be_had_for_is_refused_and_not_left_lying() {
    let instance = Instance::new(&Builder::default().entries(4)).unwrap();
    instance.have_no_threads();
    // SAFETY: the path is static.
    let submit = || unsafe {
        let sqe = Sqe::openat(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_CLOEXEC, 0);
        instance.submit(&[Entry { sqe, data: 0, notify: -1 }])
    };
    (0..3).for_each(|_| assert_eq!(submit().accepted, 1));
    let mut watched = Watched { words: instance.words(), quiet: 0, starved: 0, refused: 0 };
    for _ in 1..REFUSE_TICKS {
        instance.look(&mut watched);
    }
    assert_eq!(instance.available(), 0, "not at once");
    instance.look(&mut watched);
    let mut results = Vec::new();
    instance.reap(4, |cqe| results.push(cqe.res));
    assert_eq!(results, [-libc::EAGAIN; 3]);
    instance.close();
}
