//! Calls on sockets, each as its manual page says. The kernel checks every address of the
//! program's.

use std::ffi::c_int;

use syscalls::Sysno;

pub(crate) fn send(fd: i32, at: u64, len: usize, flags: c_int, name: &[u8]) -> i32 {
    let to = if name.is_empty() { std::ptr::null() } else { name.as_ptr() };
    // SAFETY: the name lives through the call. The kernel checks the program's buffer.
    unsafe { call!(sendto, fd, at, len, flags, to, name.len()) as i32 }
}

pub(crate) fn receive(fd: i32, at: u64, len: usize, flags: c_int) -> i32 {
    // SAFETY: the kernel checks the address, which is the program's.
    unsafe { call!(recvfrom, fd, at, len, flags, 0, 0) as i32 }
}

/// sendmsg(2) or recvmsg(2).
pub(crate) fn transfer(fd: i32, is_send: bool, message: &mut libc::msghdr, flags: c_int) -> i32 {
    let message = std::ptr::from_mut(message);
    // SAFETY: the message lives through the call; it has addresses of the program's.
    unsafe {
        match is_send {
            true => call!(sendmsg, fd, message, flags) as i32,
            false => call!(recvmsg, fd, message, flags) as i32,
        }
    }
}

pub(crate) fn accept(fd: i32, name: u64, len: u64, flags: c_int) -> i32 {
    // SAFETY: the kernel checks the addresses, which are the program's.
    unsafe { call!(accept4, fd, name, len, flags) as i32 }
}

pub(crate) fn connect(fd: i32, name: &[u8]) -> i32 {
    // SAFETY: the name lives through the call.
    unsafe { call!(connect, fd, name.as_ptr(), name.len()) as i32 }
}

pub(crate) fn bind(fd: i32, name: &[u8]) -> i32 {
    // SAFETY: the name lives through the call.
    unsafe { call!(bind, fd, name.as_ptr(), name.len()) as i32 }
}

pub(crate) fn listen(fd: i32, backlog: c_int) -> i32 {
    // SAFETY: only numbers are passed.
    unsafe { call!(listen, fd, backlog) as i32 }
}

pub(crate) fn shutdown(fd: i32, how: c_int) -> i32 {
    // SAFETY: only numbers are passed.
    unsafe { call!(shutdown, fd, how) as i32 }
}

pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> i32 {
    // SAFETY: only numbers are passed.
    unsafe { call!(socket, domain, kind, protocol) as i32 }
}

/// getsockopt(SOL_SOCKET) of a number, or a negative errno.
pub(crate) fn option(fd: i32, which: c_int) -> Result<c_int, i32> {
    let (mut value, mut len): (c_int, u32) = (0, 4);
    let (at, len) = (&raw mut value, &raw mut len);
    // SAFETY: places for the number and its length.
    let answer = unsafe { call!(getsockopt, fd, libc::SOL_SOCKET, which, at, len) as i32 };
    if answer < 0 { Err(answer) } else { Ok(value) }
}

/// getsockopt(2) into the program's memory: the length of the value, or a negative errno.
pub(crate) fn get_option(fd: i32, (level, which): (c_int, c_int), at: u64, len: u32) -> i32 {
    let mut len = len;
    // SAFETY: an address of the program's, and a place for the length.
    let answer = unsafe { call!(getsockopt, fd, level, which, at, &raw mut len) as i32 };
    if answer < 0 { answer } else { len as i32 }
}

/// setsockopt(2) from the program's memory.
pub(crate) fn set_option(fd: i32, (level, which): (c_int, c_int), at: u64, len: u32) -> i32 {
    // SAFETY: the kernel checks the address, which is the program's.
    unsafe { call!(setsockopt, fd, level, which, at, len) as i32 }
}

/// ioctl(SIOCOUTQ): bytes in the send queue, not acknowledged yet; or a negative errno.
pub(crate) fn queued_to_send(fd: i32) -> i32 {
    let mut value: c_int = 0;
    // SAFETY: a place for the number.
    let answer = unsafe { call!(ioctl, fd, libc::TIOCOUTQ, &raw mut value) as i32 };
    if answer < 0 { answer } else { value }
}

/// Does the kernel send from this socket without a copy, if it is asked to?
///
/// # Errors
/// `-EOPNOTSUPP`: it does not; or another negative errno.
pub(crate) fn can_send_uncopied(fd: i32) -> Result<(), i32> {
    let (domain, protocol) = (option(fd, libc::SO_DOMAIN)?, option(fd, libc::SO_PROTOCOL)?);
    let is_known = [libc::AF_INET, libc::AF_INET6].contains(&domain)
        && [libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&protocol);
    if is_known { Ok(()) } else { Err(-libc::EOPNOTSUPP) }
}

/// ioctl(SIOCINQ): bytes that can be received, or a negative errno.
pub(crate) fn readable(fd: i32) -> i32 {
    let mut value: c_int = 0;
    // SAFETY: a place for the number.
    let answer = unsafe { call!(ioctl, fd, libc::FIONREAD, &raw mut value) as i32 };
    if answer < 0 { answer } else { value }
}

pub(crate) fn is_tcp(fd: i32) -> bool {
    option(fd, libc::SO_PROTOCOL)
        .is_ok_and(|it| [libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&it))
}

/// ioctl(SIOCATMARK): is the urgent byte next in the stream? The answer stays yes after that byte
/// was received out of band, until bytes behind it are received.
pub(crate) fn is_at_mark(fd: i32) -> bool {
    const SIOCATMARK: u32 = 0x8905;
    let mut value: c_int = 0;
    // SAFETY: a place for the number.
    let answer = unsafe { call!(ioctl, fd, SIOCATMARK, &raw mut value) as i32 };
    answer >= 0 && value != 0
}

/// Has the other side of a TCP connection sent FIN?
pub(crate) fn has_ended(fd: i32) -> bool {
    /// ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2 and LISTEN of `tcpi_state` (tcp(7)).
    const BEFORE: [u8; 6] = [1, 2, 3, 4, 5, 10];
    let mut state = 0u8;
    let at = (&raw mut state).expose_provenance() as u64;
    let len = get_option(fd, (libc::IPPROTO_TCP, libc::TCP_INFO), at, 1);
    len == 1 && !BEFORE.contains(&state)
}

/// ioctl(FIONBIO).
pub(crate) fn set_nonblocking(fd: i32, on: bool) {
    let value = c_int::from(on);
    // SAFETY: a number that lives through the call.
    unsafe { call!(ioctl, fd, libc::FIONBIO, &raw const value) };
}
