//! From an entry to what is done for it. What fails here ends a batch, as in the kernel.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uringlet::Sqe;
use uringlet::front::{CALL, OwnDescriptor};

use crate::abi::{self, Timespec, cancel, iosqe, op, poll, timeout};
use crate::calls::{self, Call};
use crate::chains::NONE;
use crate::files::File;
use crate::ring::{CancelJob, Locked, Request, Stage, Task, Timing};
use crate::service::{self, Watch};
use crate::{rights, sys, user};

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Nop(i32),
    /// The engine has it. With a registered buffer: its number.
    Engine(Sqe, Option<u16>),
    /// A worker calls it. A direct descriptor goes into the slot (or any).
    Call(Option<u32>),
    CloseSlot(u32),
    Poll {
        watch: Watch,
        level: bool,
    },
    PollUpdate {
        old: u64,
        new: u64,
        events: u32,
        flags: u32,
    },
    Timeout(Timing),
    TimeoutRemove {
        of: u64,
        update: Option<(u64, u32)>,
    },
    LinkTimeout(Timing),
    Cancel(Match),
    FilesUpdate {
        fds: u64,
        count: u32,
        offset: u32,
    },
    EpollCtl {
        epoll: i32,
        op: i32,
        fd: i32,
        event: Option<(u32, u64)>,
    },
    Install {
        cloexec: bool,
    },
}

impl Plan {
    /// What the engine gets.
    pub(crate) fn sqe(&self) -> Sqe {
        match self {
            Self::Engine(sqe, _) => *sqe,
            _ => Sqe::nop(),
        }
    }
}

/// Which requests a cancel means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) user_data: u64,
    pub(crate) fd: i32,
    pub(crate) opcode: u8,
    pub(crate) flags: u32,
}

impl Match {
    /// `is_on_it`: is this a number of the file that is meant?
    fn is(&self, request: &Request, mut is_on_it: impl FnMut(i32) -> bool) -> bool {
        let has = |flag| self.flags & flag != 0;
        if has(cancel::ANY) {
            return true;
        }
        if has(cancel::OP) && request.opcode != self.opcode {
            return false;
        }
        let by_user_data = has(cancel::USERDATA) || !has(cancel::FD) && !has(cancel::OP);
        if by_user_data && request.user_data != self.user_data {
            return false;
        }
        !has(cancel::FD) || op::has_file(request.opcode) && is_on_it(request.number())
    }

    fn is_for_all(&self) -> bool {
        self.flags & (cancel::ALL | cancel::ANY) != 0
    }
}

/// The fields of an entry.
struct Fields {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    file_index: u32,
    addr3: u64,
}

impl Fields {
    fn of(raw: &[u64; 8]) -> Self {
        Self {
            opcode: raw[0] as u8,
            flags: (raw[0] >> 8) as u8,
            ioprio: (raw[0] >> 16) as u16,
            fd: (raw[0] >> 32) as i32,
            off: raw[1],
            addr: raw[2],
            len: raw[3] as u32,
            op_flags: (raw[3] >> 32) as u32,
            user_data: raw[4],
            buf_index: raw[5] as u16,
            personality: (raw[5] >> 16) as u16,
            file_index: (raw[5] >> 32) as u32,
            addr3: raw[6],
        }
    }

    /// `-EINVAL` unless all of these are 0.
    fn idle(fields: &[u64]) -> Result<(), i32> {
        if fields.iter().all(|&field| field == 0) { Ok(()) } else { Err(-libc::EINVAL) }
    }
}

/// The time that a program passes, in nanoseconds.
pub(crate) fn nanoseconds(time: Timespec) -> Result<u64, i32> {
    if time.seconds < 0 || time.nanoseconds < 0 {
        return Err(-libc::EINVAL);
    }
    let total = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    Ok(u64::try_from(total).unwrap_or(u64::MAX))
}

/// A clock of the program's, from the flags of a timeout.
fn clock(flags: u32) -> libc::clockid_t {
    match flags & timeout::CLOCKS {
        timeout::BOOTTIME => libc::CLOCK_BOOTTIME,
        timeout::REALTIME => libc::CLOCK_REALTIME,
        _ => libc::CLOCK_MONOTONIC,
    }
}

/// The time of CLOCK_MONOTONIC at which a time of a clock comes, as the clocks are now.
pub(crate) fn deadline(time: u64, clock: libc::clockid_t, absolute: bool) -> u64 {
    let now = sys::now(libc::CLOCK_MONOTONIC);
    let left = if absolute { time.saturating_sub(sys::now(clock)) } else { time };
    now.saturating_add(left).min(u64::MAX - 1)
}

/// Why an entry is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// It is none that any ring takes, with this errno.
    Malformed(i32),
    /// It is none that a ring takes which allows its operation and flags.
    Errno(i32),
}

