//! A plain read or write that is submitted alone, as most are: its submitter executes it and posts
//! its completion. It becomes a request only if it would have to wait. What is out of the ordinary
//! goes the general way (`drive`, `submit`).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{self, Instance};

use super::state::{Core, Locked};
use super::types::Request;
use crate::abi::{Cqe, op, setup};
use crate::memory::Word;
use crate::prepare::{Fields, Refused};

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
        let is_vector = front::has_vector(&sqe);
        if !front::is_inline(sqe.fd, op::is_write(sqe.opcode))
            || is_vector && !self.expects_small_vectors.load(Ordering::Relaxed)
        {
            return false;
        }
        let mut locked = self.lock();
        let is_next = locked.is_next(head, &sqe);
        if is_next {
            locked.begin(head);
        }
        if locked.unlock() {
            self.with(|_| ());
        }
        if !is_next {
            return false;
        }
        // SAFETY: the buffers are the request's by the contract of io_uring_enter(2).
        let result = unsafe { engine.try_now(&sqe) };
        let locked = match result {
            Some(res) => {
                if is_vector {
                    self.saw_vector(res);
                }
                let mut locked = self.lock();
                locked.end(Cqe { user_data: fields.user_data(), res, flags: 0 });
                locked
            }
            None => self.go_on(&fields, thread),
        };
        self.executes_one_less();
        self.after_submit(engine, locked.give_back());
        true
    }

    /// An entry that was taken out of the queue would have to wait: it becomes a request of the
    /// engine. This function has a frame of its own, which the usual entries do not need.
    #[cold]
    #[inline(never)]
    fn go_on(self: &Arc<Self>, fields: &Fields, thread: u32) -> Locked<'_> {
        let mut request = Request::new();
        let prepared = request.prepare(fields, false);
        request.thread = thread;
        let mut locked = self.lock();
        match prepared {
            Ok(()) => {
                let at = locked.place();
                locked.fill(at, request);
                locked.make_ready(at);
            }
            Err(Refused::Malformed(errno) | Refused::Errno(errno)) => {
                locked.end(Cqe { user_data: fields.user_data(), res: errno, flags: 0 });
            }
        }
        locked
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
            && !state.is_in_front_of(op::is_write(sqe.opcode))
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
            let at = bytes.as_ptr().expose_provenance();
            self.put_any(op::WRITE, fd, flags, (at, bytes.len()));
        }

        /// Any transfer at offset 0.
        fn put_any(&self, opcode: u8, fd: i32, flags: u8, (at, len): (usize, usize)) {
            let tail = self.core.memory.word(Word::SqTail);
            let place = tail.load(Ordering::Relaxed);
            let first = u64::from(opcode) | u64::from(flags) << 8 | (fd as u64) << 32;
            let entry = [first, 0, at as u64, len as u64, place.into(), 0, 0, 0];
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

    /// Submits what `put` puts into the queue, until it goes the short way and has not been waited
    /// for. What is known of the file is learned by transfers that went the other way; one that
    /// took long because its thread was away is forgotten by others. False: none has.
    fn goes_fast(ring: &mut Ring, put: impl Fn(&Ring)) -> bool {
        (0..100).any(|_| {
            put(ring);
            let fast = ring.submit();
            if !fast {
                ring.wait();
            }
            fast
        })
    }

    fn end(ring: &Ring, fd: i32) {
        let engine = Arc::clone(&ring.engine);
        ring.core.close(&engine);
        // Another test may get the number.
        front::forget_descriptors(&(fd..=fd));
    }

    #[test]
    fn a_write_submitted_alone_ends_in_its_submit_unless_something_is_in_front_of_it() {
        const NAME: &str =
            "a_write_submitted_alone_ends_in_its_submit_unless_something_is_in_front_of_it";
        let (mut ring, file) = (Ring::new(), tempfile::tempfile().unwrap());
        let fd = file.as_raw_fd();
        if !goes_fast(&mut ring, |ring| ring.put(fd, 0, b"alone")) {
            println!("SKIPPED {NAME}: the file system is not known to be a local one");
            return end(&ring, fd);
        }
        let submitted = ring.core.memory.page().sq_head.load(Ordering::Relaxed);
        let cqe = ring.reap().expect("it has ended");
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), ((submitted - 1).into(), 5, 0));
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"alone");
        assert!(!ring.core.has_requests() && ring.core.with(|locked| locked.live().count()) == 0);

        ring.put(-1, 0, b"alone");
        assert!(!ring.submit());
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

        // A large write is taken, and the engine has it then.
        let large = vec![7; 1 << 20];
        assert!(goes_fast(&mut ring, |ring| ring.put(fd, 0, &large)));
        let cqe = ring.wait();
        assert_eq!((cqe.res, ring.core.has_requests()), (1 << 20, false));
        end(&ring, fd);
    }

    #[test]
    fn a_vector_submitted_alone_is_read_by_the_kernel_while_vectors_are_small() {
        const NAME: &str = "a_vector_submitted_alone_is_read_by_the_kernel_while_vectors_are_small";
        let (mut ring, file) = (Ring::new(), tempfile::tempfile().unwrap());
        let fd = file.as_raw_fd();
        let vector = |bytes: &mut [u8]| {
            [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }; 2]
        };
        let at = |vector: &[libc::iovec; 2]| (vector.as_ptr().expose_provenance(), 2);
        let (mut few, mut many) = (*b"parts", vec![7; 1 << 16]);
        let (few, many) = (vector(&mut few), vector(&mut many));
        // None was seen yet.
        ring.put_any(op::WRITEV, fd, 0, at(&few));
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 10);
        for opcode in [op::WRITEV, op::READV] {
            if !goes_fast(&mut ring, |ring| ring.put_any(opcode, fd, 0, at(&few))) {
                println!("SKIPPED {NAME}: the file system is not known to be a local one");
                return end(&ring, fd);
            }
            assert_eq!(ring.reap().expect("it has ended").res, 10);
            // An entry that cannot be read is refused, whatever was accepted before.
            ring.put_any(opcode, fd, 0, (64, 2));
            ring.submit();
            assert_eq!((ring.wait().res, ring.core.has_requests()), (-libc::EFAULT, false));
        }
        // After a large write, the next one is copied first.
        assert!(goes_fast(&mut ring, |ring| ring.put_any(op::WRITEV, fd, 0, at(&few))));
        assert_eq!(ring.reap().expect("it has ended").res, 10);
        ring.put_any(op::WRITEV, fd, 0, at(&many));
        ring.submit();
        assert_eq!(ring.wait().res, 2 << 16);
        ring.put_any(op::WRITEV, fd, 0, at(&few));
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 10);
        end(&ring, fd);
    }
}
