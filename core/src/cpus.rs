//! A set of CPUs, in the kernel's list format: `0-3,8`.

use std::fmt;
use std::str::FromStr;

/// The maximum CPU number, plus one: the kernel's own limit (CONFIG_NR_CPUS).
pub(crate) const CPUS_MAX: usize = 8192;

/// CPU numbers, each once, in ascending order.
///
/// The text form is the kernel's list format (cpuset(7)): `0-3,8`, and `0-15:2/4` for the first two
/// of each four.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet(Vec<u64>);

/// A text that is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadList;

impl fmt::Display for BadList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a list of CPUs, as in 0-3,8")
    }
}

impl std::error::Error for BadList {}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a CPU; numbers from 8192 on are ignored, because no kernel has them.
    pub fn insert(&mut self, cpu: usize) {
        if cpu >= CPUS_MAX {
            return;
        }
        let word = cpu / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (cpu % 64);
    }

    /// Is the CPU in the set?
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word & 1 << (cpu % 64) != 0)
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        // The last word is never 0.
        self.0.is_empty()
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            (0..64).filter(move |bit| word & 1 << bit != 0).map(move |bit| at * 64 + bit)
        })
    }

    /// The smallest CPU number.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::trimmed(self.0.iter().zip(&other.0).map(|(left, right)| left & right).collect())
    }

    /// The CPUs that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let theirs = other.0.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.0.iter().zip(theirs).map(|(mine, theirs)| mine & !theirs).collect())
    }

    /// The CPUs that are in at least one of the sets.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// Is every CPU of this set in `other`?
    pub fn is_within(&self, other: &Self) -> bool {
        self.without(other).is_empty()
    }

    /// Do the sets have a CPU in common?
    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(left, right)| left & right != 0)
    }

    /// The kernel's bit mask (sched_setaffinity(2)): 64 CPUs a word.
    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }

    pub(crate) fn from_words(words: &[u64]) -> Self {
        let words = &words[..words.len().min(CPUS_MAX / 64)];
        Self::trimmed(words.to_vec())
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self(words)
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl FromStr for CpuSet {
    type Err = BadList;

    /// An empty text is the empty set, as in the kernel's files.
    fn from_str(text: &str) -> Result<Self, BadList> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<usize>().ok().filter(|&cpu| digits && cpu < CPUS_MAX);
            number.ok_or(BadList)
        };
        let mut set = Self::new();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.split(',').map(str::trim) {
            let (range, stride) = part.split_once(':').map_or((part, None), |(r, s)| (r, Some(s)));
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to) = (number(from)?, number(to)?);
            let (used, group) = match stride {
                None => (1, 1),
                Some(stride) => {
                    let (used, group) = stride.split_once('/').ok_or(BadList)?;
                    (number(used)?, number(group)?)
                }
            };
            if from > to || used == 0 || used > group {
                return Err(BadList);
            }
            (from..=to).filter(|cpu| (cpu - from) % group < used).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::{BadList, CpuSet};
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(set("0-3,8").iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(set("0, 1"), set("0-1\n"));
        assert_eq!(set("0-15:2/4").to_string(), "0-1,4-5,8-9,12-13");
        assert!(set("").is_empty() && set("\n").is_empty());
        assert_eq!(set("8191").len(), 1);
        for bad in ["a", "1-", "-1", "3-1", "1,,2", ",", "0-7:0/4", "0-7:5/4", "0-7:2", "8192"] {
            assert_eq!(bad.parse::<CpuSet>(), Err(BadList), "{bad}");
        }
        assert!("99999999999999999999".parse::<CpuSet>().is_err());
    }

    #[test]
    fn sets_of_different_length_compare_by_what_they_hold() {
        let (small, large) = (set("1-2"), set("2,130"));
        assert_eq!(small.and(&large), set("2"));
        assert_eq!(large.without(&small), set("130"));
        assert_eq!(large.without(&set("130")), set("2"));
        assert_eq!(small.or(&large), set("1,2,130"));
        assert!(set("2").is_within(&small) && !large.is_within(&small));
        assert!(small.meets(&large) && !small.meets(&set("130")));
        assert!(set("").is_within(&small) && !set("").meets(&small));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            cpus in proptest::collection::btree_set(0usize..400, 0..60)
        ) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.len(), cpus.len());
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = text.parse::<CpuSet>();
        }
    }
}
