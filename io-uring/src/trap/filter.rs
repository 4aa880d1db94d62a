//! The filter for seccomp(2): a program in classic BPF, which the kernel runs for each system call.
#![allow(unsafe_code)]

use std::ops::Range;

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD};
use libc::{BPF_RET, BPF_W, sock_filter};

use super::CALLS;

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION: u32 = 8;
/// The offset of the fourth argument: the flags of mmap(2).
const FOURTH: u32 = 16 + 3 * 8;

const LITTLE_ENDIAN_64: u32 = 0xc000_0000;
const THIS: u32 = LITTLE_ENDIAN_64
    | if cfg!(target_arch = "aarch64") { libc::EM_AARCH64 as u32 } else { libc::EM_X86_64 as u32 };

/// The flags with which a ring's memory is mapped.
const RING: u32 = libc::MAP_SHARED as u32;

/// The errno in the signals of this library's filters. The filter may also come from a program
/// that has started this one.
pub(super) const MARK: u16 = 0x7572;
const TRAP: u32 = libc::SECCOMP_RET_TRAP | MARK as u32;

const fn load(at: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at }
}

/// Skips the next `jt` instructions if the comparison is true, or the next `jf` if it is false.
const fn compare(how: u32, with: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | how | BPF_K) as u16, jt, jf, k: with }
}

const fn answer(what: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: what }
}

const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);

/// The filter for calls whose instruction is in this text.
fn program(text: &Range<usize>) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE), compare(BPF_JEQ, THIS, 1, 0), ALLOW, load(NUMBER)];
    // A match skips the rest of these comparisons and the six instructions for mmap(2).
    for (at, &number) in CALLS.iter().enumerate() {
        program.push(compare(BPF_JEQ, number as u32, (CALLS.len() - at + 5) as u8, 0));
    }
    program.extend([
        compare(BPF_JEQ, libc::SYS_mmap as u32, 1, 0),
        ALLOW,
        load(FOURTH),
        sock_filter { code: (BPF_ALU | BPF_AND | BPF_K) as u16, jt: 0, jf: 0, k: RING },
        compare(BPF_JEQ, RING, 1, 0),
        ALLOW,
    ]);
    // The kernel gives the address of the instruction after the call. One comparison has 32 bits,
    // so that the two halves of the address are compared separately.
    let mut from = text.start as u64 + 1;
    let end = text.end as u64 + 1;
    while from < end {
        let upper = from >> 32;
        let last = (end - 1).min(upper << 32 | 0xffff_ffff);
        program.extend([
            load(INSTRUCTION + 4),
            compare(BPF_JEQ, upper as u32, 0, 4),
            load(INSTRUCTION),
            compare(BPF_JGE, from as u32, 0, 2),
            compare(BPF_JGT, last as u32, 1, 0),
            answer(TRAP),
        ]);
        from = last + 1;
    }
    program.push(ALLOW);
    program
}

/// Sets the filter for all threads. If the kernel requires the promise to gain no privileges, the
/// process makes it (prctl(2), `PR_SET_NO_NEW_PRIVS`). False: the filter is refused.
pub(super) fn install(text: &Range<usize>) -> bool {
    let mut program = program(text);
    let Ok(len) = u16::try_from(program.len()) else { return false };
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let set = || crate::sys::set_filter(&program);
    match set() {
        0 => true,
        errno if errno == -libc::EACCES => crate::sys::gain_no_privileges() && set() == 0,
        // Another thread has a filter that this one does not have, or filters are refused.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's answer to a call.
    fn run(program: &[sock_filter], number: i64, instruction: u64, fourth: u64) -> u32 {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&(number as u32).to_le_bytes());
        data[4..8].copy_from_slice(&THIS.to_le_bytes());
        data[8..16].copy_from_slice(&instruction.to_le_bytes());
        data[40..48].copy_from_slice(&fourth.to_le_bytes());
        let (mut at, mut value) = (0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let jump = |holds| usize::from(if holds { jt } else { jf });
            at += 1;
            match u32::from(code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    let word = &data[k as usize..k as usize + 4];
                    value = u32::from_le_bytes(word.try_into().unwrap());
                }
                code if code == BPF_ALU | BPF_AND | BPF_K => value &= k,
                code if code == BPF_JMP | BPF_JEQ | BPF_K => at += jump(value == k),
                code if code == BPF_JMP | BPF_JGE | BPF_K => at += jump(value >= k),
                code if code == BPF_JMP | BPF_JGT | BPF_K => at += jump(value > k),
                code => {
                    assert_eq!(code, BPF_RET | BPF_K);
                    return k;
                }
            }
        }
    }

    #[test]
    fn only_the_calls_of_the_text_are_trapped() {
        let trapped = |text: Range<usize>, number, instruction, fourth| {
            run(&program(&text), number, instruction, fourth) == TRAP
        };
        for text in [0x55_0000_1000..0x55_0000_2000, 0x7fff_f000..0x1_0000_1000] {
            let (first, last) = (text.start as u64 + 2, text.end as u64);
            for number in CALLS {
                for instruction in [first, last, (first + last) / 2] {
                    assert!(trapped(text.clone(), number, instruction, 0), "{number}");
                }
                for instruction in [first - 2, last + 1, first + (1 << 32), 0] {
                    assert!(!trapped(text.clone(), number, instruction, 0), "{number}");
                }
            }
            assert!(!trapped(text.clone(), libc::SYS_read, first, 0));
            assert!(!trapped(text.clone(), libc::SYS_mmap, first, 0));
            assert!(!trapped(text.clone(), libc::SYS_mmap, first, libc::MAP_PRIVATE as u64));
            assert!(trapped(text.clone(), libc::SYS_mmap, first, RING.into()));
        }
    }

    #[test]
    fn another_architectures_numbers_are_let_through() {
        let mut program = program(&(0x1000..0x2000));
        program[1].k ^= 1;
        assert_eq!(run(&program, CALLS[0], 0x1800, 0), libc::SECCOMP_RET_ALLOW);
    }
}
