//! A plain read or write that is submitted alone, as most are: its submitter executes it and posts
//! its completion. It becomes a request only if it would have to wait. What is out of the ordinary
//! goes the general way (`drive`, `submit`).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{self, Instance};

use super::state::{Core, Locked};
use crate::abi::{Cqe, op, setup};
use crate::memory::Word;
use crate::prepare::Fields;

impl Core {
    /// Submits the next entry for a thread that has entered the ring and submits this one only.
    /// False: nothing was done, and [`submit`](Self::submit) is to be called.
    pub(crate) fn submit_fast(self: &Arc<Self>, engine: &Instance, thread: u32) -> bool {
        let head = self.memory.page().sq_head.load(Ordering::Acquire);
        let tail = self.memory.word(Word::SqTail).load(Ordering::Acquire);
        if tail == head || self.has(setup::IOPOLL) {
            return false;
        }
        let Some(fields) = self.memory.sqe(head).map(Fields) else { return false };
        let Some(sqe) = fields.plain_transfer() else { return false };
        if !front::is_inline(sqe.fd, sqe.opcode == op::WRITE) {
            return false;
        }
        let mut locked = self.lock();
        if !locked.is_next(head, &sqe) {
            self.follow_up(locked.give_back());
            return false;
        }
        locked.begin(head);
        if locked.unlock() {
            self.with(|_| ());
        }
        // SAFETY: the buffer is the request's by the contract of io_uring_enter(2).
        let result = unsafe { engine.try_now(&sqe) };
        let mut locked = self.lock();
        match result {
            Some(res) => locked.end(Cqe { user_data: fields.user_data(), res, flags: 0 }),
            None => locked.go_on(&fields, thread),
        }
        self.executes_one_less();
        self.after_submit(engine, locked.give_back());
        true
    }
}

impl Locked<'_> {
    /// Is this entry at the head of the queue, with nothing in front of it that it is to wait for?
    fn is_next(&mut self, head: u32, sqe: &Sqe) -> bool {
        let state = &*self.state;
        let is_quiet = state.chains.is_quiet()
            && !state.is_in_batch
            && state.asking == 0
            && state.tasks.is_empty()
            && !state.is_in_front_of(sqe.opcode == op::WRITE)
            && state.restrictions.allow(sqe.opcode, 0);
        is_quiet
            && self.core.memory.page().sq_head.load(Ordering::Relaxed) == head
            && self.claim(0).is_ok()
            && !self.state.sharing.is_shared
    }

    /// Takes the entry out of the queue.
    fn begin(&mut self, head: u32) {
        let core = self.core;
        let next = head.wrapping_add(1);
        core.memory.page().sq_head.store(next, Ordering::Release);
        core.memory.word(Word::SqHead).store(next, Ordering::Release);
        core.one_was_taken();
        core.executes_one_more();
        self.state.chains.begun();
    }

    /// Ends the attempt with a completion.
    fn end(&mut self, cqe: Cqe) {
        self.state.chains.ended();
        self.post(cqe, false);
        self.core.one_has_ended();
    }

    /// It would have to wait, and becomes a request of the engine's.
    #[cold]
    fn go_on(&mut self, fields: &Fields, thread: u32) {
        let at = self.place();
        let request = self.request(at);
        let prepared = request.prepare(fields, false);
        debug_assert!(prepared.is_ok(), "nothing of a plain one is refused");
        request.thread = thread;
        self.make_ready(at);
    }
}

