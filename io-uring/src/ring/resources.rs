//! Files and buffers in slots: registering, updating, unregistering.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use uringlet::front::OwnDescriptor;

use super::state::{Locked, State};
use super::types::{Registry, Task};
use crate::abi::{FILES_SKIP, INDEX_ALLOC};
use crate::files::{Buffer, File, Registered, Slots, move_aside};
use crate::{sys, user};

const FILES_MAX: u32 = 1 << 20;
const BUFFERS_MAX: u32 = 1 << 14;
const BUFFER_MAX: u64 = 1 << 30;

/// The new content of a slot.
pub(crate) enum Wanted<T> {
    Nothing,
    /// The present content.
    Same,
    This(T),
}

/// The content of slots.
pub(crate) trait Resource: Sized {
    /// Facts that were found for other slots of the same call.
    type Known: Default;

    fn slots(state: &mut State) -> &mut Option<Slots<Self>>;

    /// May a ring have this many slots?
    fn check(count: u32) -> Result<(), i32>;

    /// Reads an item of a program's list: `place` is the address of the list, and an index.
    fn read(
        registry: &dyn Registry,
        place: (usize, usize),
        known: &mut Self::Known,
    ) -> Result<Wanted<Self>, i32>;

    /// Releases the content that a slot had.
    fn release(locked: &mut Locked<'_>, one: Option<Arc<Registered<Self>>>);
}

impl Resource for File {
    type Known = Vec<(i32, File)>;

    fn slots(state: &mut State) -> &mut Option<Slots<Self>> {
        &mut state.files
    }

    fn check(count: u32) -> Result<(), i32> {
        if count == 0 {
            return Err(-libc::EINVAL);
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a place for the limits.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        let is_over = count > FILES_MAX || u64::from(count) > limit.rlim_cur;
        if is_over { Err(-libc::EMFILE) } else { Ok(()) }
    }

    fn read(
        registry: &dyn Registry,
        (data, at): (usize, usize),
        known: &mut Self::Known,
    ) -> Result<Wanted<Self>, i32> {
        match user::read(data + 4 * at)? {
            -1 => Ok(Wanted::Nothing),
            FILES_SKIP => Ok(Wanted::Same),
            fd => file_of(registry, fd, known).map(Wanted::This),
        }
    }

    fn release(locked: &mut Locked<'_>, one: Option<Arc<Registered<Self>>>) {
        locked.release_file(one);
    }
}

impl Resource for Buffer {
    /// The text of `/proc/thread-self/maps`, once it was read.
    type Known = Option<String>;

    fn slots(state: &mut State) -> &mut Option<Slots<Self>> {
        &mut state.buffers
    }

    fn check(count: u32) -> Result<(), i32> {
        if (1..=BUFFERS_MAX).contains(&count) { Ok(()) } else { Err(-libc::EINVAL) }
    }

    fn read(
        _: &dyn Registry,
        (data, at): (usize, usize),
        known: &mut Self::Known,
    ) -> Result<Wanted<Self>, i32> {
        let [base, len]: [u64; 2] = user::read(data + 16 * at)?;
        match (base, len) {
            (0, 0) => return Ok(Wanted::Nothing),
            (0, _) | (_, 0) => return Err(-libc::EFAULT),
            _ if len > BUFFER_MAX => return Err(-libc::EFAULT),
            _ => {}
        }
        let maps = || std::fs::read_to_string("/proc/thread-self/maps").unwrap_or_default();
        check_buffer(known.get_or_insert_with(maps), base, len)?;
        Ok(Wanted::This(Self { at: base, len }))
    }

