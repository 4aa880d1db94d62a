//! Registered files and buffers.

use std::sync::Arc;

use uringlet::front::OwnDescriptor;

use crate::{service, sys};

/// A registered resource, with the tag that is posted when nobody uses the resource any more (0:
/// none). Its users are its slot and, from start to completion, each request that needs it.
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

impl Drop for File {
    fn drop(&mut self) {
        if self.descriptor.is_only() {
            let number = self.descriptor.number();
            service::before_close(&(number..=number));
        }
    }
}

impl Registered<File> {
    pub(crate) fn number(&self) -> i32 {
        self.value.descriptor.number()
    }
}

/// The slots of a table.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<Arc<Registered<T>>>>,
    /// The index at which the search for a free slot begins, and the range of the search.
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

    /// Grows to at least `count` slots. False: no memory.
    pub(crate) fn grow(&mut self, count: usize) -> bool {
        let more = count.saturating_sub(self.slots.len());
        if self.slots.try_reserve_exact(more).is_err() {
            return false;
        }
        self.slots.resize_with(self.slots.len() + more, || None);
        self.range = (0, self.slots.len());
        true
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

    /// Fills a slot, or empties it. Returns the old content, which the caller releases. The next
    /// search for a free slot begins after a filled slot, or at an emptied one.
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

    /// A free slot of the range. The search begins at `hint`.
    pub(crate) fn free(&self) -> Option<usize> {
        let (from, to) = (self.range.0, self.range.1.min(self.len()));
        let hint = self.hint.clamp(from, to);
        (hint..to).chain(from..hint).find(|&at| !self.is_used(at))
    }

    /// All contents, which the caller releases.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Option<Arc<Registered<T>>>> {
        self.slots.into_iter()
    }
}

/// A registered buffer: a range of addresses. Its pages are not pinned. A transfer uses the memory
/// that is mapped there when the transfer is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Buffer {
    pub(crate) fn has(&self, at: u64, len: u64) -> bool {
        at.checked_add(len)
            .is_some_and(|end| at >= self.at && end <= self.at.saturating_add(self.len))
    }
}

/// Moves a new descriptor to a number from 40 on: programs choose lower numbers by hand. The caller
/// owns the descriptor.
pub(crate) fn move_aside(fd: i32) -> i32 {
    if fd < 0 {
        return fd;
    }
    let moved = OwnDescriptor::duplicate(fd);
    sys::close(fd);
    moved.map_or(-libc::EMFILE, OwnDescriptor::into_number)
}
