//! What is done before the process exits, executes another program, or starts another process that
//! may look at the same files. Submitted requests that do not sleep are executed, as the kernel
//! would have done inside their submit.

use super::Instance;
use crate::process;
use crate::router::tuning::SOON_US;
use crate::sync::holds_lock;
use crate::sys;

impl Instance {
    /// Executes queued requests that do not sleep. Then waits, for a limited time, for requests
    /// that other threads have begun. Safe in signal handlers: calls no engine thread. Does nothing
    /// in the child of a vfork(2), and in a signal handler whose thread holds one of the engine's
    /// locks.
    pub fn before_leaving(&self) {
        if !self.board.free_slots().held_more_than(0)
            || holds_lock()
            || !self.is_usable()
            || process::is_borrowed()
        {
            return;
        }
        let (mut left, mut since, mut waits) = (u32::MAX, sys::ticks(), 0);
        loop {
            let is_left = self.lanes.inline.execute_ready(&self.board, &self.router);
            let mut now = 0;
            self.board.free_slots().each_held(|index| {
                let soon = self.board.slot(index).expected().is_some_and(|(_, soon)| soon);
                now += u32::from(soon);
            });
            if now < left {
                (left, since) = (now, sys::ticks());
            }
            let passed = sys::ticks().wrapping_sub(since);
            if now == 0 || is_left || passed > SOON_US / 10 * self.board.ticks_per_us() {
                return;
            }
            Self::give_others_time(&mut waits);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;

    use crate::config::Builder;
    use crate::front::Entry;
    use crate::instance::Instance;
    use crate::router::facts::Facts;
    use crate::sqe::{FILE_POSITION, Sqe};
    use crate::sync;

    #[test]
    fn what_does_not_sleep_is_executed_in_its_order_unless_a_lock_is_held() {
        let instance = Instance::new(&Builder::default().entries(8)).unwrap();
        instance.leave_alone();
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        // A file of another test may have had this descriptor's number. The engine forgets what it
        // has learned about that file.
        Facts::forget(&(fd..=fd));
        let lock = std::sync::Mutex::new(());
        let mut expected = 0;
        for texts in [&["a"][..], &["b", "c", "d"]] {
            for (at, text) in texts.iter().enumerate() {
                let offset = if at == 2 { FILE_POSITION } else { 0 };
                let sqe = Sqe::write(fd, text.as_bytes(), offset);
                // SAFETY: the data is a constant.
                let submitted = unsafe { instance.submit(&[Entry { sqe, data: 0, notify: -1 }]) };
                assert_eq!((submitted.accepted, submitted.refused), (1, 0));
            }
            let held = sync::lock_counted(&lock);
            instance.before_leaving();
            assert_eq!(instance.available(), expected, "under a lock");
            drop(held);
            instance.before_leaving();
            expected += texts.len() as u32;
            assert_eq!(instance.available(), expected);
        }
        let mut back = [0];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 1);
        assert_eq!(&back, b"d", "the last one at the file position, which was 0");
        instance.close();
    }
}
