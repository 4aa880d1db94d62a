//! A buffer of one block, aligned as direct I/O needs it, for every runtime.
//!
//! Each runtime has a trait for buffers. The trait demands that a buffer's memory keeps its address
//! when the value that owns the memory is moved.

use std::mem::MaybeUninit;

use uringlet::fs::buf;

use crate::plan::BLOCK;

#[repr(align(4096))]
struct Page([u8; BLOCK]);

/// 4 KiB at a multiple of 4 KiB.
pub struct Block(Box<Page>);

impl Block {
    pub fn new() -> Self {
        Self(Box::new(Page([0; BLOCK])))
    }

    pub fn bytes(&mut self) -> &mut [u8; BLOCK] {
        &mut self.0.0
    }
}

impl buf::IoBuf for Block {
    fn as_init(&self) -> &[u8] {
        &self.0.0
    }
}

impl buf::SetLen for Block {
    unsafe fn set_len(&mut self, length: usize) {
        assert!(length <= BLOCK);
    }
}

impl buf::IoBufMut for Block {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        buf::IoBufMut::as_uninit(&mut self.0.0[..])
    }
}

// SAFETY: the page is on the heap and stays there; it is initialised, and has `BLOCK` bytes.
unsafe impl monoio::buf::IoBufMut for Block {
    fn write_ptr(&mut self) -> *mut u8 {
        self.0.0.as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        BLOCK
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

// SAFETY: the page is on the heap and stays there; it is initialised, and has `BLOCK` bytes.
unsafe impl tokio_uring::buf::IoBuf for Block {
    fn stable_ptr(&self) -> *const u8 {
        self.0.0.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        BLOCK
    }

    fn bytes_total(&self) -> usize {
        BLOCK
    }
}

// SAFETY: the page is on the heap and stays there; it is initialised, and has `BLOCK` bytes.
unsafe impl tokio_uring::buf::IoBufMut for Block {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.0.as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _: usize) {}
}