impl From<i32> for Refused {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl Locked<'_> {
    /// Whether the ring, and the chain that is being assembled, take an entry that was prepared:
    /// 0, or a negative errno.
    pub(crate) fn judge(&mut self, at: u32, prepared: Result<(), Refused>) -> i32 {
        if let Err(Refused::Malformed(errno)) = prepared {
            self.request(at).flags &= !iosqe::DRAIN;
            return errno;
        }
        let &mut Request { opcode, flags, .. } = self.request(at);
        if !self.restrictions.allow(opcode, flags) {
            return -libc::EACCES;
        }
        self.drain_disabled |= flags & iosqe::CQE_SKIP != 0;
        if flags & iosqe::DRAIN != 0 && self.drain_disabled {
            self.request(at).flags &= !iosqe::DRAIN;
            return -libc::EOPNOTSUPP;
        }
        if let Err(Refused::Errno(errno)) = prepared {
            return errno;
        }
        let tail = self.chain_tail();
        let mut has_target = || tail != NONE && self.request(tail).opcode != op::LINK_TIMEOUT;
        if opcode == op::LINK_TIMEOUT && !has_target() { -libc::EINVAL } else { 0 }
    }
}

impl Request {
    /// Fills it from its entry; what it borrows is copied. No lock is held if it borrows.
    #[inline(always)]
    pub(crate) fn prepare(&mut self, raw: &[u64; 8], iopoll: bool) -> Result<(), Refused> {
        let fields = Fields::of(raw);
        (self.opcode, self.user_data) = (fields.opcode, fields.user_data);
        (self.fd, self.flags) = (fields.fd, fields.flags & iosqe::KNOWN);
        self.plan = Plan::Nop(0);
        let Fields { opcode, flags, .. } = fields;
        let known = op::is_known(opcode) || opcode == op::REMOVE_BUFFERS;
        if opcode >= op::LAST || !known || flags & !iosqe::KNOWN != 0 {
            return Err(Refused::Malformed(-libc::EINVAL));
        }
        if flags & iosqe::BUFFER_SELECT != 0 {
            return Err(Refused::Malformed(-libc::EOPNOTSUPP));
        }
        let is_transfer = matches!(opcode, op::READ..=op::WRITE | op::READV..=op::WRITEV)
            || matches!(opcode, op::READ_FIXED..=op::WRITE_FIXED);
        if fields.ioprio != 0 {
            let checked = is_transfer.then(|| uringlet::front::check_priority(fields.ioprio));
            checked.unwrap_or(Err(-libc::EINVAL))?;
        }
        if iopoll
            && !is_transfer
            && !matches!(opcode, op::NOP | op::FILES_UPDATE | op::REMOVE_BUFFERS)
        {
            return Err(Refused::Errno(-libc::EINVAL));
        }
        if fields.personality != 0 {
            return Err(Refused::Errno(-libc::EINVAL));
        }
        self.plan = self.plan_of(&fields)?;
        if rights::may_differ() && self.is_judged() {
            self.submitter = sys::thread_id();
        }
        Ok(())
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each operation")]
    #[inline(always)]
    fn plan_of(&mut self, fields: &Fields) -> Result<Plan, i32> {
        let &Fields { opcode, fd, off, addr, len, op_flags, buf_index, file_index, .. } = fields;
        let (wide_len, wide_flags) = (u64::from(len), u64::from(op_flags));
        let (index, slot) = (u64::from(buf_index), u64::from(file_index));
        let sqe = Sqe { opcode, fd, off, addr, len, op_flags, ..Sqe::nop() };
        let direct = (file_index != 0).then_some(file_index.wrapping_sub(1));
        let is_fixed = fields.flags & iosqe::FIXED_FILE != 0;
        let call = |this: &mut Self, call: Call| {
            this.call = Some(Box::new(call));
            Ok(Plan::Call(None))
        };
        match opcode {
            op::NOP => {
                // IORING_NOP_INJECT_RESULT, of no other flags.
                Fields::idle(&[wide_flags & !1])?;
                Ok(Plan::Nop(if op_flags & 1 != 0 { len as i32 } else { 0 }))
            }
            op::READ | op::WRITE => {
                self.expected = i32::try_from(len).unwrap_or(i32::MAX);
                Ok(Plan::Engine(sqe, None))
            }
            op::READ_FIXED | op::WRITE_FIXED => {
                self.expected = i32::try_from(len).unwrap_or(i32::MAX);
                let opcode = if opcode == op::READ_FIXED { op::READ } else { op::WRITE };
                Ok(Plan::Engine(Sqe { opcode, ..sqe }, Some(buf_index)))
            }
            op::READV | op::WRITEV => self.plan_vectored(sqe),
            op::FSYNC => {
                // A range is accepted, and all of the file synced.
                Fields::idle(&[addr, index, slot, wide_flags & !1])?;
                Ok(Plan::Engine(Sqe { off: 0, len: 0, ..sqe }, None))
            }
            op::SYNC_FILE_RANGE => {
                Fields::idle(&[addr, index, slot])?;
                Ok(Plan::Engine(sqe, None))
            }
            op::FALLOCATE => {
                Fields::idle(&[index, wide_flags, slot])?;
                Ok(Plan::Engine(sqe, None))
            }
            op::FTRUNCATE => {
                Fields::idle(&[wide_flags, addr, wide_len, index, slot])?;
                Ok(Plan::Engine(sqe, None))
            }
            op::FADVISE => {
                Fields::idle(&[index, slot])?;
                Ok(Plan::Engine(sqe, None))
            }
            op::MADVISE => {
                Fields::idle(&[index, slot])?;
                // A length of 64 bits stands where others have an offset.
                let len = if off != 0 { off } else { wide_len };
                call(self, Call::Madvise { at: addr, len, advice: op_flags })
            }
            op::OPENAT | op::OPENAT2 => {
                Fields::idle(&[index])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                let path = user::path(addr)?;
                let (open, open_flags) = if opcode == op::OPENAT {
                    let call = Call::Open { dir: fd, path, flags: op_flags, mode: len };
                    (call, u64::from(op_flags))
                } else {
                    if len < 24 {
                        return Err(-libc::EINVAL);
                    }
                    let how: [u64; 3] = user::read(off as usize)?;
                    (Call::Open2 { dir: fd, path, how }, how[0])
                };
                if direct.is_some() && open_flags & libc::O_CLOEXEC as u64 != 0 {
                    return Err(-libc::EINVAL);
                }
                let call = if direct.is_some() { Call::OpenAside(Box::new(open)) } else { open };
                self.call = Some(Box::new(call));
                Ok(Plan::Call(direct))
            }
            op::CLOSE => {
                Fields::idle(&[off, addr, wide_len, wide_flags, index])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                match direct {
                    Some(_) if fd != 0 => Err(-libc::EINVAL),
                    Some(slot) => Ok(Plan::CloseSlot(slot)),
                    None => call(self, Call::Close { fd }),
                }
            }
            op::STATX => {
                Fields::idle(&[index, slot])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                let path = user::path(addr)?;
                call(self, Call::Statx { dir: fd, path, flags: op_flags, mask: len, out: off })
            }
            op::UNLINKAT => {
                Fields::idle(&[off, wide_len, index, slot])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                Fields::idle(&[wide_flags & !(libc::AT_REMOVEDIR as u64)])?;
                let path = user::path(addr)?;
                call(self, Call::Unlink { dir: fd, path, flags: op_flags })
            }
            op::RENAMEAT | op::LINKAT => {
                Fields::idle(&[index, slot])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                let from = (fd, user::path(addr)?);
                let to = (len as i32, user::path(off)?);
                let flags = op_flags;
                call(
                    self,
                    match opcode {
                        op::RENAMEAT => Call::Rename { from, to, flags },
                        _ => Call::Link { from, to, flags },
                    },
                )
            }
            op::SYMLINKAT => {
                Fields::idle(&[wide_len, wide_flags, index, slot])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                let (target, path) = (user::path(addr)?, user::path(off)?);
                call(self, Call::Symlink { target, dir: fd, path })
            }
            op::MKDIRAT => {
                Fields::idle(&[off, wide_flags, index, slot])?;
                if is_fixed {
                    return Err(-libc::EBADF);
                }
                let path = user::path(addr)?;
                call(self, Call::Mkdir { dir: fd, path, mode: len })
            }
            op::SETXATTR | op::FSETXATTR | op::GETXATTR | op::FGETXATTR => self.plan_xattr(fields),
            op::SPLICE | op::TEE => {
                const FD_IN_FIXED: u32 = 1 << 31;
                Fields::idle(&[index])?;
                let known = (FD_IN_FIXED | 0xf) as u64;
                Fields::idle(&[wide_flags & !known])?;
                if opcode == op::TEE {
                    Fields::idle(&[off, addr])?;
                }
                self.expected = i32::try_from(len).unwrap_or(i32::MAX);
                let (from, flags) = (file_index as i32, op_flags);
                call(
                    self,
                    match opcode {
                        op::TEE => Call::Tee { from, to: fd, len, flags },
                        _ => {
                            let (from, to) = ((from, addr as i64), (fd, off as i64));
                            Call::Splice { from, to, len, flags }
                        }
                    },
                )
            }
            op::POLL_ADD => {
                Fields::idle(&[index, off, addr])?;
                if len & !(poll::MULTI | poll::LEVEL) != 0 {
                    return Err(-libc::EINVAL);
                }
                let multi = len & poll::MULTI != 0;
                if multi && fields.flags & iosqe::CQE_SKIP != 0 {
                    return Err(-libc::EINVAL);
                }
                Ok(Plan::Poll { watch: watch(op_flags, multi), level: len & poll::LEVEL != 0 })
            }
            op::POLL_REMOVE => {
                Fields::idle(&[index, slot])?;
                const UPDATE: u32 = poll::UPDATE_EVENTS | poll::UPDATE_USER_DATA;
                if len & !(UPDATE | poll::MULTI) != 0 || len == poll::MULTI {
                    return Err(-libc::EINVAL);
                }
                if len & poll::UPDATE_USER_DATA == 0 && off != 0
                    || len & poll::UPDATE_EVENTS == 0 && op_flags != 0
                {
                    return Err(-libc::EINVAL);
                }
                Ok(Plan::PollUpdate { old: addr, new: off, events: op_flags, flags: len })
            }
            op::TIMEOUT | op::LINK_TIMEOUT => Self::plan_timeout(fields),
            op::TIMEOUT_REMOVE => {
                Fields::idle(&[index, wide_len, slot])?;
                if fields.flags & iosqe::FIXED_FILE != 0 {
                    return Err(-libc::EINVAL);
                }
                let update = op_flags & (timeout::UPDATE | timeout::LINK_UPDATE);
                if update == 0 {
                    Fields::idle(&[wide_flags])?;
                    return Ok(Plan::TimeoutRemove { of: addr, update: None });
                }
                let known = update | timeout::ABS | timeout::CLOCKS;
                if op_flags & !known != 0 || (op_flags & timeout::CLOCKS).count_ones() > 1 {
                    return Err(-libc::EINVAL);
                }
                let time = nanoseconds(user::read(off as usize)?)?;
                Ok(Plan::TimeoutRemove { of: addr, update: Some((time, op_flags)) })
            }
            op::ASYNC_CANCEL => {
                Fields::idle(&[off, slot])?;
                if op_flags & !cancel::KNOWN != 0 || fields.flags & iosqe::FIXED_FILE != 0 {
                    return Err(-libc::EINVAL);
                }
                if op_flags & cancel::ANY != 0 && op_flags & (cancel::FD | cancel::OP) != 0 {
                    return Err(-libc::EINVAL);
                }
                let opcode = len as u8;
                let flags = op_flags;
                Ok(Plan::Cancel(Match { user_data: addr, fd, opcode, flags }))
            }
            op::FILES_UPDATE => {
                Fields::idle(&[wide_flags, slot])?;
                if is_fixed || len == 0 {
                    return Err(-libc::EINVAL);
                }
                Ok(Plan::FilesUpdate { fds: addr, count: len, offset: off as u32 })
            }
            op::EPOLL_CTL => {
                Fields::idle(&[index, slot])?;
                let (epoll, op, fd) = (fields.fd, len as i32, off as i32);
                let event = if op == libc::EPOLL_CTL_DEL {
                    None
                } else {
                    let event: [u32; 3] = user::read(addr as usize)?;
                    Some((event[0], u64::from(event[1]) | u64::from(event[2]) << 32))
                };
                Ok(Plan::EpollCtl { epoll, op, fd, event })
            }
            op::FIXED_FD_INSTALL => {
                Fields::idle(&[off, addr, wide_len, index, slot, fields.addr3])?;
                Fields::idle(&[wide_flags & !1])?;
                if !is_fixed {
                    return Err(-libc::EBADF);
                }
                Ok(Plan::Install { cloexec: op_flags & 1 == 0 })
            }
            // No group was provided. The probe does not tell of it.
            op::REMOVE_BUFFERS => Ok(Plan::Nop(-libc::ENOENT)),
            _ => Err(-libc::EINVAL),
        }
    }

    fn plan_vectored(&mut self, sqe: Sqe) -> Result<Plan, i32> {
        const IOV_MAX: u32 = 1024;
        if sqe.len > IOV_MAX {
            return Err(-libc::EINVAL);
        }
        user::read_array(sqe.addr as usize, sqe.len as usize, &mut self.iov)?;
        let lengths = || self.iov.iter().map(|part| part.iov_len);
        if lengths().any(|len| len > isize::MAX as usize) {
            return Err(-libc::EINVAL);
        }
        let total = lengths().fold(0usize, usize::saturating_add);
        self.expected = i32::try_from(total).unwrap_or(i32::MAX);
        let addr = self.iov.as_ptr() as u64;
        Ok(Plan::Engine(Sqe { addr, ..sqe }, None))
    }

    fn plan_xattr(&mut self, fields: &Fields) -> Result<Plan, i32> {
        const XATTR_NAME_MAX: usize = 255;
        let &Fields { opcode, fd, off, addr, len, op_flags: flags, addr3, .. } = fields;
        let of_path = matches!(opcode, op::SETXATTR | op::GETXATTR);
        if of_path && fields.flags & iosqe::FIXED_FILE != 0 {
            return Err(-libc::EBADF);
        }
        let name = user::string(addr as usize, XATTR_NAME_MAX + 1, -libc::ERANGE)?;
        let sets = matches!(opcode, op::SETXATTR | op::FSETXATTR);
        let value = if sets {
            if len > 65536 {
                return Err(-libc::E2BIG);
            }
            user::read_bytes(off as usize, len as usize)?
        } else {
            Fields::idle(&[u64::from(flags)])?;
            Vec::new()
        };
        let call = match opcode {
            op::SETXATTR => Call::SetXattr { path: user::path(addr3)?, name, value, flags },
            op::FSETXATTR => Call::FSetXattr { fd, name, value, flags },
            op::GETXATTR => Call::GetXattr { path: user::path(addr3)?, name, value: off, len },
            _ => Call::FGetXattr { fd, name, value: off, len },
        };
        self.call = Some(Box::new(call));
        Ok(Plan::Call(None))
    }

    fn plan_timeout(fields: &Fields) -> Result<Plan, i32> {
        let &Fields { opcode, off, addr, len, op_flags, buf_index, file_index, .. } = fields;
        Fields::idle(&[buf_index.into(), file_index.into()])?;
        let is_link = opcode == op::LINK_TIMEOUT;
        let known = timeout::ABS | timeout::CLOCKS | timeout::ETIME_SUCCESS | timeout::MULTISHOT;
        if len != 1
            || is_link && off != 0
            || op_flags & !known != 0
            || (op_flags & timeout::CLOCKS).count_ones() > 1
            || op_flags & (timeout::MULTISHOT | timeout::ABS) == timeout::MULTISHOT | timeout::ABS
        {
            return Err(-libc::EINVAL);
        }
        let time = nanoseconds(user::read(addr as usize)?)?;
        let deadline = deadline(time, clock(op_flags), op_flags & timeout::ABS != 0);
        let timing = Timing { deadline, period: time, flags: op_flags, count: off as u32, at: 0 };
        Ok(if is_link { Plan::LinkTimeout(timing) } else { Plan::Timeout(timing) })
    }
}

impl Locked<'_> {
    /// Begins what a request is to do. `None`: it ends later, or has ended.
    pub(crate) fn issue(&mut self, at: u32) -> Option<i32> {
        if let Err(errno) = self.resolve(at) {
            return Some(errno);
        }
        let plan = self.request(at).plan.clone();
        match plan {
            Plan::Nop(result) => Some(result),
            Plan::Engine(mut sqe, index) => {
                sqe.fd = self.number(at);
                if sqe.fd < 0 {
                    return Some(-libc::EBADF);
                }
                if let Some(index) = index {
                    let buffer = self.buffers.as_ref().and_then(|all| all.get(index.into()));
                    let Some(buffer) = buffer.cloned() else { return Some(-libc::EFAULT) };
                    if !buffer.value.has(sqe.addr, sqe.len) {
                        return Some(-libc::EFAULT);
                    }
                    self.request(at).buffer = Some(buffer);
                }
                if self.core().has(abi::setup::IOPOLL)
                    && sys::status_flags(sqe.fd) & libc::O_DIRECT == 0
                {
                    let open = sys::is_open(sqe.fd);
                    return Some(if open { -libc::EOPNOTSUPP } else { -libc::EBADF });
                }
                if let Some(result) = self.transfer_now(at, &sqe) {
                    return Some(result);
                }
                let request = self.request(at);
                request.plan = Plan::Engine(sqe, None);
                request.stage = Stage::Ready;
                None
            }
            Plan::Call(_) => {
                if let Err(errno) = self.aim_call(at) {
                    return Some(errno);
                }
                let request = self.request(at);
                let call = request
                    .call
                    .as_deref()
                    .map_or(0, |call| std::ptr::from_ref(call).expose_provenance());
                let addr = calls::run as *const () as usize as u64;
                let sqe = Sqe { opcode: CALL, addr, off: call as u64, ..Sqe::nop() };
                // `finish` asks for the slot again.
                let Plan::Call(slot) = request.plan else { return Some(-libc::EINVAL) };
                request.target_slot = slot;
                if rights::may_differ() && request.is_judged() {
                    return self.call_here(at);
                }
                request.plan = Plan::Engine(sqe, None);
                request.stage = Stage::Ready;
                None
            }
            Plan::CloseSlot(slot) => Some(self.clear_file(slot as usize)),
            Plan::Poll { watch, .. } => self.begin_poll(at, watch),
            Plan::PollUpdate { old, new, events, flags } => {
                Some(self.update_poll(old, new, events, flags))
            }
            Plan::Timeout(timing) => self.begin_timeout(at, timing),
            Plan::TimeoutRemove { of, update } => Some(self.change_timeout(of, update)),
            // Without a target: that has ended already.
            Plan::LinkTimeout(_) => Some(-libc::ECANCELED),
            Plan::Cancel(what) => self.begin_cancel(at, what),
            Plan::FilesUpdate { fds, count, offset } => {
                Some(self.update_files_by_request(fds, count, offset))
            }
            Plan::EpollCtl { epoll, op, fd, event } => {
                let (events, data) = event.unwrap_or_default();
                if op == libc::EPOLL_CTL_ADD {
                    self.core().registry.is_polled(fd);
                }
                Some(sys::epoll_ctl(epoll, op, fd, events, data))
            }
            Plan::Install { cloexec } => Some(sys::duplicate(self.number(at), cloexec)),
        }
    }

