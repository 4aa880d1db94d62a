//! `uringlet run` and its program: refusals, exit status, signals, the file of the counters.
//!
//! The drop-ins have tests of their own; in most of these tests, empty libraries replace them.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn uringlet() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet"))
}

const DROP_INS: [&str; 3] = ["libaio.so", "libposix_aio.so", "liburing.so"];

/// A folder with a copy of the command, and empty drop-ins beside it.
struct Installation(tempfile::TempDir);

impl Installation {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another process makes the copy. A child of a parallel test could inherit a descriptor of
        // this process that is open for writing. Executing the copy would fail with ETXTBSY then.
        let mut cp = std::process::Command::new("cp");
        let copied = cp.arg(assert_cmd::cargo::cargo_bin!("uringlet")).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        for name in DROP_INS {
            compile(folder.path(), "int nothing;", &["-shared", "-fPIC"], name);
        }
        Self(folder)
    }

    fn executable(&self) -> PathBuf {
        self.0.path().join("uringlet")
    }

    fn run(&self, arguments: &[&str]) -> assert_cmd::assert::Assert {
        Command::new(self.executable()).arg("run").args(arguments).assert()
    }
}

/// Compiles the source. Returns false if cc fails.
fn try_compile(folder: &Path, source: &str, flags: &[&str], name: &str) -> bool {
    let file = folder.join("source.c");
    std::fs::write(&file, source).unwrap();
    let mut cc = std::process::Command::new("cc");
    let made = cc.args(flags).arg(&file).arg("-o").arg(folder.join(name)).output();
    made.is_ok_and(|made| made.status.success())
}

fn compile(folder: &Path, source: &str, flags: &[&str], name: &str) {
    // rustc links with cc, so cc is installed.
    assert!(try_compile(folder, source, flags, name), "cc {flags:?} failed");
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    uringlet()
        .args(["run", "--", "no-such-program-anywhere"])
        .assert()
        .code(2)
        .stderr(contains("no-such-program-anywhere: no such program"));
    uringlet().args(["run", "--", "/tmp"]).assert().code(2).stderr(contains("is a directory"));

    let folder = tempfile::tempdir().unwrap();
    if try_compile(folder.path(), "int main(void) { return 0; }", &["-static"], "static") {
        let program = folder.path().join("static");
        uringlet()
            .args(["run", "--stats", "--"])
            .arg(program)
            .assert()
            .code(2)
            .stderr(contains("/static: statically linked"));
    } else {
        let name = "what_cannot_work_is_refused_before_it_starts";
        skip::skipped(name, "cc -static does not work here");
    }
}

#[test]
fn a_command_that_was_installed_elsewhere_runs_programs_on_what_was_built_with_it() {
    for name in DROP_INS {
        let installation = Installation::new();
        std::fs::remove_file(installation.0.path().join(name)).unwrap();
        Command::new(installation.executable())
            .env("XDG_CACHE_HOME", installation.0.path().join("cache"))
            .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
            .assert()
            .success()
            .stdout(contains(format!("/{name}")));
    }
}

/// If root runs the command, its children inherit a descriptor with a high number. A limit may
/// forbid such a number. The program has to run nevertheless.
#[test]
fn a_program_may_have_few_descriptors() {
    let installation = Installation::new();
    let few = "ulimit -n 200; exec \"$0\" run --stats -- sh -c 'echo ran'";
    let mut shell = Command::new("sh");
    shell.args(["-c", few]).arg(installation.executable()).assert().success().stdout("ran\n");
}

#[test]
fn the_program_gets_preload_engine_arguments_and_its_own_name() {
    let installation = Installation::new();
    let script =
        r#"echo "$LD_PRELOAD|$URINGLET_ENGINE|$URINGLET_NULL_MEANT|$URINGLET_STATS|$0|$1|$2""#;
    let folder = installation.0.path().canonicalize().unwrap();
    let [libaio, posix_aio, io_uring] =
        DROP_INS.map(|name| folder.join(name).display().to_string());
    let expected = format!("{libaio}:{posix_aio}:{io_uring}|null|1||name|--stats|b c\n");
    installation
        .run(&["--engine", "null", "--yes", "--", "sh", "-c", script, "name", "--stats", "b c"])
        .success()
        .stdout(expected);
    let own = ["--observe", "--", "sh", "-c", "echo $URINGLET_STATS"];
    installation.run(&own).success().stdout("auto\n");
    let inherited = ["run", "--", "sh", "-c", "echo [$URINGLET_NULL_MEANT]"];
    let mut auto = Command::new(installation.executable());
    auto.env("URINGLET_NULL_MEANT", "1").args(inherited).assert().success().stdout("[]\n");
    let other = installation.0.path().join("other.so");
    std::fs::copy(&libaio, &other).unwrap();
    let cases = [
        (&[][..], format!("{libaio}:{posix_aio}:{io_uring}")),
        (&["--only", "libaio"], libaio),
        (&["--only", "posix-aio"], posix_aio),
        (&["--only", "io-uring"], io_uring),
    ];
    for (only, ours) in cases {
        let program = ["--", "sh", "-c", "echo $LD_PRELOAD"];
        Command::new(installation.executable())
            .env("LD_PRELOAD", &other)
            .args([&["run"], only, &program].concat())
            .assert()
            .success()
            .stdout(format!("{ours}:{}\n", other.display()));
    }
}

