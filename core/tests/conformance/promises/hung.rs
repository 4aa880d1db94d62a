//! A file whose server does not answer blocks only threads that wait without a deadline.
//!
//! A thread takes steps, such as a submit, that must not wait for the server. A step passes if it
//! ends before the test tells the server to go on.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::errno;
use crate::common::{
    LONG, context, file_with, isolated, our_threads, pattern, push, reap_all, run, skip,
    submit_all, wait_for, wait_until,
};
use uringlet::{Context, Sqe};

#[path = "../../../../libaio/tests/support/fuse.rs"]
mod fuse;
use fuse::{ALL, Disk, READS, TRANSFERS};

/// A call that takes longer than this waits for the server. Nothing else here takes a tenth of
/// this.
const LIMIT: Duration = Duration::from_secs(5);

const PAGE: usize = 4096;
/// The distance of reads, so that none of them reads ahead for another.
const APART: usize = 64 * PAGE;
/// The reads of [`Hung::get_known`], and what they read ahead, are before this offset.
const READS_BEGIN: usize = 1 << 20;
const WRITES_BEGIN: usize = 8 << 20;

#[derive(Clone, Copy, Debug)]
struct Case {
    direct: bool,
    /// Were requests made on the descriptor before?
    known: bool,
    kinds: u64,
}

/// Every case in which the server holds requests of these kinds.
fn cases(kinds: u64) -> impl Iterator<Item = Case> {
    let known = move |direct| [false, true].map(|known| Case { direct, known, kinds });
    [false, true].into_iter().flat_map(known)
}

#[derive(Debug, PartialEq)]
enum Said {
    /// The kernel's id of the thread, before its first step.
    Ready(i32),
    Begin(&'static str),
    End,
    /// The thread waits to be told to go on.
    Waiting,
}

#[repr(C, align(4096))]
struct Page([u8; PAGE]);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Read,
    Write,
    Sync,
    Poll,
}

struct Request {
    kind: Kind,
    offset: usize,
    buffer: Box<Page>,
    ended: Option<i32>,
    may_be_cancelled: bool,
}

impl Request {
    fn check_data(&self, number: usize, file: &File) {
        let bytes = || self.offset..self.offset + PAGE;
        match self.kind {
            Kind::Read => {
                let right =
                    self.buffer.0.iter().zip(bytes()).all(|(&one, at)| one == fuse::byte(at));
                assert!(right, "request {number} has read something else");
            }
            Kind::Write => {
                let mut found = Box::new(Page([0; PAGE]));
                let count = file.read_at(&mut found.0, self.offset as u64);
                assert_eq!(count.expect("a read"), PAGE);
                assert!(found.0[..] == self.buffer.0[..], "request {number} wrote something else");
            }
            Kind::Sync | Kind::Poll => {}
        }
    }
}

/// The thread's context and requests. The requests' buffers are dropped after the context.
struct Hung {
    context: Context,
    file: File,
    requests: Vec<Request>,
    said: Sender<Said>,
    told: Receiver<()>,
}

impl Hung {
    fn new(path: PathBuf, case: Case, said: Sender<Said>, told: Receiver<()>) -> Self {
        let flags = if case.direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let (context, file) = (context(64), file.expect("the file"));
        let mut hung = Self { context, file, requests: Vec::new(), said, told };
        if case.known {
            hung.get_known();
        }
        // SAFETY: no arguments.
        hung.say(Said::Ready(unsafe { libc::gettid() }));
        hung.told.recv().expect("the test");
        hung
    }

    fn say(&self, what: Said) {
        // The test may have failed already.
        let _ = self.said.send(what);
    }

    fn step<T>(&mut self, name: &'static str, step: impl FnOnce(&mut Self) -> T) -> T {
        self.say(Said::Begin(name));
        let result = step(self);
        self.say(Said::End);
        result
    }

    /// Makes reads, writes and fsyncs that the server answers.
    fn get_known(&mut self) {
        let (fd, mut page) = (self.file.as_raw_fd(), Box::new(Page([0; PAGE])));
        for round in 0..12 {
            let read = Sqe::read(fd, &mut page.0[..], round % 4 * PAGE as u64);
            assert_eq!(run(&mut self.context, read), PAGE as i32);
            let write = Sqe::write(fd, &page.0[..], (WRITES_BEGIN - PAGE) as u64);
            assert_eq!(run(&mut self.context, write), PAGE as i32);
            assert_eq!(run(&mut self.context, Sqe::fsync(fd)), 0);
        }
    }

