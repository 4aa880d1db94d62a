//! Memory: mappings, and checks of addresses.

use std::os::fd::RawFd;
use std::time::Duration;

use super::Ret;
use super::waiting::timespec;

/// Is a range in the usual part of the address space? A program has to ask for larger addresses.
/// (The kernel's documents x86/x86_64/mm and arch/arm64/memory.)
#[inline]
pub const fn in_user_space(address: u64, bytes: u64) -> bool {
    let (end, begin) = if cfg!(target_arch = "aarch64") {
        // The top byte is ignored: programs may keep a tag in it.
        (1 << 48, address & ((1 << 56) - 1))
    } else {
        ((1 << 47) - 4096, address)
    };
    begin <= end && bytes <= end - begin
}

/// The first and the last of the eight bytes at `address`. `None` beyond the end of memory.
fn ends_of_eight(address: usize) -> Option<[usize; 2]> {
    /// The smallest page size of any machine.
    const PAGE: usize = 4096;
    let last = address.checked_add(7)?;
    // A page is accessible as a whole.
    Some(if address / PAGE == last / PAGE { [address; 2] } else { [address, last] })
}

/// Can eight bytes be read at `address`?
pub(crate) fn readable(address: usize) -> bool {
    ends_of_eight(address)
        .is_some_and(|[first, last]| byte_readable(first) && (first == last || byte_readable(last)))
}

/// Can eight bytes be written at `address`?
pub(crate) fn writable(address: usize) -> bool {
    ends_of_eight(address)
        .is_some_and(|[first, last]| byte_writable(first) && (first == last || byte_writable(last)))
}

/// The aligned word of four bytes that contains the byte at `address`: it is in the same page.
fn word_around(address: usize) -> usize {
    address & !3
}

/// Can the byte at `address` be read, and with it its page? The kernel is asked: futex(2) reads a
/// word and compares it before it waits. The timeout is 0, so the call does not sleep. (Every
/// sandbox in which threads run permits futex(2).)
pub(crate) fn byte_readable(address: usize) -> bool {
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let (unlikely, now) = (0x9e37_79b9_u32, timespec(Duration::ZERO));
    // SAFETY: the kernel checks the address, and changes nothing there.
    let ret = unsafe { call!(futex, word_around(address), op, unlikely, &raw const now) };
    ret != -(libc::EFAULT as Ret)
}

/// Can the byte at `address` be written, and with it its page? The kernel is asked, and changes
/// nothing: futex(2) adds 0.
pub(crate) fn byte_writable(address: usize) -> bool {
    let op = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let add_0 = libc::FUTEX_OP(libc::FUTEX_OP_ADD, 0, libc::FUTEX_OP_CMP_EQ, 0);
    let nobodys = 0_u32;
    // SAFETY: the kernel checks the address and adds 0 atomically. It may wake a thread that
    // sleeps there, which checks its condition again anyway. Nobody sleeps at `nobodys`.
    unsafe { call!(futex, &raw const nobodys, op, 0, 0, word_around(address), add_0) >= 0 }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
const CACHE_LINE: usize = 64;

/// Prefetches the cache lines of something that this CPU is about to write to. A hint, which
/// changes nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of::<T>()).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: inside of `T`; and the instruction reads and writes nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(what).byte_add(line).cast()) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = what;
}

/// As [`prefetch`], for `len` bytes at a program's address, which may be unmapped.
#[inline(always)]
pub(crate) fn prefetch_buffer(address: u64, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..len).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads and writes nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line as u64) as *const i8) }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = (address, len);
}

/// Mappings far below the addresses that the kernel chooses. A program may unmap the buffer of a
/// request that is under way, and the request then still writes there. A mapping of the engine that
/// the kernel places may get the same address. The address of these mappings is chosen here
/// instead.
mod far {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The first address of the area; 0 while unknown.
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    static GIVEN_OUT: AtomicUsize = AtomicUsize::new(0);

    /// An address in the area for `len` bytes, which may be in use. The addresses ascend, and start
    /// again at the beginning after the end of the area.
    pub(super) fn addresses(len: usize, choose: impl FnOnce() -> Option<usize>) -> usize {
        let mut first = FIRST.load(Ordering::Relaxed);
        if first == 0 {
            // The area begins a terabyte below the usual addresses, and has half a terabyte, where
            // addresses have 47 bits. Elsewhere it is in proportion.
            let Some(usual) = choose() else { return 0 };
            first = (usual - usual / 128) & !0xffff;
            FIRST.store(first, Ordering::Relaxed);
        }
        let given_out = GIVEN_OUT.fetch_add(len.next_multiple_of(4096), Ordering::Relaxed);
        first + given_out % (first / 256) / 4096 * 4096
    }
}

/// An anonymous private mapping, zeroed, unmapped on drop. It is apart from memory that the program
/// has or had (`far`), unless that area is in use.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory; its owner says which thread may touch which byte.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Maps the first `len` bytes of a file, shared with other mappings of the file; or gives the
/// negative errno.
pub(crate) fn map_shared(fd: RawFd, len: usize, prot: i32) -> Result<*mut u8, i32> {
    // SAFETY: a new mapping where the kernel chooses.
    let ret = unsafe { call!(mmap, 0, len, prot, libc::MAP_SHARED, fd, 0) };
    if (-4095..0).contains(&ret) { Err(ret as i32) } else { Ok(ret as *mut u8) }
}

impl Mapping {
    /// Maps `len` bytes, or gives the negative errno.
    pub(crate) fn new(len: usize, prot: i32) -> Result<Self, i32> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping, near an address or where the kernel chooses, over
        // nothing that is there.
        let map = |near: usize| unsafe { call!(mmap, near, len, prot, flags, -1isize, 0) };
        let at = |ret: Ret| (!(-4095..0).contains(&ret)).then_some(ret as *mut u8);
        let usual = || Some(Self { base: at(map(0))?, len }.base.addr());
        let mut tries = 4;
        loop {
            let near = far::addresses(len, usual);
            let ret = map(near);
            let Some(base) = at(ret) else { return Err(ret as i32) };
            let mapping = Self { base, len };
            tries -= 1;
            // The kernel rounds to a page, of at most 64 KiB. A mapping that is further away shows
            // that the address was in use.
            if tries == 0 || base.addr().wrapping_sub(near) < 1 << 16 {
                return Ok(mapping);
            }
        }
    }

    /// The address; the mapping is never unmapped.
    pub(crate) fn leak(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).base
    }

    /// A mapping that was leaked.
    ///
    /// # Safety
    /// The mapping has this length, and nobody else unmaps it.
    pub(crate) unsafe fn of(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Makes pages of the mapping usable or unusable (mprotect(2)). Their contents are lost if
    /// `prot` is `PROT_NONE`.
    pub(crate) fn protect(&self, offset: usize, len: usize, prot: i32) -> Ret {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the range lies inside this mapping.
        let at = unsafe { self.base.add(offset) };
        if prot == libc::PROT_NONE {
            // SAFETY: as above; the owner has no reference left into the range.
            unsafe { call!(madvise, at, len, libc::MADV_DONTNEED) };
        }
        // SAFETY: as above.
        unsafe { call!(mprotect, at, len, prot) }
    }

    /// Has the kernel zero the mapping in the child of a fork.
    pub(crate) fn wipe_on_fork(&self) -> Ret {
        // SAFETY: the range is this mapping.
        unsafe { call!(madvise, self.base, self.len, libc::MADV_WIPEONFORK) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody but the owner hands out pointers into it, and the owner is gone.
        unsafe { call!(munmap, self.base, self.len) };
    }
}
