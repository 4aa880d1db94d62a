//! Buffers that a program provides in groups, in a list or in a ring in its memory.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{Ordering, fence};

use uringlet::front::memory::accessible_now;

use crate::memory::Mapped;
use crate::user;

/// The maximum number of buffers of a list.
const MOST: usize = u16::MAX as usize;
/// The maximum number of buffers for one transfer.
const SEVERAL: usize = 256;
/// The offset of a ring's tail, in bytes. A ring is an array of entries of 16 bytes, each for one
/// buffer. The tail is in the last two bytes of the first entry.
const TAIL: usize = 14;

/// A buffer that a program has provided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provided {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) id: u16,
    /// The value of the ring's head when this buffer was taken.
    place: u16,
    /// Other requests have taken later buffers of the ring. The program may have filled this
    /// buffer's place again, so nothing is written there.
    is_hidden: bool,
}

impl Provided {
    /// A buffer of a list.
    pub(crate) fn of_list(at: u64, len: u32, id: u16) -> Self {
        Self { at, len, id, place: 0, is_hidden: false }
    }
}

/// The place of a group's buffers.
#[derive(Debug)]
enum Place {
    List(VecDeque<Provided>),
    /// The program fills the ring. Every read of an entry checks the memory. `tail` is the
    /// program's tail, as last read.
    Ring {
        at: usize,
        entries: u16,
        head: u16,
        tail: u16,
        /// Each transfer uses up the part of a buffer that it has filled (`IOU_PBUF_RING_INC`).
        in_pieces: bool,
        /// The pages at `at`, if the program maps them (`IOU_PBUF_RING_MMAP`).
        to_map: Option<Mapped>,
    },
}

/// A group of buffers.
#[derive(Debug)]
pub(crate) struct BufferGroup {
    /// A unique id. A later group with the same number has another id.
    pub(crate) id: u64,
    place: Place,
    /// Buffers that were taken and given back, in the order in which they are taken again.
    back: VecDeque<Provided>,
    /// The key of the request that is being tried with a buffer and may give it back. Other
    /// requests wait, because they would find one buffer less.
    pub(crate) user: Option<u64>,
    pub(crate) waiting: VecDeque<u32>,
}

/// The length of these buffers together.
pub(crate) fn bytes_of(buffers: &[Provided]) -> u64 {
    buffers.iter().map(|one| u64::from(one.len)).sum()
}

impl BufferGroup {
    /// Takes the next buffer. `None`: there is none, or the ring's memory cannot be read.
    pub(crate) fn take(&mut self) -> Option<Provided> {
        if let Some(buffer) = self.back.pop_front() {
            return Some(buffer);
        }
        match &mut self.place {
            Place::List(list) => list.pop_front(),
            Place::Ring { at, entries, head, tail, .. } => {
                if !has_more(*at, *head, tail) {
                    return None;
                }
                let (place, is_hidden) = (*head, false);
                let entry = *at + 16 * usize::from(place & (*entries - 1));
                let [address, rest]: [u64; 2] = user::read(entry).ok()?;
                *head = head.wrapping_add(1);
                let (len, id) = (rest as u32, (rest >> 32) as u16);
                Some(Provided { at: address, len, id, place, is_hidden })
            }
        }
    }

