//! Plain reads and writes at the head of the queue, as most are: their submitter executes them one
//! by one, and posts their completions. A read becomes a request only if it would have to wait. A
//! direct transfer that an event loop submits alone becomes a request at once. Its submitter hands
//! that request to the kernel without the ring's queue. All other entries go the general way
//! (`drive`, `submit`).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{self, Entry, Instance};

use super::state::{Core, Locked, calls_more};
use super::types::{Request, Stage, is_in_order};
use crate::abi::{Cqe, op, setup};
use crate::memory::Word;
use crate::prepare::{Fields, Plan, Refused};
use crate::tuning::TURN_US;

impl Core {
    /// Executes the plain transfers at the head of the queue, at most `count`, for a thread that
    /// has entered the ring. A read that has to wait becomes a request, and is the last one. After
    /// [`TURN_US`] no other follows, either: writes may wait. Returns the number of entries that
    /// were submitted. The caller passes the others to [`submit`](Self::submit).
    pub(crate) fn submit_fast(self: &Arc<Self>, engine: &Instance, count: u32, thread: u32) -> u32 {
        let most = if count == 1 { 1 } else { self.there(count).1 };
        let begin = if most == 1 { 0 } else { front::ticks() };
        let mut submitted = 0;
        while submitted < most
            && let Some((head, fields, sqe)) = self.next_transfer()
        {
            let (is_vector, write) = (front::has_vector(&sqe), op::is_write(sqe.opcode));
            if !front::is_tried(sqe.fd, write) {
                // Direct transfers that are submitted together are handed over together.
                let entry = Entry { sqe, data: 0, notify: self.notify() };
                let is_handed = count == 1
                    && engine.hands_over_single(&entry, write)
                    && self.submit_direct(engine, thread, (head, &fields), entry);
                return submitted + u32::from(is_handed);
            }
            // A bad vector ends its batch, so it has to be read before.
            if is_vector && (count > 1 || !self.expects_small_vectors.load(Ordering::Relaxed)) {
                break;
            }
            let mut locked = self.lock();
            // An eventfd is counted up once for each call, so the call posts its completions
            // together.
            let is_next = !locked.state.is_in_front_of(is_in_order(&sqe))
                && (count == 1 || locked.state.eventfd.is_none())
                && locked.is_next(head, sqe.opcode);
            if is_next {
                locked.begin(head);
            }
            if locked.unlock() {
                self.with(|_| ());
            }
            if !is_next {
                break;
            }
            submitted += 1;
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
                None => self.go_on(&fields, thread, None),
            };
            self.executes_one_less();
            self.after_submit(engine, locked.give_back());
            if result.is_none() || submitted < most && engine.is_past(begin, TURN_US) {
                break;
            }
        }
        submitted
    }

    /// The head of the queue, and the number of entries there, at most `count`. A forged tail may
    /// stand for more entries than the queue has.
    fn there(&self, count: u32) -> (u32, u32) {
        let head = self.memory.page().sq_head.load(Ordering::Acquire);
        let tail = self.memory.word(Word::SqTail).load(Ordering::Acquire);
        (head, count.min(tail.wrapping_sub(head)).min(self.memory.sq_entries()))
    }

    /// The next entry, if it is a plain transfer, and its position in the queue.
    #[inline]
    fn next_transfer(&self) -> Option<(u32, Fields, Sqe)> {
        let (head, there) = self.there(1);
        if there == 0 || self.has(setup::IOPOLL) {
            return None;
        }
        let fields = self.memory.sqe(head).map(Fields)?;
        let sqe = fields.plain_transfer()?;
        Some((head, fields, sqe))
    }

    /// Ends the plain NOPs at the head of the queue, at most `count`. Returns their number.
    /// Programs send NOPs to wake a thread that waits.
    pub(crate) fn submit_nops(self: &Arc<Self>, engine: &Instance, count: u32) -> u32 {
        let (head, most) = self.there(count);
        let user_data = |at: u32| {
            let fields = self.memory.sqe(head.wrapping_add(at)).map(Fields)?;
            fields.is_plain_nop().then(|| fields.user_data())
        };
        if most == 0 || self.has(setup::IOPOLL) || user_data(0).is_none() {
            return 0;
        }
        let mut locked = self.lock();
        let mut done = 0;
        while done < most
            && let Some(user_data) = user_data(done)
            && locked.is_next(head.wrapping_add(done), op::NOP)
        {
            locked.take_out(head.wrapping_add(done));
            locked.end(Cqe { user_data, res: 0, flags: 0 });
            done += 1;
        }
        self.after_submit(engine, locked.give_back());
        done
    }

    /// As [`submit_fast`](Self::submit_fast), for a transfer that its submitter hands over to the
    /// kernel. The kernel reads a vector in the program's memory.
    #[inline(never)]
    fn submit_direct(
        self: &Arc<Self>,
        engine: &Instance,
        thread: u32,
        (head, fields): (u32, &Fields),
        mut entry: Entry,
    ) -> bool {
        let mut locked = self.lock();
        // Requests go to the engine in their order.
        let is_next = self.handover.ready() == 0 && locked.is_next(head, entry.sqe.opcode);
        let key = is_next.then(|| {
            locked.take_out(head);
            self.trying.fetch_add(1, Ordering::Relaxed);
            calls_more(1);
            let at = locked.place_for(fields, thread);
            let request = locked.request(at);
            (request.plan, request.stage) = (Plan::Engine(entry.sqe, None), Stage::Engine);
            locked.is_for_engine(at);
            locked.key(at)
        });
        if locked.unlock() {
            self.with(|_| ());
        }
        let Some(key) = key else { return false };
        entry.sqe.user_data = key;
        let fill = |place: front::Place<'_>| {
            (*place.sqe, *place.data, *place.notify) = (entry.sqe, entry.data, entry.notify);
            Ok(())
        };
        // SAFETY: the buffers are the request's by the contract of io_uring_enter(2). If the kernel
        // does not take a vector at once, the engine refuses the request instead of reading the
        // vector.
        let submitted = unsafe { engine.submit_single(fill, |_| Err(-libc::EAGAIN)) };
        if submitted.is_none_or(|submitted| submitted.accepted == 0) {
            let locked = self.go_on(fields, thread, Some(key));
            self.after_submit(engine, locked.give_back());
        }
        calls_more(-1);
        self.trying.fetch_sub(1, Ordering::Release);
        true
    }

    /// Passes an entry to the engine through the ring's queue. The entry was taken out of the
    /// submission queue, and may have become a request with this key. The function is not inlined,
    /// so that the usual entries do not need its stack frame.
    #[cold]
    #[inline(never)]
    fn go_on(self: &Arc<Self>, fields: &Fields, thread: u32, key: Option<u64>) -> Locked<'_> {
        let mut copied = Request::new();
        let prepared = copied.prepare(fields, false);
        let mut locked = self.lock();
        let at = key.and_then(|key| locked.find(key));
        let at = at.unwrap_or_else(|| locked.place_for(fields, thread));
        match prepared {
            Ok(()) => {
                let request = locked.request(at);
                (request.plan, request.iov) = (copied.plan, copied.iov);
                if matches!(copied.opcode, op::READV | op::WRITEV) {
                    self.saw_vector(copied.expected);
                }
                locked.make_ready(at);
            }
            Err(Refused::Malformed(errno) | Refused::Errno(errno)) => locked.finish(at, errno, 0),
        }
        locked
    }
}

