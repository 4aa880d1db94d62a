//! The fast path: a plain read or write of a file that does not sleep. It is submitted alone and,
//! if it stays alone, executed by the wait that follows. In between, it is in the mailbox. The path
//! does what `submit.rs` and `wait.rs` do with such a request. All other requests go through those
//! files.
//!
//! A request is inline if calls on its file are not expected to sleep.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use super::Instance;
use super::submit::Entry;
use crate::board::DirectCompletions;
use crate::config::EngineKind;
use crate::descriptor::Asked;
use crate::errno;
use crate::eventfd;
use crate::exec::{self, Tried};
use crate::request::{CopiedIn, Expect, Kind, Request, Route, Started};
use crate::router::facts::{self, Facts};
use crate::router::tuning::{LARGE, TIMED_EVERY, TRIED_MAX};
use crate::router::{self, Call, KernelScope};
use crate::sqe::{FILE_POSITION, Sqe, opcode};
use crate::sys;
use crate::sys::aio::IoEvent;

/// A read or write of one buffer at an offset, without flags and without an eventfd.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The descriptor.
    pub fd: RawFd,
    /// Is this a write? Otherwise it is a read.
    pub is_write: bool,
    /// The address of the buffer.
    pub address: u64,
    /// The length of the buffer in bytes.
    pub length: u32,
    /// The offset in the file: less than 2^63, unlike [`FILE_POSITION`].
    pub offset: u64,
    /// [`Sqe::user_data`].
    pub user_data: u64,
    /// [`Entry::data`](super::submit::Entry::data).
    pub data: u64,
}

impl Transfer {
    /// The transfer that an entry asks for; `None` if the entry is no plain transfer.
    #[inline]
    pub(crate) fn of(sqe: &Sqe) -> Option<Self> {
        let unused = u64::from(sqe.flags | sqe.opcode & !1 ^ opcode::READ) | sqe.addr3 | sqe.pad;
        let unregistered =
            u32::from(sqe.buf_index | sqe.personality | sqe.ioprio) | sqe.file_index as u32;
        if unused | u64::from(unregistered | sqe.op_flags) != 0 || (sqe.off as i64) < 0 {
            return None;
        }
        let &Sqe { fd, addr: address, len: length, off: offset, user_data, .. } = sqe;
        let is_write = sqe.opcode == opcode::WRITE;
        Some(Self { fd, is_write, address, length, offset, user_data, data: 0 })
    }

    pub(crate) fn kind(&self) -> Kind {
        if self.is_write { Kind::Write } else { Kind::Read }
    }

    /// The entry for this transfer.
    #[inline(always)]
    pub(crate) fn sqe(&self) -> Sqe {
        let &Self { fd, is_write, address, length, offset, user_data, .. } = self;
        let opcode = if is_write { opcode::WRITE } else { opcode::READ };
        Sqe { opcode, fd, off: offset, addr: address, len: length, user_data, ..Sqe::default() }
    }
}

const _: () = assert!(opcode::READ & 1 == 0 && opcode::WRITE == opcode::READ | 1);

impl Instance {
    /// Can an inline request that was submitted on the general path be executed on the fast path?
    #[inline]
    pub(crate) fn executes_fast(&self, request: &Request) -> bool {
        let plain = request.notify == -1 && request.refused == 0;
        self.fast && plain && Transfer::of(&request.sqe).is_some()
    }

