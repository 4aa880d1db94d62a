//! A ring whose memory the program scribbles over, forks, and programs that are seen only by half:
//! errors of the program, and no faults of the library.

use support::{compile, run};

mod support;

fn ends_well(test: &str, source: &str) {
    ends_well_with(test, source, &[]);
}

/// With these variables.
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
fn the_child_of_a_fork_is_refused_and_may_have_rings_of_its_own() {
    ends_well("the_child_of_a_fork_is_refused_and_may_have_rings_of_its_own", "fork.c");
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

#[test]
fn rings_are_the_kernels_where_it_has_some_if_that_is_asked_for() {
    let test = "rings_are_the_kernels_where_it_has_some_if_that_is_asked_for";
    if !support::has_io_uring() {
        return support::skipped(test, "io_uring is refused here");
    }
    let asked = ["URINGLET_TRAP=auto", "URINGLET_IO_URING=refused"];
    ends_well_with(test, "raw_enter.c", &asked);
}

#[test]
fn calls_that_are_trapped_are_served() {
    // setarch(8): without random addresses.
    let same_addresses = ["URINGLET_TRAP=auto", "setarch", "-R"];
    let signals = ["URINGLET_TRAP=signals"];
    for how in [&["URINGLET_TRAP=auto"][..], &signals, &["URINGLET_TRAP=always"], &same_addresses] {
        ends_well_with("calls_that_are_trapped_are_served", "trapped.c", how);
    }
}

/// As far as it is a program for io_uring at all.
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

fn can_save_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("xsavec");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
