//! Texts for C: each stays valid until the thread asks for the next one of its kind, or for
//! [`ERRNOS`] further texts of errnos.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};

use uringlet::EngineKind;

/// The kinds of text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Text {
    /// The reason why no context was made.
    Failure,
    /// The engine of a context, and why it was chosen.
    Choice,
    /// The text of an errno. The last kind: it has [`ERRNOS`] places.
    Errno,
}

/// The number of texts of errnos that a thread has at a time. strerror(3) is often called for
/// several arguments of one printf(3).
const ERRNOS: usize = 8;

thread_local! {
    static TEXTS: RefCell<[CString; 2 + ERRNOS]> = RefCell::default();
    /// The number of texts of errnos that the thread has asked for.
    static ERRNO: Cell<usize> = const { Cell::new(0) };
}

impl Text {
    /// Stores the text for the thread, and returns its address. In an ending thread, the text is
    /// empty.
    pub(crate) fn set(self, text: &str) -> *const c_char {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        let kept = TEXTS.try_with(|texts| {
            // In a signal handler that has interrupted a change of the texts, the text is empty.
            let Ok(mut texts) = texts.try_borrow_mut() else { return c"".as_ptr() };
            let at = self.place();
            texts[at] = text;
            texts[at].as_ptr()
        });
        kept.unwrap_or(c"".as_ptr())
    }

    /// The index of the next text of this kind.
    fn place(self) -> usize {
        match self {
            Self::Failure | Self::Choice => self as usize,
            Self::Errno => self as usize + ERRNO.replace(ERRNO.get().wrapping_add(1)) % ERRNOS,
        }
    }

    /// The thread's last text of this kind.
    pub(crate) fn get(self) -> *const c_char {
        let kept = TEXTS.try_with(|texts| {
            texts.try_borrow().map_or(c"".as_ptr(), |texts| texts[self as usize].as_ptr())
        });
        kept.unwrap_or(c"".as_ptr())
    }
}

/// strerror(3), for negative numbers, too.
pub(crate) fn of_errno(err: c_int) -> String {
    let mut buffer = [0u8; 128];
    let err = c_int::try_from(err.unsigned_abs()).unwrap_or(0);
    // SAFETY: a buffer and its length.
    let ret = unsafe { libc::strerror_r(err, buffer.as_mut_ptr().cast(), buffer.len()) };
    let text = std::ffi::CStr::from_bytes_until_nul(&buffer);
    match text {
        Ok(text) if ret == 0 && !text.is_empty() => text.to_string_lossy().into_owned(),
        _ => format!("Unknown error {err}"),
    }
}

/// An engine's name.
pub(crate) fn of_engine(kind: EngineKind) -> &'static CStr {
    match kind {
        EngineKind::Auto => c"auto",
        EngineKind::Workers => c"workers",
        EngineKind::IoUring => c"io_uring",
        EngineKind::LinuxAio => c"linux_aio",
        EngineKind::PosixAio => c"posix_aio",
        EngineKind::Null => c"null",
        // An engine that was added to `EngineKind`, and not to this list.
        _ => c"unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineKind, of_engine, of_errno};

    #[test]
    fn engines_have_their_names() {
        for kind in EngineKind::ALL {
            assert_eq!(of_engine(kind).to_str().unwrap(), kind.name());
        }
    }

    #[test]
    fn an_errno_has_its_text_with_either_sign() {
        assert_eq!(of_errno(-libc::ENOSPC), of_errno(libc::ENOSPC));
        assert!(of_errno(-libc::ENOSPC).contains("space"));
        assert!(!of_errno(i32::MIN).is_empty());
    }
}
