//! What design and documentation promise about order, cancelling, destroying, threads and forks.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{
    LONG, Random, bounded, by_user_data, c_path, close_fd, context, excepted, file_with, finish,
    isolated, make_fifo, open_both_ends, our_threads, pattern, push, reap_all, run,
    sees_system_calls, skip, submit_all, threads_opening, wait_for, wait_until,
};
use uringlet::{Context, Sqe};

const BLOCK: usize = 512;

fn errno(result: std::io::Result<()>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().expect("an errno"))
}

/// `count` reads of one block each into `buffers`, numbered from 0.
fn push_reads(context: &mut Context, file: &File, buffers: &mut [[u8; BLOCK]]) {
    let blocks = file.metadata().unwrap().len() / BLOCK as u64;
    for (at, buffer) in (0..).zip(buffers) {
        let offset = at % blocks * BLOCK as u64;
        push(context, Sqe::read(file.as_raw_fd(), &mut buffer[..], offset).user_data(at));
    }
}

struct Pipes {
    ends: Vec<(PipeReader, PipeWriter)>,
    buffers: Vec<[u8; 16]>,
}

/// Workers that one context may have if no other needs any: never the last of 64.
const SHARE: usize = 48;
/// The first user_data of reads on pipes.
const PIPES: u64 = 1 << 32;

impl Pipes {
    fn new(count: usize) -> Self {
        let ends = (0..count).map(|_| std::io::pipe().unwrap()).collect();
        Self { ends, buffers: vec![[0; 16]; count] }
    }

    fn push_read(&mut self, context: &mut Context, at: usize) {
        let fd = self.ends[at].0.as_raw_fd();
        push(context, Sqe::read(fd, &mut self.buffers[at][..], 0).user_data(PIPES + at as u64));
    }
}

/// 1,000 file reads with 40 reads on empty pipes among them; gives the context when the file reads
/// have completed and only the pipe reads are left.
fn files_among_pipes(pipes: &mut Pipes) -> Context {
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut context = context(2048);
    let mut buffers = vec![[0u8; BLOCK]; 1000];
    for (chunk, part) in buffers.chunks_mut(25).enumerate() {
        pipes.push_read(&mut context, chunk);
        for (at, buffer) in part.iter_mut().enumerate() {
            let at = (chunk * 25 + at) as u64;
            let offset = at % 64 * BLOCK as u64;
            push(&mut context, Sqe::read(file.as_raw_fd(), &mut buffer[..], offset).user_data(at));
        }
    }
    submit_all(&mut context);
    wait_for(&mut context, 1000);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results.len(), 1000, "the pipe reads cannot complete");
    assert!((0..1000).all(|at| results[&at] == BLOCK as i32));
    for (at, buffer) in buffers.iter().enumerate() {
        assert!(buffer[..] == pattern(1, 64 * BLOCK)[at % 64 * BLOCK..][..BLOCK], "read {at}");
    }
    context
}

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
fn a_waiting_poll_can_be_cancelled() {
    let _bound = bounded(2 * LONG);
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut context = context(4);
    push(&mut context, Sqe::poll_add(reader.as_raw_fd(), libc::POLLIN).user_data(7));
    assert_eq!(errno(context.cancel(7)), libc::ENOENT, "pushed is not submitted");
    submit_all(&mut context);
    assert_eq!(errno(context.cancel(8)), libc::ENOENT);
    assert_eq!(errno(context.cancel(7)), 0);
    wait_for(&mut context, 1);
    assert_eq!(by_user_data(&reap_all(&mut context)), HashMap::from([(7, -libc::ECANCELED)]));
    assert_eq!(errno(context.cancel(7)), libc::ENOENT);
}

