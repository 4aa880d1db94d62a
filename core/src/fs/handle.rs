//! The handle of a file: its descriptor, and what was learned about the file.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::driver::Fs;
use super::wakers::Flights;
use crate::router::facts::Facts;
use crate::sync::lock;
use crate::sys;

/// An open file for positional reads and writes, on any executor. A handle, cheap to clone.
///
/// The descriptor is closed after the last handle was dropped and the last request has ended.
/// [`File::close`] closes it in the background, and returns the error.
#[derive(Clone)]
pub struct File(Arc<Inner>);

struct Inner {
    descriptor: ManuallyDrop<OwnedFd>,
    /// A request has closed the descriptor.
    is_closed: AtomicBool,
    fs: OnceLock<Fs>,
    /// How reads are tried: a constant of [`way`].
    way: AtomicU8,
    alignment: Option<Alignment>,
    /// Descriptors of the same file without direct I/O. Only the first one is used. Threads may
    /// open further ones at the same time. These stay open, because closing one would release the
    /// process's record locks (fcntl(2)).
    buffered: Mutex<Vec<OwnedFd>>,
    /// Operations of this file that are in flight.
    flights: Arc<Flights>,
}

/// How the first poll tries a read, which must not sleep.
mod way {
    /// Reads have `RWF_NOWAIT`, until the file refuses it.
    pub(super) const NOWAIT: u8 = 0;
    /// Reads are made by pread(2): the file system keeps its files in memory.
    pub(super) const PLAIN: u8 = 1;
    /// Reads are never tried.
    pub(super) const NEVER: u8 = 2;
}

/// The alignment of direct reads and writes of a file, in bytes (statx(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// The alignment of buffer addresses.
    pub memory: usize,
    /// The alignment of offsets and lengths.
    pub offset: usize,
}

/// This kernel or a sandbox refuses preadv2(2).
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

impl File {
    /// Takes over an open file. If direct I/O is set later, it is not noticed, and reads sleep on
    /// the polling thread.
    pub fn from_std(file: std::fs::File) -> Self {
        let is_direct = sys::status_flags(file.as_raw_fd()) & libc::O_DIRECT as isize != 0;
        Self::new(file.into(), OnceLock::new(), is_direct)
    }

    /// Returns the file.
    ///
    /// # Errors
    /// Returns this handle if there are other handles, or if requests of the file have not ended.
    pub fn into_std(self) -> Result<std::fs::File, Self> {
        let mut inner = Arc::try_unwrap(self.0).map_err(Self)?;
        *inner.is_closed.get_mut() = true;
        // SAFETY: taken once: `is_closed` is set, so the drop of `inner` does not use it again.
        Ok(unsafe { ManuallyDrop::take(&mut inner.descriptor) }.into())
    }

    /// Makes a handle for an open descriptor. Its requests go to `fs`, once that is set.
    pub(super) fn new(descriptor: OwnedFd, fs: OnceLock<Fs>, is_direct: bool) -> Self {
        let alignment = if is_direct { alignment(descriptor.as_raw_fd()) } else { None };
        Self(Arc::new(Inner {
            descriptor: ManuallyDrop::new(descriptor),
            is_closed: AtomicBool::new(false),
            fs,
            way: AtomicU8::new(if is_direct { way::NEVER } else { way::NOWAIT }),
            alignment,
            buffered: Mutex::default(),
            flights: Arc::default(),
        }))
    }

    /// The alignment of direct reads and writes; `None` if the file was not opened for direct I/O.
    pub fn alignment(&self) -> Option<Alignment> {
        self.0.alignment
    }

    /// As [`File::alignment`]; 1 without direct I/O.
    pub(super) fn granules(&self) -> Alignment {
        self.0.alignment.unwrap_or(Alignment { memory: 1, offset: 1 })
    }

