//! Destroying a context completes requests in flight. It waits for requests that have started, and
//! for nothing else.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{BLOCK, PIPES, Pipes, errno, files_among_pipes, push_reads};
use crate::common::{
    LONG, bounded, by_user_data, c_path, close_fd, context, file_with, isolated, make_fifo,
    open_both_ends, pattern, push, sees_system_calls, skip, submit_all, threads_opening, wait_for,
    wait_until,
};
use uringlet::Sqe;

#[test]
fn destroy_does_not_hang_on_blocked_pipe_reads() {
    let _bound = bounded(4 * LONG);
    let mut pipes = Pipes::new(40);
    let context = files_among_pipes(&mut pipes);
    let results = by_user_data(&context.destroy());
    assert_eq!(results.len(), 40);
    assert!((0..40).all(|at| results[&(PIPES + at)] == -libc::ECANCELED));
    let mut pipes = Pipes::new(40);
    drop(files_among_pipes(&mut pipes));
}

#[test]
fn a_started_request_answers_ealready_and_destroy_waits_for_it() {
    isolated(|| {
        if !sees_system_calls() {
            return skip("/proc/self/syscall cannot be read: nobody sees the request start");
        }
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        make_fifo(&fifo);
        let mut context = context(8);
        let path = c_path(&fifo);
        let open = Sqe::openat(libc::AT_FDCWD, &path, libc::O_RDONLY, 0);
        push(&mut context, open.user_data(1));
        push(&mut context, Sqe::nop().user_data(2));
        submit_all(&mut context);
        assert!(wait_until(|| threads_opening() == 1), "the open is started");
        assert_eq!(errno(context.cancel(1)), libc::EALREADY);
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let destroyer = scope.spawn(|| {
                let cqes = context.destroy();
                assert!(released.load(Ordering::SeqCst), "destroy waits for what is started");
                by_user_data(&cqes)
            });
            assert!(!destroyer.is_finished());
            released.store(true, Ordering::SeqCst);
            let _both = open_both_ends(&fifo);
            let results = destroyer.join().unwrap();
            assert_eq!(results.len(), 2);
            assert!([0, -libc::ECANCELED].contains(&results[&2]));
            close_fd(results[&1]);
        });
    });
}

#[test]
fn destroy_completes_what_is_in_flight() {
    let _bound = bounded(4 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    for round in 0..200 {
        let mut context = context(256);
        let mut buffers = vec![[0u8; BLOCK]; 200];
        push_reads(&mut context, &file, &mut buffers);
        push(&mut context, Sqe::fsync(file.as_raw_fd()).user_data(200));
        submit_all(&mut context);
        let mut cqes = Vec::new();
        if round % 3 == 1 {
            wait_for(&mut context, 20);
            cqes.extend((0..10).filter_map(|_| context.reap()));
            assert_eq!(cqes.len(), 10);
        }
        push(&mut context, Sqe::nop().user_data(999));
        cqes.extend(context.destroy());
        let results = by_user_data(&cqes);
        assert_eq!(results.len(), 201, "what was only pushed is dropped");
        for (&user_data, &result) in &results {
            let done = if user_data == 200 { 0 } else { BLOCK as i32 };
            assert!([done, -libc::ECANCELED].contains(&result), "{user_data}: {result}");
        }
    }
}

#[test]
fn drop_waits_so_that_no_buffer_is_written_to_afterwards() {
    let _bound = bounded(4 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = vec![[0u8; BLOCK]; 64];
    // Linux AIO takes 30 ms to end a context, and far longer on a busy machine. So the number of
    // rounds depends on the time that they take.
    let (started, most, least) = (Instant::now(), 300, 20);
    let is_wanted = |&round: &u32| round < least || started.elapsed() < LONG;
    for _ in (0..most).take_while(is_wanted) {
        let mut context = context(64);
        push_reads(&mut context, &file, &mut buffers);
        submit_all(&mut context);
        drop(context);
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xee));
        for _ in 0..20 {
            std::thread::yield_now();
        }
        let buffers = std::hint::black_box(&buffers);
        assert!(buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xee)));
    }
}