/// Tells threads to stop, also when the test panics.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn cancelled_requests_that_were_reaped_hold_no_room() {
    let _bound = bounded(2 * LONG);
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = vec![[0u8; BLOCK]; 8];
    for round in 0..200 {
        let mut context = context(8);
        let most = context.entries();
        buffers.resize(most, [0; BLOCK]);
        push_reads(&mut context, &file, &mut buffers);
        submit_all(&mut context);
        for at in 0..most as u64 {
            let answer = errno(context.cancel(at));
            assert!([0, libc::EALREADY, libc::ENOENT].contains(&answer), "{answer}");
        }
        let mut reaped = 0;
        while reaped < most {
            // Sleeps, and takes no baton: everything is cancelled or with a worker.
            assert!(wait_until(|| {
                reaped += reap_all(&mut context).len();
                reaped == most
            }));
        }
        (0..most).for_each(|_| push(&mut context, Sqe::nop()));
        assert_eq!(context.submit().ok(), Some(most), "round {round}: all was reaped");
        assert_eq!(context.destroy().len(), most);
    }
}

#[test]
fn every_request_completes_once_while_another_thread_cancels() {
    const REQUESTS: u64 = 20_000;
    const DEPTH: usize = 64;
    let _bound = bounded(4 * LONG);
    let content = pattern(1, 64 * BLOCK);
    let file = file_with(&content);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut context = context(DEPTH as u32);
    let canceller = context.canceller();
    let (newest, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (cancelled, mut results) = (Mutex::new(HashSet::new()), HashMap::new());
    let mut taken = 0;
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (canceller, newest, over, cancelled) =
                (canceller.clone(), &newest, &over, &cancelled);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                while !over.load(Ordering::Relaxed) {
                    let back = random.below(DEPTH) as u64;
                    let user_data = newest.load(Ordering::Relaxed).saturating_sub(back);
                    match errno(canceller.cancel(user_data)) {
                        0 => assert!(cancelled.lock().unwrap().insert(user_data), "twice"),
                        error => assert!([libc::EALREADY, libc::ENOENT].contains(&error)),
                    }
                }
            });
        }
        let _over = SetAtEnd(&over);
        let mut random = Random::new(3);
        let mut buffers = vec![[0u8; BLOCK]; DEPTH];
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut at = HashMap::new();
        let (mut next, mut pipe_reads) = (0, 0);
        while results.len() < REQUESTS as usize {
            while next < REQUESTS && !free.is_empty() && !random.one_in(8) {
                let slot = free.pop().unwrap();
                let buffer = &mut buffers[slot];
                let sqe = match random.below(8) {
                    0 => Sqe::nop(),
                    1 => Sqe::fdatasync(file.as_raw_fd()),
                    2 => Sqe::poll_add(writer.as_raw_fd(), libc::POLLOUT),
                    3 if pipe_reads < 16 => {
                        pipe_reads += 1;
                        Sqe::read(reader.as_raw_fd(), &mut buffer[..4], 0)
                    }
                    _ => {
                        let offset = random.below(64) * BLOCK;
                        Sqe::read(file.as_raw_fd(), &mut buffer[..], offset as u64)
                    }
                };
                at.insert(next, (slot, sqe));
                push(&mut context, sqe.user_data(next));
                next += 1;
            }
            // Cancelled ones may hold their places for a moment: all will be accepted, not always at once.
            assert!(wait_until(|| {
                let _ = context.submit();
                context.pushed() == 0
            }));
            newest.store(next, Ordering::Relaxed);
            // Feed the pipe as many reads as wait on it, so that they race with their cancels.
            writer.write_all(&vec![5; 4 * pipe_reads]).unwrap();
            let in_flight = at.len();
            let least = random.below(in_flight.min(4) + 1);
            wait_for(&mut context, least);
            let mut left_in_pipe = 0;
            for cqe in reap_all(&mut context) {
                let (slot, sqe) = at.remove(&cqe.user_data).expect("accepted, and not seen before");
                if sqe.fd == reader.as_raw_fd() {
                    pipe_reads -= 1;
                    taken += cqe.res.max(0) as usize;
                }
                let expected = match sqe.fd {
                    fd if fd == reader.as_raw_fd() => 4,
                    fd if fd == writer.as_raw_fd() => i32::from(libc::POLLOUT),
                    _ => sqe.len as i32,
                };
                assert!([expected, -libc::ECANCELED].contains(&cqe.res), "{} {sqe:?}", cqe.res);
                if cqe.res == BLOCK as i32 {
                    assert!(buffers[slot][..] == content[sqe.off as usize..][..BLOCK]);
                }
                assert_eq!(results.insert(cqe.user_data, cqe.res), None);
                free.push(slot);
            }
            // SAFETY: asks how many bytes lie in the pipe.
            unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut left_in_pipe) };
            assert_eq!(left_in_pipe % 4, 0, "a read takes its four bytes or none");
            let spare = left_in_pipe as usize;
            if pipe_reads == 0 && spare > 0 {
                (&reader).read_exact(&mut vec![0; spare]).unwrap();
            }
        }
    });
    assert_eq!(context.destroy(), []);
    assert_eq!(taken % 4, 0);
    let of_results = results.iter().filter(|&(_, &res)| res == -libc::ECANCELED);
    let of_results: HashSet<u64> = of_results.map(|(&user_data, _)| user_data).collect();
    let cancelled = cancelled.into_inner().unwrap();
    let differ: Vec<&u64> = of_results.symmetric_difference(&cancelled).collect();
    assert!(differ.is_empty(), "Ok is -ECANCELED, and nothing else is: {differ:?}");
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
fn blocked_opens_beyond_the_workers_stop_no_reads_and_are_all_released() {
    isolated(|| {
        if !sees_system_calls() {
            return skip("/proc/self/syscall cannot be read: nobody sees the requests start");
        }
        let dir = tempfile::tempdir().unwrap();
        let fifos: Vec<PathBuf> = (0..100).map(|at| dir.path().join(format!("{at}"))).collect();
        let mut context = context(1024);
        let paths: Vec<CString> = fifos.iter().map(|fifo| c_path(fifo)).collect();
        for (at, (fifo, path)) in fifos.iter().zip(&paths).enumerate() {
            make_fifo(fifo);
            let open = Sqe::openat(libc::AT_FDCWD, path, libc::O_RDONLY, 0);
            push(&mut context, open.user_data(PIPES + at as u64));
        }
        submit_all(&mut context);
        assert!(wait_until(|| threads_opening() == SHARE), "{} started", threads_opening());
        let file = file_with(&pattern(1, 64 * BLOCK));
        let mut buffers = vec![[0u8; BLOCK]; 500];
        push_reads(&mut context, &file, &mut buffers);
        submit_all(&mut context);
        wait_for(&mut context, 500);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(results.len(), 500);
        assert!((0..500).all(|at| results[&at] == BLOCK as i32));
        assert_eq!(threads_opening(), SHARE);
        // Half of the surplus is cancelled, the other half gets its turn.
        let mut cancelled = 0;
        for at in 0..100 {
            if cancelled == 26 {
                break;
            }
            match errno(context.cancel(PIPES + at)) {
                0 => cancelled += 1,
                error => assert_eq!(error, libc::EALREADY),
            }
        }
        assert_eq!(cancelled, 26);
        let _both: Vec<File> = fifos.iter().map(|fifo| open_both_ends(fifo)).collect();
        wait_for(&mut context, 100);
        let results = by_user_data(&reap_all(&mut context));
        assert_eq!(results.len(), 100);
        let (opened, others): (Vec<i32>, Vec<i32>) = results.values().partition(|&&res| res >= 0);
        assert_eq!(others, [-libc::ECANCELED; 26]);
        opened.into_iter().for_each(close_fd);
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
        // With a deadline a waiter executes nothing that may sleep: each of these needs a worker.
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
        assert!(wait_until(|| threads_opening() == SHARE), "{} started", threads_opening());
        let cpu_ms = || {
            // SAFETY: fills a local structure.
            unsafe {
                let mut time = std::mem::zeroed::<libc::timespec>();
                libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
                time.tv_sec * 1000 + time.tv_nsec / 1_000_000
            }
        };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| context.wait(80, None).unwrap());
            // Time is the subject: CPU time in one second of waiting without a deadline.
            std::thread::sleep(Duration::from_millis(200));
            let before = cpu_ms();
            std::thread::sleep(Duration::from_secs(1));
            let used = cpu_ms() - before;
            let _both = open_both_ends(&fifo);
            assert_eq!(waiter.join().unwrap(), 80);
            assert!(used < 100, "{used} ms of CPU time in a second of waiting");
        });
        reap_all(&mut context).iter().for_each(|cqe| close_fd(cqe.res));
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
    for _ in 0..300 {
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

#[test]
fn appends_land_in_the_order_of_submission() {
    let _bound = bounded(4 * LONG);
    let dir = tempfile::tempdir().unwrap();
    let mut context = context(64);
    for (round, flags) in (0..100).map(|round| (round, [0, libc::RWF_APPEND][round % 2])) {
        let path = dir.path().join(format!("{round}"));
        let mut file =
            OpenOptions::new().append(flags == 0).write(true).create(true).open(&path).unwrap();
        let parts: Vec<Vec<u8>> = (0..64).map(|at| vec![at as u8; 100 + at]).collect();
        for (at, part) in parts.iter().enumerate() {
            let sqe = Sqe::write(file.as_raw_fd(), &part[..], 0).rw_flags(flags);
            push(&mut context, sqe.user_data(at as u64));
            if round % 4 >= 2 && at % 16 == 15 {
                submit_all(&mut context);
            }
        }
        if context.pushed() > 0 {
            submit_all(&mut context);
        }
        wait_for(&mut context, 64);
        let results = by_user_data(&reap_all(&mut context));
        assert!((0..64).all(|at| results[&at] == 100 + at as i32));
        file.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == parts.concat(), "round {round}");
    }
}

