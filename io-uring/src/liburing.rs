//! liburing's functions (liburing.h, and their manual pages), over rings of ours or of the kernel:
//! they look into a ring's memory, and go through the same doors as everybody.
//!
//! None of them sets errno: errors are negative errnos.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::memory::accessible_now;

use crate::abi::{self, Cqe, GetEventsArg, Params, Timespec, Uring, enter, register, setup, sq};
use crate::{door, sys, syscall};

mod in_memory;

/// Bits of `int_flags`: the ring's descriptor was registered, is used as that in
/// io_uring_register(2) too, its memory is the program's.
const REG_RING: u8 = 1;
const REG_REG_RING: u8 = 2;
const APP_MEM: u8 = 4;

const EINVAL: c_int = -libc::EINVAL;

/// A word that the program, or the thread that executes, may change.
///
/// # Safety
/// The address of such a word.
unsafe fn word<'a>(at: *mut u32) -> &'a AtomicU32 {
    // SAFETY: the caller's contract.
    unsafe { AtomicU32::from_ptr(at) }
}

/// A ring of the program's (`struct io_uring`).
///
/// One thread may submit while another one reaps, so there is no reference to the whole of it: only
/// the fields that a function needs are read or written, each for itself.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct RingAt(*mut Uring);

/// The address of what a call reads or writes, which makes a pointer of it again.
fn address<T>(of: *const T) -> usize {
    of.expose_provenance()
}

impl RingAt {
    unsafe fn has(self, flag: u32) -> bool {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe { (*self.0).flags & flag != 0 }
    }

    /// Is this bit of `int_flags` set?
    unsafe fn has_registered(self, flag: u8) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).int_flags & flag != 0 }
    }

    unsafe fn has_feature(self, feature: u32) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).features & feature != 0 }
    }

    unsafe fn kernel_flags(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe { word((*self.0).sq.kflags) }.load(Ordering::Relaxed)
    }

    unsafe fn enter(self, count: u32, min: u32, flags: u32, arg: [usize; 2]) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let more = if self.has_registered(REG_RING) { enter::REGISTERED_RING } else { 0 };
            door::enter((*self.0).enter_ring_fd, count, min, flags | more, arg)
        }
    }

    unsafe fn register(self, opcode: u32, arg: usize, count: u32) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let (fd, more) = if self.has_registered(REG_REG_RING) {
                ((*self.0).enter_ring_fd, register::USE_REGISTERED_RING)
            } else {
                ((*self.0).ring_fd, 0)
            };
            door::register(fd, opcode | more, arg, count)
        }
    }

    /// Makes visible what was filled in. Gives how many entries wait.
    unsafe fn flush(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            let tail = (*self.0).sq.sqe_tail;
            if (*self.0).sq.sqe_head != tail {
                (*self.0).sq.sqe_head = tail;
                word((*self.0).sq.ktail).store(tail, Ordering::Release);
            }
            tail.wrapping_sub(word((*self.0).sq.khead).load(Ordering::Acquire))
        }
    }

    unsafe fn ready(self) -> u32 {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            let tail = word((*self.0).cq.ktail).load(Ordering::Acquire);
            tail.wrapping_sub(word((*self.0).cq.khead).load(Ordering::Relaxed))
        }
    }

    unsafe fn cqe(self, at: u32) -> *mut Cqe {
        // SAFETY: a ring that was made, by the callers' contract; the index is masked.
        unsafe {
            let shift = u32::from(self.has(setup::CQE32));
            let mask = *(*self.0).cq.kring_mask;
            (*self.0).cq.cqes.cast::<Cqe>().add(((at & mask) << shift) as usize)
        }
    }

    /// The first completion that is not liburing's own (a timeout of an old kernel's).
    unsafe fn peek(self) -> *mut Cqe {
        // SAFETY: a ring that was made, by the callers' contract.
        unsafe {
            if self.ready() == 0 {
                return null_mut();
            }
            self.cqe(word((*self.0).cq.khead).load(Ordering::Relaxed))
        }
    }

    unsafe fn needs_flush(self) -> bool {
        // SAFETY: as above.
        unsafe { self.kernel_flags() & (sq::CQ_OVERFLOW | sq::TASKRUN) != 0 }
    }

    /// Is a call needed for entries to be seen?
    unsafe fn needs_enter(self, count: u32, flags: &mut u32) -> bool {
        if count == 0 {
            return false;
        }
        // SAFETY: as above.
        if !unsafe { self.has(setup::SQPOLL) } {
            return true;
        }
        // The tail before the flag, as who falls asleep does it the other way round.
        std::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: as above.
        let needs = unsafe { self.kernel_flags() & sq::NEED_WAKEUP != 0 };
        if needs {
            *flags |= enter::SQ_WAKEUP;
        }
        needs
    }

    /// Submits what was filled in, and waits.
    unsafe fn submit(self, min: u32, gets_events: bool, arg: [usize; 2], more: u32) -> c_int {
        // SAFETY: the callers' contract.
        unsafe {
            let count = self.flush();
            let mut flags = more;
            let gets = gets_events || min > 0 || self.has(setup::IOPOLL) || self.needs_flush();
            if self.needs_enter(count, &mut flags) || gets {
                if gets {
                    flags |= enter::GETEVENTS;
                }
                return self.enter(count, min, flags, arg);
            }
            count as c_int
        }
    }
}

