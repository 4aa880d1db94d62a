//! What is known of each operation: the fields of an entry that must be 0, its flags, whether it is
//! on a file. To add an operation, add a row.

use super::{CallOf, Fields, Plan, attempts, calls, plans, sockets};
use crate::abi::{accept, cancel, iosqe, message, message_ring, op, splice, timeout};

/// Fields of an entry.
const OFF: u8 = 1 << 0;
const ADDR: u8 = 1 << 1;
const LEN: u8 = 1 << 2;
const FLAGS: u8 = 1 << 3;
const INDEX: u8 = 1 << 4;
const SLOT: u8 = 1 << 5;
const ADDR3: u8 = 1 << 6;
/// The last eight bytes; in transfers, the kinds of attributes (RW_ATTR, which is not offered).
const LAST: u8 = 1 << 7;

/// The meaning of the index of a registered file in an entry (`IOSQE_FIXED_FILE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FixedFile {
    /// The index is ignored: the operation is on no file.
    Ignored,
    /// The operation uses that file.
    Taken,
    /// The operation needs a registered file.
    Needed,
    /// The entry is refused with this errno.
    Refused(i32),
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Plan(fn(&Fields) -> Result<Plan, i32>),
    /// The plan is a call, which this function makes from the entry.
    Call(CallOf),
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    opcode: u8,
    make: Make,
    /// Fields that must be 0.
    idle: u8,
    /// The operation's known flags.
    flags: u32,
    /// The known flags of a socket's operation, in the field `ioprio`.
    priority: u16,
    registered: FixedFile,
    /// The operation takes a buffer of a group, if an entry asks for it (`IOSQE_BUFFER_SELECT`).
    selects: bool,
    /// An entry points to memory of the program's, which is copied at submit.
    borrows: bool,
    /// If the operation's system call fails, the chain goes on all the same, as in the kernel.
    forgives: bool,
}

const fn new(opcode: u8, make: Make) -> Row {
    let registered = FixedFile::Ignored;
    Row {
        opcode,
        make,
        idle: 0,
        flags: u32::MAX,
        priority: 0,
        registered,
        selects: false,
        borrows: false,
        forgives: false,
    }
}

const fn row(opcode: u8, make: fn(&Fields) -> Result<Plan, i32>) -> Row {
    new(opcode, Make::Plan(make))
}

const fn call(opcode: u8, make: CallOf) -> Row {
    new(opcode, Make::Call(make))
}

impl Row {
    const fn idle(self, idle: u8) -> Self {
        Self { idle, ..self }
    }

    const fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    const fn priority(self, priority: u16) -> Self {
        Self { priority, ..self }
    }

    const fn selects_buffer(self) -> Self {
        Self { selects: true, ..self }
    }

    const fn borrows(self) -> Self {
        Self { borrows: true, ..self }
    }

    const fn forgives(self) -> Self {
        Self { forgives: true, ..self }
    }

    const fn on_file(self) -> Self {
        Self { registered: FixedFile::Taken, ..self }
    }

    const fn on_registered_file(self) -> Self {
        Self { registered: FixedFile::Needed, ..self }
    }

    const fn refuses_registered(self, errno: i32) -> Self {
        Self { registered: FixedFile::Refused(errno), ..self }
    }

    /// The operation resolves names, from a directory that is no registered file.
    const fn of_names(self) -> Self {
        self.borrows().refuses_registered(-libc::EBADF)
    }

    pub(super) fn selects(&self) -> bool {
        self.selects
    }

    /// Are all flags in the field `ioprio` known?
    pub(super) fn takes_priority(&self, priority: u16) -> Result<(), i32> {
        if priority & !self.priority == 0 { Ok(()) } else { Err(-libc::EINVAL) }
    }

    /// Plans the entry, or returns a negative errno.
    pub(super) fn plan(&self, fields: &Fields) -> Result<Plan, i32> {
        if self.idle & fields.used() != 0 {
            return Err(-libc::EINVAL);
        }
        match (fields.flags() & iosqe::FIXED_FILE != 0, self.registered) {
            (true, FixedFile::Refused(errno)) => return Err(errno),
            (false, FixedFile::Needed) => return Err(-libc::EBADF),
            _ => {}
        }
        if fields.op_flags() & !self.flags != 0 {
            return Err(-libc::EINVAL);
        }
        match self.make {
            Make::Plan(make) => make(fields),
            Make::Call(make) => Ok(Plan::Call(None, make)),
        }
    }
}

impl Fields {
    /// The fields that are not 0.
    fn used(&self) -> u8 {
        let values = [
            (OFF, self.off()),
            (ADDR, self.addr()),
            (LEN, self.len().into()),
            (FLAGS, self.op_flags().into()),
            (INDEX, self.buf_index().into()),
            (SLOT, self.file_index().into()),
            (ADDR3, self.addr3()),
            (LAST, self.0[7]),
        ];
        values.iter().filter(|(_, value)| *value != 0).fold(0, |used, (field, _)| used | field)
    }
}