impl Locked<'_> {
    /// Is this entry at the head of the queue, and does it wait for no chain and no cancel?
    fn is_next(&mut self, head: u32, opcode: u8) -> bool {
        let state = &*self.state;
        let is_quiet = state.chains.is_quiet()
            && !state.is_in_batch
            && state.asking == 0
            && state.tasks.is_empty()
            && state.restrictions.allow(opcode, 0);
        is_quiet
            && self.core.memory.page().sq_head.load(Ordering::Relaxed) == head
            && self.claim(0).is_ok()
            && !self.state.sharing.is_shared
    }

    /// Takes the entry out of the queue, to be executed by its submitter.
    fn begin(&mut self, head: u32) {
        self.take_out(head);
        self.core.executes_one_more();
    }

    /// Takes the entry out of the queue.
    fn take_out(&mut self, head: u32) {
        let core = self.core;
        let next = head.wrapping_add(1);
        core.memory.page().sq_head.store(next, Ordering::Release);
        core.memory.word(Word::SqHead).store(next, Ordering::Release);
        core.one_was_taken();
        self.state.chains.begun();
    }
}

// Miri has no shared memory.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use uringlet::front::{self, Instance};

    use crate::abi::{self, Cqe, iosqe, op, setup};
    use crate::memory::{Memory, Word};
    use crate::ring::Core;
    use crate::ring::types::NoOther;
    use crate::service;

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

        /// As [`put`](Self::put), for any transfer at offset 0.
        fn put_any(&self, opcode: u8, fd: i32, flags: u8, (at, len): (usize, usize)) {
            let tail = self.core.memory.word(Word::SqTail);
            let place = tail.load(Ordering::Relaxed);
            let first = u64::from(opcode) | u64::from(flags) << 8 | (fd as u64) << 32;
            let entry = [first, 0, at as u64, len as u64, place.into(), 0, 0, 0];
            // SAFETY: a place of the queue; nobody reads it before the tail says so.
            unsafe { self.sqes.add((place % ENTRIES) as usize).write(entry) };
            tail.store(place.wrapping_add(1), Ordering::Release);
        }

        /// Submits the entry in the queue. True: it went the fast way.
        fn submit(&self) -> bool {
            let _entered = self.core.entered();
            let fast = self.core.submit_fast(&self.engine, 1, 1) == 1;
            if !fast {
                assert_eq!(self.core.submit(&self.engine, 1, 1), Ok(1));
            }
            fast
        }

        /// Moves the tail of a queue of NOPs ahead, and submits. Returns the number of entries.
        fn submit_nops(&self, ahead: u32) -> u32 {
            let tail = self.core.memory.word(Word::SqTail);
            tail.store(tail.load(Ordering::Relaxed).wrapping_add(ahead), Ordering::Release);
            let _entered = self.core.entered();
            self.core.submit_nops(&self.engine, u32::MAX)
        }

        /// Reaps the next completion, if there is one.
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

    /// Submits an entry of `put` again and again, until one goes the fast way. The engine learns
    /// how fast a file is from transfers that went the general way. Later transfers outweigh a slow
    /// one whose thread was preempted. False: no entry went the fast way.
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
        // Another test may get the same descriptor number.
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

        // An entry with flags, or behind a request of the engine, goes the general way.
        ring.put(fd, iosqe::ASYNC, b"async");
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 5);
        ring.core.with(|locked| locked.state.in_front[0] += 1);
        ring.put(fd, 0, b"later");
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 5);
        ring.core.with(|locked| locked.state.in_front[0] -= 1);

        // The fast way takes a large write out of the queue, and passes it on to the engine.
        let large = vec![7; 1 << 20];
        assert!(goes_fast(&mut ring, |ring| ring.put(fd, 0, &large)));
        let cqe = ring.wait();
        assert_eq!((cqe.res, ring.core.has_requests()), (1 << 20, false));
        end(&ring, fd);
    }

    /// The poll thread leaves events alone for a while if it has seen signs of a waiter.
    #[test]
    fn a_receive_that_was_tried_in_vain_is_no_sign_of_a_waiter() {
        let mut ring = Ring::new();
        let mut bytes = [0; 4];
        let at = (bytes.as_mut_ptr().expose_provenance(), 4);
        let mut is_quiet = || {
            // The first receive from a socket is tried.
            let (near, mut far) = UnixStream::pair().unwrap();
            let before = service::turns();
            ring.put_any(op::RECV, near.as_raw_fd(), 0, at);
            ring.submit();
            let is_quiet = service::turns() == before;
            far.write_all(b"data").unwrap();
            assert_eq!(ring.wait().res, 4);
            front::forget_descriptors(&(near.as_raw_fd()..=near.as_raw_fd()));
            service::before_close(&(near.as_raw_fd()..=near.as_raw_fd()));
            is_quiet
        };
        // A waiter of a test that runs at the same time may disturb some of the attempts.
        assert!((0..100).any(|_| is_quiet()));
        let engine = Arc::clone(&ring.engine);
        ring.core.close(&engine);
    }

    #[test]
    fn plain_transfers_at_the_head_of_a_batch_end_in_their_submit_in_order() {
        const NAME: &str = "plain_transfers_at_the_head_of_a_batch_end_in_their_submit_in_order";
        let (mut ring, file) = (Ring::new(), tempfile::tempfile().unwrap());
        let (fd, mut read) = (file.as_raw_fd(), [0; 6]);
        if !goes_fast(&mut ring, |ring| ring.put(fd, 0, b"before")) {
            println!("SKIPPED {NAME}: the file system is not known to be a local one");
            return end(&ring, fd);
        }
        let before = ring.reap().expect("it has ended").user_data;
        ring.put(fd, 0, b"first ");
        ring.put(fd, 0, b"second");
        ring.put_any(op::READ, fd, 0, (read.as_mut_ptr().expose_provenance(), 6));
        ring.put(fd, iosqe::ASYNC, b"a fourth");
        ring.put(fd, 0, b"fifth");
        {
            let _entered = ring.core.entered();
            // The entry with a flag and those behind it become requests.
            assert_eq!(ring.core.submit_fast(&ring.engine, 5, 1), 3);
            assert_eq!(ring.core.completions(), 3);
            assert_eq!(ring.core.submit_fast(&ring.engine, 2, 1), 0);
            assert_eq!(ring.core.submit(&ring.engine, 2, 1), Ok(2));
        }
        assert_eq!(&read, b"second", "the read comes behind the writes");
        let ends: Vec<_> = (0..5).map(|_| ring.wait()).collect();
        for (at, result) in (1..).zip([6, 6, 6, 8, 5]) {
            let ended = ends.iter().find(|end| end.user_data == before + at).expect("one of each");
            assert_eq!(ended.res, result, "{at}");
        }
        assert!(!ring.core.has_requests() && ring.reap().is_none());
        end(&ring, fd);
    }

    #[repr(align(4096))]
    struct Pages([u8; 8192]);

    /// A file for direct I/O, with bytes in it. It is in the folder of this program: folders for
    /// temporary files are often not on a disk.
    fn direct_file() -> Option<File> {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let named = tempfile::NamedTempFile::new_in(folder).unwrap();
        named.as_file().write_all_at(&[7; 8192], 0).unwrap();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT).open(named.path()).ok()
    }

    #[test]
    fn a_direct_transfer_submitted_alone_is_handed_over_by_its_submitter() {
        const NAME: &str = "a_direct_transfer_submitted_alone_is_handed_over_by_its_submitter";
        let skipped = |reason| println!("SKIPPED {NAME}: {reason}");
        let Some(file) = direct_file() else { return skipped("no direct I/O here") };
        let (mut ring, fd) = (Ring::new(), file.as_raw_fd());
        // As in an event loop: the engine must not expect a thread that waits for the ring.
        ring.core.told.store(true, Ordering::Relaxed);
        let mut pages = Box::new(Pages([0; 8192]));
        let half = |at: *mut u8| libc::iovec { iov_base: at.cast(), iov_len: 4096 };
        let start = pages.0.as_mut_ptr();
        let parts = [half(start), half(start.wrapping_add(4096))];
        let at = |count| (parts.as_ptr().expose_provenance(), count);
        let submits = |ring: &mut Ring, opcode, what| {
            ring.put_any(opcode, fd, 0, what);
            (ring.submit(), ring.wait().res)
        };
        // The engine makes its interface to the kernel when it gets the first direct transfers.
        let is_fast = (0..200).any(|_| {
            let (fast, result) = submits(&mut ring, op::READV, at(2));
            assert_eq!(result, 8192);
            fast
        });
        if !is_fast {
            skipped("no Linux AIO, or not for this file system");
            return end(&ring, fd);
        }
        assert!(pages.0.iter().all(|&byte| byte == 7));
        let plain = (start.expose_provenance(), 4096);
        for (opcode, what, length) in [
            (op::READ, plain, 4096),
            (op::WRITE, plain, 4096),
            (op::WRITEV, at(2), 8192),
            (op::READV, at(1), 4096),
            (op::READV, at(0), 0),
        ] {
            assert_eq!(submits(&mut ring, opcode, what).1, length, "{opcode}");
        }
        // A vector that the kernel cannot read, and one that is too long.
        for (opcode, what, errno) in [
            (op::READV, (64, 2), libc::EFAULT),
            (op::WRITEV, (64, 1), libc::EFAULT),
            (op::READV, at(1025), libc::EINVAL),
        ] {
            assert_eq!(submits(&mut ring, opcode, what).1, -errno, "{opcode}");
        }
        let state = |locked: &mut crate::ring::Locked<'_>| {
            (locked.live().count(), locked.state.in_front, locked.core().has_requests())
        };
        assert_eq!(ring.core.with(state), (0, [0; 2], false));
        assert_eq!(ring.core.trying.load(Ordering::Relaxed), 0);
        end(&ring, fd);
    }

    #[test]
    fn a_forged_tail_stands_for_no_more_nops_than_the_queue_has() {
        let ring = Ring::new();
        assert_eq!(ring.submit_nops(3), 3);
        assert_eq!(ring.submit_nops(u32::MAX - 2), ENTRIES);
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
        // The ring has seen no vector yet.
        ring.put_any(op::WRITEV, fd, 0, at(&few));
        assert!(!ring.submit());
        assert_eq!(ring.wait().res, 10);
        for opcode in [op::WRITEV, op::READV] {
            if !goes_fast(&mut ring, |ring| ring.put_any(opcode, fd, 0, at(&few))) {
                println!("SKIPPED {NAME}: the file system is not known to be a local one");
                return end(&ring, fd);
            }
            assert_eq!(ring.reap().expect("it has ended").res, 10);
            // A vector that cannot be read is refused, although vectors were accepted before.
            ring.put_any(opcode, fd, 0, (64, 2));
            ring.submit();
            assert_eq!((ring.wait().res, ring.core.has_requests()), (-libc::EFAULT, false));
        }
        // After a large write, the vector of the next write is copied first, so it does not go the
        // fast way.
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
