//! The calls that wait for descriptors, for drop-ins that export them. `see_waits!` makes the
//! functions: poll(2), ppoll(2), select(2), pselect(2), epoll_wait(2), epoll_pwait(2) and
//! epoll_pwait2(2).
//!
//! A thread that hands requests to the kernel by itself, and then sleeps in one of these calls, is
//! an event loop. It sleeps in ppoll(2) with one more descriptor for each of its contexts, so the
//! kernel's completions end the sleep, too. When such a descriptor is readable, the thread collects
//! completions. That counts up the program's eventfds. Then poll(2) returns what is ready, and any
//! other call is made without waiting. No thread of the engine is woken.
//!
//! A thread may end in such a call (pthreads(7)), or a signal handler may leave the call by a jump.
//! So no lock is held while the thread sleeps.
#![allow(unsafe_code)]

mod time;
mod watching;

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use self::time::Time;
use self::watching::Watching;
use super::descriptors::Next;
use super::memory::accessible_now;
use crate::descriptor;
use crate::errno::kept as enter;
use crate::eventfd::Counted;
use crate::sys;
use crate::threads::Threads;
use crate::threads::loops::{self, AT_A_TIME};

static POLL: Next = Next::new(c"poll");
static PPOLL: Next = Next::new(c"ppoll");
static POLL_CHECKED: Next = Next::new(c"__poll_chk");
static PPOLL_CHECKED: Next = Next::new(c"__ppoll_chk");
static SELECT: Next = Next::new(c"select");
static PSELECT: Next = Next::new(c"pselect");
static EPOLL_WAIT: Next = Next::new(c"epoll_wait");
static EPOLL_PWAIT: Next = Next::new(c"epoll_pwait");
static EPOLL_PWAIT2: Next = Next::new(c"epoll_pwait2");

/// Finds the definitions that the functions here call, and tells the engine that these calls are
/// seen.
pub extern "C" fn find_next() {
    let all = [&POLL, &PPOLL, &POLL_CHECKED, &PPOLL_CHECKED, &SELECT, &PSELECT];
    let epolls = [&EPOLL_WAIT, &EPOLL_PWAIT, &EPOLL_PWAIT2];
    all.into_iter().chain(epolls).for_each(Next::find);
    loops::see();
}

/// The maximum number of descriptors of a call that is served. The array on the stack has no more
/// room.
const SET_MAX: usize = 128;

/// The maximum number of times in one call that a descriptor was ready, but the program's call
/// found nothing. After one more time, the thread sleeps in the program's own call.
const IN_VAIN_MAX: u32 = 3;

/// Room for the C library's set of signals.
pub type SignalSet = [u64; size_of::<libc::sigset_t>() / size_of::<u64>()];

/// What a drop-in does around a call that waits for descriptors. All of it may run in signal
/// handlers.
pub trait Hooks {
    /// State for the duration of the call. A thread may end in the call: then the state is not
    /// dropped.
    type Watch: Copy;

    /// Do completions send signals? A signal to the calling thread has to end its sleep.
    const SIGNALS: bool = false;

    /// Does [`Hooks::begin`] read the program's sets?
    #[inline]
    fn looks() -> bool {
        false
    }

    /// Called before the program's call waits for `what`. `None`: the set is not readable, or
    /// nobody [looks](Hooks::looks) at it.
    ///
    /// # Safety
    /// `what` is the program's, as in the call.
    unsafe fn begin(what: Option<&Descriptors>) -> Self::Watch;

    /// The thread has woken up and collects completions itself, so completions need not make
    /// watched descriptors readable. [`Hooks::resume`] is called before it sleeps again.
    fn pause(_watch: Self::Watch) {}

    /// The thread is about to sleep again.
    fn resume(_watch: Self::Watch) {}

    /// Called after the program's call has ended. `is_paused`: after a [`Hooks::pause`].
    fn end(watch: Self::Watch, is_paused: bool);

    /// Does the drop-in know that this descriptor is readable by now, or would be if the watch were
    /// not paused? The kernel's last answer was no.
    fn is_readable(_fd: RawFd) -> bool {
        false
    }

    /// The address of the signal mask for the wait: `mask`, or a changed copy of its set in
    /// `place`.
    ///
    /// # Safety
    /// `mask` is null or the address of a set.
    unsafe fn mask(mask: usize, _place: &mut SignalSet) -> usize {
        mask
    }