    /// Takes the next buffers. If `most` is not 0, they are for `most` bytes. Their number is at
    /// most the number that would do if all had the length of the first. A later buffer that is
    /// longer than the missing bytes is taken only if it can be used in pieces. A list gives one
    /// buffer, because the ids of a list's buffers may have any order.
    pub(crate) fn take_several(&mut self, most: u64) -> Vec<Provided> {
        let (mut taken, mut left, mut room) = (Vec::new(), most, SEVERAL);
        let (is_list, in_pieces) = (self.is_list(), self.is_used_in_pieces());
        while taken.len() < room
            && let Some(buffer) = self.take()
        {
            match u64::from(buffer.len) {
                _ if !taken.is_empty() => {}
                len if len == 0 || is_list => room = 1,
                len if most > 0 => room = room.min(most.div_ceil(len) as usize),
                _ => {}
            }
            if most > 0 && !taken.is_empty() && u64::from(buffer.len) > left && !in_pieces {
                self.give_back(buffer);
                break;
            }
            taken.push(buffer);
            left = left.saturating_sub(buffer.len.into());
            if most > 0 && left == 0 {
                break;
            }
        }
        taken
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self.place, Place::List(_))
    }

    fn is_used_in_pieces(&self) -> bool {
        matches!(self.place, Place::Ring { in_pieces: true, .. })
    }

    /// A transfer has used `bytes` bytes of buffers that were taken. A transfer of 0 bytes uses one
    /// buffer. The unused buffers are given back. True: the last used buffer is given back, too,
    /// and now begins after its used part. `are_last`: other requests have taken no buffers since.
    pub(crate) fn use_up(&mut self, buffers: &[Provided], mut bytes: u64, are_last: bool) -> bool {
        let in_pieces = self.is_used_in_pieces();
        let are_last = are_last || self.are_last(buffers);
        // If all bytes are used, empty buffers at the end count as used, too.
        let are_full = bytes > 0 && bytes == bytes_of(buffers);
        let kept = |one: Provided| Provided { is_hidden: one.is_hidden || !are_last, ..one };
        let (mut used, mut rest, mut begins_later) = (0, None, false);
        for &buffer in buffers {
            let here = bytes.min(buffer.len.into());
            bytes -= here;
            if in_pieces {
                let at = buffer.at.wrapping_add(here);
                let left = Provided { at, len: buffer.len - here as u32, ..kept(buffer) };
                self.show(left);
                rest = (left.len > 0).then_some(left);
                begins_later = left.len > 0;
            }
            used += 1;
            if bytes == 0 && !are_full {
                break;
            }
        }
        buffers[used..].iter().rev().for_each(|&buffer| self.give_back(kept(buffer)));
        rest.into_iter().for_each(|rest| self.give_back(rest));
        begins_later
    }

    /// Were these buffers the most recently taken ones of the ring?
    fn are_last(&self, buffers: &[Provided]) -> bool {
        let Place::Ring { head, .. } = self.place else { return false };
        buffers.last().is_some_and(|last| last.place.wrapping_add(1) == head)
    }

    /// Writes what is left of a buffer to its place in the program's ring.
    fn show(&self, Provided { at: address, len, place, is_hidden, .. }: Provided) {
        let Place::Ring { at, entries, .. } = self.place else { return };
        let entry = at + 16 * usize::from(place & (entries - 1));
        if is_hidden {
            return;
        }
        // SAFETY: the place is in the ring, which the program has registered.
        let shown = unsafe { user::write(entry + 8, len) };
        if len > 0 && shown.is_ok() {
            // SAFETY: as above.
            let _ = unsafe { user::write(entry, address) };
        }
    }

    /// Is there no buffer?
    pub(crate) fn is_empty(&mut self) -> bool {
        self.back.is_empty()
            && match &mut self.place {
                Place::List(list) => list.is_empty(),
                Place::Ring { at, head, tail, .. } => !has_more(*at, *head, tail),
            }
    }

    /// Is there no buffer, and will none be given back?
    pub(crate) fn is_used_up(&mut self) -> bool {
        self.is_empty() && self.user.is_none()
    }

    /// Gives back a buffer that was not used. It is the next one to be taken, except for returned
    /// buffers in front of it in the ring.
    pub(crate) fn give_back(&mut self, buffer: Provided) {
        let is_behind = |other: &Provided| other.place.wrapping_sub(buffer.place) as i16 >= 0;
        let place = self.back.iter().position(is_behind).unwrap_or(self.back.len());
        self.back.insert(place, buffer);
    }
}

/// Has a ring buffers between its head and the program's tail? Reads the program's tail again if
/// the head has reached `tail`.
fn has_more(at: usize, head: u16, tail: &mut u16) -> bool {
    if head == *tail
        && let Ok(now) = user::read(at + TAIL)
    {
        *tail = now;
        // Entries are read after this read of the tail, because the program writes the tail last.
        fence(Ordering::Acquire);
    }
    head != *tail
}

/// The groups of a ring, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct BufferGroups {
    groups: BTreeMap<u16, BufferGroup>,
    last: u64,
}

impl BufferGroups {
    pub(crate) fn get(&mut self, number: u16) -> Option<&mut BufferGroup> {
        self.groups.get_mut(&number)
    }

