//! The common part of the integration tests: bounded waits, files, helper processes, the library's
//! threads.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use uringlet::affinity::Placement;
use uringlet::{Builder, Context, Cqe, EngineKind, Sqe};

/// A time limit that only a hang exceeds: nothing else in these tests takes this long.
pub const LONG: Duration = Duration::from_secs(if cfg!(miri) { 1_000 } else { 30 });

/// The variable with the engine of all contexts here. Its value is a name that [`EngineKind`]
/// knows, `faulty`, or `faulty:` and the name of the engine to which faults are added.
pub const ENGINE: &str = "URINGLET_TEST_ENGINE";

/// The value of [`ENGINE`]; `auto` by default.
pub fn engine_name() -> String {
    std::env::var(ENGINE).unwrap_or_else(|_| "auto".to_owned())
}

/// A builder for the engine under test.
pub fn builder() -> Builder {
    builder_for(&engine_name())
}

pub fn builder_for(name: &str) -> Builder {
    let kind =
        |name: &str| name.parse::<EngineKind>().unwrap_or_else(|error| panic!("{ENGINE}: {error}"));
    let below = match name.strip_prefix("faulty") {
        None => return of_engine(kind(name)),
        Some("") => EngineKind::Auto,
        Some(below) => kind(below.trim_start_matches(':')),
    };
    with_reordering(of_engine(below))
}

/// A builder for this engine. Its placement comes from the environment (`URINGLET_QUEUE_AFFINITY`
/// and so on), so that the suite can test placements, too.
fn of_engine(kind: EngineKind) -> Builder {
    let placement = Placement::from_environment().unwrap_or_else(|error| panic!("{error}"));
    Context::builder().engine(kind).placement(placement)
}

/// Should the engine `faulty` also make transfers fail or end early, beside reordering requests?
pub fn all_faults() -> bool {
    static ALL: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ALL.get_or_init(|| {
        let faults = std::env::var("URINGLET_TEST_FAULTS").unwrap_or_default();
        assert!(["", "all"].contains(&&*faults), "URINGLET_TEST_FAULTS={faults}: expected all");
        let faulty = engine_name().starts_with("faulty");
        assert!(faults.is_empty() || faulty, "URINGLET_TEST_FAULTS needs {ENGINE}=faulty");
        !faults.is_empty()
    })
}

/// Adds the faults that a program does not notice, or [all of them](all_faults).
#[cfg(feature = "faulty")]
fn with_reordering(builder: Builder) -> Builder {
    thread_local!(static TOLD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    if !TOLD.replace(true) {
        println!("{SEED}={}", seed());
    }
    let reordering = uringlet::Faults::reordering(seed());
    let all = uringlet::Faults { eio: 10, eagain: 10, short: 20, ..reordering };
    builder.faulty(if all_faults() { all } else { reordering })
}

#[cfg(not(feature = "faulty"))]
fn with_reordering(_: Builder) -> Builder {
    panic!("the engine `faulty` needs --features faulty");
}

/// A context of the engine under test for `entries` requests.
#[track_caller]
pub fn context(entries: u32) -> Context {
    let mut built = builder().entries(entries).build();
    // The kernel's room for contexts is the whole host's (fs.aio-max-nr): another test may have
    // taken all of it for a moment.
    wait_until(|| {
        let is_used_up = built.as_ref().is_err_and(|error| error.errno() == libc::EAGAIN);
        if is_used_up {
            built = builder().entries(entries).build();
        }
        !is_used_up
    });
    built.expect("a context")
}

pub fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.replace('_', "").parse().unwrap_or_else(|_| panic!("{name}={value}")),
        Err(_) => default,
    }
}

/// The variable with the seed of random requests and faults. The same seed repeats them, so tests
/// that use the seed print it.
pub const SEED: &str = "URINGLET_TEST_SEED";

/// The seed of this run.
pub fn seed() -> u64 {
    static SEED_OF_RUN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED_OF_RUN.get_or_init(|| {
        let nanos =
            std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
        from_env(SEED, nanos >> 10)
    })
}

/// Reports that a test is skipped, a third result beside passed and failed. This does not use
/// `println!`, because the harness hides the output of passed tests.
pub fn skip(reason: &str) {
    let test = std::env::var(CHILD).ok();
    let thread = std::thread::current();
    let name = test.as_deref().or(thread.name()).unwrap_or("a test");
    // The message has a line of its own: the harness may have printed half a line.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {reason}");
}

