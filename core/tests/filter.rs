//! A program's own seccomp filter. The calls in docs/sandboxes.md are enough, each of them is made,
//! and refusing one has the effect that the page says.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use uringlet::{Context, EngineKind, Sqe};

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// The timeout of a wait, which never elapses here.
const LONG: Duration = Duration::from_secs(30);
/// A child without output for this long hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Children at a time: they mostly wait, for a disk or for threads that retire.
const AT_A_TIME: usize = 8;

#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// The content of a page after a round of writes.
fn fill(round: usize, page: usize) -> u8 {
    (round * 31 + page * 7 + 1) as u8
}

/// Files of the kinds whose requests are executed in different ways.
fn files() -> [File; 3] {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = |flags| {
        let path = folder.path().join("data");
        std::fs::write(&path, vec![0; PAGES * PAGE]).expect("written");
        File::open(&path).expect("there").sync_all().expect("synced");
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
    };
    let buffered = file(0).expect("a file");
    let direct = file(libc::O_DIRECT).unwrap_or_else(|_| file(0).expect("a file"));
    // SAFETY: a name that ends in NUL.
    let memory = unsafe { libc::memfd_create(c"data".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just opened, and nobody else's.
    let memory = unsafe { File::from_raw_fd(memory) };
    memory.set_len((PAGES * PAGE) as u64).expect("memory");
    [buffered, direct, memory]
}

/// Reads, writes and fsyncs: in batches and alone, waited for, polled, and with a deadline.
fn work(context: &mut Context, file: &File) -> Result<(), String> {
    let fd = file.as_raw_fd();
    // The buffers are never freed: after an error, some requests are still in flight.
    let pages = Vec::leak((0..PAGES).map(|_| Page([0; PAGE])).collect());
    for round in 0..2 {
        for write in [true, false] {
            if !write {
                // The file becomes cold, so that reads wait for the device. Only written-back pages
                // leave the cache.
                // SAFETY: no buffer.
                unsafe { context.push(Sqe::fsync(fd)) }.expect("room");
                end(context, 1, 0, false)?;
                // SAFETY: advice on a file of ours.
                unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
            }
            let mut step = |context: &mut Context, range: std::ops::Range<usize>, looks| {
                let count = range.len();
                for at in range {
                    let page = &mut pages[at].0;
                    page.fill(if write { fill(round, at) } else { 0 });
                    let offset = (at * PAGE) as u64;
                    let sqe = if write {
                        Sqe::write(fd, &page[..], offset)
                    } else {
                        Sqe::read(fd, &mut page[..], offset)
                    };
                    // SAFETY: the pages are never unmapped, and are touched again only after the
                    // completions.
                    unsafe { context.push(sqe.user_data(at as u64)) }.expect("room");
                }
                end(context, count, PAGE as i32, looks)
            };
            step(context, 0..32, false)?;
            step(context, 32..40, true)?;
            (40..PAGES).try_for_each(|at| step(context, at..at + 1, false))?;
            for (at, page) in pages.iter().enumerate() {
                if page.0.iter().any(|&byte| byte != fill(round, at)) {
                    return Err(format!("page {at} is wrong"));
                }
            }
        }
        for data_only in [false, true] {
            let sqe = if data_only { Sqe::fdatasync(fd) } else { Sqe::fsync(fd) };
            // SAFETY: no buffer.
            unsafe { context.push(sqe) }.expect("room");
            end(context, 1, 0, data_only)?;
        }
    }
    Ok(())
}

/// Submits pushed entries, and waits or polls for them.
fn end(context: &mut Context, count: usize, expected: i32, looks: bool) -> Result<(), String> {
    let submitted = context.submit().map_err(|error| format!("submit: {error}"))?;
    assert_eq!(submitted, count);
    let mut reaped = 0;
    while reaped < count {
        let timeout = (reaped % 2 == 0).then_some(LONG);
        let least = if looks { 0 } else { count - reaped };
        context.wait(least, timeout).map_err(|error| format!("wait: {error}"))?;
        while let Some(cqe) = context.reap() {
            if cqe.res != expected {
                return Err(format!("a request gave {}", cqe.res));
            }
            reaped += 1;
        }
    }
    Ok(())
}

/// The variable that tells a child its engine, `before` or `after`, the allowed calls, the refused
/// calls, and the errno of refused calls.
const CHILD: &str = "URINGLET_TEST_CHILD";

/// A child makes requests under a filter, with contexts that were made before the filter or after
/// it.
fn child(what: &str) {
    let words: Vec<&str> = what.split(' ').collect();
    let [engine, when, allowed, refused, errno] = words[..] else { panic!("{what}") };
    let kind: EngineKind = engine.parse().expect("an engine");
    let make = move || Context::builder().engine(kind).entries(64).build();
    let files = files();
    let mut early = (when == "before").then(|| make().expect("a context"));
    let numbers = |text: &str| -> Vec<i64> { text.split(',').flat_map(str::parse).collect() };
    let refused = numbers(refused);
    if !refused.is_empty() {
        let errno: u32 = errno.parse().expect("an errno");
        apply(&refused, SeccompAction::Allow, SeccompAction::Errno(errno), true);
    }
    let all = [&numbers(allowed)[..], &refused, OWN].concat();
    apply(&all, SeccompAction::KillProcess, SeccompAction::Allow, false);
    let result = (|| {
        let mut context = match early.take() {
            Some(context) => context,
            None => make().map_err(|error| format!("no context: {error}"))?,
        };
        files.iter().try_for_each(|file| work(&mut context, file))?;
        // A thread of the program, with a context of its own.
        let thread = std::thread::Builder::new().spawn(move || {
            let mut context = make().map_err(|error| format!("no context: {error}"))?;
            files.iter().try_for_each(|file| work(&mut context, file))
        });
        match thread {
            Ok(thread) => thread.join().expect("no panic"),
            // The filter may refuse a call that the program needs to start a thread.
            Err(_) if !refused.is_empty() => Ok(()),
            Err(error) => Err(format!("no thread: {error}")),
        }
    })();
    say(&result.err().unwrap_or_else(|| "done".to_owned()));
    // Waits until the test has seen that the engine's threads have retired.
    let _ = std::io::stdin().read(&mut [0]);
    say("over");
    // SAFETY: ends the process, without what the harness does at its end.
    unsafe { libc::_exit(0) };
}

/// A call that only the test program makes, and not the engine.
const OWN: &[i64] = &[libc::SYS_exit_group];

/// Installs a filter with the action `these` for the `calls`, and the action `others` for all other
/// calls. The program's own pipes stay usable: `read` of 0, `write` of 1 and 2. The advice that
/// makes files cold stays usable, too.
fn apply(calls: &[i64], others: SeccompAction, these: SeccompAction, refuses: bool) {
    let condition = |operator, value| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value).expect("an argument")
    };
    let rule = |conditions| SeccompRule::new(conditions).expect("a rule");
    let pipes = [(libc::SYS_read, &[0][..]), (libc::SYS_write, &[1, 2][..])];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls.iter().map(|&call| (call, Vec::new())).collect();
    for (call, fds) in pipes {
        if refuses && rules.contains_key(&call) {
            let not = fds.iter().map(|&fd| condition(SeccompCmpOp::Ne, fd)).collect();
            rules.insert(call, vec![rule(not)]);
        } else if !refuses && !rules.contains_key(&call) {
            let is = |&fd: &u64| rule(vec![condition(SeccompCmpOp::Eq, fd)]);
            rules.insert(call, fds.iter().map(is).collect());
        }
    }
    if !refuses && !rules.contains_key(&libc::SYS_fadvise64) {
        let cold = libc::POSIX_FADV_DONTNEED as u64;
        let is = SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, cold);
        rules.insert(libc::SYS_fadvise64, vec![rule(vec![is.expect("an argument")])]);
    }
    if refuses && rules.contains_key(&libc::SYS_prctl) {
        // Only PR_SET_NAME is refused: prctl(2) is also the call that installs the next filter.
        let name = condition(SeccompCmpOp::Eq, libc::PR_SET_NAME as u64);
        rules.insert(libc::SYS_prctl, vec![rule(vec![name])]);
    }
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with filters");
    let filter = SeccompFilter::new(rules, others, these, arch).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter_all_threads(&program).expect("filters are allowed");
}

