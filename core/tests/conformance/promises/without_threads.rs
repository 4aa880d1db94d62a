//! If no thread can be started, the program's threads execute what they wait for.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use super::{BLOCK, push_reads};
use crate::common::{
    LONG, by_user_data, context, file_with, finish, isolated, our_threads, pattern, push, reap_all,
    skip, submit_all,
};
use uringlet::Sqe;

/// Makes it impossible to start threads in this (helper) process.
pub(super) fn refuse_threads() -> bool {
    // SAFETY: ids and limits of this helper process, which ends after the test.
    unsafe {
        if libc::getuid() == 0 {
            // The limit does not apply to root.
            let nobody = 65_534;
            if libc::setresgid(nobody, nobody, nobody) != 0
                || libc::setresuid(nobody, nobody, nobody) != 0
            {
                return false;
            }
        }
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        libc::setrlimit(libc::RLIMIT_NPROC, &limit);
    }
    std::thread::Builder::new().spawn(|| ()).is_err()
}

#[test]
fn where_no_thread_can_be_made_the_waiter_executes() {
    isolated(|| {
        let content = pattern(1, 64 * BLOCK);
        let file = file_with(&content);
        if !refuse_threads() {
            return skip("no way to have threads refused here");
        }
        let mut context = context(256);
        for _ in 0..5 {
            let mut buffers = vec![[0u8; BLOCK]; 100];
            push_reads(&mut context, &file, &mut buffers);
            for at in 0..64 {
                let offset = at * BLOCK;
                let part = &content[offset..][..BLOCK];
                let sqe = Sqe::write(file.as_raw_fd(), part, offset as u64);
                push(&mut context, sqe.user_data(1000 + at as u64));
            }
            let results = finish(&mut context);
            assert!(results.values().all(|&result| result == BLOCK as i32));
            for (at, buffer) in buffers.iter().enumerate() {
                assert!(buffer[..] == content[at % 64 * BLOCK..][..BLOCK]);
            }
        }
        assert_eq!(our_threads().len(), 0);
    });
}

/// Makes requests of each kind that an engine thread usually executes, in a process without such
/// threads.
fn without_threads(timeout: Option<Duration>) {
    let file = file_with(&pattern(1, 64 * BLOCK));
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"data").unwrap();
    if !refuse_threads() {
        return skip("no way to have threads refused here");
    }
    let mut context = context(16);
    let mut buf = [0; 2];
    push(&mut context, Sqe::fsync(file.as_raw_fd()).user_data(1));
    push(&mut context, Sqe::ftruncate(file.as_raw_fd(), 100).user_data(2));
    push(&mut context, Sqe::read(reader.as_raw_fd(), &mut buf[..], 0).user_data(3));
    push(&mut context, Sqe::poll_add(reader.as_raw_fd(), libc::POLLIN).user_data(4));
    submit_all(&mut context);
    assert_eq!(context.wait(4, timeout).unwrap(), 4);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results, HashMap::from([(1, 0), (2, 0), (3, 2), (4, i32::from(libc::POLLIN))]));
}

#[test]
fn without_threads_a_waiter_executes_what_is_for_workers() {
    isolated(|| without_threads(None));
}

#[test]
fn without_threads_a_waiter_with_a_deadline_executes_what_is_for_workers() {
    isolated(|| {
        without_threads(Some(LONG));
    });
}
