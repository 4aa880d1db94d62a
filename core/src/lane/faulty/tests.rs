//! Tests of `lane/faulty.rs`.

use std::os::fd::AsRawFd as _;

use crate::Faults;
use crate::{Context, Sqe};

/// The results of 1,000 reads of 100 bytes, one after the other.
fn results(faults: Faults) -> Vec<i32> {
    let file = std::fs::File::open("/dev/zero").unwrap();
    let mut buffer = [0u8; 100];
    let mut context = Context::builder().entries(4).faulty(faults).build().unwrap();
    let one = |_| {
        let sqe = Sqe::read(file.as_raw_fd(), &mut buffer[..], 0);
        // SAFETY: the buffer outlives the context's use of it: each read is reaped.
        unsafe { context.push(sqe) }.unwrap();
        context.submit().unwrap();
        context.wait(1, None).unwrap();
        context.reap().unwrap().res
    };
    (0..1000).map(one).collect()
}

#[test]
fn a_seed_gives_the_same_faults_again_and_all_kinds_of_them() {
    let first = results(Faults::all(1));
    assert!(first == results(Faults::all(1)));
    assert!(first != results(Faults::all(2)));
    let count = |is: fn(i32) -> bool| first.iter().filter(|&&res| is(res)).count();
    assert!((20..120).contains(&count(|res| res == -libc::EIO)));
    assert!((20..120).contains(&count(|res| res == -libc::EAGAIN)));
    assert!((50..200).contains(&count(|res| (1..100).contains(&res))));
    assert_eq!(count(|res| res == 0), 0, "a short read is not the end of the file");
    assert!(results(Faults::reordering(1)).iter().all(|&res| res == 100));
}

#[test]
fn probabilities_are_checked() {
    let faults = Faults { eio: 600, short: 500, ..Faults::none(1) };
    let error = Context::builder().faulty(faults).build().unwrap_err();
    assert!(error.to_string().starts_with("faults is "), "{error}");
}
