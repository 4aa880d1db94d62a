//! The calls that end the life of a descriptor number: requests that still wait for it come first.
//!
//! The kernel's AIO holds the file for its requests; here a number is all there is. And the engine has
//! descriptors of its own, which a program that closes all there are is not to meet.

use std::ffi::{CStr, c_int, c_uint};
use std::sync::atomic::{AtomicPtr, Ordering};

use uringlet::front;

use crate::{enter, handle, syscall};

/// The next definition of a C function, found once.
struct Next(AtomicPtr<libc::c_void>, &'static CStr);

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    /// Null if there is none.
    fn look(&self) -> *mut libc::c_void {
        let mut next = self.0.load(Ordering::Relaxed);
        if next.is_null() {
            // SAFETY: a NUL-terminated name.
            next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
            self.0.store(next, Ordering::Relaxed);
        }
        next
    }

    fn get(&self) -> *mut libc::c_void {
        let next = self.look();
        assert!(!next.is_null(), "the C library has {:?}", self.1);
        next
    }
}

/// The C library's way to say no.
fn refuse(errno: c_int) -> c_int {
    // SAFETY: the thread's errno is always there.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Before numbers from 0 on are closed.
fn before_close(first: c_int, last: c_int) {
    if first >= 0 {
        handle::before_close(&(first..=last));
    }
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    static NEXT: Next = Next::new(c"close");
    if front::is_own_descriptor(fd) {
        // The program has not opened it.
        return refuse(libc::EBADF);
    }
    let next = enter(|| {
        before_close(fd, fd);
        NEXT.get()
    });
    // SAFETY: the C library's close(2), called as its caller called us. errno is its own.
    unsafe { std::mem::transmute::<*mut libc::c_void, Close>(next)(fd) }
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, onto: c_int) -> c_int {
    type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    static NEXT: Next = Next::new(c"dup2");
    if front::is_own_descriptor(onto) {
        return refuse(libc::EBUSY);
    }
    let next = enter(|| {
        if fd != onto {
            before_close(onto, onto);
        }
        NEXT.get()
    });
    // SAFETY: the C library's dup2(2), called as its caller called us.
    unsafe { std::mem::transmute::<*mut libc::c_void, Dup2>(next)(fd, onto) }
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int {
    type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    static NEXT: Next = Next::new(c"dup3");
    if front::is_own_descriptor(onto) {
        return refuse(libc::EBUSY);
    }
    let next = enter(|| {
        before_close(onto, onto);
        NEXT.get()
    });
    // SAFETY: the C library's dup3(2), called as its caller called us.
    unsafe { std::mem::transmute::<*mut libc::c_void, Dup3>(next)(fd, onto, flags) }
}

/// Closes what lies between the engine's own descriptors.
///
/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    static NEXT: Next = Next::new(c"close_range");
    let closes = first <= last && flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0;
    let next = enter(|| {
        if closes {
            before_close(number(first), number(last));
        }
        NEXT.look()
    });
    let call = |first, last| {
        if next.is_null() {
            // glibc before 2.34.
            // SAFETY: as the caller called us.
            return unsafe { syscall::pass_on_close_range(first, last, flags) };
        }
        // SAFETY: the C library's close_range(2).
        unsafe { std::mem::transmute::<*mut libc::c_void, CloseRange>(next)(first, last, flags) }
    };
    let mut from = first;
    while closes
        && from <= last
        && let Some(own) = front::own_descriptor_in(number(from)..=number(last))
    {
        let own = own as c_uint;
        if own > from {
            let ret = call(from, own - 1);
            if ret != 0 {
                return ret;
            }
        }
        if own == last {
            return 0;
        }
        from = own + 1;
    }
    call(from, last)
}

/// A number beyond those that descriptors can have is the last of them.
fn number(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    type CloseFrom = unsafe extern "C" fn(c_int);
    static NEXT: Next = Next::new(c"closefrom");
    let first = first.max(0);
    // SAFETY: as the caller called us.
    if unsafe { close_range(first as c_uint, c_uint::MAX, 0) } == 0 {
        return;
    }
    // Refused, or an old kernel.
    if front::own_descriptor_in(first..=c_int::MAX).is_none() {
        let next = enter(|| NEXT.get());
        // SAFETY: the C library's closefrom(3), called as its caller called us.
        unsafe { std::mem::transmute::<*mut libc::c_void, CloseFrom>(next)(first) };
        return;
    }
    let open: Vec<c_int> = enter(|| {
        let folder = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        folder.filter_map(number).collect()
    });
    for fd in open.into_iter().filter(|&fd| fd >= first) {
        // SAFETY: as the caller asked. One that is gone meanwhile, as the folder's own, is no matter.
        unsafe { close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::{close, close_range, dup2, dup3};
    use crate::abi::{CMD_POLL, Iocb};
    use crate::{_io_destroy, _io_setup, _io_submit};

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn the_engines_own_descriptors_are_neither_closed_nor_replaced() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut handle = 0;
        let iocb = Iocb {
            opcode: CMD_POLL,
            fildes: reader.as_raw_fd() as u32,
            buf: libc::POLLIN as u64,
            ..Iocb::default()
        };
        let list = [&raw const iocb];
        // SAFETY: a place for the handle; one request, which is in flight until the context is destroyed.
        unsafe {
            assert_eq!(_io_setup(4, &raw mut handle), 0);
            assert_eq!(_io_submit(handle, 1, list.as_ptr()), 1);
        }
        // The poller has one.
        let own = uringlet::front::own_descriptor_in(0..=i32::MAX).expect("there is one");
        let other = writer.as_raw_fd();
        // SAFETY: of the program's descriptors none is closed.
        unsafe {
            assert_eq!((close(own), errno()), (-1, libc::EBADF));
            assert_eq!((dup2(other, own), errno()), (-1, libc::EBUSY));
            assert_eq!((dup3(other, own, 0), errno()), (-1, libc::EBUSY));
            assert_eq!(close_range(own as u32, own as u32, 0), 0);
            assert!(libc::fcntl(own, libc::F_GETFD) >= 0, "it is still open");
            assert_eq!((close(-1), errno()), (-1, libc::EBADF));
            assert_eq!((close_range(2, 1, 0), errno()), (-1, libc::EINVAL));
            assert_eq!(_io_destroy(handle), 0);
        }
    }
}
