//! Rings in the program's memory (NO_MMAP).
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::set_up::point;
use super::{APP_MEM, REG_REG_RING, REG_RING, RingAt, address};
use crate::abi::{Params, Uring, setup};
use crate::sys;

/// The size in bytes of both rings together, and of the entries, each rounded up to whole pages.
pub(super) fn sizes(flags: u32, sq: u32, cq: u32) -> [usize; 2] {
    let page = |bytes: usize| bytes.next_multiple_of(4096);
    let wide = usize::from(flags & setup::SQE128 != 0);
    let array = if flags & setup::NO_SQARRAY == 0 { 4 * sq as usize } else { 0 };
    [page(array_offset(flags, cq) + array), page(sq as usize * (64 << wide))]
}

/// The offset of the index array, behind the completions.
pub(super) fn array_offset(flags: u32, cq: u32) -> usize {
    let wide = usize::from(flags & setup::CQE32 != 0);
    (64 + cq as usize * (16 << wide)).next_multiple_of(64)
}

/// Makes a ring in a buffer, or in pages of its own if the buffer is null. Returns the number of
/// bytes that it takes, or a negative errno.
///
/// # Safety
/// As io_uring_queue_init_mem(3).
pub(super) unsafe fn queue_init(
    entries: u32,
    ring: *mut Uring,
    params: *mut Params,
    buffer: *mut u8,
    size: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    let flags = unsafe { (*params).flags };
    // SAFETY: as above.
    let (sq, cq) = match crate::setup::sizes(entries, unsafe { &*params }) {
        Ok(sizes) => sizes,
        Err(errno) => return errno,
    };
    let [in_rings, in_sqes] = sizes(flags, sq, cq);
    let used = in_rings + in_sqes;
    let is_theirs = !buffer.is_null();
    if is_theirs && used > size {
        return -libc::ENOMEM;
    }
    let mapped = if is_theirs { Ok(buffer) } else { sys::map_shared(used) };
    let sqes = match mapped {
        Ok(at) => at,
        Err(errno) => return errno,
    };
    // SAFETY: the memory has `used` bytes, and is the caller's or was mapped above.
    unsafe {
        let rings = sqes.add(in_sqes);
        ((*params).sq_off.user_addr, (*params).cq_off.user_addr) =
            (address(sqes) as u64, address(rings) as u64);
        let fd = crate::setup::setup(entries, address(params));
        if fd < 0 {
            if !is_theirs {
                sys::unmap(sqes, used);
            }
            return fd;
        }
        ring.write_bytes(0, 1);
        point(ring, &*params, [rings, rings, sqes], [in_rings, in_rings, in_sqes]);
        ((*ring).ring_fd, (*ring).enter_ring_fd) = (fd, fd);
        (*ring).features = (*params).features;
        if is_theirs {
            (*ring).int_flags |= APP_MEM;
        }
        if flags & setup::REGISTERED_FD_ONLY != 0 {
            (*ring).ring_fd = -1;
            (*ring).int_flags |= REG_RING | REG_REG_RING;
        }
        if !RingAt(ring).has(setup::NO_SQARRAY) {
            (0..sq).for_each(|at| (*ring).sq.array.add(at as usize).write(at));
        }
    }
    used as c_int
}