/// Does this kernel take `RWF_NOWAIT` for pipes?
pub fn pipes_take_nowait() -> bool {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut byte = 0u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one iovec of a live byte.
    let read =
        unsafe { libc::preadv2(reader.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(read, -1, "it is empty");
    error != Some(libc::EOPNOTSUPP)
}

/// Does [`EXCEPTIONS`](crate::EXCEPTIONS) list the test that passes this closure, for the engine
/// under test? If so, this prints that the test is skipped.
pub fn excepted<F: FnOnce()>(_: F) -> bool {
    let (test, engine) = (test_of::<F>(), engine_name());
    let exception = crate::EXCEPTIONS.iter().find(|(name, engines, _)| {
        // An exception for an engine also holds for `faulty:` with the name of this engine.
        let below = engine.strip_prefix("faulty:").unwrap_or(&engine);
        *name == test && engines.contains(&below)
    });
    exception.inspect(|(.., reason)| skip(reason)).is_some()
}

/// Aborts the process if the test has not ended in time. So a hang fails, also inside of `destroy`.
pub struct Bounded(#[expect(dead_code, reason = "dropping it is the message")] mpsc::Sender<()>);

pub fn bounded(limit: Duration) -> Bounded {
    let (sender, receiver) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    std::thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "HANGS: {name} is not over after {limit:?}");
            std::process::abort();
        }
    });
    Bounded(sender)
}

/// Repeats the check until it is true. Returns false if the check is not true within [`LONG`].
pub fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > LONG {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Pushes an entry. The caller keeps the entry's memory valid as [`Context::push`] requires. In
/// these tests, all buffers outlive their completions or the context.
#[track_caller]
pub fn push(context: &mut Context, sqe: Sqe) {
    // SAFETY: the buffers live as the comment above says. The kernel refuses unmapped addresses.
    unsafe { context.push(sqe) }.expect("room in the submission queue");
}

/// Submits everything that was pushed.
#[track_caller]
pub fn submit_all(context: &mut Context) {
    let pushed = context.pushed();
    assert_eq!(context.submit().expect("submit"), pushed, "accepted");
}

/// Waits until `n` completions can be reaped.
#[track_caller]
pub fn wait_for(context: &mut Context, n: usize) {
    loop {
        match context.wait(n, Some(LONG)) {
            Ok(available) => return assert!(available >= n, "{available} of {n} completed"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{error}"),
        }
    }
}

/// Reaps all completions.
pub fn reap_all(context: &mut Context) -> Vec<Cqe> {
    std::iter::from_fn(|| context.reap()).collect()
}

/// Results by user_data; panics if one occurs twice.
#[track_caller]
pub fn by_user_data(cqes: &[Cqe]) -> HashMap<u64, i32> {
    let mut results = HashMap::new();
    for cqe in cqes {
        assert_eq!(cqe.flags, 0);
        let before = results.insert(cqe.user_data, cqe.res);
        assert_eq!(before, None, "user_data {} completed twice", cqe.user_data);
    }
    results
}

/// Submits pushed entries, waits for all of them, and returns the results by user_data.
#[track_caller]
pub fn finish(context: &mut Context) -> HashMap<u64, i32> {
    let pushed = context.pushed();
    submit_all(context);
    wait_for(context, pushed);
    let cqes = reap_all(context);
    assert_eq!(cqes.len(), pushed);
    by_user_data(&cqes)
}

/// Runs one entry on its own.
#[track_caller]
pub fn run(context: &mut Context, sqe: Sqe) -> i32 {
    push(context, sqe.user_data(0xfeed));
    finish(context)[&0xfeed]
}

/// The negative errno of a plain system call that failed, or its result.
pub fn plain(ret: i64) -> i32 {
    match ret {
        -1 => -std::io::Error::last_os_error().raw_os_error().expect("an errno"),
        ret => i32::try_from(ret).expect("a result of a transfer"),
    }
}

/// Bytes that depend on the seed and on their position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((seed * 131 + at * 7 + at / 251) % 251) as u8 + 1).collect()
}

/// A file with this content, open for reading and writing at position 0, and gone when closed.
pub fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(content).expect("its content");
    file.rewind().expect("a file position");
    file
}

/// A named file for reading and writing in `dir`.
pub fn create(dir: &Path, name: &str) -> (PathBuf, File) {
    let path = dir.join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    (path, file.expect("a file in the scratch folder"))
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path")
}