#[test]
fn a_read_after_a_reaped_write_sees_it_and_fsync_follows_writes() {
    let _bound = bounded(4 * LONG);
    let file = file_with(&[0; BLOCK]);
    let fd = file.as_raw_fd();
    let mut context = context(64);
    for round in 0..500 {
        let content = pattern(round, BLOCK);
        assert_eq!(run(&mut context, Sqe::write(fd, &content[..], 0)), BLOCK as i32);
        let mut back = [0; BLOCK];
        assert_eq!(run(&mut context, Sqe::read(fd, &mut back[..], 0)), BLOCK as i32);
        assert!(back[..] == content, "round {round}");
    }
    for round in 0..10 {
        let parts: Vec<Vec<u8>> = (0..32).map(|at| pattern(round + at, BLOCK)).collect();
        for (at, part) in (0..).zip(&parts) {
            push(&mut context, Sqe::write(fd, &part[..], at * BLOCK as u64).user_data(at));
        }
        push(&mut context, Sqe::fsync(fd).user_data(100));
        push(&mut context, Sqe::fdatasync(fd).user_data(101));
        let results = finish(&mut context);
        assert!((0..32).all(|at| results[&at] == BLOCK as i32));
        assert_eq!((results[&100], results[&101]), (0, 0));
        let mut content = Vec::new();
        (&file).rewind().unwrap();
        (&file).read_to_end(&mut content).unwrap();
        assert!(content == parts.concat());
    }
}

