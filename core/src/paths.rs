//! Opens files without waiting: local files whose path the kernel has in memory. The kernel's
//! io_uring tries opens in the same way (`RESOLVE_CACHED`, openat2(2)). An open that may wait, or
//! that fails, is left to a worker.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::RawFd;

use crate::{descriptor, sys};

/// The flags of opens that are tried. Other flags create or change a file, or give the open another
/// meaning.
const TRIED: u64 = (libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOATIME
    | libc::O_NOCTTY
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_SYNC) as u64;
/// Flags that decide which file a path names.
const NAMING: u64 = (libc::O_DIRECTORY | libc::O_NOFOLLOW) as u64;
/// With this flag, an open fails where it would wait for the end of another process's lease
/// (fcntl(2)).
const NONBLOCK: u64 = libc::O_NONBLOCK as u64;

/// Does [`open`] try this `struct open_how`?
pub(crate) fn is_open_tried(&[flags, _, resolve]: &[u64; 3]) -> bool {
    flags & !TRIED == 0 && resolve & libc::RESOLVE_CACHED == 0
}

/// Opens a regular file or a folder. `None`: the open may wait, or it fails.
pub(crate) fn open(dir: RawFd, path: &CStr, how: &[u64; 3]) -> Option<RawFd> {
    let &[flags, mode, resolve] = how;
    if !is_open_tried(how) {
        return None;
    }
    let cached = resolve | libc::RESOLVE_CACHED;
    let named = (libc::O_PATH | libc::O_CLOEXEC) as u64 | flags & NAMING;
    // An open with `O_PATH` asks no driver and no file server.
    let place = sys::openat2(dir, path, &[named, 0, cached]) as RawFd;
    if place < 0 {
        return None;
    }
    let writes = flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64;
    let opens = is_quick(place) && !(writes && sys::copies_at_open(place));
    // The program's open gets the lowest number, as without this check.
    sys::close(place);
    if !opens {
        return None;
    }
    let fd = sys::openat2(dir, path, &[flags | NONBLOCK, mode, cached]) as RawFd;
    if fd < 0 {
        return None;
    }
    // The path may name another file by now.
    let is_as_asked =
        is_quick(fd) && (flags & NONBLOCK != 0 || sys::set_status_flags(fd, flags as i32) == 0);
    if !is_as_asked {
        sys::close(fd);
        return None;
    }
    was_opened(fd);
    Some(fd)
}

/// Does the open of this file not wait? The descriptor may have been opened with `O_PATH`.
fn is_quick(fd: RawFd) -> bool {
    matches!(descriptor::kind_if_local(fd), Some(libc::S_IFREG | libc::S_IFDIR))
}

/// A file was opened. Notes what is known of it: the first read is then executed at once, if the
/// descriptor allows that. Also notes whether the file system is a local one: if it is, later opens
/// there are made at once.
pub(crate) fn was_opened(fd: RawFd) {
    if fd >= 0 {
        let _ = descriptor::fresh(fd);
    }
}

/// statx(2) of an open file. `None`: the call may wait, or it fails. Paths are left to workers:
/// statx(2) has no `RESOLVE_CACHED`, and a descriptor of the path would take a number that the
/// program may be about to use.
///
/// # Safety
/// `out` is the address of a struct statx that the kernel may fill in.
pub(crate) unsafe fn stat(fd: RawFd, flags: i32, mask: u32, out: u64) -> Option<i32> {
    if flags != libc::AT_EMPTY_PATH || fd < 0 {
        return None;
    }
    descriptor::kind_if_local(fd)?;
    // SAFETY: an empty path, and the caller's contract.
    let answer = unsafe { sys::statx(fd, c"".as_ptr().cast(), flags as u32, mask, out) };
    (answer == 0).then_some(0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::ffi::{CStr, CString};
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use std::os::unix::ffi::OsStrExt as _;

    use super::{open, stat};
    use crate::{descriptor, sys};

    fn opens(path: &CStr, flags: i32) -> Option<i32> {
        let fd = open(libc::AT_FDCWD, path, &[flags as u64, 0, 0])?;
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(sys::status_flags(file.as_raw_fd()) as i32)
    }

    #[test]
    fn only_what_cannot_wait_is_done_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at =
            |name: &str| CString::new(folder.path().join(name).as_os_str().as_bytes()).unwrap();
        let file = std::fs::File::create(folder.path().join("file")).unwrap();
        super::was_opened(file.as_raw_fd());
        // SAFETY: a path that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(at("fifo").as_ptr(), 0o600) }, 0);
        let known = opens(&at("file"), libc::O_RDWR | libc::O_APPEND);
        let Some(flags) = known else {
            // Where openat2(2) is refused, and for mounts without a number, workers open.
            let place = sys::openat2(libc::AT_FDCWD, &at("file"), &[libc::O_PATH as u64, 0, 0]);
            assert!(place < 0 || descriptor::kind_if_local(place as i32).is_none());
            sys::close(place as i32);
            return;
        };
        assert_eq!(flags & (libc::O_ACCMODE | libc::O_APPEND), libc::O_RDWR | libc::O_APPEND);
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        let nonblocking = opens(&at("file"), libc::O_NONBLOCK).unwrap();
        assert_eq!(nonblocking & libc::O_NONBLOCK, libc::O_NONBLOCK);
        assert!(opens(&at(""), libc::O_DIRECTORY).is_some(), "a folder");
        for flags in [0, libc::O_NONBLOCK, libc::O_WRONLY, libc::O_RDWR] {
            assert_eq!(opens(&at("fifo"), flags), None, "{flags:#x}");
            assert_eq!(opens(c"/dev/null", flags), None, "{flags:#x}");
        }
        for flags in [libc::O_CREAT, libc::O_TRUNC | libc::O_RDWR, libc::O_PATH, libc::O_TMPFILE] {
            assert_eq!(opens(&at("file"), flags), None, "{flags:#x}");
        }
        assert_eq!(opens(&at("missing"), 0), None);
        std::fs::write(folder.path().join("file"), "text").unwrap();
        // SAFETY: integers, for which zeroes are valid.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let (fd, out) = (file.as_raw_fd(), (&raw mut found) as u64);
        for (fd, flags, expected) in
            [(fd, libc::AT_EMPTY_PATH, Some(0)), (fd, 0, None), (-1, libc::AT_EMPTY_PATH, None)]
        {
            // SAFETY: the address of a struct statx.
            assert_eq!(unsafe { stat(fd, flags, libc::STATX_SIZE, out) }, expected);
        }
        assert_eq!(found.stx_size, 4);
    }
}
