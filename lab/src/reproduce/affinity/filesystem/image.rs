//! An image that the kernel can mount: one file of FUSE (fuse(4)), whose reads, writes and fsyncs a context executes on a
//! part of another file.
//!
//! One thread takes requests from the kernel and submits them. They are answered where they complete: by the
//! context's handler, on the CPU that its placement says.

#![allow(unsafe_code)]

use rustix::mount::UnmountFlags;
use serde::Serialize;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use uringlet::stats::Snapshot;
use uringlet::{Builder, Context, Cqe, Sqe};

use super::mount::Mount;

/// Requests of the kernel that can be in hand at a time.
const REQUESTS: usize = 64;
/// Bytes that one of them transfers at most, and the same in pages.
const LARGEST: usize = 256 << 10;
const PAGES: u16 = (LARGEST / 4096) as u16;
/// What precedes the data of a write.
const HEAD: usize = size_of::<Head>() + size_of::<Transfer>();

/// The version of the protocol spoken here; the kernel goes down to it.
const VERSION: (u32, u32) = (7, 31);
/// Opcodes.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Flags of INIT: several reads, and several direct transfers, at a time; writes larger than a page; PAGES counts.
const INIT_FLAGS: u32 = 1 | 1 << 15 | 1 << 5 | 1 << 22;
/// Flags of OPEN: no page cache here (the file system above has one), no flush on close, several writers at a time.
const OPEN_FLAGS: u32 = 1 | 1 << 5 | 1 << 6;

/// `struct fuse_in_header`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    user: u32,
    group: u32,
    process: u32,
    extensions: u32,
}

/// `struct fuse_read_in` and `struct fuse_write_in`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Transfer {
    handle: u64,
    offset: u64,
    size: u32,
    transfer_flags: u32,
    lock_owner: u64,
    flags: u32,
    padding: u32,
}

/// `struct fuse_out_header`.
#[repr(C)]
struct Answer {
    len: u32,
    error: i32,
    unique: u64,
}

/// `struct fuse_init_out`.
#[repr(C)]
#[derive(Default)]
struct InitOut {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
    max_background: u16,
    congestion_threshold: u16,
    max_write: u32,
    time_granularity: u32,
    max_pages: u16,
    map_alignment: u16,
    more: [u32; 8],
}

/// `struct fuse_attr_out`.
#[repr(C)]
#[derive(Default)]
struct AttributesOut {
    valid_seconds: u64,
    valid_nanoseconds: u32,
    dummy: u32,
    node: u64,
    size: u64,
    blocks: u64,
    times: [u64; 3],
    nanoseconds: [u32; 3],
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    device: u32,
    block_size: u32,
    flags: u32,
}

/// `struct fuse_open_out`.
#[repr(C)]
#[derive(Default)]
struct OpenOut {
    handle: u64,
    flags: u32,
    padding: u32,
}

/// One request in hand: as the kernel gave it, with its data at the beginning of a page, as direct transfers want it.
#[repr(C, align(4096))]
struct Slot {
    unused: [u8; 4096 - HEAD],
    head: Head,
    transfer: Transfer,
    data: [u8; LARGEST],
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub offset: u64,
    pub length: u64,
}

/// What the thread and the handler share.
struct Shared {
    /// `/dev/fuse`, opened.
    channel: File,
    file: File,
    part: Part,
    slots: Box<[UnsafeCell<Slot>]>,
}

// SAFETY: a slot belongs to the thread while it is free, to its request while it is in flight, and then to the handler,
// after which its completion gives it back to the thread.
unsafe impl Sync for Shared {}

/// An image at work.
pub struct Image {
    /// None once it has ended.
    work: Option<(Mount, JoinHandle<Result<Served, String>>)>,
    pub path: PathBuf,
}

/// What a context has done for an image.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    pub reads: u64,
    pub writes: u64,
    pub fsyncs: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Handed over in the cell of the thread that had taken the request from the kernel, or in another.
    pub queue_local: u64,
    pub queue_remote: u64,
    /// Completed, and answered, in the cell of the disk's interrupt, or in another.
    pub completion_local: u64,
    pub completion_remote: u64,
    /// What has become of the placement, in words.
    pub placement: String,
}

