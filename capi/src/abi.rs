//! The structures of `uringlet.h`, and how those that may grow are read and written.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

use uringlet::front;
use uringlet::stats::Snapshot;

const fn number(text: &str) -> u32 {
    let (mut at, mut number) = (0, 0);
    while at < text.len() {
        number = number * 10 + (text.as_bytes()[at] - b'0') as u32;
        at += 1;
    }
    number
}

/// `URINGLET_VERSION`.
pub const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
    | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
    | number(env!("CARGO_PKG_VERSION_PATCH"));

/// `URINGLET_WITH_STATS` of [`Options::flags`].
pub(crate) const STATS: u32 = 1;

/// `struct uringlet_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of the structure in bytes, as the program knows it.
    pub size: usize,
    /// As `Builder::entries`, or 0 for its default.
    pub entries: u32,
    /// As `Builder::workers_max`, or 0 for its default.
    pub workers: u32,
    /// The name of an `EngineKind`, or null for its default.
    pub engine: *const c_char,
    /// `URINGLET_WITH_STATS` or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl Options {
    /// The options for a null pointer.
    pub(crate) const DEFAULT: Self = Self {
        size: size_of::<Self>(),
        entries: 0,
        workers: 0,
        engine: std::ptr::null(),
        flags: 0,
        reserved: 0,
    };

    /// The options of a program, which may know a larger structure than this one.
    ///
    /// # Errors
    /// `-EFAULT` if the memory cannot be read, `-EINVAL` for a size that never existed, `-E2BIG` if
    /// an unknown member is set; and the reason.
    ///
    /// # Safety
    /// If memory at `at` can be read, it does not change during this call.
    pub(crate) unsafe fn read(at: *const Self) -> Result<Self, (i32, String)> {
        /// The maximum size of the structure in bytes, in all later versions, too.
        const SIZE_MAX: usize = 4096;
        const LEAST: usize = size_of::<Options>();
        if at.is_null() {
            return Ok(Self::DEFAULT);
        }
        let address = at as usize;
        let unreadable = |end: usize| {
            (-libc::EFAULT, format!("options are at {address:#x}, expected {end} bytes to read"))
        };
        if !front::readable(address) {
            return Err(unreadable(LEAST));
        }
        // SAFETY: readable.
        let size = unsafe { at.cast::<usize>().read_unaligned() };
        if size < LEAST {
            return Err((-libc::EINVAL, format!("size is {size}, expected {LEAST} or more")));
        }
        if size > SIZE_MAX {
            return Err((-libc::E2BIG, format!("size is {size}, expected {SIZE_MAX} at most")));
        }
        // The structure lies in at most two pages. If its first and its last bytes can be read, all
        // can.
        if address.checked_add(size).is_none() || !front::readable(address + size - 8) {
            return Err(unreadable(size));
        }
        // SAFETY: `size` bytes can be read.
        let (known, rest) = unsafe {
            let bytes = std::slice::from_raw_parts(at.cast::<u8>(), size);
            (at.read_unaligned(), &bytes[LEAST..])
        };
        if let Some(offset) = rest.iter().position(|&byte| byte != 0) {
            let (offset, value) = (LEAST + offset, rest[offset]);
            let text = format!("byte {offset} of the options is {value}, expected 0");
            return Err((-libc::E2BIG, text));
        }
        Ok(known)
    }
}

/// `struct uringlet_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The descriptor to read from.
    pub fd: i32,
    /// Bytes read, or a negative errno.
    pub res: i32,
    /// The offset in the file, in bytes.
    pub off: u64,
    /// The buffer.
    pub buf: *mut c_void,
    /// The maximum number of bytes.
    pub len: usize,
}

/// `struct uringlet_handler`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Handler {
    /// The function is called with the address of this structure, and the result. It may end its
    /// thread.
    pub done: Option<unsafe extern "C-unwind" fn(*mut Handler, i32)>,
}

/// `struct uringlet_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    /// The size of the structure in bytes.
    pub size: usize,
    pub submitted: u64,
    pub reads: u64,
    pub writes: u64,
    pub fsyncs: u64,
    pub polls: u64,
    pub others: u64,
    pub canceled: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub by_program: u64,
    pub by_threads: u64,
    pub by_kernel: u64,
}

impl From<Snapshot> for Stats {
    fn from(now: Snapshot) -> Self {
        Self {
            size: size_of::<Self>(),
            submitted: now.submitted,
            reads: now.reads,
            writes: now.writes,
            fsyncs: now.fsyncs,
            polls: now.polls,
            others: now.others,
            canceled: now.canceled,
            errors: now.errors,
            bytes_read: now.bytes_read,
            bytes_written: now.bytes_written,
            by_program: now.by_waiter,
            by_threads: now.by_worker + now.by_pool + now.by_poller,
            by_kernel: now.by_kernel,
        }
    }
}

impl Stats {
    /// Writes as many members as the program's structure has room for. `size` gets the number of
    /// bytes written.
    ///
    /// # Errors
    /// `-EFAULT`, or `-EINVAL` for a size that has no room for the size member.
    ///
    /// # Safety
    /// If `out` can be written to, it is a structure whose member `size` was set.
    pub(crate) unsafe fn write(mut self, out: *mut Self) -> Result<(), i32> {
        if !front::writable(out as usize) {
            return Err(-libc::EFAULT);
        }
        // SAFETY: it can be written to, so its size was set, by the caller's contract.
        let size = unsafe { out.cast::<usize>().read_unaligned() };
        if size < size_of::<usize>() {
            return Err(-libc::EINVAL);
        }
        // The size is rounded down to whole members, of eight bytes each.
        self.size = size.min(size_of::<Self>()) & !7;
        // SAFETY: not more bytes than the caller's structure has, nor than `Self` has.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const self).cast::<u8>(),
                out.cast::<u8>(),
                self.size,
            );
        }
        Ok(())
    }
}
