//! The C library's aio(7), with a pool of duplicated descriptors per file (published as "fd pool",
//! 2008).
//!
//! glibc executes the requests of one descriptor one after the other. So each request here goes to
//! an idle duplicate of its file's descriptor. If all duplicates are busy, one more is made. They
//! are closed when none of the file's requests is in flight. There is another reason for
//! duplicates: glibc reads the descriptor number when it executes a request. By then the program's
//! own number may name another file.
//!
//! Closing any descriptor of a file releases the process's POSIX record locks on it (fcntl(2)). So
//! a file with such a lock gets no duplicate: the program's own descriptor is used. Duplicates that
//! were made before the lock are not closed.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libc::{aiocb, timespec};

use super::backend::{Backend, Eventfds, Harvested, Tell};
use crate::config::{EngineKind, FD_POOL_MAX};
use crate::own;
use crate::queue::SleepEnd;
use crate::request::{Kind, Requests};
use crate::router::tuning::{RETIRE_AFTER, TICK};
use crate::sqe::opcode;
use crate::sync::lock;
use crate::sys;
use crate::threads::spawn::spawn_on;

/// The C library's functions.
#[derive(Debug)]
struct Functions {
    read: Start,
    write: Start,
    error: LookFunction,
    take: TakeFunction,
    suspend: Suspend,
}

type Start = unsafe extern "C" fn(*mut aiocb) -> c_int;
type LookFunction = unsafe extern "C" fn(*const aiocb) -> c_int;
type TakeFunction = unsafe extern "C" fn(*mut aiocb) -> isize;
type Suspend = unsafe extern "C" fn(*const *const aiocb, c_int, *const timespec) -> c_int;

/// glibc's `struct aioinit`.
#[repr(C)]
struct AioInit {
    threads: c_int,
    num: c_int,
    locks: c_int,
    usedba: c_int,
    debug: c_int,
    numusers: c_int,
    idle_time: c_int,
    reserved: c_int,
}