    /// Has a call made on this thread, which has to be the one that submitted it. With other rights
    /// the answer is `-EACCES`, as for the rest of a chain that another thread goes on with.
    fn call_here(&mut self, at: u32) -> Option<i32> {
        let key = self.key(at);
        let request = self.request(at);
        let is_here = request.submitter == sys::thread_id();
        let Some(call) = request.call.take().filter(|_| is_here) else {
            return Some(-libc::EACCES);
        };
        self.tasks.push(Task::Call(key, call));
        None
    }

    /// A transfer that is not to wait, and does not: buffered, with RWF_NOWAIT.
    fn transfer_now(&mut self, at: u32, sqe: &Sqe) -> Option<i32> {
        let is_write = match sqe.opcode {
            op::READ | op::READV => false,
            op::WRITE | op::WRITEV => true,
            _ => return None,
        };
        if sqe.op_flags & libc::RWF_NOWAIT as u32 == 0
            || sys::status_flags(sqe.fd) & libc::O_DIRECT != 0
        {
            return None;
        }
        let whole = [libc::iovec { iov_base: sqe.addr as *mut _, iov_len: sqe.len as usize }];
        let is_vectored = matches!(sqe.opcode, op::READV | op::WRITEV);
        let parts = if is_vectored { &self.request(at).iov[..] } else { &whole };
        Some(sys::transfer(sqe.fd, is_write, parts, sqe.off, sqe.op_flags))
    }

