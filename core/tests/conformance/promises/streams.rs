//! Requests on streams wait if the plain call would wait, and only then.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;

use crate::common::{LONG, bounded, context, isolated, pipes_take_nowait, refusing, run, skip};
use uringlet::Sqe;

fn is_writable(fd: RawFd) -> bool {
    let mut set = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut set, 1, 0) == 1 }
}

/// A socket and its peer. poll(2) reports the socket as full, although it takes more.
fn quarter_full() -> (UnixStream, UnixStream) {
    let (mut near, far) = UnixStream::pair().unwrap();
    while is_writable(near.as_raw_fd()) {
        near.write_all(&[1; 4096]).unwrap();
    }
    (near, far)
}

#[test]
fn a_write_that_would_go_through_does_not_wait_for_the_peer() {
    let _bound = bounded(4 * LONG);
    let mut context = context(4);
    let (near, _far) = quarter_full();
    assert_eq!(run(&mut context, Sqe::write(near.as_raw_fd(), &[2; 100], 0)), 100);
    // All pages of a pipe are in use, and the last one is not full.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: no memory is passed.
    let pages = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) } / 4096;
    (1..pages).for_each(|_| writer.write_all(&[1; 4096]).unwrap());
    writer.write_all(&[1; 100]).unwrap();
    assert!(!is_writable(writer.as_raw_fd()), "it is full by poll's measure");
    if !pipes_take_nowait() {
        // The kernel does not tell whether the write would succeed.
        return skip("this kernel takes no RWF_NOWAIT for pipes");
    }
    assert_eq!(run(&mut context, Sqe::write(writer.as_raw_fd(), &[2; 100], 0)), 100);
    drop(writer);
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert_eq!(&all[all.len() - 200..], [[1; 100], [2; 100]].concat());
}

#[test]
fn a_socket_can_be_asked_not_to_wait_where_preadv2_is_refused() {
    isolated(|| {
        let _bound = bounded(4 * LONG);
        let filter = refusing(&[libc::SYS_preadv2, libc::SYS_pwritev2], libc::ENOSYS);
        seccompiler::apply_filter(&filter).unwrap();
        let mut context = context(4);
        let (near, mut far) = quarter_full();
        assert_eq!(run(&mut context, Sqe::write(near.as_raw_fd(), &[2; 100], 0)), 100);
        far.write_all(b"text").unwrap();
        let mut buffer = [0; 10];
        assert_eq!(run(&mut context, Sqe::read(near.as_raw_fd(), &mut buffer[..], 0)), 4);
        assert_eq!(&buffer[..4], b"text");
    });
}