    fn push(&mut self, fd: i32, kind: Kind, offset: usize) {
        let number = self.requests.len();
        let fill = if kind == Kind::Write { number as u8 } else { 0 };
        let mut buffer = Box::new(Page([fill; PAGE]));
        let sqe = match kind {
            Kind::Read => Sqe::read(fd, &mut buffer.0[..], offset as u64),
            Kind::Write => Sqe::write(fd, &buffer.0[..], offset as u64),
            Kind::Sync => Sqe::fsync(fd),
            Kind::Poll => Sqe::poll_add(fd, libc::POLLIN),
        };
        push(&mut self.context, sqe.user_data(number as u64));
        let request = Request { kind, offset, buffer, ended: None, may_be_cancelled: false };
        self.requests.push(request);
    }

    /// Submits two reads, a write and an fsync, at offsets that were not used before.
    fn submit(&mut self) {
        let fd = self.file.as_raw_fd();
        for kind in [Kind::Read, Kind::Read, Kind::Write, Kind::Sync] {
            let begin = if kind == Kind::Write { WRITES_BEGIN } else { READS_BEGIN };
            self.push(fd, kind, begin + self.requests.len() * APART);
        }
        self.step("submit", |hung| submit_all(&mut hung.context));
    }

    fn reap(&mut self) {
        for cqe in reap_all(&mut self.context) {
            let ended = &mut self.requests[cqe.user_data as usize].ended;
            assert_eq!(ended.replace(cqe.res), None, "{} has ended before", cqe.user_data);
        }
    }

    /// Makes a read of a local file, by this context, or by another one if `other` is set.
    fn read_local(&mut self, other: bool) {
        let content = pattern(5, 4 * PAGE);
        let file = file_with(&content);
        let mut page = Box::new(Page([0; PAGE]));
        let sqe = Sqe::read(file.as_raw_fd(), &mut page.0[..], PAGE as u64);
        if other {
            assert_eq!(run(&mut context(8), sqe), PAGE as i32);
        } else {
            const LOCAL: u64 = 1 << 32;
            push(&mut self.context, sqe.user_data(LOCAL));
            submit_all(&mut self.context);
            loop {
                assert!(self.context.wait(1, Some(LONG)).expect("a wait") > 0, "not read");
                let cqe = self.context.reap().expect("it waits");
                if cqe.user_data == LOCAL {
                    break assert_eq!(cqe.res, PAGE as i32);
                }
                let ended = &mut self.requests[cqe.user_data as usize].ended;
                assert_eq!(ended.replace(cqe.res), None, "{} has ended before", cqe.user_data);
            }
        }
        assert!(page.0[..] == content[PAGE..2 * PAGE]);
    }

    /// Makes a read of a pipe, by another context. The data is written after the submit.
    fn read_stream(&mut self) {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let (mut context, mut buffer) = (context(8), [0; 1]);
        push(&mut context, Sqe::read(reader.as_raw_fd(), &mut buffer[..], 0));
        submit_all(&mut context);
        assert_eq!(context.wait(0, None).expect("a look"), 0);
        writer.write_all(b"x").expect("room");
        assert_eq!(context.wait(1, Some(LONG)).expect("a wait"), 1, "not read");
        assert_eq!(context.reap().map(|cqe| cqe.res), Some(1));
    }

    fn steps(&mut self) {
        self.push(self.file.as_raw_fd(), Kind::Poll, 0);
        self.submit();
        self.step("a stream", Self::read_stream);
        self.step("poll", |hung| hung.context.wait(0, None)).expect("a look");
        self.submit();
        let none = Some(Duration::ZERO);
        self.step("poll with a timeout", |hung| hung.context.wait(32, none)).expect("a look");
        self.submit();
        let short = Some(Duration::from_millis(200));
        self.step("timed wait", |hung| hung.context.wait(32, short)).expect("a wait");
        self.submit();
        self.step("reap", Self::reap);
        let number = self.requests.len() - 4;
        self.requests[number].may_be_cancelled = true;
        let cancelled = self.step("cancel", |hung| hung.context.cancel(number as u64));
        // The request was cancelled, has begun, or has ended if the server has gone on.
        assert!([0, libc::EALREADY, libc::ENOENT].contains(&errno(cancelled)));
        self.submit();
        self.step("another file", |hung| hung.read_local(false));
        self.submit();
        self.step("another context", |hung| hung.read_local(true));
        self.say(Said::Waiting);
        self.told.recv().expect("the test");
        loop {
            self.reap();
            let left = self.requests.iter().filter(|request| request.ended.is_none()).count();
            if left == 0 {
                break;
            }
            self.context.wait(left, None).expect("a wait");
        }
        assert_eq!(self.context.wait(0, None).expect("a look"), 0, "more than was submitted");
        self.check();
    }

