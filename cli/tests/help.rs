//! The command line: the help texts, and wrong input, which is refused with its field, its value
//! and what was expected.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn uringlet(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(assert_cmd::cargo::cargo_bin!("uringlet")).args(arguments).assert()
}

/// Every command and subcommand that the help texts list, such as `["reproduce", "lookup"]`.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while at < found.len() {
        let above: Vec<String> = found[at].clone();
        let arguments: Vec<&str> = above.iter().map(String::as_str).chain(["--help"]).collect();
        let help = output(&arguments);
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let names = listed
            .take_while(|line| line.starts_with("  "))
            .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help");
        let below: Vec<Vec<String>> =
            names.map(|name| [&above[..], &[name.to_owned()]].concat()).collect();
        found.extend(below);
        at += 1;
    }
    found
}

fn output(arguments: &[&str]) -> String {
    let assert = uringlet(arguments).success();
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

#[test]
fn every_command_has_help_with_examples() {
    let commands = commands();
    for name in ["run", "bench", "doctor", "reproduce", "top", "man", "completions"] {
        assert!(commands.contains(&vec![name.to_owned()]), "{name} is not among {commands:?}");
    }
    assert!(commands.contains(&["reproduce", "fd-pool"].map(str::to_owned).to_vec()));
    for command in &commands {
        for flag in ["-h", "--help"] {
            let arguments: Vec<&str> = command.iter().map(String::as_str).chain([flag]).collect();
            let help = output(&arguments);
            let expected: &[&str] =
                if command.is_empty() { &["Examples:"] } else { &["Examples:", "Exit status"] };
            for part in expected {
                assert!(help.contains(part), "{command:?} {flag} has no {part}\n{help}");
            }
            let own = format!("\n  uringlet {}", command.join(" "));
            assert!(help.contains(&own), "{command:?} {flag} has no example of its own\n{help}");
        }
    }
    uringlet(&["--version"]).success().stdout(contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_has_a_manual_page_that_formats_without_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    uringlet(&["man", "--out", pages.to_str().unwrap()]).success().stdout("");
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let commands = commands();
    let page_of = |command: &Vec<String>| {
        format!("{}.1", [&["uringlet".into()], &command[..]].concat().join("-"))
    };
    let mut expected: Vec<String> = commands.iter().map(page_of).collect();
    expected.sort();
    assert_eq!(names, expected);
    for command in &commands {
        let page = pages.join(page_of(command));
        let arguments: Vec<&str> =
            ["man"].into_iter().chain(command.iter().map(String::as_str)).collect();
        let text = output(&arguments);
        assert_eq!(text, std::fs::read_to_string(&page).unwrap());
        assert!(text.is_ascii() && text.contains(".SH EXAMPLES"), "{command:?}\n{text}");
        let groff = std::process::Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-P-cbou"])
            .arg(&page)
            .output()
            .expect("groff is installed by ci/setup.sh");
        let warnings = String::from_utf8_lossy(&groff.stderr);
        assert!(groff.status.success() && warnings.is_empty(), "{command:?}: {warnings}");
        assert!(String::from_utf8_lossy(&groff.stdout).contains("EXAMPLES"), "{command:?}");
    }
}

#[test]
fn manual_pages_that_cannot_be_made_are_refused_by_name() {
    uringlet(&["man", "bnch"]).code(2).stderr(contains("COMMAND is bnch").and(contains("bench")));
    uringlet(&["man", "run", "x"]).code(2).stderr(contains("uringlet run: nothing after it"));
    uringlet(&["man", "--out", "/proc/self/x"])
        .code(2)
        .stderr(contains("--out").and(contains("/proc/self/x")));
    uringlet(&["man", "run", "--out", "x"]).code(2).stderr(contains("cannot be used with"));
}

#[test]
fn bash_completes_commands_options_and_their_values() {
    let script = output(&["completions", "bash"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("uringlet");
    std::fs::write(&file, &script).unwrap();
    let complete = |words: &str| {
        let typed = words.rsplit(' ').next().unwrap();
        let before = words.rsplit(' ').nth(1).unwrap();
        let text = format!(
            "source \"$1\"; COMP_WORDS=({words}{}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _uringlet uringlet '{typed}' {before}; echo \"${{COMPREPLY[*]}}\"",
            if typed.is_empty() { "''" } else { "" }
        );
        let mut bash = Command::new("bash");
        let assert =
            bash.args(["-u", "-c", &text, "bash"]).arg(&file).assert().success().stderr("");
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    Command::new("bash").arg("-n").arg(&file).assert().success().stderr("");
    assert_eq!(complete("uringlet ben"), "bench\n");
    assert_eq!(complete("uringlet reproduce fd"), "fd-pool\n");
    assert_eq!(complete("uringlet bench --fo"), "--forbid --forbid-errno\n");
    assert_eq!(complete("uringlet run --engine linux"), "linux_aio\n");
    assert!(complete("uringlet bench --workloads ").contains("cold-read"));
}

#[test]
fn every_shell_has_completions_for_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&["completions", shell]);
        for command in commands().iter().filter_map(|command| command.last()) {
            assert!(script.contains(command), "{shell} knows nothing of {command}");
        }
    }
    uringlet(&["completions", "tcsh"]).code(2).stderr(contains("tcsh").and(contains("zsh")));
}

#[test]
fn wrong_values_are_refused_with_field_value_and_expectation() {
    let cases = [
        ("--size", "4x", "a positive size"),
        ("--size", "-1", "a positive size"),
        ("--size", "64k", "at least 1M"),
        ("--bs", "0", "a positive size"),
        ("--bs", "17M", "at most 16M"),
        ("--depth", "0", "from 1 to 4096"),
        ("--depth", "x", "from 1 to 4096"),
        ("--seconds", "0", "from 1ms to 1h"),
        ("--seconds", "NaN", "expected a time"),
        ("--rounds", "0", "from 1 to 1000"),
        ("--engines", "uring", "uringlet:io_uring"),
        ("--engines", "uringlet:psync", "posixaio"),
        ("--workloads", "tape", "fsync-write"),
    ];
    for (field, value, expected) in cases {
        uringlet(&["bench", field, value])
            .code(2)
            .stderr(contains(field).and(contains(value)).and(contains(expected)));
    }
    uringlet(&["bench", "--bs", "2M", "--size", "1M"])
        .code(2)
        .stderr(contains("--bs 2M").and(contains("1M, the --size")));
    uringlet(&["bench", "--bs", "1M", "--depth", "4096"]).code(2).stderr(contains("at most 1G"));
    let writers: [&[&str]; 3] = [&["bench"], &["reproduce", "all"], &["reproduce", "batch"]];
    for command in writers {
        uringlet(&[command, &["--allow-writes"]].concat()).code(2).stderr(contains("--file"));
    }
    let cases = [
        ("--size", "64k", "at least 1M"),
        ("--seconds", "0", "from 1ms to 1h"),
        ("--rounds", "0", "from 1 to 1000"),
    ];
    for (field, value, expected) in cases {
        for experiment in ["fd-pool", "batch", "uringlet"] {
            uringlet(&["reproduce", experiment, field, value])
                .code(2)
                .stderr(contains(field).and(contains(value)).and(contains(expected)));
        }
    }
    let cases = [
        ("lookup", "--contexts", "0", "from 1 to 32768"),
        ("lookup", "--contexts", "1,x", "from 1 to 32768"),
        ("lookup", "--jobs", "1025", "from 1 to 1024"),
        ("lookup", "--loops", "0", "from 1 to 10000"),
        ("lookup", "--seconds", "NaN", "expected a time"),
        ("lookup", "--rounds", "-1", "from 1 to 1000"),
        ("batch", "--threads", "65", "from 1 to 64"),
        ("uringlet", "--depth", "4097", "from 1 to 4096"),
        ("batch", "--threads", "", "from 1 to 64"),
    ];
    for (experiment, field, value, expected) in cases {
        let value_shown = value.rsplit(',').next().unwrap();
        uringlet(&["reproduce", experiment, field, value])
            .code(2)
            .stderr(contains(field).and(contains(value_shown)).and(contains(expected)));
    }
    uringlet(&["reproduce", "warp"]).code(2).stderr(contains("warp"));
    uringlet(&["run", "--engine", "warp", "--", "true"]).code(2).stderr(contains("workers"));
    let cases = [
        ("--interval", "1x", "expected a time"),
        ("--interval", "0", "from 50ms to 1h"),
        ("--batch", "0", "expected a whole number from 1 on"),
    ];
    for (field, value, expected) in cases {
        uringlet(&["top", field, value])
            .code(2)
            .stderr(contains(field).and(contains(value)).and(contains(expected)));
    }
    uringlet(&["top", "0"])
        .code(2)
        .stderr(contains("[PID]").and(contains("expected a process id")));
    for value in ["-1", "1e99", "foo", "0"] {
        for command in ["top", "check"] {
            let is_named = contains(value).and(contains("expected a process id"));
            uringlet(&[command, value]).code(2).stderr(is_named);
        }
    }
    let negative = [
        &["top", "--batch", "-1"][..],
        &["top", "--interval", "-1s"],
        &["bench", "--seed", "-1"],
        &["bench", "--budget", "-1"],
        &["bench", "--rounds", "-1"],
        &["reproduce", "lookup", "--loops", "-1"],
        &["run", "--stats-interval", "-1", "true"],
        &["run", "--rq-affinity", "-1", "true"],
        &["run", "--spare-cpus", "-1", "true"],
        &["run", "--queue-affinity", "-1", "true"],
    ];
    for arguments in negative {
        let option = *arguments.iter().find(|word| word.starts_with("--")).unwrap();
        let is_named =
            contains("'-1").and(contains(format!("'{option}"))).and(contains("expected"));
        uringlet(arguments).code(2).stderr(is_named);
    }
    uringlet(&["top", "--all", "1"]).code(2).stderr(contains("cannot be used with"));
    uringlet(&["run"]).code(2).stderr(contains("PROGRAM"));
    for command in ["all", "lookup", "batch", "fd-pool", "affinity", "uringlet"] {
        uringlet(&["reproduce", command, "--forbid", "warp"])
            .code(2)
            .stderr(contains("possible values: io_uring, linux_aio"));
        let outputs = contains("--json").and(contains("--html")).and(contains("--csv"));
        uringlet(&["reproduce", command, "--help"]).success().stdout(outputs);
    }
    for command in [&["run", "true"][..], &["bench"], &["doctor"]] {
        let cases = [
            ("--forbid", "warp", "possible values: io_uring, linux_aio"),
            ("--forbid-errno", "EWARP", "a number from 1 to 4095"),
            ("--forbid-errno", "-1", "a number from 1 to 4095"),
        ];
        for (field, value, expected) in cases {
            let arguments = [&command[..1], &[field, value], &command[1..]].concat();
            uringlet(&arguments)
                .code(2)
                .stderr(contains(field).and(contains(value)).and(contains(expected)));
        }
        let alone = [&command[..1], &["--forbid-errno", "EPERM"], &command[1..]].concat();
        uringlet(&alone).code(2).stderr(contains("--forbid <LIST>"));
    }
}

#[test]
fn an_unknown_command_gets_the_list_of_the_known_ones() {
    let all = contains("'bogus'").and(contains("run, check, bench, compare, doctor"));
    uringlet(&["bogus"]).code(2).stderr(all);
    let experiments = contains("'bogus'").and(contains("lookup, batch"));
    uringlet(&["reproduce", "bogus"]).code(2).stderr(experiments);
}

#[test]
fn an_empty_name_is_shown() {
    for command in ["run", "check", "doctor"] {
        let named = contains("PROGRAM is '', expected the name of a program");
        uringlet(&[command, "--", ""]).code(2).stderr(named);
    }
    for command in [&["doctor", ""][..], &["compare", "", "x"], &["bench", ""]] {
        uringlet(command).code(2).stderr(contains("a value is required"));
    }
}

/// A full disk, and a reader that has gone, are noticed for every text.
#[test]
fn a_text_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--version"][..], &["--help"], &["bench", "--help"], &["man"], &["help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("uringlet"));
        let output = command.args(arguments).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("No space left on device"), "{arguments:?}: {error}");
    }
}
