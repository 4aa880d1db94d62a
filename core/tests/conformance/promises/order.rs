//! The promised order: appends, a read after a reaped write, a sync after earlier writes.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;

use super::BLOCK;
use crate::common::{
    LONG, bounded, by_user_data, context, file_with, finish, pattern, push, reap_all, run,
    submit_all, wait_for,
};
use uringlet::Sqe;

#[test]
fn appends_land_in_the_order_of_submission() {
    let _bound = bounded(4 * LONG);
    let dir = tempfile::tempdir().unwrap();
    let mut context = context(64);
    for (round, flags) in (0..100).map(|round| (round, [0, libc::RWF_APPEND][round % 2])) {
        let path = dir.path().join(format!("{round}"));
        let mut file =
            OpenOptions::new().append(flags == 0).write(true).create(true).open(&path).unwrap();
        let parts: Vec<Vec<u8>> = (0..64).map(|at| vec![at as u8; 100 + at]).collect();
        for (at, part) in parts.iter().enumerate() {
            let sqe = Sqe::write(file.as_raw_fd(), &part[..], 0).rw_flags(flags);
            push(&mut context, sqe.user_data(at as u64));
            if round % 4 >= 2 && at % 16 == 15 {
                submit_all(&mut context);
            }
        }
        if context.pushed() > 0 {
            submit_all(&mut context);
        }
        wait_for(&mut context, 64);
        let results = by_user_data(&reap_all(&mut context));
        assert!((0..64).all(|at| results[&at] == 100 + at as i32));
        file.flush().unwrap();
        let mut found = std::fs::read(&path).unwrap();
        let right = found == parts.concat();
        found.dedup();
        assert!(right, "round {round}: {found:?}");
    }
}

#[test]
fn a_read_after_a_reaped_write_sees_it_and_fsync_follows_writes() {
    let _bound = bounded(4 * LONG);
    let file = file_with(&[0; BLOCK]);
    let fd = file.as_raw_fd();
    let mut context = context(64);
    for round in 0..500 {
        let content = pattern(round, BLOCK);
        assert_eq!(run(&mut context, Sqe::write(fd, &content[..], 0)), BLOCK as i32);
        let mut back = [0; BLOCK];
        assert_eq!(run(&mut context, Sqe::read(fd, &mut back[..], 0)), BLOCK as i32);
        assert!(back[..] == content, "round {round}");
    }
    for round in 0..10 {
        let parts: Vec<Vec<u8>> = (0..32).map(|at| pattern(round + at, BLOCK)).collect();
        for (at, part) in (0..).zip(&parts) {
            push(&mut context, Sqe::write(fd, &part[..], at * BLOCK as u64).user_data(at));
        }
        push(&mut context, Sqe::fsync(fd).user_data(100));
        push(&mut context, Sqe::fdatasync(fd).user_data(101));
        let results = finish(&mut context);
        assert!((0..32).all(|at| results[&at] == BLOCK as i32));
        assert_eq!((results[&100], results[&101]), (0, 0));
        let mut content = Vec::new();
        (&file).rewind().unwrap();
        (&file).read_to_end(&mut content).unwrap();
        assert!(content == parts.concat());
    }
}
