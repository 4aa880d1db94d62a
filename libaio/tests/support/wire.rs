//! The common part of test servers for file systems: a mount that only the test sees, and the
//! kernel's requests with their answers (fuse(4)).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::PathBuf;

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const UNLINK: u32 = 10;
pub const RENAME: u32 = 12;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const FSYNCDIR: u32 = 30;
pub const CREATE: u32 = 35;
pub const INTERRUPT: u32 = 36;
pub const POLL: u32 = 40;
pub const BATCH_FORGET: u32 = 42;
pub const RENAME2: u32 = 45;

/// The protocol version of these servers; the kernel accepts versions that are older than its own.
const VERSION: (u32, u32) = (7, 31);
/// Flags of INIT: several reads at a time, several direct transfers, writes larger than a page.
const INIT_FLAGS: u32 = 1 | 1 << 15 | 1 << 5;
/// The number of asynchronous requests that the kernel sends at a time.
const BACKGROUND: u16 = 512;

/// Flag in the answer to OPEN (FOPEN_NOFLUSH): the kernel sends no FLUSH when a descriptor is
/// closed. The last close still sends RELEASE, but does not wait for the answer.
pub const NO_FLUSH: u32 = 1 << 5;

pub const ROOT: u64 = 1;

/// A file system request that the kernel sends to the test's server (fuse(4)).
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    const HEAD: usize = 40;
    /// The length in bytes of `struct fuse_write_in`, which precedes the data.
    pub const TRANSFER: usize = 40;
    /// The minimum length in bytes of a buffer for a request. The kernel refuses a shorter one.
    const ROOM_MIN: usize = 8192;

    /// Takes the next request. A write has at most `write_max` bytes of data. `None`: no request
    /// can be taken now.
    pub fn read(mut channel: &File, write_max: u32) -> Result<Option<Self>, String> {
        let room = Self::HEAD + Self::TRANSFER + write_max as usize;
        let mut bytes = vec![0; room.max(Self::ROOM_MIN)];
        let length = match channel.read(&mut bytes) {
            Ok(length) => length,
            Err(error) => match error.raw_os_error() {
                // Interrupted, or the requesting process has ended.
                Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => return Ok(None),
                _ => return Err(format!("/dev/fuse: {error}")),
            },
        };
        bytes.truncate(length);
        Ok(Some(Self { bytes }))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes[at..][..4].try_into().expect("four bytes"))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..][..8].try_into().expect("eight bytes"))
    }

    pub fn opcode(&self) -> u32 {
        self.u32_at(4)
    }

    pub fn node(&self) -> u64 {
        self.u64_at(16)
    }

    /// A field of four bytes in the request's arguments, at this offset in bytes.
    pub fn int(&self, at: usize) -> u32 {
        self.u32_at(Self::HEAD + at)
    }

    pub fn long(&self, at: usize) -> u64 {
        self.u64_at(Self::HEAD + at)
    }

    /// The arguments of the message from this offset on.
    pub fn rest(&self, at: usize) -> &[u8] {
        &self.bytes[Self::HEAD + at..]
    }

    /// Offset and length of a transfer.
    pub fn transfer(&self) -> (u64, usize) {
        (self.long(8), self.int(16) as usize)
    }

    pub fn is_of(&self, kinds: u64) -> bool {
        kinds & 1 << (self.opcode() % u64::BITS) != 0
    }

    /// Answers the request. If the answer cannot be sent, the process that waited has ended.
    pub fn answer(&self, mut channel: &File, errno: i32, body: &[u8]) {
        let length = (16 + body.len()) as u32;
        let head = Body::default().int(&[length, -errno as u32]).long(&[self.u64_at(8)]);
        let message = [&head.0, body].concat();
        let _ = channel.write(&message);
    }
}

/// The body of an answer: fields of four and of eight bytes.
#[derive(Debug, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn long(mut self, values: &[u64]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    pub fn int(mut self, values: &[u32]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    /// The answer to INIT.
    pub fn init(self, write_max: u32) -> Self {
        let background = u32::from(BACKGROUND) << 16 | u32::from(BACKGROUND);
        self.int(&[VERSION.0, VERSION.1, write_max, INIT_FLAGS])
            .int(&[background, write_max, 1, 0])
            .int(&[0; 8])
    }

    /// `struct fuse_attr`.
    pub fn attributes(self, node: u64, size: u64, mode: u32) -> Self {
        // Number, size, blocks; three timestamps in seconds, and then their nanoseconds; mode,
        // links, owner, device, block size, flags.
        self.long(&[node, size, size / 512, 0, 0, 0])
            .int(&[0, 0, 0])
            .int(&[mode, 1, 0, 0, 0, 4096, 0])
    }
}

/// Mounts a file system that only this thread sees, and processes that go through `/proc`. Returns
/// a channel for its server, and its root.
pub fn mount() -> Result<(File, PathBuf), String> {
    let failed = |what: &str, error: Error| format!("{what}: {error}");
    let channel = File::options().read(true).write(true).open("/dev/fuse");
    let channel = channel.map_err(|error| failed("/dev/fuse", error))?;
    let done = |what: &str, ret: i32| match ret {
        0 => Ok(()),
        _ => Err(failed(what, Error::last_os_error())),
    };
    // SAFETY: unshare(2) takes a number and accesses no memory.
    done("mounts of its own", unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let none = std::ptr::null();
    // SAFETY: a path that ends in NUL; the other strings may be null.
    done("private mounts", unsafe {
        libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast())
    })?;
    let folder = std::env::temp_dir().canonicalize().map_err(|error| failed("TMPDIR", error))?;
    let folder = folder.to_str().ok_or("the path of TMPDIR is no text")?;
    let text = |text: String| std::ffi::CString::new(text).expect("no NUL in it");
    let at = text(folder.to_owned());
    let fd = channel.as_raw_fd();
    let options = text(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"));
    let (source, kind) = (c"uringlet-test", c"fuse");
    let flags = libc::MS_NODEV | libc::MS_NOSUID;
    // SAFETY: four strings that end in NUL.
    done("mount", unsafe {
        let options = options.as_ptr().cast();
        libc::mount(source.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options)
    })?;
    // SAFETY: gettid(2) takes no arguments and cannot fail.
    let thread = unsafe { libc::gettid() };
    let process = std::process::id();
    Ok((channel, format!("/proc/{process}/task/{thread}/root{folder}").into()))
}

/// Waits for a readable descriptor, this number of milliseconds at most (-1: without end). Says
/// which descriptors are readable.
pub fn readable<const N: usize>(fds: [RawFd; N], milliseconds: i32) -> [bool; N] {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: `polled` has N entries.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, milliseconds) };
    polled.map(|one| one.revents != 0)
}
