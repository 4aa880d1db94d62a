//! A call of this library's with the effect of a system call: it keeps all registers but three.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::make;

/// Registers that the kernel preserves, and a call of this library's may not: of x87, SSE, AVX and
/// AVX-512, by their bits in XCR0.
const STATES: u64 = 0xe7;
/// Bytes for all of these, in the order of XSAVEC. 512 of x87 and SSE, a header of 64, 256 of AVX,
/// 64 of masks (8 used), and 512 and 1,024 of AVX-512. Intel's manual, volume 1, chapter 13.
const STATE_LEN: usize = 512 + 64 + 256 + 64 + 512 + 1024;

/// The state components that XSAVEC saves here.
static SAVED: AtomicUsize = AtomicUsize::new(0);
/// The components of these with vector registers other than `xmm0` to `xmm15`. 0: the processor
/// does not say which ones are in use.
static VECTORS: AtomicUsize = AtomicUsize::new(0);

/// What XRSTOR loads initial components from, in its standard form.
#[repr(C, align(64))]
struct Initial([u32; (512 + 64) / 4]);

static INITIAL: Initial = {
    /// The place of MXCSR, and its initial value.
    const MXCSR: (usize, u32) = (24 / 4, 0x1f80);
    let mut initial = Initial([0; (512 + 64) / 4]);
    initial.0[MXCSR.0] = MXCSR.1;
    initial
};

/// The same effect as a system call: all registers are preserved but `rax`, which has the answer,
/// and `rcx` and `r11`. On the stack are the address of the stub, the number, `back`, and 128 bytes
/// of the program's. To an unwinder the caller is the program's function, without the stub between.
///
/// XSAVEC and XRSTOR take ten times as long as sixteen moves. They are needed only if the program
/// has something in the larger registers, which XGETBV says. If the call leaves something there,
/// the registers get their initial state again. Nothing in this library uses x87.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter() {
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
        "cld",
        "mov r11d, [rip + {vectors}]",
        "test r11d, r11d",
        "jz 5f",
        "mov ecx, 1",
        "xgetbv",
        "test eax, r11d",
        "jnz 5f",
        "sub rsp, 16 * 16 + 16",
        "and rsp, -16",
        "movaps [rsp + 0], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "movaps [rsp + 128], xmm8",
        "movaps [rsp + 144], xmm9",
        "movaps [rsp + 160], xmm10",
        "movaps [rsp + 176], xmm11",
        "movaps [rsp + 192], xmm12",
        "movaps [rsp + 208], xmm13",
        "movaps [rsp + 224], xmm14",
        "movaps [rsp + 240], xmm15",
        "stmxcsr [rsp + 256]",
        "mov rdi, [rbp + 16]",
        "lea rsi, [rbp - 56]",
        "call {answer}",
        "mov [rbp + 16], rax",
        "mov ecx, 1",
        "xgetbv",
        "and eax, [rip + {vectors}]",
        "jz 2f",
        "xor edx, edx",
        "xrstor64 [rip + {initial}]",
        "ldmxcsr [rsp + 256]",
        "2:",
        // Loading MXCSR is slow.
        "stmxcsr [rsp + 260]",
        "mov eax, [rsp + 260]",
        "cmp eax, [rsp + 256]",
        "je 3f",
        "ldmxcsr [rsp + 256]",
        "3:",
        "movaps xmm0, [rsp + 0]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "movaps xmm8, [rsp + 128]",
        "movaps xmm9, [rsp + 144]",
        "movaps xmm10, [rsp + 160]",
        "movaps xmm11, [rsp + 176]",
        "movaps xmm12, [rsp + 192]",
        "movaps xmm13, [rsp + 208]",
        "movaps xmm14, [rsp + 224]",
        "movaps xmm15, [rsp + 240]",
        "4:",
        "mov rax, [rbp + 16]",
        "lea rsp, [rbp - 56]",
        "pop r9",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "popfq",
        ".cfi_remember_state",
        "pop rbp",
        ".cfi_def_cfa rsp, 152",
        ".cfi_restore rbp",
        "ret",
        ".cfi_restore_state",
        "5:",
        "sub rsp, {state_len}",
        "and rsp, -64",
        // XRSTOR needs a header without garbage.
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
        "call {answer}",
        "mov [rbp + 16], rax",
        "xor edx, edx",
        "mov eax, [rip + {saved}]",
        "xrstor64 [rsp]",
        "jmp 4b",
        ".cfi_endproc",
        state_len = const STATE_LEN,
        saved = sym SAVED,
        vectors = sym VECTORS,
        initial = sym INITIAL,
        answer = sym answer,
    )
}

/// # Safety
/// Called by [`enter`], with the registers that it has pushed.
unsafe extern "C" fn answer(number: i64, arguments: &[usize; 6]) -> isize {
    let [f, e, d, c, b, a] = *arguments;
    #[cfg(test)]
    if let Some(answer) = tests::answer(number) {
        return answer;
    }
    // SAFETY: a call of the program's, with the arguments in the registers.
    unsafe { make(number, [a, b, c, d, e, f]) }
}

/// Can the processor save its registers in this form, in this much space?
pub(super) fn can_save() -> bool {
    /// XGETBV says which components are in use (leaf 0xd, part 1).
    const HAS_IN_USE: u32 = 1 << 2;
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
    // The parts after the header, and those of them that begin at a multiple of 64.
    let parts = (2..8).filter(|part| saved >> part & 1 == 1);
    // SAFETY: each x86-64 processor has the instruction. Later versions of Rust than the oldest
    // supported one know that, and the block is not needed with them.
    #[allow(unused_unsafe)]
    let eax = |part| unsafe { __cpuid_count(0xd, part) }.eax;
    let len: u32 = parts.map(|part| eax(part).next_multiple_of(64)).sum();
    SAVED.store(saved as usize, Ordering::Relaxed);
    /// Of x87 and SSE.
    const LOWER: u64 = 3;
    if eax(1) & HAS_IN_USE != 0 {
        VECTORS.store((saved & !LOWER) as usize, Ordering::Relaxed);
    }
    512 + 64 + len as usize <= STATE_LEN
}