/// Gets workers, poller and watchdog to exist: a blocked pipe read, syncs, and reads nobody waits for.
fn busy(context: &mut Context, pipes: &mut Pipes) {
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = vec![[0u8; BLOCK]; 100];
    pipes.push_read(context, 0);
    push_reads(context, &file, &mut buffers);
    for at in 0..8 {
        push(context, Sqe::fsync(file.as_raw_fd()).user_data(1000 + at));
    }
    submit_all(context);
    let mut reaped = 0;
    assert!(wait_until(|| {
        reaped += reap_all(context).len();
        reaped == 108
    }));
}

#[test]
fn our_threads_block_all_signals() {
    isolated(|| {
        let mut context = context(256);
        let mut pipes = Pipes::new(1);
        busy(&mut context, &mut pipes);
        let threads = our_threads();
        assert!(threads.iter().any(|thread| thread.name.starts_with("uringlet-work")));
        assert!(threads.iter().any(|thread| thread.name.starts_with("uringlet-poll")));
        // All but SIGKILL and SIGSTOP, and the two that belong to the C library.
        let own = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
        let wanted = (1..=64).filter(|signal| !own.contains(signal));
        let wanted = wanted.fold(0u64, |mask, signal| mask | 1 << (signal - 1));
        for thread in threads {
            let status = thread.read("status").unwrap_or_default();
            let Some(line) = status.lines().find(|line| line.starts_with("SigBlk:")) else {
                continue;
            };
            let blocked = u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap();
            assert_eq!(blocked & wanted, wanted, "{} blocks {blocked:x}", thread.name);
        }
        let mask = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(mask.contains("SigBlk:\t0000000000000000"), "the caller's mask is as it was");
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
        let mut pipes = Pipes::new(1);
        busy(&mut context, &mut pipes);
        // Time is the subject: the watchdog has ended its rounds by then, the workers have not retired.
        std::thread::sleep(Duration::from_millis(300));
        let ticks = || our_threads().iter().map(|thread| thread.cpu_ticks()).sum::<u64>();
        let (count, before) = (our_threads().len(), ticks());
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(our_threads().len(), count, "none retired, whose time would be missed");
        assert_eq!(ticks() - before, 0, "clock ticks in one idle second");
        assert_eq!(errno(context.cancel(PIPES)), 0, "the read was waiting all the time");
    });
}

