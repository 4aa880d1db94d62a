//! Does the program enter rings by instructions of its own? Those are not seen here, and a ring
//! that is set up here and entered there would stand still. So set-up is left to the kernel then.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was found when so many objects had been loaded: their number, and the lowest bit.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// What a look at the objects finds.
struct Look {
    adds: u64,
    known: u64,
    found: bool,
}

/// Asked before a ring is set up: true if it is to be left to the kernel.
pub(crate) fn enters_unseen() -> bool {
    let mut look = Look { adds: 0, known: KNOWN.load(Ordering::Relaxed), found: false };
    // SAFETY: the callback gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut look).cast()) };
    let found = if look.adds == look.known >> 1 { look.known & 1 != 0 } else { look.found };
    KNOWN.store(look.adds << 1 | u64::from(found), Ordering::Relaxed);
    found
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, look: *mut c_void) -> i32 {
    // SAFETY: dl_iterate_phdr(3) passes both.
    let (info, look) = unsafe { (&*info, &mut *look.cast::<Look>()) };
    look.adds = info.dlpi_adds;
    if look.adds == look.known >> 1 {
        return 1;
    }
    // SAFETY: as many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let executable = headers.iter().filter(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R
    });
    for header in executable {
        let at = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let len = header.p_memsz as usize;
        let own = enters_unseen as *const () as usize;
        if (at..at + len).contains(&own) {
            continue;
        }
        // SAFETY: a segment that is loaded and can be read.
        let text = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        if has_site(text) {
            look.found = true;
            return 0;
        }
    }
    0
}

/// Is there an instruction that makes the call io_uring_enter(2)?
#[cfg(target_arch = "x86_64")]
fn has_site(text: &[u8]) -> bool {
    /// As far behind it the number may be loaded before it is used.
    const NEAR: usize = 64;
    let number = (libc::SYS_io_uring_enter as u32).to_le_bytes();
    let load = [0xb8, number[0], number[1], number[2], number[3]];
    let mut from = 0;
    while let Some(found) = find(&text[from..], &load) {
        let behind = from + found + load.len();
        let window = &text[behind..text.len().min(behind + NEAR)];
        if window.windows(2).any(|pair| pair == [0x0f, 0x05]) {
            return true;
        }
        from = behind;
    }
    false
}

/// `mov x8, #426` before a `svc #0`.
#[cfg(target_arch = "aarch64")]
fn has_site(text: &[u8]) -> bool {
    const NEAR: usize = 16;
    let load = (0xd280_0008_u32 | (libc::SYS_io_uring_enter as u32) << 5).to_le_bytes();
    let call = 0xd400_0001_u32.to_le_bytes();
    let words: Vec<&[u8]> = text.chunks_exact(4).collect();
    words.iter().enumerate().any(|(at, word)| {
        **word == load && words[at..words.len().min(at + NEAR)].iter().any(|word| **word == call)
    })
}

#[cfg(target_arch = "x86_64")]
fn find(text: &[u8], what: &[u8; 5]) -> Option<usize> {
    let (at, needle) = (text.as_ptr().cast::<c_void>(), what.as_ptr().cast());
    // SAFETY: both are slices.
    let found = unsafe { libc::memmem(at, text.len(), needle, what.len()) };
    (!found.is_null()).then(|| found.addr() - at.addr())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::has_site;

    #[test]
    fn only_a_number_that_is_loaded_for_a_call_is_a_site() {
        let enter = [0x90, 0xb8, 0xaa, 0x01, 0, 0, 0x4d, 0x31, 0xc0, 0x0f, 0x05, 0xc3];
        assert!(has_site(&enter));
        assert!(!has_site(&enter[..9]), "no call");
        let mut setup = enter;
        setup[2] = 0xa9;
        assert!(!has_site(&setup));
        let mut far = vec![0xb8, 0xaa, 0x01, 0, 0];
        far.resize(200, 0x90);
        far.extend([0x0f, 0x05]);
        assert!(!has_site(&far));
        assert!(!has_site(&[0xaa, 0x01, 0, 0, 0x0f, 0x05]));
    }
}