    /// Makes a group with this number. Requests that wait for an earlier group with the same number
    /// keep waiting.
    fn make(&mut self, number: u16, place: Place) -> &mut BufferGroup {
        self.last += 1;
        let (user, waiting) =
            self.groups.remove(&number).map(|old| (old.user, old.waiting)).unwrap_or_default();
        let group = BufferGroup { id: self.last, place, back: VecDeque::new(), user, waiting };
        self.groups.entry(number).or_insert(group)
    }

    /// IORING_REGISTER_PBUF_RING, for a ring whose number of entries is a power of two. Without an
    /// address, the ring gets pages that the program maps.
    ///
    /// # Errors
    /// `-EEXIST`: a group with this number has buffers. `-EFAULT`: the memory is not accessible.
    /// `-EINVAL`: the memory does not begin at a page. `-ENOMEM`: there is no memory.
    pub(crate) fn register(
        &mut self,
        number: u16,
        at: Option<u64>,
        entries: u16,
        in_pieces: bool,
    ) -> Result<(), i32> {
        let has_buffers = |group: &BufferGroup| match &group.place {
            Place::List(list) => !list.is_empty() || !group.back.is_empty(),
            Place::Ring { .. } => true,
        };
        if self.groups.get(&number).is_some_and(has_buffers) {
            return Err(-libc::EEXIST);
        }
        let len = 16 * entries as usize;
        let to_map = if at.is_none() { Some(Mapped::new(len)?) } else { None };
        let at = to_map.as_ref().map_or(at.unwrap_or(0) as usize, Mapped::address);
        if at == 0 || at.is_multiple_of(4096) && !accessible_now(at, len, true) {
            return Err(-libc::EFAULT);
        }
        if !at.is_multiple_of(4096) {
            return Err(-libc::EINVAL);
        }
        self.make(number, Place::Ring { at, entries, head: 0, tail: 0, in_pieces, to_map });
        Ok(())
    }

    /// The pages of a ring that the program maps.
    pub(crate) fn to_map(&self, number: u16) -> Option<&Mapped> {
        match &self.groups.get(&number)?.place {
            Place::Ring { to_map, .. } => to_map.as_ref(),
            Place::List(_) => None,
        }
    }

    /// IORING_UNREGISTER_PBUF_RING. Returns the requests that wait for the group.
    ///
    /// # Errors
    /// `-ENOENT`: there is no such group. `-EINVAL`: the group is a list.
    pub(crate) fn unregister(&mut self, number: u16) -> Result<VecDeque<u32>, i32> {
        self.head(number)?;
        Ok(self.groups.remove(&number).map(|group| group.waiting).unwrap_or_default())
    }

    /// The head of a ring, as the program sees it: the index, not masked, of the buffer that is
    /// taken next.
    ///
    /// # Errors
    /// As [`unregister`](Self::unregister).
    pub(crate) fn head(&self, number: u16) -> Result<u16, i32> {
        let group = self.groups.get(&number).ok_or(-libc::ENOENT)?;
        match group.place {
            Place::Ring { head, .. } => Ok(group.back.front().map_or(head, |next| next.place)),
            Place::List(_) => Err(-libc::EINVAL),
        }
    }

    /// Adds adjacent buffers of one length to a list. Returns 0, or a negative errno.
    pub(crate) fn provide(&mut self, number: u16, count: u32, first: Provided) -> i32 {
        let group = match self.groups.contains_key(&number) {
            true => self.groups.get_mut(&number),
            false => Some(self.make(number, Place::List(VecDeque::new()))),
        };
        let Some(BufferGroup { place: Place::List(list), back, .. }) = group else {
            return -libc::EINVAL;
        };
        let room = MOST.saturating_sub(list.len() + back.len()) as u32;
        for at in 0..count.min(room) {
            let place = first.at.wrapping_add(u64::from(at) * u64::from(first.len));
            list.push_back(Provided { at: place, id: first.id.wrapping_add(at as u16), ..first });
        }
        if room > 0 { 0 } else { -libc::EOVERFLOW }
    }