    /// Takes the registered file that a request names.
    fn resolve(&mut self, at: u32) -> Result<(), i32> {
        let request = self.request(at);
        let needs_file = !matches!(
            request.plan,
            Plan::Nop(_)
                | Plan::CloseSlot(_)
                | Plan::Timeout(_)
                | Plan::LinkTimeout(_)
                | Plan::PollUpdate { .. }
                | Plan::Cancel(_)
                | Plan::FilesUpdate { .. }
        );
        if request.flags & iosqe::FIXED_FILE == 0 || !needs_file {
            return Ok(());
        }
        let index = request.fd as u32;
        let file = self.files.as_ref().and_then(|files| files.get(index)).cloned();
        let file = file.ok_or(-libc::EBADF)?;
        self.request(at).file = Some(file);
        Ok(())
    }

    /// The descriptor of a request.
    fn number(&mut self, at: u32) -> i32 {
        self.request(at).number()
    }

    /// Puts registered files into a call.
    fn aim_call(&mut self, at: u32) -> Result<(), i32> {
        const FD_IN_FIXED: u32 = 1 << 31;
        let number = self.number(at);
        let is_fixed_in =
            match self.request(at).call.as_deref() {
                Some(
                    Call::Splice { from: (from, _), flags, .. } | Call::Tee { from, flags, .. },
                ) if flags & FD_IN_FIXED != 0 => Some(*from),
                _ => None,
            };
        let source = match is_fixed_in {
            Some(index) => {
                let file = self.files.as_ref().and_then(|files| files.get(index as u32)).cloned();
                Some(file.ok_or(-libc::EBADF)?)
            }
            None => None,
        };
        let registry = self.core().registry;
        let Some(call) = self.request(at).call.as_deref_mut() else { return Ok(()) };
        match call {
            Call::Splice { from: (from, _), to: (to, _), flags, .. }
            | Call::Tee { from, to, flags, .. } => {
                *to = number;
                *flags &= !FD_IN_FIXED;
                if let Some(source) = &source {
                    *from = source.number();
                }
            }
            Call::FSetXattr { fd, .. } | Call::FGetXattr { fd, .. } => *fd = number,
            Call::Close { fd } => {
                let is_ours = registry.has(*fd) || uringlet::front::is_own_descriptor(*fd);
                if is_ours {
                    return Err(-libc::EBADF);
                }
            }
            _ => {}
        }
        if let Some(source) = source {
            self.request(at).source = Some(source);
        }
        Ok(())
    }

