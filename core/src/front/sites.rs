//! System call instructions in a program's own code.
/// Calls `f` with the constants that are loaded as system call numbers in front of system call
/// instructions. A few may be data that looks like code.
#[cfg(target_arch = "x86_64")]
pub fn each_number(text: &[u8], mut f: impl FnMut(i64)) {
    /// The maximum distance in bytes between the load of the number and the instruction.
    const NEAR: usize = 64;
    const LOAD: u8 = 0xb8;
    for call in memchr::memmem::find_iter(text, &[0x0f, 0x05]) {
        for load in text[call.saturating_sub(NEAR)..call].windows(5) {
            if let &[LOAD, a, b, c, d] = load {
                f(u32::from_le_bytes([a, b, c, d]).into());
            }
        }
    }
}

/// As on x86-64: `mov x8, #number` before a `svc #0`.
#[cfg(target_arch = "aarch64")]
pub fn each_number(text: &[u8], mut f: impl FnMut(i64)) {
    const NEAR: usize = 16;
    const CALL: u32 = 0xd400_0001;
    const LOAD: u32 = 0xd280_0008;
    let word = |at: usize| {
        text.get(4 * at..4 * at + 4)
            .and_then(|word| word.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    };
    for call in (0..text.len() / 4).filter(|&at| word(at) == CALL) {
        for load in (call.saturating_sub(NEAR)..call).map(word) {
            if load & 0xffe0_001f == LOAD {
                f((load >> 5 & 0xffff).into());
            }
        }
    }
}

/// Is this the number of one of io_uring's three calls?
pub fn is_io_uring(number: i64) -> bool {
    (libc::SYS_io_uring_setup..=libc::SYS_io_uring_register).contains(&number)
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::each_number;

    fn numbers(text: &[u8]) -> Vec<i64> {
        let mut found = Vec::new();
        each_number(text, |number| found.push(number));
        found
    }

    #[test]
    fn only_a_number_that_is_loaded_for_a_call_is_found() {
        let enter = [0x90, 0xb8, 0xaa, 0x01, 0, 0, 0x4d, 0x31, 0xc0, 0x0f, 0x05, 0xc3];
        assert_eq!(numbers(&enter), [426]);
        assert_eq!(numbers(&enter[..9]), [], "no call");
        let mut far = vec![0xb8, 0xaa, 0x01, 0, 0];
        far.resize(200, 0x90);
        far.extend([0x0f, 0x05]);
        assert_eq!(numbers(&far), []);
        assert_eq!(numbers(&[0xaa, 0x01, 0, 0, 0x0f, 0x05]), []);
    }
}
