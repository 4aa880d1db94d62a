//! A jump in the place of a system call: no signal, and no entry into the kernel.
//!
//! Compilers put the number into `eax` shortly before the call, and that instruction has the five
//! bytes of a jump:
//!
//! | the program's text | becomes |
//! |---|---|
//! | `mov $426, %eax` | `jmp stub` |
//! | moves between registers and memory, or nothing | the same; the stub has them, too |
//! | `syscall` | the same |
//! | what follows | what the stub comes back to |
//!
//! Two kinds of calls still execute their `syscall`. The number of the first kind is loaded in
//! another way. The second kind is reached by a jump of the program's own, behind the load. These
//! calls come as signals (`signal.rs`). If all calls of a text have become jumps, the text needs no
//! filter.
//!
//! Only functions in the unwind tables are changed: bytes elsewhere may look like code. The text is
//! changed while the process has one thread, through `/proc/thread-self/mem`. Such a write changes
//! the process's own copy of a page, and not its protection. If any of this is refused, the calls
//! come as signals.
//!
//! System calls are made here without the C library's functions. The program may export a function
//! of the same name, which may need an initialization that has not run yet.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;

use uringlet::front::sites::is_io_uring;

use super::CALLS;
use super::registers::{can_save, enter};
use crate::sys;

/// `mov $number, %eax`, and `jmp` with a distance.
const LOAD: u8 = 0xb8;
const JUMP: u8 = 0xe9;
const LOAD_LEN: usize = 5;
/// Added to `LOAD`, makes the instruction that loads `edi`.
const EDI: u8 = 7;
/// The upper bytes of io_uring's numbers.
const NUMBERS_END: [u8; 3] = [0x01, 0, 0];
const CALL: [u8; 2] = [0x0f, 0x05];

/// The size of a stub in bytes, and the maximum number of bytes between the load of the number and
/// the call.
const STUB: usize = 128;
const BETWEEN: usize = 64;
const PAGE: usize = 4096;

/// A call that can be replaced: the place where its number is loaded, the number, and the place of
/// the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    load: usize,
    number: u32,
    call: usize,
}

/// The source of a call's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Constant {
        load: usize,
        number: u32,
    },
    Computed,
    /// The instructions are unknown, or the text is no call at all.
    Unknown,
}

/// The length of an instruction that can be moved, and leaves `rax` and `rsp` unchanged: a constant
/// for a register, a move, or the XOR of registers that makes a zero. 0: another instruction.
fn movable(code: &[u8]) -> usize {
    let rex = code.first().copied().filter(|byte| byte & 0xf0 == 0x40);
    let prefix = usize::from(rex.is_some());
    // REX.B and REX.R select an upper register in the fields `rm` and `reg`. REX.W: the operand has
    // 64 bits.
    let [b, r, w] = [1, 4, 8].map(|bit| rex.unwrap_or(0) & bit != 0);
    let Some(&[op, mode]) = code.get(prefix..prefix + 2) else { return 0 };
    // rax and rsp have the numbers 0 and 4 among the lower registers.
    let is_kept = |register: u8, upper: bool| upper || register & 3 != 0;
    let (reg, rm) = (mode >> 3 & 7, mode & 7);
    match (op, mode >> 6) {
        (0xb8..=0xbf, _) if !w && is_kept(op & 7, b) => prefix + 5,
        (0x89 | 0x31, 3) if is_kept(rm, b) => prefix + 2,
        (0x8b | 0x33, 3) if is_kept(reg, r) => prefix + 2,
        // The operand is in memory: not relative to the instruction, and with a base.
        (0x89 | 0x8b, 0..3) => {
            let has_index = rm == 4;
            let base = if has_index { code.get(prefix + 2).map_or(5, |byte| byte & 7) } else { rm };
            if base == 5 && mode >> 6 == 0 || op == 0x8b && !is_kept(reg, r) {
                return 0;
            }
            prefix + 2 + usize::from(has_index) + [0, 1, 4][usize::from(mode >> 6)]
        }
        _ => 0,
    }
}

/// Are there only movable instructions between two places?
fn leads(text: &[u8], from: usize, to: usize) -> bool {
    let mut at = from;
    while at < to {
        match movable(&text[at..]) {
            0 => return false,
            len => at += len,
        }
    }
    at == to
}

fn has_upper_prefix(text: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| text[before] & 0xf0 == 0x40)
}

