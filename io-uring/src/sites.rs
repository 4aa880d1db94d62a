//! Does the program make system calls by its own instructions? The library does not see such calls.
//! If the program may enter rings by them, set-up is left to the kernel. If the program may wait
//! for descriptors by them, the descriptors of rings are always up to date.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use uringlet::front::note::OWNER;
use uringlet::front::sites::{each_number, is_io_uring};
use uringlet::front::syscall::NEXT;

/// The system calls that a loaded object makes by its own instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sites {
    /// The object calls io_uring_enter(2), and this library does not see these calls.
    pub(crate) enters: bool,
    /// The object makes any of io_uring's calls.
    rings: bool,
    /// The object makes calls that wait for descriptors, or add descriptors to an epoll.
    pub(crate) polls: bool,
}

/// The number of objects that had been loaded at the last search (`dlpi_adds`). The lowest two bits
/// have its findings.
static KNOWN: AtomicU64 = AtomicU64::new(0);

const ENTERS: u64 = 1;
const POLLS: u64 = 2;
const BITS: u32 = 2;

/// [`trap::covers`](crate::trap::covers).
type Covers = unsafe fn(text: &Range<usize>, makes_calls: bool, is_program: bool) -> bool;

static COVERS: OnceLock<Covers> = OnceLock::new();

/// Sets the function that redirects the calls of a text to this library. Before that, no text is
/// covered.
pub(crate) fn covered_by(covers: Covers) {
    let _ = COVERS.set(covers);
}

/// The findings of a search through the objects.
struct Look {
    adds: u64,
    known: u64,
    found: Sites,
    /// Only the program itself was searched.
    is_short: bool,
}

/// Searches the program's own text. [`COVERS`] decides whether its calls are redirected to this
/// library.
pub(crate) fn look_at_program() {
    let mut look = Look { adds: 0, known: 0, found: Sites::default(), is_short: true };
    // SAFETY: the callback gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut look).cast()) };
}

/// Searches the loaded objects, if any was added since the last search. Called before a ring is set
/// up.
pub(crate) fn look() -> Sites {
    let known = KNOWN.load(Ordering::Relaxed);
    let mut look = Look { adds: 0, known, found: Sites::default(), is_short: false };
    // SAFETY: the callback gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(&mut look).cast()) };
    if look.adds == known >> BITS {
        return Sites { enters: known & ENTERS != 0, polls: known & POLLS != 0, rings: false };
    }
    let Sites { enters, polls, .. } = look.found;
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
    // SAFETY: dl_iterate_phdr(3) passes the address and the number of the headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    // SAFETY: the headers of a loaded object, and where it was loaded.
    if unsafe { has_note_of_ours(info.dlpi_addr as usize, headers) } {
        return 0;
    }
    let executable = headers.iter().filter(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R
    });
    // An address in this library and one in the C library. Neither is searched, because the calls
    // that their functions make are seen.
    let known = [look as *const () as usize, NEXT.load(Ordering::Relaxed).addr()];
    // SAFETY: null, or a string.
    let is_program = info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0;
    for header in executable {
        let at = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let len = header.p_memsz as usize;
        if known.iter().any(|place| (at..at + len).contains(place)) {
            continue;
        }
        // SAFETY: a segment that is loaded and can be read.
        let text = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        let Sites { enters, polls, rings } = sites(text);
        // SAFETY: as above. dl_iterate_phdr(3) keeps the object loaded until this returns, and its
        // text is not read later.
        let covers = |covers: &Covers| unsafe { covers(&(at..at + len), rings, is_program) };
        let covered = COVERS.get().is_some_and(covers);
        seen.found.enters |= enters && !covered;
        seen.found.polls |= polls;
    }
    // The program is the first object.
    i32::from(seen.is_short)
}

/// Does the object have the note of a drop-in (`front/note.rs`)? The system calls of a drop-in are
/// for its own descriptors only.
///
/// # Safety
/// An object with these headers is loaded at `base`.
unsafe fn has_note_of_ours(base: usize, headers: &[libc::Elf64_Phdr]) -> bool {
    let is_loaded = |note: &libc::Elf64_Phdr| {
        let end = note.p_vaddr.saturating_add(note.p_memsz);
        headers.iter().any(|header| {
            header.p_type == libc::PT_LOAD
                && header.p_flags & libc::PF_R != 0
                && header.p_vaddr <= note.p_vaddr
                && end <= header.p_vaddr + header.p_filesz
        })
    };
    headers.iter().filter(|note| note.p_type == libc::PT_NOTE && is_loaded(note)).any(|note| {
        let at = base.wrapping_add(note.p_vaddr as usize) as *const u8;
        // SAFETY: inside a segment that is loaded and can be read.
        let notes = unsafe { std::slice::from_raw_parts(at, note.p_memsz as usize) };
        notes.windows(OWNER.len()).any(|name| name == OWNER)
    })
}

/// The system call instructions in a text.
fn sites(text: &[u8]) -> Sites {
    #[cfg(target_arch = "x86_64")]
    const OLD: [i64; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
    #[cfg(not(target_arch = "x86_64"))]
    const OLD: [i64; 0] = [];
    const NEW: [i64; 3] = [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_ctl];
    let mut found = Sites::default();
    each_number(text, |number| {
        found.enters |= number == libc::SYS_io_uring_enter;
        found.rings |= is_io_uring(number);
        found.polls |= NEW.contains(&number) || OLD.contains(&number);
    });
    found
}
