//! Registered files and buffers.

use std::sync::Arc;

use uringlet::front::OwnDescriptor;

use crate::sys;

/// What was registered, with the tag that is told when nobody uses it any more (0: none). Its slot
/// uses it, and each request from its start to its completion.
#[derive(Debug)]
pub(crate) struct Registered<T> {
    pub(crate) value: T,
    pub(crate) tag: u64,
}

/// A registered file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) descriptor: OwnDescriptor,
}

impl Registered<File> {
    pub(crate) fn number(&self) -> i32 {
        self.value.descriptor.number()
    }
}

/// Slots.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<Arc<Registered<T>>>>,
    /// Where a slot is looked for next, and the range that is looked at.
    pub(crate) hint: usize,
    pub(crate) range: (usize, usize),
}

impl<T> Slots<T> {
    /// `None`: no memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).ok()?;
        slots.resize_with(count, || None);
        Some(Self { slots, hint: 0, range: (0, count) })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Arc<Registered<T>>> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn is_used(&self, index: usize) -> bool {
        self.slots[index].is_some()
    }

    /// Fills a slot, or empties it. Gives what was there, which is to be released. A free slot is
    /// looked for from there on.
    #[must_use]
    pub(crate) fn put(
        &mut self,
        index: usize,
        value: Option<T>,
        tag: u64,
    ) -> Option<Arc<Registered<T>>> {
        let new = value.map(|value| Arc::new(Registered { value, tag }));
        let is_filled = new.is_some();
        let old = std::mem::replace(&mut self.slots[index], new);
        if is_filled || old.is_some() {
            self.hint = index + usize::from(is_filled);
        }
        old
    }

    /// A free slot of the range, searched for from where the last one was found.
    pub(crate) fn free(&self) -> Option<usize> {
        let (from, to) = (self.range.0, self.range.1.min(self.len()));
        let hint = self.hint.clamp(from, to);
        (hint..to).chain(from..hint).find(|&at| !self.is_used(at))
    }

    /// Everything that is there, which is to be released.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Option<Arc<Registered<T>>>> {
        self.slots.into_iter()
    }
}

/// A registered buffer. Not pinned: what the kernel finds there counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Buffer {
    pub(crate) fn has(&self, at: u64, len: u32) -> bool {
        at.checked_add(u64::from(len))
            .is_some_and(|end| at >= self.at && end <= self.at.saturating_add(self.len))
    }
}

/// A descriptor that was just opened gets a number out of the program's way. What has asked for it
/// takes it over.
pub(crate) fn move_aside(fd: i32) -> i32 {
    if fd < 0 {
        return fd;
    }
    let moved = OwnDescriptor::duplicate(fd);
    sys::close(fd);
    moved.map_or(-libc::EMFILE, OwnDescriptor::into_number)
}
