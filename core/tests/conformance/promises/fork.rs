//! The child of a fork cannot use its parent's contexts, can make its own, and affects nothing of
//! the parent's.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;

use super::{BLOCK, PIPES, Pipes, busy, errno};
use crate::common::{
    by_user_data, context, excepted, file_with, isolated, pattern, push, reap_all, run, submit_all,
    wait_for,
};
use uringlet::{Context, Sqe};

/// The checks in the child of a fork. Returns the number of the first line that fails.
fn in_the_child(mut inherited: Context, file: &File) -> Result<(), u32> {
    let check = |is_so: bool, line: u32| if is_so { Ok(()) } else { Err(line) };
    let einval = Some(libc::EINVAL);
    let tasks = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    check(tasks() == 1, line!())?;
    let mut buf = [0; 4];
    let sqe = Sqe::read(file.as_raw_fd(), &mut buf[..], 0);
    // SAFETY: the buffer lives as long as both contexts.
    let _ = unsafe { inherited.push(sqe) };
    check(inherited.submit().is_err_and(|error| error.raw_os_error() == einval), line!())?;
    check(inherited.wait(1, None).is_err_and(|error| error.raw_os_error() == einval), line!())?;
    check(inherited.wait(0, None).is_err_and(|error| error.raw_os_error() == einval), line!())?;
    check(inherited.reap().is_none(), line!())?;
    check(errno(inherited.cancel(PIPES)) == libc::EINVAL, line!())?;
    check(errno(inherited.canceller().cancel(PIPES)) == libc::EINVAL, line!())?;
    check(tasks() == 1, line!())?;

    let mut own = context(8);
    let (mut reader, mut writer) = std::io::pipe().map_err(|_| line!())?;
    let mut from_pipe = [0; 4];
    push(&mut own, sqe.user_data(1));
    push(&mut own, Sqe::read(reader.as_raw_fd(), &mut from_pipe[..], 0).user_data(2));
    push(&mut own, Sqe::fsync(file.as_raw_fd()).user_data(3));
    submit_all(&mut own);
    wait_for(&mut own, 2);
    writer.write_all(b"pipe").map_err(|_| line!())?;
    wait_for(&mut own, 3);
    let results = by_user_data(&reap_all(&mut own));
    check(results == HashMap::from([(1, 4), (2, 4), (3, 0)]), line!())?;
    check(buf[..] == pattern(1, 4)[..] && &from_pipe == b"pipe", line!())?;
    check(inherited.submit().is_err_and(|error| error.raw_os_error() == einval), line!())?;
    check(inherited.destroy().is_empty(), line!())?;
    drop(writer);
    check(reader.read(&mut [0]).is_ok_and(|n| n == 0), line!())
}

#[test]
fn a_child_of_a_fork_gets_einval_and_can_make_its_own() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        let mut context = context(256);
        let mut pipes = Pipes::new(1);
        // Poller, workers and watchdog exist. A read of a pipe is in flight, and a nop is complete
        // and not reaped.
        busy(&mut context, &mut pipes);
        push(&mut context, Sqe::nop().user_data(1));
        submit_all(&mut context);
        wait_for(&mut context, 1);
        let file = file_with(&pattern(1, BLOCK));
        // SAFETY: the child does only what the library promises to a child of a fork, and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends a child that hangs; the child does not inherit the parent's alarm.
            unsafe { libc::alarm(60) };
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                in_the_child(context, &file)
            }));
            let line = match checked {
                Ok(Ok(())) => 0,
                Ok(Err(line)) => line,
                Err(_) => 1,
            };
            eprintln!("the child ends at line {line}");
            // SAFETY: no return into the test harness, which belongs to the parent.
            unsafe { libc::_exit(i32::from(line != 0)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was forked above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's exit status; it says above which line");
        // The parent's context is unchanged.
        assert_eq!(reap_all(&mut context).len(), 1);
        pipes.ends[0].1.write_all(b"for the parent").unwrap();
        wait_for(&mut context, 1);
        assert_eq!(by_user_data(&reap_all(&mut context))[&PIPES], 14);
        let mut buf = [0; BLOCK];
        assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buf[..], 0)), BLOCK as i32);
        assert_eq!(context.destroy(), []);
    });
}