/// How a completion is waited for.
struct Wait {
    submit: u32,
    min: u32,
    flags: u32,
    arg: [usize; 2],
    has_timeout: bool,
}

unsafe fn get_cqe(ring: RingAt, out: *mut *mut Cqe, wait: &Wait) -> c_int {
    let (mut submit, mut looped) = (wait.submit, false);
    loop {
        let mut flags = wait.flags;
        // SAFETY: the callers' contract.
        let ready = unsafe { ring.ready() };
        // Of the same look: one that comes in between is for the next.
        // SAFETY: as above.
        let cqe = if ready == 0 { null_mut() } else { unsafe { ring.peek() } };
        let mut error = 0;
        let mut needs = false;
        if cqe.is_null() && wait.min == 0 && submit == 0 {
            // SAFETY: as above.
            let flush = unsafe { ring.needs_flush() || ring.has(setup::IOPOLL) };
            if looped || !flush {
                error = -libc::EAGAIN;
            } else {
                needs = true;
                flags |= enter::GETEVENTS;
            }
        }
        if wait.min > ready {
            flags |= enter::GETEVENTS;
            needs = true;
        }
        // SAFETY: as above.
        needs |= unsafe { ring.needs_enter(submit, &mut flags) };
        if !needs || looped && wait.has_timeout {
            if looped && cqe.is_null() && error == 0 {
                error = -libc::ETIME;
            }
            // SAFETY: a place for the answer, by the callers' contract.
            unsafe { out.write(cqe) };
            return error;
        }
        // SAFETY: as above.
        let answer = unsafe { ring.enter(submit, wait.min, flags, wait.arg) };
        if answer < 0 {
            // SAFETY: as above.
            unsafe { out.write(ring.peek()) };
            return answer;
        }
        submit = submit.saturating_sub(answer as u32);
        // SAFETY: as above.
        let cqe = unsafe { ring.peek() };
        if !cqe.is_null() && wait.min <= 1 {
            // SAFETY: as above.
            unsafe { out.write(cqe) };
            return 0;
        }
        looped = true;
    }
}

/// # Safety
/// As io_uring_wait_cqe(3): a ring that was made, as everywhere here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_get_cqe(
    ring: RingAt,
    out: *mut *mut Cqe,
    submit: c_uint,
    min: c_uint,
    mask: *const c_void,
) -> c_int {
    let arg = [address(mask), 8];
    let wait = Wait { submit, min, flags: 0, arg, has_timeout: false };
    // SAFETY: the caller's contract.
    unsafe { get_cqe(ring, out, &wait) }
}

/// # Safety
/// As io_uring_sqring_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_sqring_wait(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.enter(0, 0, enter::SQ_WAIT, [0, 8]) }
}

/// # Safety
/// As io_uring_get_sqe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_sqe(ring: RingAt) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        let head = word((*ring.0).sq.khead).load(Ordering::Acquire);
        let (mask, entries) = (*(*ring.0).sq.kring_mask, *(*ring.0).sq.kring_entries);
        let next = (*ring.0).sq.sqe_tail.wrapping_add(1);
        if next.wrapping_sub(head) > entries {
            return null_mut();
        }
        let shift = u32::from(ring.has(setup::SQE128));
        let at = (((*ring.0).sq.sqe_tail & mask) << shift) as usize;
        (*ring.0).sq.sqe_tail = next;
        (*ring.0).sq.sqes.add(at * 64)
    }
}

/// # Safety
/// As io_uring_peek_batch_cqe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_peek_batch_cqe(
    ring: RingAt,
    out: *mut *mut Cqe,
    count: c_uint,
) -> c_uint {
    // SAFETY: the caller's contract.
    unsafe {
        if ring.ready() == 0 {
            if !ring.needs_flush() {
                return 0;
            }
            ring.enter(0, 0, enter::GETEVENTS, [0, 8]);
        }
        let count = ring.ready().min(count);
        let head = word((*ring.0).cq.khead).load(Ordering::Relaxed);
        for at in 0..count {
            out.add(at as usize).write(ring.cqe(head.wrapping_add(at)));
        }
        count
    }
}

