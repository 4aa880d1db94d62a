//! The CPU's return stack after a system call.
//!
//! A CPU predicts where a `ret` goes from a stack of its own, which has an entry for each `call`.
//! On some CPUs of AMD's, the kernel's returns are replaced by others that leave entries there
//! (`Safe RET`, Linux 6.5). A `ret` of the program that takes such an entry makes the *next* system
//! call slower as a whole, by a quarter. It is the first `ret` after a system call whose `call`
//! came before it. So entries of the program's own are pushed first, after each system call.
//! `docs/decisions/032-return-stack.md` has the measurement.

use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const LEFT_ALONE: u8 = 1;
const FILLED: u8 = 2;

/// Is the return stack filled after each system call?
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Decides whether the return stack is filled, unless that is decided. The decision is about this
/// machine, so the child of a fork has its parent's.
pub(crate) fn decide() {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        // A shadow stack would take the entries for calls that never return.
        let is_filled = !has_shadow_stack() && has_safe_ret();
        STATE.store(if is_filled { FILLED } else { LEFT_ALONE }, Ordering::Relaxed);
    }
}

/// Is the return stack filled after each system call in this process?
pub(crate) fn is_filled() -> bool {
    decide();
    STATE.load(Ordering::Relaxed) == FILLED
}

/// Passes on the answer of a system call that was just made.
#[inline(always)]
pub fn after_call<T>(answer: T) -> T {
    if STATE.load(Ordering::Relaxed) == FILLED {
        fill();
    }
    answer
}

/// Pushes 16 entries. One is for its own `ret`, the others are for those between this library's
/// system call and the program's next `call`. With 8, writes of `fio` were 3 % slower; with 32,
/// batches were.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn fill() {
    /// No `call` returns: each goes on behind the byte after it.
    #[unsafe(naked)]
    extern "C" fn push() {
        std::arch::naked_asm!(
            ".cfi_startproc",
            ".rept 16",
            "call 2f",
            "int3",
            "2:",
            ".cfi_adjust_cfa_offset 8",
            ".endr",
            "lea rsp, [rsp + 128]",
            ".cfi_adjust_cfa_offset -128",
            "ret",
            ".cfi_endproc",
        );
    }
    push();
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn fill() {}

/// Are the kernel's returns replaced by `Safe RET`? False if that cannot be found out.
fn has_safe_ret() -> bool {
    let path = c"/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";
    let mut text = [0; 64];
    cfg!(all(target_arch = "x86_64", not(miri)))
        && super::read_start(path, &mut text).is_some_and(names_safe_ret)
}

/// `text`: what the kernel says about this weakness of the CPU.
fn names_safe_ret(text: &[u8]) -> bool {
    text.windows(8).any(|part| part == b"Safe RET")
}

/// Does the calling thread have a shadow stack, which checks where each `ret` goes? The C library
/// gives one to all threads at the start of the program, or to none.
fn has_shadow_stack() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut at = 0u64;
        // SAFETY: `rdsspq`, which reads the shadow stack's pointer. Without a shadow stack, it is a
        // NOP.
        unsafe {
            std::arch::asm!(
                ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8",
                inout("rax") at,
                options(nomem, nostack, preserves_flags)
            );
        }
        at != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{fill, names_safe_ret};

    #[test]
    fn the_kernel_names_safe_ret() {
        for text in ["Mitigation: Safe RET\n", "Vulnerable: Safe RET, no microcode\n"] {
            assert!(names_safe_ret(text.as_bytes()), "{text}");
        }
        for text in ["Not affected\n", "Mitigation: IBPB\n", "Mitigation: SMT disabled\n", "Safe"] {
            assert!(!names_safe_ret(text.as_bytes()), "{text}");
        }
    }

    /// Each depth has values of its own in its frame, and fills the return stack on both ways.
    fn sum(depth: u64) -> u64 {
        let values: [u64; 8] = std::array::from_fn(|at| depth * at as u64);
        fill();
        let deeper = if depth == 0 { 0 } else { sum(depth - 1) };
        fill();
        std::hint::black_box(&values).iter().sum::<u64>() + deeper
    }

    #[test]
    fn filling_changes_nothing_that_a_program_sees() {
        let expected: u64 = (0..=100).map(|depth| depth * 28).sum();
        for _ in 0..1_000 {
            assert_eq!(sum(100), expected);
        }
        let unwound = std::panic::catch_unwind(|| {
            fill();
            panic!("unwound through a frame that filled the return stack");
        });
        assert!(unwound.is_err());
    }
}