    /// Checks that each request has succeeded, or was cancelled on request.
    fn check(&self) {
        for (number, request) in self.requests.iter().enumerate() {
            let result = request.ended.expect("ended");
            if result == -libc::ECANCELED && request.may_be_cancelled {
                continue;
            }
            let expected = match request.kind {
                Kind::Sync => 0,
                Kind::Poll => i32::from(libc::POLLIN),
                Kind::Read | Kind::Write => PAGE as i32,
            };
            assert_eq!(result, expected, "request {number}");
            request.check_data(number, &self.file);
        }
    }

    /// Ends the context while the server holds its requests. The end waits for started requests.
    fn end(mut self, dropped: bool) {
        self.submit();
        self.submit();
        self.say(Said::Waiting);
        // The test waits until the server holds a read. Requests that have not begun by then are
        // cancelled.
        self.told.recv().expect("the test");
        let Self { context, file, mut requests, said, told } = self;
        let _ = said.send(Said::Begin("end"));
        let cqes = if dropped {
            drop(context);
            Vec::new()
        } else {
            context.destroy()
        };
        let then: Vec<[u8; PAGE]> = requests.iter().map(|request| request.buffer.0).collect();
        let _ = said.send(Said::End);
        told.recv().expect("the test");
        for cqe in &cqes {
            let ended = &mut requests[cqe.user_data as usize].ended;
            assert_eq!(ended.replace(cqe.res), None, "{} has ended before", cqe.user_data);
        }
        for (number, (request, then)) in requests.iter().zip(then).enumerate() {
            assert!(request.buffer.0 == then, "{number} went on when the context had ended");
            let done = if dropped {
                request.kind == Kind::Read && then.iter().any(|&byte| byte != 0)
            } else {
                let result = request.ended.expect("a completion for each");
                assert!([0, PAGE as i32, -libc::ECANCELED].contains(&result), "{number}: {result}");
                result > 0
            };
            if done {
                request.check_data(number, &file);
            }
        }
    }
}

/// The thread that takes the steps.
struct Thread {
    handle: std::thread::JoinHandle<()>,
    said: Receiver<Said>,
    tell: Sender<()>,
}

impl Thread {
    fn start(disk: &Disk, case: Case, part: impl FnOnce(Hung) + Send + 'static) -> Self {
        let ((sender, said), (tell, told), path) = (channel(), channel(), disk.file());
        let body = move || part(Hung::new(path, case, sender, told));
        Self { handle: std::thread::spawn(body), said, tell }
    }

    /// The thread's next message. `None`: none has come within [`LIMIT`].
    fn next(&self) -> Option<Said> {
        self.next_in(LIMIT)
    }

    fn next_in(&self, limit: Duration) -> Option<Said> {
        match self.said.recv_timeout(limit) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the thread has panicked"),
        }
    }

    fn tell(&self) {
        self.tell.send(()).expect("the thread");
    }
}

/// Runs the steps while the server holds requests of these kinds. Returns the steps that ended only
/// when the server went on.
fn late_steps(disk: &mut Disk, case: Case) -> Vec<&'static str> {
    let thread = Thread::start(disk, case, |mut hung| hung.steps());
    assert!(matches!(thread.next_in(LONG), Some(Said::Ready(_))), "nothing is held yet");
    disk.hold(case.kinds);
    thread.tell();
    let (mut late, mut step) = (Vec::new(), "nothing");
    loop {
        match thread.next() {
            Some(Said::Begin(name)) => step = name,
            Some(Said::Waiting) => break,
            Some(_) => {}
            None => {
                // The server answers, so that the step ends. After that, the server holds requests
                // again, as early as possible in the next step.
                disk.go_on();
                assert_eq!(thread.next_in(LONG), Some(Said::End), "{step} does not end at all");
                late.push(step);
                disk.hold(case.kinds);
            }
        }
    }
    disk.go_on();
    thread.tell();
    thread.handle.join().expect("no panic");
    late
}

