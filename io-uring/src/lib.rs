//! A drop-in `liburing.so.2`, and io_uring's system calls as far as programs make them through the
//! C library: programs written for io_uring do their I/O through uringlet.
//!
//! The functions carry a leading underscore here; `build.rs` has the linker make the real names
//! and versions. README.md in this crate's folder lists the differences to the original.

mod abi;
mod calls;
mod door;
mod enter;
mod files;
mod liburing;
mod memory;
mod prepare;
mod register;
mod restrict;
mod rights;
mod ring;
mod rings;
mod service;
mod setup;
mod sites;
mod sys;
mod syscall;
mod trap;
mod user;

use uringlet::front;

/// In somebody else's process, it must not be this library that ends it for want of memory.
#[global_allocator]
static MEMORY: front::Reserve = front::Reserve::new();

uringlet::at_load!(front::env::read);
uringlet::note!();