    /// A descriptor of a direct file for writes through the page cache, with the same durability
    /// flags. Opened on first use, by a thread that may wait.
    pub(super) fn buffered(&self) -> io::Result<RawFd> {
        if let Some(known) = lock(&self.0.buffered).first() {
            return Ok(known.as_raw_fd());
        }
        let flags = outcome(sys::status_flags(self.number()) as i32)? as i32;
        let refused = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => libc::EBADF,
            _ if flags & libc::O_APPEND != 0 => libc::EINVAL,
            _ => 0,
        };
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        let mut options = std::fs::File::options();
        options.write(true).custom_flags(flags & libc::O_SYNC);
        let opened = options.open(format!("/proc/thread-self/fd/{}", self.number()))?;
        let mut known = lock(&self.0.buffered);
        known.push(opened.into());
        Ok(known[0].as_raw_fd())
    }

    #[inline]
    pub(super) fn fs(&self) -> Option<&Fs> {
        self.0.fs.get()
    }

    pub(super) fn home(&self) -> &OnceLock<Fs> {
        &self.0.fs
    }

    pub(super) fn flights(&self) -> &Arc<Flights> {
        &self.0.flights
    }

    /// Is this the only handle, with no request in flight?
    pub(super) fn is_the_only_handle(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// Notes that a request has closed the descriptor.
    pub(super) fn closed(&self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn number(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }

    /// Reads without sleeping. `None`: the caller needs a read that may sleep, which also reports
    /// any error.
    ///
    /// # Safety
    /// `length` bytes at `address` can be written to.
    #[inline]
    pub(super) unsafe fn read_now(&self, address: u64, length: usize, offset: u64) -> Option<i32> {
        let known = self.0.way.load(Ordering::Relaxed);
        if known == way::NEVER
            || length > self.fs()?.inline_max()
            || offset > i64::MAX as u64
            || IS_REFUSED.load(Ordering::Relaxed)
        {
            return None;
        }
        if known == way::PLAIN {
            // SAFETY: the caller's contract.
            let read = unsafe { sys::pread(self.number(), address, length, offset) };
            return i32::try_from(read).ok().filter(|&read| read >= 0);
        }
        let iov = [libc::iovec { iov_base: address as *mut _, iov_len: length }];
        let nowait = libc::RWF_NOWAIT as u32;
        // SAFETY: one vector, and the caller's contract.
        let read = unsafe { sys::preadv2(self.number(), iov.as_ptr(), 1, offset, nowait) };
        match read {
            read if read >= 0 => self.whole(read as usize, length, offset),
            errno => {
                self.learn(-errno as i32);
                None
            }
        }
    }

    /// The result of a read that did not sleep, if a read that may sleep would return no more.
    #[inline]
    fn whole(&self, read: usize, length: usize, offset: u64) -> Option<i32> {
        // A short read can mean the end of the file, or that the rest is not in memory. Some
        // kernels return 0 for data that is not in memory (Linux 5.9 and 5.10). Files that report
        // no size, as in /proc, are read again.
        let is_whole = read == length
            || sys::file_size(self.number())
                .is_some_and(|size| size > 0 && offset.saturating_add(read as u64) >= size);
        (is_whole && length > 0).then_some(read as i32)
    }

    /// How reads of at most [`Fs::inline_max`] bytes are tried, and why.
    pub(super) fn tried(&self) -> &'static str {
        match self.0.way.load(Ordering::Relaxed) {
            _ if IS_REFUSED.load(Ordering::Relaxed) => "not tried: preadv2 is refused here",
            way::PLAIN => "done on the polling thread: its file system keeps files in memory",
            way::NOWAIT => "tried on the polling thread, with RWF_NOWAIT",
            _ if self.0.alignment.is_some() => "not tried: direct I/O waits for the device",
            _ => "not tried: the file refuses RWF_NOWAIT",
        }
    }

    /// Learns from the errno of a refused `RWF_NOWAIT` how the next read is tried.
    #[cold]
    fn learn(&self, errno: i32) {
        match errno {
            libc::EOPNOTSUPP => {
                let in_memory = sys::lives_in_memory(self.number());
                let way = if in_memory { way::PLAIN } else { way::NEVER };
                self.0.way.store(way, Ordering::Relaxed);
            }
            libc::ENOSYS | libc::EPERM => IS_REFUSED.store(true, Ordering::Relaxed),
            // The data is not in memory, or there was an error.
            _ => {}
        }
    }
}

/// The alignment of direct I/O on a file. If the kernel does not report it (before Linux 6.1), this
/// is 4,096 bytes, which is enough for any disk.
fn alignment(fd: RawFd) -> Option<Alignment> {
    if cfg!(miri) {
        return None;
    }
    /// `STATX_DIOALIGN`, Linux 6.1.
    const DIOALIGN: u32 = 0x2000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let at = found.as_mut_ptr() as u64;
    // SAFETY: an empty path, and a writable struct statx.
    let told = unsafe {
        sys::statx(fd, c"".as_ptr().cast(), libc::AT_EMPTY_PATH as u32, DIOALIGN, at) == 0
    };
    // SAFETY: all fields are integers, zeroed above. The kernel may have filled them in.
    let found = unsafe { found.assume_init() };
    let (memory, offset) = (found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize);
    if told && found.stx_mask & DIOALIGN != 0 && memory > 0 && offset > 0 {
        return Some(Alignment { memory, offset });
    }
    Some(Alignment { memory: 4096, offset: 4096 })
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from_std(file)
    }
}

impl TryFrom<File> for std::fs::File {
    type Error = File;

    /// As [`File::into_std`].
    fn try_from(file: File) -> Result<Self, File> {
        file.into_std()
    }
}

impl From<OwnedFd> for File {
    fn from(descriptor: OwnedFd) -> Self {
        Self::from_std(descriptor.into())
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.number()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.number()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            let fd = self.descriptor.as_raw_fd();
            Facts::forget(&(fd..=fd));
            // SAFETY: dropped once. This is the last handle, so nothing uses the descriptor again.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

/// A result as a count, or as an error.
pub(super) fn outcome(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// A descriptor that an operation opens. If the operation is dropped, the descriptor is closed.
#[derive(Debug, Default)]
pub(super) struct Opened(OnceCell<OwnedFd>);

impl Opened {
    /// The descriptor's number; -1 before it is open.
    pub(super) fn number(&self) -> RawFd {
        self.0.get().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Takes the descriptor from a request's result.
    pub(super) fn adopt(&self, result: i32) {
        if result >= 0 {
            // SAFETY: the kernel has just opened this descriptor for the request, which owns it.
            let _ = self.0.set(unsafe { OwnedFd::from_raw_fd(result) });
        }
    }

    pub(super) fn put(&self, descriptor: OwnedFd) {
        let _ = self.0.set(descriptor);
    }

    pub(super) fn into_inner(self) -> Option<OwnedFd> {
        self.0.into_inner()
    }
}
