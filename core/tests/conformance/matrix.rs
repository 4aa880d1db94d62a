//! The suite for every engine in every sandbox. Each pair of an engine and a sandbox, a cell, has a
//! process of its own.
//!
//! By default, the cells are every engine without a sandbox, `auto` in every sandbox, and each pair
//! whose sandbox refuses the engine. With `URINGLET_TEST_MATRIX=full` they are all pairs
//! (`ci/conformance.sh`). The cell of `auto` without a sandbox is the run that this test is part
//! of, unless the matrix is full. Results go to standard error in the harness's words, so that a
//! count of tests includes them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use seccompiler::BpfProgram;

use crate::common::{
    ENGINE, SEED, builder_for, engine_name, refusing, seed, skip, test_making, this_binary,
};

const ENGINES: [&str; 6] = ["auto", "workers", "io_uring", "linux_aio", "posix_aio", "faulty"];

/// A cell takes 30 seconds alone, and less than this limit beside dozens of busy processes.
const CELL_LIMIT: Duration = Duration::from_secs(900);

const IO_URING: &[i64] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
const LINUX_AIO: &[i64] = &[
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    syscalls::Sysno::io_pgetevents as i64,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
];
/// Calls that a program could make, and that Docker's default profile refuses to a container
/// without capabilities: <https://docs.docker.com/engine/security/seccomp/>.
const NOT_IN_DOCKER: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// System calls that fail with an errno instead of being made.
struct Sandbox {
    name: &'static str,
    denials: &'static [(&'static [i64], i32)],
}

const SANDBOXES: [Sandbox; 4] = [
    Sandbox { name: "no sandbox", denials: &[] },
    Sandbox { name: "no io_uring (EPERM)", denials: &[(IO_URING, libc::EPERM)] },
    Sandbox {
        name: "no kernel AIO (ENOSYS)",
        denials: &[(IO_URING, libc::ENOSYS), (LINUX_AIO, libc::ENOSYS)],
    },
    Sandbox {
        name: "docker",
        // A filter cannot read the flags of clone3. After ENOSYS a C library calls clone.
        denials: &[
            (IO_URING, libc::EPERM),
            (NOT_IN_DOCKER, libc::EPERM),
            (&[libc::SYS_clone3], libc::ENOSYS),
        ],
    },
];

impl Sandbox {
    fn is_none(&self) -> bool {
        self.denials.is_empty()
    }

    /// The errno with which this engine is refused here.
    fn refuses(&self, engine: &str) -> Option<i32> {
        let needed = match engine {
            "io_uring" => IO_URING[0],
            "linux_aio" => LINUX_AIO[0],
            _ => return None,
        };
        self.denials.iter().find(|(calls, _)| calls.contains(&needed)).map(|&(_, errno)| errno)
    }

    /// One filter for each errno.
    fn programs(&self) -> Vec<BpfProgram> {
        self.denials.iter().map(|&(calls, errno)| refusing(calls, errno)).collect()
    }

    /// Makes the command run in the sandbox.
    fn enclose(&self, command: &mut Command) {
        let programs = self.programs();
        let install = move || {
            let refused = |_| std::io::Error::from_raw_os_error(libc::EACCES);
            // Sets no_new_privs first, so that no rights are needed.
            programs.iter().try_for_each(|one| seccompiler::apply_filter(one).map_err(refused))
        };
        // SAFETY: between fork and exec the closure makes two system calls per program, and
        // allocates nothing.
        unsafe { command.pre_exec(install) };
    }
}

/// Does the machine itself refuse this engine? Tested without the library.
fn machine_refuses(engine: &str) -> Option<std::io::Error> {
    let mut memory = [0u64; 64];
    let at = memory.as_mut_ptr();
    // SAFETY: a ring of one entry, whose parameters (120 bytes) fit; closed at once. A context of
    // one event, whose handle fits; destroyed at once.
    unsafe {
        let ret = match engine {
            "io_uring" => libc::syscall(libc::SYS_io_uring_setup, 1, at),
            "linux_aio" => libc::syscall(libc::SYS_io_setup, 1, at),
            _ => return None,
        };
        if ret < 0 {
            return Some(std::io::Error::last_os_error());
        }
        match engine {
            "io_uring" => libc::close(ret as i32).into(),
            _ => libc::syscall(libc::SYS_io_destroy, memory[0]),
        };
    }
    None
}