fn say(line: &str) {
    let text = format!("\n= {line}\n");
    std::io::stdout().write_all(text.as_bytes()).expect("standard output");
}

/// A line of the table in the document.
#[derive(Debug)]
struct Row {
    /// Of the calls in one group, at least one is made.
    groups: Vec<Vec<i64>>,
    names: String,
    engines: Vec<&'static str>,
    works: bool,
    /// These calls are made in some runs only.
    at_times: bool,
}

impl Row {
    fn calls(&self) -> impl Iterator<Item = i64> {
        self.groups.iter().flatten().copied()
    }

    fn cells(&self) -> impl Iterator<Item = Cell> {
        self.engines.iter().flat_map(|&engine| WHEN.map(|when| (engine, when)))
    }

    /// The cells (see [`Cell`]) in which the calls are refused, each with the errno.
    fn refusals(&self) -> impl Iterator<Item = (Cell, i32)> {
        self.cells().zip(ERRNOS.into_iter().cycle())
    }
}

/// An engine, and whether contexts are made `before` the filter or `after` it.
type Cell = (&'static str, &'static str);

const ENGINES: [&str; 5] = ["auto", "workers", "io_uring", "linux_aio", "posix_aio"];

fn rows() -> Vec<Row> {
    let page = include_str!("../../docs/sandboxes.md");
    let (_, table) = page.split_once("| calls | engines |").expect("the table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [calls, engines, purpose, refused] = cells[..] else { panic!("{line}") };
        let number = |name: &str| {
            let name = name.trim_matches('`');
            name.parse::<syscalls::Sysno>().unwrap_or_else(|_| panic!("no call: {name}")) as i64
        };
        let engines = match engines {
            "all" => ENGINES.to_vec(),
            some => some
                .split(", ")
                .map(|name| *ENGINES.iter().find(|&&one| one == name).expect("an engine"))
                .collect(),
        };
        assert!(refused.starts_with("works") || refused.starts_with("fails"), "{line}");
        Row {
            groups: calls.split(", ").map(|one| one.split(" or ").map(number).collect()).collect(),
            names: calls.to_owned(),
            engines,
            works: refused.starts_with("works"),
            at_times: purpose.starts_with("at times: "),
        }
    };
    table.lines().skip(2).map(row).collect()
}

