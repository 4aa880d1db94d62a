//! Tests the state of a ring alone: the test acts as the program and the engine, and as timers and
//! polls. It checks that each entry has one last completion, in the order that chains and drains
//! require, and that nothing is left in the ring.
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringlet::Sqe;
use uringlet::front::{self, Entry, OwnDescriptor};

use super::batch::Batch;
use super::state::{Core, Locked};
use super::submit::Submitted;
use super::types::{Attempted, Mail, NoOther, PlainSend, Request, SendOutcome, Stage, Task, Try};
use crate::abi::{self, CQE_MORE, Cqe, Timespec, cancel, iosqe, op, poll, setup, timeout};
use crate::attempts::Tried;
use crate::chains::NONE;
use crate::memory::{Memory, Word};
use crate::prepare::{self, Match};
use crate::random::Random;
use crate::sys;

const PROGRAMS: u64 = 300;
const STEPS: u32 = 60;
/// Few entries, so that the queues are full at times.
const ENTRIES: u32 = 8;
static HOUR: Timespec = Timespec { seconds: 3600, nanoseconds: 0 };
const THREADS: [u32; 2] = [1, 2];

/// An entry that was submitted. Its user data is its number.
#[derive(Clone, Copy, Debug)]
struct Sent {
    opcode: u8,
    flags: u8,
    /// The chain of the entry.
    chain: usize,
    is_multishot: bool,
}

