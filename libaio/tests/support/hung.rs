//! Programs that take their steps while the server of their file does not answer.
//!
//! A step passes if its end was seen before the server was told to go on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::fuse::{ALL, Disk, READS, TRANSFERS};

/// A call that takes longer than this waits for the server, and would do so without end. Nothing
/// else takes this long, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// The limit if the server answers.
const LONG: Duration = Duration::from_secs(60);

/// One way to run the program.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The drop-in and its engine; none: the original library.
    pub drop_in: Option<(&'a Path, &'a str)>,
    /// `buffered` or `direct`.
    pub mode: &'a str,
    /// `fresh`, or `known` if requests have been made on the descriptor.
    pub known: &'a str,
    /// The last argument of the program: what it does while the server does not answer.
    pub task: &'a str,
}

/// Compiles the program `hung.c` of a drop-in.
pub fn compile(manifest: &str, folder: &Path, link: &[&str]) -> PathBuf {
    let program = folder.join("hung");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(Path::new(manifest).join("tests/house/hung.c"))
        .args(link)
        .output();
    let output = output.expect("a C compiler: run ci/setup.sh");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text} (run ci/setup.sh)");
    program
}

/// The program, until it is dropped.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    fn start(program: &Path, folder: &Path, file: &Path, case: Case<'_>) -> Self {
        let mut command = Command::new(program);
        command.arg(file).args([case.mode, case.known, case.task]).env("TMPDIR", folder);
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD")
            .env_remove("URINGLET_ENGINE");
        if let Some((library, engine)) = case.drop_in {
            command.env("LD_PRELOAD", library).env("URINGLET_ENGINE", engine);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, input, lines }
    }

    /// The next line of the program; `None` if none comes within the limit.
    fn line(&mut self) -> Result<Option<String>, String> {
        self.line_in(LIMIT)
    }

    fn line_in(&mut self, limit: Duration) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(format!("has ended: {}", self.complaint())),
        }
    }

    /// Reads the next line of the program, which must be `expected`. The program must be able to
    /// print this line without an answer of the server.
    fn expect(&mut self, expected: &str) -> Result<(), String> {
        match self.line_in(LONG)? {
            Some(line) if line == expected => Ok(()),
            Some(line) => Err(format!("says {line:?} instead of {expected:?}")),
            None => Err(format!("does not come to {expected:?}")),
        }
    }

    fn tell(&mut self) {
        // If the program has ended, the next `line` says so.
        let _ = self.input.write_all(b"\n");
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
        }
        text
    }

    /// The exit status of the program, if it ends within the limit.
    fn end(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            let status = self.child.try_wait().expect("a child");
            if status.is_some() || begin.elapsed() > LIMIT {
                return status;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The system calls in which the program's threads are, from /proc.
    fn threads(&self) -> String {
        let process = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(&process).into_iter().flatten().flatten();
        let read = |task: &std::path::Path, name| {
            let text = std::fs::read_to_string(task.join(name)).unwrap_or_default();
            text.trim().replace('\n', " < ")
        };
        let thread = |task: std::fs::DirEntry| {
            let at = task.path();
            let [name, call, stack] = ["comm", "syscall", "stack"].map(|what| read(&at, what));
            format!("\n    {name}: {call}, {stack}")
        };
        tasks.map(thread).collect()
    }

    /// Does the program's first thread sleep?
    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('S' | 'D'))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Follows the program's steps until it prints `ready`, while the server holds these kinds of
/// requests. Returns the steps that ended only when the server went on.
fn late_steps(disk: &mut Disk, program: &mut Program, kinds: u64) -> Result<Vec<String>, String> {
    let mut late = Vec::new();
    let mut step = String::new();
    loop {
        match program.line()? {
            Some(line) if line == "ready" => return Ok(late),
            Some(line) => match line.strip_prefix("begin ") {
                Some(begun) => begun.clone_into(&mut step),
                None => assert!(line.starts_with("end "), "{line}"),
            },
            None => {
                let where_it_is = program.threads();
                // The server answers, so that the step ends. After that, the server holds requests
                // again, as early as possible in the next step.
                disk.go_on();
                match program.line()? {
                    Some(line) if line.starts_with(&format!("end {step}")) => {}
                    other => return Err(format!("{step} does not end at all: {other:?}")),
                }
                late.push(format!("{} in {where_it_is}", std::mem::take(&mut step)));
                disk.hold(kinds);
            }
        }
    }
}

/// Runs the program while the server of its file hangs. Returns the steps that waited for the
/// server; `Err` for other errors.
pub fn run(
    disk: &mut Disk,
    program: &Path,
    folder: &Path,
    case: Case<'_>,
) -> Result<Vec<String>, String> {
    let mut late = Vec::new();
    let ending = matches!(case.task, "exit" | "kill");
    let held = match case.task {
        "steps" => &[("everything", ALL), ("transfers", TRANSFERS)][..],
        _ => &[("transfers", TRANSFERS)][..],
    };
    for &(what, kinds) in held {
        let file = if ending { disk.unflushed() } else { disk.file() };
        let mut program = Program::start(program, folder, &file, case);
        let found = through(disk, &mut program, case.task, kinds);
        // In any case, the next program finds a server that answers.
        disk.go_on();
        let found = found.map_err(|error| format!("{what} held: {error}"))?;
        late.extend(found.into_iter().map(|step| format!("{step} ({what} held)")));
    }
    Ok(late)
}

fn through(
    disk: &mut Disk,
    program: &mut Program,
    task: &str,
    kinds: u64,
) -> Result<Vec<String>, String> {
    program.expect("ready")?;
    if matches!(task, "exit" | "kill") {
        disk.stop();
        program.tell();
        return ends(disk, program, task);
    }
    disk.hold(kinds);
    program.tell();
    let late = if task == "destroy" {
        destroys(disk, program)?;
        Vec::new()
    } else {
        late_steps(disk, program, kinds)?
    };
    disk.go_on();
    program.tell();
    program.expect("done")?;
    match program.end() {
        Some(status) if status.success() => Ok(late),
        status => Err(format!("ends with {status:?}: {}", program.complaint())),
    }
}

/// Checks that the program waits in io_destroy while the server holds its reads, and that the call
/// ends when the server goes on.
fn destroys(disk: &mut Disk, program: &mut Program) -> Result<(), String> {
    for expected in ["begin submit", "end submit: 4", "begin destroy"] {
        program.expect(expected)?;
    }
    if !disk.holds(1, READS) {
        return Err("no read reaches the server".to_owned());
    }
    let begin = Instant::now();
    while !program.sleeps() {
        if begin.elapsed() > LIMIT {
            return Err("io_destroy neither waits nor returns".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Ok(line) = program.lines.try_recv() {
        return Err(format!("says {line:?} while its reads are held"));
    }
    disk.go_on();
    program.expect("end destroy: 0")?;
    program.expect("ready")
}

/// The program has to end while the server does not answer, by itself or because it is killed.
/// Returns the steps that waited for the server.
fn ends(disk: &mut Disk, program: &mut Program, task: &str) -> Result<Vec<String>, String> {
    let mut late = Vec::new();
    program.expect("begin submit")?;
    let mut line = program.line()?;
    if line.is_none() {
        late.push("submit".to_owned());
        disk.go_on();
        line = program.line()?;
        disk.stop();
    }
    if !line.is_some_and(|line| line.starts_with("end submit")) {
        return Err("submit does not end at all".to_owned());
    }
    program.expect(&format!("begin {task}"))?;
    if task == "kill" {
        program.child.kill().expect("a child");
    }
    if program.end().is_none() {
        late.push(task.to_owned());
        disk.go_on();
        program.end().ok_or("does not end at all")?;
    }
    Ok(late)
}
