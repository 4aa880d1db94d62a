//! lio_listio(3): many requests, and one word that counts those that have not ended.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::{Concern, IoEvent, Uncancelable, WaitCondition, Waited};

use crate::abi::{self, Aiocb, Sigevent};
use crate::submit::{self, Operation};
use crate::{notify, signals, state};

/// A list on its way. Each of its requests holds it, and the call that has submitted them.
#[derive(Debug)]
struct List {
    holders: AtomicU32,
    /// Requests that have not ended; one more while they are being submitted.
    remaining: AtomicU32,
    /// To be sent at the end, if nobody waits. What its kind does not use may be anything.
    sigevent: Option<MaybeUninit<Sigevent>>,
}

// SAFETY: what a sigevent points to is the program's, and passed on to its function only.
unsafe impl Sync for List {}

/// To what list a request belongs: the address, and a flag in its lowest bit. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member(u64);

/// The end of the list tells somebody.
const TELLS: u64 = 1;

impl Member {
    pub(crate) const fn none() -> Self {
        Self(0)
    }

    /// The member that a word came from, to be asked only, or, once, to be ended.
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn tells(self) -> bool {
        self.0 & TELLS != 0
    }

    fn list(self) -> *const List {
        (self.0 & !TELLS) as *const List
    }

    /// The request has ended.
    ///
    /// # Safety
    /// It was accepted with this member, which `listio` has counted; called once for it.
    #[inline]
    pub(crate) unsafe fn ended(self) {
        if self.0 != 0 {
            // SAFETY: a member holds its list, and lets go of it here, by the caller's contract.
            unsafe { one_less(self.list()) };
        }
    }
}

/// # Safety
/// The caller is a holder, and counted in `remaining`; it is neither any more afterwards.
#[cold]
unsafe fn one_less(list: *const List) {
    // SAFETY: held by the caller.
    let fields = unsafe { &*list };
    // Release and acquire: what the others have done is done.
    if fields.remaining.fetch_sub(1, Ordering::AcqRel) == 1
        && let Some(event) = &fields.sigevent
    {
        // SAFETY: of the program's, by the contract of lio_listio(3).
        unsafe { notify::send(event.as_ptr()) };
    }
    // SAFETY: as above.
    unsafe { let_go(list) };
}

/// # Safety
/// The caller is a holder, and none afterwards.
unsafe fn let_go(list: *const List) {
    // SAFETY: held by the caller.
    if unsafe { (*list).holders.fetch_sub(1, Ordering::AcqRel) } == 1 {
        // SAFETY: from a box in `listio`, and nobody else holds it.
        drop(unsafe { Box::from_raw(list.cast_mut()) });
    }
}

/// lio_listio(3). `before_2_4` asks for the version of then, which the C library has broken since:
/// it never waits, and sends no notification for a list of nothing.
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
        // A signal handler in a thread that is inside: POSIX does not ask for this to work.
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
    let member = Member(list as u64 | if tells { TELLS } else { 0 });
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
        // SAFETY: nobody else has it.
        unsafe { (*list).sigevent = None };
    }
    // SAFETY: one of the two holds of this call, and its count.
    unsafe { one_less(list) };
    // SAFETY: held by this call until below.
    let waited = if waits { wait(unsafe { &*list }) } else { Waited::Enough };
    // SAFETY: the other one.
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
        // SAFETY: the list that is waited for. Its holder waits, or has left the wait by a jump and
        // never gives it back.
        list as u64 == words[0] && unsafe { (*list).remaining.load(Ordering::Acquire) } == 0
    };
    // SAFETY: as said there.
    let concern = unsafe { Concern::new(is_last, &[std::ptr::from_ref(list) as u64]) };
    let wish = WaitCondition {
        missing: &missing,
        concern,
        gives_up: &|| false,
        mask: None,
        restarts: true,
    };
    loop {
        match process.instance.wait_for(&wish, None) {
            Waited::Interrupted if signals::all_restart() => {}
            ended => return ended,
        }
    }
}