/// The constant that an instruction at this place loads into `eax`.
fn constant(text: &[u8], at: usize) -> Option<u32> {
    match text.get(at..at + LOAD_LEN) {
        Some(&[LOAD, a, b, c, d]) => Some(u32::from_le_bytes([a, b, c, d])),
        _ => None,
    }
}

fn number(text: &[u8], call: usize) -> Number {
    // The search begins at the nearest load.
    for at in (call.saturating_sub(LOAD_LEN + BETWEEN)..call).rev() {
        let constant = constant(text, at).filter(|_| !has_upper_prefix(text, at));
        if let Some(number) = constant
            && at + LOAD_LEN <= call
            && leads(text, at + LOAD_LEN, call)
        {
            return Number::Constant { load: at, number };
        }
        // `mov %r, %eax` in both forms, `mov (%r), %eax`, `mov $n, %rax`, `pop %rax`.
        let len = match text[at..call] {
            [0x89, mode, ..] if mode & 0xc7 == 0xc0 => 2,
            [0x8b, mode, ..] if mode & 0xf8 == 0xc0 || mode & 0xf8 == 0 && mode & 7 < 4 => 2,
            [0xc7, 0xc0, ..] => 6,
            [0x58, ..] => 1,
            _ => continue,
        };
        if at + len <= call && leads(text, at + len, call) {
            return Number::Computed;
        }
    }
    Number::Unknown
}

fn is_ours(number: u32) -> bool {
    CALLS.contains(&number.into()) || i64::from(number) == libc::SYS_mmap
}

/// The calls that can be replaced, and whether no other call of this text may be one of io_uring's.
fn sites(text: &[u8]) -> (Vec<Site>, bool) {
    let (mut sites, mut is_all) = (Vec::new(), true);
    for call in memchr::memmem::find_iter(text, &CALL) {
        match number(text, call) {
            Number::Constant { load, number } if is_ours(number) => {
                sites.push(Site { load, number, call });
            }
            Number::Constant { .. } => {}
            Number::Computed => is_all = false,
            Number::Unknown => {
                let near = call.saturating_sub(BETWEEN)..call;
                is_all &= !near.into_iter().any(|at| constant(text, at).is_some_and(is_ours));
            }
        }
    }
    // A number of io_uring's that is loaded elsewhere may be used by any call. A number in `edi`,
    // the first argument's register, does not count: it is for the C library's syscall(2).
    let loads = memchr::memmem::find_iter(text, &NUMBERS_END).filter_map(|end| {
        let at = end.checked_sub(LOAD_LEN - NUMBERS_END.len())?;
        let number = u32::from_le_bytes(text[at + 1..at + LOAD_LEN].try_into().ok()?);
        let is_argument = text[at] == LOAD + EDI && !has_upper_prefix(text, at);
        let is_load = (LOAD..LOAD + 8).contains(&text[at]) && !is_argument;
        (is_load && is_io_uring(number.into())).then_some(at)
    });
    let found = sites.iter().filter(|site| is_io_uring(site.number.into()));
    is_all &= loads.eq(found.map(|site| site.load));
    (sites, is_all)
}

unsafe extern "C" {
    /// libgcc's function: the unwind table's entry for a place, or null. It fills the three words
    /// with base addresses.
    fn _Unwind_Find_FDE(place: *const c_void, bases: *mut [usize; 3]) -> *const c_void;
}

fn is_in_function(place: usize) -> bool {
    let mut bases = [0; 3];
    // SAFETY: any address may be asked for.
    unsafe { !_Unwind_Find_FDE(place as *const c_void, &raw mut bases).is_null() }
}

/// The calls of a text that can be replaced.
pub(super) struct Jumps {
    text: Range<usize>,
    sites: Vec<Site>,
    /// No call in this range of code needs the filter.
    pub(super) are_all: bool,
}

impl Jumps {
    /// # Safety
    /// The text is a loaded segment, can be read, and stays.
    pub(super) unsafe fn find(text: &Range<usize>) -> Self {
        // SAFETY: the caller's contract.
        let bytes = unsafe { std::slice::from_raw_parts(text.start as *const u8, text.len()) };
        let (mut sites, is_all) = sites(bytes);
        let found = sites.len();
        sites.retain(|site| {
            let load = text.start + site.load;
            // The jump is in one page, so that all of it is written, or nothing.
            load % PAGE + LOAD_LEN <= PAGE
                && is_in_function(load)
                && is_in_function(text.start + site.call + CALL.len() - 1)
        });
        Self { text: text.clone(), are_all: is_all && sites.len() == found, sites }
    }

