//! io_uring_register(2).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use uringlet::front::{OwnDescriptor, WaitCondition, Waited};

use crate::abi::{self, FILES_SKIP, INDEX_ALLOC, RSRC_SPARSE, register as reg, setup};
use crate::abi::{RsrcRegister, RsrcUpdate, SyncCancel, Timespec, op};
use crate::enter::{find, not_ours, not_registered};
use crate::files::{Buffer, File, Slots};
use crate::prepare::{self, Match};
use crate::restrict::Restrictions;
use crate::ring::{Locked, Task};
use crate::rings::Ring;
use crate::{rings, sys, threads, user};

const FILES_MAX: u32 = 1 << 20;
const BUFFERS_MAX: u32 = 1 << 14;
const BUFFER_MAX: u64 = 1 << 30;

/// io_uring_register(2): a result, or a negative errno.
///
/// # Safety
/// As the call.
pub(crate) unsafe fn register(fd: i32, opcode: u32, arg: usize, count: u32) -> i32 {
    let number = opcode & !reg::USE_REGISTERED_RING;
    let registered = opcode != number && number <= reg::BPF_FILTER;
    let ring = match find(fd, registered) {
        Ok(ring) => ring,
        Err(0) => {
            // SAFETY: the caller's contract.
            return not_ours(unsafe { sys::io_uring_register(fd, opcode, arg, count) }, fd);
        }
        Err(errno) if registered => {
            // SAFETY: the caller's contract.
            return not_registered(
                unsafe { sys::io_uring_register(fd, opcode, arg, count) },
                errno,
            );
        }
        Err(errno) => return errno,
    };
    if number > reg::BPF_FILTER {
        return -libc::EINVAL;
    }
    match act(&ring, number, arg, count) {
        Ok(answer) => answer,
        Err(errno) => errno,
    }
}

fn no_argument(arg: usize, count: u32) -> Result<(), i32> {
    if arg == 0 && count == 0 { Ok(()) } else { Err(-libc::EINVAL) }
}

fn act(ring: &Ring, opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    let core = &ring.core;
    let owner = core.owner.load(Ordering::Relaxed);
    if owner != 0 && owner != sys::thread_id() {
        return Err(-libc::EEXIST);
    }
    if opcode == reg::SYNC_CANCEL {
        return sync_cancel(ring, arg, count);
    }
    if core.is_held_here() {
        // A signal handler; what it interrupts has the lock.
        return Err(-libc::EAGAIN);
    }
    core.with(|locked| {
        if !core.disabled.load(Ordering::Relaxed) && !locked.restrictions.allow_register(opcode) {
            return Err(-libc::EACCES);
        }
        act_locked(locked, opcode, arg, count)
    })
}

