//! Calls for requests that are no operation of the engine. A worker makes them, or the submitting
//! thread. Each is one system call that may wait, with copies of all input that it borrows.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::sync::Arc;

use uringlet::front;

use crate::files::move_aside;
use crate::sockets::Socket;
use crate::sys::{self, files};

/// One system call.
#[derive(Debug)]
pub(crate) enum Call {
    Open {
        dir: i32,
        path: CString,
        flags: u32,
        mode: u32,
    },
    Open2 {
        dir: i32,
        path: CString,
        how: [u64; 3],
    },
    /// An open whose descriptor gets a high number, by [`move_aside`].
    OpenAside(Box<Self>),
    Close {
        fd: i32,
    },
    Statx {
        dir: i32,
        path: CString,
        flags: u32,
        mask: u32,
        out: u64,
    },
    Unlink {
        dir: i32,
        path: CString,
        flags: u32,
    },
    Rename {
        from: (i32, CString),
        to: (i32, CString),
        flags: u32,
    },
    Link {
        from: (i32, CString),
        to: (i32, CString),
        flags: u32,
    },
    Symlink {
        target: CString,
        dir: i32,
        path: CString,
    },
    Mkdir {
        dir: i32,
        path: CString,
        mode: u32,
    },
    SetXattr {
        path: CString,
        name: CString,
        value: Vec<u8>,
        flags: u32,
    },
    FSetXattr {
        fd: i32,
        name: CString,
        value: Vec<u8>,
        flags: u32,
    },
    GetXattr {
        path: CString,
        name: CString,
        value: u64,
        len: u32,
    },
    FGetXattr {
        fd: i32,
        name: CString,
        value: u64,
        len: u32,
    },
    Splice {
        from: (i32, i64),
        to: (i32, i64),
        len: u32,
        flags: u32,
    },
    Tee {
        from: i32,
        to: i32,
        len: u32,
        flags: u32,
    },
    Madvise {
        at: u64,
        len: u64,
        advice: u32,
    },
    EpollCtl {
        epoll: i32,
        op: i32,
        fd: i32,
        events: u32,
        data: u64,
    },
    Socket {
        fd: i32,
        socket: Arc<Socket>,
    },
}

impl Call {
    /// In place of a call that has ended.
    pub(crate) const NONE: Self = Self::Close { fd: -1 };

