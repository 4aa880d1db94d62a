//! Plans entries. [`plan`] uses the entry's fields alone: it reads no memory of the program, and
//! makes no call. As in the kernel, an entry that fails here ends its batch, unless the entry is
//! linked to the next one. In a ring with SUBMIT_ALL or SQPOLL, the batch always goes on.

use uringlet::Sqe;

use crate::abi::{cancel, iosqe, op};
use crate::buffers::Provided;
use crate::calls::Call;
use crate::service::Watch;

mod attempts;
mod calls;
mod plans;
mod sockets;
mod table;

pub(crate) use self::sockets::{is_plain_send, notice, plain_send};
pub(crate) use self::table::{borrows, forgives, has_file, is_known, send_borrows};

/// A function that makes the call of an entry, and copies what the entry points to.
type CallOf = fn(&Fields) -> Result<Call, i32>;

/// What an entry asks for.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Nop(i32),
    /// The engine executes this entry. With a registered buffer: its number.
    Engine(Sqe, Option<u16>),
    /// The engine executes this entry, once the iovecs were copied. With a registered buffer: its
    /// number.
    Vectored(Sqe, Option<u16>),
    /// A system call that the engine does not have. `Some`: the slot for the descriptor that it
    /// opens.
    Call(Option<u32>, CallOf),
    CloseSlot(u32),
    Poll(Watch),
    PollUpdate {
        old: u64,
        new: u64,
        events: u32,
        flags: u32,
    },
    Timeout(Timing),
    TimeoutRemove {
        of: u64,
        /// The new time and its flags.
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
    /// With a `slot`, both ends go into slots: into this one and the next, or into any two.
    Pipe {
        at: u64,
        flags: u32,
        slot: Option<u32>,
    },
    /// The program provides a list of buffers, which begins with `first`.
    Provide {
        group: u16,
        count: u32,
        first: Provided,
    },
    RemoveProvided {
        group: u16,
        count: u32,
    },
    Message(RingMessage),
}

impl Plan {
    /// The engine's request.
    pub(crate) fn sqe(&self) -> Sqe {
        match self {
            Self::Engine(sqe, _) => *sqe,
            _ => Sqe::nop(),
        }
    }
}

/// A timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// In nanoseconds of CLOCK_MONOTONIC. Set when the timeout starts.
    pub(crate) deadline: u64,
    /// The time in the entry, in nanoseconds.
    pub(crate) period: u64,
    pub(crate) flags: u32,
    /// The number of completions that end the timeout; 0: they do not end it. For a multishot
    /// timeout: the expirations that are left, or 0 without end.
    pub(crate) count: u32,
    /// The ring's count of posted completions at which the timeout ends.
    pub(crate) at: u32,
}

/// A message to another ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMessage {
    pub(crate) kind: u64,
    pub(crate) user_data: u64,
    pub(crate) len: u32,
    /// The slot of a file in the sending ring.
    pub(crate) source: u64,
    /// For a file: the slot in the other ring, plus one. For data: the flags of the completion.
    pub(crate) target: u32,
    pub(crate) flags: u32,
}

impl RingMessage {
    pub(crate) fn of(fields: &Fields) -> Self {
        Self {
            // The kernel reads 32 bits of these two fields.
            kind: fields.addr() as u32 as u64,
            user_data: fields.off(),
            len: fields.len(),
            source: fields.addr3() as u32 as u64,
            target: fields.file_index(),
            flags: fields.op_flags(),
        }
    }
}

/// The requests that a cancel means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) user_data: u64,
    pub(crate) fd: i32,
    pub(crate) opcode: u8,
    pub(crate) flags: u32,
}

impl Match {
    pub(crate) fn is_for_all(&self) -> bool {
        self.flags & (cancel::ALL | cancel::ANY) != 0
    }
}

/// An entry (`struct io_uring_sqe`), in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields(pub(crate) [u64; 8]);

/// Fields, each with its word and its first bit.
macro_rules! fields {
    ($($name:ident: $type:ty = $word:literal, $bit:literal;)*) => {
        $(
            #[inline(always)]
            pub(crate) fn $name(&self) -> $type {
                (self.0[$word] >> $bit) as $type
            }
        )*
    };
}