/// The operations that are executed.
const ROWS: [Row; 62] = [
    row(op::NOP, plans::nop).flags(1),
    row(op::READ, plans::read).idle(LAST).on_file().selects_buffer(),
    row(op::WRITE, plans::engine).idle(LAST).on_file(),
    row(op::READV, plans::vectored).idle(LAST).on_file().borrows().selects_buffer(),
    row(op::WRITEV, plans::vectored).idle(LAST).on_file().borrows(),
    row(op::READ_FIXED, plans::of_buffer).idle(LAST).on_file(),
    row(op::WRITE_FIXED, plans::of_buffer).idle(LAST).on_file(),
    row(op::READV_FIXED, plans::vectored).idle(LAST).on_file().borrows(),
    row(op::WRITEV_FIXED, plans::vectored).idle(LAST).on_file().borrows(),
    row(op::FSYNC, plans::fsync).idle(ADDR | INDEX | SLOT).flags(1).on_file().forgives(),
    row(op::SYNC_FILE_RANGE, plans::engine).idle(ADDR | INDEX | SLOT).on_file().forgives(),
    row(op::FALLOCATE, plans::engine).idle(FLAGS | INDEX | SLOT).on_file().forgives(),
    row(op::FTRUNCATE, plans::engine)
        .idle(ADDR | LEN | FLAGS | INDEX | SLOT | ADDR3)
        .on_file()
        .forgives(),
    row(op::FADVISE, plans::engine).idle(INDEX | SLOT).on_file(),
    call(op::MADVISE, calls::madvise).idle(INDEX | SLOT).forgives(),
    row(op::OPENAT, plans::open).idle(INDEX).of_names(),
    row(op::OPENAT2, plans::open).idle(INDEX).of_names(),
    row(op::CLOSE, plans::close)
        .idle(OFF | ADDR | LEN | FLAGS | INDEX)
        .refuses_registered(-libc::EBADF),
    call(op::STATX, calls::statx).idle(INDEX | SLOT).of_names().forgives(),
    call(op::UNLINKAT, calls::unlink)
        .idle(OFF | LEN | INDEX | SLOT)
        .flags(libc::AT_REMOVEDIR as u32)
        .of_names()
        .forgives(),
    call(op::RENAMEAT, calls::rename).idle(INDEX | SLOT).of_names().forgives(),
    call(op::LINKAT, calls::rename).idle(INDEX | SLOT).of_names().forgives(),
    call(op::SYMLINKAT, calls::symlink).idle(LEN | FLAGS | INDEX | SLOT).of_names().forgives(),
    call(op::MKDIRAT, calls::mkdir).idle(OFF | FLAGS | INDEX | SLOT).of_names().forgives(),
    call(op::SETXATTR, calls::xattr).flags(3).of_names().forgives(),
    call(op::GETXATTR, calls::xattr).flags(0).of_names().forgives(),
    call(op::FSETXATTR, calls::xattr).flags(3).on_file().borrows().forgives(),
    call(op::FGETXATTR, calls::xattr).flags(0).on_file().borrows().forgives(),
    call(op::SPLICE, calls::splice).flags(splice::KNOWN).on_file(),
    call(op::TEE, calls::splice).idle(OFF | ADDR).flags(splice::KNOWN).on_file(),
    row(op::SEND, sockets::plan_send)
        .on_file()
        .borrows()
        .priority(message::OF_SENDS | message::BUNDLE)
        .selects_buffer(),
    row(op::SEND_ZC, sockets::plan_send)
        .idle(ADDR3 | LAST)
        .on_file()
        .borrows()
        .priority(message::OF_NOTICES),
    row(op::SENDMSG_ZC, sockets::plan_send_message)
        .idle(OFF | SLOT | ADDR3 | LAST)
        .on_file()
        .borrows()
        .priority(message::OF_NOTICES),
    row(op::RECV, sockets::plan_receive)
        .idle(OFF)
        .on_file()
        .priority(message::POLL_FIRST | message::MULTISHOT | message::BUNDLE)
        .selects_buffer(),
    row(op::SENDMSG, sockets::plan_message)
        .idle(OFF | SLOT)
        .on_file()
        .borrows()
        .priority(message::OF_SENDS),
    row(op::RECVMSG, sockets::plan_receive)
        .idle(OFF | SLOT)
        .on_file()
        .borrows()
        .priority(message::POLL_FIRST | message::MULTISHOT)
        .selects_buffer(),
    row(op::ACCEPT, sockets::plan_accept)
        .idle(LEN | INDEX)
        .on_file()
        .priority(accept::MULTISHOT | accept::DONTWAIT | accept::POLL_FIRST),
    call(op::CONNECT, sockets::to_name).idle(LEN | FLAGS | INDEX | SLOT).on_file().borrows(),
    call(op::BIND, sockets::to_name).idle(LEN | FLAGS | INDEX | SLOT).on_file().borrows(),
    call(op::LISTEN, sockets::listen).idle(OFF | ADDR | FLAGS | INDEX | SLOT).on_file(),
    call(op::SHUTDOWN, sockets::shutdown)
        .idle(OFF | ADDR | FLAGS | INDEX | SLOT)
        .on_file()
        .forgives(),
    row(op::SOCKET, sockets::plan_socket).idle(ADDR | FLAGS | INDEX),
    row(op::PIPE, plans::pipe).idle(OFF | ADDR3).flags(plans::PIPE_FLAGS),
    row(op::URING_CMD, attempts::plan_command).on_file().selects_buffer(),
    call(op::EPOLL_WAIT, attempts::epoll_wait).idle(OFF | FLAGS | INDEX | SLOT).on_file(),
    row(op::FUTEX_WAIT, attempts::plan_futex).idle(LEN | FLAGS | INDEX | SLOT),
    row(op::FUTEX_WAKE, attempts::plan_futex).idle(LEN | FLAGS | INDEX | SLOT),
    row(op::FUTEX_WAITV, attempts::plan_wait_any)
        .idle(OFF | FLAGS | INDEX | SLOT | ADDR3)
        .borrows(),
    call(op::WAITID, attempts::wait_child).idle(ADDR | FLAGS | INDEX | ADDR3),
    row(op::POLL_ADD, plans::poll_add).idle(OFF | ADDR | INDEX).on_file(),
    row(op::POLL_REMOVE, plans::poll_remove).idle(INDEX | SLOT),
    row(op::TIMEOUT, plans::timeout)
        .idle(INDEX | SLOT | ADDR3 | LAST)
        .flags(timeout::KNOWN)
        .borrows(),
    row(op::LINK_TIMEOUT, plans::timeout)
        .idle(OFF | INDEX | SLOT | ADDR3 | LAST)
        .flags(timeout::KNOWN)
        .borrows(),
    row(op::TIMEOUT_REMOVE, plans::timeout_remove)
        .idle(LEN | INDEX | SLOT | ADDR3 | LAST)
        .flags(timeout::UPDATE_KNOWN)
        .refuses_registered(-libc::EINVAL)
        .borrows(),
    row(op::ASYNC_CANCEL, plans::cancel).idle(OFF | SLOT).flags(cancel::KNOWN),
    row(op::FILES_UPDATE, plans::files_update).idle(FLAGS | SLOT).refuses_registered(-libc::EINVAL),
    row(op::EPOLL_CTL, plans::epoll_ctl).idle(INDEX | SLOT).borrows(),
    row(op::FIXED_FD_INSTALL, plans::install)
        .idle(OFF | ADDR | LEN | INDEX | SLOT | ADDR3)
        .flags(1)
        .on_registered_file(),
    row(op::READ_MULTISHOT, plans::read_more).idle(ADDR | LEN).on_file().selects_buffer(),
    row(op::MSG_RING, plans::message).idle(INDEX).flags(message_ring::KNOWN).on_file(),
    row(op::PROVIDE_BUFFERS, plans::provide_buffers).idle(FLAGS | SLOT),
    row(op::REMOVE_BUFFERS, plans::remove_buffers).idle(OFF | ADDR | LEN | FLAGS | SLOT),
];

