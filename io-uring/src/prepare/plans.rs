//! The plans of operations, by the fields that vary between entries. Fields that must be 0, and
//! unknown flags, were refused before.

use uringlet::Sqe;

use super::{Fields, Match, Plan, RingMessage, Timing, calls, sockets};
use crate::abi::{MAX_RW_COUNT, iosqe, op, poll, timeout as timeouts};
use crate::buffers::Provided;
use crate::service::Watch;

pub(super) type Planned = Result<Plan, i32>;

/// The end of a program's address space, as far as it is known here. If the machine's own limit is
/// lower, the transfer refuses the address later.
const ADDRESSES: u64 = if cfg!(target_arch = "x86_64") { 0x7fff_ffff_f000 } else { 1 << 56 };

const EINVAL: Planned = Err(-libc::EINVAL);

pub(super) fn nop(fields: &Fields) -> Planned {
    // IORING_NOP_INJECT_RESULT.
    Ok(Plan::Nop(if fields.op_flags() & 1 != 0 { fields.len() as i32 } else { 0 }))
}

/// The number of a buffer has 16 bits.
const BUFFERS: u32 = 1 << 16;

pub(super) fn provide_buffers(fields: &Fields) -> Planned {
    let (count, len, first) = (fields.fd() as u32, fields.len(), fields.off());
    if count == 0 || count > BUFFERS {
        return Err(-libc::E2BIG);
    }
    if len == 0 {
        return EINVAL;
    }
    let size = u64::from(len) * u64::from(count);
    match fields.addr().checked_add(size) {
        None => return Err(-libc::EOVERFLOW),
        Some(end) if end > ADDRESSES => return Err(-libc::EFAULT),
        Some(_) if first >= u64::from(BUFFERS) => return Err(-libc::E2BIG),
        Some(_) if first + u64::from(count) > u64::from(BUFFERS) => return EINVAL,
        Some(_) => {}
    }
    let first = Provided::of_list(fields.addr(), len.min(MAX_RW_COUNT), first as u16);
    Ok(Plan::Provide { group: fields.buf_index(), count, first })
}

pub(super) fn message(fields: &Fields) -> Planned {
    Ok(Plan::Message(RingMessage::of(fields)))
}

pub(super) fn remove_buffers(fields: &Fields) -> Planned {
    let count = fields.fd() as u32;
    if count == 0 || count > BUFFERS {
        return EINVAL;
    }
    Ok(Plan::RemoveProvided { group: fields.buf_index(), count })
}

/// READ. With `IOSQE_BUFFER_SELECT`, a buffer of the group is taken when there is something to
/// read.
pub(super) fn read(fields: &Fields) -> Planned {
    if fields.flags() & iosqe::BUFFER_SELECT == 0 {
        return engine(fields);
    }
    Ok(Plan::Call(None, sockets::read))
}

pub(super) fn engine(fields: &Fields) -> Planned {
    Ok(Plan::Engine(fields.sqe(), None))
}

/// As [`read`], and multishot.
pub(super) fn read_more(fields: &Fields) -> Planned {
    let selects = fields.flags() & iosqe::BUFFER_SELECT != 0;
    if selects { Ok(Plan::Call(None, sockets::read)) } else { EINVAL }
}

pub(super) fn of_buffer(fields: &Fields) -> Planned {
    let opcode = if fields.opcode() == op::READ_FIXED { op::READ } else { op::WRITE };
    Ok(Plan::Engine(Sqe { opcode, ..fields.sqe() }, Some(fields.buf_index())))
}

pub(super) fn vectored(fields: &Fields) -> Planned {
    const IOV_MAX: u32 = 1024;
    if fields.flags() & iosqe::BUFFER_SELECT != 0 {
        return if fields.len() == 1 { Ok(Plan::Call(None, sockets::read)) } else { EINVAL };
    }
    if fields.len() > IOV_MAX {
        return EINVAL;
    }
    Ok(match fields.opcode() {
        op::READV_FIXED => of_buffer_vectored(fields, op::READV),
        op::WRITEV_FIXED => of_buffer_vectored(fields, op::WRITEV),
        _ => Plan::Vectored(fields.sqe(), None),
    })
}

fn of_buffer_vectored(fields: &Fields, opcode: u8) -> Plan {
    Plan::Vectored(Sqe { opcode, ..fields.sqe() }, Some(fields.buf_index()))
}

/// Flags of pipes; the last one is `O_NOTIFICATION_PIPE`.
pub(super) const PIPE_FLAGS: u32 =
    (libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_EXCL) as u32;