/// # Safety
/// As io_uring_queue_init(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_init(
    entries: c_uint,
    ring: *mut Uring,
    flags: c_uint,
) -> c_int {
    let mut params = Params { flags, ..Params::default() };
    // SAFETY: the caller's contract.
    unsafe { _io_uring_queue_init_params(entries, ring, &raw mut params) }
}

/// # Safety
/// As io_uring_queue_init_params(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut Uring,
    params: *mut Params,
) -> c_int {
    // SAFETY: parameters of the caller's.
    if unsafe { (*params).flags } & setup::NO_MMAP != 0 {
        // SAFETY: the caller's contract.
        return unsafe { in_memory::queue_init(entries, ring, params, null_mut(), 0) }.min(0);
    }
    // With the index array, unless the program knows that there may be none: those that were built
    // with older headers look into it.
    // SAFETY: as above.
    let fd = unsafe { door::setup(entries, address(params)) };
    if fd < 0 {
        return fd;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let answer = _io_uring_queue_mmap(fd, params, ring);
        if answer < 0 {
            libc::close(fd);
            return answer;
        }
        if (*ring).flags & setup::NO_SQARRAY == 0 {
            for at in 0..*(*ring).sq.kring_entries {
                (*ring).sq.array.add(at as usize).write(at);
            }
        }
        (*ring).features = (*params).features;
        0
    }
}

/// # Safety
/// As io_uring_queue_init_mem(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut Uring,
    params: *mut Params,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        (*params).flags |= setup::NO_MMAP;
        in_memory::queue_init(entries, ring, params, buffer.cast(), size)
    }
}

/// Maps a part of a ring.
unsafe fn map(fd: c_int, len: usize, offset: u64) -> Result<*mut u8, c_int> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping.
    let mapped = unsafe { syscall::map(0, len, prot, flags, fd, offset as i64) };
    if (-4095..0).contains(&mapped) { Err(mapped as c_int) } else { Ok(mapped as *mut u8) }
}

/// # Safety
/// As io_uring_queue_mmap(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_mmap(
    fd: c_int,
    params: *const Params,
    ring: *mut Uring,
) -> c_int {
    // SAFETY: parameters of the caller's, which set-up has filled in.
    let params = unsafe { params.read() };
    let wide_cqe = usize::from(params.flags & setup::CQE32 != 0);
    let wide_sqe = usize::from(params.flags & setup::SQE128 != 0);
    let array = params.sq_off.array as usize;
    let has_array = params.flags & setup::NO_SQARRAY == 0;
    let mut sq_size = if has_array { array + 4 * params.sq_entries as usize } else { 0 };
    let mut cq_size = params.cq_off.cqes as usize + params.cq_entries as usize * (16 << wide_cqe);
    let sqes_size = params.sq_entries as usize * (64 << wide_sqe);
    let single = params.features & abi::FEATURE_SINGLE_MMAP != 0;
    if single || !has_array {
        sq_size = sq_size.max(cq_size);
        cq_size = sq_size;
    }
    // SAFETY: descriptors and sizes that set-up has given; the ring is the caller's to be written.
    unsafe {
        ring.write_bytes(0, 1);
        let sq_ring = match map(fd, sq_size, abi::OFF_SQ_RING) {
            Ok(at) => at,
            Err(errno) => return errno,
        };
        let cq_ring = if single {
            sq_ring
        } else {
            match map(fd, cq_size, abi::OFF_CQ_RING) {
                Ok(at) => at,
                Err(errno) => {
                    sys::unmap(sq_ring, sq_size);
                    return errno;
                }
            }
        };
        let sqes = match map(fd, sqes_size, abi::OFF_SQES) {
            Ok(at) => at,
            Err(errno) => {
                sys::unmap(sq_ring, sq_size);
                if cq_ring != sq_ring {
                    sys::unmap(cq_ring, cq_size);
                }
                return errno;
            }
        };
        point(ring, &params, [sq_ring, cq_ring, sqes], [sq_size, cq_size, sqes_size]);
        ((*ring).ring_fd, (*ring).enter_ring_fd) = (fd, fd);
        0
    }
}

