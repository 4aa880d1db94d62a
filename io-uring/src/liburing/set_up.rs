//! Making, mapping and ending rings; the memory that they take.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use uringlet::front::memory::accessible_now;

use super::register::_io_uring_unregister_ring_fd;
use super::{APP_MEM, EINVAL, REG_RING, RingAt, address, in_memory, keep_errno, word};
use crate::abi::{self, Params, Uring, register, setup};
use crate::{sys, syscall};

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
    // The ring has the index array unless the program has set NO_SQARRAY: programs built with older
    // headers read the array.
    // SAFETY: as above.
    let fd = unsafe { crate::setup::setup(entries, address(params)) };
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

/// A mapped part of a ring, which is unmapped unless it is kept.
struct Part {
    at: *mut u8,
    len: usize,
}

impl Part {
    fn map(fd: c_int, len: usize, offset: u64) -> Result<Self, c_int> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping.
        let mapped = unsafe { syscall::map(0, len, prot, flags, fd, offset as i64) };
        let is_error = (-4095..0).contains(&mapped);
        if is_error { Err(mapped as c_int) } else { Ok(Self { at: mapped as *mut u8, len }) }
    }

    fn keep(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).at
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no other code has the address.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

/// The sizes in bytes of the submission ring, the completion ring and the submission entries. Both
/// rings get the larger size if they are one mapping, or if there is no index array.
fn part_sizes(params: &Params) -> [usize; 3] {
    let wide_cqe = usize::from(params.flags & setup::CQE32 != 0);
    let wide_sqe = usize::from(params.flags & setup::SQE128 != 0);
    let (array, sq_entries) = (params.sq_off.array as usize, params.sq_entries as usize);
    let has_array = params.flags & setup::NO_SQARRAY == 0;
    let sq = if has_array { array + 4 * sq_entries } else { 0 };
    let cq = params.cq_off.cqes as usize + params.cq_entries as usize * (16 << wide_cqe);
    let sqes = sq_entries * (64 << wide_sqe);
    let is_one = is_single(params) || !has_array;
    if is_one { [sq.max(cq), sq.max(cq), sqes] } else { [sq, cq, sqes] }
}

/// Are both rings one mapping?
fn is_single(params: &Params) -> bool {
    params.features & abi::FEATURE_SINGLE_MMAP != 0
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
    // SAFETY: the ring is the caller's to be written.
    unsafe { ring.write_bytes(0, 1) };
    let sizes = part_sizes(&params);
    let mapped = Part::map(fd, sizes[0], abi::OFF_SQ_RING).and_then(|sq| {
        let cq = match is_single(&params) {
            true => None,
            false => Some(Part::map(fd, sizes[1], abi::OFF_CQ_RING)?),
        };
        Ok((sq, cq, Part::map(fd, sizes[2], abi::OFF_SQES)?))
    });
    let (sq, cq, sqes) = match mapped {
        Ok((sq, cq, sqes)) => (sq.keep(), cq.map(Part::keep), sqes.keep()),
        Err(errno) => return errno,
    };
    // SAFETY: mapped with these sizes, as set-up has said; the ring is the caller's.
    unsafe {
        point(ring, &params, [sq, cq.unwrap_or(sq), sqes], sizes);
        ((*ring).ring_fd, (*ring).enter_ring_fd) = (fd, fd);
    }
    0
}

/// Sets a ring's pointers to its memory: the two rings, which may be one, and the entries, each
/// with its size.
///
/// # Safety
/// The parts are mapped as `params` says, and the caller may write to the ring.
pub(super) unsafe fn point(
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
        // From the parameters: others who map the ring's memory may overwrite the sizes there.
        ((*sq).ring_mask, (*sq).ring_entries) =
            (params.sq_entries.wrapping_sub(1), params.sq_entries);
        (*sq).sqes_sz = sqes_size as u32;
        let cq = &raw mut (*ring).cq;
        ((*cq).khead, (*cq).ktail) = (in_cq(cq_off.head), in_cq(cq_off.tail));
        ((*cq).kring_mask, (*cq).kring_entries) =
            (in_cq(cq_off.ring_mask), in_cq(cq_off.ring_entries));
        (*cq).koverflow = in_cq(cq_off.overflow);
        (*cq).kflags = if cq_off.flags == 0 { null_mut() } else { in_cq(cq_off.flags) };
        (*cq).cqes = cq_ring.add(cq_off.cqes as usize);
        ((*cq).ring_sz, (*cq).ring_ptr) = (cq_size, cq_ring);
        ((*cq).ring_mask, (*cq).ring_entries) =
            (params.cq_entries.wrapping_sub(1), params.cq_entries);
        (*ring).flags = params.flags;
    }
}

/// # Safety
/// As io_uring_resize_rings(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_resize_rings(ring: RingAt, params: *mut Params) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if ring.has(setup::NO_MMAP) {
            return EINVAL;
        }
        ((*params).sq_off, (*params).cq_off) = Default::default();
        let mut answer = ring.register(register::RESIZE_RINGS, address(params), 1);
        if answer >= 0 {
            let offset = &mut (*params).sq_off.array;
            if *offset == 0 && !ring.has(setup::NO_SQARRAY) {
                // Linux 6.18 leaves the offset out.
                *offset = in_memory::array_offset((*ring.0).flags, (*params).cq_entries) as u32;
            }
            answer = map_again(ring, params);
        }
        // As the original: the parameters can be used for the next call.
        (*params).flags = 0;
        answer
    }
}

/// Maps the new memory of a resized ring, and then unmaps the old memory.
///
/// # Safety
/// The ring was made, and the resize has filled in `params`.
unsafe fn map_again(ring: RingAt, params: *const Params) -> c_int {
    let mut new = std::mem::MaybeUninit::<Uring>::zeroed();
    // SAFETY: the caller's contract; all pointers of the old memory are replaced.
    unsafe {
        let new = new.as_mut_ptr();
        let answer = _io_uring_queue_mmap((*ring.0).ring_fd, params, new);
        if answer < 0 {
            return answer;
        }
        let (old_sq, old_cq) = (&raw mut (*ring.0).sq, &raw mut (*ring.0).cq);
        sys::unmap((*old_sq).sqes, (*old_sq).sqes_sz as usize);
        sys::unmap((*old_sq).ring_ptr, (*old_sq).ring_sz);
        if (*old_cq).ring_ptr != (*old_sq).ring_ptr {
            sys::unmap((*old_cq).ring_ptr, (*old_cq).ring_sz);
        }
        let sq = &raw mut (*new).sq;
        ((*sq).sqe_head, (*sq).sqe_tail) = ((*old_sq).sqe_head, (*old_sq).sqe_tail);
        // The number comes from the parameters: others who map the ring's memory may overwrite it
        // there.
        let entries = if (*sq).array.is_null() { 0 } else { (*params).sq_entries };
        for index in 0..entries {
            word((*sq).array.add(index as usize)).store(index, Ordering::Relaxed);
        }
        old_sq.write(sq.read());
        old_cq.write((&raw const (*new).cq).read());
    }
    0
}

/// # Safety
/// As io_uring_queue_exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_queue_exit(ring: RingAt) {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_registered(APP_MEM) {
            // Computed, because liburing before 2.3 did not store this size.
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

/// # Safety
/// As io_uring_ring_dontfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_ring_dontfork(ring: RingAt) -> c_int {
    // SAFETY: the caller's contract: the ring was made, and its fields may be read.
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