pub(super) fn pipe(fields: &Fields) -> Planned {
    let (at, flags, slot) = (fields.addr(), fields.op_flags(), fields.slot());
    if fields.fd() == 0 { Ok(Plan::Pipe { at, flags, slot }) } else { EINVAL }
}

/// Accepts a range of the file, but syncs the whole file.
pub(super) fn fsync(fields: &Fields) -> Planned {
    if (fields.off() as i64) < 0 {
        return EINVAL;
    }
    Ok(Plan::Engine(Sqe { off: 0, len: 0, ..fields.sqe() }, None))
}

pub(super) fn open(fields: &Fields) -> Planned {
    let is_short = fields.opcode() == op::OPENAT2 && fields.len() < calls::OPEN_HOW;
    if is_short { EINVAL } else { Ok(Plan::Call(fields.slot(), calls::open)) }
}

pub(super) fn close(fields: &Fields) -> Planned {
    match fields.slot() {
        Some(_) if fields.fd() != 0 => EINVAL,
        Some(slot) => Ok(Plan::CloseSlot(slot)),
        None => Ok(Plan::Call(None, calls::close)),
    }
}

pub(super) fn poll_add(fields: &Fields) -> Planned {
    let multi = fields.len() & poll::MULTI != 0;
    // The kernel refuses IORING_POLL_ADD_LEVEL, too.
    if fields.len() & !poll::MULTI != 0 || multi && fields.flags() & iosqe::CQE_SKIP != 0 {
        return EINVAL;
    }
    let once = fields.op_flags() & libc::EPOLLONESHOT as u32 != 0;
    Ok(Plan::Poll(Watch::of(fields.op_flags(), multi && !once)))
}

pub(super) fn poll_remove(fields: &Fields) -> Planned {
    const UPDATE: u32 = poll::UPDATE_EVENTS | poll::UPDATE_USER_DATA;
    let (old, new, events) = (fields.addr(), fields.off(), fields.op_flags());
    let has = |flag| fields.len() & flag != 0;
    if has(!(UPDATE | poll::MULTI))
        || fields.len() == poll::MULTI
        || !has(poll::UPDATE_USER_DATA) && new != 0
        || !has(poll::UPDATE_EVENTS) && events != 0
    {
        return EINVAL;
    }
    Ok(Plan::PollUpdate { old, new, events, flags: fields.len() })
}

/// Do the flags name two clocks?
fn has_two_clocks(flags: u32) -> bool {
    flags & timeouts::CLOCKS == timeouts::CLOCKS
}

pub(super) fn timeout(fields: &Fields) -> Planned {
    let (flags, repeated) = (fields.op_flags(), timeouts::MULTISHOT | timeouts::ABS);
    if fields.len() != 1 || has_two_clocks(flags) || flags & repeated == repeated {
        return EINVAL;
    }
    let timing = Timing { flags, count: fields.off() as u32, ..Timing::default() };
    Ok(match fields.opcode() {
        op::LINK_TIMEOUT => Plan::LinkTimeout(timing),
        _ => Plan::Timeout(timing),
    })
}

pub(super) fn timeout_remove(fields: &Fields) -> Planned {
    let flags = fields.op_flags();
    let is_update = flags & (timeouts::UPDATE | timeouts::LINK_UPDATE) != 0;
    if !is_update && flags != 0 {
        return EINVAL;
    }
    Ok(Plan::TimeoutRemove { of: fields.addr(), update: is_update.then_some((0, flags)) })
}

pub(super) fn cancel(fields: &Fields) -> Planned {
    use crate::abi::cancel::{ANY, FD, OP};
    let (user_data, flags) = (fields.addr(), fields.op_flags());
    if flags & ANY != 0 && flags & (FD | OP) != 0 {
        return EINVAL;
    }
    Ok(Plan::Cancel(Match { user_data, fd: fields.fd(), opcode: fields.len() as u8, flags }))
}

pub(super) fn files_update(fields: &Fields) -> Planned {
    if fields.len() == 0 {
        return EINVAL;
    }
    let (fds, count, offset) = (fields.addr(), fields.len(), fields.off() as u32);
    Ok(Plan::FilesUpdate { fds, count, offset })
}

pub(super) fn epoll_ctl(fields: &Fields) -> Planned {
    let (epoll, op, fd) = (fields.fd(), fields.len() as i32, fields.off() as i32);
    let event = (op != libc::EPOLL_CTL_DEL).then_some((0, 0));
    Ok(Plan::EpollCtl { epoll, op, fd, event })
}

pub(super) fn install(fields: &Fields) -> Planned {
    Ok(Plan::Install { cloexec: fields.op_flags() & 1 == 0 })
}