/// The end of a child.
#[derive(Debug, PartialEq)]
enum End {
    Done,
    /// The child has reported an error.
    Failed(String),
    /// The filter has killed the child, or the child has aborted.
    Killed(i32),
    Hangs,
}

/// Runs a child with these calls allowed, and these refused with an errno.
fn run((engine, when): Cell, allowed: &[i64], refused: &[i64], errno: i32) -> End {
    let list = |calls: &[i64]| {
        let numbers: Vec<String> = calls.iter().map(i64::to_string).collect();
        numbers.join(",")
    };
    let what = format!("{engine} {when} {} {} {errno}", list(allowed), list(refused));
    let test = "what_the_document_lists_is_enough_needed_and_refused_as_it_says";
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    let input = child.stdin.take();
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let said = |line: String| line.strip_prefix("= ").map(str::to_owned);
        output.lines().map_while(Result::ok).filter_map(said).try_for_each(|line| sender.send(line))
    });
    let mut said = receiver.recv_timeout(LIMIT);
    if said.as_deref() == Ok("done") {
        if refused.is_empty() {
            stop_and_go_on(child.id());
            until_threads_retire(child.id());
        }
        drop(input);
        said = receiver.recv_timeout(LIMIT);
    } else {
        drop(input);
    }
    if said == Err(RecvTimeoutError::Timeout) {
        child.kill().expect("a child");
    }
    let status = child.wait().expect("a child");
    match said {
        Ok(line) if line == "over" => End::Done,
        Ok(line) => End::Failed(line),
        Err(RecvTimeoutError::Timeout) => End::Hangs,
        Err(RecvTimeoutError::Disconnected) => End::Killed(status.signal().unwrap_or(0)),
    }
}

fn tries(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops a process and continues it, as a shell's job control and debuggers do. System calls with a
/// timeout then continue as `restart_syscall`.
fn stop_and_go_on(process: u32) {
    let send = |signal| {
        // SAFETY: a child of ours, which nobody has waited for.
        assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
    };
    send(libc::SIGSTOP);
    tries(|| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.contains(") T ") || stat.contains(") Z ")
    });
    send(libc::SIGCONT);
}

/// Waits for the threads to retire, which takes some seconds without work.
fn until_threads_retire(process: u32) {
    tries(|| {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
        !tasks.into_iter().flatten().flatten().any(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.starts_with("uringlet-"))
        })
    });
}

const WHEN: [&str; 2] = ["after", "before"];