    /// A descriptor that was opened for a slot goes there; the request's result.
    pub(crate) fn install_opened(&mut self, slot: u32, opened: OwnedFd) -> i32 {
        self.install(slot, File { descriptor: OwnDescriptor::adopt(opened) })
    }

    fn begin_poll(&mut self, at: u32, watch: Watch) -> Option<i32> {
        let fd = self.number(at);
        let events = (watch.events & 0xffff) as i16;
        let now = sys::poll_now(fd, events);
        if now < 0 {
            return Some(now);
        }
        if now != 0 && !watch.multi {
            return Some(now);
        }
        if self.core().registry.has(fd) {
            self.core().registry.is_polled(fd);
        }
        let is_of_rings = watch.multi && (self.core().registry.has(fd) || service::is_epoll(fd));
        if is_of_rings || watch.multi && self.core().has(abi::setup::DEFER_TASKRUN) {
            self.look_first(at);
        }
        self.request(at).is_of_rings = is_of_rings;
        let key = self.key(at);
        match service::watch(fd, watch, Arc::clone(self.core()) as _, key) {
            Ok(poll) => {
                self.request(at).stage = Stage::Poll(poll);
                None
            }
            // Always ready.
            Err(errno) if errno == -libc::EPERM => Some(i32::from(events as u16 & 0x145)),
            Err(errno) => Some(errno),
        }
    }

