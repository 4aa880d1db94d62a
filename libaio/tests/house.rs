//! The library in foreign programs, without a comparison with the original. Programs unload it,
//! find it in place of the original's file, or run on every engine.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod support;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Compiles `source` from the tests' folder.
fn compile(source: &str, folder: &Path, arguments: &[&str]) -> PathBuf {
    let source = tests().join(source);
    let program = folder.join(source.file_stem().expect("a name"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(&source);
    let output = command.args(arguments).output().expect("a C compiler: run ci/setup.sh");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text} (run ci/setup.sh)", source.display());
    program
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// `program` under a time limit, without cargo's library paths in the environment.
fn command(program: &Path, variables: &[(&str, &Path)]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", "env"]);
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD").env_remove("URINGLET_ENGINE");
    for (name, value) in variables {
        command.arg(format!("{name}={}", value.display()));
    }
    command.arg(program);
    command
}

/// The output of a program that succeeded without errors.
fn answers(output: &Output) -> String {
    let (out, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && error.is_empty(), "{}: {error}", output.status);
    String::from_utf8(out.clone()).expect("text")
}

#[test]
fn unloaded_while_its_threads_are_about() {
    let folder = folder();
    let program = compile("house/unload.c", folder.path(), &["-ldl"]);
    let output = command(&program, &[]).arg(support::library()).output().expect("timeout(1)");
    assert_eq!(answers(&output), "unloaded twice\n");
}

/// The program's own check (`the_right_library`) finds io_setup in the expected file.
#[test]
fn in_place_of_the_library_file() {
    let folder = folder();
    let program = compile("c/read_write.c", folder.path(), &["-laio"]);
    let place = folder.path().join("libaio.so.1");
    symlink(support::library(), &place).expect("a link");
    let variables = [
        ("LD_LIBRARY_PATH", folder.path()),
        ("LIBAIO_EXPECTED", place.as_path()),
        ("TMPDIR", folder.path()),
    ];
    let output = command(&program, &variables).output().expect("timeout(1)");
    assert!(answers(&output).contains("write to full: res -ENOSPC\n"), "ours answers otherwise");
    // A program that makes the system calls with syscall(2) is tested as well.
    let program = compile("c/syscall.c", folder.path(), &["-laio"]);
    let output = command(&program, &variables).output().expect("timeout(1)");
    assert!(answers(&output).contains("the same context through libaio: res 4096\n"));
}

/// In Debian 13 and Ubuntu 24.04 the library is called libaio.so.1t64. A program that was linked
/// there asks for a file of this name, and for the same symbol versions in it.
#[test]
fn in_place_of_the_library_file_by_its_second_name() {
    let folder = folder();
    let stub = folder.path().join("stub.c");
    let names = ["io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents"];
    let functions: String =
        names.iter().map(|name| format!("int {name}() {{ return -1; }}\n")).collect();
    std::fs::write(&stub, functions).expect("written");
    let map = tests().join("../libaio.map");
    let library = folder.path().join("libaio.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-Wl,-soname,libaio.so.1t64", "-o"])
        .arg(&library)
        .arg(format!("-Wl,--version-script={},--undefined-version", map.display()))
        .arg(&stub)
        .status();
    assert!(made.expect("a C compiler").success());
    let search = format!("-L{}", folder.path().display());
    let program = compile("c/append_order.c", folder.path(), &[&search, "-laio"]);
    let needed = Command::new("readelf").args(["-d"]).arg(&program).output().expect("readelf");
    assert!(String::from_utf8_lossy(&needed.stdout).contains("[libaio.so.1t64]"));
    let place = folder.path().join("libaio.so.1t64");
    symlink(support::library(), &place).expect("a link");
    let variables = [
        ("LD_LIBRARY_PATH", folder.path()),
        ("LIBAIO_EXPECTED", place.as_path()),
        ("TMPDIR", folder.path()),
    ];
    let output = command(&program, &variables).output().expect("timeout(1)");
    assert!(!answers(&output).is_empty());
}

/// A libaio that is linked into the program makes its system calls through libc's `syscall()`.
#[test]
fn a_program_that_carries_libaio_inside_itself() {
    let folder = folder();
    let program = compile("c/append_order.c", folder.path(), &["-l:libaio.a"]);
    let region = uringlet::stats::Region::create().expect("memory");
    let counters = region.path();
    let library = support::library();
    let variables = [
        ("LD_PRELOAD", library.as_path()),
        ("TMPDIR", folder.path()),
        ("URINGLET_STATS", &counters),
    ];
    let output = command(&program, &variables).output().expect("timeout(1)");
    assert!(!answers(&output).is_empty());
    let counted = region.snapshot();
    assert!(counted.contexts > 0 && counted.writes >= 64, "{counted:?}");
}

/// Runs on every engine, because the engines have different descriptors of their own.
#[test]
fn every_descriptor_closed_on_every_engine() {
    let folder = folder();
    let program = compile("c/close_all.c", folder.path(), &["-laio"]);
    let library = support::library();
    let run = |engine: &str| {
        let variables = [
            ("LD_PRELOAD", library.as_path()),
            ("LIBAIO_EXPECTED", &library),
            ("TMPDIR", folder.path()),
            ("URINGLET_ENGINE", Path::new(engine)),
        ];
        command(&program, &variables).output().expect("timeout(1)")
    };
    let expected = answers(&run("workers"));
    assert!(expected.contains("right after closefrom: 306, 0 of the program's"), "{expected}");
    for engine in ["auto", "linux_aio", "io_uring"] {
        let output = run(engine);
        if String::from_utf8_lossy(&output.stderr).contains("io_setup(") {
            let name = format!("every_descriptor_closed_on_every_engine/{engine}");
            support::skipped(&name, "refused here");
            continue;
        }
        assert_eq!(answers(&output), expected, "{engine}");
    }
    // The last part of the program runs in a child. There, this engine refuses a context, because
    // the parent has used the engine.
    let output = run("posix_aio");
    let text = String::from_utf8_lossy(&output.stdout);
    let before = expected.split("a daemon's").next().expect("all of it");
    assert!(text.starts_with(before), "{text}");
}

/// The library warns if the engine moves no data, unless `uringlet run` was told to use this
/// engine.
#[test]
fn an_engine_that_moves_no_data_is_warned_of_once() {
    let folder = folder();
    let program = compile("house/null.c", folder.path(), &["-laio"]);
    let library = support::library();
    let mut variables =
        vec![("LD_PRELOAD", library.as_path()), ("URINGLET_ENGINE", Path::new("null"))];
    let output = command(&program, &variables).output().expect("timeout(1)");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("no data") && told.contains("unset URINGLET_ENGINE"), "{told}");
    let unwritten = "first: 0\nsecond: 0\nchild: 0\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), unwritten);
    assert!(output.status.success());
    // If the reader of standard error is gone, no signal ends the program.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command(&program, &variables).stderr(writer).output().expect("timeout(1)");
    assert_eq!(String::from_utf8_lossy(&output.stdout), unwritten);
    // The variable is set as `uringlet run --engine null` sets it.
    variables.push(("URINGLET_NULL_MEANT", Path::new("1")));
    assert_eq!(answers(&command(&program, &variables).output().expect("timeout(1)")), unwritten);
}

