//! The same C programs on the kernel's io_uring and on the library: their output has to be equal.
//! Where the kernel refuses io_uring, they only have to end well on the library.

use support::{compile, has_io_uring, run, skipped};

mod support;

fn same(test: &str, source: &str) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, source, folder.path()) else { return };
    let program = program.to_str().expect("text");
    let on = |ours| {
        let output = run(program, &[], folder.path(), ours);
        let [out, error] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{source}, ours: {ours}: {}\n{out}{error}", output.status);
        out
    };
    let ours = on(true);
    assert!(ours.lines().count() > 3, "{ours}");
    if !has_io_uring() {
        return skipped(test, "io_uring is refused here: not compared");
    }
    let theirs = on(false);
    if theirs.starts_with("SKIPPED") {
        return skipped(test, "this kernel has no such operation: not compared");
    }
    assert_eq!(theirs, ours, "the kernel's (left) and ours");
}

macro_rules! programs {
    ($($name:ident)*) => {
        const PROGRAMS_OF_C: &[&str] = &[$(concat!(stringify!($name), ".c")),*];
        $(
            #[test]
            fn $name() {
                same(stringify!($name), concat!(stringify!($name), ".c"));
            }
        )*
    };
}

programs! {
    always_ready basics bundles by_number cancel_by_file cancelled_waits cancels chains children
    clones closed commands deferred descriptors echo edges ended epoll_waits event_loop failing
    fields files first_ended fixed_vectors flags futexes gone groups handler in_one_batch
    interrupted jumps limits listeners loops mapped_buffers messages multishots names newer nonempty
    notices opens order overflow own_memory page_ends parcels pipes poll_at_once polls positions
    priorities provided pulses rarely raw_poll resizes seats sends setup shared streams tags threads
    timeouts together transfers unseen untried
}

/// With these variables, which `uringlet run` sets, rings are left to a kernel that allows
/// io_uring.
#[test]
fn rings_that_are_left_to_the_kernel_are_the_kernels() {
    let test = "rings_that_are_left_to_the_kernel_are_the_kernels";
    if !has_io_uring() {
        return skipped(test, "io_uring is refused here");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    for source in PROGRAMS_OF_C {
        let Some(program) = compile(test, source, folder.path()) else { return };
        let program = program.to_str().expect("text");
        let left = ["URINGLET_TRAP=auto", "URINGLET_IO_URING=if-refused", program];
        let out = |output: std::process::Output| {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{source}: {}\n{error}", output.status);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let native = out(run(program, &[], folder.path(), false));
        assert_eq!(out(run("env", &left, folder.path(), true)), native, "{source}");
    }
}

/// unshare(1) with `--pid` alone leaves a /proc that has other processes under the program's PIDs.
#[test]
fn a_ring_is_shared_where_proc_shows_another_pid_namespace() {
    let test = "a_ring_is_shared_where_proc_shows_another_pid_namespace";
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    #[allow(unsafe_code)]
    let flags = if unsafe { libc::geteuid() } == 0 { "-pf" } else { "-rpf" };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    if !run("unshare", &[flags, "true"], folder.path(), false).status.success() {
        return skipped(test, "no PID namespaces here");
    }
    let Some(program) = compile(test, "shared.c", folder.path()) else { return };
    let inside = [flags, program.to_str().expect("text")];
    let on = |ours| {
        let output = run("unshare", &inside, folder.path(), ours);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "ours: {ours}: {}\n{error}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ours = on(true);
    assert!(ours.lines().count() > 3, "{ours}");
    if has_io_uring() {
        assert_eq!(on(false), ours, "the kernel's (left) and ours");
    }
}

#[test]
fn rights() {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    #[allow(unsafe_code)]
    if unsafe { libc::geteuid() } != 0 {
        return skipped("rights", "root only: its threads give up rights");
    }
    same("rights", "rights.c");
}

/// The number of random programs for each run of the test, from these seeds on.
const PROGRAMS: &str = "400";
const SEEDS: [&str; 2] = ["1", "50000"];

#[test]
fn random_programs_have_the_same_results() {
    let test = "random_programs_have_the_same_results";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = compile(test, "random.c", folder.path()) else { return };
    let program = program.to_str().expect("text");
    for seed in SEEDS {
        let on = |ours| {
            let output = run(program, &[seed, PROGRAMS], folder.path(), ours);
            assert!(output.status.success(), "from seed {seed}, ours: {ours}: {}", output.status);
            String::from_utf8(output.stdout).expect("text")
        };
        let ours = on(true);
        if !has_io_uring() {
            return support::skipped(test, "io_uring is refused here: not compared");
        }
        let theirs = on(false);
        let differs = theirs.lines().zip(ours.lines()).find(|(left, right)| left != right);
        assert_eq!(differs, None, "from seed {seed}: the kernel's (left) and ours");
    }
}