    /// Is it the eventfd that this ring counts up?
    fn is_told_by(&self, number: i32) -> bool {
        let eventfd = self.eventfd.as_ref().map(|(eventfd, _)| eventfd.number());
        eventfd.is_some_and(|eventfd| sys::is_same_file(eventfd, number))
    }

    pub(crate) fn poll_fired(&mut self, at: u32, seen: u32) {
        let request = &*self.request(at);
        let (Stage::Poll(_), Plan::Poll { watch, level }) = (request.stage, request.plan.clone())
        else {
            return;
        };
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let result = (seen & (watch.events | always)) as i32;
        // What a ring is told of its own completions would be a completion, and so on.
        let (number, may_have_one) = (request.number(), request.is_of_rings);
        let is_of_rings =
            may_have_one && self.core().registry.any_is_polled() || self.is_told_by(number);
        if !watch.multi || level || !self.can_go_on() || is_of_rings {
            return self.finish(at, result, 0);
        }
        let user_data = self.request(at).user_data;
        let cqe = abi::Cqe { user_data, res: result, flags: abi::CQE_MORE };
        self.post(cqe, false);
    }

    /// Removes a poll, or changes it.
    fn update_poll(&mut self, old: u64, new: u64, events: u32, flags: u32) -> i32 {
        let is_it = |request: &Request| {
            request.user_data == old
                && request.opcode == op::POLL_ADD
                && matches!(request.stage, Stage::Poll(_) | Stage::Ends)
        };
        let found = self.live().find(|(_, request)| is_it(request)).map(|(at, _)| at);
        let Some(at) = found else { return -libc::ENOENT };
        if self.request(at).stage == Stage::Ends {
            return -libc::EALREADY;
        }
        if flags == 0 {
            self.remove(at);
            return 0;
        }
        if flags & poll::UPDATE_USER_DATA != 0 {
            self.request(at).user_data = new;
        }
        if flags & poll::UPDATE_EVENTS != 0 {
            // How it was asked for stays.
            let (multi, level) = match self.request(at).plan {
                Plan::Poll { watch, level } => (watch.multi, level),
                _ => return -libc::ENOENT,
            };
            let key = self.key(at);
            let Stage::Poll(before) = self.request(at).stage else { return -libc::ENOENT };
            if multi && service::change(before, watch(events, true).events) {
                self.request(at).plan = Plan::Poll { watch: watch(events, true), level };
                return 0;
            }
            service::unwatch(before, key, Arc::as_ptr(self.core()).addr());
            let watch = watch(events, multi);
            let request = self.request(at);
            request.stage = Stage::Here;
            request.plan = Plan::Poll { watch, level };
            if let Some(result) = self.begin_poll(at, watch) {
                self.end_later(at, result);
            }
        }
        0
    }

