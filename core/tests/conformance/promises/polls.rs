//! What a poll sees: every buffered request that was submitted before it and does not sleep.

use std::os::fd::AsRawFd as _;

use crate::common::{LONG, bounded, context, excepted, file_with, from_env, push, submit_all};
use uringlet::Sqe;

/// Writes in all. `ci/polls.sh` makes ten million.
const WRITES: &str = "URINGLET_TEST_POLLS";

#[test]
fn a_poll_sees_each_buffered_write_that_was_submitted_before_it() {
    if excepted(|| ()) {
        return;
    }
    let writes = from_env(WRITES, 20_000);
    let _bound = bounded(LONG * (4 + writes / 100_000) as u32);
    let file = file_with(&[]);
    let data = vec![7u8; 1 << 20];
    let mut context = context(64);
    let (mut missed, mut written) = (0, 0u64);
    while written < writes {
        // Mostly small ones, several at a time now and then, and one in a thousand of the largest
        // size.
        let count = if written % 16 == 0 { 8 } else { 1 };
        for at in 0..count {
            let number = written + at;
            let length = match number % 1000 {
                0 => 1 << 20,
                _ => 512 << (number % 5),
            };
            let offset = number % 64 * 4096;
            let sqe = Sqe::write(file.as_raw_fd(), &data[..length], offset);
            push(&mut context, sqe.user_data(length as u64));
        }
        submit_all(&mut context);
        written += count;
        let seen = context.wait(0, None).unwrap() as u64;
        missed += count - seen.min(count);
        context.wait(count as usize, None).unwrap();
        for _ in 0..count {
            let cqe = context.reap().expect("it has completed");
            assert_eq!(i64::from(cqe.res), cqe.user_data as i64);
        }
        assert!(context.reap().is_none());
    }
    assert_eq!(missed, 0, "of {written} writes");
}
