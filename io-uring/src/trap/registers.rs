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
/// The saved components other than those of x87 and SSE: larger vector registers, and masks. 0: the
/// processor does not say which components are in use.
static VECTORS: AtomicUsize = AtomicUsize::new(0);

/// The area from which XRSTOR loads initial components, in its standard form.
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
/// and `rcx` and `r11`. The stack has, from its top: the return address in the stub, the number,
/// the address to continue at, and 128 bytes of the program's. To an unwinder the caller is the
/// program's function, without the stub between.
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
        ".irp register, rdi,rsi,rdx,r10,r8,r9",
        "push \\register",
        ".endr",
        "cld",
        "mov r11d, [rip + {vectors}]",
        "test r11d, r11d",
        "jz {enter_with_all}",
        "mov ecx, 1",
        "xgetbv",
        "test eax, r11d",
        "jnz {enter_with_all}",
        "sub rsp, 16 * 16 + 16",
        "and rsp, -16",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "movaps [rsp + 16 * \\n], xmm\\n",
        ".endr",
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
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "movaps xmm\\n, [rsp + 16 * \\n]",
        ".endr",
        "jmp {leave}",
        ".cfi_endproc",
        vectors = sym VECTORS,
        initial = sym INITIAL,
        answer = sym answer,
        enter_with_all = sym enter_with_all,
        leave = sym leave,
    )
}

/// The rest of [`enter`] if larger registers are in use. `enter` has made the frame.
#[unsafe(naked)]
unsafe extern "C" fn enter_with_all() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rbp, 160",
        ".cfi_offset rip, -136",
        ".cfi_offset rbp, -160",
        "sub rsp, {state_len}",
        "and rsp, -64",
        // XRSTOR needs a header without garbage.
        "xor eax, eax",
        ".irp n, 0,1,2,3,4,5,6,7",
        "mov [rsp + 512 + 8 * \\n], rax",
        ".endr",
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
        "jmp {leave}",
        ".cfi_endproc",
        state_len = const STATE_LEN,
        saved = sym SAVED,
        answer = sym answer,
        leave = sym leave,
    )
}

/// The end of [`enter`]: restores the other registers, and returns to the stub.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rbp, 160",
        ".cfi_offset rip, -136",
        ".cfi_offset rbp, -160",
        "mov rax, [rbp + 16]",
        "lea rsp, [rbp - 56]",
        ".irp register, r9,r8,r10,rdx,rsi,rdi",
        "pop \\register",
        ".endr",
        "popfq",
        "pop rbp",
        ".cfi_def_cfa rsp, 152",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
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

/// Can the processor save its registers by XSAVEC, in `STATE_LEN` bytes?
pub(super) fn can_save() -> bool {
    /// XGETBV says which components are in use (leaf 0xd, part 1).
    const HAS_IN_USE: u32 = 1 << 2;
    #[target_feature(enable = "xsave")]
    fn states() -> u64 {
        // SAFETY: the caller has checked that the processor and the system support XSAVE.
        unsafe { _xgetbv(0) }
    }
    if !is_x86_feature_detected!("xsave") || !is_x86_feature_detected!("xsavec") {
        return false;
    }
    // SAFETY: XSAVE was found above.
    let saved = unsafe { states() } & STATES;
    // The parts after the header. Sizes are rounded up, because some parts begin at a multiple of
    // 64.
    let parts = (2..8).filter(|part| saved >> part & 1 == 1);
    // SAFETY: each x86-64 processor has the instruction. Newer versions of Rust know that, and need
    // no `unsafe` block here.
    #[allow(unused_unsafe)]
    let eax = |part| unsafe { __cpuid_count(0xd, part) }.eax;
    let len: u32 = parts.map(|part| eax(part).next_multiple_of(64)).sum();
    SAVED.store(saved as usize, Ordering::Relaxed);
    /// The components of x87 and SSE.
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

    /// Loads `ymm0` to `ymm15` (without `upper`: `xmm0` to `xmm15`) and MXCSR, makes a call by
    /// [`enter`], and stores the registers back.
    fn call(number: i64, upper: bool, registers: &mut [[u64; 4]; 16], mxcsr: &mut u32) -> isize {
        let answer;
        // SAFETY: all registers that are changed are named, and the stack is as a stub has it.
        unsafe {
            asm!(
                "ldmxcsr [r13]",
                "test r14, r14",
                "jz 2f",
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vmovdqu ymm\\n, [r12 + 32 * \\n]",
                ".endr",
                "jmp 3f",
                "2:",
                "vzeroupper",
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "movdqu xmm\\n, [r12 + 32 * \\n]",
                ".endr",
                "3:",
                "lea rsp, [rsp - 128]",
                "push 0",
                "push r15",
                "call {enter}",
                "lea rsp, [rsp + 144]",
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vmovdqu [r12 + 32 * \\n], ymm\\n",
                ".endr",
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
                // MXCSR: all exceptions are masked, and the flag of an inexact result is set.
                let mut mxcsr = 0x1fa0;
                let answer = call(number, upper, &mut registers, &mut mxcsr);
                assert_eq!(answer, ANSWER);
                assert_eq!(registers, before, "{number}, {upper}");
                assert_eq!(mxcsr, 0x1fa0);
            }
        }
    }
}
