//! Plans entries on sockets and makes their calls. Copies names and lists, not data.

use uringlet::front::Hints;

use super::calls::Made;
use super::plans::Planned;
use super::{Fields, Plan};
use crate::abi::{INDEX_ALLOC, NOTICE_COPIED, accept as accepts, iosqe, message as messages, op};
use crate::calls::Call;
use crate::sockets::{Ask, Header, Message, NAME_MAX, Name, Socket};
use crate::user;

/// The flags that a new socket may have.
const NEW: u32 = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32;
/// `MSG_CMSG_COMPAT`.
const COMPAT: u32 = 1 << 31;
/// Any free slot, as in [`Fields::slot`].
const ANY_SLOT: u32 = INDEX_ALLOC - 1;
/// The types of sockets.
const TYPES: u32 = 0xf;

/// SEND and SEND_ZC. The length of a name is in the field that has a slot in other entries.
pub(super) fn plan_send(fields: &Fields) -> Planned {
    let has_more = fields.file_index() >> 16 != 0;
    let is_too_long = !has_notice(fields) && is_negative(fields.len());
    if has_more || lacks_completion(fields) || is_too_long {
        return Err(-libc::EINVAL);
    }
    Ok(Plan::Call(None, send))
}

/// The kernel's length of a message is signed.
fn is_negative(len: u32) -> bool {
    len > i32::MAX as u32
}

/// SENDMSG.
pub(super) fn plan_message(fields: &Fields) -> Planned {
    if is_negative(fields.len()) { Err(-libc::EINVAL) } else { Ok(Plan::Call(None, of_header)) }
}

/// SENDMSG_ZC.
pub(super) fn plan_send_message(fields: &Fields) -> Planned {
    if lacks_completion(fields) { Err(-libc::EINVAL) } else { Ok(Plan::Call(None, of_header)) }
}

/// The result of a second completion, which says that the memory is not needed any more. This
/// completion follows errors, too, unless flags, the personality or the last words of the entry are
/// refused.
pub(crate) fn notice(fields: &Fields) -> Option<i32> {
    const WITHOUT: u8 = iosqe::CQE_SKIP | iosqe::BUFFER_SELECT | !iosqe::KNOWN;
    let is_odd = fields.personality() != 0 || fields.addr3() != 0 || fields.0[7] != 0;
    let has = has_notice(fields) && fields.flags() & WITHOUT == 0 && !is_odd;
    let reports = fields.ioprio() & messages::REPORTS != 0;
    has.then_some(if reports { NOTICE_COPIED } else { 0 })
}

/// SEND_ZC and SENDMSG_ZC.
fn has_notice(fields: &Fields) -> bool {
    matches!(fields.opcode(), op::SEND_ZC | op::SENDMSG_ZC)
}

/// Does the entry ask to skip its completion, although its operation has two? Such an entry is
/// refused.
fn lacks_completion(fields: &Fields) -> bool {
    has_notice(fields) && fields.flags() & iosqe::CQE_SKIP != 0
}

/// RECV and RECVMSG.
pub(super) fn plan_receive(fields: &Fields) -> Planned {
    let is_whole = fields.op_flags() & libc::MSG_WAITALL as u32 != 0;
    // The field that has a slot in other entries bounds a multishot, in bytes.
    let has_bound = fields.file_index() != 0;
    let is_odd = if is_multishot(fields) { is_whole || !selects(fields) } else { has_bound };
    if is_odd || is_negative(fields.len()) {
        return Err(-libc::EINVAL);
    }
    Ok(Plan::Call(None, if fields.opcode() == op::RECV { receive } else { of_header }))
}

pub(super) fn plan_accept(fields: &Fields) -> Planned {
    if fields.ioprio() & accepts::MULTISHOT != 0 && fields.slot().is_some_and(|at| at != ANY_SLOT) {
        return Err(-libc::EINVAL);
    }
    plan_new(fields, fields.op_flags(), accept)
}

pub(super) fn plan_socket(fields: &Fields) -> Planned {
    plan_new(fields, fields.off() as u32 & !TYPES, socket)
}

