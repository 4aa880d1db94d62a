//! Tests of the file beside.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use crate::board::without_taker;
use crate::config::Builder;
use crate::instance::Instance;
use crate::instance::submit::Entry;
use crate::router::facts::Facts;
use crate::sqe::{FILE_POSITION, Sqe};

const AT_START: &[u8] = b"ffff";
const APPENDED: &[u8] = b"aaa";

/// What stands in a file after these were submitted, `together` or one by one, before the thread
/// waited.
fn written(appends: &[bool], together: bool) -> Vec<u8> {
    let instance = Instance::new(&Builder::default().entries(8)).unwrap();
    instance.leave_alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    let append = std::fs::File::options().append(true).open(file.path()).unwrap();
    // What is remembered of the numbers is of files of other tests.
    for fd in [file.as_file().as_raw_fd(), append.as_raw_fd()] {
        Facts::forget(&(fd..=fd));
    }
    let entry = |&appends: &bool| {
        let at_start = Sqe::write(file.as_file().as_raw_fd(), AT_START, 0);
        let append = Sqe::write(append.as_raw_fd(), APPENDED, FILE_POSITION);
        Entry { sqe: if appends { append } else { at_start }, data: 0, notify: -1 }
    };
    let entries: Vec<_> = appends.iter().map(entry).collect();
    for some in entries.chunks(if together { entries.len() } else { 1 }) {
        // SAFETY: the buffers are there for good.
        assert_eq!(unsafe { instance.submit(some) }.accepted, some.len());
    }
    let count = entries.len() as u32;
    without_taker(|taker| instance.wait(count, count, None, None, taker));
    assert_eq!(instance.reap(count, |cqe| assert!(cqe.res > 0)), count);
    instance.close();
    let mut found = Vec::new();
    file.reopen().unwrap().read_to_end(&mut found).unwrap();
    found
}

#[test]
fn a_write_at_an_offset_and_an_append_behind_it_are_executed_in_this_order() {
    for together in [false, true] {
        assert_eq!(written(&[false, true], together), b"ffffaaa");
        assert_eq!(written(&[true, false], together), b"ffff");
        assert_eq!(written(&[false, true, false, true, true], together), b"ffffaaaaaaaaa");
        assert_eq!(written(&[true, true, false], together), b"ffffaa");
    }
}