    fn begin_timeout(&mut self, at: u32, mut timing: Timing) -> Option<i32> {
        let multishot = timing.flags & timeout::MULTISHOT != 0;
        if timing.flags & timeout::ABS == 0 {
            // From when it is started.
            timing.deadline = deadline(timing.period, libc::CLOCK_MONOTONIC, false);
        }
        let timer = match self.core().set_timer(timing.deadline, self.key(at)) {
            Ok(timer) => timer,
            Err(errno) => return Some(errno),
        };
        if timing.count > 0 && !multishot {
            timing.at = self.count_from_now(timing.count);
            self.counting.push(at);
        }
        let request = self.request(at);
        request.plan = Plan::Timeout(timing);
        request.stage = Stage::Timer(Some(timer));
        None
    }

    /// Sets a linked timeout for a request that was started.
    pub(crate) fn set_link_timeout(&mut self, target: u32, at: u32) {
        if self.request(at).refused != 0 || self.request(at).stage != Stage::Waits {
            return;
        }
        let Plan::LinkTimeout(mut timing) = self.request(at).plan.clone() else { return };
        if timing.flags & timeout::ABS == 0 {
            timing.deadline = deadline(timing.period, libc::CLOCK_MONOTONIC, false);
        }
        // Without a timer it is cancelled when its target has ended.
        let Ok(timer) = self.core().set_timer(timing.deadline, self.key(at)) else { return };
        let request = self.request(at);
        request.plan = Plan::LinkTimeout(timing);
        request.stage = Stage::LinkTimer(timer);
        request.target = target;
        self.request(target).timeout = at;
    }

    pub(crate) fn timer_fired(&mut self, at: u32) {
        let stage = self.request(at).stage;
        match (stage, self.request(at).plan.clone()) {
            (Stage::Timer(_), Plan::Timeout(timing)) => self.timeout_fired(at, timing),
            (Stage::LinkTimer(_), Plan::LinkTimeout(_)) => {
                let target = self.request(at).target;
                // The chain goes on without it.
                let after = self.request(at).next;
                if target != NONE {
                    self.request(target).timeout = NONE;
                    if self.request(target).next == at {
                        self.request(target).next = after;
                    }
                }
                let request = self.request(at);
                (request.target, request.next) = (NONE, NONE);
                request.stage = Stage::Here;
                let key = self.key(at);
                let found = if target == NONE { Vec::new() } else { vec![target] };
                if let Some(answer) = self.cancel_these(key, &found, false, true) {
                    let answer = if answer == 0 { -libc::ETIME } else { answer };
                    self.finish(at, answer, 0);
                }
            }
            _ => {}
        }
    }

    fn timeout_fired(&mut self, at: u32, mut timing: Timing) {
        if timing.flags & timeout::MULTISHOT == 0 || timing.count == 1 || !self.can_go_on() {
            return self.finish(at, -libc::ETIME, 0);
        }
        timing.count = timing.count.saturating_sub(1);
        timing.deadline = timing.deadline.saturating_add(timing.period.max(1));
        let Ok(timer) = self.core().set_timer(timing.deadline, self.key(at)) else {
            return self.finish(at, -libc::ETIME, 0);
        };
        let request = self.request(at);
        request.stage = Stage::Timer(Some(timer));
        request.plan = Plan::Timeout(timing);
        let user_data = request.user_data;
        self.post(abi::Cqe { user_data, res: -libc::ETIME, flags: abi::CQE_MORE }, true);
    }

