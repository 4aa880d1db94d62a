//! lio_listio(3): many requests at a time.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::{Concern, IoEvent, Uncancelable, WaitCondition, Waited};

use crate::abi::{self, Aiocb, Sigevent};
use crate::member::{List, Member, let_go, one_less};
use crate::request::Operation;
use crate::{notify, signals, state, submit};

/// lio_listio(3). `before_2_4`: behaves as the C library's function for programs from before glibc
/// 2.4. That function never waits, and sends no notification if no request was started.
///
/// # Safety
/// As lio_listio(3).
pub(crate) unsafe fn listio(
    mode: c_int,
    blocks: *const *mut Aiocb,
    count: c_int,
    event: *const Sigevent,
    before_2_4: bool,
    nested: bool,
) -> Result<c_int, c_int> {
    if mode != abi::LIO_WAIT && mode != abi::LIO_NOWAIT {
        return Err(libc::EINVAL);
    }
    if nested {
        // POSIX does not require this to work in a handler that has interrupted the library.
        return Err(libc::EAGAIN);
    }
    let waits = mode == abi::LIO_WAIT && !before_2_4;
    // SAFETY: null, or a sigevent by the caller's contract.
    let sigevent = unsafe { event.cast::<MaybeUninit<Sigevent>>().as_ref() };
    let sigevent = sigevent.copied().filter(|_| !waits);
    // SAFETY: as above.
    let tells = sigevent.is_some_and(|event| unsafe { notify::tells(event.as_ptr()) });
    let (holders, remaining) = (AtomicU32::new(2), AtomicU32::new(1));
    let list = Box::into_raw(Box::new(List { holders, remaining, sigevent }));
    let member = Member::of(list, tells);
    let (mut started, mut refused) = (false, None);
    let asked = || {
        let all = (0..usize::try_from(count).unwrap_or(0)).map(|at| {
            // SAFETY: `count` pointers by the caller's contract.
            unsafe { blocks.add(at).read_unaligned() }
        });
        // SAFETY: null or a control block.
        all.filter(|&block| !block.is_null() && unsafe { (*block).lio_opcode } != abi::LIO_NOP)
    };
    for block in asked() {
        // SAFETY: held by this call.
        let fields = unsafe { &*list };
        fields.holders.fetch_add(1, Ordering::Relaxed);
        fields.remaining.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a control block by the caller's contract.
        let answer = unsafe {
            let operation = Operation::of((*block).lio_opcode);
            submit::start(block, operation, member, false)
        };
        started |= answer.is_ok();
        if let Err(errno) = answer {
            refused = Some(errno);
            fields.holders.fetch_sub(1, Ordering::Relaxed);
            fields.remaining.fetch_sub(1, Ordering::Relaxed);
        }
    }
    if before_2_4 && !started {
        // SAFETY: no request was started, so only this call has the list.
        unsafe { (*list).sigevent = None };
    }
    // SAFETY: this call has two references to the list, and is counted once. This gives up one
    // reference, and the count.
    unsafe { one_less(list) };
    // SAFETY: held by this call until below.
    let waited = if waits { wait(unsafe { &*list }) } else { Waited::Enough };
    // SAFETY: the other reference of this call.
    unsafe { let_go(list) };
    if !waits || !started {
        return refused.map_or(Ok(0), Err);
    }
    // SAFETY: control blocks of the caller's.
    let failed = |block: *mut Aiocb| unsafe { (*block).error.load(Ordering::Acquire) } != 0;
    match waited {
        Waited::Interrupted => Err(libc::EINTR),
        _ if refused.is_some() || asked().any(failed) => Err(libc::EIO),
        _ => Ok(0),
    }
}

/// Waits for the end of the list.
fn wait(list: &List) -> Waited {
    let Some(process) = state::current() else { return Waited::Enough };
    let _whole = Uncancelable::new();
    let missing = || list.remaining.load(Ordering::Acquire);
    let is_last = |words: &[u64; 8], event: &IoEvent| {
        let list = Member::from_word(event.data).list();
        // SAFETY: the list that the call waits for. The call keeps its reference while it waits. If
        // a signal handler leaves the call by a jump, the reference is never dropped.
        list as u64 == words[0] && unsafe { (*list).remaining.load(Ordering::Acquire) } == 0
    };
    // SAFETY: `is_last` follows no other address than that in `words`. The list there lives as long
    // as this call waits.
    let concern = unsafe { Concern::new(is_last, &[std::ptr::from_ref(list) as u64]) };
    let wish = WaitCondition {
        missing: &missing,
        concern,
        gives_up: &|| false,
        mask: None,
        restarts: true,
        beside: None,
    };
    loop {
        match process.instance.wait_for(&wish, None) {
            Waited::Interrupted if signals::all_restart() => {}
            ended => return ended,
        }
    }
}