/// Has a ring's pointers point into its memory: the two rings, which may be one, and the entries,
/// each with its size.
///
/// # Safety
/// They are mapped as `params` says, and the ring is the caller's to be written.
unsafe fn point(
    ring: *mut Uring,
    params: &Params,
    [sq_ring, cq_ring, sqes]: [*mut u8; 3],
    [sq_size, cq_size, sqes_size]: [usize; 3],
) {
    let has_array = params.flags & setup::NO_SQARRAY == 0;
    // SAFETY: the caller's contract.
    unsafe {
        let (sq_off, cq_off) = (&params.sq_off, &params.cq_off);
        let in_sq = |offset: u32| sq_ring.add(offset as usize).cast::<u32>();
        let in_cq = |offset: u32| cq_ring.add(offset as usize).cast::<u32>();
        let sq = &raw mut (*ring).sq;
        ((*sq).khead, (*sq).ktail) = (in_sq(sq_off.head), in_sq(sq_off.tail));
        ((*sq).kring_mask, (*sq).kring_entries) =
            (in_sq(sq_off.ring_mask), in_sq(sq_off.ring_entries));
        ((*sq).kflags, (*sq).kdropped) = (in_sq(sq_off.flags), in_sq(sq_off.dropped));
        (*sq).array = if has_array { in_sq(sq_off.array) } else { null_mut() };
        ((*sq).sqes, (*sq).ring_sz, (*sq).ring_ptr) = (sqes, sq_size, sq_ring);
        ((*sq).ring_mask, (*sq).ring_entries) = (*(*sq).kring_mask, *(*sq).kring_entries);
        (*sq).sqes_sz = sqes_size as u32;
        let cq = &raw mut (*ring).cq;
        ((*cq).khead, (*cq).ktail) = (in_cq(cq_off.head), in_cq(cq_off.tail));
        ((*cq).kring_mask, (*cq).kring_entries) =
            (in_cq(cq_off.ring_mask), in_cq(cq_off.ring_entries));
        (*cq).koverflow = in_cq(cq_off.overflow);
        (*cq).kflags = if cq_off.flags == 0 { null_mut() } else { in_cq(cq_off.flags) };
        (*cq).cqes = cq_ring.add(cq_off.cqes as usize);
        ((*cq).ring_sz, (*cq).ring_ptr) = (cq_size, cq_ring);
        ((*cq).ring_mask, (*cq).ring_entries) = (*(*cq).kring_mask, *(*cq).kring_entries);
        (*ring).flags = params.flags;
    }
}

/// # Safety
/// As io_uring_queue_exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_exit(ring: RingAt) {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_registered(APP_MEM) {
            // Before 2.3 nobody has noted the size.
            let entries = (*ring.0).sq.ring_entries as usize;
            let wide = usize::from(ring.has(setup::SQE128));
            sys::unmap((*ring.0).sq.sqes, entries * (64 << wide));
            sys::unmap((*ring.0).sq.ring_ptr, (*ring.0).sq.ring_sz);
            if (*ring.0).cq.ring_ptr != (*ring.0).sq.ring_ptr {
                sys::unmap((*ring.0).cq.ring_ptr, (*ring.0).cq.ring_sz);
            }
        }
        if ring.has_registered(REG_RING) {
            _io_uring_unregister_ring_fd(ring);
        }
        if (*ring.0).ring_fd != -1 {
            keep_errno(|| libc::close((*ring.0).ring_fd));
        }
    }
}

fn keep_errno(call: impl FnOnce() -> c_int) -> c_int {
    uringlet::front::enter(|| {
        if call() == 0 {
            return 0;
        }
        -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    })
}

/// # Safety
/// As io_uring_ring_dontfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_ring_dontfork(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract, as for what is read below.
    let (sqes, sq, cq) =
        unsafe { ((*ring.0).sq.sqes, (*ring.0).sq.ring_ptr, (*ring.0).cq.ring_ptr) };
    if sq.is_null() || sqes.is_null() || cq.is_null() {
        return EINVAL;
    }
    // SAFETY: as above.
    let parts = unsafe {
        let sqes_size =
            ((*ring.0).sq.ring_entries as usize) << (6 + u32::from(ring.has(setup::SQE128)));
        [(sqes, sqes_size), (sq, (*ring.0).sq.ring_sz), (cq, (*ring.0).cq.ring_sz)]
    };
    for (at, len) in parts {
        // SAFETY: mappings of the ring.
        let answer =
            unsafe { sys::madvise(address(at) as u64, len as u64, libc::MADV_DONTFORK as u32) };
        if answer < 0 {
            return answer;
        }
    }
    0
}

/// # Safety
/// As io_uring_submit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(0, false, [0, 8], 0) }
}

/// # Safety
/// As io_uring_submit_and_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait(ring: RingAt, min: c_uint) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(min, false, [0, 8], 0) }
}

/// # Safety
/// As io_uring_submit_and_get_events(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_get_events(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.submit(0, true, [0, 8], 0) }
}

/// # Safety
/// As io_uring_get_events(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_events(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { ring.enter(0, 0, enter::GETEVENTS, [0, 8]) }
}

fn ext_arg(time: *const Timespec, min_wait_usec: u32, mask: *const c_void) -> GetEventsArg {
    GetEventsArg {
        sigmask: address(mask) as u64,
        sigmask_sz: 8,
        min_wait_usec,
        ts: address(time) as u64,
    }
}

