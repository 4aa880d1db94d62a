//! io_uring_setup(2).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use uringlet::front::seen::Seen;
use uringlet::front::{self, Ends};

use crate::abi::{self, ENTRIES_MAX, Params, setup};
use crate::memory::Memory;
use crate::ring::{Core, SLOTS};
use crate::{rings, sites, sys, threads, user};

/// The sizes of both queues.
pub(crate) fn sizes(entries: u32, params: &Params) -> Result<(u32, u32), i32> {
    let clamps = params.flags & setup::CLAMP != 0;
    let round = |entries: u32, max: u32| match entries {
        0 => Err(-libc::EINVAL),
        entries if entries <= max => Ok(entries.next_power_of_two()),
        _ if clamps => Ok(max),
        _ => Err(-libc::EINVAL),
    };
    let sq = round(entries, ENTRIES_MAX)?;
    if params.flags & setup::CQSIZE == 0 {
        return Ok((sq, 2 * sq));
    }
    let cq = round(params.cq_entries, 2 * ENTRIES_MAX)?;
    if cq < sq { Err(-libc::EINVAL) } else { Ok((sq, cq)) }
}

fn check(params: &Params) -> Result<(), i32> {
    let flags = params.flags;
    let has = |flag| flags & flag != 0;
    let bad = params.resv != [0; 3]
        || has(setup::SQ_AFF) && !has(setup::SQPOLL)
        || has(setup::SQPOLL)
            && has(setup::COOP_TASKRUN | setup::TASKRUN_FLAG | setup::DEFER_TASKRUN)
        || has(setup::TASKRUN_FLAG) && !has(setup::COOP_TASKRUN | setup::DEFER_TASKRUN)
        || has(setup::DEFER_TASKRUN) && !has(setup::SINGLE_ISSUER)
        || has(setup::REGISTERED_FD_ONLY) && !has(setup::NO_MMAP);
    if bad {
        return Err(-libc::EINVAL);
    }
    if has(setup::SQ_AFF) {
        // SAFETY: only numbers are passed.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        if i64::from(params.sq_thread_cpu) >= cpus {
            return Err(-libc::EINVAL);
        }
    }
    if has(setup::ATTACH_WQ) {
        let fd = params.wq_fd as i32;
        if !rings::has(fd) {
            return Err(if sys::is_open(fd) { -libc::EINVAL } else { -libc::ENXIO });
        }
    }
    Ok(())
}

/// Does the kernel set up rings? 1 means yes, 2 means no, and 0 that it was not asked yet.
static KNOWN: AtomicU8 = AtomicU8::new(0);

/// Are all rings left to the kernel, because it has io_uring?
pub(crate) fn steps_aside() -> bool {
    if !front::env::if_refused() {
        return false;
    }
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known == 0 {
        known = if sys::has_io_uring() { 1 } else { 2 };
        KNOWN.store(known, Ordering::Relaxed);
    }
    known == 1
}

/// io_uring_setup(2): the descriptor, or a negative errno.
///
/// # Safety
/// As io_uring_setup(2).
pub(crate) unsafe fn setup(entries: u32, at: usize) -> i32 {
    front::enter_whole(|| {
        let sites = sites::look();
        let asked = user::read::<Params>(at);
        let why = match asked {
            _ if steps_aside() => Some(Seen::SteppedAside),
            _ if sites.enters => Some(Seen::LeftToKernel),
            Ok(params) if !is_served(&params) => Some(Seen::Unserved),
            _ => None,
        };
        if let Some(why) = why {
            front::env::left_to_kernel(why);
            // SAFETY: the caller's contract.
            let made = unsafe { sys::io_uring_setup(entries, at) };
            // A security module refuses the file of a ring, and not the call as such (SELinux).
            let is_forbidden = made == -libc::EACCES && why == Seen::SteppedAside;
            if !is_forbidden || !asked.is_ok_and(|params| is_served(&params)) {
                return made;
            }
            KNOWN.store(2, Ordering::Relaxed);
        }
        let made = asked.and_then(|params| set_up(entries, at, params, sites.polls));
        front::env::set_up(made).unwrap_or_else(|errno| errno)
    })
}

/// Can the library serve a ring with these parameters? If not, the kernel answers: it makes the
/// ring, or refuses it as without this library.
fn is_served(params: &Params) -> bool {
    params.flags & !setup::KNOWN == 0 && !front::has_parted()
}

/// Puts the offsets of the queues into the parameters. With NO_MMAP, the addresses of the program's
/// pages stay there.
pub(crate) fn put_offsets(params: &mut Params, memory: &Memory) {
    let places = [params.sq_off.user_addr, params.cq_off.user_addr];
    params.sq_off = memory.sq_offsets();
    params.cq_off = Memory::cq_offsets();
    if params.flags & setup::NO_MMAP != 0 {
        [params.sq_off.user_addr, params.cq_off.user_addr] = places;
    }
}

/// Makes a ring. `at` is the address of the program's parameters. `polls`: the program may wait for
/// descriptors by calls that this library does not see.
fn set_up(entries: u32, at: usize, mut params: Params, polls: bool) -> Result<i32, i32> {
    check(&params)?;
    let (sq, cq) = sizes(entries, &params)?;
    (params.sq_entries, params.cq_entries) = (sq, cq);
    params.features = abi::FEATURES;
    let slots = cq.clamp(SLOTS.0, SLOTS.1);
    if !front::has_memory(front::context_bytes(slots as usize)) {
        return Err(-libc::ENOMEM);
    }
    let memory = Arc::new(Memory::new(&params)?);
    put_offsets(&mut params, &memory);
    // SAFETY: the call's argument, which is the program's.
    unsafe { user::write(at, params) }?;
    let fd = sys::eventfd();
    if fd < 0 {
        return Err(fd);
    }
    let single = setup::SINGLE_ISSUER | setup::R_DISABLED;
    let issues = params.flags & single == setup::SINGLE_ISSUER;
    let owner = if issues { sys::thread_id() } else { 0 };
    let core = Core::new(&rings::AllRings, memory, &params, owner);
    core.found();
    let made = core.engine().and_then(|instance| {
        if polls {
            core.watch_for_ever(fd);
        }
        rings::publish(fd, core, Some(instance))
    });
    let registers = params.flags & setup::REGISTERED_FD_ONLY != 0;
    match made {
        Ok(()) if registers => {
            let index = threads::register(fd, u32::MAX);
            // The number is closed. If the registration failed, that was the ring's last reference,
            // and the ring is dropped.
            rings::before_close(&(fd..=fd), Ends::Closed);
            sys::close(fd);
            index.map(|index| index as i32)
        }
        Ok(()) => Ok(fd),
        Err(errno) => {
            sys::close(fd);
            Err(errno)
        }
    }
}
