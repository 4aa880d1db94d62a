//! `uringlet run` is the parent of its program. Signals that are sent to the command act as if they
//! were sent to the program.

#![allow(unsafe_code)]

mod skip;

use libc::c_int;
use rustix::process::{Pid, WaitId, WaitIdOptions, geteuid, waitid};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Prints each signal that it gets, with its value if it has one. Ends at the last signal.
const PRINTS_SIGNALS: &str = r#"
#include <signal.h>
#include <stdio.h>
int main(void) {
    sigset_t all;
    siginfo_t info;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    do {
        if (sigwaitinfo(&all, &info) < 0) return 1;
        if (info.si_code == SI_QUEUE)
            printf("%d with %d\n", info.si_signo, info.si_value.sival_int);
        else
            printf("%d\n", info.si_signo);
    } while (info.si_signo != SIGRTMAX);
    return 0;
}
"#;

/// Compiles the source, and returns the program's path.
fn compile(folder: &Path, source: &str) -> PathBuf {
    let (file, program) = (folder.join("source.c"), folder.join("program"));
    std::fs::write(&file, source).unwrap();
    let made = Command::new("cc").arg(&file).arg("-o").arg(&program).status().unwrap();
    assert!(made.success());
    program
}

/// `uringlet run --` in front of a program.
fn under_run() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
    command.args(["run", "--"]);
    command
}

/// A program that was started, and the lines that it prints.
struct Program {
    child: Child,
    /// The process that gets signals.
    id: c_int,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts the program in a process group of its own, and waits until it is ready.
    fn start(command: &mut Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// As [`start`](Self::start), with this standard input.
    fn start_with(command: &mut Command, input: Stdio) -> Self {
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let id = child.id().cast_signed();
        let mut program = Self { child, id, lines };
        assert_eq!(program.line(), "ready");
        program
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let line = self.lines.next();
        line.unwrap_or_else(|| panic!("no line: {:?}", self.child.wait())).unwrap()
    }

    /// From now on, signals go to the only child of the process that was started.
    fn behind_its_parent(mut self) -> Self {
        let list = format!("/proc/{0}/task/{0}/children", self.id);
        self.id = std::fs::read_to_string(list).unwrap().trim().parse().unwrap();
        self
    }

    fn send(&self, signal: c_int, value: Option<usize>) {
        let value = value.map(|value| libc::sigval { sival_ptr: value as *mut libc::c_void });
        let sent = match value {
            // SAFETY: the call passes the value on as a number.
            Some(value) => unsafe { libc::sigqueue(self.id, signal, value) },
            // SAFETY: the call takes two numbers.
            None => unsafe { libc::kill(self.id, signal) },
        };
        assert_eq!(sent, 0, "signal {signal}");
    }

    fn send_to_group(&self, signal: c_int) {
        // SAFETY: the call takes two numbers.
        assert_eq!(unsafe { libc::kill(-self.id, signal) }, 0, "signal {signal}");
    }

    /// Waits until the process is stopped.
    fn wait_for_stop(&self) {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let found = waitid(id, WaitIdOptions::STOPPED | WaitIdOptions::EXITED).unwrap().unwrap();
        assert!(found.stopped(), "{found:?}");
    }
}

/// Sends each signal but SIGSYS, SIGKILL and the signals that stop a process. Returns what the
/// program has got.
fn told(mut program: Program) -> Vec<String> {
    // A program on a drop-in that may trap calls cannot block SIGSYS, which would end it.
    let (stops, kill) =
        ([libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU], libc::SIGKILL);
    let is_other =
        |signal: c_int| stops.contains(&signal) || [kill, libc::SIGSYS].contains(&signal);
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    let plain = (1..32).filter(|&signal| !is_other(signal));
    let mut told = Vec::new();
    for (signal, value) in plain
        .map(|signal| (signal, None))
        .chain([(libc::SIGTERM, Some(5)), (libc::SIGRTMIN() + 3, Some(42))])
    {
        program.send(signal, value);
        told.push(program.line());
    }
    for signal in real_time {
        program.send(signal, None);
        told.push(program.line());
    }
    assert!(program.child.wait().unwrap().success());
    told
}

#[test]
fn every_signal_reaches_the_program_as_it_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), PRINTS_SIGNALS);
    let natively = told(Program::start(&mut Command::new(&program)));
    assert!(natively.contains(&format!("{} with 42", libc::SIGRTMIN() + 3)), "{natively:?}");
    assert_eq!(told(Program::start(under_run().arg(&program))), natively);
}

/// Waits for a signal for a moment, and fails if something else ends the wait.
const WAITS: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
int main(void) {
    sigset_t all;
    struct timespec moment = { 0, 20000000 };
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    if (sigtimedwait(&all, 0, &moment) == -1 && errno == EAGAIN) return 0;
    perror("sigtimedwait");
    return 1;
}
"#;