    fn release(locked: &mut Locked<'_>, one: Option<Arc<Registered<Self>>>) {
        locked.release_buffer(one);
    }
}

/// A program's list: contents for slots, and tags. Without a list, the slots are empty.
pub(crate) struct List {
    pub(crate) data: usize,
    pub(crate) tags: usize,
    pub(crate) count: u32,
}

impl List {
    /// The content for the slot at an index, and its tag.
    fn read<R: Resource>(
        &self,
        registry: &dyn Registry,
        at: usize,
        known: &mut R::Known,
    ) -> Result<(Wanted<R>, u64), i32> {
        let tag = if self.tags == 0 { 0 } else { user::read(self.tags + 8 * at)? };
        let wanted = match self.data {
            0 => Wanted::Nothing,
            data => R::read(registry, (data, at), known)?,
        };
        let is_new = matches!(wanted, Wanted::This(_));
        if tag != 0 && !is_new { Err(-libc::EINVAL) } else { Ok((wanted, tag)) }
    }
}

pub(crate) fn register<R: Resource>(locked: &mut Locked<'_>, list: &List) -> Result<i32, i32> {
    if R::slots(locked).is_some() {
        return Err(-libc::EBUSY);
    }
    R::check(list.count)?;
    let registry = locked.core().registry;
    let mut slots = Slots::new(list.count as usize).ok_or(-libc::ENOMEM)?;
    let mut known = R::Known::default();
    for at in 0..list.count as usize {
        let (value, tag) = match list.read(registry, at, &mut known)? {
            (Wanted::Nothing, tag) => (None, tag),
            (Wanted::This(value), tag) => (Some(value), tag),
            (Wanted::Same, _) => return Err(-libc::EBADF),
        };
        let _none = slots.put(at, value, tag);
    }
    slots.hint = 0;
    *R::slots(locked) = Some(slots);
    Ok(0)
}

pub(crate) fn unregister<R: Resource>(locked: &mut Locked<'_>) -> Result<i32, i32> {
    let slots = R::slots(locked).take().ok_or(-libc::ENXIO)?;
    slots.into_all().for_each(|one| R::release(locked, one));
    Ok(0)
}

/// Changes slots from `first` on. Returns their number.
pub(crate) fn update<R: Resource>(
    locked: &mut Locked<'_>,
    (first, list): (u32, List),
) -> Result<i32, i32> {
    let len = R::slots(locked).as_ref().map(Slots::len).ok_or(-libc::ENXIO)?;
    let end = first.checked_add(list.count).ok_or(-libc::EOVERFLOW)?;
    if end as usize > len {
        return Err(-libc::EINVAL);
    }
    if list.data == 0 {
        return Err(-libc::EFAULT);
    }
    let (registry, mut done, mut known) = (locked.core().registry, 0, R::Known::default());
    for at in 0..list.count as usize {
        let (value, tag) = match list.read::<R>(registry, at, &mut known) {
            Ok((Wanted::Same, _)) => {
                done += 1;
                continue;
            }
            Ok((Wanted::Nothing, tag)) => (None, tag),
            Ok((Wanted::This(value), tag)) => (Some(value), tag),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        };
        let Some(slots) = R::slots(locked) else { return Err(-libc::ENXIO) };
        let old = slots.put(first as usize + at, value, tag);
        R::release(locked, old);
        done += 1;
    }
    Ok(done)
}

pub(crate) fn has_buffers(locked: &Locked<'_>) -> bool {
    locked.buffers.is_some()
}

/// Copies of the registered buffers, by slot. `None`: the ring has no table of buffers.
pub(crate) fn copies_of_buffers(locked: &Locked<'_>) -> Option<Vec<Option<Buffer>>> {
    let slots = locked.buffers.as_ref()?;
    Some((0..slots.len() as u32).map(|at| slots.get(at).map(|one| one.value)).collect())
}

/// Puts copies of buffers into slots from `first` on. Makes the table, or adds slots, if necessary.
pub(crate) fn put_buffers(
    locked: &mut Locked<'_>,
    first: usize,
    copies: &[Option<Buffer>],
    replaces: bool,
) -> Result<i32, i32> {
    let end = first + copies.len();
    if end > BUFFERS_MAX as usize {
        return Err(-libc::EINVAL);
    }
    if !replaces && locked.buffers.is_some() {
        return Err(-libc::EBUSY);
    }
    let mut slots = match locked.buffers.take() {
        Some(slots) => slots,
        None => Slots::new(0).ok_or(-libc::ENOMEM)?,
    };
    let grows = slots.grow(end);
    let copies = if grows { copies } else { &[] };
    let old: Vec<_> =
        copies.iter().zip(first..).map(|(&copy, slot)| slots.put(slot, copy, 0)).collect();
    locked.buffers = Some(slots).filter(|slots| slots.len() > 0);
    old.into_iter().for_each(|one| locked.release_buffer(one));
    if grows { Ok(0) } else { Err(-libc::ENOMEM) }
}

/// A file of a descriptor, to be registered. `known` has the files of this call: one duplicate for
/// each number.
fn file_of(registry: &dyn Registry, fd: i32, known: &mut Vec<(i32, File)>) -> Result<File, i32> {
    if let Some((_, file)) = known.iter().find(|(number, _)| *number == fd) {
        return Ok(file.clone());
    }
    if registry.has(fd) || uringlet::front::is_own_descriptor(fd) || !sys::is_open(fd) {
        return Err(-libc::EBADF);
    }
    let file = File { descriptor: OwnDescriptor::duplicate(fd).ok_or(-libc::EMFILE)? };
    known.push((fd, file.clone()));
    Ok(file)
}

/// Checks the pages of a buffer: they must be mapped, writable, and not of a shared file.
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

impl Locked<'_> {
    /// IORING_OP_FILES_UPDATE.
    pub(super) fn update_files_by_request(&mut self, fds: u64, count: u32, offset: u32) -> i32 {
        if offset != INDEX_ALLOC {
            let list = List { data: fds as usize, tags: 0, count };
            return update::<File>(self, (offset, list)).unwrap_or_else(|errno| errno);
        }
        if self.files.is_none() {
            return -libc::ENXIO;
        }
        let (registry, mut done, mut known) = (self.core().registry, 0, Vec::new());
        for at in 0..count as usize {
            let place = fds as usize + 4 * at;
            let installed = user::read::<i32>(place)
                .and_then(|fd| match fd {
                    -1 => Err(-libc::EBADF),
                    fd => file_of(registry, fd, &mut known),
                })
                .and_then(|file| match self.install(INDEX_ALLOC, file) {
                    slot if slot < 0 => Err(slot),
                    // SAFETY: the place is in the list that the program has named.
                    slot => unsafe { user::write(place, slot) },
                });
            match installed {
                Ok(()) => done += 1,
                Err(errno) if done == 0 => return errno,
                Err(_) => break,
            }
        }
        done
    }

