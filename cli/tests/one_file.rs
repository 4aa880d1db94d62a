//! A copy of the command runs programs without any other file of uringlet's. It writes the drop-ins
//! that it carries to a folder, or to memory.
//!
//! A command from `ci/test.sh` carries the drop-ins; a plain debug build does not.

mod skip;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::path::{Path, PathBuf};

/// Reads with io_submit, through libc's syscall(), and prints `read` if the read has succeeded.
const READS: &str = r#"
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    char bytes[4];
    aio_context_t context = 0;
    struct io_event event;
    struct iocb block = { 0 }, *blocks[] = { &block };
    block.aio_fildes = open("/proc/self/exe", O_RDONLY);
    block.aio_buf = (unsigned long)bytes;
    block.aio_nbytes = sizeof bytes;
    if (syscall(SYS_io_setup, 1, &context) || syscall(SYS_io_submit, context, 1, blocks) != 1)
        return 1;
    if (syscall(SYS_io_getevents, context, 1, 1, &event, 0) != 1 || event.res != sizeof bytes)
        return 2;
    return puts("read") < 0;
}
"#;

/// Forks a child. The child closes every descriptor from 3 on, and executes a program.
const CLOSES: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    int status;
    (void)count;
    if (fork() == 0) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        execv(words[1], words + 1);
        _exit(1);
    }
    wait(&status);
    return status != 0;
}
"#;

/// Closes the descriptors that it inherited, opens a file under every number up to 128, and
/// executes a program.
const REOPENS: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **words) {
    int last = 3;
    (void)count;
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    while (last >= 0 && last < 128)
        last = open(words[1], O_RDONLY);
    execv(words[2], words + 2);
    return 1;
}
"#;

/// A folder that holds only a copy of the command and programs. [`Alone::new`] returns `None` if
/// the command carries no drop-ins.
struct Alone(tempfile::TempDir);

impl Alone {
    fn new(test: &str) -> Option<Self> {
        if env!("URINGLET_CARRIES").is_empty() {
            skip::skipped(test, "this build of the command carries no drop-ins: ci/test.sh");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Another process makes the copy. A child of a parallel test could inherit a descriptor of
        // this process that is open for writing. Executing the copy would fail with ETXTBSY then.
        let mut cp = std::process::Command::new("cp");
        let copied = cp.arg(assert_cmd::cargo::cargo_bin!("uringlet")).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        for (name, source) in [("reads", READS), ("closes", CLOSES)] {
            let file = folder.path().join("source.c");
            std::fs::write(&file, source).unwrap();
            let mut cc = std::process::Command::new("cc");
            let made = cc.arg(&file).arg("-o").arg(folder.path().join(name)).status();
            assert!(made.unwrap().success());
        }
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        // Other users have to be able to start the copy.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).unwrap();
        Some(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, cache: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("uringlet"));
        command.env("XDG_CACHE_HOME", cache).env_remove("LD_PRELOAD").args(arguments);
        command
    }

    /// Runs a script as root in new namespaces. This folder is /mnt there. Empty folders, mounted
    /// with these options, cover every other folder that could hold a library. `None` if this
    /// system refuses namespaces.
    fn in_namespaces(&self, test: &str, options: &str, script: &str) -> Option<Command> {
        let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        let mut probe = std::process::Command::new("unshare");
        if !probe.args([flags, "true"]).output().is_ok_and(|ran| ran.status.success()) {
            skip::skipped(test, "no mount namespaces here");
            return None;
        }
        let prepare = format!(
            r#"mount --bind "$1" /mnt; cd /mnt
            for folder in /tmp /var/tmp /dev/shm /var/cache /run; do
                mount -t tmpfs -o mode=1777,{options} none "$folder"
            done
            unset XDG_CACHE_HOME XDG_RUNTIME_DIR LD_PRELOAD
            export HOME=/var/cache
            {script}"#
        );
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-ec", &prepare, "sh"]).arg(self.0.path());
        Some(command)
    }
}

#[test]
fn a_copy_of_the_command_runs_children_of_children() {
    let Some(alone) = Alone::new("a_copy_of_the_command_runs_children_of_children") else { return };
    let cache = alone.path("cache").canonicalize().unwrap();
    let reads = alone.path("reads").display().to_string();
    let closes = alone.path("closes").display().to_string();
    let script = r#"echo "$LD_PRELOAD"; exec sh -c '"$@"' sh "$@""#;
    let words = ["run", "--stats", "--", "sh", "-c", script, "sh", &closes, &reads];
    let assert = alone.command(&cache, &words).assert().success();
    let folder = cache.join("uringlet").join(env!("URINGLET_CARRIES")).display().to_string();
    let preload = ["libaio.so", "libposix_aio.so", "liburing.so"];
    let preload = preload.map(|name| format!("{folder}/{name}")).join(":");
    let expected = format!("{preload}\nread\n");
    assert.stdout(expected).stderr(contains("uringlet: summary").and(contains("reads")));
    // The second run uses the files of the first. The other commands that need the drop-ins run as
    // well.
    alone.command(&cache, &["run", "--", &reads]).assert().success().stdout("read\n");
    alone
        .command(&cache, &["check", "--", &reads])
        .assert()
        .success()
        .stdout(contains(format!("libaio.so: loaded from {folder}/libaio.so, and answers")));
    let assert = alone.command(&cache, &["run", "--print-env=plain", "--observe"]).assert();
    let plain = String::from_utf8(assert.success().get_output().stdout.clone()).unwrap();
    assert!(plain.contains(&format!("LD_PRELOAD={folder}/libaio.so:")), "{plain}");
    assert!(plain.contains("URINGLET_STATS=auto\n") && plain.contains("URINGLET_ENGINE=auto\n"));
    // The variables that `--print-env` prints have the same effect in env(1) as `run`.
    let mut env = Command::new("env");
    env.args(plain.lines()).arg(&reads).assert().success().stdout("read\n").stderr("");
}

#[test]
fn an_ordinary_user_without_a_home_runs_programs() {
    let name = "an_ordinary_user_without_a_home_runs_programs";
    let Some(alone) = Alone::new(name) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip::skipped(name, "root only: it becomes another user");
    }
    let script = r#"export HOME=/nonexistent
        exec setpriv --reuid=65534 --regid=65534 --clear-groups ./uringlet run --stats -- \
            sh -c 'echo "$LD_PRELOAD"; ./reads'"#;
    let Some(mut command) = alone.in_namespaces(name, "exec", script) else { return };
    let place = contains("/dev/shm/uringlet-65534/").and(contains("\nread\n"));
    command.assert().success().stdout(place).stderr(contains("uringlet: summary"));
}

