//! A thread may get stuck inside a request that was not expected to sleep. It blocks nothing else,
//! because it loses the baton, the right to execute requests inline.

use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;

use super::{BLOCK, PIPES, errno};
use crate::common::{
    LONG, by_user_data, context, excepted, file_with, isolated, pattern, push, reap_all, skip,
    submit_all, wait_for, wait_until,
};
use uringlet::Sqe;

/// Memory whose first access blocks until [`Blocker::release`]. Until then, a read of any file into
/// this memory is stuck inside the kernel.
pub(super) struct Blocker {
    userfault: std::os::fd::OwnedFd,
    memory: *mut u8,
}

pub(super) const PAGE: usize = 4096;

impl Blocker {
    pub(super) fn new() -> Option<Self> {
        use std::os::fd::FromRawFd as _;
        #[repr(C)]
        struct Api {
            api: u64,
            features: u64,
            ioctls: u64,
        }
        #[repr(C)]
        struct Register {
            start: u64,
            len: u64,
            mode: u64,
            ioctls: u64,
        }
        const UFFDIO_API: u64 = 0xc018_aa3f;
        const UFFDIO_REGISTER: u64 = 0xc020_aa00;
        const MISSING: u64 = 1;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // Without `O_NONBLOCK`, poll(2) of a userfaultfd only returns POLLERR.
        // SAFETY: a new descriptor and a new mapping of one page, both owned by the result.
        unsafe {
            let fd =
                libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) as i32;
            if fd < 0 {
                return None;
            }
            let userfault = std::os::fd::OwnedFd::from_raw_fd(fd);
            let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
            if libc::ioctl(fd, UFFDIO_API as _, &mut api) != 0 {
                return None;
            }
            let memory = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let mut register =
                Register { start: memory as u64, len: PAGE as u64, mode: MISSING, ioctls: 0 };
            let this = Self { userfault, memory: memory.cast() };
            (libc::ioctl(fd, UFFDIO_REGISTER as _, &mut register) == 0).then_some(this)
        }
    }

    pub(super) fn buffer(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.memory, BLOCK)
    }

    /// Waits until a thread is stuck. False: none is after [`LONG`].
    pub(super) fn wait_for_a_victim(&self) -> bool {
        let fd = self.userfault.as_raw_fd();
        let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        let ready = unsafe { libc::poll(&mut set, 1, LONG.as_millis() as i32) };
        ready == 1 && set.revents == libc::POLLIN
    }

    pub(super) fn release(&self) {
        #[repr(C)]
        struct Zero {
            start: u64,
            len: u64,
            mode: u64,
            zeroed: i64,
        }
        const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
        let mut zero = Zero { start: self.memory as u64, len: PAGE as u64, mode: 0, zeroed: 0 };
        // SAFETY: fills the registered page with zeros.
        let ret =
            unsafe { libc::ioctl(self.userfault.as_raw_fd(), UFFDIO_ZEROPAGE as _, &mut zero) };
        assert_eq!(ret, 0);
    }
}

// SAFETY: the address is only passed to the kernel.
unsafe impl Sync for Blocker {}

impl Drop for Blocker {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.memory.cast(), PAGE) };
    }
}

/// Submits a read of a cached page, which blocks the thread that executes it, and then 500 writes.
fn behind_a_blocked_holder(somebody_waits: bool) {
    let Some(blocker) = Blocker::new() else {
        return skip("userfaultfd(2) is not permitted: nothing blocks an inline read at will");
    };
    let content = pattern(1, 500 * BLOCK);
    let (file, target) = (file_with(&content), file_with(b""));
    let mut context = context(1024);
    push(&mut context, Sqe::read(file.as_raw_fd(), blocker.buffer(), 0).user_data(PIPES));
    for (at, part) in (0..).zip(content.chunks(BLOCK)) {
        let sqe = Sqe::write(target.as_raw_fd(), part, at * BLOCK as u64);
        push(&mut context, sqe.user_data(at));
    }
    submit_all(&mut context);
    let all_written = || {
        let mut found = Vec::new();
        (&target).rewind().unwrap();
        (&target).read_to_end(&mut found).unwrap();
        found == content
    };
    // The waiting thread may be the stuck one. So another thread checks the writes, and releases
    // the memory.
    let canceller = context.canceller();
    std::thread::scope(|scope| {
        let releaser = scope.spawn(|| {
            assert!(blocker.wait_for_a_victim(), "somebody takes the requests");
            let written = wait_until(all_written);
            let answer = errno(canceller.cancel(PIPES));
            blocker.release();
            assert!(written, "the writes behind the blocked read");
            assert_eq!(answer, libc::EALREADY, "it is being executed");
        });
        if !somebody_waits {
            releaser.join().unwrap();
        }
        wait_for(&mut context, 501);
    });
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results.len(), 501);
    assert!(results.values().all(|&result| result == BLOCK as i32));
}

#[test]
fn a_blocked_holder_holds_up_nobody_when_nobody_waits() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| {
        behind_a_blocked_holder(false);
    });
}

#[test]
fn a_blocked_waiter_or_worker_loses_the_baton() {
    if excepted(|| ()) {
        return;
    }
    isolated(|| behind_a_blocked_holder(true));
}