    /// Removes buffers from a list. Returns the number, or a negative errno.
    pub(crate) fn remove(&mut self, number: u16, count: u32) -> i32 {
        let Some(group) = self.groups.get_mut(&number) else { return -libc::ENOENT };
        let Place::List(list) = &mut group.place else { return -libc::EINVAL };
        let there = group.back.len() + list.len();
        let count = there.min(count as usize);
        let of_back = count.min(group.back.len());
        group.back.drain(..of_back);
        list.drain(..count - of_back);
        count as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of 4 entries in a page of its own.
    #[repr(align(4096))]
    struct Page([[u64; 2]; 256]);

    const LEN: u64 = 100;

    fn entry(at: u64, id: u64) -> [u64; 2] {
        [at, LEN | id << 32]
    }

    fn ids(buffers: &[Provided]) -> Vec<u16> {
        buffers.iter().map(|one| one.id).collect()
    }

    #[test]
    fn buffers_that_come_back_late_keep_their_order_and_leave_the_ring_alone() {
        let mut page = Box::new(Page([[0; 2]; 256]));
        for (at, place) in page.0[..4].iter_mut().enumerate() {
            *place = entry(1000 * at as u64, at as u64);
        }
        // The tail is in the last two bytes of the first entry.
        page.0[0][1] |= 4 << 48;
        let (mut groups, at) = (BufferGroups::default(), page.0.as_mut_ptr());
        let tail = |now: u64| {
            // SAFETY: the place is in the page.
            unsafe { at.cast::<u16>().add(7).write_volatile(now as u16) };
        };
        groups.register(1, Some(at as u64), 4, true).expect("a ring");
        let group = groups.get(1).expect("the group");
        let early = group.take_several(2 * LEN);
        let late = group.take_several(LEN);
        assert_eq!((ids(&early), ids(&late)), (vec![0, 1], vec![2]));
        assert!(group.use_up(&late, 40, true), "60 bytes are left");
        // SAFETY: the place is in the page.
        assert_eq!(unsafe { at.add(2).read_volatile() }, [2040, 60 | 2 << 32]);
        // The program regards the earlier buffers as used, and fills their entries again.
        // SAFETY: the place is in the page.
        unsafe { at.add(1).write_volatile(entry(5000, 5)) };
        tail(6);
        assert!(group.use_up(&early, 10, false), "90 bytes are left");
        // SAFETY: as above.
        assert_eq!(unsafe { at.add(1).read_volatile() }, entry(5000, 5));
        assert_eq!(groups.head(1), Ok(0));
        let group = groups.get(1).expect("the group");
        let all = group.take_several(0);
        assert_eq!(ids(&all), [0, 1, 2, 3, 0, 5]);
        assert_eq!(all.iter().map(|one| one.len).collect::<Vec<_>>()[..4], [90, 100, 60, 100]);
        // The rest of a hidden buffer is not written to the ring later, either.
        assert!(group.use_up(&all[..2], 150, true));
        // SAFETY: as above.
        assert_eq!(unsafe { at.add(1).read_volatile() }, entry(5000, 5));
        assert_eq!(group.take().map(|one| (one.at, one.len)), Some((1060, 40)));
    }

    #[test]
    fn a_transfer_for_some_bytes_takes_as_many_buffers_as_if_all_were_like_the_first() {
        let mut groups = BufferGroups::default();
        let first = Provided::of_list(4096, 10, 7);
        assert_eq!(groups.provide(1, 3, first), 0);
        let group = groups.get(1).expect("the group");
        assert_eq!(ids(&group.take_several(0)), [7], "a list gives one buffer");
        let (head, tail) = (5, 5);
        let place =
            Place::Ring { at: 4096, entries: 8, head, tail, in_pieces: false, to_map: None };
        let group = groups.make(2, place);
        for (at, len) in [20, 5, 0, 5, 5].into_iter().enumerate() {
            let one = Provided::of_list(0, len, at as u16);
            group.back.push_back(Provided { place: at as u16, ..one });
        }
        for (most, expected) in [(1, 1), (20, 1), (25, 2), (40, 2), (41, 3)] {
            let taken = group.take_several(most);
            assert_eq!(taken.len(), expected, "{most}");
            taken.into_iter().for_each(|one| group.give_back(one));
        }
        assert!(!group.is_empty());
    }
}