/// A function of the C library itself. A drop-in, which is loaded in its place, may define a
/// function of the same name.
fn next(name: &CStr) -> Option<*mut c_void> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // glibc before 2.34 has these functions in a separate library.
    let of_library = |library: &CStr| {
        // SAFETY: NUL-terminated names; the library is loaded already, and never unloaded.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), flags);
            let found = if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        }
    };
    let found = of_library(c"libc.so.6").or_else(|| of_library(c"librt.so.1"));
    // SAFETY: a NUL-terminated name.
    let address = found.unwrap_or_else(|| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) });
    (!address.is_null()).then_some(address)
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let find = || {
        if let Some(init) = next(c"aio_init") {
            // As many threads as the largest pool has descriptors; they serve all pools. If the
            // program has used aio before, the C library takes only the idle time from this call.
            let sizes = AioInit {
                threads: FD_POOL_MAX as c_int,
                num: 4096,
                locks: 0,
                usedba: 0,
                debug: 0,
                numusers: 0,
                idle_time: 1,
                reserved: 0,
            };
            // SAFETY: glibc's function of this name takes this structure (aio_init(3)).
            unsafe {
                let init: unsafe extern "C" fn(*const AioInit) = std::mem::transmute(init);
                init(&raw const sizes);
            }
        }
        // SAFETY: the functions of these names have these types (aio(7)).
        unsafe {
            Some(Functions {
                read: std::mem::transmute::<*mut c_void, Start>(next(c"aio_read64")?),
                write: std::mem::transmute::<*mut c_void, Start>(next(c"aio_write64")?),
                error: std::mem::transmute::<*mut c_void, LookFunction>(next(c"aio_error64")?),
                take: std::mem::transmute::<*mut c_void, TakeFunction>(next(c"aio_return64")?),
                suspend: std::mem::transmute::<*mut c_void, Suspend>(next(c"aio_suspend64")?),
            })
        }
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

/// The maximum number of requests that the notifier thread waits for at a time. It waits for the
/// oldest.
const OLDEST: usize = 8;

/// The C library's aio for one context.
#[derive(Debug)]
pub(super) struct PosixAio {
    functions: &'static Functions,
    /// One block for each slot, and one for each request that the notifier thread waits for.
    blocks: Box<[UnsafeCell<aiocb>]>,
    state: Mutex<AioState>,
    pool: usize,
    fds: Eventfds,
}

#[derive(Debug)]
struct AioState {
    files: Vec<SharedFile>,
    in_flight: Vec<PendingBlock>,
    /// The reaper sleeps; the first completion has to wake it.
    asleep: bool,
    /// The notifier thread watches this context.
    is_watched: bool,
    /// The blocks that no request uses.
    free: Vec<u32>,
    /// Blocks that the notifier thread waits for. No new request uses such a block meanwhile:
    /// aio_suspend(3) would take the new request for the one that it waits for.
    watched: Vec<u32>,
}

/// The thread that signals completions, one for all contexts of the process. A thread that sleeps
/// in aio_suspend(3) can only be woken by another request. So each further notifier thread would
/// cost a thread of the C library, too. The C library's SIGEV_THREAD cannot be used: such a thread
/// takes the program's signals.
#[derive(Debug)]
struct Notifier {
    state: Mutex<TellerState>,
    called: Condvar,
}

#[derive(Debug)]
struct TellerState {
    is_there: bool,
    /// Contexts that the thread will watch from now on.
    new: Vec<Arc<PosixAio>>,
}

static NOTIFIER: Notifier = Notifier {
    state: Mutex::new(TellerState { is_there: false, new: Vec::new() }),
    called: Condvar::new(),
};

impl Notifier {
    /// Makes the thread watch a context. False: no thread can be made.
    fn call(&'static self, context: &Arc<PosixAio>) -> bool {
        let mut state = lock(&self.state);
        if !state.is_there && spawn_on("aio", None, || self.run()).is_err() {
            return false;
        }
        state.is_there = true;
        state.new.push(Arc::clone(context));
        drop(state);
        self.called.notify_one();
        true
    }

    fn run(&self) {
        let mut contexts: Vec<Arc<PosixAio>> = Vec::new();
        loop {
            let mut state = lock(&self.state);
            while contexts.is_empty() && state.new.is_empty() {
                let waited = self.called.wait_timeout(state, RETIRE_AFTER);
                let (after, time) = waited.unwrap_or_else(PoisonError::into_inner);
                state = after;
                if time.timed_out() && state.new.is_empty() {
                    state.is_there = false;
                    return;
                }
            }
            contexts.append(&mut state.new);
            drop(state);
            let mut list = List { functions: None, blocks: [std::ptr::null(); OLDEST], len: 0 };
            contexts.retain(|context| context.tell(&mut list));
            list.sleep();
        }
    }
}

/// Requests that the notifier thread waits for.
struct List {
    functions: Option<&'static Functions>,
    blocks: [*const aiocb; OLDEST],
    len: usize,
}

impl List {
    /// Sleeps until one of these requests is done, for at most [`TICK`]. The limit is needed
    /// because a request that is not on the list does not end the sleep.
    fn sleep(&self) {
        let Some(functions) = self.functions else { return };
        let time = sys::timespec(TICK);
        // SAFETY: the notifier holds the contexts, and no listed block is used again meanwhile.
        unsafe {
            (functions.suspend)(self.blocks.as_ptr(), self.len as c_int, &raw const time);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct PendingBlock {
    slot: u32,
    block: u32,
    file: u64,
    descriptor: usize,
    /// The completion has to be signalled.
    tell: bool,
}

/// One open file, as long as requests on it are in flight.
#[derive(Debug)]
struct SharedFile {
    number: u64,
    identity: FileIdentity,
    /// Duplicates, with the number of requests in flight on each. The first one may be the
    /// program's own descriptor.
    descriptors: Vec<(RawFd, usize)>,
    first_is_programs: bool,
    in_flight: usize,
}

/// Identifies the file that a descriptor number names now, because numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    fd: RawFd,
    file: (u64, u64),
    flags: i32,
}

// SAFETY: a block is touched under the state's lock, and by the C library while it is in flight.
unsafe impl Sync for PosixAio {}
// SAFETY: as above.
unsafe impl Send for PosixAio {}

fn zeroed() -> aiocb {
    // SAFETY: zero bytes are valid: integers, null pointers, and SIGEV_SIGNAL, replaced below.
    let mut block: aiocb = unsafe { std::mem::zeroed() };
    block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    block
}

/// Does a request that is in flight look unfinished? glibc's aio_error(3) takes the one lock that
/// all its threads need. So it is called only for requests that look finished.
///
/// # Safety
/// The block is in flight, or done and not yet taken.
unsafe fn looks_unfinished(block: *const aiocb) -> bool {
    /// The offset of the error number in glibc's 64-bit `struct aiocb`.
    const ERROR: usize = 112;
    if !cfg!(all(target_env = "gnu", target_pointer_width = "64")) {
        return false;
    }
    const { assert!(std::mem::offset_of!(aiocb, aio_offset) == ERROR + 16) };
    // SAFETY: inside the block, and aligned; only ever written as a whole.
    let error = unsafe { &*block.byte_add(ERROR).cast::<AtomicI32>() };
    error.load(Ordering::Relaxed) == libc::EINPROGRESS
}

/// May this process hold a POSIX record lock on the file? True if any process does.
fn is_locked_by_us(fd: RawFd) -> bool {
    // SAFETY: a `flock` is plain integers, so zero bytes are valid.
    let mut query: libc::flock = unsafe { std::mem::zeroed() };
    query.l_type = libc::F_WRLCK as libc::c_short;
    // The query is made for the open file, not for the process, so that it sees the process's own
    // locks.
    let ret = sys::blocking_lock(fd, &mut query);
    // Another process's lock may hide this process's.
    ret != 0 || query.l_type != libc::F_UNLCK as libc::c_short
}

impl PosixAio {
    /// # Errors
    /// `-ENOSYS`: the C library has no aio, or is musl. musl remembers, by a descriptor's number,
    /// whether writes to its file append. It forgets that only after the request's completion. If
    /// the number names another file by then, a write may go to the wrong place
    /// (`posix-aio/tests/reused.rs`). `-EOPNOTSUPP`: the parent of a fork has used aio, and glibc
    /// counts on the parent's threads in the child.
    pub(super) fn new(slots: usize, pool: usize) -> Result<Self, i32> {
        static USED_BY: AtomicU64 = AtomicU64::new(0);
        let generation = crate::process::enter();
        let first = USED_BY.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|user| user != generation) {
            return Err(-libc::EOPNOTSUPP);
        }
        let functions = functions().filter(|_| !cfg!(target_env = "musl")).ok_or(-libc::ENOSYS)?;
        let blocks = slots + OLDEST;
        Ok(Self {
            functions,
            blocks: (0..blocks).map(|_| UnsafeCell::new(zeroed())).collect(),
            state: Mutex::new(AioState {
                files: Vec::new(),
                in_flight: Vec::new(),
                asleep: false,
                is_watched: false,
                free: (0..blocks as u32).collect(),
                watched: Vec::with_capacity(OLDEST),
            }),
            pool,
            fds: Eventfds::new(),
        })
    }

    /// Makes the notifier thread watch this context. False: no thread can be made.
    fn call_notifier(self: &Arc<Self>, state: &mut AioState) -> bool {
        state.is_watched = state.is_watched || NOTIFIER.call(self);
        state.is_watched
    }

    /// The notifier thread calls this before it sleeps. Signals completed requests, and puts the
    /// oldest of the other requests on the list. False: nothing is left to be signalled.
    fn tell(&self, list: &mut List) -> bool {
        let mut state = lock(&self.state);
        let AioState { in_flight, watched, free, asleep, .. } = &mut *state;
        let is_over = |block: &u32| !in_flight.iter().any(|one| one.block == *block);
        free.extend(watched.drain(..).filter(is_over));
        let (mut any, mut is_to_tell, mut wakes) = (false, false, false);
        for one in in_flight.iter_mut().filter(|one| one.tell || *asleep) {
            let block = self.block(one.block);
            // SAFETY: the block is in flight, or done and not yet taken.
            if unsafe { self.error(block) } != libc::EINPROGRESS {
                (is_to_tell, wakes) = (is_to_tell || one.tell, true);
                one.tell = false;
                continue;
            }
            any = true;
            if list.len < OLDEST {
                list.functions = Some(self.functions);
                list.blocks[list.len] = block;
                list.len += 1;
                watched.push(one.block);
            }
        }
        if is_to_tell {
            sys::eventfd_add(self.fds.events(), 1);
        }
        if wakes && std::mem::replace(asleep, false) {
            sys::eventfd_add(self.fds.wake(), 1);
        }
        state.is_watched = any;
        any
    }

    fn block(&self, number: u32) -> *mut aiocb {
        self.blocks[number as usize].get()
    }

    /// The error number of a request, or `EINPROGRESS`.
    ///
    /// # Safety
    /// The block is in flight, or done and not yet taken.
    unsafe fn error(&self, block: *const aiocb) -> i32 {
        // SAFETY: the caller's contract.
        match unsafe { looks_unfinished(block) } {
            true => libc::EINPROGRESS,
            // SAFETY: as above.
            false => unsafe { (self.functions.error)(block) },
        }
    }

    fn errno() -> i32 {
        -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    }
}

impl AioState {
    /// Finds or adds the open file with this descriptor number. Returns the file's own number, and
    /// the index and the number of its least busy descriptor.
    fn descriptor(&mut self, fd: RawFd, pool: usize) -> Result<(u64, usize, RawFd), i32> {
        let flags = sys::status_flags(fd);
        let file = sys::file_identity(fd)?;
        let identity = FileIdentity { fd, file, flags: flags as i32 };
        let at = match self.files.iter().position(|file| file.identity == identity) {
            Some(at) => at,
            None => {
                let number = self.files.iter().map(|file| file.number).max().unwrap_or(0) + 1;
                let duplicate = duplicate(fd);
                self.files.push(SharedFile {
                    number,
                    identity,
                    descriptors: vec![(duplicate.unwrap_or(fd), 0)],
                    first_is_programs: duplicate.is_none(),
                    in_flight: 0,
                });
                self.files.len() - 1
            }
        };
        let file = &mut self.files[at];
        let busy =
            file.descriptors.iter().take(pool).enumerate().min_by_key(|(_, (_, busy))| *busy);
        let mut chosen = busy.map_or(0, |(at, _)| at);
        let all_busy = file.descriptors[chosen].1 > 0;
        if all_busy
            && file.descriptors.len() < pool
            && let Some(duplicate) = duplicate(fd)
        {
            chosen = file.descriptors.len();
            file.descriptors.push((duplicate, 0));
        }
        Ok((file.number, chosen, file.descriptors[chosen].0))
    }

    /// Notes a request that is about to be submitted. Returns the number of its block.
    fn begin(&mut self, slot: u32, number: u64, descriptor: usize, tell: bool) -> u32 {
        if let Some(file) = self.files.iter_mut().find(|file| file.number == number) {
            file.in_flight += 1;
            file.descriptors[descriptor].1 += 1;
        }
        let block = self.free.pop().expect("there are more blocks than slots");
        self.in_flight.push(PendingBlock { slot, block, file: number, descriptor, tell });
        block
    }

    fn end(&mut self, PendingBlock { file: number, descriptor, block, .. }: PendingBlock) {
        if !self.watched.contains(&block) {
            self.free.push(block);
        }
        let Some(at) = self.files.iter().position(|file| file.number == number) else { return };
        let file = &mut self.files[at];
        file.in_flight -= 1;
        file.descriptors[descriptor].1 -= 1;
        if file.in_flight == 0 {
            let file = self.files.swap_remove(at);
            file.close();
        }
    }
}

/// Duplicates a descriptor. `None`: no descriptor is free, or closing the duplicate would release a
/// lock.
fn duplicate(fd: RawFd) -> Option<RawFd> {
    if is_locked_by_us(fd) {
        return None;
    }
    own::copy(fd)
}

impl SharedFile {
    /// Closes the duplicates, but not the program's own descriptor.
    fn close(self) {
        let duplicates = &self.descriptors[usize::from(self.first_is_programs)..];
        // If a lock was taken since the duplicates were made, closing them would release the lock.
        // Then they stay open until the process ends.
        if duplicates.first().is_some_and(|&(fd, _)| is_locked_by_us(fd)) {
            return;
        }
        for &(fd, _) in duplicates {
            // The descriptor is closed at once: a later close would release a lock that the program
            // takes after its request. The file system is a local one, so no server is waited for.
            own::close(fd);
        }
    }
}

impl Backend for Arc<PosixAio> {
    fn kind(&self) -> EngineKind {
        EngineKind::PosixAio
    }

    fn room(&self) -> usize {
        self.blocks.len()
    }

    fn holds_files(&self) -> bool {
        false
    }

    fn submit(&self, requests: Requests<'_>, tell: Tell, _at_once: bool) -> (usize, i32) {
        for (at, (slot, request)) in requests.iter().enumerate() {
            let sqe = request.sqe;
            if !matches!(sqe.opcode, opcode::READ | opcode::WRITE) || sqe.op_flags != 0 {
                return (at, -libc::EOPNOTSUPP);
            }
            let write = request.kind == Kind::Write;
            let mut block = zeroed();
            block.aio_buf = sqe.addr as *mut c_void;
            block.aio_nbytes = sqe.len as usize;
            block.aio_offset = sqe.off as i64;
            let mut state = lock(&self.state);
            let (file, descriptor, fd) = match state.descriptor(sqe.fd, self.pool) {
                Ok(found) => found,
                Err(errno) => return (at, errno),
            };
            block.aio_fildes = fd;
            let place = self.block(state.begin(slot, file, descriptor, tell.events));
            // SAFETY: the block was free, so it is not in flight; the buffer is the request's.
            let ret = unsafe {
                *place = block;
                let call = if write { self.functions.write } else { self.functions.read };
                call(place)
            };
            if ret != 0 {
                let errno = PosixAio::errno();
                let begun = state.in_flight.pop().expect("just pushed");
                state.end(begun);
                return (at, errno);
            }
            if tell.events || state.asleep {
                // If no thread can be made, the watchdog finds the completion.
                self.call_notifier(&mut state);
            }
        }
        (requests.len(), 0)
    }

    fn harvest(&self, done: &mut [Harvested]) -> usize {
        let mut state = lock(&self.state);
        let (mut at, mut n) = (0, 0);
        while at < state.in_flight.len() && n < done.len() {
            let place = self.block(state.in_flight[at].block);
            // SAFETY: the block is in flight, or done and not yet taken.
            let error = unsafe { self.error(place) };
            if error == libc::EINPROGRESS {
                at += 1;
                continue;
            }
            // SAFETY: as above; taken once.
            let result = unsafe { (self.functions.take)(place) };
            let ended = state.in_flight.remove(at);
            state.end(ended);
            done[n] = (ended.slot, if error == 0 { result as i32 } else { -error });
            n += 1;
        }
        n
    }

    fn sleep(
        &self,
        _min: usize,
        timeout: Option<Duration>,
        mask: Option<u64>,
        done: &mut [Harvested],
    ) -> (usize, SleepEnd) {
        let n = self.harvest(done);
        if n > 0 {
            return (n, SleepEnd::Again);
        }
        let mut state = lock(&self.state);
        state.asleep = true;
        let timeout = match self.call_notifier(&mut state) {
            true => timeout,
            false => Some(timeout.map_or(TICK, |time| time.min(TICK))),
        };
        drop(state);
        let wake = self.fds.wake();
        let mut poll = [libc::pollfd { fd: wake, events: libc::POLLIN, revents: 0 }];
        let end = match sys::ppoll(&mut poll, timeout, mask.as_ref()) {
            0 => SleepEnd::TimedOut,
            ret if ret == -(libc::EINTR as isize) => SleepEnd::Interrupted,
            _ => SleepEnd::Again,
        };
        lock(&self.state).asleep = false;
        sys::eventfd_drain(wake);
        (self.harvest(done), end)
    }

    fn wake_fd(&self) -> RawFd {
        self.fds.wake()
    }

    fn events(&self) -> RawFd {
        self.fds.events()
    }
}