impl Image {
    /// Mounts a part of `file` as a file over the empty file `at`.
    ///
    /// # Errors
    /// In words.
    pub fn mount(at: &Path, file: &File, part: Part, builder: &Builder) -> Result<Self, String> {
        let clone = |error: Error| format!("no more descriptors: {error}");
        let mut open = File::options();
        let open = open.read(true).write(true).custom_flags(libc::O_CLOEXEC);
        let channel = open.open("/dev/fuse").map_err(|error| format!("/dev/fuse: {error}"))?;
        // SAFETY: integers and arrays of such, for which zeroes are values.
        let slots = unsafe { Box::<[UnsafeCell<Slot>]>::new_zeroed_slice(REQUESTS).assume_init() };
        let file = file.try_clone().map_err(clone)?;
        let shared = Arc::new(Shared { channel, file, part, slots });
        let handler = Arc::clone(&shared);
        let builder = builder.clone().entries(REQUESTS as u32).stats(true).cell_stats(true);
        let context = builder.handler(move |cqe| handler.completed(cqe)).build();
        let context = context.map_err(|error| format!("no context: {error}"))?;
        let fd = shared.channel.as_raw_fd();
        let options = format!("fd={fd},rootmode=100600,user_id=0,group_id=0");
        // Ended by force: nobody is left then who would have to be answered.
        let mount = Mount::new("uringlet", at, "fuse", &options, UnmountFlags::FORCE)?;
        let thread = std::thread::spawn(move || serve(&shared, context));
        Ok(Self { work: Some((mount, thread)), path: at.into() })
    }

    /// Unmounts it, and waits for its last requests.
    ///
    /// # Errors
    /// The kernel could not be asked for requests, or the context failed.
    pub fn end(mut self) -> Result<Served, String> {
        self.end_work().unwrap_or_else(|| Err("it has ended".into()))
    }

    fn end_work(&mut self) -> Option<Result<Served, String>> {
        let (mount, thread) = self.work.take()?;
        drop(mount);
        let panicked = |_| Err("the thread that serves an image has panicked".into());
        Some(thread.join().unwrap_or_else(panicked))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.end_work();
    }
}

fn serve(shared: &Shared, mut context: Context) -> Result<Served, String> {
    let mut free: Vec<usize> = (0..REQUESTS).collect();
    let mut ended = Ok(());
    loop {
        while let Some(cqe) = context.reap() {
            free.push(cqe.user_data as usize);
        }
        // At the end the requests in flight have to be waited for, too: their buffers are in the slots.
        if free.len() == REQUESTS && ended.is_err() {
            break;
        }
        let taken = if ended.is_ok() { free.pop() } else { None };
        let Some(slot) = taken else {
            match context.wait(1, None) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(format!("wait failed: {error}"));
                }
                _ => continue,
            }
        };
        match shared.take(slot) {
            Ok(Some(request)) => {
                // SAFETY: the slot's memory outlives the context, which waits for what is in flight when it is dropped.
                unsafe { context.push(request) }.map_err(|full| full.to_string())?;
                context.submit().map_err(|error| format!("submit failed: {error}"))?;
            }
            Ok(None) => free.push(slot),
            Err(error) => {
                free.push(slot);
                ended = Err(error);
            }
        }
    }
    match ended {
        // Unmounted.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED)) => {}
        Err(error) => return Err(format!("/dev/fuse: {error}")),
        Ok(()) => {}
    }
    let stats: Snapshot = context.stats().unwrap_or_default();
    Ok(Served {
        reads: stats.reads,
        writes: stats.writes,
        fsyncs: stats.fsyncs,
        bytes_read: stats.bytes_read,
        bytes_written: stats.bytes_written,
        queue_local: stats.submissions_local,
        queue_remote: stats.submissions_remote,
        completion_local: stats.completions_local,
        completion_remote: stats.completions_remote,
        placement: context.placement().map_or_else(String::new, ToString::to_string),
    })
}