fn plan_new(fields: &Fields, flags: u32, call: super::CallOf) -> Planned {
    let is_direct = fields.slot().is_some();
    if flags & !NEW != 0 || is_direct && flags & libc::SOCK_CLOEXEC as u32 != 0 {
        return Err(-libc::EINVAL);
    }
    Ok(Plan::Call(fields.slot(), call))
}

/// Is the receive multishot?
fn is_multishot(fields: &Fields) -> bool {
    fields.ioprio() & messages::MULTISHOT != 0
}

fn selects(fields: &Fields) -> bool {
    fields.flags() & iosqe::BUFFER_SELECT != 0
}

fn made(fields: &Fields, socket: Socket) -> Made {
    Ok(Call::Socket { fd: fields.fd(), socket: socket.shared() })
}

/// Is this a send of one buffer, without a destination, and without flags other than frequent ones?
/// A write counts, too, if its descriptor number is known to be a socket's.
pub(crate) fn is_plain_send(fields: &Fields) -> bool {
    const FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE;
    // The low half of word 0: operation, flags and priority. Word 5: the index of a buffer, a
    // personality, and the length of a name.
    let (kind, is_plain) = (fields.0[0] as u32, fields.0[5] == 0);
    if kind == u32::from(op::SEND) {
        let is_known = fields.op_flags() & !(FLAGS as u32) == 0 && !is_negative(fields.len());
        return is_plain && fields.off() == 0 && is_known;
    }
    let is_write =
        kind == u32::from(op::WRITE) && fields.0[7] == 0 && [0, u64::MAX].contains(&fields.off());
    is_write
        && is_plain
        && (fields.op_flags() == 0 && fields.len() > 0)
        && Hints::known(fields.fd()).is_ok_and(Hints::seems_socket)
}

/// The call of [a plain send](is_plain_send).
pub(crate) fn plain_send(fields: &Fields) -> Socket {
    transfer(fields, Message::of_buffer(true, [fields.addr(), fields.len().into()]))
}

fn message(fields: &Fields, message: Message) -> Made {
    made(fields, transfer(fields, message))
}

fn transfer(fields: &Fields, message: Message) -> Socket {
    // `COMPAT` is ignored: it is the kernel's own flag for programs of 32 bits.
    let mut flags = (fields.op_flags() & !COMPAT) as i32;
    let gives_up = flags & libc::MSG_DONTWAIT != 0;
    if message.is_send {
        flags |= libc::MSG_NOSIGNAL;
    }
    let has = |flag| fields.ioprio() & flag != 0;
    let has_notice = has_notice(fields);
    if has_notice {
        flags &= !libc::MSG_ZEROCOPY;
    }
    let bundles = has(messages::BUNDLE) && selects(fields);
    if bundles && message.is_send {
        flags |= libc::MSG_WAITALL;
    }
    let goes_on = is_multishot(fields) || bundles && message.is_send;
    let bytes_left = if is_multishot(fields) { fields.file_index().into() } else { 0 };
    let mut socket = Socket::new(Ask::Transfer(message), flags);
    (socket.selects, socket.bundle) = (selects(fields), bundles.then(Default::default));
    (socket.gives_up, socket.goes_on) = (gives_up, goes_on);
    socket.bytes_left = bytes_left.into();
    socket.tells_rest = matches!(fields.opcode(), op::RECV | op::RECVMSG);
    socket.polls_first = has(messages::POLL_FIRST);
    socket.is_uncopied = has_notice;
    socket.buffer_index = has(messages::FIXED_BUFFER).then(|| fields.buf_index());
    socket
}

fn send(fields: &Fields) -> Made {
    let name = match fields.off() {
        0 => Name::default(),
        at => name(at, fields.file_index() as i32)?,
    };
    let buffer = [fields.addr(), fields.len().into()];
    let (mut parts, mut header) = (Vec::new(), None);
    if fields.ioprio() & messages::VECTORED != 0 {
        parts = self::parts(buffer, -libc::EINVAL)?;
        // If the entry names a group, the call uses the group's buffers. The list is only checked
        // then.
        header = (!selects(fields)).then_some(Header::NONE);
    }
    message(fields, Message { is_send: true, parts, buffer, name, header })
}