#[allow(clippy::too_many_lines, reason = "one arm for each operation")]
fn act_locked(locked: &mut Locked<'_>, opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    let core = Arc::clone(locked.core());
    match opcode {
        reg::BUFFERS => register_buffers(locked, arg, count, 0, false),
        reg::BUFFERS2 | reg::FILES2 => {
            let all: RsrcRegister = read_sized(arg, count)?;
            let RsrcRegister { nr, flags, resv2, data, tags } = all;
            if nr == 0 || resv2 != 0 || flags & !RSRC_SPARSE != 0 {
                return Err(-libc::EINVAL);
            }
            let sparse = flags & RSRC_SPARSE != 0;
            if sparse && data != 0 {
                return Err(-libc::EINVAL);
            }
            if opcode == reg::BUFFERS2 {
                register_buffers(locked, data as usize, nr, tags as usize, sparse)
            } else {
                register_files(locked, data as usize, nr, tags as usize, sparse)
            }
        }
        reg::UNREGISTER_BUFFERS => {
            no_argument(arg, count)?;
            let buffers = locked.buffers.take().ok_or(-libc::ENXIO)?;
            buffers.into_all().for_each(|one| locked.release_buffer(one));
            Ok(0)
        }
        reg::FILES => register_files(locked, arg, count, 0, false),
        reg::UNREGISTER_FILES => {
            no_argument(arg, count)?;
            let files = locked.files.take().ok_or(-libc::ENXIO)?;
            files.into_all().for_each(|one| locked.release_file(one));
            Ok(0)
        }
        reg::FILES_UPDATE => {
            let [offset, resv]: [u32; 2] = user::read(arg)?;
            let data: u64 = user::read(arg + 8)?;
            if count == 0 || resv != 0 {
                return Err(-libc::EINVAL);
            }
            locked.update_files(offset, data as usize, count, 0)
        }
        reg::FILES_UPDATE2 | reg::BUFFERS_UPDATE => {
            let update: RsrcUpdate = read_sized(arg, count)?;
            if update.nr == 0 || update.resv != 0 || update.resv2 != 0 {
                return Err(-libc::EINVAL);
            }
            let RsrcUpdate { offset, data, tags, nr, .. } = update;
            if opcode == reg::FILES_UPDATE2 {
                locked.update_files(offset, data as usize, nr, tags as usize)
            } else {
                update_buffers(locked, offset, data as usize, nr, tags as usize)
            }
        }
        reg::EVENTFD | reg::EVENTFD_ASYNC => {
            if count != 1 {
                return Err(-libc::EINVAL);
            }
            if locked.eventfd.is_some() {
                return Err(-libc::EBUSY);
            }
            let fd: i32 = user::read(arg)?;
            if !uringlet::front::is_eventfd(fd, false)? {
                return Err(-libc::EINVAL);
            }
            let copy = OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)?;
            locked.eventfd = Some((copy, opcode == reg::EVENTFD_ASYNC));
            core.told.store(true, Ordering::Relaxed);
            Ok(0)
        }
        reg::UNREGISTER_EVENTFD => {
            no_argument(arg, count)?;
            locked.eventfd.take().map(|_| 0).ok_or(-libc::ENXIO)
        }
        reg::PROBE => probe(arg, count),
        reg::RESTRICTIONS => {
            if !core.disabled.load(Ordering::Relaxed) {
                return Err(-libc::EBADFD);
            }
            if locked.restrictions.any {
                return Err(-libc::EBUSY);
            }
            if arg == 0 || count > 64 {
                return Err(-libc::EINVAL);
            }
            let mut list = Vec::new();
            user::read_array(arg, count as usize, &mut list)?;
            // With none of them, nothing is allowed.
            locked.restrictions = Restrictions::read(&list)?;
            core.restricted.store(true, Ordering::Relaxed);
            Ok(0)
        }
        reg::ENABLE_RINGS => {
            no_argument(arg, count)?;
            if !core.disabled.load(Ordering::Relaxed) {
                return Err(-libc::EBADFD);
            }
            if core.has(setup::SINGLE_ISSUER) {
                core.owner.store(sys::thread_id(), Ordering::Relaxed);
            }
            core.disabled.store(false, Ordering::Release);
            Ok(0)
        }
        // The affinity of workers is the program's own: they are not of one ring.
        reg::IOWQ_AFF if arg != 0 && count > 0 => {
            user::read::<u8>(arg)?;
            Ok(0)
        }
        reg::UNREGISTER_IOWQ_AFF => no_argument(arg, count).map(|()| 0),
        reg::IOWQ_MAX_WORKERS => {
            if arg == 0 || count != 2 {
                return Err(-libc::EINVAL);
            }
            let new: [u32; 2] = user::read(arg)?;
            let mut old = locked.workers;
            for at in 0..2 {
                if old[at] == 0 {
                    old[at] = 64;
                }
                locked.workers[at] = if new[at] == 0 { old[at] } else { new[at] };
            }
            user::write(arg, old)?;
            Ok(0)
        }
        reg::RING_FDS | reg::UNREGISTER_RING_FDS => ring_fds(opcode, arg, count),
        reg::FILE_ALLOC_RANGE => {
            let [offset, len]: [u32; 2] = user::read(arg)?;
            let resv: u64 = user::read(arg + 8)?;
            let end = offset.checked_add(len).ok_or(-libc::EOVERFLOW)?;
            let files = locked.files.as_mut().ok_or(-libc::EINVAL)?;
            if count != 0 || resv != 0 || end as usize > files.len() {
                return Err(-libc::EINVAL);
            }
            files.range = (offset as usize, end as usize);
            files.hint = offset as usize;
            Ok(0)
        }
        reg::CLOCK => {
            let clock: [u32; 4] = user::read(arg)?;
            if count != 0 || clock[1..] != [0; 3] {
                return Err(-libc::EINVAL);
            }
            match clock[0] as i32 {
                clock @ (libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME) => {
                    locked.clock = clock;
                    Ok(0)
                }
                _ => Err(-libc::EINVAL),
            }
        }
        _ => Err(-libc::EINVAL),
    }
}

