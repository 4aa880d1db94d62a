//! The examples do what they say.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Stdio;

use crate::support::{crate_folder, finished, program, scratch};

/// A file of distinguishable bytes.
fn file(name: &str, len: usize) -> (PathBuf, Vec<u8>) {
    let content: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251 + at / 65_537) as u8).collect();
    let path = scratch().join(format!("capi-{name}-{len}"));
    std::fs::write(&path, &content).expect("written");
    (path, content)
}

#[test]
fn every_example_is_tested() {
    let folder = crate_folder().join("examples");
    let mut names: Vec<_> = folder
        .read_dir()
        .expect("examples")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["cancel.c", "cat.c", "cp.c", "epoll.c", "fork.c", "randread.c"]);
}

#[test]
fn cat_prints_files() {
    let ((first, mut content), (second, more)) = (file("cat", 300_001), file("cat", 5));
    let ran = program("examples/cat.c").args([&first, &second]).output().expect("timeout(1)");
    finished("cat", &ran);
    content.extend(more);
    assert!(ran.stdout == content, "other bytes");
    let ran = program("examples/cat.c").args([PathBuf::from("/nowhere"), second]).output();
    let ran = ran.expect("timeout(1)");
    assert_eq!(ran.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(complaint, "cat: /nowhere: No such file or directory\n");
    assert_eq!(ran.stdout.len(), 5, "the other file is printed all the same");
}

#[test]
fn cp_copies_with_32_in_flight() {
    for len in [0, 1, 65_536, 5 * 1024 * 1024 + 17] {
        let (from, content) = file("cp", len);
        let to = scratch().join("capi-cp-copy");
        let ran = program("examples/cp.c").args([&from, &to]).output().expect("timeout(1)");
        finished("cp", &ran);
        assert!(std::fs::read(&to).expect("made") == content, "other bytes of {len}");
    }
    let ran = program("examples/cp.c").args(["/proc/self/exe", "/dev/full"]).output();
    let ran = ran.expect("timeout(1)");
    assert_eq!(ran.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "cp: No space left on device\n");
}

#[test]
fn randread_reads_all_on_each_engine() {
    let (path, _) = file("randread", 1 << 20);
    for engine in ["auto", "workers", "null"] {
        for depth in ["1", "32", "200"] {
            let arguments = [path.to_str().expect("text"), "3000", depth, engine];
            let ran = program("examples/randread.c").args(arguments).output();
            let ran = ran.expect("timeout(1)");
            if engine == "null" {
                // The engine reads nothing: the example has to notice.
                assert_eq!(ran.status.code(), Some(1), "at depth {depth}");
                continue;
            }
            let text = finished("randread", &ran);
            assert!(text.starts_with("3000 reads, 0 failed\n12288000 bytes in "), "{text}");
            assert!(text.contains(&format!("engine: {engine}")), "{text}");
        }
    }
}

#[test]
fn epoll_answers_line_by_line() {
    let (path, content) = file("epoll", 100_000);
    let mut child = program("examples/epoll.c")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("timeout(1)");
    let mut input = child.stdin.take().expect("piped");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let expected = |off: usize, len: usize| {
        let bytes = &content[off.min(content.len())..(off + len).min(content.len())];
        let sum: u32 = bytes.iter().map(|&byte| u32::from(byte)).sum();
        format!("{off}: {} bytes, sum {sum}", bytes.len())
    };
    // Writes one line at a time: its answer has to come before the next line is written.
    for at in 0..200 {
        let (off, len) = (at * 517, at * 19 % 4096);
        writeln!(input, "{off} {len}").expect("it reads");
        assert_eq!(lines.next().expect("an answer").expect("text"), expected(off, len));
    }
    // Writes all other lines at once.
    let text: String = (0..50).map(|at| format!("{} 100\n", at * 1000)).collect();
    input.write_all(text.as_bytes()).expect("it reads");
    writeln!(input, "what").expect("it reads");
    drop(input);
    let mut answers: Vec<_> = lines.map(|line| line.expect("text")).collect();
    answers.sort();
    let mut all: Vec<_> = (0..50).map(|at| expected(at * 1000, 100)).collect();
    all.push("what: Invalid argument".to_owned());
    all.sort();
    assert_eq!(answers, all);
    assert!(child.wait().expect("its end").success());
}

#[test]
fn cancel_takes_requests_back() {
    let text = finished("cancel", &program("examples/cancel.c").output().expect("timeout(1)"));
    let expected = "request 0: Operation canceled\nrequest 1: Operation canceled\n\
                    request 2: done\nrequest 3: Operation canceled\n";
    assert_eq!(text, expected);
}

#[test]
fn fork_gives_the_child_nothing() {
    let (path, _) = file("fork", 100);
    let ran = program("examples/fork.c").arg(path).output().expect("timeout(1)");
    let text = finished("fork", &ran);
    let expected = "the parent has read 16 bytes\nthe child has read 16 bytes\n\
                    the parent has read 16 bytes\n";
    assert_eq!(text, expected);
}