    /// Calls `collect`, unless the calling thread is inside the drop-in.
    fn outside(collect: &mut dyn FnMut()) {
        collect();
    }
}

/// For drop-ins that need no hooks.
#[derive(Debug)]
pub struct NoHooks;

impl Hooks for NoHooks {
    type Watch = ();

    unsafe fn begin(_: Option<&Descriptors>) {}

    fn end((): (), _: bool) {}
}

/// What a call waits for.
#[derive(Clone, Copy, Debug)]
pub enum Descriptors {
    /// As in poll(2).
    Set {
        /// The descriptors.
        set: *mut libc::pollfd,
        /// The number of descriptors.
        count: libc::nfds_t,
    },
    /// As in select(2): sets for reading, writing and exceptions.
    Bits {
        /// The maximum descriptor number, plus one.
        count: c_int,
        /// The addresses of the sets, or null.
        sets: [usize; 3],
    },
    /// As in epoll_wait(2).
    Epoll {
        /// The epoll descriptor.
        epoll: c_int,
        /// The address of the array for events.
        events: usize,
        /// The size of the array.
        count: c_int,
    },
}

impl Descriptors {
    /// Can the program's sets be read and written? One system call or more for each.
    fn are_there(&self) -> bool {
        let is_there = |at, bytes| bytes == 0 || accessible_now(at, bytes, true);
        match *self {
            Self::Set { set, count } => {
                is_there(set.addr(), (count as usize).saturating_mul(size_of::<libc::pollfd>()))
            }
            Self::Bits { count, sets } => {
                let bytes = Served::words(count.max(0)) * 8;
                sets.iter().all(|&at| at == 0 || is_there(at, bytes))
            }
            Self::Epoll { .. } => true,
        }
    }
}

