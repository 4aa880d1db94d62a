//! Buffers that a program provides in groups: in a list, or in a ring of its memory.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{Ordering, fence};

use uringlet::front::memory::accessible_now;

use crate::user;

/// A list has no more, and neither has a ring.
const MOST: usize = u16::MAX as usize;
/// Where a ring has its tail, in bytes. It has buffers of 16 bytes each from its beginning on.
const TAIL: usize = 14;

/// A buffer that a program has provided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provided {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) id: u16,
}

/// Where the buffers of a group are.
#[derive(Debug)]
enum Place {
    List(VecDeque<Provided>),
    /// The program fills it, and its memory is asked about each time. What lies before `tail` is
    /// known to be there.
    Ring {
        at: usize,
        entries: u16,
        head: u16,
        tail: u16,
    },
}

/// A group of buffers.
#[derive(Debug)]
pub(crate) struct BufferGroup {
    /// No other group has this, not even one with the same number later.
    pub(crate) id: u64,
    place: Place,
    /// What was taken and given back, in the order in which it is taken again.
    back: VecDeque<Provided>,
    /// The request, by its key, which is tried with a buffer that it may give back. Others wait:
    /// they would find one buffer less.
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
            Place::Ring { at, entries, head, tail } => {
                if head == tail {
                    *tail = user::read(*at + TAIL).ok()?;
                    // What the program has written before the tail is there.
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

    /// Is there no buffer, and will none be given back?
    pub(crate) fn is_used_up(&mut self) -> bool {
        let buffer = self.take();
        buffer.inspect(|&buffer| self.give_back(buffer));
        buffer.is_none() && self.user.is_none()
    }

    /// A buffer was not used, and is the next one.
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

    /// Makes a group of this number. Requests that wait for the one that was there stay.
    fn make(&mut self, number: u16, place: Place) -> &mut BufferGroup {
        self.last += 1;
        let (user, waiting) =
            self.groups.remove(&number).map(|old| (old.user, old.waiting)).unwrap_or_default();
        let group = BufferGroup { id: self.last, place, back: VecDeque::new(), user, waiting };
        self.groups.entry(number).or_insert(group)
    }

    /// IORING_REGISTER_PBUF_RING, of a ring with a power of two of entries.
    ///
    /// # Errors
    /// `-EEXIST`: there is a group that has buffers. `-EFAULT`, `-EINVAL`: not a ring's memory.
    pub(crate) fn register(&mut self, number: u16, at: u64, entries: u16) -> Result<(), i32> {
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
        self.make(number, Place::Ring { at, entries, head: 0, tail: 0 });
        Ok(())
    }

    /// IORING_UNREGISTER_PBUF_RING: the requests that wait for the group.
    ///
    /// # Errors
    /// `-ENOENT`, or `-EINVAL` if it is a list.
    pub(crate) fn unregister(&mut self, number: u16) -> Result<VecDeque<u32>, i32> {
        self.head(number)?;
        Ok(self.groups.remove(&number).map(|group| group.waiting).unwrap_or_default())
    }

    /// How many buffers were taken out of a ring so far.
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

    /// Adds buffers of a length to a list, which lie one behind the other: 0, or a negative errno.
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

    /// Takes buffers out of a list: how many, or a negative errno.
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