struct Model {
    random: Random,
    core: Arc<Core>,
    sqes: *mut [u64; 8],
    cqes: *const Cqe,
    fd: OwnDescriptor,
    /// The descriptor for sends, which has no room.
    full: OwnDescriptor,
    skips: bool,
    sent: Vec<Sent>,
    chains: usize,
    /// Requests that the engine has, and requests that have ended, by their keys.
    engine: Vec<u64>,
    ended: Vec<u64>,
    /// Requests on a socket that are being tried, by their keys.
    tried: Vec<u64>,
    /// Sends that are being made.
    sends: Vec<PlainSend>,
    tasks: Vec<Task>,
    reaped: Vec<Cqe>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let modes = [0, setup::SINGLE_ISSUER | setup::DEFER_TASKRUN, setup::SUBMIT_ALL];
        let flags = setup::NO_SQARRAY | random.one_of(&modes);
        let (sq_entries, cq_entries) = (ENTRIES, ENTRIES);
        let params = abi::Params { sq_entries, cq_entries, flags, ..abi::Params::default() };
        let memory = Arc::new(Memory::new(&params).unwrap());
        let map = |offset| {
            let (prot, len) = (libc::PROT_READ | libc::PROT_WRITE, 64 * ENTRIES as usize);
            // SAFETY: another mapping of pages that the memory has.
            let at = unsafe { memory.map(0, len, prot, libc::MAP_SHARED, offset) };
            assert!(at > 0, "{at}");
            at as usize
        };
        let (sqes, rings) = (map(abi::OFF_SQES), map(abi::OFF_SQ_RING));
        let cqes = rings + Memory::cq_offsets().cqes as usize;
        let core = Core::new(&NoOther, memory, &params, 0);
        core.found();
        // SAFETY: a new descriptor, which nothing else owns.
        let eventfd = || OwnDescriptor::adopt(unsafe { OwnedFd::from_raw_fd(sys::eventfd()) });
        let (fd, full) = (eventfd(), eventfd());
        let most = u64::MAX - 1;
        // SAFETY: eight bytes that live through the call.
        unsafe { libc::write(full.number(), (&raw const most).cast(), 8) };
        let skips = random.chance(30);
        Self {
            random,
            core,
            sqes: sqes as *mut _,
            cqes: cqes as *const _,
            fd,
            full,
            skips,
            sent: Vec::new(),
            chains: 0,
            engine: Vec::new(),
            ended: Vec::new(),
            tried: Vec::new(),
            sends: Vec::new(),
            tasks: Vec::new(),
            reaped: Vec::new(),
        }
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Locked<'_>) -> R) -> R {
        let mut locked = self.core.try_lock().unwrap();
        let answer = f(&mut locked);
        self.tasks.extend(locked.give_back().tasks.into_iter().flatten());
        answer
    }

    fn bring(&mut self, mail: Mail) {
        let after = self.core.bring(mail);
        self.tasks.extend(after.tasks.into_iter().flatten());
    }

    /// An entry of a random kind; a request or a file that it names may not exist.
    fn entry(&mut self) -> [u64; 8] {
        let Self { random, sent, .. } = self;
        let operations = [
            op::NOP,
            op::NOP,
            op::READ,
            op::READ,
            op::WRITE,
            op::RECV,
            op::RECV,
            op::SEND,
            op::SEND,
            op::POLL_ADD,
            op::POLL_REMOVE,
            op::TIMEOUT,
            op::LINK_TIMEOUT,
            op::TIMEOUT_REMOVE,
            op::ASYNC_CANCEL,
        ];
        let opcode = random.one_of(&operations);
        let other = random.below(sent.len() as u64 + 1);
        let (mut addr, mut off, mut len, mut op_flags) = (0, 0, 0, 0);
        match opcode {
            // A NOP that fails.
            op::NOP if random.chance(20) => (len, op_flags) = (-5i32 as u32, 1),
            op::READ | op::WRITE | op::RECV | op::SEND => (addr, len) = (8, 4),
            op::POLL_ADD => {
                let multi = if random.chance(40) { poll::MULTI } else { 0 };
                (len, op_flags) = (multi, libc::POLLIN as u32);
            }
            op::POLL_REMOVE => addr = other,
            op::TIMEOUT | op::LINK_TIMEOUT => {
                (addr, len) = ((&raw const HOUR).expose_provenance() as u64, 1);
                if opcode == op::TIMEOUT {
                    op_flags = random.one_of(&[0, timeout::MULTISHOT, timeout::ETIME_SUCCESS]);
                    off = random.below(4);
                }
            }
            op::TIMEOUT_REMOVE => addr = other,
            op::ASYNC_CANCEL => {
                let all = cancel::ALL;
                (addr, op_flags) = (other, random.one_of(&[0, 0, all, all | cancel::ANY]));
            }
            _ => {}
        }
        let mut flags = 0;
        for (flag, percent) in
            [(iosqe::LINK, 30), (iosqe::HARDLINK, 10), (iosqe::DRAIN, 8), (iosqe::ASYNC, 5)]
        {
            flags |= if random.chance(percent) { flag } else { 0 };
        }
        if self.skips && random.chance(20) {
            flags |= iosqe::CQE_SKIP;
        }
        let is_multishot = opcode == op::POLL_ADD && len == poll::MULTI
            || opcode == op::TIMEOUT && op_flags == timeout::MULTISHOT;
        let sent = Sent { opcode, flags, chain: self.chains, is_multishot };
        self.entry_of(sent, [off, addr], [len, op_flags])
    }

    fn entry_of(
        &mut self,
        sent: Sent,
        [off, addr]: [u64; 2],
        [len, op_flags]: [u32; 2],
    ) -> [u64; 8] {
        self.sent.push(sent);
        let fd = if sent.opcode == op::SEND { &self.full } else { &self.fd };
        let (fd, user_data) = (fd.number() as u32, self.sent.len() as u64 - 1);
        let first = u64::from(sent.opcode) | u64::from(sent.flags) << 8 | u64::from(fd) << 32;
        let third = u64::from(len) | u64::from(op_flags) << 32;
        [first, off, addr, third, user_data, 0, 0, 0]
    }

    /// Submits a batch of random entries. Entries after a refused one stay in the queue, and the
    /// model removes them.
    fn submit(&mut self) {
        let count = 1 + self.random.below(ENTRIES.into());
        let entries: Vec<[u64; 8]> = (1..=count)
            .map(|number| {
                let entry = self.entry();
                let links = (entry[0] >> 8) as u8 & (iosqe::LINK | iosqe::HARDLINK) != 0;
                // A chain ends with its batch.
                self.chains += usize::from(!links || number == count);
                entry
            })
            .collect();
        self.submit_these(&entries);
    }

    fn submit_these(&mut self, entries: &[[u64; 8]]) {
        let tail = self.core.memory.word(Word::SqTail).load(Ordering::Relaxed);
        let count = entries.len() as u32;
        for (at, &entry) in (0..).zip(entries) {
            let place = (tail.wrapping_add(at) % ENTRIES) as usize;
            // SAFETY: a place of the queue that is free.
            unsafe { self.sqes.add(place).write_volatile(entry) };
        }
        self.core.memory.word(Word::SqTail).store(tail.wrapping_add(count), Ordering::Release);
        let mut batch = Batch::read(&self.core.memory, (tail, count), count, false);
        let thread = self.random.one_of(&THREADS);
        loop {
            let core = Arc::clone(&self.core);
            let entered = core.entered();
            let done = self.with(|locked| {
                let done = locked.submit(count, thread, &mut batch, 0);
                check_numbers(locked);
                // A file of another test may have had this number, and its transfers did not wait.
                // Then the ring wants to try transfers here. The model makes each try fail as if it
                // had to wait.
                for one in std::mem::take(&mut locked.state.tries) {
                    match one {
                        Try::Send(send) => locked.state.tasks.push(Task::Send(send)),
                        Try::Transfer { key, .. } => {
                            let found = locked.find(key);
                            found.into_iter().for_each(|at| locked.transfer_was_tried(at, None));
                        }
                    }
                }
                done
            });
            drop(entered);
            match done {
                Submitted::All => break,
                Submitted::Pauses => self.run_tasks(),
                other => panic!("{other:?}"),
            }
        }
        let left = (count - batch.consumed) as usize;
        self.sent.truncate(self.sent.len() - left);
        let tail = tail.wrapping_add(batch.consumed);
        self.core.memory.word(Word::SqTail).store(tail, Ordering::Release);
    }

    /// The engine accepts some of the ready requests, or none.
    fn take_over(&mut self, most: u64) {
        let mut keys = Vec::new();
        self.with(|locked| {
            while keys.len() < most as usize
                && let Some(sqe) = locked.next_for_engine()
            {
                keys.push(sqe.user_data);
            }
        });
        let refused = if self.random.chance(20) { keys.len() / 2 } else { 0 };
        let accepted = keys.len() - refused;
        self.core.handover.sub(accepted);
        let refused = keys.split_off(accepted);
        self.engine.extend(keys);
        if !refused.is_empty() {
            let errno = self.random.one_of(&[-libc::EAGAIN, -libc::EIO]);
            self.bring(Mail::Refused(refused, errno));
        }
    }

    /// The engine ends a request.
    fn complete(&mut self, results: &[i32]) {
        if let Some(key) = self.random.take(&mut self.engine) {
            let result = self.random.one_of(results);
            self.ended.push(key);
            self.bring(Mail::Ended(key, result));
        }
    }

    /// A try of a request on a socket ends.
    fn try_ends(&mut self, outcomes: &[Tried]) {
        if let Some(key) = self.random.take(&mut self.tried) {
            let tried = self.random.one_of(outcomes);
            self.bring(Mail::Tried(vec![Attempted::Request(key, tried)]));
        }
    }

    /// A send was made, or was not made.
    fn send_ends(&mut self) {
        if let Some(mut send) = self.random.take(&mut self.sends) {
            let waits =
                SendOutcome::Waits(prepare::plain_send(&send.fields).shared(), Tried::Waits);
            send.outcome = match self.random.below(4) {
                0 => SendOutcome::Untried,
                1 => waits,
                _ => SendOutcome::Ended(self.random.one_of(&[4, -libc::EIO])),
            };
            self.bring(Mail::Tried(vec![Attempted::Send(send)]));
        }
    }

    /// A timer expires, or a poll gets an event. Its request may have ended.
    fn happen(&mut self) {
        let mut waiting: Vec<(u64, Stage)> = self.with(|locked| {
            let all: Vec<(u32, Stage)> = locked.live().map(|(at, one)| (at, one.stage)).collect();
            all.into_iter().map(|(at, stage)| (locked.key(at), stage)).collect()
        });
        let Some((key, stage)) = self.random.take(&mut waiting) else { return };
        match stage {
            Stage::Timer(_) | Stage::LinkTimer(_) => self.bring(Mail::Timer(key)),
            Stage::Poll(_) => self.poll(key),
            _ => {
                let Some(key) = self.random.take(&mut self.ended) else { return };
                self.bring(Mail::Ended(key, 0));
                self.bring(Mail::Timer(key));
                self.poll(key);
            }
        }
    }

    /// The descriptor of a poll is ready.
    fn poll(&mut self, key: u64) {
        self.with(|locked| {
            if let Some(at) = locked.find(key) {
                // The test acts as the service, which stops watching a poll when it reports an
                // event of the poll.
                if let (Some(_), Stage::Poll(poll)) =
                    (locked.request(at).line, locked.request(at).stage)
                {
                    crate::service::unwatch(poll, key, Arc::as_ptr(locked.core()).addr());
                }
                locked.poll_fired(at, libc::POLLIN as u32);
            }
        });
    }

    /// The engine is asked to cancel: it does, or is too late.
    fn cancel(&mut self, key: u64) -> i32 {
        if let Some(at) = self.tried.iter().position(|&one| one == key) {
            self.tried.swap_remove(at);
            let tried = self.random.one_of(&[Tried::Done(4), Tried::Waits, Tried::Blocks]);
            self.bring(Mail::Tried(vec![Attempted::Request(key, tried)]));
            let stage = self.with(|locked| locked.find(key).map(|at| locked.cancel_tried(at)));
            assert!(matches!(stage, None | Some(Stage::Ends)), "{stage:?} is left");
            return if stage.is_some() { 0 } else { -libc::ENOENT };
        }
        let Some(at) = self.engine.iter().position(|&one| one == key) else {
            return -libc::ENOENT;
        };
        if self.random.chance(40) {
            return -libc::EALREADY;
        }
        self.engine.swap_remove(at);
        self.ended.push(key);
        self.bring(Mail::Ended(key, -libc::ECANCELED));
        0
    }

    fn run_tasks(&mut self) {
        while !self.tasks.is_empty() {
            let job = match self.tasks.remove(0) {
                Task::Cancel(job) => job,
                Task::Try(key, ..) => {
                    self.tried.push(key);
                    self.core.trying.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                Task::Send(send) => {
                    self.sends.push(send);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let answers: Vec<i32> = job.keys.iter().map(|&key| self.cancel(key)).collect();
            let done = job.done + answers.iter().filter(|&&answer| answer == 0).count() as i32;
            let last = answers.last().copied().unwrap_or(-libc::ENOENT);
            self.bring(Mail::Ended(job.by, job.answer(done, last)));
        }
    }

    fn reap(&mut self) {
        let head = self.core.memory.word(Word::CqHead);
        let mut at = head.load(Ordering::Relaxed);
        while at != self.core.memory.word(Word::CqTail).load(Ordering::Acquire) {
            // SAFETY: a completion that was published.
            self.reaped.push(unsafe { self.cqes.add((at % ENTRIES) as usize).read_volatile() });
            at = at.wrapping_add(1);
            head.store(at, Ordering::Release);
        }
        let core = Arc::clone(&self.core);
        let _entered = core.entered();
        self.with(|locked| locked.flush());
    }

    fn step(&mut self) {
        match self.random.below(17) {
            0..3 => self.submit(),
            3..5 => {
                let most = 1 + self.random.below(4);
                self.take_over(most);
            }
            5..8 => self.complete(&[4, 4, 4, 2, -libc::EIO, -libc::ECANCELED]),
            8..10 => self.happen(),
            10 => self.reap(),
            11..14 => {
                let waits = [Tried::Waits, Tried::Waits, Tried::Blocks];
                self.try_ends(&[&[4, 4, -libc::EIO].map(Tried::Done)[..], &waits].concat());
            }
            14..16 => self.send_ends(),
            _ if self.random.chance(10) => {
                let thread = self.random.one_of(&THREADS);
                self.with(|locked| locked.cancel_thread(thread));
            }
            _ => {}
        }
        self.run_tasks();
        let in_flight = self.with(|locked| locked.live().count());
        let counted = self.core.taken.load(Ordering::Relaxed).wrapping_sub(self.core.ended());
        assert_eq!(in_flight + self.sends.len(), counted as usize);
        assert_eq!(self.with(|locked| locked.sending.len()), self.sends.len());
        self.with(|locked| {
            check_numbers(locked);
            // No linked timeout of a request that waits is forgotten.
            for (_, one) in locked.live() {
                let Some(next) = locked.requests.get(one.next as usize) else { continue };
                let begins = next.opcode == op::LINK_TIMEOUT && next.refused == 0;
                let waits = matches!(one.stage, Stage::Poll(_) | Stage::Engine | Stage::Behind);
                assert!(!(begins && waits && next.stage == Stage::Waits), "too late: {one:?}");
            }
            // In each line, the first request is being tried or watched, or has ended.
            for events in [libc::POLLIN, libc::POLLOUT] {
                let is_in = |one: &&Request| one.line.is_some_and(|line| line.events == events);
                let of_line = || locked.live().map(|(_, one)| one).filter(is_in);
                let (waiting, first): (Vec<&Request>, Vec<&Request>) =
                    of_line().partition(|one| one.stage == Stage::Behind);
                let ends = first.iter().filter(|one| one.stage == Stage::Ends).count();
                let is_led = waiting.is_empty() || !first.is_empty();
                assert!(first.len() - ends <= 1 && is_led, "{first:?}, {waiting:?}");
            }
        });
    }

    /// Ends all requests: the engine ends them, or they are cancelled.
    fn finish(&mut self) {
        let any = Match { user_data: 0, fd: -1, opcode: 0, flags: cancel::ANY };
        let mut rounds = 0;
        while self.core.has_requests() || self.core.completions() > 0 {
            rounds += 1;
            if rounds == 100_000 {
                let left =
                    |locked: &mut Locked<'_>| format!("{:?}", locked.live().collect::<Vec<_>>());
                panic!("requests that nothing ends: {}", self.with(left));
            }
            // Another test's thread may have an event of a poll, and not have reported it yet.
            std::thread::yield_now();
            self.take_over(u64::MAX);
            while !self.engine.is_empty() {
                self.complete(&[4]);
            }
            while !self.tried.is_empty() {
                self.try_ends(&[Tried::Done(4)]);
            }
            while !self.sends.is_empty() {
                self.send_ends();
            }
            self.with(|locked| locked.cancel_now(&any)).unwrap();
            self.run_tasks();
            self.reap();
        }
    }

    /// Checks that nothing is left in the ring.
    fn is_empty(&mut self) {
        assert!(!self.core.handover.waits_for_room());
        assert_eq!((self.core.handover.ready(), self.core.counts.outside()), (0, 0));
        self.with(|locked| {
            let state = &*locked.state;
            assert_eq!(state.free.len(), state.requests.len());
            assert!(state.ready.is_empty() && state.held.is_empty() && state.tags.is_empty());
            assert!(state.counting.is_empty() && state.tries.is_empty() && state.lines.is_empty());
            assert_eq!((state.asking, state.in_front, state.chains.head()), (0, [0; 2], NONE));
            assert!(!state.completions.has_overflown() && !state.completions.has_deferred());
        });
    }

    /// Checks that each entry has its completions, in their order.
    fn check(&self) {
        // The index of the last completion, by entry.
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (at, cqe) in self.reaped.iter().enumerate() {
            let number = cqe.user_data as usize;
            let sent = self.sent.get(number).expect("one that was submitted");
            assert!(!last.contains_key(&number), "{cqe:?} is one too many of {sent:?}");
            if cqe.flags & CQE_MORE == 0 {
                last.insert(number, at);
            } else {
                assert!(sent.is_multishot, "{cqe:?} of {sent:?}");
            }
        }
        // Chains that may omit completions, and chains with a refused entry.
        let (mut quiet, mut refused) = (HashSet::new(), HashSet::new());
        for (number, sent) in self.sent.iter().enumerate() {
            quiet.extend((sent.flags & iosqe::CQE_SKIP != 0).then_some(sent.chain));
            let result = last.get(&number).map_or(0, |&at| self.reaped[at].res);
            let is_refused = [-libc::EINVAL, -libc::EOPNOTSUPP].contains(&result);
            refused.extend(is_refused.then_some(sent.chain));
        }
        for (number, sent) in self.sent.iter().enumerate() {
            let is_there = last.contains_key(&number) || quiet.contains(&sent.chain);
            assert!(is_there, "no completion of {number}, {sent:?}");
        }
        for (number, pair) in self.sent.windows(2).enumerate() {
            // Linked timeouts end when their target does.
            let is_timed = pair.iter().any(|one| one.opcode == op::LINK_TIMEOUT);
            if pair[0].chain == pair[1].chain && !is_timed {
                let is_late = |here| last.get(&(number + 1)).is_some_and(|there| here > there);
                assert!(!last.get(&number).is_some_and(is_late), "{number} is late: {pair:?}");
            }
        }
        // A drained entry waits for all earlier ones, and all later ones wait for it. A refused one
        // waits for nothing.
        let waits = |chain| !quiet.contains(chain) && !refused.contains(chain);
        for (number, sent) in self.sent.iter().enumerate() {
            let alone = self.sent.iter().filter(|other| other.chain == sent.chain).count() == 1;
            if sent.flags & iosqe::DRAIN == 0 || !alone || !waits(&sent.chain) {
                continue;
            }
            for (other, one) in self.sent.iter().enumerate() {
                if other != number && waits(&one.chain) {
                    let is_before = last[&other] < last[&number];
                    assert_eq!(other < number, is_before, "{number} drains, {other} is {one:?}");
                }
            }
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let rings = self.cqes.addr() - Memory::cq_offsets().cqes as usize;
        for at in [self.sqes.addr(), rings] {
            // SAFETY: mapped by `new`, and used by this model alone.
            unsafe { sys::unmap(at as *mut u8, 4096) };
        }
    }
}

/// Checks that the index by descriptor number has each request that may still use its number. A
/// close(2) of the number looks there.
fn check_numbers(locked: &Locked<'_>) {
    for (at, one) in locked.live() {
        let uses = matches!(
            one.stage,
            Stage::Ready | Stage::Behind | Stage::Tried | Stage::Engine | Stage::Poll(_)
        );
        if uses && one.file.is_none() && prepare::has_file(one.opcode) {
            assert!(locked.by_number.all(one.fd as u64).any(|other| other == at), "{one:?}");
        }
    }
}

#[test]
fn every_entry_of_random_programs_has_one_completion_in_its_order_and_leaves_nothing() {
    for seed in 1..=PROGRAMS {
        let mut model = Model::new(seed);
        let run = std::panic::AssertUnwindSafe(|| {
            (0..STEPS).for_each(|_| model.step());
            model.finish();
            model.is_empty();
            model.check();
        });
        if let Err(cause) = std::panic::catch_unwind(run) {
            eprintln!("the program of seed {seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

/// The thread that cancels may be the one that should try the request.
#[test]
fn a_request_that_is_cancelled_while_it_is_tried_ends_in_place_of_a_wait() {
    // In some models, all requests wait for others before any is tried.
    let mut models = (1..).map(|seed| {
        let mut model = Model::new(seed);
        ((model.submit(), model.run_tasks()), model).1
    });
    let mut model = models.find(|model| !model.tried.is_empty()).unwrap();
    let (core, key) = (Arc::clone(&model.core), model.tried.remove(0));
    assert_eq!(core.cancel_at(&core.engine().unwrap(), key), 0);
    assert!(model.with(|locked| locked.find(key).is_some()));
    model.bring(Mail::Tried(vec![Attempted::Request(key, Tried::Waits)]));
    assert!(model.with(|locked| locked.find(key).is_none()));
    let transfer = model.with(|locked| {
        let at = locked.take();
        (locked.request(at).opcode, locked.request(at).stage) = (op::READ, Stage::Tried);
        locked.key(at)
    });
    assert_eq!(core.cancel_at(&core.engine().unwrap(), transfer), 0);
    model.with(|locked| {
        locked.transfer_was_tried(transfer as u32, None);
        assert!(locked.find(transfer).is_none());
    });
    model.finish();
}

/// The library also closes descriptors of its own while it has a lock.
#[test]
fn a_close_by_a_thread_that_has_the_lock_of_a_ring_waits_for_no_other_ring() {
    let [one, mut other] = [1, 2].map(Model::new);
    while !other.core.has_requests() {
        other.submit();
    }
    let (of_other, of_one) = (other.core.try_lock().unwrap(), one.core.try_lock().unwrap());
    other.core.before_close(&(1_000..=1_000));
    drop((of_one, of_other));
    other.finish();
}

/// The thread that passes requests on may have been preempted just before the engine gets them.
#[test]
fn a_request_on_its_way_to_the_engine_has_its_file_when_the_number_is_closed() {
    let model = Model::new(1);
    let (core, fd) = (&model.core, sys::eventfd());
    let kept = OwnDescriptor::duplicate(fd).unwrap();
    core.with(|locked| {
        let at = locked.take();
        let sqe = Sqe { opcode: op::READ, fd, ..Sqe::nop() };
        (locked.request(at).opcode, locked.request(at).fd) = (op::READ, fd);
        locked.hand_over(at, sqe);
        locked.make_ready(at);
    });
    let entries = &mut [Entry { sqe: Sqe::nop(), data: 0, notify: -1 }; 2];
    let refused = front::Submitted { accepted: 0, refused: -libc::EAGAIN };
    core.pass_on_some(entries, |entries| {
        assert_eq!(entries[0].sqe.fd, fd);
        assert_eq!(core.trying.load(Ordering::Relaxed), 1, "a close waits");
        core.before_close(&(fd..=fd));
        refused
    });
    assert_eq!(core.trying.load(Ordering::Relaxed), 0);
    core.pass_on_some(entries, |entries| {
        let number = entries[0].sqe.fd;
        assert!(number != fd && sys::is_same_file(number, kept.number()), "{number}");
        refused
    });
    // SAFETY: made above, and used by nobody else.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

#[test]
fn a_wait_does_not_end_before_the_program_sees_the_completion() {
    let mut model = Model::new(1);
    let core = Arc::clone(&model.core);
    let tail = core.memory.word(Word::CqTail).load(Ordering::Relaxed);
    let next = tail.wrapping_add(1);
    // As between the two stores of `publish`.
    core.memory.page().cq_tail.store(next, Ordering::Release);
    assert_eq!((core.completions(), core.missing(1, 0)), (0, 1));
    core.memory.word(Word::CqTail).store(next, Ordering::Release);
    assert_eq!((core.completions(), core.missing(1, 0)), (1, 0));
    model.reap();
    assert_eq!(model.reaped.len(), 1);
}

/// The kernel arms a linked timeout only after the first try of its target. Most requests end with
/// that try, so their timeout is never armed.
#[test]
fn a_linked_timeout_begins_when_its_target_was_tried() {
    for tried in [Tried::Waits, Tried::Blocks, Tried::Done(4)] {
        let mut model = Model::new(1);
        // Receives of another test may have waited on this number.
        let fd = model.fd.number();
        crate::service::before_close(&(fd..=fd));
        let one_of = |opcode, flags| Sent { opcode, flags, chain: 0, is_multishot: false };
        let hour = (&raw const HOUR).expose_provenance() as u64;
        let entries = [
            model.entry_of(one_of(op::RECV, iosqe::LINK), [0, 8], [4, 0]),
            model.entry_of(one_of(op::LINK_TIMEOUT, 0), [0, hour], [1, 0]),
        ];
        model.submit_these(&entries);
        model.run_tasks();
        let is_set = |model: &mut Model| {
            let is_it = |(_, one): (u32, &Request)| matches!(one.stage, Stage::LinkTimer(_));
            model.with(|locked| locked.live().any(is_it))
        };
        assert!(!is_set(&mut model));
        let key = model.tried.remove(0);
        model.bring(Mail::Tried(vec![Attempted::Request(key, tried)]));
        assert_eq!(is_set(&mut model), !matches!(tried, Tried::Done(_)));
        model.finish();
        model.is_empty();
    }
}