/// What the drop-ins do when the program starts must not end its waits with EINTR. (The kernel does
/// that to a thread that has made a ring and closed it.)
#[test]
fn no_wait_of_the_program_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), WAITS);
    for _ in 0..10 {
        let ran = under_run().arg(&program).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// `uringlet run --` as the first process of a new PID namespace, as in a container. The leaders of
/// its group and of its session are outside. `None` if this system refuses namespaces.
fn under_run_as_first(test: &str) -> Option<Command> {
    let flags = if geteuid().is_root() { "-pf" } else { "-rpf" };
    let uringlet = assert_cmd::cargo::cargo_bin!("uringlet");
    let probe = Command::new("unshare").args([flags, "true"]).output();
    if !probe.is_ok_and(|ran| ran.status.success()) {
        skip::skipped(test, "no PID namespaces here");
        return None;
    }
    let mut command = Command::new("unshare");
    command.arg(flags).arg(uringlet).args(["run", "--"]);
    Some(command)
}

#[test]
fn every_signal_reaches_the_program_in_a_container() {
    let test = "every_signal_reaches_the_program_in_a_container";
    let Some(mut command) = under_run_as_first(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), PRINTS_SIGNALS);
    let natively = told(Program::start(&mut Command::new(&program)));
    assert_eq!(told(Program::start(command.arg(&program)).behind_its_parent()), natively);
}

/// A process whose parent has ended becomes a child of the first process, which has to reap it.
#[test]
fn the_first_process_of_a_container_leaves_no_zombies() {
    let test = "the_first_process_of_a_container_leaves_no_zombies";
    let Some(mut command) = under_run_as_first(test) else { return };
    let script = "orphan=$(sh -c 'sh -c : >/dev/null & echo $!')
        while kill -0 $orphan; do :; done; exit 7";
    let ran = command.args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(7), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Prints its id, and waits for the end of its input. With an argument, it handles SIGTSTP.
const STOPS: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void stop(int signal) { (void)signal; raise(SIGSTOP); }
int main(int count, char **values) {
    char byte;
    struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };
    (void)values;
    if (count > 1) sigaction(SIGTSTP, &action, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready\n%d\n", getpid());
    while (read(0, &byte, 1) != 0) if (errno != EINTR) return 1;
    puts("goes on");
    return 7;
}
"#;

/// Waits until the process with this id is stopped.
fn wait_until_stopped(id: &str) {
    let is_stopped = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    while !is_stopped() {
        std::thread::yield_now();
    }
}

/// A terminal stops its whole foreground group. A shell waits for its child, which is `uringlet
/// run`, and has to see it stopped. The program may handle the signal, and stop itself by SIGSTOP.
#[test]
fn a_stop_of_the_group_stops_the_command_and_both_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = compile(folder.path(), STOPS);
    for handles in [&[][..], &["handles"]] {
        for mut command in [Command::new(&file), under_run()] {
            if command.get_program() != file {
                command.arg(&file);
            }
            let (reader, writer) = std::io::pipe().unwrap();
            let mut program = Program::start_with(command.args(handles), reader.into());
            let id = program.line();
            program.send_to_group(libc::SIGTSTP);
            program.wait_for_stop();
            wait_until_stopped(&id);
            program.send_to_group(libc::SIGCONT);
            drop(writer);
            assert_eq!(program.line(), "goes on", "{command:?}");
            assert_eq!(program.child.wait().unwrap().code(), Some(7), "{command:?}");
        }
    }
}

/// A signal may stop the program alone, and another one may continue it. The command must not stay
/// stopped then.
#[test]
fn a_stop_of_the_program_alone_does_not_stop_the_command() {
    for signal in ["STOP", "TSTP"] {
        let stopped = "grep -q '^State:.T' /proc/$$/status";
        let script = format!(
            "echo ready; (until {stopped}; do :; done; kill -CONT $$) & kill -{signal} $$; exit 7"
        );
        let mut program = Program::start(under_run().args(["bash", "-c", &script]));
        assert_eq!(program.child.wait().unwrap().code(), Some(7), "{signal}");
    }
}

/// A program that signals its own group gets the signal. If the command passed it on, the program
/// would get it a second time.
#[test]
fn what_the_program_sends_to_its_group_is_not_sent_back() {
    let script = "trap 'echo got it' USR1; echo ready; kill -USR1 0; read line; echo ends";
    for command in
        [Command::new("bash").args(["-c", script]), under_run().args(["bash", "-c", script])]
    {
        let mut program = Program::start(command);
        assert_eq!((program.line(), program.line()), ("got it".into(), "ends".into()));
        assert!(program.lines.next().is_none() && program.child.wait().unwrap().success());
    }
}