unsafe fn wait_with_time(
    ring: RingAt,
    out: *mut *mut Cqe,
    (submit, min): (u32, u32),
    (time, min_wait): (*const Timespec, u32),
    mask: *const c_void,
) -> c_int {
    let ext = ext_arg(time, min_wait, mask);
    let arg = [address(&raw const ext), size_of::<GetEventsArg>()];
    let wait = Wait { submit, min, flags: enter::EXT_ARG, arg, has_timeout: !time.is_null() };
    // SAFETY: the callers' contract.
    unsafe { get_cqe(ring, out, &wait) }
}

/// # Safety
/// As io_uring_wait_cqes(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_wait_cqes(
    ring: RingAt,
    out: *mut *mut Cqe,
    min: c_uint,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if time.is_null() {
            return ___io_uring_get_cqe(ring, out, 0, min, mask);
        }
        if !ring.has_feature(abi::FEATURE_EXT_ARG) {
            return EINVAL;
        }
        wait_with_time(ring, out, (0, min), (time, 0), mask)
    }
}

/// # Safety
/// As io_uring_wait_cqe_timeout(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_wait_cqe_timeout(
    ring: RingAt,
    out: *mut *mut Cqe,
    time: *const Timespec,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { _io_uring_wait_cqes(ring, out, 1, time, std::ptr::null()) }
}

/// # Safety
/// As io_uring_wait_cqes_min_timeout(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_wait_cqes_min_timeout(
    ring: RingAt,
    out: *mut *mut Cqe,
    min: c_uint,
    time: *const Timespec,
    min_wait_usec: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_feature(abi::FEATURE_MIN_TIMEOUT) {
            return EINVAL;
        }
        wait_with_time(ring, out, (0, min), (time, min_wait_usec), mask)
    }
}

/// # Safety
/// As io_uring_submit_and_wait_timeout(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait_timeout(
    ring: RingAt,
    out: *mut *mut Cqe,
    min: c_uint,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let submit = ring.flush();
        if time.is_null() {
            return submitted(submit, ___io_uring_get_cqe(ring, out, submit, min, mask));
        }
        if !ring.has_feature(abi::FEATURE_EXT_ARG) {
            return EINVAL;
        }
        submitted(submit, wait_with_time(ring, out, (submit, min), (time, 0), mask))
    }
}

/// # Safety
/// As io_uring_submit_and_wait_min_timeout(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait_min_timeout(
    ring: RingAt,
    out: *mut *mut Cqe,
    min: c_uint,
    time: *const Timespec,
    min_wait_usec: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_feature(abi::FEATURE_MIN_TIMEOUT) {
            return EINVAL;
        }
        let submit = ring.flush();
        submitted(submit, wait_with_time(ring, out, (submit, min), (time, min_wait_usec), mask))
    }
}

fn submitted(count: u32, answer: c_int) -> c_int {
    if answer < 0 { answer } else { count as c_int }
}

/// # Safety
/// As io_uring_submit_and_wait_reg(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_submit_and_wait_reg(
    _ring: RingAt,
    _out: *mut *mut Cqe,
    _min: c_uint,
    _index: c_int,
) -> c_int {
    EINVAL
}

/// # Safety
/// As io_uring_enter2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_enter2(
    fd: c_uint,
    count: c_uint,
    min: c_uint,
    flags: c_uint,
    arg: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { door::enter(fd as c_int, count, min, flags, [address(arg), size]) }
}

/// # Safety
/// As io_uring_enter(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_enter(
    fd: c_uint,
    count: c_uint,
    min: c_uint,
    flags: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { door::enter(fd as c_int, count, min, flags, [address(mask), 8]) }
}

/// # Safety
/// As io_uring_setup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { door::setup(entries, address(params)) }
}

/// # Safety
/// As io_uring_register(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register(
    fd: c_uint,
    opcode: c_uint,
    arg: *const c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { door::register(fd as c_int, opcode, address(arg), count) }
}

/// Functions that pass their arguments to io_uring_register(2) as they are.
macro_rules! registers {
    ($($name:ident($ring:ident $(, $arg:ident)*) $opcode:ident ($at:expr, $count:expr);)*) => {
        $(
            /// # Safety
            /// As the function of liburing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($ring: RingAt $(, $arg: usize)*) -> c_int {
                // SAFETY: the caller's contract.
                unsafe { $ring.register(register::$opcode, $at, $count as u32) }
            }
        )*
    };
}

