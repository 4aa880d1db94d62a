//! Definitions that replace the C library's: `syscall(2)`, `mmap(2)`, and the calls that close,
//! duplicate or wait for descriptors. Programs that make io_uring's calls by number get the same
//! rings as through liburing's functions. Other calls are passed to the next definition, most often
//! the C library's.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use uringlet::front::descriptors::{self, Next};
use uringlet::front::syscall::{NEXT, failed, find_next};
use uringlet::front::waits::{Descriptors, Hooks, SignalSet};
use uringlet::front::{self, refuse};

use crate::rights::DIFFER;
use crate::rings::Watched;
use crate::sigsys::set_of_wait;
use crate::{enter, memory, register, rings, setup, sys};

/// landlock_restrict_self(2), which the `libc` crate leaves out here.
const LANDLOCK: c_long = 446;

uringlet::see_descriptors_end!(crate::rings::before_close, crate::rings::duplicated);

uringlet::at_load!(find_next);
uringlet::at_load!(find_others);

extern "C" fn find_others() {
    [&EPOLL_CTL, &DUP].into_iter().for_each(Next::find);
    // SAFETY: a NUL-terminated name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fcntl".as_ptr()) };
    if !next.is_null() {
        FCNTL.store(next, Ordering::Relaxed);
    }
}

/// syscall(2). Registers and stack are unchanged, so that a call can be passed on whatever the
/// number of its arguments.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    // The kernel uses the lower half of the number. r11 is a scratch register.
    std::arch::naked_asm!(
        "lea r11d, [rdi - {first}]",
        "cmp r11d, 2",
        "jbe 2f",
        "cmp edi, {close}",
        "je 2f",
        "cmp edi, {dup2}",
        "je 2f",
        "cmp edi, {dup3}",
        "je 2f",
        "cmp edi, {close_range}",
        "je 2f",
        "cmp edi, {unshare}",
        "je 2f",
        // Calls that may change the rights of this thread, and some calls that only query them.
        "lea r11d, [rdi - {setuid}]",
        "cmp r11d, {capset} - {setuid}",
        "jbe 3f",
        "cmp edi, {prctl}",
        "je 3f",
        "cmp edi, {setns}",
        "je 3f",
        "cmp edi, {seccomp}",
        "je 3f",
        "cmp edi, {landlock}",
        "je 3f",
        "4: jmp qword ptr [rip + {next}]",
        "2: jmp {ours}",
        "3: mov byte ptr [rip + {differ}], 1",
        "jmp 4b",
        first = const libc::SYS_io_uring_setup,
        close = const libc::SYS_close,
        dup2 = const libc::SYS_dup2,
        dup3 = const libc::SYS_dup3,
        close_range = const libc::SYS_close_range,
        unshare = const libc::SYS_unshare,
        setuid = const libc::SYS_setuid,
        capset = const libc::SYS_capset,
        prctl = const libc::SYS_prctl,
        setns = const libc::SYS_setns,
        seccomp = const libc::SYS_seccomp,
        landlock = const LANDLOCK,
        differ = sym DIFFER,
        next = sym NEXT,
        ours = sym ours,
    )
}

/// As on x86-64. x16 is a scratch register of the linker, which calls may change.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    std::arch::naked_asm!(
        "sub w16, w0, #{first}",
        "cmp w16, #2",
        "b.ls 2f",
        "cmp w0, #{close}",
        "b.eq 2f",
        "cmp w0, #{dup3}",
        "b.eq 2f",
        "cmp w0, #{close_range}",
        "b.eq 2f",
        "cmp w0, #{unshare}",
        "b.eq 2f",
        // Calls that may change the rights of this thread, and some calls that only query them.
        "sub w16, w0, #{setregid}",
        "cmp w16, #{setgroups} - {setregid}",
        "b.ls 3f",
        "cmp w0, #{capset}",
        "b.eq 3f",
        "cmp w0, #{prctl}",
        "b.eq 3f",
        "cmp w0, #{setns}",
        "b.eq 3f",
        "cmp w0, #{seccomp}",
        "b.eq 3f",
        "cmp w0, #{landlock}",
        "b.eq 3f",
        "4: adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        "2: b {ours}",
        // Two registers are free: one for the address, one for a number that is not 0.
        "3: adrp x16, {differ}",
        "add x16, x16, :lo12:{differ}",
        "mov w17, #1",
        "strb w17, [x16]",
        "b 4b",
        first = const libc::SYS_io_uring_setup,
        close = const libc::SYS_close,
        dup3 = const libc::SYS_dup3,
        close_range = const libc::SYS_close_range,
        unshare = const libc::SYS_unshare,
        setregid = const libc::SYS_setregid,
        setgroups = const libc::SYS_setgroups,
        capset = const libc::SYS_capset,
        prctl = const libc::SYS_prctl,
        setns = const libc::SYS_setns,
        seccomp = const libc::SYS_seccomp,
        landlock = const LANDLOCK,
        differ = sym DIFFER,
        next = sym NEXT,
        ours = sym ours,
    )
}