enum Plan {
    Suite,
    Refusal(i32),
    Skipped(String),
    /// The cell is part of this run, or of the full matrix only. The text is for the table.
    Elsewhere(&'static str),
}

fn plan(engine: &str, sandbox: &Sandbox, full: bool) -> Plan {
    if let Some(errno) = sandbox.refuses(engine) {
        return Plan::Refusal(errno);
    }
    match (engine, full) {
        ("auto", false) if sandbox.is_none() => return Plan::Elsewhere("this run"),
        (_, false) if engine != "auto" && !sandbox.is_none() => return Plan::Elsewhere("-"),
        _ => {}
    }
    if engine == "faulty" && !cfg!(feature = "faulty") {
        return Plan::Skipped("built without the feature faulty".to_owned());
    }
    if let Some(error) = machine_refuses(engine) {
        return Plan::Skipped(format!("this machine refuses {engine}: {error}"));
    }
    Plan::Suite
}

/// The variable with the errno that a cell expects, if its sandbox must refuse its engine.
const REFUSED: &str = "URINGLET_TEST_REFUSED";

fn assert_refused(errno: i32) {
    let engine = engine_name();
    let error = builder_for(&engine).build().expect_err("the sandbox forbids it");
    assert_eq!(error.errno(), errno, "{error}");
    let message = error.to_string();
    assert!(message.contains(&engine) && message.contains(symbol(errno)), "{message}");
}

/// The names of the sandboxes' errnos, as in messages.
fn symbol(errno: i32) -> &'static str {
    if errno == libc::EPERM { "EPERM" } else { "ENOSYS" }
}

/// The result of a cell.
struct Cell {
    text: String,
    passed: bool,
    log: String,
}

/// Runs a command for a bounded time.
fn output_of(mut command: Command) -> (Output, bool) {
    let read = |mut file: std::fs::File| {
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).expect("a log");
        std::io::Read::read_to_end(&mut file, &mut bytes).expect("a log");
        bytes
    };
    // The output goes to files. A full pipe would block the child, and a process that outlives the
    // child could keep a pipe open.
    let (out, err) = (tempfile::tempfile().expect("a log"), tempfile::tempfile().expect("a log"));
    let end_of = |file: &std::fs::File| Stdio::from(file.try_clone().expect("a log"));
    command.stdin(Stdio::null()).stdout(end_of(&out)).stderr(end_of(&err));
    let mut child = command.spawn().expect("a process in a sandbox");
    let begin = Instant::now();
    let mut killed = false;
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if begin.elapsed() > CELL_LIMIT && !killed => {
                killed = true;
                child.kill().expect("a child");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    (Output { status, stdout: read(out), stderr: read(err) }, killed)
}