registers! {
    _io_uring_register_buffers(ring, at, count) BUFFERS(at, count);
    _io_uring_unregister_buffers(ring) UNREGISTER_BUFFERS(0, 0);
    _io_uring_unregister_files(ring) UNREGISTER_FILES(0, 0);
    _io_uring_unregister_eventfd(ring) UNREGISTER_EVENTFD(0, 0);
    _io_uring_register_probe(ring, at, count) PROBE(at, count);
    _io_uring_register_personality(ring) PERSONALITY(0, 0);
    _io_uring_unregister_personality(ring, id) UNREGISTER_PERSONALITY(0, id);
    _io_uring_register_restrictions(ring, at, count) RESTRICTIONS(at, count);
    _io_uring_enable_rings(ring) ENABLE_RINGS(0, 0);
    _io_uring_unregister_iowq_aff(ring) UNREGISTER_IOWQ_AFF(0, 0);
    _io_uring_register_iowq_max_workers(ring, at) IOWQ_MAX_WORKERS(at, 2);
    _io_uring_register_buf_ring(ring, at, _flags) PBUF_RING(at, 1);
    _io_uring_register_sync_cancel(ring, at) SYNC_CANCEL(at, 1);
    _io_uring_register_napi(ring, at) NAPI(at, 1);
    _io_uring_unregister_napi(ring, at) UNREGISTER_NAPI(at, 1);
    _io_uring_register_clock(ring, at) CLOCK(at, 0);
    _io_uring_resize_rings(ring, at) RESIZE_RINGS(at, 1);
    _io_uring_register_region(ring, at) MEM_REGION(at, 1);
    _io_uring_register_ifq(ring, at) ZCRX_IFQ(at, 1);
    _io_uring_register_zcrx_ctrl(ring, at) ZCRX_CTRL(at, 0);
    _io_uring_register_bpf_filter(ring, at) BPF_FILTER(at, 1);
}

/// Functions that answer that the kernel does not know what they ask for.
macro_rules! refuses {
    ($($name:ident)*) => {
        $(
            /// As on a kernel that does not have it.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                EINVAL
            }
        )*
    };
}

refuses! {
    _io_uring_register_wait_reg _io_uring_set_iowait _io_uring_clone_buffers
    _io_uring_clone_buffers_offset ___io_uring_clone_buffers ___io_uring_clone_buffers_offset
    _io_uring_register_bpf_filter_task _io_uring_register_query _io_uring_register_sync_msg
    _io_uring_buf_ring_head _io_uring_free_buf_ring
}

// What is registered only here, by numbers that nobody answers yet.
const _: [u32; 4] = [
    register::UNREGISTER_PBUF_RING,
    register::CLONE_BUFFERS,
    register::SEND_MSG_RING,
    register::QUERY,
];

/// # Safety
/// As io_uring_unregister_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_unregister_buf_ring(ring: RingAt, _group: c_int) -> c_int {
    // SAFETY: nothing is passed.
    unsafe { ring.register(register::UNREGISTER_PBUF_RING, 0, 1) }
}

/// # Safety
/// As io_uring_setup_buf_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_setup_buf_ring(
    _ring: RingAt,
    _entries: c_uint,
    _group: c_int,
    _flags: c_uint,
    error: *mut c_int,
) -> *mut c_void {
    // SAFETY: a place for the error, by the caller's contract.
    unsafe { error.write(EINVAL) };
    null_mut()
}

unsafe fn register_rsrc(ring: RingAt, opcode: u32, rsrc: &abi::RsrcRegister) -> c_int {
    let size = size_of::<abi::RsrcRegister>() as u32;
    // SAFETY: the callers' contract.
    unsafe { ring.register(opcode, address(rsrc), size) }
}

unsafe fn update_rsrc(ring: RingAt, opcode: u32, update: &abi::RsrcUpdate) -> c_int {
    let size = size_of::<abi::RsrcUpdate>() as u32;
    // SAFETY: the callers' contract.
    unsafe { ring.register(opcode, address(update), size) }
}

/// Raises the limit of descriptors, once, as liburing does where a table of files meets it.
unsafe fn with_limit_raised(count: u32, mut call: impl FnMut() -> c_int) -> c_int {
    let answer = call();
    if answer != -libc::EMFILE {
        return answer;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the limits.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_cur.saturating_add(count.into()).min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if raised { call() } else { answer }
}

/// # Safety
/// As io_uring_register_files(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_files(
    ring: RingAt,
    files: *const c_int,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { with_limit_raised(count, || ring.register(register::FILES, address(files), count)) }
}

/// # Safety
/// As io_uring_register_files_tags(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_files_tags(
    ring: RingAt,
    files: usize,
    tags: usize,
    nr: c_uint,
) -> c_int {
    let (data, tags) = (files as u64, tags as u64);
    let rsrc = abi::RsrcRegister { nr, data, tags, ..abi::RsrcRegister::default() };
    // SAFETY: the caller's contract.
    unsafe { with_limit_raised(nr, || register_rsrc(ring, register::FILES2, &rsrc)) }
}

/// # Safety
/// As io_uring_register_files_sparse(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_files_sparse(ring: RingAt, nr: c_uint) -> c_int {
    let flags = abi::RSRC_SPARSE;
    let rsrc = abi::RsrcRegister { nr, flags, ..abi::RsrcRegister::default() };
    // SAFETY: the caller's contract.
    unsafe { with_limit_raised(nr, || register_rsrc(ring, register::FILES2, &rsrc)) }
}