    /// Submits a transfer, if it is known to be inline and a slot is free. False: nothing was done,
    /// and [`Instance::submit`] has to be called. errno is preserved. The caller is in the process
    /// that made the context.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`].
    #[inline(always)]
    pub unsafe fn submit_fast(&self, transfer: &Transfer) -> bool {
        let &Transfer { fd, is_write, length, .. } = transfer;
        let inline = Facts::noted(fd).is_some_and(|facts| facts.is_inline(is_write));
        if !self.fast || !inline || !is_write && length >= LARGE {
            return false;
        }
        let free = self.board.free_slots();
        let Some((slot, alone)) = free.take_near() else { return false };
        // This is checked while the slot is held: a thread that destroys the context after this
        // check waits for the slot.
        if self.board.is_closed() {
            free.give(slot);
            return false;
        }
        // SAFETY: the slot was just taken, so this thread alone has it.
        let mut request = unsafe { self.board.in_hand(slot) };
        request.sqe = transfer.sqe();
        (request.data, request.notify, request.kind) = (transfer.data, -1, transfer.kind());
        (request.route, request.stream, request.fast) = (Route::Inline, false, true);
        (request.partial, request.refused, request.passed_on) = (0, 0, 0);
        (request.may_hang, request.passed_inline) = (false, false);
        let place = request.slot();
        place.expect(Expect::Soon);
        place.fill(transfer.user_data, fd, -1);
        place.submitted_as(self.board.next_number(alone), transfer.kind());
        if let Err(request) = self.leave_to_wait(request, || alone) {
            errno::kept(|| self.push_inline(request));
        }
        self.expects_one();
        true
    }

    /// Does the submitter of a plain transfer hand it over to the kernel? The answer is a hint,
    /// from what is remembered of the descriptor. If the hand-over is not possible, the transfer is
    /// pushed to its lane.
    #[inline]
    pub fn hands_over_single(&self, entry: &Entry, write: bool) -> bool {
        let kernel = &self.lanes.kernel;
        let may_come = entry.notify == -1 && self.router.waiters.come();
        kernel.can_at_once()
            && kernel.is_shallow()
            && !may_come
            && self.takes_no_note()
            && Facts::noted(entry.sqe.fd)
                .is_some_and(|facts| facts.is_direct() && facts.is_local() && facts.sleeps(write))
    }

    /// Hands a transfer over to the kernel right from its submitter, for a program that does not
    /// come to wait. `copies`: the kernel reads the vector in the program's memory, and the engine
    /// copies it only afterwards. False: the transfer has to be pushed.
    ///
    /// # Safety
    /// As for [`Instance::submit_single`](Instance::submit_single), of a filled slot.
    #[inline(never)]
    pub(super) unsafe fn hand_over_single(&self, slot: u32, copies: bool) -> bool {
        // SAFETY: filled by this thread, which has not passed it on yet.
        let mut request = unsafe { self.board.in_hand(slot) };
        let write = request.kind == Kind::Write;
        let may_come = request.notify == -1 && self.router.waiters.come();
        let asked = &mut Asked::of(self.board.waits_where_nonblocking());
        if !(write || request.kind == Kind::Read)
            || request.refused != 0
            || may_come
            || !router::goes_at_once(&request.sqe, write, asked)
            || !self.hands_over_at_once()
        {
            request.into_index();
            return false;
        }
        (request.route, request.stream) = (Route::Kernel, false);
        request.slot().expect(Expect::Nothing);
        errno::kept(|| {
            if self.lanes.inline.queue_mailbox(&self.board) {
                self.announce(false);
            }
            // SAFETY: the caller's contract.
            let handed = unsafe { self.lanes.kernel.hand_over_alone(&self.board, request, copies) };
            match handed {
                Ok(any) => self.has_submitted(any),
                Err(request) => {
                    request.into_index();
                    return false;
                }
            }
            self.call(Call::Nobody);
            if self.is_helpless() {
                self.run_without_workers();
            }
            true
        })
    }

    /// Executes the read or the write of an entry now, as io_uring does at issue. `None`: the entry
    /// has to be submitted. It has to wait, or is no plain transfer of at most [`TRIED_MAX`] bytes
    /// or [`sys::IOVECS_KEPT`] buffers. A vector need not be readable. A write may still wait for
    /// its file's lock, so the caller must hold no lock that other threads need. This is called for
    /// a write, and for a read at the file position, only if no earlier request waits to be
    /// submitted.
    ///
    /// # Safety
    /// As for [`Instance::submit_with`]; buffers belong to the transfer during the call.
    pub unsafe fn try_now(&self, sqe: &Sqe) -> Option<i32> {
        // SAFETY: the caller's contract.
        let (kind, result) = unsafe { self.transfer_now(sqe) }?;
        self.board.count_tried(kind, result);
        Some(result)
    }