    /// May the call wait for another process without end?
    pub(crate) fn may_hang(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Open2 { .. }
                | Self::OpenAside(_)
                | Self::Splice { .. }
                | Self::Tee { .. }
                | Self::EpollCtl { .. }
                | Self::Socket { .. }
        )
    }

    /// Does the kernel check the rights of the calling thread?
    pub(crate) fn is_judged(&self) -> bool {
        match self {
            Self::Socket { socket, .. } => socket.is_judged(),
            Self::Close { .. }
            | Self::Splice { .. }
            | Self::Tee { .. }
            | Self::Madvise { .. }
            | Self::EpollCtl { .. } => false,
            _ => true,
        }
    }

    /// The result of a call that has ended with `result`, and whether its chain ends there.
    pub(crate) fn outcome(&self, result: i32) -> (i32, bool) {
        match self {
            Self::Socket { socket, .. } => socket.outcome(result),
            _ => (result, false),
        }
    }

    /// Has a call with this result used its buffer of a group? Otherwise the buffer is given back.
    pub(crate) fn uses_buffer(&self, result: i32) -> bool {
        matches!(self, Self::Socket { socket, .. } if socket.uses_buffer(result))
    }

    /// Does the completion say that the socket has more to receive or accept
    /// (`IORING_CQE_F_SOCK_NONEMPTY`)?
    pub(crate) fn tells_more(&self) -> bool {
        matches!(self, Self::Socket { socket, .. } if socket.tells_more())
    }

    pub(crate) fn is_close(&self) -> bool {
        matches!(self, Self::Close { .. })
    }

    /// The open that this call makes: the folder, the path, and the `struct open_how`.
    fn as_open(&self) -> Option<(i32, &CStr, [u64; 3])> {
        match self {
            // The mode is only for files that are created.
            Self::Open { dir, path, flags, .. } => Some((*dir, path, [(*flags).into(), 0, 0])),
            Self::Open2 { dir, path, how } => Some((*dir, path, *how)),
            Self::OpenAside(open) => open.as_open(),
            _ => None,
        }
    }

    /// Is this an open that the submitter tries with [`open_at_once`](Self::open_at_once)?
    pub(crate) fn is_tried_open(&self) -> bool {
        self.as_open().is_some_and(|(_, _, how)| front::is_open_tried(&how))
    }

    /// Makes the open now, if it need not wait. `None`: the open may wait, or fails.
    pub(crate) fn open_at_once(&self) -> Option<i32> {
        let (dir, path, how) = self.as_open()?;
        let fd = front::open_at_once(dir, path, &how)?;
        Some(if matches!(self, Self::OpenAside(_)) { move_aside(fd) } else { fd })
    }

    pub(crate) fn run(&self) -> i32 {
        loop {
            let result = self.run_once();
            if result != -libc::EINTR || self.is_close() {
                if self.is_tried_open() {
                    front::open_was_made(result);
                }
                return result;
            }
        }
    }

    fn run_once(&self) -> i32 {
        match self {
            Self::Open { dir, path, flags, mode } => files::openat(*dir, path, *flags, *mode),
            Self::Open2 { dir, path, how } => files::openat2(*dir, path, how),
            Self::OpenAside(open) => move_aside(open.run_once()),
            Self::Close { fd } => close(*fd),
            Self::Statx { dir, path, flags, mask, out } => {
                files::statx(*dir, path, *flags, *mask, *out)
            }
            Self::Unlink { dir, path, flags } => files::unlinkat(*dir, path, *flags),
            Self::Rename { from, to, flags } => {
                files::renameat2((from.0, &from.1), (to.0, &to.1), *flags)
            }
            Self::Link { from, to, flags } => {
                files::linkat((from.0, &from.1), (to.0, &to.1), *flags)
            }
            Self::Symlink { target, dir, path } => files::symlinkat(target, *dir, path),
            Self::Mkdir { dir, path, mode } => files::mkdirat(*dir, path, *mode),
            Self::SetXattr { path, name, value, flags } => {
                files::setxattr(path, name, value, *flags)
            }
            // Newer kernels' fsetxattr(2) and fgetxattr(2) take AT_FDCWD.
            Self::FSetXattr { fd: ..0, .. } | Self::FGetXattr { fd: ..0, .. } => -libc::EBADF,
            Self::FSetXattr { fd, name, value, flags } => {
                files::fsetxattr(*fd, name, value, *flags)
            }
            Self::GetXattr { path, name, value, len } => files::getxattr(path, name, *value, *len),
            Self::FGetXattr { fd, name, value, len } => files::fgetxattr(*fd, name, *value, *len),
            Self::Splice { from, to, len, flags } => files::splice(*from, *to, *len, *flags),
            Self::Tee { from, to, len, flags } => files::tee(*from, *to, *len, *flags),
            // SAFETY: the pages are the program's, and the program asks for this.
            Self::Madvise { at, len, advice } => unsafe { sys::madvise(*at, *len, *advice) },
            Self::EpollCtl { epoll, op, fd, events, data } => {
                sys::epoll_ctl(*epoll, *op, *fd, *events, *data)
            }
            Self::Socket { fd, socket } => socket.run(*fd),
        }
    }
}

/// Calls the `close` symbol of the process, so that every loaded drop-in sees the call.
fn close(fd: i32) -> i32 {
    // SAFETY: the program has asked for this descriptor to be closed.
    if unsafe { libc::close(fd) } == 0 {
        return 0;
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)
}

/// The function that the engine's worker calls.
///
/// # Safety
/// `call` is the address of a [`Call`] that lives until this returns.
pub(crate) unsafe extern "C" fn run(call: u64) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { &*(call as *const Call) }.run()
}
