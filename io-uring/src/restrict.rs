//! The restrictions of a ring (io_uring_register(2), `IORING_REGISTER_RESTRICTIONS`).

use crate::abi::op;

/// The restrictions of a ring; nothing is restricted before the first was registered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restrictions {
    pub(crate) any: bool,
    registers: u64,
    ops: u64,
    allowed: u8,
    required: u8,
}

impl Restrictions {
    /// Parses the words of `struct io_uring_restriction`.
    pub(crate) fn read(list: &[[u32; 4]]) -> Result<Self, i32> {
        let mut made = Self { any: true, ..Self::default() };
        for entry in list {
            let (kind, value) = (entry[0] as u16, (entry[0] >> 16) as u8);
            match kind {
                0 if u32::from(value) < 64 => made.registers |= 1 << value,
                1 if value < op::LAST => made.ops |= 1 << value,
                2 => made.allowed = value,
                3 => made.required = value,
                _ => return Err(-libc::EINVAL),
            }
        }
        Ok(made)
    }

    pub(crate) fn allow_register(&self, opcode: u32) -> bool {
        !self.any || opcode < 64 && self.registers & 1 << opcode != 0
    }

    pub(crate) fn allow(&self, opcode: u8, flags: u8) -> bool {
        !self.any
            || self.ops & 1 << opcode != 0
                && flags & self.required == self.required
                && flags & !(self.allowed | self.required) == 0
    }
}
