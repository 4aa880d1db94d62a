//! The library's threads: they take no signals, retire when idle, and use no CPU until then.

use std::io::Write as _;

use super::{PIPES, Pipes, busy, errno};
use crate::common::{
    by_user_data, context, excepted, isolated, none_wakes, our_threads, reap_all, wait_for,
    wait_until,
};

#[test]
fn our_threads_block_all_signals() {
    isolated(|| {
        let mut context = context(256);
        let mut pipes = Pipes::new(1);
        busy(&mut context, &mut pipes);
        // A thread sets its name once it has a CPU.
        let is_there =
            |name: &str| our_threads().iter().any(|thread| thread.name.starts_with(name));
        assert!(wait_until(|| is_there("uringlet-work") && is_there("uringlet-poll")));
        let threads = our_threads();
        // The threads block all signals but SIGKILL, SIGSTOP, the C library's own, and SIGSYS. A
        // filter sends SIGSYS to the thread that makes a call. If the thread blocks SIGSYS, the
        // process ends.
        let open: Vec<i32> = (32..libc::SIGRTMIN()).chain([libc::SIGSYS]).collect();
        let wanted = (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
        let wanted = wanted.filter(|signal| !open.contains(signal));
        let wanted = wanted.fold(0u64, |mask, signal| mask | 1 << (signal - 1));
        let librarys = open.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
        for thread in threads {
            // `None`: the thread has ended.
            let blocked = || {
                let status = thread.read("status").unwrap_or_default();
                let line = status.lines().find(|line| line.starts_with("SigBlk:"))?;
                Some(u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap())
            };
            let is_right = |blocked: u64| blocked & wanted == wanted && blocked & librarys == 0;
            // The C library blocks all signals in a new thread until the thread has begun.
            let right = wait_until(|| blocked().is_none_or(is_right));
            assert!(right, "{} blocks {:x?}", thread.name, blocked());
        }
        let mask = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(mask.contains("SigBlk:\t0000000000000000"), "the caller's mask is as it was");
    });
}

/// The user and group ids of a thread of this process; none for the kernel's own threads for
/// io_uring.
fn ids(task: &std::path::Path) -> Option<String> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let lines = status.lines().filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:"));
    (!status.starts_with("Name:\tiou-")).then(|| lines.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_change_of_the_user_reaches_all_threads() {
    // SAFETY: passes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return crate::common::skip("changing the user needs root");
    }
    isolated(|| {
        const NOBODY: u32 = 65534;
        // SAFETY: no handler is installed: the signal ends a process that hangs.
        unsafe { libc::alarm(60) };
        let mut context = context(256);
        let mut pipes = Pipes::new(1);
        busy(&mut context, &mut pipes);
        assert!(!our_threads().is_empty());
        // SAFETY: passes numbers. This process is the test's own.
        unsafe {
            assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        }
        let mut seen = Vec::new();
        // The C library does not change the ids of a thread that is about to end.
        let are_all_changed = wait_until(|| {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            seen = tasks.filter_map(|task| ids(&task.path())).collect();
            seen.iter().all(|line| line.matches("65534").count() == 8)
        });
        assert!(are_all_changed && seen.len() > 1, "{seen:?}");
        // Requests in flight continue, and new ones work.
        pipes.ends[0].1.write_all(b"later").unwrap();
        wait_for(&mut context, 1);
        assert_eq!(by_user_data(&reap_all(&mut context))[&PIPES], 5);
    });
}

#[test]
fn idle_threads_retire_and_come_back() {
    isolated(|| {
        let mut context = context(256);
        for round in 0..2 {
            let mut pipes = Pipes::new(1);
            busy(&mut context, &mut pipes);
            assert!(!our_threads().is_empty());
            assert_eq!(errno(context.cancel(PIPES)), 0);
            wait_for(&mut context, 1);
            assert_eq!(reap_all(&mut context).len(), 1);
            let gone = wait_until(|| our_threads().is_empty());
            assert!(gone, "round {round}: {:?}", our_threads());
        }
    });
}

#[test]
fn an_idle_context_uses_no_cpu() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        let mut context = context(256);
        // Between the watchdog's last tick and the workers' retirement no thread wakes. On a busy
        // machine, the test may miss this time. Then it makes the threads busy again.
        let rests = (0..20).any(|_| {
            let mut pipes = Pipes::new(1);
            busy(&mut context, &mut pipes);
            let mut rests = false;
            while !rests && !our_threads().is_empty() {
                rests = none_wakes("") && !our_threads().is_empty();
            }
            assert_eq!(errno(context.cancel(PIPES)), 0, "the read was waiting all the time");
            wait_for(&mut context, 1);
            reap_all(&mut context);
            rests
        });
        assert!(rests, "some thread wakes again and again");
    });
}