    /// Have more than this many microseconds passed since `begin`, in ticks of
    /// [`ticks`](crate::front::ticks)?
    #[inline]
    pub fn is_past(&self, begin: u64, us: u64) -> bool {
        sys::ticks().wrapping_sub(begin) > us * self.board.ticks_per_us()
    }

    /// As [`Instance::try_now`], but without counting the request as tried. Also returns its kind.
    ///
    /// # Safety
    /// As for [`Instance::try_now`].
    #[inline(always)]
    unsafe fn transfer_now(&self, sqe: &Sqe) -> Option<(Kind, i32)> {
        let (most, opcode) = match sqe.opcode {
            opcode::READV => (sys::IOVECS_KEPT, opcode::READ),
            opcode::WRITEV => (sys::IOVECS_KEPT, opcode::WRITE),
            other => (TRIED_MAX, other),
        };
        let off = if sqe.off == FILE_POSITION { 0 } else { sqe.off };
        let one = Transfer::of(&Sqe { opcode, off, ..*sqe })?;
        if !(1..=most).contains(&one.length) {
            return None;
        }
        let facts = Facts::noted(one.fd).filter(|facts| facts.is_tried(one.is_write))?;
        let engine = self.engine != EngineKind::Null && self.kernel_scope() <= KernelScope::Direct;
        if !engine || self.stands_by() || self.board.is_closed() {
            return None;
        }
        let result = if one.is_write {
            // SAFETY: the caller's contract.
            unsafe { self.lanes.write_now(&self.board, sqe, self.router.is_timed()) }?
        } else {
            // SAFETY: the read has no flags; the rest is the caller's contract.
            let Tried::Done(result) = (unsafe { exec::try_read(sqe) }) else { return None };
            if !facts.was_read() {
                facts::prove_by_try(one.fd);
            }
            result
        };
        Some((one.kind(), result))
    }