/// Executes the calls that this library answers. No call has more than six arguments. A call with
/// fewer ignores the rest.
unsafe extern "C-unwind" fn ours(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (before, duplicated) = (rings::before_close, rings::duplicated);
    // SAFETY: the caller's contract. The function sets errno itself.
    let ended = unsafe { descriptors::by_number(number, [a, b, c], before, duplicated) };
    if let Some(answer) = ended {
        return answer.into();
    }
    // SAFETY: the caller's contract: as the call of that number.
    let answer = unsafe {
        match c_long::from(number as u32) {
            libc::SYS_io_uring_setup => setup::setup(a as u32, b),
            libc::SYS_io_uring_enter => {
                enter::enter(a as c_int, b as u32, c as u32, d as u32, [e, f])
            }
            _ => register::register(a as c_int, b as u32, c, d as u32),
        }
    };
    if answer < 0 { failed(answer.into()) } else { answer.into() }
}

/// mmap(2): maps a ring's memory if the descriptor is a ring's. The check of the descriptor
/// allocates nothing, because an allocator may call mmap(2) itself.
///
/// # Safety
/// As mmap(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let at = at.expose_provenance();
    // SAFETY: as the caller called us.
    let mapped = unsafe { map(at, len, prot, flags, fd, offset) };
    if (-4095..0).contains(&mapped) {
        refuse(-mapped as c_int);
        return libc::MAP_FAILED;
    }
    mapped as *mut c_void
}

/// # Safety
/// As mmap(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: as the caller called us.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// mmap(2): an address, or a negative errno.
///
/// # Safety
/// As mmap(2).
pub(crate) unsafe fn map(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    if fd >= 0 && (rings::has(fd) || rings::may_be_inherited(fd)) {
        let found = front::enter(|| {
            let core = &rings::find(fd).ok()??.core;
            let Some(group) = memory::group_at(offset as u64) else {
                // SAFETY: as the caller called us.
                return Some(unsafe { core.memory.map(at, len, prot, flags, offset as u64) });
            };
            if core.is_held_here() {
                return Some(-(libc::EAGAIN as isize));
            }
            Some(core.with(|locked| match locked.groups.to_map(group) {
                // SAFETY: as the caller called us.
                Some(pages) => unsafe { pages.map(at, len, prot, flags) },
                None => -(libc::ENOMEM as isize),
            }))
        });
        if let Some(mapped) = found {
            return mapped;
        }
    }
    // SAFETY: as the caller called us.
    unsafe { sys::mmap(at, len, prot, flags, fd, offset) }
}

static DUP: Next = Next::new(c"dup");

/// # Safety
/// As dup(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    let next = front::enter(|| DUP.get());
    // SAFETY: the C library's dup(2), with the argument of the caller. It sets errno itself.
    let other = unsafe { std::mem::transmute::<*mut c_void, Function>(next)(fd) };
    front::enter(|| rings::duplicated(fd, other));
    other
}

/// The next definition of fcntl(2). Until `find_others` has run: a function that makes the system
/// call.
static FCNTL: AtomicPtr<c_void> = AtomicPtr::new(plain_fcntl as *const () as *mut c_void);

unsafe extern "C" fn plain_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    let answer = unsafe { sys::fcntl(fd, command, argument) };
    if answer < 0 { refuse(-answer) } else { answer }
}