/// The C library's ppoll(2), a cancellation point.
///
/// # Safety
/// As the call.
unsafe fn ppoll(
    set: *mut libc::pollfd,
    count: libc::nfds_t,
    time: Option<Duration>,
    mask: usize,
) -> c_int {
    type Function = unsafe extern "C-unwind" fn(
        *mut libc::pollfd,
        libc::nfds_t,
        *const libc::timespec,
        usize,
    ) -> c_int;
    let time = time.map(sys::timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the C library's, with the caller's contract.
    unsafe { std::mem::transmute::<*mut c_void, Function>(PPOLL.get())(set, count, time, mask) }
}

/// The bits of a set of select(2).
const BITS: usize = 1024;
type BitSets = [[u64; BITS / 64]; 3];

/// A call that the drop-in makes in place of the program's.
struct Served {
    what: Descriptors,
    /// The sets of a select(2), which overwrites them with its answer.
    bits: BitSets,
}

impl Served {
    /// Words of eight bytes in each set of bits.
    fn words(count: c_int) -> usize {
        (count as usize).div_ceil(64)
    }

    /// Writes the descriptors for which the thread will sleep to `sleep`. Returns their number.
    /// `None`: a count is invalid, or more than fits.
    ///
    /// # Safety
    /// `what` is the program's, and its sets [are there](Descriptors::are_there).
    unsafe fn begin(&mut self, sleep: &mut [libc::pollfd]) -> Option<usize> {
        match self.what {
            Descriptors::Set { set, count } => {
                let count = usize::try_from(count).ok().filter(|&count| count <= sleep.len())?;
                for (at, place) in sleep[..count].iter_mut().enumerate() {
                    // SAFETY: the set is readable, and has `count` elements.
                    *place = unsafe { set.add(at).read_unaligned() };
                }
                Some(count)
            }
            Descriptors::Epoll { epoll, count, .. } => {
                sleep[0] = libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 };
                (count > 0).then_some(1)
            }
            Descriptors::Bits { count, sets } => {
                let bits = usize::try_from(count).ok().filter(|&bits| bits <= BITS)?;
                for (&at, saved) in sets.iter().zip(&mut self.bits) {
                    if at == 0 {
                        continue;
                    }
                    for (word, place) in saved[..Self::words(count)].iter_mut().enumerate() {
                        // SAFETY: the set is readable, and has this word.
                        *place = unsafe { (at as *const u64).add(word).read_unaligned() };
                    }
                }
                let has = |set: usize, fd: usize| self.bits[set][fd / 64] >> (fd % 64) & 1 != 0;
                let mut found = 0;
                for fd in 0..bits {
                    const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
                    let events =
                        (0..3).filter(|&set| has(set, fd)).fold(0, |e, set| e | EVENTS[set]);
                    if events != 0 {
                        let place = sleep.get_mut(found)?;
                        *place = libc::pollfd { fd: fd as RawFd, events, revents: 0 };
                        found += 1;
                    }
                }
                Some(found)
            }
        }
    }

    /// Restores the program's sets to their values at the call.
    ///
    /// # Safety
    /// [`Served::begin`] has accepted them.
    unsafe fn restore(&self) {
        let Descriptors::Bits { count, sets } = self.what else { return };
        for (&at, saved) in sets.iter().zip(&self.bits) {
            for (word, &bits) in saved[..Self::words(count)].iter().enumerate() {
                if at != 0 {
                    // SAFETY: found to be writable.
                    unsafe { (at as *mut u64).add(word).write_unaligned(bits) };
                }
            }
        }
    }

    /// Makes the program's call with this timeout and signal mask.
    ///
    /// # Safety
    /// As the call; [`Served::begin`] has accepted it.
    unsafe fn call(&self, time: Option<Duration>, mask: usize) -> c_int {
        match self.what {
            // SAFETY: the caller's contract.
            Descriptors::Set { set, count } => unsafe { ppoll(set, count, time, mask) },
            Descriptors::Epoll { epoll, events, count } => {
                type Function =
                    unsafe extern "C-unwind" fn(c_int, usize, c_int, c_int, usize) -> c_int;
                let ms = |time: Duration| time.as_nanos().div_ceil(1_000_000);
                let ms = time.map_or(-1, |time| c_int::try_from(ms(time)).unwrap_or(c_int::MAX));
                // SAFETY: the C library's, with the caller's contract.
                unsafe {
                    let next = EPOLL_PWAIT.get();
                    std::mem::transmute::<*mut c_void, Function>(next)(
                        epoll, events, count, ms, mask,
                    )
                }
            }
            Descriptors::Bits { count, sets: [read, write, except] } => {
                type Function = unsafe extern "C-unwind" fn(
                    c_int,
                    usize,
                    usize,
                    usize,
                    *const libc::timespec,
                    usize,
                ) -> c_int;
                let time = time.map(sys::timespec);
                let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: as above.
                unsafe {
                    self.restore();
                    let next = std::mem::transmute::<*mut c_void, Function>(PSELECT.get());
                    next(count, read, write, except, time, mask)
                }
            }
        }
    }

    /// Makes the program's call without waiting.
    ///
    /// # Safety
    /// As [`Served::call`].
    unsafe fn look(&self) -> c_int {
        // SAFETY: the caller's contract.
        unsafe { self.call(Some(Duration::ZERO), 0) }
    }

    /// The call's answer after a sleep in which `ready` of the program's descriptors were ready.
    ///
    /// # Safety
    /// As [`Served::call`]; `slept` is what [`Served::begin`] has written, with the results of the
    /// sleep.
    unsafe fn answer(&self, slept: &[libc::pollfd], ready: c_int) -> c_int {
        let Descriptors::Set { set, .. } = self.what else {
            // SAFETY: the caller's contract.
            return unsafe { self.look() };
        };
        for (at, one) in slept.iter().enumerate() {
            // SAFETY: the set was found to be writable, and has as many elements as `slept`.
            unsafe { (&raw mut (*set.add(at)).revents).write_unaligned(one.revents) };
        }
        ready
    }
}

/// Eventfds of the contexts that the calling thread drives.
#[derive(Clone, Copy, Debug)]
struct Ours {
    events: [RawFd; AT_A_TIME],
    count: usize,
    /// Completions were collected just now.
    any: bool,
    /// The program's eventfds that were counted up for the completions.
    counted: Counted,
}

