//! A file system whose server does not answer blocks only threads that wait without a deadline.

use std::path::Path;

#[path = "support/fuse.rs"]
mod fuse;
#[path = "support/hung.rs"]
mod hung;
mod support;

use fuse::Disk;
use hung::Case;

/// Runs the program for each of these tasks and modes, on a new descriptor and on a known one.
fn check(test: &str, engine: Option<&str>, tasks: &[&str], modes: &[&str]) {
    let mut disk = match Disk::start() {
        Ok(disk) => disk,
        Err(reason) => return support::skipped(test, &reason),
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = hung::compile(env!("CARGO_MANIFEST_DIR"), folder.path(), &["-laio"]);
    let library = support::library();
    let drop_in = engine.map(|engine| (Path::new(&library), engine));
    let mut complaints = Vec::new();
    for &mode in modes {
        for known in ["fresh", "known"] {
            for &task in tasks {
                let case = Case { drop_in, mode, known, task };
                let late = match hung::run(&mut disk, &program, folder.path(), case) {
                    Ok(late) => late,
                    Err(error) if error.contains("io_setup(") => {
                        return support::skipped(test, &format!("refused here: {error}"));
                    }
                    Err(error) => vec![error],
                };
                complaints
                    .extend(late.iter().map(|step| format!("{mode}, {known}, {task}: {step}")));
            }
        }
    }
    let count = complaints.len();
    assert!(complaints.is_empty(), "{count} wait for the server:\n{}", complaints.join("\n"));
}

macro_rules! on_engines {
    ($($engine:ident),*) => { $(
        mod $engine {
            const ENGINE: &str = stringify!($engine);

            fn check(task: &str, tasks: &[&str], modes: &[&str]) {
                super::check(&format!("{ENGINE}::{task}"), Some(ENGINE), tasks, modes);
            }

            #[test]
            fn submit_poll_timed_wait_and_cancel_wait_for_no_server() {
                let name = "submit_poll_timed_wait_and_cancel_wait_for_no_server";
                check(name, &["steps"], &["buffered", "direct"]);
            }

            #[test]
            fn destroy_waits_for_the_server_and_ends_with_it() {
                let name = "destroy_waits_for_the_server_and_ends_with_it";
                check(name, &["destroy"], &["buffered", "direct"]);
            }

            /// Buffered requests only: with direct ones in flight, a process does not end while the
            /// server hangs. Nor does it on the original.
            #[test]
            fn exit_and_kill_wait_for_no_server() {
                check("exit_and_kill_wait_for_no_server", &["exit", "kill"], &["buffered"]);
            }

            #[test]
            fn close_waits_for_no_server() {
                check("close_waits_for_no_server", &["close"], &["buffered", "direct"]);
            }
        }
    )* };
}

on_engines!(auto, workers, io_uring, linux_aio, posix_aio);

/// The original passes with direct requests. With buffered ones it would wait in io_submit.
#[test]
fn the_original_waits_in_destroy_and_not_in_close() {
    let name = "the_original_waits_in_destroy_and_not_in_close";
    check(name, None, &["destroy", "close"], &["direct"]);
}