    /// Puts a file into `slot`, and returns 0. Or puts it into any free slot, and returns the slot.
    /// On failure, returns a negative errno.
    pub(super) fn install(&mut self, slot: u32, file: File) -> i32 {
        // In a request, the slot is the entry's field minus 1. So `INDEX_ALLOC` arrives as one
        // less.
        let any = slot == INDEX_ALLOC || slot == INDEX_ALLOC - 1;
        let Some(files) = self.files.as_mut() else {
            return self.refuse(file, if any { -libc::ENFILE } else { -libc::ENXIO });
        };
        let at = if any { files.free() } else { Some(slot as usize) };
        let Some(at) = at else { return self.refuse(file, -libc::ENFILE) };
        if at >= files.len() {
            return self.refuse(file, -libc::EINVAL);
        }
        let old = files.put(at, Some(file), 0);
        self.release_file(old);
        if any { at as i32 } else { 0 }
    }

    /// Drops a file that gets no slot. Returns `errno`.
    fn refuse(&mut self, file: File, errno: i32) -> i32 {
        self.tasks.push(Task::Drop(file));
        errno
    }

    /// IORING_OP_PIPE: the numbers of both ends, or their slots, go to the program's memory.
    pub(super) fn open_pipe(&mut self, at: u64, flags: u32, slot: Option<u32>) -> i32 {
        let ends = match sys::pipe(flags) {
            Ok(ends) => ends,
            Err(errno) => return errno,
        };
        let Some(slot) = slot else {
            // SAFETY: the program's array, which the entry names.
            let told = unsafe { user::write(at as usize, ends) };
            if told.is_err() {
                ends.into_iter().for_each(|fd| _ = sys::close(fd));
            }
            return told.err().unwrap_or(0);
        };
        let is_any = slot == INDEX_ALLOC - 1;
        let (mut slots, mut done) = ([slot, slot.wrapping_add(1)], 0);
        let mut answer = if flags & libc::O_CLOEXEC as u32 != 0 { -libc::EINVAL } else { 0 };
        for end in ends {
            if answer < 0 {
                _ = sys::close(end);
                continue;
            }
            let end = move_aside(end);
            if end < 0 {
                answer = end;
                continue;
            }
            answer = self.install_number(if is_any { slot } else { slots[done] }, end);
            if answer >= 0 {
                slots[done] = if is_any { answer as u32 } else { slots[done] };
                done += 1;
            }
        }
        // SAFETY: as above.
        let tell = || unsafe { user::write(at as usize, slots) };
        let told = if answer < 0 { Err(answer) } else { tell() };
        if told.is_err() {
            slots[..done].iter().for_each(|&slot| _ = self.clear_file(slot as usize));
        }
        told.err().unwrap_or(0)
    }

    /// The registered file of an index.
    pub(super) fn registered(&self, index: u32) -> Result<Arc<Registered<File>>, i32> {
        self.files.as_ref().and_then(|files| files.get(index)).cloned().ok_or(-libc::EBADF)
    }

    /// Empties a slot.
    pub(super) fn clear_file(&mut self, at: usize) -> i32 {
        let Some(files) = self.files.as_mut() else { return -libc::ENXIO };
        if at >= files.len() {
            return -libc::EINVAL;
        }
        if !files.is_used(at) {
            return -libc::EBADF;
        }
        let old = files.put(at, None, 0);
        self.release_file(old);
        0
    }

    /// Puts a descriptor that a request has just opened into a slot. Returns the request's result.
    pub(super) fn install_number(&mut self, slot: u32, number: i32) -> i32 {
        // SAFETY: the request has opened it, for this slot alone.
        let opened = unsafe { OwnedFd::from_raw_fd(number) };
        self.install(slot, File { descriptor: OwnDescriptor::adopt(opened) })
    }

    /// A slot or a request no longer uses a file. If it was the last user, the file's tag is posted
    /// later.
    #[inline]
    pub(super) fn release_file(&mut self, file: Option<Arc<Registered<File>>>) {
        let Some(Registered { value, tag }) = file.and_then(Arc::into_inner) else { return };
        self.state.tasks.push(Task::Drop(value));
        self.state.tags.extend((tag != 0).then_some(tag));
    }

    /// As [`release_file`](Self::release_file).
    #[inline]
    pub(super) fn release_buffer(&mut self, buffer: Option<Arc<Registered<Buffer>>>) {
        let Some(Registered { tag, .. }) = buffer.and_then(Arc::into_inner) else { return };
        self.state.tags.extend((tag != 0).then_some(tag));
    }
}