/// # Safety
/// As io_uring_register_files_update(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_files_update(
    ring: RingAt,
    offset: c_uint,
    files: usize,
    count: c_uint,
) -> c_int {
    let update = abi::RsrcUpdate { offset, data: files as u64, ..abi::RsrcUpdate::default() };
    // SAFETY: the caller's contract; the call reads the first half.
    unsafe { ring.register(register::FILES_UPDATE, address(&raw const update), count) }
}

/// # Safety
/// As io_uring_register_files_update_tag(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_files_update_tag(
    ring: RingAt,
    offset: c_uint,
    files: usize,
    tags: usize,
    nr: c_uint,
) -> c_int {
    let (data, tags) = (files as u64, tags as u64);
    let update = abi::RsrcUpdate { offset, data, tags, nr, ..abi::RsrcUpdate::default() };
    // SAFETY: the caller's contract.
    unsafe { update_rsrc(ring, register::FILES_UPDATE2, &update) }
}

/// # Safety
/// As io_uring_register_buffers_tags(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_buffers_tags(
    ring: RingAt,
    iovecs: usize,
    tags: usize,
    nr: c_uint,
) -> c_int {
    let (data, tags) = (iovecs as u64, tags as u64);
    let rsrc = abi::RsrcRegister { nr, data, tags, ..abi::RsrcRegister::default() };
    // SAFETY: the caller's contract.
    unsafe { register_rsrc(ring, register::BUFFERS2, &rsrc) }
}

/// # Safety
/// As io_uring_register_buffers_sparse(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_buffers_sparse(ring: RingAt, nr: c_uint) -> c_int {
    let flags = abi::RSRC_SPARSE;
    let rsrc = abi::RsrcRegister { nr, flags, ..abi::RsrcRegister::default() };
    // SAFETY: the caller's contract.
    unsafe { register_rsrc(ring, register::BUFFERS2, &rsrc) }
}

/// # Safety
/// As io_uring_register_buffers_update_tag(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_buffers_update_tag(
    ring: RingAt,
    offset: c_uint,
    iovecs: usize,
    tags: usize,
    nr: c_uint,
) -> c_int {
    let (data, tags) = (iovecs as u64, tags as u64);
    let update = abi::RsrcUpdate { offset, data, tags, nr, ..abi::RsrcUpdate::default() };
    // SAFETY: the caller's contract.
    unsafe { update_rsrc(ring, register::BUFFERS_UPDATE, &update) }
}

/// # Safety
/// As io_uring_register_eventfd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_eventfd(ring: RingAt, fd: c_int) -> c_int {
    // SAFETY: one descriptor.
    unsafe { ring.register(register::EVENTFD, address(&raw const fd), 1) }
}

/// # Safety
/// As io_uring_register_eventfd_async(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_eventfd_async(ring: RingAt, fd: c_int) -> c_int {
    // SAFETY: one descriptor.
    unsafe { ring.register(register::EVENTFD_ASYNC, address(&raw const fd), 1) }
}

/// # Safety
/// As io_uring_register_iowq_aff(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_iowq_aff(
    ring: RingAt,
    size: usize,
    mask: usize,
) -> c_int {
    let Ok(size) = u32::try_from(size) else { return EINVAL };
    // SAFETY: the caller's contract.
    unsafe { ring.register(register::IOWQ_AFF, mask, size) }
}

/// # Safety
/// As io_uring_register_file_alloc_range(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_file_alloc_range(
    ring: RingAt,
    offset: c_uint,
    len: c_uint,
) -> c_int {
    let range = [offset, len, 0, 0];
    // SAFETY: a struct io_uring_file_index_range.
    unsafe { ring.register(register::FILE_ALLOC_RANGE, address(&raw const range), 0) }
}

/// # Safety
/// As io_uring_register_ring_fd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_ring_fd(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract; a struct io_uring_rsrc_update gets the index.
    unsafe {
        if ring.has_registered(REG_RING) {
            return -libc::EEXIST;
        }
        let mut update = [u64::from(u32::MAX), (*ring.0).ring_fd as u64];
        let answer = ring.register(register::RING_FDS, address(&raw mut update), 1);
        if answer == 1 {
            (*ring.0).enter_ring_fd = update[0] as u32 as c_int;
            (*ring.0).int_flags |= REG_RING;
            if ring.has_feature(abi::FEATURE_REG_REG_RING) {
                (*ring.0).int_flags |= REG_REG_RING;
            }
        }
        answer
    }
}