    /// Replaces the calls, while the process has one thread. False: not all calls were replaced.
    pub(super) fn write(&self) -> bool {
        if self.sites.is_empty() || !sys::is_alone() || !can_save() {
            return false;
        }
        let Some(memory) = sys::OwnMemory::open() else { return false };
        let len = (self.sites.len() * STUB).next_multiple_of(PAGE);
        let Some(stubs) = map_near(&self.text, len) else { return false };
        for (index, site) in self.sites.iter().enumerate() {
            let at = stubs + index * STUB;
            // SAFETY: bytes of the loaded text, which is changed only after this loop.
            let own = unsafe {
                let from = self.text.start + site.load;
                std::slice::from_raw_parts(from as *const u8, site.call - site.load)
            };
            let code = stub(at, own, site.number, self.text.start + site.call + CALL.len());
            // SAFETY: inside of pages that are ours, and are written to by nobody else.
            unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, STUB) };
        }
        // SAFETY: the pages are ours.
        let ready = unsafe { sys::protect(stubs, len, libc::PROT_READ | libc::PROT_EXEC) } >= 0;
        let written = self.sites.iter().enumerate().take_while(|&(index, site)| {
            let load = self.text.start + site.load;
            // SAFETY: the stub does what the instructions did that are skipped now. No other thread
            // exists that could execute them meanwhile.
            ready && unsafe { memory.write(load, &jump(load, stubs + index * STUB)) }
        });
        let written = written.count();
        if written == 0 {
            // SAFETY: no jump leads to these pages.
            unsafe { sys::unmap(stubs as *mut u8, len) };
        }
        written == self.sites.len()
    }
}

/// A jump from one place to another.
fn jump(from: usize, to: usize) -> [u8; LOAD_LEN] {
    let distance = to.wrapping_sub(from + LOAD_LEN) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [JUMP, a, b, c, d]
}

/// A stub: executes the program's instructions from the load of the number on (`own`), makes the
/// call, and continues at `back`. The 128 bytes below the stack pointer are the program's (by the
/// ABI).
fn stub(at: usize, own: &[u8], number: u32, back: usize) -> [u8; STUB] {
    const ENTER: usize = STUB - 8;
    const BACK: usize = STUB - 16;
    let from_here = |code: &[u8], datum: usize| ((datum - code.len() - 4) as u32).to_le_bytes();
    let mut code = Vec::with_capacity(STUB);
    code.extend(own);
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea -128(%rsp), %rsp
    code.extend([0xff, 0x35]); // push back(%rip)
    code.extend(from_here(&code, BACK));
    code.push(0x68); // push $number
    code.extend(number.to_le_bytes());
    code.extend([0xff, 0x15]); // call *enter(%rip)
    code.extend(from_here(&code, ENTER));
    code.extend([0x48, 0x8d, 0xa4, 0x24, 0x90, 0, 0, 0]); // lea 144(%rsp), %rsp
    code.extend(jump(at + code.len(), back));
    code.resize(BACK, 0xcc);
    code.extend(back.to_le_bytes());
    code.extend((enter as *const () as usize).to_le_bytes());
    code.try_into().expect("as long as a stub")
}