impl Ours {
    /// The calling thread hands over requests and collects completions. `told`: the eventfds that
    /// ended its sleep. If there are none, the thread may sleep next.
    fn drive<H: Hooks>(told: &[RawFd]) -> Self {
        let (events, counted) = ([-1; AT_A_TIME], Counted::NONE);
        let mut found = Self { events, count: 0, any: false, counted };
        Counted::take();
        let mut collect = || {
            let Some(threads) = Threads::known() else { return };
            for tenant in threads.loops.of_this_thread(told).iter().flatten() {
                if let Some(collecting) = tenant.drive_in_poll(told) {
                    found.events[found.count] = collecting.events;
                    found.count += 1;
                    found.any |= collecting.any;
                }
            }
        };
        enter(|| H::outside(&mut collect));
        found.counted = Counted::take();
        found
    }

    /// Marks the descriptors in the program's set that became readable: a sleep would end at once.
    fn tell<H: Hooks>(&self, set: &mut [libc::pollfd]) {
        let is_readable = |one: &&mut libc::pollfd| {
            let fd = one.fd;
            one.events & libc::POLLIN != 0 && (self.counted.has(fd) || H::is_readable(fd))
        };
        set.iter_mut().filter(is_readable).for_each(|one| one.revents |= libc::POLLIN);
    }

    /// Does the program's own call have to be made? It does if completions were collected in a call
    /// other than poll(2), or if more eventfds were counted up than are noted.
    fn is_to_look(&self, is_set: bool) -> bool {
        self.any && !is_set || self.counted.is_partial()
    }

    /// Leaves the thread's contexts to threads of the engine. The calling thread is about to sleep
    /// in a call that completions do not end.
    #[cold]
    fn leave() {
        enter(|| {
            let Some(threads) = Threads::known() else { return };
            threads.loops.of_this_thread(&[]).iter().flatten().for_each(|one| one.leave_poll());
        });
    }
}

/// Makes the program's call as an event loop that drives contexts. `native` makes the call
/// unchanged. `is_there`: the sets of the call are accessible.
///
/// # Safety
/// As the call.
#[inline(never)]
unsafe fn serve<H: Hooks>(
    what: Descriptors,
    is_there: bool,
    watching: &mut Watching<H>,
    time: Time,
    mask: usize,
    native: impl FnOnce(usize) -> c_int,
) -> c_int {
    const NOTHING: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut set = [NOTHING; SET_MAX + AT_A_TIME];
    let mut served = Served { what, bits: [[0; BITS / 64]; 3] };
    // SAFETY: the caller's contract.
    let (timeout, count) =
        unsafe { (time.read(), if is_there { served.begin(&mut set[..SET_MAX]) } else { None }) };
    let (Ok(timeout), Some(count)) = (timeout, count) else {
        Ours::leave();
        return native(mask);
    };
    // If completions send signals, signals are blocked from here on, except during a sleep.
    let mut before = SignalSet::default();
    let blocks = H::SIGNALS;
    if blocks {
        before[0] = sys::block_signals();
    }
    let restore = || {
        if blocks {
            sys::restore_signals(before[0]);
        }
    };
    let ours = Ours::drive::<H>(&[]);
    if ours.count == 0 || timeout == Some(Duration::ZERO) {
        restore();
        return native(mask);
    }
    if !ours.any {
        enter(super::ask_ahead);
    }
    let own = if blocks { before.as_ptr().expose_provenance() } else { 0 };
    let mask = if mask == 0 { own } else { mask };
    // A time beyond the clock's range means no deadline.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // SAFETY: as above.
    unsafe {
        let answer = sleep::<H>(&served, &mut set, count, (ours, watching), deadline, mask);
        enter(restore);
        if matches!(time, Time::Val(_)) {
            time.tell(deadline.map(|end| end.saturating_duration_since(Instant::now())));
        }
        answer
    }
}

/// The descriptors that are ready, and their number.
fn ready_of(all: &[libc::pollfd]) -> ([RawFd; AT_A_TIME], usize) {
    let (mut ready, mut count) = ([-1; AT_A_TIME], 0);
    for one in all.iter().filter(|one| one.revents != 0) {
        ready[count] = one.fd;
        count += 1;
    }
    (ready, count)
}