// Miri knows no shared memory.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use uringlet::front::{self, Instance};

    use crate::abi::{self, Cqe, iosqe, op, setup};
    use crate::memory::{Memory, Word};
    use crate::ring::Core;
    use crate::ring::tests::NoOther;

    const ENTRIES: u32 = 8;

    struct Ring {
        core: Arc<Core>,
        engine: Arc<Instance>,
        sqes: *mut [u64; 8],
        cqes: *const Cqe,
        reaped: u32,
    }

    impl Ring {
        fn new() -> Self {
            let (flags, entries) = (setup::NO_SQARRAY, ENTRIES);
            let params = abi::Params {
                sq_entries: entries,
                cq_entries: entries,
                flags,
                ..abi::Params::default()
            };
            let memory = Arc::new(Memory::new(&params).unwrap());
            let map = |offset| {
                let (prot, len) = (libc::PROT_READ | libc::PROT_WRITE, 64 * ENTRIES as usize);
                // SAFETY: another mapping of pages that the memory has.
                let at = unsafe { memory.map(0, len, prot, libc::MAP_SHARED, offset) };
                assert!(at > 0, "{at}");
                at as usize
            };
            let cqes = map(abi::OFF_SQ_RING) + Memory::cq_offsets().cqes as usize;
            let sqes = map(abi::OFF_SQES);
            let core = Core::new(&NoOther, memory, &params, 0);
            core.found();
            let engine = core.engine().unwrap();
            Self { core, engine, sqes: sqes as *mut _, cqes: cqes as *const _, reaped: 0 }
        }

        /// The program puts a write of these bytes at offset 0 into the queue.
        fn put(&self, fd: i32, flags: u8, bytes: &[u8]) {
            let tail = self.core.memory.word(Word::SqTail);
            let place = tail.load(Ordering::Relaxed);
            let first = u64::from(op::WRITE) | u64::from(flags) << 8 | (fd as u64) << 32;
            let user_data = place.into();
            let at = bytes.as_ptr().expose_provenance() as u64;
            let entry = [first, 0, at, bytes.len() as u64, user_data, 0, 0, 0];
            // SAFETY: a place of the queue; nobody reads it before the tail says so.
            unsafe { self.sqes.add((place % ENTRIES) as usize).write(entry) };
            tail.store(place.wrapping_add(1), Ordering::Release);
        }

        /// Submits what is in the queue, on the short way or not.
        fn submit(&self) -> bool {
            let _entered = self.core.entered();
            let fast = self.core.submit_fast(&self.engine, 1);
            if !fast {
                assert_eq!(self.core.submit(&self.engine, 1, 1), Ok(1));
            }
            fast
        }

        /// The completion that is there.
        fn reap(&mut self) -> Option<Cqe> {
            let is_there = self.core.completions() > 0;
            is_there.then(|| {
                // SAFETY: a place of the ring that was published.
                let cqe = unsafe { *self.cqes.add((self.reaped % ENTRIES) as usize) };
                self.reaped += 1;
                self.core.memory.word(Word::CqHead).store(self.reaped, Ordering::Release);
                cqe
            })
        }

        fn wait(&mut self) -> Cqe {
            loop {
                if let Some(cqe) = self.reap() {
                    return cqe;
                }
                self.engine.poll();
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_write_submitted_alone_ends_in_its_submit_unless_something_is_in_front_of_it() {
        let (mut ring, file) = (Ring::new(), tempfile::tempfile().unwrap());
        let fd = file.as_raw_fd();
        // What is known of the file is learned by its first writes.
        let is_known = (0..100).any(|_| {
            ring.put(fd, 0, b"first");
            let fast = ring.submit();
            assert_eq!(ring.wait().res, 5);
            fast
        });
        if !is_known {
            println!(
                "SKIPPED a_write_submitted_alone_ends_in_its_submit_unless_something_is_in_front_of_it: \
                 the file system is not known to be a local one"
            );
            return;
        }
        let submitted = |ring: &Ring| ring.core.memory.page().sq_head.load(Ordering::Relaxed);
        let before = submitted(&ring);
        ring.put(fd, 0, b"alone");
        assert!(ring.submit());
        let cqe = ring.reap().expect("it has ended");
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), (before.into(), 5, 0));
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, submitted(&ring)), (b"alone", before + 1));
        assert!(!ring.core.has_requests() && ring.core.with(|locked| locked.live().count()) == 0);

        // One that is refused becomes no request either.
        ring.put(-1, 0, b"alone");
        ring.submit();
        assert_eq!(ring.wait().res, -libc::EBADF);

        // What asks for more, or is behind something, goes the general way.
        ring.put(fd, iosqe::ASYNC, b"async");
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 5);
        ring.core.with(|locked| locked.state.in_front[0] += 1);
        ring.put(fd, 0, b"later");
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 5);
        ring.core.with(|locked| locked.state.in_front[0] -= 1);

        // A large one is taken, and the engine has it then.
        let large = vec![7; 1 << 20];
        ring.put(fd, 0, &large);
        assert!(ring.submit());
        let cqe = ring.wait();
        assert_eq!((cqe.res, ring.core.has_requests()), (1 << 20, false));
        let engine = Arc::clone(&ring.engine);
        ring.core.close(&engine);
        // Another test may get the number.
        front::forget_descriptors(&(fd..=fd));
    }
}
