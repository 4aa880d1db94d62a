//! A file system whose server does not answer delays only requests to that file system. A thread
//! that waits in an open(2) of its own delays no other request.

use std::path::Path;

#[path = "../../libaio/tests/support/fuse.rs"]
mod fuse;
#[path = "../../libaio/tests/support/hung.rs"]
mod hung;
mod support;

use fuse::Disk;
use hung::Case;

#[test]
fn rings_go_on_while_the_server_of_a_registered_file_does_not_answer() {
    let test = "rings_go_on_while_the_server_of_a_registered_file_does_not_answer";
    let mut disk = match Disk::start() {
        Ok(disk) => disk,
        Err(reason) => return support::skipped(test, &reason),
    };
    if !support::has_header(test) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = hung::compile(env!("CARGO_MANIFEST_DIR"), folder.path(), &["-luring"]);
    let library = support::library();
    let mut complaints = Vec::new();
    for mode in ["buffered", "direct"] {
        for known in ["fresh", "known"] {
            let drop_in = Some((Path::new(&library), "auto"));
            let case = Case { drop_in, mode, known, task: "steps" };
            let late = hung::run(&mut disk, &program, folder.path(), case);
            let late = late.unwrap_or_else(|error| vec![error]);
            complaints.extend(late.iter().map(|step| format!("{mode}, {known}: {step}")));
        }
    }
    let count = complaints.len();
    assert!(complaints.is_empty(), "{count} wait for the server:\n{}", complaints.join("\n"));
}

#[test]
fn rings_go_on_while_a_thread_waits_in_an_open_of_its_own() {
    let test = "rings_go_on_while_a_thread_waits_in_an_open_of_its_own";
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Some(program) = support::compile(test, "waits_in_open.c", folder.path()) else { return };
    let output = support::run(program.to_str().expect("text"), &[], folder.path(), true);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.ends_with("done\n"), "{output:?}");
}
