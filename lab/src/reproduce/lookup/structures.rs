//! Three structures that find the context of a handle: the kernel's list, the radix tree that was
//! to replace it, and uringlet's table.
//!
//! The list and the radix tree are as the kernel's: a reader takes no lock, and writes to no shared
//! cache line. The kernel's readers are protected by RCU, which costs next to nothing. In uringlet,
//! a hazard pointer of the thread ([`Look`]) says which handle the thread uses. Lookups in the list
//! and in the tree set it, too, so that the three differ in their search alone. The structures only
//! grow here, so nothing is freed while a reader uses it.

#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use uringlet::table::{Look, PAGE, Pages, Table};

/// A structure that finds the value of a handle.
pub trait Lookup<T: Send + Sync>: Sync {
    /// The memory of the handles.
    fn memory(&mut self) -> &mut Memory<T>;

    /// Stores `value` under a handle.
    ///
    /// # Safety
    /// The handle belongs to a page of this structure's memory, and no other value has it.
    unsafe fn insert(&mut self, handle: usize, value: T);

    /// Calls `f` with the value of a handle. `None`: there is none.
    fn with<R>(&self, handle: usize, f: impl FnOnce(&T) -> R) -> Option<R>;

    /// Stores `value` under a new handle, which it returns.
    ///
    /// # Errors
    /// As [`Table::allocate`].
    fn add(&mut self, value: T) -> Result<usize, i32> {
        let handle = self.memory().page()?;
        // SAFETY: the page is new, so no other value has its address as the handle.
        unsafe { self.insert(handle, value) };
        Ok(handle)
    }
}

/// Handles as in uringlet's libaio: each is the address of one page, where a context has its ring.
pub struct Memory<T: Send + Sync> {
    table: Table<T>,
    pages: Vec<Pages>,
}

impl<T: Send + Sync> Memory<T> {
    /// # Errors
    /// As [`Table::new`].
    fn new() -> Result<Self, i32> {
        Ok(Self { table: Table::new()?, pages: Vec::new() })
    }

    fn page(&mut self) -> Result<usize, i32> {
        let pages = self.table.allocate(PAGE)?;
        let address = pages.address();
        self.pages.push(pages);
        Ok(address)
    }
}

impl<T: Send + Sync> Drop for Memory<T> {
    fn drop(&mut self) {
        for pages in self.pages.drain(..) {
            self.table.remove(pages.address(), |_| {});
            // SAFETY: the pages are of this table, and their value was removed.
            unsafe { self.table.free(pages) };
        }
    }
}

/// The table as front ends use it.
pub struct Indexed<T: Send + Sync>(Memory<T>);

impl<T: Send + Sync> Indexed<T> {
    /// # Errors
    /// As [`Table::new`].
    pub fn new() -> Result<Self, i32> {
        Memory::new().map(Self)
    }
}

impl<T: Send + Sync> Lookup<T> for Indexed<T> {
    fn memory(&mut self) -> &mut Memory<T> {
        &mut self.0
    }

    unsafe fn insert(&mut self, handle: usize, value: T) {
        // SAFETY: the caller's contract.
        unsafe { self.0.table.publish_at(handle, Box::new(value)) };
    }

    #[inline]
    fn with<R>(&self, handle: usize, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.table.get(handle).map(|value| f(&value))
    }
}

/// All contexts in a list, the newest first: each lookup walks to its own.
pub struct List<T: Send + Sync> {
    first: Option<Box<Node<T>>>,
    memory: Memory<T>,
}

struct Node<T> {
    handle: usize,
    next: Option<Box<Node<T>>>,
    value: T,
}

impl<T: Send + Sync> List<T> {
    /// # Errors
    /// As [`Table::new`].
    pub fn new() -> Result<Self, i32> {
        Ok(Self { first: None, memory: Memory::new()? })
    }
}

impl<T: Send + Sync> Lookup<T> for List<T> {
    fn memory(&mut self) -> &mut Memory<T> {
        &mut self.memory
    }

    unsafe fn insert(&mut self, handle: usize, value: T) {
        let next = self.first.take();
        self.first = Some(Box::new(Node { handle, next, value }));
    }

    #[inline]
    fn with<R>(&self, handle: usize, f: impl FnOnce(&T) -> R) -> Option<R> {
        let _look = Look::at(handle);
        let mut nodes = std::iter::successors(self.first.as_deref(), |node| node.next.as_deref());
        nodes.find(|node| node.handle == handle).map(|node| f(&node.value))
    }
}

impl<T: Send + Sync> Drop for List<T> {
    /// The nodes are freed one after the other: freeing recursively would need too much stack for a
    /// long list.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut node) = next {
            next = node.next.take();
        }
    }
}

/// Bits of the key that a level of the tree uses.
const BITS: u32 = 6;

/// A tree over the number of the handle's page. Each branch has 64 children, and the tree is as
/// high as the largest key needs.
pub struct Radix<T: Send + Sync> {
    /// A `Branch` if there is a level, else a `Leaf`.
    root: AtomicPtr<()>,
    levels: u32,
    memory: Memory<T>,
    value: std::marker::PhantomData<T>,
}

