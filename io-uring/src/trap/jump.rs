//! A jump in the place of a call: no signal, and no way into the kernel.
//!
//! Compilers put the number into `eax` right before the call, and that instruction has the five
//! bytes of a jump:
//!
//! | the program's text | becomes |
//! |---|---|
//! | `mov $426, %eax` | `jmp stub` |
//! | `syscall` | the same |
//! | what follows | what the stub comes back to |
//!
//! A call whose number is loaded earlier keeps its instruction, and so does one that is reached
//! from elsewhere: those come as signals (`signal.rs`).
//!
//! Only functions are written to, by the word of the unwind tables: bytes elsewhere may look like
//! code. It is done before the program begins, while it has one thread, and through
//! `/proc/self/mem`, which changes the process's own copy of a page and not what the page allows.
//! Where anything of this is refused, the calls come as signals.
//!
//! No function of the C library is called here: the program may have one of that name, which counts
//! on the program's having begun.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use uringlet::front::sites::is_io_uring;

use super::make;
use crate::sys;

/// `mov $number, %eax`, and `jmp` with a distance.
const LOAD: u8 = 0xb8;
const JUMP: u8 = 0xe9;
const LOAD_LEN: usize = 5;
const CALL: [u8; 2] = [0x0f, 0x05];

/// Bytes of a stub.
const STUB: usize = 64;
const PAGE: usize = 4096;

/// Registers that the kernel keeps, and a call of ours may not: of x87, SSE, AVX and AVX-512, by
/// their bits in XCR0.
const STATES: u64 = 0xe7;
/// Bytes for all of these, in the order of XSAVEC: 512 of x87 and SSE, a header of 64, 256 of AVX,
/// 64 of masks (8 used), and 512 and 1,024 of AVX-512. Intel's manual, volume 1, chapter 13.
const STATE_LEN: usize = 512 + 64 + 256 + 64 + 512 + 1024;

/// What XSAVEC saves here.
static SAVED: AtomicUsize = AtomicUsize::new(0);

/// A call that can be replaced: where its number is loaded, and the number.
type Site = (usize, u32);

fn sites(text: &[u8]) -> Vec<Site> {
    let site = |call: usize| {
        let load = call.checked_sub(LOAD_LEN)?;
        let &[LOAD, a, b, c, d] = &text[load..call] else { return None };
        let number = u32::from_le_bytes([a, b, c, d]);
        // With a prefix it is another register's.
        let has_prefix = load.checked_sub(1).is_some_and(|at| text[at] & 0xf0 == 0x40);
        (is_io_uring(number.into()) && !has_prefix).then_some((load, number))
    };
    memchr::memmem::find_iter(text, &CALL).filter_map(site).collect()
}

unsafe extern "C" {
    /// libgcc's: the unwind table's entry for a place, and null if there is none. The three words
    /// are a place for bases.
    fn _Unwind_Find_FDE(place: *const c_void, bases: *mut [usize; 3]) -> *const c_void;
}

fn is_in_function(place: usize) -> bool {
    let mut bases = [0; 3];
    // SAFETY: any address may be asked for.
    unsafe { !_Unwind_Find_FDE(place as *const c_void, &raw mut bases).is_null() }
}

/// Replaces the calls of io_uring in this text that can be. For the time before the program begins.
pub(super) fn patch(text: &Range<usize>) {
    let mut sites = {
        // SAFETY: a segment that is loaded and can be read, by the caller's word.
        sites(unsafe { std::slice::from_raw_parts(text.start as *const u8, text.len()) })
    };
    sites.retain(|&(load, _)| {
        let load = text.start + load;
        // In one page: all of a jump is written, or nothing.
        load % PAGE + LOAD_LEN <= PAGE
            && is_in_function(load)
            && is_in_function(load + LOAD_LEN + CALL.len() - 1)
    });
    if sites.is_empty() || !sys::is_alone() || !can_save() {
        return;
    }
    let Some(memory) = sys::OwnMemory::open() else { return };
    let len = (sites.len() * STUB).next_multiple_of(PAGE);
    let Some(stubs) = map_near(text, len) else { return };
    for (index, &(load, number)) in sites.iter().enumerate() {
        let at = stubs + index * STUB;
        let code = stub(at, number, text.start + load + LOAD_LEN + CALL.len());
        // SAFETY: inside of pages that are ours, and are written to by nobody else.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, STUB) };
    }
    // SAFETY: the pages are ours.
    if unsafe { sys::protect(stubs, len, libc::PROT_READ | libc::PROT_EXEC) } < 0 {
        // SAFETY: nothing leads there yet.
        unsafe { sys::unmap(stubs as *mut u8, len) };
        return;
    }
    for (index, &(load, _)) in sites.iter().enumerate() {
        let load = text.start + load;
        // SAFETY: what the jump leads to does what was there before. Nobody executes it meanwhile.
        unsafe { memory.write(load, &jump(load, stubs + index * STUB)) };
    }
}

