//! Does the program make calls by instructions of its own? Those are not seen here. A ring that is
//! set up here and entered there would stand still, so set-up is left to the kernel then. Where
//! descriptors may be waited for in that way, those of rings always say what is true.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use uringlet::front::syscall::NEXT;

/// What some loaded object has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sites {
    /// io_uring_enter(2).
    pub(crate) enters: bool,
    /// Calls that wait for descriptors, or have others wait for them.
    pub(crate) polls: bool,
}

/// What was found when so many objects had been loaded: their number, and two bits.
static KNOWN: AtomicU64 = AtomicU64::new(0);

const ENTERS: u64 = 1;
const POLLS: u64 = 2;
const BITS: u32 = 2;

/// What a look at the objects finds.
struct Look {
    adds: u64,
    known: u64,
    found: Sites,
}

/// Asked before a ring is set up.
pub(crate) fn look() -> Sites {
    let known = KNOWN.load(Ordering::Relaxed);
    let mut look = Look { adds: 0, known, found: Sites::default() };
    // SAFETY: the callback gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut look).cast()) };
    if look.adds == known >> BITS {
        return Sites { enters: known & ENTERS != 0, polls: known & POLLS != 0 };
    }
    let Sites { enters, polls } = look.found;
    let bits = if enters { ENTERS } else { 0 } | if polls { POLLS } else { 0 };
    KNOWN.store(look.adds << BITS | bits, Ordering::Relaxed);
    look.found
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> i32 {
    // SAFETY: dl_iterate_phdr(3) passes both.
    let (info, seen) = unsafe { (&*info, &mut *data.cast::<Look>()) };
    seen.adds = info.dlpi_adds;
    if seen.adds == seen.known >> BITS {
        return 1;
    }
    // SAFETY: as many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let executable = headers.iter().filter(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R
    });
    // This library, and the C library, whose functions are answered here.
    let known = [look as *const () as usize, NEXT.load(Ordering::Relaxed).addr()];
    for header in executable {
        let at = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let len = header.p_memsz as usize;
        if known.iter().any(|place| (at..at + len).contains(place)) {
            continue;
        }
        // SAFETY: a segment that is loaded and can be read.
        let text = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        let Sites { enters, polls } = sites(text);
        seen.found.enters |= enters;
        seen.found.polls |= polls;
    }
    0
}

impl Sites {
    fn note(&mut self, number: u32) {
        #[cfg(target_arch = "x86_64")]
        const OLD: [i64; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
        #[cfg(not(target_arch = "x86_64"))]
        const OLD: [i64; 0] = [];
        const NEW: [i64; 3] = [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_ctl];
        let number = i64::from(number);
        self.enters |= number == libc::SYS_io_uring_enter;
        self.polls |= NEW.contains(&number) || OLD.contains(&number);
    }
}

/// The numbers that are loaded in front of system calls.
#[cfg(target_arch = "x86_64")]
fn sites(text: &[u8]) -> Sites {
    /// As far before it the number may be loaded.
    const NEAR: usize = 64;
    const LOAD: u8 = 0xb8;
    let (mut found, mut from) = (Sites::default(), 0);
    while let Some(at) = find(&text[from..], [0x0f, 0x05]) {
        let call = from + at;
        for load in text[call.saturating_sub(NEAR)..call].windows(5) {
            if let &[LOAD, a, b, c, d] = load {
                found.note(u32::from_le_bytes([a, b, c, d]));
            }
        }
        from = call + 2;
    }
    found
}

/// `mov x8, #number` before a `svc #0`.
#[cfg(target_arch = "aarch64")]
fn sites(text: &[u8]) -> Sites {
    const NEAR: usize = 16;
    const CALL: u32 = 0xd400_0001;
    const LOAD: u32 = 0xd280_0008;
    let words: Vec<u32> =
        text.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes)).collect();
    let mut found = Sites::default();
    for (at, _) in words.iter().enumerate().filter(|&(_, &word)| word == CALL) {
        for &word in &words[at.saturating_sub(NEAR)..at] {
            if word & 0xffe0_001f == LOAD {
                found.note(word >> 5 & 0xffff);
            }
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
fn find(text: &[u8], what: [u8; 2]) -> Option<usize> {
    let (at, needle) = (text.as_ptr().cast::<c_void>(), what.as_ptr().cast());
    // SAFETY: both are slices.
    let found = unsafe { libc::memmem(at, text.len(), needle, what.len()) };
    (!found.is_null()).then(|| found.addr() - at.addr())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{Sites, sites};

    #[test]
    fn only_a_number_that_is_loaded_for_a_call_is_a_site() {
        let enter = [0x90, 0xb8, 0xaa, 0x01, 0, 0, 0x4d, 0x31, 0xc0, 0x0f, 0x05, 0xc3];
        assert_eq!(sites(&enter), Sites { enters: true, polls: false });
        assert_eq!(sites(&enter[..9]), Sites::default(), "no call");
        let mut other = enter;
        other[2] = 0xa9;
        assert_eq!(sites(&other), Sites::default(), "set-up");
        // epoll_ctl(2).
        (other[2], other[3]) = (0xe9, 0);
        assert_eq!(sites(&other), Sites { enters: false, polls: true });
        let mut far = vec![0xb8, 0xaa, 0x01, 0, 0];
        far.resize(200, 0x90);
        far.extend([0x0f, 0x05]);
        assert_eq!(sites(&far), Sites::default());
        assert_eq!(sites(&[0xaa, 0x01, 0, 0, 0x0f, 0x05]), Sites::default());
    }
}