/// A struct whose size the program passes as well.
fn read_sized<T: user::Plain>(arg: usize, size: u32) -> Result<T, i32> {
    if size as usize != size_of::<T>() {
        return Err(-libc::EINVAL);
    }
    user::read(arg)
}

fn probe(arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count > 256 {
        return Err(-libc::EINVAL);
    }
    let count = count.min(op::LAST.into());
    // As the kernel has it: the program clears it first.
    let size = 16 + 8 * count as usize;
    if user::read_bytes(arg, size)?.iter().any(|&byte| byte != 0) {
        return Err(-libc::EINVAL);
    }
    user::write(arg, [op::LAST - 1, count as u8])?;
    for opcode in 0..count as u8 {
        let supported = u16::from(prepare::is_known(opcode));
        let [low, high] = supported.to_le_bytes();
        user::write(arg + 16 + 8 * usize::from(opcode), [opcode, 0, low, high, 0, 0, 0, 0])?;
    }
    Ok(0)
}

fn ring_fds(opcode: u32, arg: usize, count: u32) -> Result<i32, i32> {
    if count == 0 || count > 16 {
        return Err(-libc::EINVAL);
    }
    let mut done = 0;
    for at in 0..count as usize {
        let place = arg + at * size_of::<RsrcUpdateHead>();
        let answer = user::read::<RsrcUpdateHead>(place).and_then(|update| {
            if update.resv != 0 {
                return Err(-libc::EINVAL);
            }
            if opcode == reg::UNREGISTER_RING_FDS {
                return if update.data == 0 {
                    threads::unregister(update.offset)
                } else {
                    Err(-libc::EINVAL)
                };
            }
            let index = threads::register(update.data as i32, update.offset)?;
            user::write(place, RsrcUpdateHead { offset: index, ..update })
        });
        match answer {
            Ok(()) => done += 1,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RsrcUpdateHead {
    offset: u32,
    resv: u32,
    data: u64,
}

// SAFETY: numbers, without padding.
unsafe impl user::Plain for RsrcUpdateHead {}

fn read_tag(tags: usize, at: usize) -> Result<u64, i32> {
    if tags == 0 { Ok(0) } else { user::read(tags + 8 * at) }
}

/// A registered file of a descriptor; none for -1. One copy for each number.
fn file_of(fd: i32, known: &mut Vec<(i32, File)>) -> Result<Option<File>, i32> {
    if fd == -1 {
        return Ok(None);
    }
    if let Some((_, file)) = known.iter().find(|(number, _)| *number == fd) {
        return Ok(Some(file.clone()));
    }
    if rings::has(fd) || uringlet::front::is_own_descriptor(fd) || !sys::is_open(fd) {
        return Err(-libc::EBADF);
    }
    let descriptor = OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)?;
    let file = File { descriptor };
    known.push((fd, file.clone()));
    Ok(Some(file))
}

fn register_files(
    locked: &mut Locked<'_>,
    data: usize,
    count: u32,
    tags: usize,
    sparse: bool,
) -> Result<i32, i32> {
    if locked.files.is_some() {
        return Err(-libc::EBUSY);
    }
    if count == 0 {
        return Err(-libc::EINVAL);
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the limits.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if count > FILES_MAX || u64::from(count) > limit.rlim_cur {
        return Err(-libc::EMFILE);
    }
    let mut files = Slots::new(count as usize).ok_or(-libc::ENOMEM)?;
    let mut known = Vec::new();
    for at in 0..count as usize {
        let fd = if sparse || data == 0 { -1 } else { user::read(data + 4 * at)? };
        let tag = read_tag(tags, at)?;
        if fd == -1 && tag != 0 {
            return Err(-libc::EINVAL);
        }
        let file = file_of(fd, &mut known)?;
        let _none = files.put(at, file, tag);
    }
    locked.files = Some(files);
    Ok(0)
}

/// What the pages of a buffer must be: mapped, writable, and of no file that others see.
fn check_buffer(maps: &str, at: u64, len: u64) -> Result<(), i32> {
    let end = at.checked_add(len).ok_or(-libc::EOVERFLOW)?;
    if maps.is_empty() {
        return if sys::is_mapped(at, len) { Ok(()) } else { Err(-libc::EFAULT) };
    }
    let mut from = at;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((Some(first), Some(last))) = range.map(|(a, b)| (number(a), number(b))) else {
            continue;
        };
        if last <= from {
            continue;
        }
        if first > from {
            break;
        }
        let rights = words.next().unwrap_or("");
        let name = words.nth(3).unwrap_or("");
        let in_memory = ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV", "["];
        let is_file = name.starts_with('/') && !in_memory.iter().any(|own| name.starts_with(own));
        if !rights.starts_with("rw") || rights.ends_with('s') && is_file {
            return Err(-libc::EFAULT);
        }
        from = last;
        if from >= end {
            return Ok(());
        }
    }
    Err(-libc::EFAULT)
}

fn buffer_at(maps: &str, data: usize, at: usize) -> Result<Option<Buffer>, i32> {
    let [base, len]: [u64; 2] = user::read(data + 16 * at)?;
    if base == 0 {
        return if len == 0 { Ok(None) } else { Err(-libc::EFAULT) };
    }
    if len == 0 || len > BUFFER_MAX {
        return Err(-libc::EFAULT);
    }
    check_buffer(maps, base, len)?;
    Ok(Some(Buffer { at: base, len }))
}

fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

fn register_buffers(
    locked: &mut Locked<'_>,
    data: usize,
    count: u32,
    tags: usize,
    sparse: bool,
) -> Result<i32, i32> {
    if locked.buffers.is_some() {
        return Err(-libc::EBUSY);
    }
    if count == 0 || count > BUFFERS_MAX {
        return Err(-libc::EINVAL);
    }
    let mut buffers = Slots::new(count as usize).ok_or(-libc::ENOMEM)?;
    let maps = if sparse { String::new() } else { maps() };
    for at in 0..count as usize {
        let buffer = if sparse || data == 0 { None } else { buffer_at(&maps, data, at)? };
        let tag = read_tag(tags, at)?;
        if buffer.is_none() && tag != 0 {
            return Err(-libc::EINVAL);
        }
        let _none = buffers.put(at, buffer, tag);
    }
    locked.buffers = Some(buffers);
    Ok(0)
}

fn update_buffers(
    locked: &mut Locked<'_>,
    offset: u32,
    data: usize,
    count: u32,
    tags: usize,
) -> Result<i32, i32> {
    let len = locked.buffers.as_ref().map(Slots::len).ok_or(-libc::ENXIO)?;
    let end = offset.checked_add(count).ok_or(-libc::EOVERFLOW)?;
    if end as usize > len {
        return Err(-libc::EINVAL);
    }
    let maps = maps();
    let mut done = 0;
    for at in 0..count as usize {
        let new = buffer_at(&maps, data, at).and_then(|buffer| {
            let tag = read_tag(tags, at)?;
            if buffer.is_none() && tag != 0 { Err(-libc::EINVAL) } else { Ok((buffer, tag)) }
        });
        let (buffer, tag) = match new {
            Ok(new) => new,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        };
        let Some(buffers) = locked.buffers.as_mut() else { return Err(-libc::ENXIO) };
        let old = buffers.put(offset as usize + at, buffer, tag);
        locked.release_buffer(old);
        done += 1;
    }
    Ok(done)
}

impl Locked<'_> {
    /// IORING_REGISTER_FILES_UPDATE and its kin: how many slots were changed.
    fn update_files(
        &mut self,
        offset: u32,
        data: usize,
        count: u32,
        tags: usize,
    ) -> Result<i32, i32> {
        let len = self.files.as_ref().map(Slots::len).ok_or(-libc::ENXIO)?;
        let end = offset.checked_add(count).ok_or(-libc::EOVERFLOW)?;
        if end as usize > len {
            return Err(-libc::EINVAL);
        }
        let (mut done, mut known) = (0, Vec::new());
        for at in 0..count as usize {
            let new = user::read::<i32>(data + 4 * at).and_then(|fd| {
                let tag = read_tag(tags, at)?;
                if tag != 0 && (fd == -1 || fd == FILES_SKIP) {
                    return Err(-libc::EINVAL);
                }
                if fd == FILES_SKIP {
                    return Ok(None);
                }
                Ok(Some((file_of(fd, &mut known)?, tag)))
            });
            match new {
                Ok(None) => {}
                Ok(Some((file, tag))) => {
                    let Some(files) = self.files.as_mut() else { return Err(-libc::ENXIO) };
                    let old = files.put(offset as usize + at, file, tag);
                    self.release_file(old);
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    /// IORING_OP_FILES_UPDATE.
    pub(crate) fn update_files_by_request(&mut self, fds: u64, count: u32, offset: u32) -> i32 {
        if offset != INDEX_ALLOC {
            return self.update_files(offset, fds as usize, count, 0).unwrap_or_else(|errno| errno);
        }
        if self.files.is_none() {
            return -libc::ENXIO;
        }
        let (mut done, mut known) = (0, Vec::new());
        for at in 0..count as usize {
            let place = fds as usize + 4 * at;
            let installed = user::read::<i32>(place)
                .and_then(|fd| file_of(fd, &mut known)?.ok_or(-libc::EBADF))
                .and_then(|file| match self.install(INDEX_ALLOC, file) {
                    slot if slot < 0 => Err(slot),
                    slot => user::write(place, slot),
                });
            match installed {
                Ok(()) => done += 1,
                Err(errno) if done == 0 => return errno,
                Err(_) => break,
            }
        }
        done
    }

    /// Puts a file into a slot, or any: 0 or the slot, or a negative errno.
    pub(crate) fn install(&mut self, slot: u32, file: File) -> i32 {
        let Some(files) = self.files.as_mut() else { return self.refuse(file, -libc::ENXIO) };
        // One was subtracted from what the entry says.
        let any = slot == INDEX_ALLOC || slot == INDEX_ALLOC - 1;
        let at = if any { files.free() } else { Some(slot as usize) };
        let Some(at) = at else { return self.refuse(file, -libc::ENFILE) };
        if at >= files.len() {
            return self.refuse(file, -libc::EINVAL);
        }
        let old = files.put(at, Some(file), 0);
        self.release_file(old);
        if any { at as i32 } else { 0 }
    }

    /// No slot is there for a file.
    fn refuse(&mut self, file: File, errno: i32) -> i32 {
        self.tasks.push(Task::Drop(file));
        errno
    }

    /// Empties a slot.
    pub(crate) fn clear_file(&mut self, at: usize) -> i32 {
        let Some(files) = self.files.as_mut() else { return -libc::ENXIO };
        if at >= files.len() {
            return -libc::EINVAL;
        }
        if !files.is_used(at) {
            return -libc::EBADF;
        }
        let old = files.put(at, None, 0);
        files.hint = at;
        self.release_file(old);
        0
    }
}

fn sync_cancel(ring: &Ring, arg: usize, count: u32) -> Result<i32, i32> {
    if arg == 0 || count != 1 {
        return Err(-libc::EINVAL);
    }
    let asked: SyncCancel = user::read(arg)?;
    if asked.flags & !abi::cancel::KNOWN != 0 || asked.pad != [0; 7] || asked.pad2 != [0; 3] {
        return Err(-libc::EINVAL);
    }
    let what =
        Match { user_data: asked.addr, fd: asked.fd, opcode: asked.opcode, flags: asked.flags };
    let (core, engine) = (&ring.core, ring.engine()?);
    let Timespec { seconds, nanoseconds: parts } = asked.timeout;
    let left = if seconds == -1 && parts == -1 {
        None
    } else {
        Some(Duration::from_nanos(asked.timeout.in_nanoseconds()?))
    };
    let (done, keys) = core.with(|locked| locked.cancel_now(&what))?;
    let (mut done, mut running) = (done, Vec::new());
    core.cancel_each(engine, &keys, |key, answer| match answer {
        0 => done += 1,
        errno if errno == -libc::EALREADY => running.push(key),
        _ => {}
    });
    if running.is_empty() {
        let all = asked.flags & (abi::cancel::ALL | abi::cancel::ANY) != 0;
        return match done {
            0 if all => Ok(0),
            0 => Err(-libc::ENOENT),
            done if all => Ok(done),
            _ => Ok(0),
        };
    }
    // They are being executed: until they have ended.
    let deadline = left.and_then(|left| Instant::now().checked_add(left));
    loop {
        let seen = core.ended();
        if core.with(|locked| running.iter().all(|&key| locked.find(key).is_none())) {
            return Ok(0);
        }
        let wish = WaitCondition {
            missing: &|| u32::from(core.ended() == seen),
            concern: core.concern_about_more(seen),
            gives_up: &|| false,
            mask: None,
            restarts: false,
        };
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        match engine.wait_for(&wish, left) {
            Waited::Enough => {}
            Waited::TimedOut => return Err(-libc::ETIME),
            Waited::Interrupted => return Err(-libc::EINTR),
            Waited::Gone | Waited::GaveUp => return Err(-libc::EBADF),
        }
    }
}
