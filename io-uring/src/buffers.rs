//! Buffers that a program provides in groups, in a list or in a ring in its memory.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{Ordering, fence};

use uringlet::front::memory::accessible_now;

use crate::user;

/// The maximum number of buffers of a list, and of a ring.
const MOST: usize = u16::MAX as usize;
/// The maximum number of buffers for one transfer.
const SEVERAL: usize = 256;
/// The offset of a ring's tail, in bytes. From its beginning on, the ring has buffers of 16 bytes
/// each.
const TAIL: usize = 14;

/// A buffer that a program has provided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provided {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) id: u16,
}

/// The place of a group's buffers.
#[derive(Debug)]
enum Place {
    List(VecDeque<Provided>),
    /// The program fills the ring, and its memory is checked each time. Entries before `tail` are
    /// known to be accessible.
    Ring {
        at: usize,
        entries: u16,
        head: u16,
        tail: u16,
        /// Each transfer uses up the part of a buffer that it has filled (`IOU_PBUF_RING_INC`).
        in_pieces: bool,
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

impl BufferGroup {
    /// Takes the next buffer. `None`: there is none.
    pub(crate) fn take(&mut self) -> Option<Provided> {
        if let Some(buffer) = self.back.pop_front() {
            return Some(buffer);
        }
        match &mut self.place {
            Place::List(list) => list.pop_front(),
            Place::Ring { at, entries, head, tail, .. } => {
                if head == tail {
                    *tail = user::read(*at + TAIL).ok()?;
                    // Orders the program's writes before its write of the tail.
                    fence(Ordering::Acquire);
                }
                if head == tail {
                    return None;
                }
                let place = usize::from(*head & (*entries - 1));
                let [address, rest]: [u64; 2] = user::read(*at + 16 * place).ok()?;
                *head = head.wrapping_add(1);
                Some(Provided { at: address, len: rest as u32, id: (rest >> 32) as u16 })
            }
        }
    }

    /// Takes the next buffers: for `most` bytes, if that is not 0. A later buffer that is longer
    /// than what is left of the bytes is not taken, unless it can be used up in pieces.
    pub(crate) fn take_several(&mut self, most: u64) -> Vec<Provided> {
        let (mut taken, mut left) = (Vec::new(), most);
        let in_pieces = self.is_used_in_pieces();
        while taken.len() < SEVERAL
            && let Some(buffer) = self.take()
        {
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

    fn is_used_in_pieces(&self) -> bool {
        matches!(self.place, Place::Ring { in_pieces: true, .. })
    }

    /// A transfer has used this many bytes of buffers that were taken, and no more than one of them
    /// if that is 0. The others are given back. True: so is the rest of the last one, which begins
    /// later now. `are_last`: no buffers were taken after these.
    pub(crate) fn use_up(&mut self, buffers: &[Provided], mut bytes: u64, are_last: bool) -> bool {
        let in_pieces = are_last && self.is_used_in_pieces();
        let (mut used, mut rest) = (0, None);
        for &buffer in buffers {
            let here = bytes.min(buffer.len.into());
            bytes -= here;
            if in_pieces {
                let at = buffer.at.wrapping_add(here);
                let left = Provided { at, len: buffer.len - here as u32, ..buffer };
                self.show(left, buffers.len() - used);
                rest = (left.len > 0).then_some(left);
            }
            used += 1;
            if bytes == 0 {
                break;
            }
        }
        buffers[used..].iter().rev().for_each(|&buffer| self.give_back(buffer));
        rest.inspect(|&rest| self.give_back(rest)).is_some_and(|rest| rest.at != buffers[0].at)
    }

    /// Writes a buffer that was used in part to its place in the program's ring, `back` places in
    /// front of the next buffer.
    fn show(&self, Provided { at: address, len, .. }: Provided, back: usize) {
        let Place::Ring { at, entries, head, .. } = self.place else { return };
        let before = head.wrapping_sub((self.back.len() + back) as u16);
        let place = at + 16 * usize::from(before & (entries - 1));
        // SAFETY: of the ring, which the program has registered.
        let _ = unsafe { user::write(place, address).and_then(|()| user::write(place + 8, len)) };
    }

    /// Is there no buffer?
    pub(crate) fn is_empty(&mut self) -> bool {
        self.take().map(|buffer| self.give_back(buffer)).is_none()
    }

    /// Is there no buffer, and will none be given back?
    pub(crate) fn is_used_up(&mut self) -> bool {
        self.is_empty() && self.user.is_none()
    }

    /// A buffer was not used: it is the next one.
    pub(crate) fn give_back(&mut self, buffer: Provided) {
        self.back.push_front(buffer);
    }
}

/// The groups of a ring, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct BufferGroups {
    groups: HashMap<u16, BufferGroup>,
    last: u64,
}

impl BufferGroups {
    pub(crate) fn get(&mut self, number: u16) -> Option<&mut BufferGroup> {
        self.groups.get_mut(&number)
    }

    /// Makes a group with this number. Requests that wait for an earlier group with it keep
    /// waiting.
    fn make(&mut self, number: u16, place: Place) -> &mut BufferGroup {
        self.last += 1;
        let (user, waiting) =
            self.groups.remove(&number).map(|old| (old.user, old.waiting)).unwrap_or_default();
        let group = BufferGroup { id: self.last, place, back: VecDeque::new(), user, waiting };
        self.groups.entry(number).or_insert(group)
    }

    /// IORING_REGISTER_PBUF_RING, for a ring whose number of entries is a power of two.
    ///
    /// # Errors
    /// `-EEXIST`: a group with this number has buffers. `-EFAULT`, `-EINVAL`: the memory is not a
    /// ring's.
    pub(crate) fn register(
        &mut self,
        number: u16,
        at: u64,
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
        let at = at as usize;
        if at == 0 || at.is_multiple_of(4096) && !accessible_now(at, 16 * entries as usize, true) {
            return Err(-libc::EFAULT);
        }
        if !at.is_multiple_of(4096) {
            return Err(-libc::EINVAL);
        }
        self.make(number, Place::Ring { at, entries, head: 0, tail: 0, in_pieces });
        Ok(())
    }

    /// IORING_UNREGISTER_PBUF_RING. Returns the requests that wait for the group.
    ///
    /// # Errors
    /// `-ENOENT`: there is no such group. `-EINVAL`: it is a list.
    pub(crate) fn unregister(&mut self, number: u16) -> Result<VecDeque<u32>, i32> {
        self.head(number)?;
        Ok(self.groups.remove(&number).map(|group| group.waiting).unwrap_or_default())
    }

    /// The number of buffers that were taken out of a ring so far.
    ///
    /// # Errors
    /// As [`unregister`](Self::unregister).
    pub(crate) fn head(&self, number: u16) -> Result<u16, i32> {
        let group = self.groups.get(&number).ok_or(-libc::ENOENT)?;
        match group.place {
            Place::Ring { head, .. } => Ok(head.wrapping_sub(group.back.len() as u16)),
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