/// The rows by opcode.
static TABLE: [Option<Row>; op::LAST as usize] = {
    let mut table = [None; op::LAST as usize];
    let mut at = 0;
    while at < ROWS.len() {
        table[ROWS[at].opcode as usize] = Some(ROWS[at]);
        at += 1;
    }
    table
};

/// A bit for each operation that borrows memory, for each that is on a file, and for each that
/// forgives.
const SETS: (u64, u64, u64) = {
    let (mut borrows, mut on_file, mut forgives, mut at) = (0, 0, 0, 0);
    while at < ROWS.len() {
        let bit = 1 << ROWS[at].opcode;
        if ROWS[at].borrows {
            borrows |= bit;
        }
        if matches!(ROWS[at].registered, FixedFile::Taken | FixedFile::Needed) {
            on_file |= bit;
        }
        if ROWS[at].forgives {
            forgives |= bit;
        }
        at += 1;
    }
    (borrows, on_file, forgives)
};

/// The row of an operation, if the opcode is one.
pub(super) fn row_of(opcode: u8) -> Option<&'static Row> {
    TABLE.get(usize::from(opcode))?.as_ref()
}

/// Does a probe report this operation?
pub(crate) fn is_known(opcode: u8) -> bool {
    row_of(opcode).is_some()
}

/// Does a chain go on where the system call of this operation fails?
pub(crate) fn forgives(opcode: u8) -> bool {
    opcode < op::LAST && SETS.2 >> opcode & 1 != 0
}

/// Does an entry of this operation point to memory of the program's that is copied at submit?
pub(crate) fn borrows(opcode: u8) -> bool {
    opcode < op::LAST && SETS.0 >> opcode & 1 != 0
}

/// Does this SEND point to memory that is copied at submit, a name or a list? Most do not.
pub(crate) fn send_borrows(fields: &Fields) -> bool {
    fields.off() != 0 || fields.ioprio() & message::VECTORED != 0
}

/// Are the requests of this operation on an open file?
pub(crate) fn has_file(opcode: u8) -> bool {
    opcode < op::LAST && SETS.1 >> opcode & 1 != 0
}
