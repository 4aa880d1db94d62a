//! Programs that overwrite a ring's memory, fork, are killed, or make calls that the library may
//! miss. The library must not crash, even where the program is at fault.

use support::{compile, run};

mod support;

fn ends_well(test: &str, source: &str) {
    ends_well_with(test, source, &[]);
}

/// Runs the program with these variables.
fn ends_well_with(test: &str, source: &str, variables: &[&str]) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, source, folder.path()) else { return };
    let program = program.to_str().expect("text");
    let output = run("env", &[variables, &[program]].concat(), folder.path(), true);
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{source}: {}\n{out}{error}", output.status);
    assert!(out.ends_with("done\n"), "{out}{error}");
}

#[test]
fn scribbled_memory_faults_nobody() {
    ends_well("scribbled_memory_faults_nobody", "forged.c");
}

#[test]
fn the_child_of_a_fork_has_its_parents_rings_and_rings_of_its_own() {
    ends_well("the_child_of_a_fork_has_its_parents_rings_and_rings_of_its_own", "fork.c");
}

/// `URINGLET_TEST_KILLS` sets the number of owners.
#[test]
fn owners_of_a_shared_ring_that_are_killed_leave_one_completion_for_each_entry() {
    let test = "owners_of_a_shared_ring_that_are_killed_leave_one_completion_for_each_entry";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "killed.c", folder.path()) else { return };
    let owners = std::env::var("URINGLET_TEST_KILLS").unwrap_or_else(|_| "60".to_owned());
    let output = run(program.to_str().expect("text"), &[&owners], folder.path(), true);
    let [out, error] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success() && out.ends_with("done\n"), "{}\n{out}{error}", output.status);
    assert_eq!(out.matches(" gives -125").count(), 6, "{out}");
}

#[test]
fn a_program_with_calls_of_its_own_is_left_to_the_kernel() {
    if !support::has_io_uring() {
        return support::skipped(
            "a_program_with_calls_of_its_own_is_left_to_the_kernel",
            "io_uring is refused here",
        );
    }
    ends_well("a_program_with_calls_of_its_own_is_left_to_the_kernel", "raw_enter.c");
}

/// As under SELinux, whose policy may forbid the file of a ring.
#[test]
fn rings_whose_file_is_forbidden_are_served() {
    let test = "rings_whose_file_is_forbidden_are_served";
    let asked = ["URINGLET_TRAP=auto", "URINGLET_IO_URING=if-refused"];
    ends_well_with(test, "forbidden_file.c", &asked);
}

#[test]
fn rings_are_the_kernels_where_it_has_some_if_that_is_asked_for() {
    let test = "rings_are_the_kernels_where_it_has_some_if_that_is_asked_for";
    if !support::has_io_uring() {
        return support::skipped(test, "io_uring is refused here");
    }
    let asked = ["URINGLET_TRAP=auto", "URINGLET_IO_URING=if-refused"];
    ends_well_with(test, "raw_enter.c", &asked);
}

#[test]
fn calls_that_are_trapped_are_served() {
    // setarch(8) turns random addresses off.
    let same_addresses = ["URINGLET_TRAP=auto", "setarch", "-R"];
    let signals = ["URINGLET_TRAP=signals"];
    for how in [&["URINGLET_TRAP=auto"][..], &signals, &["URINGLET_TRAP=always"], &same_addresses] {
        ends_well_with("calls_that_are_trapped_are_served", "trapped.c", how);
    }
}

/// The program also passes on the kernel's io_uring, so its checks are right.
#[test]
fn the_program_for_traps_is_right_on_the_kernel() {
    let test = "the_program_for_traps_is_right_on_the_kernel";
    if !support::has_io_uring() {
        return support::skipped(test, "io_uring is refused here");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "trapped.c", folder.path()) else { return };
    let output = run(program.to_str().expect("text"), &["kernel"], folder.path(), false);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
}

#[test]
fn calls_without_a_function_keep_all_registers() {
    let test = "calls_without_a_function_keep_all_registers";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "jumped.c", folder.path()) else { return };
    let program = program.to_str().expect("text");
    let runs = |ours: bool, variable: &str, text: &str| {
        let output = run("env", &[variable, program, text], folder.path(), ours);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{variable}: {output:?}");
    };
    runs(true, "URINGLET_TRAP=signals", "kept");
    if can_save_registers() {
        runs(true, "URINGLET_TRAP=auto", "jumped");
    } else {
        support::skipped(test, "no jumps: the processor has no XSAVEC");
    }
    if support::has_io_uring() {
        runs(false, "URINGLET_TRAP=auto", "kept");
    } else {
        support::skipped(test, "on the kernel: io_uring is refused here");
    }
}

#[test]
fn a_thread_that_ends_in_a_call_without_a_function_gives_back_what_it_holds() {
    let test = "a_thread_that_ends_in_a_call_without_a_function_gives_back_what_it_holds";
    for how in ["URINGLET_TRAP=auto", "URINGLET_TRAP=signals"] {
        ends_well_with(test, "unwound.c", &[how]);
    }
}

#[test]
fn a_handler_under_the_mask_of_a_wait_may_enter_a_ring() {
    for how in ["URINGLET_TRAP=auto", "URINGLET_TRAP=signals"] {
        ends_well_with("a_handler_under_the_mask_of_a_wait_may_enter_a_ring", "masks.c", &[how]);
    }
}

/// Without a filter, other calls have the same cost as without the library, and the process may
/// still gain privileges.
#[test]
fn a_program_has_no_filter_where_nothing_is_left_to_catch() {
    let test = "a_program_has_no_filter_where_nothing_is_left_to_catch";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "no_filter.c", folder.path()) else { return };
    let program = program.to_str().expect("text");
    let prints = |ours: bool, trap: &str, words: &[&str]| {
        let trap = format!("URINGLET_TRAP={trap}");
        let output = run("env", &[&[&trap, program], words].concat(), folder.path(), ours);
        assert!(output.status.success(), "{trap} {words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let plain = prints(false, "auto", &[]);
    assert!(plain.contains("Seccomp:") && plain.ends_with("done\n"), "{plain}");
    if can_save_registers() {
        assert_eq!(prints(true, "auto", &[]), plain, "all calls are jumps");
        assert_eq!(prints(true, "auto", &["ours"]), plain, "and their ring is the library's");
    } else {
        support::skipped(test, "no jumps: the processor has no XSAVEC");
    }
    assert_eq!(prints(true, "never", &[]), plain, "rings are the kernel's");
    if !plain.contains("Seccomp:\t0") {
        return support::skipped(test, "there is a filter already: not compared with one of ours");
    }
    assert!(prints(true, "signals", &[]).contains("Seccomp:\t2"), "it would be seen");
    assert!(prints(true, "signals", &["ours"]).ends_with("done\n"));
}

/// Before the first ring is set up, the library looks for calls in the program only. After that, it
/// also looks in the libraries that the program has loaded.
#[test]
fn libraries_are_looked_at_when_a_ring_is_set_up() {
    let test = "libraries_are_looked_at_when_a_ring_is_set_up";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "library.c", folder.path()) else { return };
    let library = folder.path().join("library.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/library.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let made = std::process::Command::new(compiler)
        .args(["-shared", "-fPIC", "-DLIBRARY", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .expect("a compiler");
    assert!(made.status.success(), "{made:?}");
    let (program, library) = (program.display().to_string(), library.display().to_string());
    for how in ["URINGLET_TRAP=auto", "URINGLET_TRAP=signals"] {
        let output = run("env", &[how, &program, &library], folder.path(), true);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{how}: {output:?}");
    }
}

fn can_save_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("xsavec");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