impl Shared {
    /// Takes a request from the kernel into a free slot, and answers it, or gives what a context is to execute.
    fn take(&self, slot: usize) -> Result<Option<Sqe>, Error> {
        let place = self.slots[slot].get();
        // SAFETY: the slot is free; what is read goes into it from `head` on, and fits.
        let len = unsafe {
            let head = (&raw mut (*place).head).cast();
            libc::read(self.channel.as_raw_fd(), head, HEAD + LARGEST)
        };
        if len < 0 {
            let error = Error::last_os_error();
            // Interrupted, or the one who has asked has gone meanwhile.
            return match error.raw_os_error() {
                Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the slot is this thread's, and filled.
        let (Head { opcode, unique, .. }, transfer) = unsafe { ((*place).head, (*place).transfer) };
        match opcode {
            INIT => self.answer(unique, 0, &self.init()),
            GETATTR => self.answer(unique, 0, &self.attributes()),
            OPEN => self.answer(unique, 0, &OpenOut { flags: OPEN_FLAGS, ..OpenOut::default() }),
            RELEASE => self.answer(unique, 0, &()),
            READ | WRITE | FSYNC => return Ok(self.request(opcode, transfer, slot)),
            FORGET | BATCH_FORGET | INTERRUPT => {}
            _ => self.answer(unique, libc::ENOSYS, &()),
        }
        Ok(None)
    }

    /// What is to be executed; what lies outside the part is answered here.
    fn request(&self, opcode: u32, transfer: Transfer, slot: usize) -> Option<Sqe> {
        let (fd, place) = (self.file.as_raw_fd(), self.slots[slot].get());
        let sqe = if opcode == FSYNC {
            Sqe::fsync(fd)
        } else {
            let room = self.part.length.saturating_sub(transfer.offset);
            let len = u64::from(transfer.size).min(room).min(LARGEST as u64) as usize;
            // SAFETY: the slot's data, which belongs to this request until it has completed.
            let data: &mut [u8] = unsafe { &mut (&mut (*place).data)[..len] };
            if len == 0 {
                // SAFETY: as above.
                let unique = unsafe { (*place).head.unique };
                self.answer(unique, if opcode == READ { 0 } else { libc::ENOSPC }, &());
                return None;
            }
            let offset = self.part.offset + transfer.offset;
            match opcode {
                READ => Sqe::read(fd, data, offset),
                _ => Sqe::write(fd, data, offset),
            }
        };
        Some(sqe.user_data(slot as u64))
    }

    /// Answers the request of a slot, with its result.
    fn completed(&self, cqe: Cqe) {
        let place = self.slots[cqe.user_data as usize].get();
        // SAFETY: the request has completed, and the slot is given back to the thread after this.
        let (Head { opcode, unique, .. }, data) = unsafe { ((*place).head, &(*place).data) };
        match cqe.result() {
            Err(error) => self.answer(unique, error.raw_os_error().unwrap_or(libc::EIO), &()),
            Ok(count) if opcode == READ => self.send(unique, 0, &data[..count as usize]),
            // `struct fuse_write_out`.
            Ok(count) if opcode == WRITE => self.answer(unique, 0, &[count, 0]),
            Ok(_) => self.answer(unique, 0, &()),
        }
    }

    fn init(&self) -> InitOut {
        InitOut {
            major: VERSION.0,
            minor: VERSION.1,
            max_readahead: LARGEST as u32,
            flags: INIT_FLAGS,
            max_background: REQUESTS as u16,
            congestion_threshold: REQUESTS as u16,
            max_write: LARGEST as u32,
            time_granularity: 1,
            max_pages: PAGES,
            ..InitOut::default()
        }
    }

    fn attributes(&self) -> AttributesOut {
        AttributesOut {
            valid_seconds: 3600,
            node: 1,
            size: self.part.length,
            blocks: self.part.length / 512,
            mode: libc::S_IFREG | 0o600,
            links: 1,
            block_size: 4096,
            ..AttributesOut::default()
        }
    }

    fn answer<T>(&self, unique: u64, errno: i32, body: &T) {
        // SAFETY: the bodies are structures of the protocol, without padding between their fields.
        let body = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(body).cast::<u8>(), size_of::<T>())
        };
        self.send(unique, errno, body);
    }

    /// What cannot be sent was asked by somebody who has gone, or over a connection that was ended.
    fn send(&self, unique: u64, errno: i32, body: &[u8]) {
        let len = (size_of::<Answer>() + body.len()) as u32;
        let head = Answer { len, error: -errno, unique };
        let parts = [
            libc::iovec {
                iov_base: std::ptr::from_ref(&head).cast_mut().cast(),
                iov_len: size_of::<Answer>(),
            },
            libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
        ];
        // SAFETY: two readable stretches of memory.
        unsafe { libc::writev(self.channel.as_raw_fd(), parts.as_ptr(), 2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_structures_are_those_of_the_protocol() {
        assert_eq!((size_of::<Head>(), size_of::<Transfer>(), size_of::<Answer>()), (40, 40, 16));
        assert_eq!((size_of::<InitOut>(), size_of::<OpenOut>()), (64, 16));
        assert_eq!(size_of::<AttributesOut>(), 16 + 88);
        assert_eq!((offset_of!(InitOut, max_write), offset_of!(InitOut, max_pages)), (20, 28));
        assert_eq!((offset_of!(AttributesOut, size), offset_of!(AttributesOut, mode)), (24, 76));
        assert_eq!(offset_of!(Slot, data), 4096);
        assert_eq!(offset_of!(Slot, data) - offset_of!(Slot, head), HEAD);
    }
}