/// fcntl(2) under one of its names: commands that duplicate descriptors are seen. Other commands
/// are passed on unchanged.
macro_rules! sees_duplicates {
    ($name:ident) => {
        /// # Safety
        /// As fcntl(2).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int) -> c_int {
            std::arch::naked_asm!(
                "cmp esi, {plain}",
                "je 2f",
                "cmp esi, {cloexec}",
                "je 2f",
                "jmp qword ptr [rip + {next}]",
                "2: jmp {ours}",
                plain = const libc::F_DUPFD,
                cloexec = const libc::F_DUPFD_CLOEXEC,
                next = sym FCNTL,
                ours = sym duplicate,
            )
        }

        /// # Safety
        /// As fcntl(2).
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[cfg_attr(not(miri), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int) -> c_int {
            std::arch::naked_asm!(
                "cmp w1, #{plain}",
                "b.eq 2f",
                "cmp w1, #{cloexec}",
                "b.eq 2f",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "br x16",
                "2: b {ours}",
                plain = const libc::F_DUPFD,
                cloexec = const libc::F_DUPFD_CLOEXEC,
                next = sym FCNTL,
                ours = sym duplicate,
            )
        }
    };
}

sees_duplicates!(fcntl);
sees_duplicates!(fcntl64);

/// fcntl(2) with a command that duplicates.
unsafe extern "C" fn duplicate(fd: c_int, command: c_int, least: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
    let next = FCNTL.load(Ordering::Relaxed);
    // SAFETY: the next definition, with the arguments of the caller. It sets errno itself.
    let other = unsafe { std::mem::transmute::<*mut c_void, Function>(next)(fd, command, least) };
    front::enter(|| rings::duplicated(fd, other));
    other
}

/// Calls that wait for descriptors. Before such a call, the descriptors of empty rings are made
/// unreadable. During the call, the rings among its arguments are watched: their descriptors are
/// readable while they have completions. SIGSYS is removed from the signal mask of the call.
struct RingHooks;

uringlet::see_waits!(RingHooks);

impl Hooks for RingHooks {
    type Watch = Watched;

    #[inline]
    fn looks() -> bool {
        !rings::none()
    }

    unsafe fn begin(what: Option<&Descriptors>) -> Watched {
        if rings::none() {
            return Watched::NONE;
        }
        // SAFETY: the caller's contract.
        let watched = unsafe {
            match what {
                Some(&Descriptors::Set { set, count }) => in_set(set, count),
                Some(&Descriptors::Bits { count, sets: [read, ..] }) => in_bits(read, count),
                Some(Descriptors::Epoll { .. }) | None => Watched::NONE,
            }
        };
        rings::freshen();
        watched
    }

    fn pause(watched: Watched) {
        watched.pause();
    }

    fn resume(watched: Watched) {
        watched.resume();
    }

    fn end(watched: Watched, is_paused: bool) {
        watched.end(is_paused);
    }

    fn is_readable(fd: c_int) -> bool {
        rings::get(fd).is_some_and(|ring| ring.core.is_readable() || ring.core.completions() > 0)
    }

    unsafe fn mask(mask: usize, place: &mut SignalSet) -> usize {
        // SAFETY: the caller's contract.
        unsafe { set_of_wait(mask, place) }
    }
}

static EPOLL_CTL: Next = Next::new(c"epoll_ctl");

/// # Safety
/// As epoll_ctl(2).
#[cfg_attr(not(miri), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: usize) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int, usize) -> c_int;
    let next = front::enter(|| {
        rings::is_polled(fd);
        EPOLL_CTL.get()
    });
    // SAFETY: the C library's epoll_ctl(2), with the arguments of the caller. It sets errno itself.
    unsafe { std::mem::transmute::<*mut c_void, Function>(next)(epoll, op, fd, event) }
}

/// The rings in a set that the program polls.
///
/// # Safety
/// `set` has this many descriptors, as in poll(2), and can be read.
unsafe fn in_set(set: *const libc::pollfd, count: libc::nfds_t) -> Watched {
    let mut watched = Watched::NONE;
    // SAFETY: the caller's contract.
    (0..count as usize).for_each(|at| watched.add(unsafe { (*set.add(at)).fd }));
    watched
}

/// The rings in a set of bits.
///
/// # Safety
/// `set` is null, or has `count` bits, as in select(2), and can be read.
unsafe fn in_bits(set: usize, count: c_int) -> Watched {
    const BITS: usize = usize::BITS as usize;
    let mut watched = Watched::NONE;
    let words = (count.max(0) as usize).div_ceil(BITS);
    if set == 0 {
        return watched;
    }
    for at in 0..words {
        let place = set + at * size_of::<usize>();
        // SAFETY: readable, by the caller's contract.
        let mut bits = unsafe { (place as *const usize).read_unaligned() };
        while bits != 0 {
            watched.add((at * BITS) as c_int + bits.trailing_zeros() as c_int);
            bits &= bits - 1;
        }
    }
    watched
}