    fn change_timeout(&mut self, of: u64, update: Option<(u64, u32)>) -> i32 {
        let of_link = update.is_some_and(|(_, flags)| flags & timeout::LINK_UPDATE != 0);
        let is_it = |request: &Request| {
            request.user_data == of
                && match request.stage {
                    Stage::Timer(_) => !of_link,
                    Stage::LinkTimer(_) => of_link,
                    _ => false,
                }
        };
        let found = self.live().find(|(_, request)| is_it(request)).map(|(at, _)| at);
        let Some(at) = found else { return -libc::ENOENT };
        let Some((time, flags)) = update else {
            self.remove(at);
            return 0;
        };
        let (Stage::Timer(Some(before)) | Stage::LinkTimer(before)) = self.request(at).stage else {
            return -libc::ENOENT;
        };
        let deadline = deadline(time, clock(flags), flags & timeout::ABS != 0);
        let timer = match self.core().set_timer(deadline, self.key(at)) {
            Ok(timer) => timer,
            Err(errno) => return errno,
        };
        before.disarm();
        let request = self.request(at);
        request.stage = match request.stage {
            Stage::LinkTimer(_) => Stage::LinkTimer(timer),
            _ => Stage::Timer(Some(timer)),
        };
        if let Plan::Timeout(timing) | Plan::LinkTimeout(timing) = &mut request.plan {
            (timing.deadline, timing.period) = (deadline, time);
        }
        0
    }

    fn begin_cancel(&mut self, at: u32, what: Match) -> Option<i32> {
        let key = self.key(at);
        match self.matching(at, &what) {
            Ok(found) => self.cancel_these(key, &found, what.is_for_all(), false),
            Err(errno) => Some(errno),
        }
    }

    /// The number of the file that a cancel means.
    fn file_of(&self, what: &Match) -> Result<i32, i32> {
        if what.flags & cancel::FD == 0 {
            return Ok(-1);
        }
        let number = if what.flags & cancel::FD_FIXED == 0 {
            Some(what.fd).filter(|&fd| sys::is_open(fd))
        } else {
            self.files.as_ref().and_then(|all| all.get(what.fd as u32)).map(|file| file.number())
        };
        number.ok_or(-libc::EBADF)
    }

    /// The requests that are meant, of those that a cancel can reach.
    fn matching(&self, except: u32, what: &Match) -> Result<Vec<u32>, i32> {
        let meant = self.file_of(what)?;
        // A number stands for one file while the lock is held, and is asked about once.
        let mut known = HashMap::from([(meant, true)]);
        let mut is_on_it =
            |number| *known.entry(number).or_insert_with(|| sys::is_same_file(number, meant));
        let reachable = |request: &Request| match request.stage {
            Stage::Ready | Stage::Tried | Stage::Engine | Stage::Poll(_) | Stage::Timer(_) => true,
            // Until its completion is posted it can be cancelled again, as in the kernel.
            Stage::Ends => !matches!(request.opcode, op::TIMEOUT | op::LINK_TIMEOUT),
            _ => false,
        };
        let is_meant = |(at, request): &(u32, &Request)| {
            *at != except && reachable(request) && what.is(request, &mut is_on_it)
        };
        if !what.is_for_all() {
            return Ok(self.live().find(is_meant).map(|(at, _)| at).into_iter().collect());
        }
        let mut found: Vec<(u32, u32)> =
            self.live().filter(is_meant).map(|(at, request)| (request.generation, at)).collect();
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, at)| at).collect())
    }

    /// Cancels requests for `by`. `None`: the engine has to be asked, and `by` gets the answer.
    fn cancel_these(&mut self, by: u64, found: &[u32], all: bool, link: bool) -> Option<i32> {
        let (mut done, mut keys, mut ends) = (0, Vec::new(), Vec::new());
        for &at in found {
            if !all && (done > 0 || !keys.is_empty()) {
                break;
            }
            match self.request(at).stage {
                Stage::Tried | Stage::Engine => keys.push(self.key(at)),
                Stage::Free => {}
                Stage::Ends => done += 1,
                _ => {
                    ends.push(at);
                    done += 1;
                }
            }
        }
        for at in ends {
            if keys.is_empty() {
                self.end_later(at, -libc::ECANCELED);
            } else {
                self.end_behind(by, at);
            }
        }
        if keys.is_empty() {
            return Some(match () {
                () if all => done,
                () if done > 0 => 0,
                () => -libc::ENOENT,
            });
        }
        for &key in &keys {
            self.request(key as u32).canceled_by = by;
        }
        if !link {
            self.request(by as u32).asks = true;
            self.asking += 1;
        }
        let job = CancelJob { keys, done, all, by, is_link_timeout: link };
        self.tasks.push(Task::Cancel(job));
        None
    }

    /// IORING_REGISTER_SYNC_CANCEL: what can be cancelled here is; gives that, how many were meant,
    /// and the keys of what the engine has.
    pub(crate) fn cancel_now(&mut self, what: &Match) -> Result<(i32, Vec<u64>), i32> {
        let found = self.matching(NONE, what)?;
        let (mut done, mut keys) = (0, Vec::new());
        for at in found {
            if !what.is_for_all() && (done > 0 || !keys.is_empty()) {
                break;
            }
            match self.request(at).stage {
                Stage::Tried | Stage::Engine => keys.push(self.key(at)),
                Stage::Free => {}
                Stage::Ends => done += 1,
                _ => {
                    self.end_later(at, -libc::ECANCELED);
                    done += 1;
                }
            }
        }
        Ok((done, keys))
    }
}

/// What is watched for events of a poll.
fn watch(events: u32, multi: bool) -> Watch {
    const OURS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
    Watch { events: events & !OURS & 0xffff, multi }
}