/// Everything that a child of a fork may expect, as the number of the first line that is not so.
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
        // Poller, workers and watchdog exist, a read is in flight, and one is complete and not reaped.
        busy(&mut context, &mut pipes);
        push(&mut context, Sqe::nop().user_data(1));
        submit_all(&mut context);
        wait_for(&mut context, 1);
        let file = file_with(&pattern(1, BLOCK));
        // SAFETY: the child works on with what fork leaves it, as the promise says it can, and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends a child that hangs; a fork does not inherit the parent's alarm.
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
        // SAFETY: waits for the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's exit status; it says above which line");
        // The parent's context is as it was.
        assert_eq!(reap_all(&mut context).len(), 1);
        pipes.ends[0].1.write_all(b"for the parent").unwrap();
        wait_for(&mut context, 1);
        assert_eq!(by_user_data(&reap_all(&mut context))[&PIPES], 14);
        let mut buf = [0; BLOCK];
        assert_eq!(run(&mut context, Sqe::read(file.as_raw_fd(), &mut buf[..], 0)), BLOCK as i32);
        assert_eq!(context.destroy(), []);
    });
}

/// Makes it impossible to start threads in this (helper) process.
fn refuse_threads() -> bool {
    // SAFETY: ids and limits of this helper process, which ends after the test.
    unsafe {
        if libc::getuid() == 0 {
            // The limit does not bind root.
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

/// Requests of every kind that goes to a thread of ours, where there is none.
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

/// Memory whose first access blocks until [`Blocker::release`]: a read into it is stuck inside the
/// kernel for as long, whatever the file.
struct Blocker {
    userfault: std::os::fd::OwnedFd,
    memory: *mut u8,
}

const PAGE: usize = 4096;

impl Blocker {
    fn new() -> Option<Self> {
        use std::os::fd::FromRawFd as _;
        #[repr(C)]
        struct Api {
            api: u64,
            features: u64,
            ioctls: u64,
        }
        #[repr(C)]
        struct Register {
            start: u64,
            len: u64,
            mode: u64,
            ioctls: u64,
        }
        const UFFDIO_API: u64 = 0xc018_aa3f;
        const UFFDIO_REGISTER: u64 = 0xc020_aa00;
        const MISSING: u64 = 1;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new descriptor and a new mapping of one page, both owned by the result.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            if fd < 0 {
                return None;
            }
            let userfault = std::os::fd::OwnedFd::from_raw_fd(fd);
            let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
            if libc::ioctl(fd, UFFDIO_API as _, &mut api) != 0 {
                return None;
            }
            let memory = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let mut register =
                Register { start: memory as u64, len: PAGE as u64, mode: MISSING, ioctls: 0 };
            let this = Self { userfault, memory: memory.cast() };
            (libc::ioctl(fd, UFFDIO_REGISTER as _, &mut register) == 0).then_some(this)
        }
    }

    fn buffer(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.memory, BLOCK)
    }

    /// Waits until somebody is stuck.
    fn wait_for_a_victim(&self) -> bool {
        let fd = self.userfault.as_raw_fd();
        let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut set, 1, LONG.as_millis() as i32) == 1 }
    }

    fn release(&self) {
        #[repr(C)]
        struct Zero {
            start: u64,
            len: u64,
            mode: u64,
            zeroed: i64,
        }
        const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
        let mut zero = Zero { start: self.memory as u64, len: PAGE as u64, mode: 0, zeroed: 0 };
        // SAFETY: fills the registered page with zeros.
        let ret =
            unsafe { libc::ioctl(self.userfault.as_raw_fd(), UFFDIO_ZEROPAGE as _, &mut zero) };
        assert_eq!(ret, 0);
    }
}

