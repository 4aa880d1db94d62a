//! Registration with a ring: buffers, files, eventfds, the ring's own descriptor; probes.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::set_up::{_io_uring_queue_exit, _io_uring_queue_init};
use super::{EINVAL, NO_IOWAIT, REG_REG_RING, REG_RING, RingAt, address, keep_errno};
use crate::abi::{self, Uring, clone, register};

/// Functions that pass their arguments to io_uring_register(2), directly or in a structure.
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
    _io_uring_register_eventfd(ring, fd) EVENTFD(address(&(fd as c_int)), 1);
    _io_uring_register_eventfd_async(ring, fd) EVENTFD_ASYNC(address(&(fd as c_int)), 1);
    _io_uring_register_files_update(ring, offset, files, count)
        FILES_UPDATE(address(&[offset as u32 as usize, files]), count);
    _io_uring_register_file_alloc_range(ring, offset, len)
        FILE_ALLOC_RANGE(address(&[offset as u32, len as u32, 0, 0]), 0);
    _io_uring_register_sync_cancel(ring, at) SYNC_CANCEL(at, 1);
    _io_uring_register_napi(ring, at) NAPI(at, 1);
    _io_uring_unregister_napi(ring, at) UNREGISTER_NAPI(at, 1);
    _io_uring_register_clock(ring, at) CLOCK(at, 0);
    _io_uring_register_region(ring, at) MEM_REGION(at, 1);
    _io_uring_register_ifq(ring, at) ZCRX_IFQ(at, 1);
    _io_uring_register_zcrx_ctrl(ring, at) ZCRX_CTRL(at, 0);
    _io_uring_register_bpf_filter(ring, at) BPF_FILTER(at, 1);
}

/// As in liburing, where wait regions are registered by io_uring_register_region(3) only.
#[unsafe(no_mangle)]
pub extern "C" fn _io_uring_register_wait_reg() -> c_int {
    EINVAL
}

/// # Safety
/// As io_uring_set_iowait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_set_iowait(ring: RingAt, counts: bool) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !ring.has_feature(abi::FEATURE_NO_IOWAIT) {
            return -libc::EOPNOTSUPP;
        }
        if counts {
            (*ring.0).int_flags &= !NO_IOWAIT;
        } else {
            (*ring.0).int_flags |= NO_IOWAIT;
        }
    }
    0
}

/// Copies buffers of another ring. The descriptors of both rings may be registered ones.
///
/// # Safety
/// As io_uring_clone_buffers(3).
unsafe fn clone_buffers(to: RingAt, from: RingAt, places: [u32; 3], flags: u32) -> c_int {
    let [to_offset, from_offset, count] = places;
    // SAFETY: the caller's contract.
    unsafe {
        let by_index = flags & clone::REGISTERED != 0 && from.has_registered(REG_REG_RING);
        let (fd, flags) = if by_index {
            ((*from.0).enter_ring_fd, flags)
        } else {
            ((*from.0).ring_fd, flags & !clone::REGISTERED)
        };
        let asked = [fd as u32, flags, from_offset, to_offset, count, 0, 0, 0];
        to.register(register::CLONE_BUFFERS, address(&raw const asked), 1)
    }
}

/// # Safety
/// As io_uring_clone_buffers(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_clone_buffers(to: RingAt, from: RingAt) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { clone_buffers(to, from, [0; 3], clone::REGISTERED) }
}

/// # Safety
/// As io_uring_clone_buffers(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_clone_buffers(
    to: RingAt,
    from: RingAt,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { clone_buffers(to, from, [0; 3], flags) }
}

/// # Safety
/// As io_uring_clone_buffers_offset(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_clone_buffers_offset(
    to: RingAt,
    from: RingAt,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    let places = [to_offset, from_offset, count];
    // SAFETY: the caller's contract.
    unsafe { clone_buffers(to, from, places, flags | clone::REGISTERED) }
}

/// # Safety
/// As io_uring_clone_buffers_offset(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ___io_uring_clone_buffers_offset(
    to: RingAt,
    from: RingAt,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { clone_buffers(to, from, [to_offset, from_offset, count], flags) }
}

/// # Safety
/// As io_uring_register_query(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_query(query: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::register::register(-1, register::QUERY, address(query), 0) }
}

/// # Safety
/// As io_uring_register_bpf_filter_task(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_bpf_filter_task(filter: *const c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::register::register(-1, register::BPF_FILTER, address(filter), 1) }
}

/// # Safety
/// As io_uring_register_sync_msg(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _io_uring_register_sync_msg(entry: *const c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { crate::register::register(-1, register::SEND_MSG_RING, address(entry), 1) }
}

/// Makes a call. If it fails with `-EMFILE`, raises the limit of descriptors and makes the call
/// once more, as liburing does.
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

unsafe fn register_list(ring: RingAt, opcode: u32, list: &abi::RsrcRegister) -> c_int {
    let call = || {
        // SAFETY: the callers' contract.
        unsafe { ring.register(opcode, address(list), size_of::<abi::RsrcRegister>() as u32) }
    };
    // SAFETY: as above.
    unsafe { with_limit_raised(list.nr, call) }
}

/// Functions for registrations in slots: lists with tags, empty slots, updates with tags.
macro_rules! lists {
    ($($tags:ident $sparse:ident $register:ident, $update_tag:ident $update:ident;)*) => {
        $(
            /// # Safety
            /// As the function of liburing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $tags(
                ring: RingAt,
                data: u64,
                tags: u64,
                nr: c_uint,
            ) -> c_int {
                let list = abi::RsrcRegister { nr, data, tags, ..Default::default() };
                // SAFETY: the caller's contract.
                unsafe { register_list(ring, register::$register, &list) }
            }

            /// # Safety
            /// As the function of liburing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $sparse(ring: RingAt, nr: c_uint) -> c_int {
                let flags = abi::RSRC_SPARSE;
                let list = abi::RsrcRegister { nr, flags, ..Default::default() };
                // SAFETY: the caller's contract.
                unsafe { register_list(ring, register::$register, &list) }
            }

            /// # Safety
            /// As the function of liburing.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $update_tag(
                ring: RingAt,
                offset: c_uint,
                data: u64,
                tags: u64,
                nr: c_uint,
            ) -> c_int {
                let list = abi::RsrcUpdate { offset, data, tags, nr, ..Default::default() };
                // SAFETY: the caller's contract.
                unsafe { ring.register(register::$update, address(&raw const list), UPDATE_SIZE) }
            }
        )*
    };
}

const UPDATE_SIZE: u32 = size_of::<abi::RsrcUpdate>() as u32;

lists! {
    _io_uring_register_files_tags _io_uring_register_files_sparse FILES2,
        _io_uring_register_files_update_tag FILES_UPDATE2;
    _io_uring_register_buffers_tags _io_uring_register_buffers_sparse BUFFERS2,
        _io_uring_register_buffers_update_tag BUFFERS_UPDATE;
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

/// The number of operations that a probe has room for.
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