/// Sleeps until the program's call has an answer, and returns it.
///
/// # Safety
/// As the call, which [`Served::begin`] has accepted. `begin` has written the first `count`
/// elements of `set`.
unsafe fn sleep<H: Hooks>(
    served: &Served,
    set: &mut [libc::pollfd; SET_MAX + AT_A_TIME],
    count: usize,
    (mut ours, watching): (Ours, &mut Watching<H>),
    deadline: Option<Instant>,
    mask: usize,
) -> c_int {
    let mut in_vain = 0;
    // poll(2) gets its answer from the first sleep. Any other call is first made without waiting,
    // because it may have an answer or an error already.
    let is_set = matches!(served.what, Descriptors::Set { .. });
    let mut looks = !is_set;
    loop {
        watching.resume();
        // SAFETY: the caller's contract.
        let found = if looks { unsafe { served.look() } } else { 0 };
        if found != 0 {
            return found;
        }
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        if ours.count == 0 || in_vain > IN_VAIN_MAX {
            Ours::leave();
            // SAFETY: as above.
            return unsafe { served.call(left, mask) };
        }
        let all = count + ours.count;
        for (place, &fd) in set[count..all].iter_mut().zip(&ours.events) {
            *place = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        // SAFETY: the caller's contract for the mask; the set is this thread's.
        let ready = unsafe { ppoll(set.as_mut_ptr(), all as libc::nfds_t, left, mask) };
        if ready < 0 {
            // SAFETY: as above.
            unsafe { served.restore() };
            return ready;
        }
        if ready == 0 {
            Ours::drive::<H>(&[]);
            // SAFETY: as above.
            return unsafe { served.call(Some(Duration::ZERO), mask) };
        }
        let (told, tellers) = ready_of(&set[count..all]);
        let set = &mut set[..count];
        let theirs = |set: &[libc::pollfd]| set.iter().filter(|one| one.revents != 0).count();
        looks = false;
        if tellers > 0 {
            if is_set {
                watching.pause();
            }
            ours = Ours::drive::<H>(&told[..tellers]);
            ours.tell::<H>(set);
            if theirs(set) == 0 && !ours.is_to_look(is_set) {
                // Before the thread sleeps again, this drains the eventfds and collects once more.
                ours = Ours::drive::<H>(&[]);
                ours.tell::<H>(set);
            }
            looks = ours.is_to_look(is_set);
        }
        let theirs = theirs(set) as c_int;
        if theirs > 0 && !ours.counted.is_partial() {
            // SAFETY: as above.
            let answer = unsafe { served.answer(set, theirs) };
            if answer != 0 {
                return answer;
            }
            in_vain += 1;
        }
    }
}

/// # Safety
/// As the call that `native` makes.
#[inline]
unsafe fn wait<H: Hooks>(
    what: Descriptors,
    time: Time,
    mask: usize,
    native: impl FnOnce(usize) -> c_int,
) -> c_int {
    let mut place = SignalSet::default();
    // SAFETY: the caller's contract.
    let is_there = (loops::may_drive() || H::looks()) && enter(|| what.are_there());
    // SAFETY: as above.
    let (watch, mask) = unsafe {
        (enter(|| H::begin(Some(&what).filter(|_| is_there))), H::mask(mask, &mut place))
    };
    let mut watching = Watching::<H>::new(watch);
    let answer = if loops::may_drive() {
        descriptor::begin_turn();
        // SAFETY: as above.
        unsafe { serve::<H>(what, is_there, &mut watching, time, mask, native) }
    } else {
        native(mask)
    };
    watching.end();
    answer
}

/// Functions that make a call of the C library; each has its descriptors and its timeout.
macro_rules! waits {
    ($(
        $next:ident $name:ident($($arg:ident: $type:ty),*) $(under $mask:ident)?:
        $what:expr, $time:expr;
    )*) => { $(
        /// The C library's function of this name, with the hooks. A cancellation point
        /// (pthreads(7)): no lock of the engine is held in the call, so the thread may end there.
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[inline]
        pub unsafe fn $name<H: Hooks>($($arg: $type),*) -> c_int {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            let theirs = 0usize $( + $mask )?;
            let native = |_mask: usize| {
                $( let $mask = _mask; )?
                let next = enter(|| $next.get());
                // SAFETY: the C library's, called as its caller called us. errno is what it sets.
                unsafe { std::mem::transmute::<*mut c_void, Function>(next)($($arg),*) }
            };
            // SAFETY: the caller's contract.
            unsafe { wait::<H>($what, $time, theirs, native) }
        }
    )* };
}

waits! {
    POLL poll(set: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int):
        Descriptors::Set { set, count }, Time::Milliseconds(timeout);
    PPOLL ppoll_under(
        set: *mut libc::pollfd, count: libc::nfds_t, timeout: usize, mask: usize
    ) under mask: Descriptors::Set { set, count }, Time::Spec(timeout);
    POLL_CHECKED poll_checked(
        set: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, size: usize
    ): checked(set, count, size), Time::Milliseconds(timeout);
    PPOLL_CHECKED ppoll_checked(
        set: *mut libc::pollfd, count: libc::nfds_t, timeout: usize, mask: usize, size: usize
    ) under mask: checked(set, count, size), Time::Spec(timeout);
    SELECT select(count: c_int, read: usize, write: usize, except: usize, timeout: usize):
        Descriptors::Bits { count, sets: [read, write, except] }, Time::Val(timeout);
    PSELECT pselect(
        count: c_int, read: usize, write: usize, except: usize, timeout: usize, mask: usize
    ) under mask:
        Descriptors::Bits { count, sets: [read, write, except] }, Time::Spec(timeout);
    EPOLL_WAIT epoll_wait(epoll: c_int, events: usize, count: c_int, timeout: c_int):
        Descriptors::Epoll { epoll, events, count }, Time::Milliseconds(timeout);
    EPOLL_PWAIT epoll_pwait(
        epoll: c_int, events: usize, count: c_int, timeout: c_int, mask: usize
    ) under mask: Descriptors::Epoll { epoll, events, count }, Time::Milliseconds(timeout);
    EPOLL_PWAIT2 epoll_pwait2(
        epoll: c_int, events: usize, count: c_int, timeout: usize, mask: usize
    ) under mask: Descriptors::Epoll { epoll, events, count }, Time::Spec(timeout);
}

/// The set of a program that was compiled with `_FORTIFY_SOURCE`: such a program also passes the
/// size of the set. If the size is too small for the count, the count becomes impossible. The C
/// library's function, which is called then, ends the process.
fn checked(set: *mut libc::pollfd, count: libc::nfds_t, size: usize) -> Descriptors {
    let fits = (size / size_of::<libc::pollfd>()) as libc::nfds_t >= count;
    Descriptors::Set { set, count: if fits { count } else { libc::nfds_t::MAX } }
}

/// Exports the C library's calls that wait for descriptors, around which a drop-in's
/// [`Hooks`](crate::front::waits::Hooks) run. For use once in a drop-in.
#[macro_export]
macro_rules! see_waits {
    ($hooks:ty) => {
        $crate::see_waits! { $hooks:
            poll poll(set: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int);
            ppoll ppoll_under(
                set: *mut libc::pollfd, count: libc::nfds_t, timeout: usize, mask: usize
            );
            __poll_chk poll_checked(
                set: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, size: usize
            );
            __ppoll_chk ppoll_checked(
                set: *mut libc::pollfd,
                count: libc::nfds_t,
                timeout: usize,
                mask: usize,
                size: usize
            );
            select select(
                count: c_int, read: usize, write: usize, except: usize, timeout: usize
            );
            pselect pselect(
                count: c_int,
                read: usize,
                write: usize,
                except: usize,
                timeout: usize,
                mask: usize
            );
            epoll_wait epoll_wait(epoll: c_int, events: usize, count: c_int, timeout: c_int);
            epoll_pwait epoll_pwait(
                epoll: c_int, events: usize, count: c_int, timeout: c_int, mask: usize
            );
            epoll_pwait2 epoll_pwait2(
                epoll: c_int, events: usize, count: c_int, timeout: usize, mask: usize
            );
        }
    };
    ($hooks:ty: $($name:ident $function:ident($($arg:ident: $type:ty),*);)*) => {
        $crate::at_load!($crate::front::waits::find_next);

        const _: () = {
            use ::std::ffi::c_int;

            $(
                /// # Safety
                /// As the C library's function of this name.
                #[cfg_attr(not(miri), unsafe(no_mangle))]
                unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                    // SAFETY: as the caller called us.
                    unsafe { $crate::front::waits::$function::<$hooks>($($arg),*) }
                }
            )*
        };
    };
}