fn steps_wait_for_no_server(kinds: u64) {
    let mut disk = match Disk::start() {
        Ok(disk) => disk,
        Err(reason) => return skip(&reason),
    };
    let late: Vec<_> = cases(kinds).map(|case| (case, late_steps(&mut disk, case))).collect();
    let late: Vec<_> = late
        .iter()
        .filter(|(_, steps)| !steps.is_empty())
        .map(|(Case { direct, known, .. }, steps)| {
            format!("direct {direct}, known {known}: {}", steps.join(", "))
        })
        .collect();
    assert!(late.is_empty(), "these wait for the server:\n{}", late.join("\n"));
}

#[test]
fn submits_polls_and_timed_waits_do_not_wait_for_a_server_that_answers_nothing() {
    isolated(|| steps_wait_for_no_server(ALL));
}

#[test]
fn submits_polls_and_timed_waits_do_not_wait_for_a_server_that_answers_no_transfers() {
    isolated(|| steps_wait_for_no_server(TRANSFERS));
}

/// Does this thread of the process sleep?
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.expect("/proc");
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('S' | 'D'))
}

fn the_end_waits(dropped: bool) {
    let mut disk = match Disk::start() {
        Ok(disk) => disk,
        Err(reason) => return skip(&reason),
    };
    for case in cases(TRANSFERS) {
        let thread = Thread::start(&disk, case, move |hung| hung.end(dropped));
        let Some(Said::Ready(number)) = thread.next_in(LONG) else { panic!("nothing is held yet") };
        disk.hold(case.kinds);
        thread.tell();
        while thread.next().expect("submits") != Said::Waiting {}
        assert!(disk.holds(1, READS), "a read reaches the server");
        thread.tell();
        assert_eq!(thread.next(), Some(Said::Begin("end")));
        assert!(wait_until(|| sleeps(number)), "it waits for what was started");
        assert!(thread.said.try_recv().is_err(), "its reads are held");
        disk.go_on();
        assert_eq!(thread.next(), Some(Said::End));
        thread.tell();
        thread.handle.join().expect("no panic");
    }
}

#[test]
fn drop_waits_for_the_server_and_ends_with_it() {
    isolated(|| the_end_waits(true));
}

#[test]
fn destroy_waits_for_the_server_and_ends_with_it() {
    isolated(|| the_end_waits(false));
}

#[test]
fn files_of_a_server_that_answers_nothing_leave_workers_for_others() {
    // Together these are more files than the maximum number of workers (64). Workers that wait for
    // a server are not counted in it.
    const CONTEXTS: usize = 4;
    const FILES: usize = 30;
    isolated(|| {
        let mut disk = match Disk::start() {
            Ok(disk) => disk,
            Err(reason) => return skip(&reason),
        };
        let open = || OpenOptions::new().read(true).write(true).open(disk.file()).expect("a file");
        let files: Vec<File> = (0..CONTEXTS * FILES).map(|_| open()).collect();
        let mut pages: Vec<Page> = files.iter().map(|_| Page([0; PAGE])).collect();
        let mut flooded: Vec<Context> = (0..CONTEXTS).map(|_| context(64)).collect();
        disk.hold(TRANSFERS);
        for (at, (file, page)) in files.iter().zip(&mut pages).enumerate() {
            let sqe = Sqe::read(
                file.as_raw_fd(),
                &mut page.0[..],
                (READS_BEGIN + at % 24 * APART) as u64,
            );
            push(&mut flooded[at % CONTEXTS], sqe);
        }
        flooded.iter_mut().for_each(submit_all);
        let all = || our_threads().iter().filter(|one| one.name == "uringlet-waits").count();
        assert!(wait_until(|| all() >= files.len()), "{} threads", all());
        let file = file_with(&pattern(1, PAGE));
        let mut quiet: Vec<Context> = (0..20).map(|_| context(4)).collect();
        for one in &mut quiet {
            push(one, Sqe::fsync(file.as_raw_fd()));
            submit_all(one);
        }
        for one in &mut quiet {
            // With a deadline a waiter executes nothing that may sleep, so each fsync takes a
            // worker.
            assert_eq!(one.wait(1, Some(LONG)).expect("a wait"), 1, "held up by the server");
            assert_eq!(one.reap().map(|cqe| cqe.res), Some(0));
        }
        disk.go_on();
        for one in &mut flooded {
            wait_for(one, FILES);
            assert!(reap_all(one).iter().all(|cqe| cqe.res == PAGE as i32));
        }
    });
}