/// Does the machine allow this engine? Prints a message if not.
fn available(engine: &str) -> bool {
    let kind: EngineKind = engine.parse().expect("an engine");
    let made = Context::builder().engine(kind).build();
    if let Err(error) = &made {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED filter for {engine}: {error}");
    }
    made.is_ok()
}

/// One statement of the table.
enum Check<'a> {
    /// With all lines of an engine allowed, its requests complete.
    Enough(Cell),
    /// If the filter does not allow these calls, it kills a child.
    Needed(&'a Row, &'a [i64]),
    /// If the calls are refused with this errno, the engine goes on.
    GoesOn(&'a Row, Cell, i32),
    /// If the calls are refused, the engine fails.
    Fails(&'a Row),
}

impl Check<'_> {
    fn complaints(&self, rows: &[Row]) -> Vec<String> {
        // The calls that a program on this engine may make, except `calls`.
        let all_but = |engine, calls: &[i64]| -> Vec<i64> {
            let rows = rows.iter().filter(|row| row.engines.contains(&engine));
            let all = rows.flat_map(Row::calls).filter(|call| !calls.contains(call));
            all.collect()
        };
        let refused = |row: &Row, cell: Cell, errno| {
            let calls: Vec<i64> = row.calls().collect();
            run(cell, &all_but(cell.0, &calls), &calls, errno)
        };
        match *self {
            Self::Enough(cell) => match run(cell, &all_but(cell.0, &[]), &[], 0) {
                End::Done => Vec::new(),
                end => vec![format!("{cell:?}: not enough is allowed: {end:?}")],
            },
            Self::Needed(row, group) => {
                let kills = |cell: Cell| {
                    run(cell, &all_but(cell.0, group), &[], 0) == End::Killed(libc::SIGSYS)
                };
                // A call may be missing in one run, so several runs look for it.
                let is_needed = (0..TRIES).any(|_| row.cells().any(kills));
                let complaint = || format!("{}: nobody calls {group:?}", row.names);
                (!is_needed).then(complaint).into_iter().collect()
            }
            Self::GoesOn(row, cell, errno) => match refused(row, cell, errno) {
                End::Done => Vec::new(),
                end => vec![format!("{} refused with {errno}, {cell:?}: {end:?}", row.names)],
            },
            Self::Fails(row) => {
                let fails =
                    row.refusals().any(|(cell, errno)| refused(row, cell, errno) != End::Done);
                let complaint = || format!("{}: works when it is refused", row.names);
                (!fails).then(complaint).into_iter().collect()
            }
        }
    }
}

/// The maximum number of runs of each cell in which a call is looked for.
const TRIES: usize = 12;

const ERRNOS: [i32; 2] = [libc::EPERM, libc::ENOSYS];

#[test]
fn what_the_document_lists_is_enough_needed_and_refused_as_it_says() {
    if let Ok(what) = std::env::var(CHILD) {
        return child(&what);
    }
    let mut rows = rows();
    let engines = ENGINES.map(|engine| available(engine).then_some(engine));
    rows.iter_mut().for_each(|row| row.engines.retain(|&engine| engines.contains(&Some(engine))));
    let cells = engines.into_iter().flatten().flat_map(|engine| WHEN.map(|when| (engine, when)));
    let needed = rows.iter().filter(|row| !row.at_times && !row.engines.is_empty());
    let mut checks: Vec<Check<'_>> = cells
        .map(Check::Enough)
        .chain(needed.clone().flat_map(|row| row.groups.iter().map(|one| Check::Needed(row, one))))
        .chain(needed.flat_map(|row| match row.works {
            true => row.refusals().map(|(cell, errno)| Check::GoesOn(row, cell, errno)).collect(),
            false => vec![Check::Fails(row)],
        }))
        .collect();
    // The checks whose children hang take longest, so they come first.
    checks.sort_by_key(|check| !matches!(check, Check::Fails(_)));
    let next = AtomicUsize::new(0);
    let complaints = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let work = || {
            while let Some(check) = checks.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Computed before the lock is taken: an argument of `extend(…)` would be evaluated
                // while the lock is held.
                let found = check.complaints(&rows);
                complaints.lock().expect("no panic").extend(found);
            }
        };
        (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work)));
    });
    let complaints = complaints.into_inner().expect("no panic");
    assert!(complaints.is_empty(), "docs/sandboxes.md:\n{}", complaints.join("\n"));
}
