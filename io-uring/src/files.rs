//! Registered files and buffers.

use std::sync::Arc;

use uringlet::front::OwnDescriptor;

/// A registered file, with the tag that is told when nobody needs it any more.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) descriptor: OwnDescriptor,
}

/// Slots with tags.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<Arc<T>>>,
    tags: Vec<u64>,
    /// Where a slot is looked for next, and the range that is looked at.
    pub(crate) hint: usize,
    pub(crate) range: (usize, usize),
}

impl<T> Slots<T> {
    /// `None`: no memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let (mut slots, mut tags) = (Vec::new(), Vec::new());
        slots.try_reserve_exact(count).ok()?;
        tags.try_reserve_exact(count).ok()?;
        slots.resize_with(count, || None);
        tags.resize(count, 0);
        Some(Self { slots, tags, hint: 0, range: (0, count) })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Arc<T>> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn is_used(&self, index: usize) -> bool {
        self.slots[index].is_some()
    }

    /// What was in a slot, with its tag.
    pub(crate) fn put(
        &mut self,
        index: usize,
        value: Option<Arc<T>>,
        tag: u64,
    ) -> (Option<Arc<T>>, u64) {
        let old = std::mem::replace(&mut self.slots[index], value);
        (old, std::mem::replace(&mut self.tags[index], tag))
    }

    /// A free slot of the range, searched for from where the last one was found.
    pub(crate) fn free(&mut self) -> Option<usize> {
        let (from, to) = (self.range.0, self.range.1.min(self.len()));
        let hint = self.hint.clamp(from, to);
        let found = (hint..to).chain(from..hint).find(|&at| !self.is_used(at))?;
        self.hint = found + 1;
        Some(found)
    }

    /// Everything that is there, with its tag.
    pub(crate) fn drain(&mut self) -> Vec<(Option<Arc<T>>, u64)> {
        self.slots.drain(..).zip(self.tags.drain(..)).collect()
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