/// The buffers of a list. `too_many`: the negative errno for a list that is too long.
fn parts([at, count]: [u64; 2], too_many: i32) -> Result<Vec<[u64; 2]>, i32> {
    const IOV_MAX: u64 = 1024;
    if count > IOV_MAX {
        return Err(too_many);
    }
    let mut parts: Vec<[u64; 2]> = Vec::new();
    user::read_array(at as usize, count as usize, &mut parts)?;
    let is_whole = |part: &[u64; 2]| part[1] <= isize::MAX as u64;
    if parts.iter().all(is_whole) { Ok(parts) } else { Err(-libc::EINVAL) }
}

fn receive(fields: &Fields) -> Made {
    message(fields, Message::of_buffer(false, [fields.addr(), fields.len().into()]))
}

/// READ into a buffer of a group, or READV of one part.
pub(super) fn read(fields: &Fields) -> Made {
    let len = match fields.opcode() {
        op::READV => user::read::<[u64; 2]>(fields.addr() as usize)?[1],
        _ => fields.len().into(),
    };
    let flags = fields.op_flags();
    let mut socket = Socket::new(Ask::Read { len, offset: fields.off() }, flags as i32);
    socket.goes_on = fields.opcode() == op::READ_MULTISHOT;
    (socket.selects, socket.gives_up) = (true, flags & libc::RWF_NOWAIT as u32 != 0);
    made(fields, socket)
}

/// SENDMSG and RECVMSG.
pub(super) fn of_header(fields: &Fields) -> Made {
    let is_send = fields.opcode() != op::RECVMSG;
    let at = fields.addr();
    // `struct msghdr`, of which some words are half used.
    let [to, to_len, iov, count, control, control_len, _]: [u64; 7] = user::read(at as usize)?;
    let to_len = to_len as i32;
    if to != 0 && to_len < 0 {
        return Err(-libc::EINVAL);
    }
    // A multishot receive puts the sender's name into its buffer, and needs no place for it.
    let room = if to == 0 && !is_multishot(fields) { 0 } else { to_len.min(NAME_MAX as i32) };
    let name = if is_send && room > 0 { self::name(to, room)? } else { Name::default() };
    if selects(fields) && count > 1 {
        return Err(-libc::EINVAL);
    }
    let parts = parts([iov, count], -libc::EMSGSIZE)?;
    let header = Header { at, name: (to, room as u32), control: (control, control_len) };
    message(fields, Message { is_send, parts, buffer: [0; 2], name, header: Some(header) })
}

fn name(at: u64, len: i32) -> Result<Name, i32> {
    match usize::try_from(len) {
        Ok(len) if len <= NAME_MAX => Ok(user::read_bytes(at as usize, len)?.into()),
        _ => Err(-libc::EINVAL),
    }
}

fn accept(fields: &Fields) -> Made {
    let ask = Ask::Accept { name: fields.addr(), len: fields.off() };
    let has = |flag| fields.ioprio() & flag != 0;
    let mut socket = Socket::new(ask, fields.op_flags() as i32);
    (socket.gives_up, socket.polls_first) = (has(accepts::DONTWAIT), has(accepts::POLL_FIRST));
    (socket.goes_on, socket.is_aside) = (has(accepts::MULTISHOT), fields.slot().is_some());
    socket.tells_rest = true;
    made(fields, socket)
}

fn socket(fields: &Fields) -> Made {
    let (domain, kind, protocol) = (fields.fd(), fields.off() as i32, fields.len() as i32);
    let mut socket = Socket::new(Ask::Socket { domain, kind, protocol }, 0);
    socket.is_aside = fields.slot().is_some();
    made(fields, socket)
}

/// CONNECT and BIND.
pub(super) fn to_name(fields: &Fields) -> Made {
    let name = name(fields.addr(), fields.off() as i32)?;
    let is_bind = fields.opcode() == op::BIND;
    made(fields, Socket::new(if is_bind { Ask::Bind(name) } else { Ask::Connect(name) }, 0))
}

pub(super) fn listen(fields: &Fields) -> Made {
    made(fields, Socket::new(Ask::Listen(fields.len() as i32), 0))
}

pub(super) fn shutdown(fields: &Fields) -> Made {
    made(fields, Socket::new(Ask::Shutdown(fields.len() as i32), 0))
}
