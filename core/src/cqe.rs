//! Completion entry: 16 bytes in io_uring's own layout.

/// One completion, laid out as `struct io_uring_cqe` (io_uring_enter(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The value given with [`Sqe::user_data`](crate::Sqe::user_data), untouched.
    pub user_data: u64,
    /// A count of bytes, a new descriptor or an event mask (by operation), or a negative errno.
    pub res: i32,
    /// Always 0: the operations of this library define no flag.
    pub flags: u32,
}

impl Cqe {
    /// The result as a count, or the errno as [`std::io::Error`].
    pub fn result(&self) -> std::io::Result<u32> {
        u32::try_from(self.res).map_err(|_| std::io::Error::from_raw_os_error(-self.res))
    }
}

#[cfg(test)]
mod tests {
    use super::Cqe;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layout_is_io_uring_cqe() {
        assert_eq!(size_of::<Cqe>(), 16);
        assert_eq!(offset_of!(Cqe, user_data), 0);
        assert_eq!(offset_of!(Cqe, res), 8);
        assert_eq!(offset_of!(Cqe, flags), 12);
    }

    #[test]
    fn result_splits_counts_from_errnos() {
        let ok = Cqe { user_data: 1, res: 7, flags: 0 };
        assert_eq!(ok.result().unwrap(), 7);
        let bad = Cqe { user_data: 1, res: -libc::ENOSPC, flags: 0 };
        assert_eq!(bad.result().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