#[cfg(test)]
mod tests {
    use std::arch::asm;

    use super::*;

    /// Numbers of calls that do nothing. The second leaves something in a larger register.
    const CLEAN: i64 = -2;
    const DIRTY: i64 = -3;
    const ANSWER: isize = 7;

    pub(super) fn answer(number: i64) -> Option<isize> {
        if number == DIRTY {
            // SAFETY: a test asks for it on a processor that has AVX.
            unsafe { asm!("vpcmpeqd ymm2, ymm2, ymm2", out("xmm2") _) };
        }
        [CLEAN, DIRTY].contains(&number).then_some(ANSWER)
    }

    /// Has the registers `ymm0` to `ymm15` and MXCSR, and makes a call by [`enter`].
    fn call(number: i64, upper: bool, registers: &mut [[u64; 4]; 16], mxcsr: &mut u32) -> isize {
        let answer;
        // SAFETY: all registers that are changed are named, and the stack is as a stub has it.
        unsafe {
            asm!(
                "ldmxcsr [r13]",
                "test r14, r14",
                "jz 2f",
                "vmovdqu ymm0, [r12 + 0]",
                "vmovdqu ymm1, [r12 + 32]",
                "vmovdqu ymm2, [r12 + 64]",
                "vmovdqu ymm3, [r12 + 96]",
                "vmovdqu ymm4, [r12 + 128]",
                "vmovdqu ymm5, [r12 + 160]",
                "vmovdqu ymm6, [r12 + 192]",
                "vmovdqu ymm7, [r12 + 224]",
                "vmovdqu ymm8, [r12 + 256]",
                "vmovdqu ymm9, [r12 + 288]",
                "vmovdqu ymm10, [r12 + 320]",
                "vmovdqu ymm11, [r12 + 352]",
                "vmovdqu ymm12, [r12 + 384]",
                "vmovdqu ymm13, [r12 + 416]",
                "vmovdqu ymm14, [r12 + 448]",
                "vmovdqu ymm15, [r12 + 480]",
                "jmp 3f",
                "2:",
                "vzeroupper",
                "movdqu xmm0, [r12 + 0]",
                "movdqu xmm1, [r12 + 32]",
                "movdqu xmm2, [r12 + 64]",
                "movdqu xmm3, [r12 + 96]",
                "movdqu xmm4, [r12 + 128]",
                "movdqu xmm5, [r12 + 160]",
                "movdqu xmm6, [r12 + 192]",
                "movdqu xmm7, [r12 + 224]",
                "movdqu xmm8, [r12 + 256]",
                "movdqu xmm9, [r12 + 288]",
                "movdqu xmm10, [r12 + 320]",
                "movdqu xmm11, [r12 + 352]",
                "movdqu xmm12, [r12 + 384]",
                "movdqu xmm13, [r12 + 416]",
                "movdqu xmm14, [r12 + 448]",
                "movdqu xmm15, [r12 + 480]",
                "3:",
                "lea rsp, [rsp - 128]",
                "push 0",
                "push r15",
                "call {enter}",
                "lea rsp, [rsp + 144]",
                "vmovdqu [r12 + 0], ymm0",
                "vmovdqu [r12 + 32], ymm1",
                "vmovdqu [r12 + 64], ymm2",
                "vmovdqu [r12 + 96], ymm3",
                "vmovdqu [r12 + 128], ymm4",
                "vmovdqu [r12 + 160], ymm5",
                "vmovdqu [r12 + 192], ymm6",
                "vmovdqu [r12 + 224], ymm7",
                "vmovdqu [r12 + 256], ymm8",
                "vmovdqu [r12 + 288], ymm9",
                "vmovdqu [r12 + 320], ymm10",
                "vmovdqu [r12 + 352], ymm11",
                "vmovdqu [r12 + 384], ymm12",
                "vmovdqu [r12 + 416], ymm13",
                "vmovdqu [r12 + 448], ymm14",
                "vmovdqu [r12 + 480], ymm15",
                "stmxcsr [r13]",
                "vzeroupper",
                enter = sym enter,
                in("r12") registers.as_mut_ptr(),
                in("r13") &raw mut *mxcsr,
                in("r14") u64::from(upper),
                in("r15") number,
                out("rax") answer,
                out("rcx") _,
                out("r11") _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            );
        }
        answer
    }

    #[test]
    fn a_call_keeps_vector_registers_whichever_are_in_use() {
        if !is_x86_feature_detected!("avx") || !can_save() {
            println!(
                "SKIPPED a_call_keeps_vector_registers_whichever_are_in_use: no AVX, or no XSAVEC"
            );
            return;
        }
        for number in [CLEAN, DIRTY] {
            for upper in [false, true] {
                let value = |at: usize| at as u64 * 0x0123_4567_89ab_cdef + 1;
                let mut registers: [[u64; 4]; 16] =
                    std::array::from_fn(|at| std::array::from_fn(|word| value(4 * at + word)));
                let mut before = registers;
                if !upper {
                    before.iter_mut().for_each(|register| register[2..].fill(0));
                }
                // A result was inexact, and no exception is raised.
                let mut mxcsr = 0x1fa0;
                let answer = call(number, upper, &mut registers, &mut mxcsr);
                assert_eq!(answer, ANSWER);
                assert_eq!(registers, before, "{number}, {upper}");
                assert_eq!(mxcsr, 0x1fa0);
            }
        }
    }
}
