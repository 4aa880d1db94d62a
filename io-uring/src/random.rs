//! Random numbers for tests.

/// Random numbers from a seed (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in this many percent of all cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Removes a random element.
    pub(crate) fn take<T>(&mut self, of: &mut Vec<T>) -> Option<T> {
        let at = self.below(of.len().max(1) as u64) as usize;
        (at < of.len()).then(|| of.swap_remove(at))
    }
}