struct Branch([AtomicPtr<()>; 1 << BITS]);

struct Leaf<T> {
    handle: usize,
    value: T,
}

impl Branch {
    fn empty() -> *mut () {
        Box::into_raw(Box::new(Self([const { AtomicPtr::new(null_mut()) }; 1 << BITS]))).cast()
    }
}

fn digit(key: usize, level: u32) -> usize {
    key >> (BITS * level) & ((1 << BITS) - 1)
}

impl<T: Send + Sync> Radix<T> {
    /// # Errors
    /// As [`Table::new`].
    pub fn new() -> Result<Self, i32> {
        let (root, value) = (AtomicPtr::new(null_mut()), std::marker::PhantomData);
        Ok(Self { root, levels: 0, memory: Memory::new()?, value })
    }

    fn reaches(&self, key: usize) -> bool {
        key.checked_shr(BITS * self.levels).unwrap_or(0) == 0
    }
}

impl<T: Send + Sync> Lookup<T> for Radix<T> {
    fn memory(&mut self) -> &mut Memory<T> {
        &mut self.memory
    }

    unsafe fn insert(&mut self, handle: usize, value: T) {
        let key = handle / PAGE;
        while !self.reaches(key) {
            let below = *self.root.get_mut();
            if !below.is_null() {
                let above = Branch::empty();
                // SAFETY: just made, and nobody else's.
                *unsafe { &mut *above.cast::<Branch>() }.0[0].get_mut() = below;
                *self.root.get_mut() = above;
            }
            self.levels += 1;
        }
        let mut at = self.root.get_mut();
        for level in (0..self.levels).rev() {
            if at.is_null() {
                *at = Branch::empty();
            }
            // SAFETY: above a leaf there are branches, and `&mut self` has them alone.
            at = unsafe { &mut *at.cast::<Branch>() }.0[digit(key, level)].get_mut();
        }
        assert!(at.is_null(), "no other value has this handle");
        *at = Box::into_raw(Box::new(Leaf { handle, value })).cast();
    }

    #[inline]
    fn with<R>(&self, handle: usize, f: impl FnOnce(&T) -> R) -> Option<R> {
        let _look = Look::at(handle);
        let key = handle / PAGE;
        if !self.reaches(key) {
            return None;
        }
        let mut at = self.root.load(Ordering::Relaxed);
        for level in (0..self.levels).rev() {
            // SAFETY: null, or a branch, as in `insert`; `drop` frees it.
            let branch = unsafe { at.cast::<Branch>().as_ref() }?;
            at = branch.0[digit(key, level)].load(Ordering::Relaxed);
        }
        // SAFETY: below the last level: null, or a leaf of `insert`'s.
        let leaf = unsafe { at.cast::<Leaf<T>>().as_ref() }?;
        (leaf.handle == handle).then(|| f(&leaf.value))
    }
}

impl<T: Send + Sync> Drop for Radix<T> {
    fn drop(&mut self) {
        /// # Safety
        /// `at` is null, or from `insert`, this many levels above the leaves, and not freed.
        unsafe fn free<T>(at: *mut (), levels: u32) {
            if at.is_null() {
            } else if levels == 0 {
                // SAFETY: the caller's contract: a leaf.
                drop(unsafe { Box::from_raw(at.cast::<Leaf<T>>()) });
            } else {
                // SAFETY: the caller's contract: a branch.
                let branch = unsafe { Box::from_raw(at.cast::<Branch>()) };
                for below in branch.0 {
                    // SAFETY: a child of this branch, one level below it, which is freed here only.
                    unsafe { free::<T>(below.into_inner(), levels - 1) };
                }
            }
        }
        // SAFETY: the tree's own root, `levels` above the leaves; freed once.
        unsafe { free::<T>(*self.root.get_mut(), self.levels) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn finds_its_own_and_nothing_else(mut lookup: impl Lookup<Arc<usize>>) {
        let value = Arc::new(0);
        assert_eq!(lookup.with(PAGE, |_| ()), None);
        let handles: Vec<usize> = (0..300).map(|n| lookup.add(Arc::new(n)).unwrap()).collect();
        let handle = lookup.add(Arc::clone(&value)).unwrap();
        for (n, &handle) in handles.iter().enumerate() {
            assert_eq!(lookup.with(handle, |value| **value), Some(n));
            for forged in [handle + 8, handle ^ 1 << 46, handle - 400 * PAGE, usize::MAX, 0] {
                assert_eq!(lookup.with(forged, |value| **value), None, "{forged:#x}");
            }
        }
        assert!(lookup.with(handle, |found| Arc::ptr_eq(found, &value)).unwrap());
        drop(lookup);
        assert_eq!(Arc::strong_count(&value), 1, "everything is freed");
    }

    #[test]
    fn every_structure_finds_its_own_and_nothing_else() {
        finds_its_own_and_nothing_else(List::new().unwrap());
        finds_its_own_and_nothing_else(Radix::new().unwrap());
        finds_its_own_and_nothing_else(Indexed::new().unwrap());
    }
}