// SAFETY: the address is only passed to the kernel.
unsafe impl Sync for Blocker {}

impl Drop for Blocker {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.memory.cast(), PAGE) };
    }
}

/// A read of a cached page that blocks in the middle, whoever executes it, and 500 writes behind it.
fn behind_a_blocked_holder(somebody_waits: bool) {
    let Some(blocker) = Blocker::new() else {
        return skip("userfaultfd(2) is not permitted: nothing blocks an inline read at will");
    };
    let content = pattern(1, 500 * BLOCK);
    let (file, target) = (file_with(&content), file_with(b""));
    let mut context = context(1024);
    push(&mut context, Sqe::read(file.as_raw_fd(), blocker.buffer(), 0).user_data(PIPES));
    for (at, part) in (0..).zip(content.chunks(BLOCK)) {
        let sqe = Sqe::write(target.as_raw_fd(), part, at * BLOCK as u64);
        push(&mut context, sqe.user_data(at));
    }
    submit_all(&mut context);
    let all_written = || {
        let mut found = Vec::new();
        (&target).rewind().unwrap();
        (&target).read_to_end(&mut found).unwrap();
        found == content
    };
    // The thread that waits may be the one that is stuck, so another one looks and releases it.
    let canceller = context.canceller();
    std::thread::scope(|scope| {
        let releaser = scope.spawn(|| {
            assert!(blocker.wait_for_a_victim(), "somebody takes the requests");
            let written = wait_until(all_written);
            let answer = errno(canceller.cancel(PIPES));
            blocker.release();
            assert!(written, "the writes behind the blocked read");
            assert_eq!(answer, libc::EALREADY, "it is being executed");
        });
        if !somebody_waits {
            releaser.join().unwrap();
        }
        wait_for(&mut context, 501);
    });
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results.len(), 501);
    assert!(results.values().all(|&result| result == BLOCK as i32));
}

#[test]
fn a_blocked_holder_holds_up_nobody_when_nobody_waits() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        behind_a_blocked_holder(false);
    });
}

#[test]
fn a_blocked_waiter_or_worker_loses_the_baton() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| behind_a_blocked_holder(true));
}