/// Transfers without flags and without a priority: the low half of word 0 of an entry.
const PLAIN: [u32; 4] = [op::READ as u32, op::WRITE as u32, op::READV as u32, op::WRITEV as u32];

impl Fields {
    fields! {
        opcode: u8 = 0, 0;
        flags: u8 = 0, 8;
        ioprio: u16 = 0, 16;
        fd: i32 = 0, 32;
        off: u64 = 1, 0;
        addr: u64 = 2, 0;
        len: u32 = 3, 0;
        op_flags: u32 = 3, 32;
        user_data: u64 = 4, 0;
        buf_index: u16 = 5, 0;
        personality: u16 = 5, 16;
        file_index: u32 = 5, 32;
        addr3: u64 = 6, 0;
    }

    /// The entry as a read or a write at an offset. `None`: it is another operation, or has flags.
    #[inline]
    pub(crate) fn plain_transfer(&self) -> Option<Sqe> {
        // The low half of word 0: operation, flags and priority. Word 5: a buffer's index, a
        // personality, and a file's slot. Word 7: attributes.
        let is_plain = PLAIN.contains(&(self.0[0] as u32)) && self.0[5] | self.0[7] == 0;
        (is_plain && self.op_flags() == 0).then(|| self.sqe())
    }

    /// Is it a NOP without flags, files and buffers?
    #[inline]
    pub(crate) fn is_plain_nop(&self) -> bool {
        self.0[0] as u32 == op::NOP.into() && self.0[5] == 0 && self.op_flags() == 0
    }

    /// The slot for an opened file, or of a closed one. The field's value is one more.
    fn slot(&self) -> Option<u32> {
        self.file_index().checked_sub(1)
    }

    fn sqe(&self) -> Sqe {
        let (opcode, fd, off, addr) = (self.opcode(), self.fd(), self.off(), self.addr());
        Sqe { opcode, fd, off, addr, len: self.len(), op_flags: self.op_flags(), ..Sqe::nop() }
    }
}

/// The reason for refusing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The errno of an entry that no ring accepts.
    Malformed(i32),
    /// The errno counts only if the ring allows the entry's operation and flags.
    Errno(i32),
}

impl From<i32> for Refused {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

/// Plans an entry. `iopoll`: its ring polls for completions.
///
/// # Errors
/// The reason for refusing the entry, with the kernel's negative errno for it.
#[inline(always)]
pub(crate) fn plan(fields: &Fields, iopoll: bool) -> Result<Plan, Refused> {
    let (opcode, flags) = (fields.opcode(), fields.flags());
    let Some(row) = table::row_of(opcode).filter(|_| flags & !iosqe::KNOWN == 0) else {
        return Err(Refused::Malformed(-libc::EINVAL));
    };
    let selects = flags & iosqe::BUFFER_SELECT != 0;
    if selects && !row.selects() {
        return Err(Refused::Malformed(-libc::EOPNOTSUPP));
    }
    let is_transfer = op::is_transfer(opcode);
    if fields.ioprio() != 0 {
        let checked = is_transfer.then(|| uringlet::front::check_priority(fields.ioprio()));
        checked.unwrap_or_else(|| row.takes_priority(fields.ioprio()))?;
    }
    if iopoll
        && !is_transfer
        && !matches!(
            opcode,
            op::NOP | op::FILES_UPDATE | op::MSG_RING | op::PROVIDE_BUFFERS | op::REMOVE_BUFFERS
        )
    {
        return Err(Refused::Errno(-libc::EINVAL));
    }
    if fields.personality() != 0 {
        return Err(Refused::Errno(-libc::EINVAL));
    }
    // The most frequent entries need none of the row's checks.
    if matches!(opcode, op::READ | op::WRITE) && !selects && fields.0[7] == 0 {
        return Ok(Plan::Engine(fields.sqe(), None));
    }
    Ok(row.plan(fields)?)
}

#[cfg(test)]
mod tests;