/// This test uses the real drop-ins. They warn if a program's environment chooses the engine null,
/// although `run` was not asked for it.
#[test]
fn an_engine_that_moves_no_data_is_warned_of_unless_it_was_asked_for() {
    const SOURCE: &str = "#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(void) { long ctx = 0; return syscall(SYS_io_setup, 8, &ctx); }";
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), SOURCE, &[], "setup");
    let setup = folder.path().join("setup");
    let run = |engine: &str, words: &[&str]| {
        let mut uringlet = uringlet();
        let yes = ["--yes"].into_iter().filter(|_| engine == "null");
        uringlet.args(["run", "--engine", engine]).args(yes).arg("--").args(words);
        uringlet.arg(&setup).assert().success()
    };
    run("null", &[]).stderr("uringlet run: --engine null moves no data\n");
    let refused = uringlet().args(["run", "--engine", "null", "--", "true"]).assert().code(2);
    refused.stderr(contains("expected --yes").and(contains("MOVES NO DATA")));
    run("auto", &[]).stderr("");
    let warning = contains("no data").and(contains("unset URINGLET_ENGINE"));
    run("auto", &["env", "URINGLET_ENGINE=null"]).stderr(warning);
}

#[test]
fn a_placement_is_checked_and_told_to_the_program() {
    let installation = Installation::new();
    let refused = |arguments: &[&str], reason: &'static str| {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--", "true"]).collect();
        installation.run(&arguments).code(2).stderr(contains(reason));
    };
    refused(&["--queue-affinity", "7000"], "--queue-affinity is 7000, expected CPUs out of");
    refused(&["--completion-affinity", "far"], "affinity is \"far\", expected a list of CPUs");
    refused(&["--rq-affinity", "3"], "expected a whole number from 0 to 2");
    let first = uringlet::affinity::Topology::look().reachable().first().unwrap().to_string();
    let arguments = ["--queue-affinity", &*first, "--completion-affinity", "interrupt"];
    let script =
        "echo $URINGLET_QUEUE_AFFINITY $URINGLET_COMPLETION_AFFINITY $URINGLET_RQ_AFFINITY";
    let rest = ["--rq-affinity", "1", "--", "sh", "-c", script];
    let arguments: Vec<&str> = arguments.into_iter().chain(rest).collect();
    installation.run(&arguments).success().stdout(format!("{first} interrupt 1\n"));
}

#[test]
fn the_exit_status_is_the_programs() {
    let installation = Installation::new();
    for stats in [&[][..], &["--stats"]] {
        let run = |script| installation.run(&[stats, &["--", "sh", "-c", script]].concat());
        run("exit 0").code(0);
        run("exit 7").code(7);
    }
    let killed = installation.run(&["--stats", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.get_output().status.signal(), Some(libc::SIGKILL));
}

#[test]
fn without_requests_the_summary_says_so_and_the_counters_are_gone() {
    let installation = Installation::new();
    let assert = installation
        .run(&["--stats", "--", "sh", "-c", "test -f $URINGLET_STATS && echo $URINGLET_STATS; cat"])
        .success()
        .stderr(contains("nothing went through it: the drop-in was loaded into no process"));
    let path = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    assert!(path.starts_with("/proc/") && !Path::new(path.trim()).exists(), "{path}");
}

#[test]
fn what_is_forbidden_is_refused_to_the_program() {
    if !Path::new("/proc/sys/kernel/seccomp").exists() {
        let name = "what_is_forbidden_is_refused_to_the_program";
        skip::skipped(name, "the kernel has no seccomp filters");
        return;
    }
    let installation = Installation::new();
    let executable = installation.executable();
    let folder = installation.0.path().to_str().unwrap();
    let doctor = [executable.to_str().unwrap(), "doctor", "--json", "-", folder];
    for stats in [&[][..], &["--stats"]] {
        let forbid = ["--forbid", "linux_aio,threads", "--forbid-errno", "ENOSYS", "--"];
        let assert = installation.run(&[stats, &forbid, &doctor].concat()).success();
        let report: serde_json::Value =
            serde_json::from_slice(&assert.get_output().stdout).unwrap();
        // The doctor itself was given no `--forbid`.
        assert_eq!(report["sandbox"]["forbidden"].as_array().unwrap().len(), 0);
        assert_eq!(report["sandbox"]["seccomp"], 2);
        for engine in report["engines"].as_array().unwrap() {
            if engine["engine"] != "io_uring" {
                assert_eq!(engine["errno_name"], "ENOSYS", "{engine}");
                assert_eq!(engine["cause"], "seccomp", "{engine}");
            }
        }
    }
    // `--forbid threads` allows processes, and child processes are in the same sandbox.
    let script = r#"(grep -c '^Seccomp:.*2$' /proc/self/status) | cat"#;
    installation
        .run(&["--forbid", "docker,threads", "--", "sh", "-c", script])
        .success()
        .stdout("1\n");
}

/// Waits for one signal, without a window in which the signal could be lost. Exits with 100 + its
/// number.
const WAITS_FOR_A_SIGNAL: &str = r#"
#include <signal.h>
#include <unistd.h>
int main(void) {
    sigset_t set;
    int taken;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    if (write(1, "ready\n", 6) != 6 || sigwait(&set, &taken)) return 1;
    return 100 + taken;
}
"#;

#[test]
fn signals_reach_the_program_and_the_summary_still_comes() {
    let installation = Installation::new();
    compile(installation.0.path(), WAITS_FOR_A_SIGNAL, &[], "waits");
    let waits = installation.0.path().join("waits");
    let waits = waits.to_str().unwrap();
    let cases: [(&str, &[&str], _); 4] = [
        ("TERM", &[waits], (Some(100 + libc::SIGTERM), None)),
        ("INT", &[waits], (Some(100 + libc::SIGINT), None)),
        ("USR1", &[waits], (Some(100 + libc::SIGUSR1), None)),
        ("TERM", &["sh", "-c", "echo ready; exec sleep 1000"], (None, Some(libc::SIGTERM))),
    ];
    for (signal, program, end) in cases {
        let mut child = std::process::Command::new(installation.executable())
            .args(["run", "--stats", "--"])
            .args(program)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let kill = format!("kill -{signal} {}", child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), end, "{signal}, {program:?}");
        let mut summary = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut summary).unwrap();
        assert!(summary.contains("nothing went through it"), "{summary}");
    }
}

