//! Maps by numbers that no attacker chooses: descriptors, keys, addresses. The standard maps'
//! hashing would take longer than the work on the entries.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Numbers>>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers(u64);

impl Numbers {
    fn add(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(ODD);
    }
}

impl Hasher for Numbers {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.add(byte.into()));
    }

    fn write_i16(&mut self, number: i16) {
        self.add(number as u64);
    }

    fn write_i32(&mut self, number: i32) {
        self.add(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn finish(&self) -> u64 {
        // A map uses the lowest bits and the highest.
        self.0 ^ self.0 >> 32
    }
}