fn run(engine: &str, sandbox: &Sandbox, refusal: Option<(i32, &str)>) -> Cell {
    let mut command = match refusal {
        Some((errno, test)) => {
            let mut command = this_binary(test);
            command.env(REFUSED, errno.to_string());
            command
        }
        None => {
            let mut command = Command::new(std::env::current_exe().expect("this binary"));
            // Four tests run at a time, because they mostly sleep.
            command.args(["--skip", "matrix::", "--test-threads=4"]);
            // The cell makes fewer requests than a separate run of the stress test.
            command.env("URINGLET_STRESS_REQUESTS", "20000").env("PROPTEST_CASES", "24");
            command
        }
    };
    command.env(ENGINE, engine).env(SEED, seed().to_string());
    sandbox.enclose(&mut command);
    let begin = Instant::now();
    let (output, killed) = output_of(command);
    let seconds = begin.elapsed().as_secs_f32();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = out.lines().find(|line| line.starts_with("test result: "));
    let name = format!("{engine}, {}", sandbox.name);
    let mut report = String::new();
    let mut skipped = 0;
    for line in err.lines().filter_map(|line| line.strip_prefix("SKIPPED ")) {
        skipped += 1;
        let _ = writeln!(report, "SKIPPED {name}, {line}");
    }
    let lost = "test result: FAILED. 0 passed; 1 failed; 0 ignored; the process died";
    let _ = writeln!(report, "{} ({name})", result.unwrap_or(lost));
    let _ = write!(std::io::stderr(), "\n{report}");
    let count = |what: &str| -> usize {
        let part = result.and_then(|line| line.split(['.', ';']).find(|part| part.ends_with(what)));
        part.and_then(|part| part.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let passed = output.status.success() && result.is_some() && count(" passed") > 0;
    let (ok, failed) = (count(" passed") - skipped.min(count(" passed")), count(" failed"));
    let text = match (refusal, passed) {
        (Some((errno, _)), true) => format!("refused ({}) as expected", symbol(errno)),
        (None, true) if skipped > 0 => format!("{ok} passed, {skipped} skipped"),
        (None, true) => format!("{ok} passed"),
        (_, false) if killed => "FAILED: hangs".to_owned(),
        (_, false) if result.is_none() => format!("FAILED: {}", output.status),
        (_, false) => format!("FAILED: {failed} of {}", ok + skipped + failed),
    };
    let log = if passed {
        String::new()
    } else {
        format!("=== {name}, {SEED}={}\n{out}\n{err}\n", seed())
    };
    Cell { text: format!("{text} ({seconds:.0} s)"), passed, log }
}

fn cell(engine: &str, sandbox: &Sandbox, plan: Plan, test: &str) -> Cell {
    let told = |text: &str| Cell { text: text.to_owned(), passed: true, log: String::new() };
    match plan {
        Plan::Suite => run(engine, sandbox, None),
        Plan::Refusal(errno) => run(engine, sandbox, Some((errno, test))),
        Plan::Elsewhere(text) => told(text),
        Plan::Skipped(reason) => {
            let line = "test result: ok. 0 passed; 0 failed; 1 ignored; SKIPPED";
            let name = sandbox.name;
            let _ = writeln!(std::io::stderr(), "\n{line} {engine}, {name}: {reason}");
            told("SKIPPED")
        }
    }
}

#[test]
fn every_engine_keeps_the_promises_in_every_sandbox() {
    let test = test_making(|| ());
    if let Ok(errno) = std::env::var(REFUSED) {
        return assert_refused(errno.parse().expect(REFUSED));
    }
    if std::env::var_os(ENGINE).is_some() {
        return skip("one engine was asked for, so the others are left out");
    }
    let full = std::env::var("URINGLET_TEST_MATRIX").is_ok_and(|which| which == "full");
    let all: Vec<(&str, &Sandbox)> =
        ENGINES.iter().flat_map(|&engine| SANDBOXES.iter().map(move |one| (engine, one))).collect();
    let cells: Vec<OnceLock<Cell>> = all.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    // Two cells run at a time, because their tests mostly sleep.
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(engine, sandbox)) = all.get(at) else { return };
                let cell = cell(engine, sandbox, plan(engine, sandbox, full), test);
                assert!(cells[at].set(cell).is_ok(), "once each");
            }
        };
        (0..2).for_each(|_| drop(scope.spawn(work)));
    });
    let cells: Vec<Cell> = cells.into_iter().filter_map(OnceLock::into_inner).collect();
    let width = cells.iter().map(|cell| cell.text.len()).max().unwrap_or(0) + 2;
    let mut table = format!("{:<10}", "");
    for sandbox in &SANDBOXES {
        let _ = write!(table, "{:<width$}", sandbox.name);
    }
    for (engine, row) in ENGINES.iter().zip(cells.chunks(SANDBOXES.len())) {
        let _ = write!(table, "\n{engine:<10}");
        for cell in row {
            let _ = write!(table, "{:<width$}", cell.text);
        }
    }
    let _ = writeln!(std::io::stderr(), "\n{table}\n");
    let logs: String = cells.iter().map(|cell| &cell.log[..]).collect();
    assert!(cells.iter().all(|cell| cell.passed), "{logs}\n{table}");
}