    /// Executes a request at its submit, if an eventfd tells the program of the end: such a program
    /// need not come to wait. A worker would cost two changes of threads. Returns the result.
    /// `None`: the request has to be pushed. Only io_submit(2) executes writes in this way
    /// ([`Builder::strict`](crate::Builder::strict)): a write may wait for its file's lock.
    pub(super) fn execute_at_submit(&self, request: &Started<'_>) -> Option<i32> {
        let is_tried = request.kind == Kind::Read || self.board.is_strict();
        // Earlier requests may be with workers, and order counts at the file position.
        let is_placed = request.sqe.off != FILE_POSITION;
        let is_plain = request.refused == 0 && !request.stream && is_placed;
        if request.notify < 0 || !is_tried || !is_plain || !self.takes_no_note() {
            return None;
        }
        let lengths = |copied: &CopiedIn| {
            copied.iov.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len))
        };
        let is_short = || match &request.copied {
            Some(copied) if exec::is_vector(&request.sqe) => lengths(copied) <= TRIED_MAX as usize,
            _ => true,
        };
        // A blocking eventfd is counted up under a lock, for which a signal handler must not wait.
        if !is_short() || eventfd::blocks(request.notify) {
            return None;
        }
        // SAFETY: the buffers are the request's, by the contract of its submit.
        let (_, result) = unsafe { self.transfer_now(&request.sqe) }?;
        request.slot().begin();
        Some(result)
    }

    /// Executes the request in the mailbox, if it is the only one of its context and no completion
    /// is in the queue. `take` gets its completion: `data`, `obj` and `res` of an [`IoEvent`].
    /// False: call [`Instance::wait`] instead. errno is preserved. The caller is in the process
    /// that made the context. `bounded`: the caller has a deadline.
    #[inline(always)]
    pub fn wait_fast(&self, bounded: bool, take: impl FnOnce(u64, u64, i64)) -> bool {
        if !self.fast || self.board.seems_closed() || self.board.completions().available() != 0 {
            return false;
        }
        let Some((request, number)) = self.lanes.inline.take_alone(&self.board) else {
            return false;
        };
        self.router.waiters.one_came();
        let timed = number.is_multiple_of(TIMED_EVERY);
        if !timed && let Some(result) = self.lanes.transfer_fast(&request) {
            let (data, user_data) = (request.data, request.sqe.user_data);
            request.slot().done();
            self.board.free_slots().give(request.into_index());
            take(data, user_data, i64::from(result));
            return true;
        }
        let ended = self.run_slowly(request, timed, bounded);
        ended.map(|(data, user_data, result)| take(data, user_data, result)).is_some()
    }

    /// As [`Instance::wait_fast`], for a caller that takes one completion while several requests
    /// are queued. Takes a completion, or executes the oldest request. errno is preserved.
    #[inline]
    pub fn wait_next(&self, bounded: bool, mut take: impl FnMut(u64, u64, i64)) -> bool {
        let Self { board, lanes, router, .. } = self;
        if !self.fast || board.seems_closed() {
            return false;
        }
        if board.completions().available() != 0 {
            let take = |event: IoEvent| take(event.data, event.obj, event.res);
            return errno::kept(|| self.reap_events(1, take)) > 0;
        }
        if !lanes.kernel.is_idle() || !lanes.cold.is_empty() || !lanes.copy.is_empty() {
            return false;
        }
        let mut taker = DirectCompletions::new(1, &mut take);
        taker.bound(bounded && !self.is_helpless());
        if errno::kept(|| lanes.inline.execute_next(board, router, &mut taker)) {
            router.waiters.one_came();
        }
        taker.give_back(board);
        taker.taken() > 0
    }

    /// Executes a request from the mailbox that is timed, or that is no plain transfer. Returns its
    /// completion, if it has ended here.
    #[inline(never)]
    fn run_slowly(
        &self,
        request: Started<'_>,
        timed: bool,
        bounded: bool,
    ) -> Option<(u64, u64, i64)> {
        let mut ended = None;
        let mut take = |data, user_data, result| ended = Some((data, user_data, result));
        let mut taker = DirectCompletions::new(1, &mut take);
        taker.bound(bounded && !self.is_helpless());
        errno::kept(|| self.lanes.execute_from_mailbox(&self.board, request, timed, &mut taker));
        taker.give_back(&self.board);
        ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::sync::Arc;

    use super::Transfer;
    use crate::board::without_taker;
    use crate::config::Builder;
    use crate::descriptor;
    use crate::eventfd::Eventfd;
    use crate::instance::Instance;
    use crate::instance::submit::Entry;
    use crate::router::facts::Facts;
    use crate::sqe::{FILE_POSITION, Sqe};

    const TEXT: &[u8] = b"what stands in the file";

    fn file() -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(TEXT).unwrap();
        look_up(file.as_raw_fd());
        file
    }

    /// Looks the number up again: what was learned about it is about a file of another test.
    fn look_up(fd: i32) {
        Facts::forget(&(fd..=fd));
        descriptor::fresh(fd).unwrap();
        // This has the effect of a completed read through the descriptor.
        descriptor::prove(fd, false);
    }

    /// Makes a context in which only the test's thread executes.
    fn instance() -> Arc<Instance> {
        let instance = Instance::new(&Builder::default().entries(4)).unwrap();
        instance.leave_alone();
        instance
    }

    /// Submits a read that fills `buffer`, with this `user_data`.
    fn submits(instance: &Arc<Instance>, fd: i32, buffer: &mut [u8], user_data: u64) -> bool {
        let transfer = Transfer::of(&Sqe::read(fd, buffer, 0).user_data(user_data)).unwrap();
        // SAFETY: every test ends the request while the buffer is there.
        unsafe { instance.submit_fast(&transfer) }
    }

    /// Waits on the fast path, and returns `user_data` and the result.
    fn ends(instance: &Arc<Instance>) -> Option<(u64, i64)> {
        let mut ended = None;
        let taken =
            instance.wait_fast(false, |_, user_data, result| ended = Some((user_data, result)));
        assert_eq!(taken, ended.is_some());
        ended
    }

    /// Waits on the general path, and returns the results, sorted by `user_data`.
    fn all(instance: &Arc<Instance>, count: u32) -> Vec<(u64, i64)> {
        without_taker(|taker| instance.wait(count, count, None, None, taker));
        let mut all = Vec::new();
        instance.reap(count, |cqe| all.push((cqe.user_data, i64::from(cqe.res))));
        all.sort_unstable();
        all
    }

    #[test]
    fn a_wait_for_one_of_several_executes_the_oldest() {
        let (instance, file) = (instance(), file());
        let mut buffers = [[0; TEXT.len()]; 4];
        for round in 0..20 {
            // A request in which this thread was preempted looks as if it had slept. What was
            // learned from such a request is forgotten.
            look_up(file.as_raw_fd());
            for (at, buffer) in (0..).zip(&mut buffers) {
                buffer.fill(0);
                assert!(submits(&instance, file.as_raw_fd(), buffer, at), "{round}");
            }
            for at in 0..4 {
                let mut ended = None;
                let take = |_, user_data, result| ended = Some((user_data, result));
                assert!(instance.wait_next(at % 2 == 0, take), "{round}");
                assert_eq!(ended, Some((at, TEXT.len() as i64)), "{round}");
                // The reads must not be executed before the wait.
                let read = buffers.iter().filter(|buffer| buffer[..] == *TEXT).count();
                assert_eq!((read as u64, instance.unreaped() as u64), (at + 1, 3 - at), "{round}");
            }
            assert!(!instance.wait_next(false, |_, _, _| unreachable!()));
        }
        instance.close();
    }

    #[test]
    fn a_wait_for_one_takes_what_has_completed_and_leaves_what_is_out_of_the_ordinary() {
        let (instance, file, mut buffer) = (instance(), file(), [0; TEXT.len()]);
        // Completions in the queue come first.
        assert!(submits(&instance, file.as_raw_fd(), &mut buffer, 1));
        let entry = Entry { sqe: Sqe::nop().user_data(2), data: 0, notify: -1 };
        // SAFETY: the request has no buffers.
        assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
        assert!(instance.cancel(2).is_ok());
        let canceled = i64::from(-libc::ECANCELED);
        for expected in [(2, canceled), (1, TEXT.len() as i64)] {
            let mut ended = None;
            let take = |_, user_data, result| ended = Some((user_data, result));
            assert!(instance.wait_next(false, take));
            assert_eq!(ended, Some(expected));
        }
        assert_eq!(instance.unreaped(), 0);
        // An fsync of this file is passed on to the sync lane.
        let entry = Entry { sqe: Sqe::fsync(file.as_raw_fd()).user_data(3), data: 0, notify: -1 };
        // SAFETY: the request has no buffers.
        assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
        instance.wait_next(false, |_, user_data, result| assert_eq!((user_data, result), (3, 0)));
        instance.close();
    }

    #[test]
    fn a_transfer_that_stays_alone_is_executed_by_the_wait() {
        const LENGTH: i64 = TEXT.len() as i64;
        let (instance, file, mut buffer) = (instance(), file(), [0; TEXT.len()]);
        let fd = file.as_raw_fd();
        assert_eq!(ends(&instance), None, "nothing was submitted");
        // The loop makes more requests than there are slots; some of them are timed.
        for user_data in 0..20 {
            // A request in which this thread was preempted looks as if it had slept. What was
            // learned from such a request is forgotten.
            look_up(fd);
            buffer.fill(0);
            assert!(submits(&instance, fd, &mut buffer, user_data));
            assert_eq!(ends(&instance), Some((user_data, LENGTH)));
            assert_eq!((&buffer[..], instance.unreaped()), (TEXT, 0));
        }
        look_up(fd);
        let mut long = [0; 2 * TEXT.len()];
        assert!(submits(&instance, fd, &mut long, 1));
        assert_eq!(ends(&instance), Some((1, LENGTH)), "up to the end of the file");
        instance.close();
        assert!(!submits(&instance, fd, &mut buffer, 1));
        assert_eq!((ends(&instance), instance.unreaped()), (None, 0));
    }

    #[test]
    fn several_are_left_to_the_general_wait_and_slots_are_not_exceeded() {
        let (instance, file, mut buffers) = (instance(), file(), [[0; TEXT.len()]; 4]);
        let fd = file.as_raw_fd();
        for (user_data, buffer) in buffers.iter_mut().enumerate() {
            assert!(submits(&instance, fd, buffer, user_data as u64));
        }
        assert!(!submits(&instance, fd, &mut [0; 1], 9), "there is no slot for it");
        assert_eq!(ends(&instance), None, "there are several");
        let length = TEXT.len() as i64;
        assert_eq!(all(&instance, 4), (0..4).map(|at| (at, length)).collect::<Vec<_>>());
        assert!(buffers.iter().all(|buffer| buffer == TEXT));
        instance.close();
    }

    #[test]
    fn a_completion_that_is_there_comes_first() {
        let (instance, file, mut buffer) = (instance(), file(), [0; TEXT.len()]);
        let (fd, length) = (file.as_raw_fd(), TEXT.len() as i64);
        assert!(submits(&instance, fd, &mut buffer, 1));
        assert!(instance.cancel(1).is_ok());
        assert!(submits(&instance, fd, &mut buffer, 2));
        assert_eq!(ends(&instance), None);
        assert_eq!(all(&instance, 2), [(1, i64::from(-libc::ECANCELED)), (2, length)]);
        instance.close();
    }

    #[test]
    fn what_is_out_of_the_ordinary_goes_the_general_way() {
        let (file, mut buffer) = (file(), [0; TEXT.len()]);
        let fd = file.as_raw_fd();
        let observed = Instance::new(&Builder::default().stats(true)).unwrap();
        assert!(!submits(&observed, fd, &mut buffer, 1));
        observed.close();
        // The context has all its threads: the poller executes transfers on a stream.
        let instance = Instance::new(&Builder::default().entries(4)).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        look_up(reader.as_raw_fd());
        assert!(!submits(&instance, reader.as_raw_fd(), &mut buffer, 1), "a stream");
        for never in [-1, 1 << 20] {
            assert!(!submits(&instance, never, &mut buffer, 1));
        }
        let only_written = File::options().write(true).open("/dev/null").unwrap();
        look_up(only_written.as_raw_fd());
        assert!(!submits(&instance, only_written.as_raw_fd(), &mut buffer, 1));
        // The number was looked up while it named a file, and names a stream now.
        (&writer).write_all(TEXT).unwrap();
        let number = file.try_clone().unwrap();
        look_up(number.as_raw_fd());
        // SAFETY: both descriptors are open.
        let replaced = unsafe { libc::dup2(reader.as_raw_fd(), number.as_raw_fd()) };
        assert_eq!(replaced, number.as_raw_fd());
        assert!(submits(&instance, number.as_raw_fd(), &mut buffer, 7));
        assert_eq!(ends(&instance), None);
        assert_eq!((all(&instance, 1), &buffer[..]), (vec![(7, TEXT.len() as i64)], TEXT));
        instance.close();
    }

    #[test]
    fn only_a_plain_transfer_is_one() {
        let mut buffer = [0u8; 8];
        let read = Sqe::read(3, &mut buffer[..], 5).user_data(7);
        let write = Sqe::write(4, &buffer[..], 6).user_data(8);
        for sqe in [read, write] {
            let transfer = Transfer::of(&sqe).unwrap();
            assert_eq!(format!("{:?}", transfer.sqe()), format!("{sqe:?}"));
        }
        assert!(!Transfer::of(&read).unwrap().is_write && Transfer::of(&write).unwrap().is_write);
        let others = [
            Sqe::nop(),
            Sqe::fsync(3),
            Sqe::readv(3, &[], 0),
            Sqe::writev(3, &[], 0),
            Sqe { off: FILE_POSITION, ..read },
            Sqe { op_flags: 1, ..read },
            Sqe { flags: 1, ..write },
            Sqe { buf_index: 1, ..write },
            Sqe { personality: 1, ..write },
            Sqe { ioprio: 1, ..write },
            Sqe { file_index: -1, ..write },
            Sqe { addr3: 1, ..write },
            Sqe { pad: 1, ..write },
        ];
        assert!(others.iter().all(|sqe| Transfer::of(sqe).is_none()));
    }

    fn tells(instance: &Instance, sqe: Sqe, counter: &Eventfd) -> u64 {
        let entry = Entry { sqe, data: 0, notify: counter.as_raw_fd() };
        // SAFETY: every test ends the request while the buffer is there.
        assert_eq!(unsafe { instance.submit(&[entry]) }.accepted, 1);
        counter.take()
    }

    /// No worker is woken for what the submitter can read itself.
    #[test]
    fn a_read_that_an_eventfd_tells_of_ends_at_its_submit() {
        let (instance, file, counter) = (instance(), file(), Eventfd::new().unwrap());
        let mut buffers = [[0; TEXT.len()]; 3];
        for user_data in 0..20 {
            look_up(file.as_raw_fd());
            let sqe = Sqe::read(file.as_raw_fd(), &mut buffers[0], 0).user_data(user_data);
            assert_eq!(tells(&instance, sqe, &counter), 1);
            assert_eq!((instance.available(), &buffers[0][..]), (1, TEXT));
            assert_eq!(all(&instance, 1), [(user_data, TEXT.len() as i64)]);
        }
        // With several reads in one call, the eventfd is counted up for each.
        let notify = counter.as_raw_fd();
        let reads = (0..3).zip(&mut buffers).map(|(at, buffer)| {
            let sqe = Sqe::read(file.as_raw_fd(), buffer, 0).user_data(at);
            Entry { sqe, data: 0, notify }
        });
        let reads: Vec<Entry> = reads.collect();
        // SAFETY: the buffers are there until all have ended.
        assert_eq!(unsafe { instance.submit(&reads) }.accepted, 3);
        assert_eq!((counter.take(), all(&instance, 3).len()), (3, 3));
        instance.close();
    }

    /// A write may wait for its file's lock. io_submit(2) may wait for it, so a strict context may,
    /// too. No other context waits in a submit.
    #[test]
    fn only_a_strict_context_writes_at_its_submit() {
        for strict in [false, true] {
            let builder = Builder::default().entries(4).strict(strict);
            let instance = Instance::new(&builder).unwrap();
            instance.leave_alone();
            let (file, counter) = (file(), Eventfd::new().unwrap());
            descriptor::prove(file.as_raw_fd(), true);
            let sqe = Sqe::write(file.as_raw_fd(), TEXT, 0);
            assert_eq!(tells(&instance, sqe, &counter), u64::from(strict));
            assert_eq!(all(&instance, 1), [(0, TEXT.len() as i64)]);
            instance.close();
        }
    }

    /// A later request does not overtake an earlier one that waits in the queue.
    #[test]
    fn nothing_ends_at_its_submit_before_earlier_requests() {
        let (instance, file, counter) = (instance(), file(), Eventfd::new().unwrap());
        let (fd, mut buffer) = (file.as_raw_fd(), [0; 3]);
        let write = Entry { sqe: Sqe::write(fd, b"new", 0), data: 0, notify: -1 };
        // SAFETY: static bytes.
        assert_eq!(unsafe { instance.submit(&[write]) }.accepted, 1);
        assert_eq!(tells(&instance, Sqe::read(fd, &mut buffer, 0), &counter), 0);
        assert_eq!((all(&instance, 2).len(), &buffer), (2, b"new"));
        // The same holds for two requests that are submitted in one call.
        let write = Entry { sqe: Sqe::write(fd, b"old", 0), data: 0, notify: -1 };
        let sqe = Sqe::read(fd, &mut buffer, 0);
        let read = Entry { sqe, data: 0, notify: counter.as_raw_fd() };
        // SAFETY: static bytes, and a buffer that is there until all have ended.
        assert_eq!(unsafe { instance.submit(&[write, read]) }.accepted, 2);
        assert_eq!((all(&instance, 2).len(), &buffer), (2, b"old"));
        instance.close();
    }
}