/// Pages within reach of a jump from all of the text. They are below the text, because the heap
/// grows above it.
fn map_near(text: &Range<usize>, len: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    const LOWEST: usize = 1 << 16;
    /// A jump reaches 2 GiB. Half of that is used.
    const REACH: usize = 1 << 30;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let first = (text.start & !(PAGE - 1)).checked_sub(len.next_multiple_of(LOWEST))?;
    let places = (0..).map_while(|step| first.checked_sub(step * STEP));
    for at in places.take_while(|&at| at >= LOWEST && text.end - at < REACH) {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which replaces nothing (`MAP_FIXED_NOREPLACE`).
        let mapped = unsafe { sys::mmap(at, len, prot, flags, -1, 0) };
        if mapped == at as isize {
            return Some(at);
        }
        if mapped > 0 {
            // Kernels before Linux 4.17 take the address as a hint.
            // SAFETY: mapped just now.
            unsafe { sys::unmap(mapped as *mut u8, len) };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTER: [u8; 5] = [LOAD, 0xaa, 0x01, 0, 0];

    fn text(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn a_number_that_moves_alone_keep_from_its_call_is_replaced() {
        let site = |load, call| vec![Site { load, number: 426, call }];
        let enter = text(&[&[0x90], &ENTER, &CALL, &[0xc3]]);
        assert_eq!(sites(&enter), (site(1, 6), true));
        assert_eq!(sites(&enter[1..]), (site(0, 5), true));
        assert_eq!(sites(&enter[2..]), (vec![], true), "cut off");
        let moves: [&[u8]; 6] = [
            &[0x89, 0xea],                      // mov %ebp, %edx
            &[0x45, 0x31, 0xc0],                // xor %r8d, %r8d
            &[0x41, 0xba, 1, 0, 0, 0],          // mov $1, %r10d
            &[0x48, 0x8b, 0xbb, 0xc4, 0, 0, 0], // mov 196(%rbx), %rdi
            &[0x48, 0x89, 0x54, 0x24, 0x08],    // mov %rdx, 8(%rsp)
            &[0x89, 0xc6],                      // mov %eax, %esi
        ];
        for one in moves {
            let text = text(&[&ENTER, one, &CALL]);
            assert_eq!(sites(&text), (site(0, 5 + one.len()), true), "{one:x?}");
        }
        let all = text(&[&ENTER, &moves.concat(), &CALL]);
        assert_eq!(sites(&all), (site(0, 5 + moves.concat().len()), true));
    }

    #[test]
    fn what_cannot_be_replaced_needs_a_filter() {
        let others: [&[u8]; 8] = [
            &[0x90],                         // not known here
            &[0x89, 0xf8],                   // mov %edi, %eax
            &[0x31, 0xc0],                   // xor %eax, %eax
            &[0x48, 0x89, 0xfc],             // mov %rdi, %rsp
            &[0x8b, 0x05, 0, 0, 0, 0],       // mov 0(%rip), %eax
            &[0x8b, 0x3d, 0, 0, 0, 0],       // mov 0(%rip), %edi
            &[0x8b, 0x3c, 0x25, 0, 0, 0, 0], // mov 0, %edi
            &[0x49, 0xb8, 0, 0, 0, 0],       // the first part of a longer constant
        ];
        for one in others {
            let (sites, is_all) = sites(&text(&[&ENTER, one, &CALL]));
            assert!(sites.is_empty() && !is_all, "{one:x?}");
        }
        let of = |number| text(&[&[LOAD, number, 0, 0, 0], &CALL]);
        // The number is loaded far before the call, or into r8, or not for the next call.
        assert!(!sites(&text(&[&ENTER, &[0x90; 200], &CALL])).1);
        assert!(!sites(&text(&[&[0x41], &ENTER, &CALL])).1);
        assert!(!sites(&text(&[&ENTER, &[0xc3], &ENTER, &CALL])).1);
        // The number is loaded into ebx, ebp or edi. Only edi is an argument's register.
        let into = |code| sites(&text(&[&[code, 0xaa, 0x01, 0, 0], &[0xc3], &of(1)])).1;
        assert_eq!([0xbb, 0xbd, 0xbf].map(into), [false, false, true]);
        // The number of the call is an argument.
        assert!(!sites(&text(&[&[0x48, 0x89, 0xf8], &CALL])).1);
        // close(2) and mmap(2) are replaced, too, and no other call.
        assert_eq!([3, 9, 1].map(|number| sites(&of(number)).0.len()), [1, 1, 0]);
        assert_eq!(sites(&of(1)), (vec![], true));
    }

    #[test]
    fn a_stub_fits_and_does_first_what_the_program_does() {
        let own = [0x90; LOAD_LEN + BETWEEN];
        assert!(stub(0x1000, &own, 426, 0x2000).starts_with(&own));
    }

    #[test]
    fn jumps_go_both_ways() {
        assert_eq!(jump(0x1000, 0x1005), [JUMP, 0, 0, 0, 0]);
        assert_eq!(jump(0x1000, 0x2000), [JUMP, 0xfb, 0x0f, 0, 0]);
        assert_eq!(jump(0x2000, 0x1000), [JUMP, 0xfb, 0xef, 0xff, 0xff]);
    }
}
