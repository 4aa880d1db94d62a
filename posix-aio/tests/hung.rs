//! A file system whose server does not answer delays only calls that wait without a deadline.

use std::path::Path;

#[path = "../../libaio/tests/support/fuse.rs"]
mod fuse;
#[path = "../../libaio/tests/support/hung.rs"]
mod hung;
#[path = "../../libaio/tests/support/mod.rs"]
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
    let program = hung::compile(env!("CARGO_MANIFEST_DIR"), folder.path(), &[]);
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
            fn submit_poll_timed_wait_cancel_and_list_wait_for_no_server() {
                let name = "submit_poll_timed_wait_cancel_and_list_wait_for_no_server";
                check(name, &["steps"], &["buffered", "direct"]);
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

/// The original passes the same tests.
mod original {
    #[test]
    fn it_waits_for_no_server() {
        let name = "original::it_waits_for_no_server";
        super::check(name, None, &["steps", "close"], &["buffered", "direct"]);
        super::check(name, None, &["exit", "kill"], &["buffered"]);
    }
}
