//! A kernel for Miri, which supports no system calls. It has the calls that the engine needs for
//! files, eventfds and sleeping threads, made of the C library's functions that Miri has. Miri
//! itself reads and writes buffers, and so sees when a request touches each byte. Everything else
//! is refused with `-ENOSYS`, as in a narrow sandbox, or does nothing.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::with_exposed_provenance_mut as at;

use syscalls::Sysno;

use super::Ret;

/// An argument of a system call: one register.
pub(crate) trait Argument {
    fn word(self) -> usize;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Argument for $number {
            fn word(self) -> usize {
                self as usize
            }
        })*
    };
}
numbers!(i32 u32 i64 u64 isize usize);

impl<T> Argument for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

const PAGE: usize = 4096;

fn refused(errno: i32) -> Ret {
    -(errno as Ret)
}

/// The result of a C library function, as a system call returns it.
fn answer(ret: impl Into<i64>) -> Ret {
    match ret.into() {
        -1 => refused(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        ret => ret as Ret,
    }
}

/// preadv2(2) and its relatives; `offset` -1 is the file position.
unsafe fn vectored(fd: i32, iov: usize, n: usize, offset: i64, write: bool) -> Ret {
    let mut done = 0;
    for index in 0..n {
        // SAFETY: the caller passes `n` iovecs.
        let part = unsafe { at::<libc::iovec>(iov).add(index).read() };
        let base = part.iov_base;
        // SAFETY: the caller's buffers.
        let ret = answer(unsafe {
            match (write, offset) {
                (false, -1) => libc::read(fd, base, part.iov_len),
                (true, -1) => libc::write(fd, base, part.iov_len),
                (false, _) => libc::pread(fd, base, part.iov_len, offset + done as i64),
                (true, _) => libc::pwrite(fd, base, part.iov_len, offset + done as i64),
            }
        } as i64);
        match ret {
            ret if ret < 0 => return if done > 0 { done } else { ret },
            ret => done += ret,
        }
        if (ret as usize) < part.iov_len {
            break;
        }
    }
    done
}

/// Makes a system call.
///
/// # Safety
/// The contract of the call itself.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) unsafe fn call(number: Sysno, arguments: &[usize]) -> Ret {
    let word = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let (a, b, c, d) = (word(0), word(1), word(2), word(3));
    let fd = a as i32;
    // SAFETY: the caller's contract, call by call.
    unsafe {
        match number {
            Sysno::pread64 => answer(libc::pread(fd, at(b), c, d as i64) as i64),
            Sysno::pwrite64 => answer(libc::pwrite(fd, at(b), c, d as i64) as i64),
            Sysno::read => answer(libc::read(fd, at(b), c) as i64),
            Sysno::write => answer(libc::write(fd, at(b), c) as i64),
            Sysno::readv => vectored(fd, b, c, -1, false),
            Sysno::writev => vectored(fd, b, c, -1, true),
            Sysno::preadv => vectored(fd, b, c, d as i64, false),
            Sysno::pwritev => vectored(fd, b, c, d as i64, true),
            Sysno::preadv2 | Sysno::pwritev2 => {
                let known = libc::RWF_NOWAIT | libc::RWF_DSYNC | libc::RWF_SYNC;
                match word(5) & !(known as usize) {
                    0 => vectored(fd, b, c, d as i64, number == Sysno::pwritev2),
                    _ => refused(libc::EOPNOTSUPP),
                }
            }
            Sysno::fsync => answer(libc::fsync(fd)),
            Sysno::fdatasync => answer(libc::fdatasync(fd)),
            Sysno::lseek => answer(libc::lseek(fd, b as i64, c as i32)),
            Sysno::ftruncate => answer(libc::ftruncate(fd, b as i64)),
            Sysno::close => answer(libc::close(fd)),
            Sysno::pipe2 => answer(libc::pipe2(at(a), b as i32)),
            Sysno::eventfd2 => answer(libc::eventfd(a as u32, b as i32)),
            Sysno::statx => answer(libc::statx(fd, at(b), c as i32, d as u32, at(word(4)))),
            Sysno::fcntl if b as i32 == libc::F_GETFL => libc::O_RDWR as Ret,
            Sysno::fcntl if b as i32 == libc::F_DUPFD_CLOEXEC => {
                answer(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, c as i32))
            }
            // Each file counts as one on ext4, a local file system.
            Sysno::fstatfs => {
                (*at::<libc::statfs>(b)).f_type = libc::EXT4_SUPER_MAGIC;
                0
            }
            Sysno::getpid => libc::getpid() as Ret,
            Sysno::nanosleep => answer(libc::nanosleep(at(a), std::ptr::null_mut())),
            Sysno::futex => futex(a, b as i32, c as u32, d),
            Sysno::mmap => alloc_zeroed(pages(b)).expose_provenance() as Ret,
            Sysno::munmap => {
                dealloc(at(a), pages(b));
                0
            }
            Sysno::madvise => {
                if c as i32 == libc::MADV_DONTNEED {
                    at::<u8>(a).write_bytes(0, b);
                }
                0
            }
            // This kernel has two CPUs.
            Sysno::sched_getaffinity => {
                at::<u64>(c).write(0b11);
                8
            }
            Sysno::mprotect
            | Sysno::rt_sigprocmask
            | Sysno::rt_sigpending
            | Sysno::prlimit64
            | Sysno::kill
            | Sysno::sched_setaffinity
            | Sysno::sched_getscheduler
            | Sysno::sched_setscheduler => 0,
            _ => refused(libc::ENOSYS),
        }
    }
}

fn pages(len: usize) -> Layout {
    Layout::from_size_align(len.next_multiple_of(PAGE), PAGE).expect("a length of a mapping")
}

unsafe fn futex(word: usize, op: i32, value: u32, time: usize) -> Ret {
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    if op == wait && time != 0 {
        // SAFETY: the caller's timespec.
        let time = unsafe { at::<libc::timespec>(time).read() };
        // With no time left, the call only asks whether the word can be read. It is not read here:
        // Miri would end the program if it cannot be read.
        if (time.tv_sec, time.tv_nsec) == (0, 0) {
            return refused(libc::EAGAIN);
        }
    }
    let (word, time) = (at::<u32>(word), at::<libc::timespec>(time));
    // SAFETY: the caller's word, which outlives the call.
    unsafe {
        match op {
            _ if op == wait => answer(libc::syscall(libc::SYS_futex, word, op, value, time)),
            _ if op == wake => answer(libc::syscall(libc::SYS_futex, word, op, value)),
            // The call only asks whether a word can be written, as above.
            _ => 0,
        }
    }
}
