//! Finds requests by a key: cancels and updates name a user data, and close(2) a descriptor. A
//! program may have 100,000 requests that wait, and none of these calls looks at all of them.
//!
//! A hash table of linked lists. The links are stored by the *place* of the request, its index in
//! `State::requests`. Adding and removing write a few words, and allocate only when there are more
//! requests than ever before.

use crate::chains::NONE;

/// The links of a request in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    key: u64,
    /// The neighbours in the list, or [`NONE`].
    newer: u32,
    older: u32,
    is_listed: bool,
}

const UNLISTED: Link = Link { key: 0, newer: NONE, older: NONE, is_listed: false };

/// A hash table of requests. Each is named by its index in the ring's list of requests.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The newest request of each list. The length is a power of two, or 0.
    heads: Vec<u32>,
    /// One for each place.
    links: Vec<Link>,
}

impl Index {
    /// Adds the request at a place, unless it is listed.
    #[inline]
    pub(super) fn add(&mut self, at: u32, key: u64) {
        if at as usize >= self.links.len() {
            self.grow(at);
        }
        if self.links[at as usize].is_listed {
            return;
        }
        self.links[at as usize] = Link { key, is_listed: true, ..UNLISTED };
        self.push(at);
    }

    /// Removes the request at a place, if it is listed.
    #[inline]
    pub(super) fn remove(&mut self, at: u32) {
        let Some(link) = self.links.get_mut(at as usize) else { return };
        let Link { key, newer, older, is_listed } = std::mem::replace(link, UNLISTED);
        if !is_listed {
            return;
        }
        match newer {
            NONE => {
                let head = self.head(key);
                self.heads[head] = older;
            }
            newer => self.links[newer as usize].older = older,
        }
        if older != NONE {
            self.links[older as usize].newer = newer;
        }
    }

    /// The requests with this key, the newest first.
    pub(super) fn all(&self, key: u64) -> impl Iterator<Item = u32> {
        let newest = if self.heads.is_empty() { NONE } else { self.heads[self.head(key)] };
        let link = |at: u32| self.links.get(at as usize).map(|link| (at, link));
        std::iter::successors(link(newest), move |(_, one)| link(one.older))
            .filter(move |(_, one)| one.key == key)
            .map(|(at, _)| at)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.links.iter().all(|link| !link.is_listed)
    }

    /// The index of the list that has the requests with this key.
    fn head(&self, key: u64) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        (key.wrapping_mul(ODD) >> 32) as usize & (self.heads.len() - 1)
    }

    /// Puts a request with its key into its list.
    fn push(&mut self, at: u32) {
        let head = self.head(self.links[at as usize].key);
        let older = std::mem::replace(&mut self.heads[head], at);
        self.links[at as usize].older = older;
        if older != NONE {
            self.links[older as usize].newer = at;
        }
    }

    /// Makes room for the place `at`: as many lists as places. Each list keeps its order.
    #[cold]
    fn grow(&mut self, at: u32) {
        let places = (at as usize + 1).next_power_of_two().max(8);
        let lists = std::mem::replace(&mut self.heads, vec![NONE; places]);
        self.links.resize(places, UNLISTED);
        for newest in lists.into_iter().filter(|&newest| newest != NONE) {
            let mut all = vec![newest];
            while let older = self.links[all[all.len() - 1] as usize].older
                && older != NONE
            {
                all.push(older);
            }
            for at in all.into_iter().rev() {
                let link = &mut self.links[at as usize];
                (link.newer, link.older) = (NONE, NONE);
                self.push(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Index;

    #[test]
    fn requests_with_the_same_key_are_found_the_newest_first_after_random_changes() {
        let mut table = Index::default();
        let mut model: Vec<(u32, u64)> = Vec::new();
        let mut random = 1u64;
        // Miri would take 20 minutes for 20,000 steps.
        let steps = if cfg!(miri) { 2_000 } else { 20_000 };
        for step in 0..steps {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few places at first: the table grows while it has requests.
            let at = (random >> 33) as u32 % (8 + step / 100);
            let key = (random >> 20) % 40 * 64;
            match model.iter().position(|&(other, _)| other == at) {
                Some(place) => {
                    model.remove(place);
                    table.remove(at);
                }
                None => {
                    model.push((at, key));
                    table.add(at, key);
                }
            }
            table.remove(u32::MAX - 1);
            let mut expected = model.iter().rev().filter(|(_, other)| *other == key);
            assert!(table.all(key).eq(expected.by_ref().map(|&(at, _)| at)), "step {step}");
        }
        model.iter().for_each(|&(at, _)| table.remove(at));
        assert!((0..40).all(|number| table.all(number * 64).next().is_none()));
    }
}