/// Makes a FIFO: the open of one end blocks until the other is opened.
pub fn make_fifo(path: &Path) {
    let c = c_path(path);
    // SAFETY: the path ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o600) }, 0, "mkfifo {}", path.display());
}

/// Opens both ends of a FIFO, which ends all opens that wait for the other end.
pub fn open_both_ends(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("both ends of a FIFO")
}

pub fn close_fd(fd: RawFd) {
    // SAFETY: the caller got this descriptor from a completion and owns it.
    assert_eq!(unsafe { libc::close(fd) }, 0, "close {fd}");
}

const CHILD: &str = "URINGLET_TEST_CHILD";

/// The command for this test binary, with one test only.
pub fn this_binary(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// The path of the test whose closure has the type `F`, as the harness names it.
fn test_of<F>() -> &'static str {
    let path = std::any::type_name::<F>();
    let path = path.strip_suffix("::{{closure}}").expect("a closure of the test itself");
    path.split_once("::").expect("a path in this crate").1
}

/// The path of the test that makes this closure.
pub fn test_making<F: FnOnce()>(_: F) -> &'static str {
    test_of::<F>()
}

/// Runs `body` in a process of its own. The process is this binary once more, with this test only.
/// There, the test calls `isolated` again, which calls `body`. Threads, limits and forks of that
/// process affect no other test.
#[track_caller]
pub fn isolated<F: FnOnce()>(body: F) {
    let test = test_of::<F>();
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        // SAFETY: passes a number. No handler is installed, so the signal ends a helper that hangs.
        unsafe { libc::alarm(300) };
        return body();
    }
    let output = this_binary(test).env(CHILD, test).output().expect("a helper process");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for line in err.lines().filter(|line| line.starts_with("SKIPPED ")) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    assert!(output.status.success(), "{test}: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{test} is not the name of this test:\n{out}");
}

/// The filter of a sandbox that answers these system calls with `errno`.
pub fn refusing(calls: &[i64], errno: i32) -> BpfProgram {
    let rules: BTreeMap<i64, _> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let answer = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with filters");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch);
    filter.expect("a filter").try_into().expect("a program")
}

/// One thread of this library in this process.
#[derive(Debug)]
pub struct OurThread {
    pub name: String,
    folder: PathBuf,
}

impl OurThread {
    pub fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Is the thread inside this system call now?
    pub fn is_inside(&self, call: libc::c_long) -> bool {
        let now = self.read("syscall").unwrap_or_default();
        now.split_whitespace().next() == Some(&call.to_string())
    }
}

/// The threads of this library in this process.
pub fn our_threads() -> Vec<OurThread> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    tasks
        .flatten()
        .filter_map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            let name = name.trim_end().to_owned();
            name.starts_with("uringlet-").then(|| OurThread { name, folder: task.path() })
        })
        .collect()
}

/// The number of times that each other thread of this process has gone to sleep, without threads
/// of the name `but`. `None`: one of these threads is awake.
fn sleeps(but: &str) -> Option<BTreeMap<OsString, u64>> {
    // SAFETY: takes nothing.
    let me = OsString::from(unsafe { libc::gettid() }.to_string());
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let others = tasks.filter(|task| task.file_name() != me);
    let counts = others.map(|task| {
        // proc_pid_status(5)
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        if field("Name:")?.trim() == but {
            return Some(None);
        }
        let sleeps = field("State:")?.trim().starts_with('S');
        let count = field("voluntary_ctxt_switches:")?.trim().parse().ok()?;
        sleeps.then(|| Some((task.file_name(), count)))
    });
    Some(counts.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Checks the other threads of this process twice, without threads of the name `but`. True: all
/// slept, and none woke in between.
pub fn none_wakes(but: &str) -> bool {
    let before = sleeps(but);
    // A thread that wakes periodically wakes in this time.
    std::thread::sleep(Duration::from_millis(500));
    before.is_some() && sleeps(but) == before
}

/// The number of the library's threads that are inside openat(2).
pub fn threads_opening() -> usize {
    our_threads().iter().filter(|thread| thread.is_inside(libc::SYS_openat)).count()
}

/// Can [`threads_opening`] see system calls here?
pub fn sees_system_calls() -> bool {
    std::fs::read_to_string("/proc/self/syscall").is_ok()
}

/// Small seeded random numbers (xorshift64*), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
