//! The buffers of a transfer that takes several of them from a group at once
//! (`IORING_RECVSEND_BUNDLE`).

use std::sync::{Mutex, PoisonError};

/// Buffers, as `struct iovec`s.
#[derive(Debug, Default)]
pub(crate) struct Bundle(Mutex<Vec<[u64; 2]>>);

impl Bundle {
    pub(super) fn set(&self, parts: impl Iterator<Item = [u64; 2]>, most: u64) {
        let mut left = if most == 0 { u64::MAX } else { most };
        let shortened = parts.map_while(|[at, len]| {
            let (here, is_over) = (len.min(left), left == 0);
            left -= here;
            (!is_over).then_some([at, here])
        });
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        own.clear();
        own.extend(shortened);
    }

    /// A copy of the buffers, for a call that may wait without the lock.
    pub(super) fn parts(&self) -> Vec<[u64; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_where_the_bytes_do() {
        let bundle = Bundle::default();
        let parts = [[1000, 10], [2000, 0], [3000, 10], [4000, 10]];
        let all = &[10, 0, 10, 10][..];
        for (most, lengths) in [(0, all), (5, &[5]), (10, &[10]), (25, &[10, 0, 10, 5]), (99, all)]
        {
            bundle.set(parts.into_iter(), most);
            let set: Vec<u64> = bundle.parts().iter().map(|part| part[1]).collect();
            assert_eq!(set, lengths, "{most}");
        }
    }
}