/// All processes of the host share fs.aio-max-nr requests. A context takes as many of these as it
/// was made for, as with the original.
#[test]
fn contexts_take_what_they_ask_for() {
    let folder = folder();
    let program = compile("house/aio_nr.c", folder.path(), &["-laio"]);
    let library = support::library();
    let run = |variables: &[(&str, &Path)]| {
        let output = command(&program, variables).output().expect("timeout(1)");
        match String::from_utf8_lossy(&output.stderr).split_once("SKIPPED: ") {
            Some((_, reason)) => Err(reason.trim().to_owned()),
            None => Ok(answers(&output)),
        }
    };
    let here = ("TMPDIR", folder.path());
    let original = run(&[here]);
    for engine in ["linux_aio", "auto"] {
        let preload = ("LD_PRELOAD", library.as_path());
        let ours = run(&[here, preload, ("URINGLET_ENGINE", Path::new(engine))]);
        let name = format!("contexts_take_what_they_ask_for/{engine}");
        match (&original, ours) {
            // On `auto`, a context takes none of these requests while direct reads do not sleep. So
            // 0 is right, too.
            (Ok(original), Ok(ours)) if engine == "auto" => {
                assert_eq!(original.lines().count(), ours.lines().count(), "{ours}");
                for (theirs, ours) in original.lines().zip(ours.lines()) {
                    assert!(theirs == ours || ours.ends_with(" takes: 0"), "{theirs}, and {ours}");
                }
            }
            (Ok(original), Ok(ours)) => assert_eq!(*original, ours, "{engine}"),
            (Err(reason), _) => support::skipped(&name, reason),
            (_, Err(reason)) => support::skipped(&name, &reason),
        }
    }
}