#[test]
fn the_environment_is_printed_for_services_and_shells() {
    let installation = Installation::new();
    let folder = installation.0.path().canonicalize().unwrap();
    let [libaio, posix_aio, io_uring] =
        DROP_INS.map(|name| folder.join(name).display().to_string());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(installation.executable());
        command.env("LD_PRELOAD", "").arg("run").args(arguments).assert()
    };
    let lines = format!(
        "Environment=\"LD_PRELOAD={libaio}:{posix_aio}:{io_uring}\"\n\
         Environment=\"URINGLET_ENGINE=auto\"\n\
         Environment=\"URINGLET_IO_URING=if-refused\"\n\
         Environment=\"URINGLET_TRAP=auto\"\n"
    );
    run(&["--print-env"]).success().stdout(lines);
    let shell = ["--print-env=shell", "--only", "libaio", "--engine", "workers", "--observe"];
    let lines = format!(
        "export LD_PRELOAD='{libaio}'\nexport URINGLET_ENGINE='workers'\n\
         export URINGLET_STATS='auto'\n"
    );
    run(&shell).success().stdout(lines);
    run(&["--print-env=warp"]).code(2).stderr(contains("systemd, shell, plain"));
    for other in [&["--stats"][..], &["--forbid", "docker"], &["--", "true"]] {
        let arguments = [&["--print-env"], other].concat();
        run(&arguments).code(2).stderr(contains("cannot be used with"));
    }
}

/// This test uses the real drop-ins.
#[test]
fn why_nothing_went_through_is_said_in_a_line_without_being_asked() {
    const REFUSED: &str = "#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(void) { long ctx = 1; syscall(SYS_io_setup, 8, &ctx); return 0; }";
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), REFUSED, &[], "refused");
    let refused = folder.path().join("refused");
    uringlet().args(["run", "--"]).arg(&refused).assert().success().stderr(
        contains("1 set-up was refused by uringlet (EINVAL)")
            .or(contains("it made no request through libaio")),
    );
    const RING: &str = "#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(void) { int params[30] = { 0 };\n\
        return syscall(SYS_io_uring_setup, 8, params) < 0; }";
    compile(folder.path(), RING, &[], "ring");
    let ring = folder.path().join("ring");
    let run = ["run", "--forbid", "io_uring", "--"];
    uringlet().args(run).arg(ring).assert().success().stderr("");
    // The library does not serve hybrid polling: the set-up is refused as without the library.
    const OTHER: &str = "#include <errno.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        int main(void) { int params[30] = { [2] = 1 << 17 | 1 };\n\
        return syscall(SYS_io_uring_setup, 8, params) == -1 && errno == EPERM ? 0 : 1; }";
    compile(folder.path(), OTHER, &[], "other");
    let other = uringlet().args(run).arg(folder.path().join("other")).assert().success();
    other.stderr(contains("of a kind that is not served"));
    let nothing = uringlet().args(["run", "--", "true"]).assert().success();
    nothing.stderr(
        contains("it made no request through libaio, POSIX AIO or io_uring")
            .and(contains("doctor -- ")),
    );
}
