//! `uringlet top` on running programs: it shows their figures and fits the screen. Killed programs
//! leave no files behind.
#![allow(unsafe_code)]

use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use uringlet::{Context, Sqe};

/// The longest time that a test waits for something.
const PATIENCE: Duration = Duration::from_secs(60);

fn uringlet() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
}

/// Calls `look` until it returns something, for at most [`PATIENCE`].
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn top(arguments: &[&str]) -> Output {
    uringlet().args(["top", "--interval", "50ms"]).args(arguments).output().unwrap()
}

/// The program that a process is part of, if `top` shows that program.
fn look(pid: u32) -> Option<Value> {
    let output = top(&["--json", "-", "--once", &pid.to_string()]);
    let mut look: Value = serde_json::from_slice(&output.stdout).ok()?;
    let programs = look["programs"].as_array_mut()?;
    assert_eq!(programs.len(), 1);
    programs.pop()
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// A shell under `uringlet run` that starts fio. fio runs until it is told to end, and the shell
/// stays.
struct Running {
    folder: tempfile::TempDir,
    run: Child,
    fio: u32,
}

impl Running {
    fn start(options: &[&str], jobs: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let job = format!(
            "fio --name=job --directory=$0 --size=1M --bs=4k --ioengine=libaio --iodepth=4 \
             --rw=randrw --numjobs={jobs} --rate_iops=500 --time_based --runtime=600 \
             --output-format=json --output=$0/fio.json & \
             echo $!; wait $!; echo done; read end; exit 0"
        );
        let mut run = uringlet()
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", &job])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let fio = line(&mut run).parse().expect("the shell says fio's process id");
        // Before fio has laid out its files, a signal ends it without a report.
        let laid_out = || folder.path().join("job.0.0").exists().then_some(());
        wait_for("fio's first file", laid_out);
        Self { folder, run, fio }
    }

    /// Ends fio, and returns the number of requests that it has counted.
    fn end_fio(&mut self) -> u64 {
        signal(self.fio, "TERM");
        assert_eq!(line(&mut self.run), "done");
        let report = std::fs::read_to_string(self.folder.path().join("fio.json")).unwrap();
        let from = report.find('{').expect("a report");
        let report: Value = serde_json::from_str(&report[from..]).unwrap();
        let jobs = report["jobs"].as_array().unwrap();
        let count = |job: &Value, kind: &str| job[kind]["total_ios"].as_u64().unwrap();
        jobs.iter().map(|job| count(job, "read") + count(job, "write")).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // fio may have ended by itself. Otherwise kill(1) asks it to end, so that it ends its jobs,
        // too.
        let _ = Command::new("kill").args(["-TERM", &self.fio.to_string()]).output();
        wait_for("fio's end", || (!is_running(self.fio)).then_some(()));
        drop(self.run.stdin.take());
        let _ = self.run.wait();
    }
}

/// The next line of a child's standard output. It reads byte by byte, so that it takes nothing of
/// the line after.
fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, stdout).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn figures_move_agree_with_fio_and_go_with_the_program() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--stats-json", json.path().to_str().unwrap()];
    let mut running = Running::start(&options, 1);
    let pid = running.run.id();
    let moves = |of: &Value| of["interval"]["requests_per_s"].as_f64() > Some(0.0);
    let program = wait_for("requests", || {
        look(pid).filter(|program| moves(program) && moves(&program["contexts"][0]))
    });
    assert_eq!(program["program"], "sh");
    let context = &program["contexts"][0];
    assert_eq!(context["program"], "fio");
    assert!(context["engine"].as_str().unwrap().starts_with("auto"), "{context}");
    // `top` shows the program for the pid of any of its processes.
    let member = u32::try_from(context["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(look(member).expect("observed")["pid"], program["pid"]);

    let requests = running.end_fio();
    let program = look(pid).expect("the shell is still there");
    assert_eq!(program["totals"]["requests"], requests, "{program}");
    assert_eq!(program["in_flight"], 0);
    assert!(program["contexts"].as_array().unwrap().is_empty(), "fio has ended: {program}");

    drop(running.run.stdin.take());
    assert!(running.run.wait().unwrap().success());
    let all = top(&["--once", "--json", "-"]);
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    let mut programs = all["programs"].as_array().unwrap().iter();
    assert!(programs.all(|other| other["pid"] != program["pid"]), "{all}");
    let last: Value = serde_json::from_reader(json.as_file()).unwrap();
    assert_eq!(last["totals"]["requests"], requests);
    assert_eq!(last["ended"], true);
}

#[test]
fn children_made_by_fork_count_into_their_parents_program() {
    let mut running = Running::start(&["--stats"], 3);
    let pid = running.run.id();
    let program = wait_for("three jobs", || {
        look(pid).filter(|program| program["contexts"].as_array().unwrap().len() == 3)
    });
    let contexts = program["contexts"].as_array().unwrap();
    let mut pids: Vec<_> = contexts.iter().map(|context| context["pid"].as_u64()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3, "{program}");
    let requests = running.end_fio();
    assert_eq!(look(pid).unwrap()["totals"]["requests"], requests);
}

/// Files that the programs could have left behind.
fn leavings() -> Vec<PathBuf> {
    let folders = [Path::new("/dev/shm").to_owned(), std::env::temp_dir()];
    let entries = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let names = entries.map(|entry| entry.path());
    names.filter(|path| path.to_string_lossy().contains("uringlet")).collect()
}

#[test]
fn nothing_is_left_of_the_killed() {
    for (program_first, both) in [(true, false), (false, false), (false, true)] {
        let before = leavings();
        let mut running = Running::start(&["--stats"], 1);
        let (pid, fio) = (running.run.id(), running.fio);
        let program = wait_for("a context", || {
            look(pid).filter(|program| !program["contexts"].as_array().unwrap().is_empty())
        });
        let processes = program["processes"].as_array().unwrap().clone();
        let processes = processes.iter().map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap());
        let worker = u32::try_from(program["contexts"][0]["pid"].as_u64().unwrap()).unwrap();
        if program_first {
            signal(worker, "KILL");
            wait_for("the context's end", || {
                look(pid)?["contexts"].as_array()?.is_empty().then_some(())
            });
            signal(pid, "KILL");
        } else {
            signal(pid, "KILL");
            running.run.wait().unwrap();
            if !both {
                let orphan = look(worker).expect("the program goes on, and so do its counters");
                assert_eq!(orphan["contexts"].as_array().unwrap().len(), 1);
            }
            signal(worker, "KILL");
        }
        drop(running);
        for process in processes.chain([worker, fio]) {
            wait_for("the end of the processes", || (!is_running(process)).then_some(()));
            let output = top(&["--once", &process.to_string()]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
        }
        // Other tests have files there for a short time, so this waits until those are removed.
        let is_clean = || leavings().iter().all(|path| before.contains(path)).then_some(());
        wait_for("nothing left", is_clean);
    }
}

#[test]
fn a_rust_program_is_seen_when_it_asks_for_it_and_contexts_without_a_place_are_in_the_sum() {
    let own = std::process::id();
    uringlet::stats::observe().unwrap();
    let mut contexts: Vec<Context> = (0..130).map(|_| Context::new(1).unwrap()).collect();
    for context in &mut contexts {
        // SAFETY: a nop has no addresses.
        unsafe { context.push(Sqe::nop()) }.unwrap();
        context.submit().unwrap();
        context.wait(1, None).unwrap();
    }
    let program = look(own).expect("observed");
    assert_eq!(program["pid"], own);
    assert_eq!(program["contexts"].as_array().unwrap().len(), 128);
    assert_eq!(program["totals"]["contexts"], 130);
    assert_eq!(program["totals"]["requests"], 130);
    contexts.truncate(1);
    let program = look(own).expect("observed");
    assert_eq!(program["contexts"].as_array().unwrap().len(), 1);
    assert_eq!(program["totals"]["requests"], 130, "what was done stays counted");
}

/// An empty memory file with the name of the counters' memory. Any program can make such a file.
fn not_a_region() -> Stdio {
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(c"uringlet-stats".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, which is nobody else's.
    Stdio::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[test]
fn what_cannot_be_shown_is_refused_in_one_line() {
    let refused = |output: Output, reason: &str| {
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(reason) && text.lines().count() == 1, "{text}");
    };
    let mut sleeper = Command::new("sleep").arg("600").stdin(not_a_region()).spawn().unwrap();
    let pid = sleeper.id().to_string();
    refused(top(&["--once", &pid]), "counts as another version of uringlet does");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = sleeper.id().to_string();
    refused(
        top(&["--once", &pid]),
        "(sleep) is not observed: start the program with `uringlet run",
    );
    refused(top(&[&pid]), "not a terminal; --once");
    if Path::new("/proc/self").metadata().unwrap().uid() == 0 {
        // The user `nobody`, who may not be allowed into the folder of the build.
        const NOBODY: u32 = 65534;
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("uringlet");
        let cp = Command::new("cp").arg(uringlet().get_program()).arg(&copy).status();
        assert!(cp.unwrap().success());
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(copy).args(["top", "--once", &pid]).uid(NOBODY).output();
        let output = output.unwrap();
        refused(output, "is another user's, or protected");
    } else {
        refused(top(&["--once", "1"]), "is another user's, or protected");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    refused(top(&["--once", &pid]), &format!("PID is {pid}, expected a process that runs"));
}

/// A terminal of a fixed size in tmux, with a shell in it. Dropping this ends the server of tmux.
struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    fn start(width: u16, height: u16, script: &str) -> Self {
        let terminal = Self { folder: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        let new = ["-f", "/dev/null", "new-session", "-d"];
        let shell = ["sh", "-c", &format!("{script}; read end")];
        terminal.tmux(&[&new[..], &size, &shell].concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR").arg("-S");
        let output = tmux.arg(self.folder.path().join("socket")).args(arguments).output();
        let output = output.expect("tmux, which ci/setup.sh installs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen contains this text, and returns the screen.
    fn shows(&self, text: &str) -> String {
        wait_for(text, || Some(self.screen()).filter(|screen| screen.contains(text)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.folder.path().join("socket");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

fn quoted_top() -> String {
    format!("{} top --interval 50ms", uringlet().get_program().to_str().unwrap())
}

#[test]
fn the_screen_fits_every_terminal_and_answers_to_keys() {
    let running = Running::start(&["--stats"], 1);
    let pid = running.run.id();
    let engine = "1 × auto";
    for (width, height) in [(80, 24), (120, 40), (50, 15), (20, 5)] {
        let terminal =
            Terminal::start(width, height, &format!("{} {pid}; echo status $?", quoted_top()));
        let screen = if height > 5 { terminal.shows(engine) } else { terminal.shows("sh") };
        assert!(screen.lines().count() <= usize::from(height), "{screen}");
        for head in ["PID", "PROGRAM"] {
            assert!(screen.contains(head) || width < 50, "{head} is missing in\n{screen}");
        }
        for head in ["REQ/S", "INFL", "CPL 99%", "WAITER", "kernel"] {
            assert!(screen.contains(head) || width < 50, "{head} is missing in\n{screen}");
        }
        if width >= 50 {
            terminal.shows("by REQ/S, every 0.05 s");
            terminal.tmux(&["send-keys", "s"]);
            terminal.shows("by READ/S");
            terminal.tmux(&["send-keys", "+"]);
            terminal.shows("every 0.1 s");
            terminal.tmux(&["send-keys", "Space"]);
            terminal.shows("paused");
            terminal.tmux(&["send-keys", "?"]);
            terminal.shows("sort by the next column");
            terminal.tmux(&["send-keys", "?"]);
            terminal.shows(engine);
        }
        terminal.tmux(&["send-keys", "q"]);
        terminal.shows("status 0");
    }
}

#[test]
fn the_terminal_is_restored_whatever_ends_top() {
    let mut running = Running::start(&["--stats"], 1);
    let script = format!(
        "stty -g >$0.before; {}; echo status $?; stty -g | cmp - $0.before && echo restored",
        "TOP"
    );
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings").to_str().unwrap().to_owned();
    let top = format!("{} {}", quoted_top(), running.run.id());
    let script = script.replace("TOP", &format!("sh -c 'echo $$ >'$0'.pid; exec {top}'"));
    let script = script.replace("$0", &settings);
    let top_pid = || -> u32 {
        let text = std::fs::read_to_string(format!("{settings}.pid")).unwrap();
        text.trim().parse().unwrap()
    };
    type End<'a> = &'a mut dyn FnMut(&Terminal);
    let mut ends: [(End, &str); 5] = [
        (&mut |terminal| drop(terminal.tmux(&["send-keys", "C-c"])), "status 0"),
        (&mut |terminal| drop(terminal.tmux(&["send-keys", "Escape"])), "status 0"),
        (&mut |_| signal(top_pid(), "TERM"), "status 130"),
        (&mut |_| signal(top_pid(), "HUP"), "status 130"),
        (
            &mut |_| {
                running.end_fio();
                drop(running.run.stdin.take());
            },
            "has ended",
        ),
    ];
    for (end, status) in &mut ends {
        let terminal = Terminal::start(80, 24, &script);
        terminal.shows("uringlet top  1 program");
        end(&terminal);
        terminal.shows(status);
        let screen = terminal.shows("restored");
        assert!(!screen.contains("uringlet top  1"), "the shell's screen is back: {screen}");
    }
}

#[test]
fn top_ends_with_its_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    // `top` runs once as the terminal's own process, which gets a signal at the terminal's end, and
    // once with that signal ignored.
    for before in ["", "trap '' HUP; "] {
        let terminal = Terminal::start(
            80,
            24,
            &format!("{before}echo $$ >{}; exec {} --all", file.display(), quoted_top()),
        );
        terminal.shows("uringlet top");
        let pid = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        drop(terminal);
        wait_for("the end of top", || (!is_running(pid)).then_some(()));
    }
}

#[test]
fn no_color_means_no_colour() {
    for (setting, coloured) in [("NO_COLOR=", true), ("NO_COLOR=1", false)] {
        let terminal = Terminal::start(80, 24, &format!("{setting} {} --all", quoted_top()));
        terminal.shows("uringlet top");
        let escapes = terminal.tmux(&["capture-pane", "-p", "-e"]);
        let title = escapes.lines().next().unwrap();
        assert_eq!(title.contains("[38;5;") || title.contains("[36m"), coloured, "{title:?}");
    }
}
