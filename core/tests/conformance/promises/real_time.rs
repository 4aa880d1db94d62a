//! Threads with a real-time policy: the work that they poll for gets a CPU.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{
    c_path, close_fd, context, isolated, make_fifo, open_both_ends, our_threads, push, reap_all,
    skip, submit_all, wait_for,
};
use uringlet::Sqe;

/// A few requests take less than this on one CPU. The time is short, because the test occupies a
/// CPU.
const DEADLINE: Duration = Duration::from_secs(5);

/// Confines the thread to one CPU, with SCHED_FIFO. False if that is refused, with a message.
fn becomes_real_time() -> bool {
    // SAFETY: a zeroed set is an empty one; the parameters live across the calls.
    unsafe {
        let cpu = libc::sched_getcpu();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        let on_one = libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0;
        let mut priority: libc::sched_param = std::mem::zeroed();
        priority.sched_priority = 1;
        if on_one && libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 {
            return true;
        }
    }
    skip("one CPU and a real-time policy need root");
    false
}

/// The policy, field 41 of proc_pid_stat(5). The state, field 3, is the first after the name.
fn policy(stat: &str) -> Option<i32> {
    stat.rsplit(')').next()?.split_whitespace().nth(41 - 3)?.parse().ok()
}

#[test]
fn a_real_time_thread_that_polls_gets_what_workers_do() {
    const OPENS: usize = 16;
    isolated(|| {
        if !becomes_real_time() {
            return;
        }
        let mut context = context(64);
        let path = c_path(Path::new("/dev/null"));
        for timeout in [None, Some(Duration::ZERO)] {
            for at in 0..OPENS {
                push(&mut context, Sqe::openat(-1, &path, libc::O_RDONLY, 0).user_data(at as u64));
            }
            submit_all(&mut context);
            let (begin, mut done) = (Instant::now(), 0);
            while done < OPENS && begin.elapsed() < DEADLINE {
                let least = if timeout.is_some() { OPENS - done } else { 0 };
                // A poll: waits for 0 completions, or for all with a timeout of 0. It is no error
                // if fewer have come.
                let _ = context.wait(least, timeout);
                for cqe in reap_all(&mut context) {
                    close_fd(cqe.res);
                    done += 1;
                }
            }
            assert_eq!(done, OPENS, "with the timeout {timeout:?}");
        }
        let policies: Vec<_> = our_threads()
            .iter()
            .filter_map(|thread| policy(&thread.read("stat").unwrap_or_default()))
            .collect();
        assert!(!policies.is_empty() && policies.iter().all(|&policy| policy == 0), "{policies:?}");
    });
}

/// How often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_real_time_thread_that_polls_in_vain_sleeps_now_and_then() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        make_fifo(&fifo);
        let (path, mut context) = (c_path(&fifo), context(4));
        push(&mut context, Sqe::openat(-1, &path, libc::O_RDONLY, 0));
        submit_all(&mut context);
        let mut slept = true;
        if becomes_real_time() {
            let (begin, before) = (Instant::now(), sleeps());
            while sleeps() == before && begin.elapsed() < DEADLINE {
                (0..10_000).for_each(|_| _ = context.wait(0, None));
            }
            slept = sleeps() > before;
        }
        let _both = open_both_ends(&fifo);
        wait_for(&mut context, 1);
        reap_all(&mut context).iter().for_each(|cqe| close_fd(cqe.res));
        assert!(slept, "no sleep in so long");
    });
}