/// Contexts of this engine share the C library's threads, which are few.
#[test]
fn a_thousand_contexts_on_the_engine_posix_aio() {
    let folder = folder();
    let program = compile("house/many_contexts.c", folder.path(), &["-laio"]);
    let library = support::library();
    let variables = [
        ("LD_PRELOAD", library.as_path()),
        ("TMPDIR", folder.path()),
        ("URINGLET_ENGINE", Path::new("posix_aio")),
    ];
    let output = command(&program, &variables).output().expect("timeout(1)");
    if let Some((_, reason)) = String::from_utf8_lossy(&output.stderr).split_once("SKIPPED: ") {
        let name = "a_thousand_contexts_on_the_engine_posix_aio";
        return support::skipped(name, reason.trim());
    }
    assert!(answers(&output).ends_with("few threads: yes\n"));
}

/// Runs on an allocator of the C library that checks itself.
#[test]
fn under_malloc_check() {
    let debug = Path::new("libc_malloc_debug.so.0");
    let folder = folder();
    let program = compile("c/threads.c", folder.path(), &["-laio"]);
    let library = support::library();
    let both = PathBuf::from(format!("{}:{}", library.display(), debug.display()));
    let variables = [
        ("LD_PRELOAD", both.as_path()),
        ("LIBAIO_EXPECTED", &library),
        ("TMPDIR", folder.path()),
        ("MALLOC_CHECK_", Path::new("3")),
    ];
    let output = command(&program, &variables).output().expect("timeout(1)");
    if String::from_utf8_lossy(&output.stderr).contains("cannot be preloaded") {
        support::skipped("under_malloc_check", "no libc_malloc_debug.so.0 here");
        return;
    }
    assert!(!answers(&output).is_empty());
}

/// The program in docs/programs/python.md, unchanged.
#[test]
fn a_python_program() {
    let page = include_str!("../../docs/programs/python.md");
    let (_, program) = page.split_once("```python\n").expect("a program");
    let (program, _) = program.split_once("```\n").expect("its end");
    let folder = folder();
    let path = folder.path().join("program.py");
    std::fs::write(&path, program).expect("written");
    let Ok(version) = Command::new("python3").arg("--version").output() else {
        return support::skipped("a_python_program", "no python3 here");
    };
    assert!(version.status.success());
    let region = uringlet::stats::Region::create().expect("memory");
    let counters = region.path();
    let library = support::library();
    let variables = [("LD_PRELOAD", library.as_path()), ("URINGLET_STATS", &counters)];
    let output = command(Path::new("python3"), &variables).arg(&path).output().expect("timeout(1)");
    let expected: String =
        (0..8).map(|at| format!("block {at}: 4096 bytes, right: True\n")).collect();
    assert_eq!(answers(&output), expected);
    let counted = region.snapshot();
    assert_eq!((counted.contexts, counted.reads), (1, 8));
}
