//! A drop-in `liburing.so.2`, also for io_uring's system calls that programs make through the C
//! library. Programs written for io_uring do their I/O through uringlet.
//!
//! The functions of liburing have a leading underscore in this source. The linker makes the real
//! names and versions, as `build.rs` says. README.md in this crate's folder lists the differences
//! from the original.

#![cfg_attr(loom, allow(dead_code))]

mod abi;
#[cfg(not(loom))]
mod attempts;
mod chains;
mod completions;
mod inbox;
mod shared;
mod sync;

// A loom build contains the modelled protocols only.
#[cfg(not(loom))]
mod buffers;
#[cfg(not(loom))]
mod calls;
#[cfg(not(loom))]
mod enter;
#[cfg(not(loom))]
mod files;
#[cfg(not(loom))]
mod liburing;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod numbers;
#[cfg(not(loom))]
mod prepare;
#[cfg(not(loom))]
mod query;
#[cfg(all(test, not(loom)))]
mod random;
#[cfg(not(loom))]
mod reads;
#[cfg(not(loom))]
mod register;
#[cfg(not(loom))]
mod resize;
#[cfg(not(loom))]
mod restrict;
#[cfg(not(loom))]
mod rights;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod rings;
#[cfg(not(loom))]
mod service;
#[cfg(not(loom))]
mod setup;
#[cfg(not(loom))]
mod sigsys;
#[cfg(not(loom))]
mod sites;
#[cfg(not(loom))]
mod sockets;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod syscall;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod timers;
#[cfg(not(loom))]
mod trap;

mod tuning;
#[cfg(not(loom))]
mod user;

#[cfg(not(loom))]
use uringlet::front;

/// When memory is short, this library must not end the program that has loaded it.
#[cfg(not(loom))]
#[global_allocator]
static MEMORY: front::Reserve = front::Reserve::new();

#[cfg(not(loom))]
uringlet::at_load!(front::env::read);
#[cfg(not(loom))]
uringlet::note!();