/// A jump from one place to another.
fn jump(from: usize, to: usize) -> [u8; LOAD_LEN] {
    let distance = to.wrapping_sub(from + LOAD_LEN) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [JUMP, a, b, c, d]
}

/// Makes a call, and goes on at `back`. What lies below the stack is the program's (128 bytes, by
/// the ABI).
fn stub(at: usize, number: u32, back: usize) -> [u8; STUB] {
    const ENTER: usize = STUB - 8;
    const BACK: usize = STUB - 16;
    let from_here = |code: &[u8], datum: usize| ((datum - code.len() - 4) as u32).to_le_bytes();
    let mut code = Vec::with_capacity(STUB);
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

/// As the kernel is entered: all registers are kept, but for `rax`, which has the answer, and `rcx`
/// and `r11`. On the stack are the address of the stub, the number, `back`, and 128 bytes of the
/// program's. To an unwinder the caller is the program's function, without the stub between.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rsp, 152",
        ".cfi_offset rip, -136",
        "push rbp",
        ".cfi_def_cfa_offset 160",
        ".cfi_offset rbp, -160",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "pushfq",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push r9",
        "sub rsp, {state_len}",
        "and rsp, -64",
        // XRSTOR wants a header without garbage.
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "xor edx, edx",
        "mov eax, [rip + {saved}]",
        "xsavec64 [rsp]",
        "mov rdi, [rbp + 16]",
        "lea rsi, [rbp - 56]",
        "cld",
        "call {answer}",
        "mov [rbp + 16], rax",
        "xor edx, edx",
        "mov eax, [rip + {saved}]",
        "xrstor64 [rsp]",
        "mov rax, [rbp + 16]",
        "lea rsp, [rbp - 56]",
        "pop r9",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "popfq",
        "pop rbp",
        ".cfi_def_cfa rsp, 152",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        state_len = const STATE_LEN,
        saved = sym SAVED,
        answer = sym answer,
    )
}

/// # Safety
/// Called by [`enter`], with the registers that it has pushed.
unsafe extern "C" fn answer(number: i64, arguments: &[usize; 6]) -> isize {
    let [f, e, d, c, b, a] = *arguments;
    // SAFETY: a call of the program's, with the arguments in the registers.
    unsafe { make(number, [a, b, c, d, e, f]) }
}

/// Can the processor save its registers in the form that is used, in as much space?
fn can_save() -> bool {
    #[target_feature(enable = "xsave")]
    fn states() -> u64 {
        // SAFETY: the system has it enabled, by the caller's look.
        unsafe { _xgetbv(0) }
    }
    if !is_x86_feature_detected!("xsave") || !is_x86_feature_detected!("xsavec") {
        return false;
    }
    // SAFETY: it is there.
    let saved = unsafe { states() } & STATES;
    // The parts behind the header, and those of them that begin at a multiple of 64.
    let parts = (2..8).filter(|part| saved >> part & 1 == 1);
    let len: u32 = parts.map(|part| __cpuid_count(0xd, part).eax.next_multiple_of(64)).sum();
    SAVED.store(saved as usize, Ordering::Relaxed);
    512 + 64 + len as usize <= STATE_LEN
}

/// Pages in reach of a jump from all of the text. Below it: what grows lies above.
fn map_near(text: &Range<usize>, len: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    const LOWEST: usize = 1 << 16;
    /// A jump reaches 2 GiB.
    const REACH: usize = 1 << 30;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let first = (text.start & !(PAGE - 1)).checked_sub(len.next_multiple_of(LOWEST))?;
    let places = (0..).map_while(|step| first.checked_sub(step * STEP));
    for at in places.take_while(|&at| at >= LOWEST && text.end - at < REACH) {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: where nothing is.
        let mapped = unsafe { sys::mmap(at, len, prot, flags, -1, 0) };
        if mapped == at as isize {
            return Some(at);
        }
        if mapped > 0 {
            // A kernel that takes it for a wish (before Linux 4.17).
            // SAFETY: mapped just now.
            unsafe { sys::unmap(mapped as *mut u8, len) };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_io_uring_right_before_its_call_is_replaced() {
        let enter = [0x90, 0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05, 0xc3];
        assert_eq!(sites(&enter), [(1, 426)]);
        assert_eq!(sites(&enter[1..]), [(0, 426)]);
        assert_eq!(sites(&enter[2..]), [], "cut off");
        assert_eq!(sites(&[0xb8, 0x09, 0, 0, 0, 0x0f, 0x05]), [], "another call");
        assert_eq!(sites(&[0x41, 0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05]), [], "of r8");
        assert_eq!(sites(&[0xb8, 0xaa, 0x01, 0, 0, 0x90, 0x0f, 0x05]), [], "apart");
    }

    #[test]
    fn jumps_go_both_ways() {
        assert_eq!(jump(0x1000, 0x1005), [JUMP, 0, 0, 0, 0]);
        assert_eq!(jump(0x1000, 0x2000), [JUMP, 0xfb, 0x0f, 0, 0]);
        assert_eq!(jump(0x2000, 0x1000), [JUMP, 0xfb, 0xef, 0xff, 0xff]);
    }
}