#[test]
fn where_no_folder_will_do_programs_run_from_memory() {
    let name = "where_no_folder_will_do_programs_run_from_memory";
    let Some(alone) = Alone::new(name) else { return };
    let script = r#"exec ./uringlet run --stats -- sh -c 'echo "$LD_PRELOAD"; ./closes ./reads'"#;
    // Nothing can be executed in a folder that is mounted noexec, or written to one mounted ro.
    for options in ["noexec", "ro"] {
        let Some(mut command) = alone.in_namespaces(name, options, script) else { return };
        let place = contains("/fd/").and(contains("\nread\n"));
        // With this text, the loader would report a library that it cannot preload.
        let summary = contains("uringlet: summary").and(contains("ERROR: ld.so").not());
        command.assert().success().stdout(place).stderr(summary);
        let check = "exec ./uringlet check -- ./reads";
        let mut command = alone.in_namespaces(name, options, check).unwrap();
        command.assert().success().stdout(contains("loaded from memory, as /proc/"));
        let print = "exec ./uringlet run --print-env";
        let mut command = alone.in_namespaces(name, options, print).unwrap();
        command.assert().code(1).stderr(contains("no folder can hold").and(contains("noexec")));
    }
}

#[test]
fn nothing_else_is_loaded_where_a_program_has_other_files() {
    let name = "nothing_else_is_loaded_where_a_program_has_other_files";
    let Some(alone) = Alone::new(name) else { return };
    let trap =
        "#include <stdio.h>\n__attribute__((constructor)) void f(void) { puts(\"loaded\"); }";
    for (file, source, flags) in
        [("trap.so", trap, &["-shared", "-fPIC"][..]), ("reopens", REOPENS, &["-static"])]
    {
        let code = alone.path("source.c");
        std::fs::write(&code, source).unwrap();
        let mut cc = std::process::Command::new("cc");
        let made = cc.args(flags).arg(&code).arg("-o").arg(alone.path(file)).output().unwrap();
        if !made.status.success() {
            return skip::skipped(name, "cc -static does not work here");
        }
    }
    // `reopens` is linked statically, so it runs without the drop-ins. It executes `reads`, which
    // loads the drop-ins from their paths again.
    let script = "exec ./uringlet run -- sh -c './reopens ./trap.so ./reads'";
    let Some(mut command) = alone.in_namespaces(name, "noexec", script) else { return };
    command.assert().success().stdout("read\n");
}

#[test]
fn bench_has_fio_run_on_carried_drop_ins() {
    let Some(alone) = Alone::new("bench_has_fio_run_on_carried_drop_ins") else { return };
    let job = alone.path("job.fio");
    let data = alone.path("data").display().to_string();
    std::fs::write(&job, format!("[one]\nfilename={data}\nrw=read\nsize=64k\nbs=4k\n")).unwrap();
    let job = job.display().to_string();
    let words = ["bench", &job, "--engines", "uringlet:auto", "--rounds", "1", "--seconds", "1"];
    alone.command(&alone.path("cache"), &words).assert().success();
}
