//! Plans entries of operations that few programs use, and makes their [`Attempt`]s.

use std::sync::Arc;

use super::calls::Made;
use super::plans::Planned;
use super::{Fields, Plan};
use crate::abi::{command, iosqe, op};
use crate::attempts::{Attempt, Command, EpollWait, FutexWait, FutexWake, WaitChild};
use crate::calls::Call;
use crate::sockets::{Ask, Socket};
use crate::sys::futexes::FutexWaitV;
use crate::user;

fn made(fields: &Fields, attempt: impl Attempt + 'static) -> Made {
    let socket = Socket::new(Ask::Other(Arc::new(attempt)), 0);
    Ok(Call::Socket { fd: fields.fd(), socket: Arc::new(socket) })
}

pub(super) fn epoll_wait(fields: &Fields) -> Made {
    made(fields, EpollWait { at: fields.addr(), most: fields.len() as i32 })
}

/// URING_CMD. The number of the command is the lower half of the offset field, and the upper half
/// must be 0. No command is a multishot.
pub(super) fn plan_command(fields: &Fields) -> Planned {
    let is_odd = fields.off() >> 32 != 0
        || fields.op_flags() & !command::FIXED_BUFFER != 0
        || fields.flags() & iosqe::BUFFER_SELECT != 0;
    if is_odd { Err(-libc::EINVAL) } else { Ok(Plan::Call(None, command)) }
}

fn command(fields: &Fields) -> Made {
    let option = [fields.addr() as i32, (fields.addr() >> 32) as i32];
    let (at, len) = (fields.addr3(), fields.file_index());
    made(
        fields,
        match fields.off() as u32 {
            command::SIOCINQ => Command::Readable,
            command::SIOCOUTQ => Command::Unsent,
            command::GET_OPTION => Command::GetOption(option, at, len),
            command::SET_OPTION => Command::SetOption(option, at, len),
            _ => Command::Other,
        },
    )
}

/// Flags of a futex: its word has 32 bits (`FUTEX2_SIZE_U32`); only this process uses it.
const SIZE_32: u32 = 2;
const PRIVATE: u32 = 128;
const ANYBODY: u64 = u32::MAX as u64;

/// FUTEX_WAIT and FUTEX_WAKE.
pub(super) fn plan_futex(fields: &Fields) -> Planned {
    let (value, mask) = (fields.off(), fields.addr3());
    let is_known = fields.fd() as u32 & !PRIVATE == SIZE_32;
    if !is_known || value > ANYBODY || mask > ANYBODY {
        return Err(-libc::EINVAL);
    }
    Ok(Plan::Call(None, if fields.opcode() == op::FUTEX_WAKE { wake } else { wait }))
}

fn wake(fields: &Fields) -> Made {
    let (word, count, mask) = (fields.addr(), fields.off() as u32, fields.addr3() as u32);
    let is_private = fields.fd() as u32 & PRIVATE != 0;
    made(fields, FutexWake { word, count, mask, is_private })
}

/// FUTEX_WAIT. The wait is made by futex_waitv(2), which has no mask of bits. So only the full mask
/// is accepted.
fn wait(fields: &Fields) -> Made {
    if fields.addr3() != ANYBODY {
        return Err(-libc::EINVAL);
    }
    let (value, word, flags) = (fields.off(), fields.addr(), fields.fd() as u32);
    made(fields, FutexWait::new(vec![FutexWaitV { value, word, flags, reserved: 0 }], false)?)
}

/// FUTEX_WAITV.
pub(super) fn plan_wait_any(fields: &Fields) -> Planned {
    const MOST: u32 = 128;
    let is_odd = fields.fd() != 0 || !(1..=MOST).contains(&fields.len());
    if is_odd { Err(-libc::EINVAL) } else { Ok(Plan::Call(None, wait_any)) }
}

fn wait_any(fields: &Fields) -> Made {
    let mut words: Vec<FutexWaitV> = Vec::new();
    user::read_array(fields.addr() as usize, fields.len() as usize, &mut words)?;
    let is_known = |waiter: &FutexWaitV| waiter.flags & !PRIVATE == SIZE_32 && waiter.reserved == 0;
    if !words.iter().all(is_known) {
        return Err(-libc::EINVAL);
    }
    made(fields, FutexWait::new(words, true)?)
}

/// WAITID. `__WNOTHREAD` is refused: it would mean the children of the thread that waits, not of
/// the submitter.
pub(super) fn wait_child(fields: &Fields) -> Made {
    let options = fields.file_index() as i32;
    if options & libc::__WNOTHREAD != 0 {
        return Err(-libc::EINVAL);
    }
    made(fields, WaitChild::new((fields.len() as i32, fields.fd()), fields.off(), options))
}