/// # Safety
/// As io_uring_unregister_ring_fd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_unregister_ring_fd(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract; a struct io_uring_rsrc_update is read.
    unsafe {
        if !ring.has_registered(REG_RING) {
            return EINVAL;
        }
        let update = [u64::from((*ring.0).enter_ring_fd as u32), 0];
        let answer = ring.register(register::UNREGISTER_RING_FDS, address(&raw const update), 1);
        if answer == 1 {
            (*ring.0).enter_ring_fd = (*ring.0).ring_fd;
            (*ring.0).int_flags &= !(REG_RING | REG_REG_RING);
        }
        answer
    }
}

/// # Safety
/// As io_uring_close_ring_fd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_close_ring_fd(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_feature(abi::FEATURE_REG_REG_RING) {
            return -libc::EOPNOTSUPP;
        }
        if !ring.has_registered(REG_RING) {
            return EINVAL;
        }
        if (*ring.0).ring_fd == -1 {
            return -libc::EBADF;
        }
        keep_errno(|| libc::close((*ring.0).ring_fd));
        (*ring.0).ring_fd = -1;
    }
    1
}

/// Operations that a probe has room for.
const PROBE_OPS: usize = 256;

/// # Safety
/// As io_uring_get_probe_ring(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_probe_ring(ring: RingAt) -> *mut c_void {
    // SAFETY: memory of the C library's, which io_uring_free_probe(3) gives back.
    let probe = unsafe { libc::calloc(1, 16 + 8 * PROBE_OPS) };
    if probe.is_null() {
        return probe;
    }
    // SAFETY: room for as many operations.
    let answer = unsafe { ring.register(register::PROBE, address(probe), PROBE_OPS as u32) };
    if answer >= 0 {
        return probe;
    }
    // SAFETY: from calloc.
    unsafe { libc::free(probe) };
    null_mut()
}

/// # Safety
/// As io_uring_get_probe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_get_probe() -> *mut c_void {
    let mut ring = std::mem::MaybeUninit::<Uring>::zeroed();
    // SAFETY: a ring of its own, made and ended here.
    unsafe {
        if _io_uring_queue_init(2, ring.as_mut_ptr(), 0) < 0 {
            return null_mut();
        }
        let ring = RingAt(ring.as_mut_ptr());
        let probe = _io_uring_get_probe_ring(ring);
        _io_uring_queue_exit(ring);
        probe
    }
}

/// # Safety
/// As io_uring_free_probe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_free_probe(probe: *mut c_void) {
    // SAFETY: from `_io_uring_get_probe_ring`.
    unsafe { libc::free(probe) };
}

/// # Safety
/// As io_uring_mlock_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_mlock_size(entries: c_uint, flags: c_uint) -> isize {
    let mut params = Params { flags, ..Params::default() };
    // SAFETY: parameters of our own.
    unsafe { _io_uring_mlock_size_params(entries, &raw mut params) }
}

/// # Safety
/// As io_uring_mlock_size_params(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_mlock_size_params(
    entries: c_uint,
    params: *mut Params,
) -> isize {
    let mut ring = std::mem::MaybeUninit::<Uring>::zeroed();
    let mut probe = Params::default();
    // SAFETY: a ring of its own, made and ended here.
    unsafe {
        if _io_uring_queue_init_params(2, ring.as_mut_ptr(), &raw mut probe) >= 0 {
            _io_uring_queue_exit(RingAt(ring.as_mut_ptr()));
        }
    }
    if probe.features & abi::FEATURE_NATIVE_WORKERS != 0 {
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { _io_uring_memory_size_params(entries, params) }
}

/// # Safety
/// As io_uring_memory_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_memory_size(entries: c_uint, flags: c_uint) -> isize {
    let mut params = Params { flags, ..Params::default() };
    // SAFETY: parameters of our own.
    unsafe { _io_uring_memory_size_params(entries, &raw mut params) }
}

/// # Safety
/// As io_uring_memory_size_params(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_memory_size_params(
    entries: c_uint,
    params: *mut Params,
) -> isize {
    if !accessible_now(address(params), size_of::<Params>(), true) {
        return EINVAL as isize;
    }
    // SAFETY: accessible, and the caller's.
    let params = unsafe { params.read() };
    match crate::setup::sizes(entries, &params) {
        Err(errno) => errno as isize,
        Ok((sq, cq)) => {
            let [rings, sqes] = in_memory::sizes(params.flags, sq, cq);
            (rings + sqes) as isize
        }
    }
}

/// The version of liburing whose functions are here.
const VERSION: (c_int, c_int) = (2, 15);

/// As io_uring_major_version(3).
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_major_version() -> c_int {
    VERSION.0
}

/// As io_uring_minor_version(3).
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_minor_version() -> c_int {
    VERSION.1
}

/// As io_uring_check_version(3): whether the library is older than that.
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_check_version(major: c_int, minor: c_int) -> bool {
    (major, minor) > VERSION
}

#[cfg(test)]
mod tests;
