//! The calls that close or replace descriptors. Before a number is closed, requests on it are
//! executed, or get a duplicate of the descriptor.

use std::ffi::{c_int, c_long};

use uringlet::front::descriptors;

use crate::handle::before_close;

uringlet::see_descriptors_end!(crate::handle::before_close);

/// Makes the system call `number`, if it is one that ends descriptors. `None`: it is another call,
/// and nothing was done.
///
/// # Safety
/// As the call of that number.
pub(crate) unsafe fn by_number(number: c_long, arguments: [usize; 3]) -> Option<c_int> {
    // SAFETY: the caller's contract.
    unsafe { descriptors::by_number(number, arguments, before_close, descriptors::no_matter) }
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
        // SAFETY: a place for the handle; one request, which is in flight until the context is
        // destroyed.
        unsafe {
            assert_eq!(_io_setup(4, &raw mut handle), 0);
            assert_eq!(_io_submit(handle, 1, list.as_ptr()), 1);
        }
        // The poller, a thread of the engine, has a descriptor of its own.
        let own = uringlet::front::own_descriptor_in(0..=i32::MAX).expect("there is one");
        let other = writer.as_raw_fd();
        // SAFETY: none of the program's descriptors is closed.
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
