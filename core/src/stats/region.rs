//! Counters of a program in memory that `uringlet top` finds: a sealed memfd with a record for each
//! context. The record is the context's *place*.
//!
//! The memory has no name, and is freed with the last process that has it open, however that
//! process ends. A new context takes over a place with the counts of its earlier contexts. A
//! context that ends leaves its counts there. So the sum of all places only grows.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::{Counters, Snapshot};
use crate::environment::variable;
use crate::own::Copied;
use crate::{process, sys};

/// `URINGLET_STATS`: the file into which `uringlet run --stats` has the program count, or
/// [`STATS_OWN`].
pub(crate) const STATS: &str = "URINGLET_STATS";
/// The value with which each process counts into memory of its own, for `uringlet top`.
const STATS_OWN: &str = "auto";
/// "urnglet" and a version of the layout below.
const MAGIC: u64 = u64::from_le_bytes(*b"urnglet\x0a");
/// The name of the memfd, as /proc/PID/fd shows it.
const NAME: &std::ffi::CStr = c"uringlet-stats";
/// The name of a region that has events only.
const EVENTS_NAME: &std::ffi::CStr = c"uringlet-events";
/// The maximum number of contexts with a place of their own; others share one.
const PLACES: usize = 128;
/// The size of the text about a context's engine, in words of eight bytes.
const CHOICE_WORDS: usize = 48;
/// The number of kinds of events that can be counted.
const EVENTS: usize = 512;
/// The lowest number of a descriptor that children inherit. The first value is higher than what
/// programs open. The second value is used under a smaller RLIMIT_NOFILE.
const INHERITED: [RawFd; 2] = [256, 3];

/// The memory that another process sees.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    /// The program's process: its pid and start time.
    program: ProcessIdentity,
    /// No place at this index or above was ever used.
    used: AtomicU64,
    /// Odd while a context has the place; counted up when a context comes, and when it goes.
    lives: [AtomicU64; PLACES],
    places: [PlaceLayout; PLACES],
    /// Counters of contexts that find no place.
    rest: Counters,
    /// What happened in the processes of the program; see [`crate::front::seen`].
    events: [AtomicU64; EVENTS],
}

#[repr(C)]
struct ProcessIdentity {
    pid: AtomicU64,
    /// The start time of the process, in ticks since the boot (proc(5)); 0 if unknown.
    started: AtomicU64,
}

#[repr(C, align(64))]
struct PlaceLayout {
    owner: ProcessIdentity,
    /// Requests that were in flight when earlier owners of the place were killed.
    lost: AtomicU64,
    choice: [AtomicU64; CHOICE_WORDS],
    counters: Counters,
}

/// A process, by two numbers that no other process of this boot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The pid, in the process's own namespace.
    pub pid: u32,
    /// The start time of the process, in clock ticks since the boot (proc(5)); 0 if unknown.
    pub started: u64,
}

impl ProcessId {
    /// The calling process; looked up once.
    fn own() -> Self {
        static GENERATION: AtomicU64 = AtomicU64::new(0);
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let generation = process::enter();
        let pid = sys::getpid() as u32;
        if GENERATION.load(Ordering::Acquire) != generation {
            // /proc may be of another PID namespace, so the pid is not asked for.
            STARTED.store(Self::shown("self", pid).map_or(0, |own| own.started), Ordering::Relaxed);
            GENERATION.store(generation, Ordering::Release);
        }
        Self { pid, started: STARTED.load(Ordering::Relaxed) }
    }

    /// The process that has this pid now, if there is one that has not ended.
    pub fn of(pid: u32) -> Option<Self> {
        Self::shown(&pid.to_string(), pid)
    }

    /// The process that /proc shows in this folder.
    fn shown(folder: &str, pid: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{folder}/stat")).ok()?;
        // The second field is a name in brackets, of any bytes.
        let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
        let ended = matches!(fields.next()?, "Z" | "X");
        let started = fields.nth(18)?.parse().ok()?;
        (!ended).then_some(Self { pid, started })
    }

    /// Does the process still exist?
    pub fn is_alive(self) -> bool {
        Self::of(self.pid).is_some_and(|now| self.started == 0 || now.started == self.started)
    }
}

impl ProcessIdentity {
    fn set(&self, of: ProcessId) {
        self.pid.store(u64::from(of.pid), Ordering::Relaxed);
        self.started.store(of.started, Ordering::Relaxed);
    }

    fn get(&self) -> ProcessId {
        let pid = u32::try_from(self.pid.load(Ordering::Relaxed)).unwrap_or(0);
        ProcessId { pid, started: self.started.load(Ordering::Relaxed) }
    }
}

/// The counters of a program: one process makes them, others map them.
#[derive(Debug)]
pub struct Region {
    /// Points to a [`Layout`] in a sealed memfd, mapped until this is dropped.
    layout: *const Layout,
    /// The memfd, in processes that publish the region by its path. Readers have none.
    file: Option<File>,
}

// SAFETY: the memory is atomics only, and the descriptor a number.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// One context at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextNow {
    /// The number of the context's place in the region.
    pub place: usize,
    /// Which context of the place this is: 1 for the first, 3 for the second, and so on. Even
    /// numbers stand for a free place.
    pub generation: u64,
    /// The context's process.
    pub process: ProcessId,
    /// The engine of the context, and the reason ([`Choice`](crate::Choice)).
    pub choice: String,
    /// Requests in flight.
    pub in_flight: u64,
    /// The counters of the place, which include the counts of its earlier contexts.
    pub counted: Snapshot,
}

/// Does a context have the place?
fn is_live(life: u64) -> bool {
    life & 1 == 1
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl Region {
    /// Makes counters that are all zero.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create() -> io::Result<Self> {
        Self::create_as(NAME)
    }

    /// Makes a region for events, into which no context counts: readers of counters do not find it.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create_for_events() -> io::Result<Self> {
        Self::create_as(EVENTS_NAME)
    }

    fn create_as(name: &std::ffi::CStr) -> io::Result<Self> {
        let made = sys::sealed_memfd(name, size_of::<Layout>());
        if made < 0 {
            return Err(io::Error::from_raw_os_error(-made as i32));
        }
        // SAFETY: a new descriptor, which is nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(made as RawFd) });
        let region = Self::map(file, libc::PROT_READ | libc::PROT_WRITE)?;
        region.layout().magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// The path by which other processes of the same user find the region, as long as this process
    /// has it: for [`publish_to`].
    pub fn path(&self) -> PathBuf {
        let fd = self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let number = || std::process::id().to_string().into();
        // /proc may be of another PID namespace.
        let own = std::fs::read_link("/proc/self").unwrap_or_else(|_| number());
        Path::new("/proc").join(own).join("fd").join(fd.to_string())
    }

    /// Sets the program's process.
    pub fn set_program(&self, program: ProcessId) {
        self.layout().program.set(program);
    }

    /// Has the children of this process inherit the descriptor. A child that has become another
    /// user may not open [`Region::path`], and joins by the descriptor instead. This call changes
    /// the path.
    ///
    /// # Errors
    /// The errors of fcntl(2); nothing has changed then.
    pub fn pass_on(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // SAFETY: passes no address.
        let copy = |from: RawFd| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, from) };
        let Some(fd) = INHERITED.into_iter().map(copy).find(|&fd| fd >= 0) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: a new descriptor, which is nobody else's.
        self.file = Some(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok(())
    }

    /// Maps counters at the [`Region::path`] of another process, for writing, and keeps no
    /// descriptor. Where the path may not be opened, the calling process may have inherited the
    /// descriptor ([`Region::pass_on`]).
    ///
    /// # Errors
    /// The errors of open(2), fcntl(2) and mmap(2); `InvalidData` if the file is not a region of
    /// uringlet.
    pub(crate) fn join(path: &Path) -> io::Result<Self> {
        let inherited = |error| {
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            // If the number were another file's, closing the copy would release the process's locks
            // on that file (fcntl(2)).
            let ours = number.filter(|&fd| sys::is_sealed(fd)).ok_or(error)?;
            let copy = sys::duplicate(ours, 0);
            if copy < 0 {
                return Err(io::Error::from_raw_os_error(-copy as i32));
            }
            // SAFETY: a new descriptor, which is nobody else's.
            let file = File::from(unsafe { OwnedFd::from_raw_fd(copy as RawFd) });
            Self::map_ours(file, libc::PROT_READ | libc::PROT_WRITE)
        };
        let mut region = Self::open(path).or_else(inherited)?;
        region.file = None;
        Ok(region)
    }

    /// Counts one event of this kind.
    pub(crate) fn note(&self, kind: usize) {
        self.layout().events[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// How many events of this kind were counted.
    pub(crate) fn noted(&self, kind: usize) -> u64 {
        self.layout().events[kind].load(Ordering::Relaxed)
    }

    /// Maps counters that [`Region::create`] has made, for reading.
    ///
    /// # Errors
    /// Errors of fstat(2) and mmap(2); `InvalidData` if the file is no region.
    pub fn read_from(file: File) -> io::Result<Self> {
        let mut region = Self::map_ours(file, libc::PROT_READ)?;
        region.file = None;
        Ok(region)
    }

    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Self::map_ours(file, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn map_ours(file: File, protection: i32) -> io::Result<Self> {
        // The memory is sealed, so that nobody can truncate it while others have mapped it.
        if !sys::is_sealed(file.as_raw_fd()) {
            return Err(invalid("not a statistics region"));
        }
        if file.metadata()?.len() != size_of::<Layout>() as u64 {
            return Err(invalid("a statistics region of another version"));
        }
        let region = Self::map(file, protection)?;
        if region.layout().magic.load(Ordering::Acquire) != MAGIC {
            return Err(invalid("a statistics region of another version"));
        }
        Ok(region)
    }

    fn map(file: File, protection: i32) -> io::Result<Self> {
        let at = sys::map_shared(file.as_raw_fd(), size_of::<Layout>(), protection);
        let at = at.map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        Ok(Self { layout: at.cast(), file: Some(file) })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped until the drop, page-aligned, as long as Layout, which any bytes are valid
        // for.
        unsafe { &*self.layout }
    }

    fn used(&self) -> &[PlaceLayout] {
        let used = usize::try_from(self.layout().used.load(Ordering::Acquire)).unwrap_or(PLACES);
        &self.layout().places[..used.min(PLACES)]
    }

    /// The program's process.
    pub fn program(&self) -> ProcessId {
        self.layout().program.get()
    }

    /// The sum over all contexts, past and present.
    pub fn snapshot(&self) -> Snapshot {
        let mut sum = self.layout().rest.read();
        self.used().iter().for_each(|place| sum.add(&place.counters.read()));
        sum
    }

    /// The live contexts of live processes. Contexts without a place of their own are left out.
    pub fn contexts(&self) -> Vec<ContextNow> {
        let places = self.used().iter().zip(&self.layout().lives).enumerate();
        let context = |(at, (place, life)): (usize, (&PlaceLayout, &AtomicU64))| {
            let generation = life.load(Ordering::Acquire);
            let process = place.owner.get();
            if !is_live(generation) || !process.is_alive() {
                return None;
            }
            let counted = place.counters.read();
            let in_flight = counted.in_flight().saturating_sub(place.lost.load(Ordering::Relaxed));
            let choice = place.noted();
            Some(ContextNow { place: at, generation, process, choice, in_flight, counted })
        };
        places.filter_map(context).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has a reference any more.
        unsafe { libc::munmap(self.layout.cast_mut().cast(), size_of::<Layout>()) };
    }
}

impl PlaceLayout {
    fn note(&self, text: &str) {
        let mut bytes = [0; CHOICE_WORDS * 8];
        let room = bytes.len().min(text.len());
        bytes[..room].copy_from_slice(&text.as_bytes()[..room]);
        let (words, _) = bytes.as_chunks::<8>();
        for (to, &word) in self.choice.iter().zip(words) {
            to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// The text, with only characters that are safe for a terminal.
    fn noted(&self) -> String {
        let words = self.choice.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().take_while(|&byte| byte != 0).collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }
}

/// A context's own place, until it is dropped.
#[derive(Debug)]
pub(super) struct ContextPlace {
    layout: &'static Layout,
    at: usize,
    life: u64,
    /// The generation (`process::generation`) of the process that has claimed the place.
    generation: u64,
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layout").finish_non_exhaustive()
    }
}

impl ContextPlace {
    pub(super) fn note(&self, text: &str) {
        self.layout.places[self.at].note(text);
    }
}

impl Drop for ContextPlace {
    fn drop(&mut self) {
        // In the child of a fork, the place is still the parent's.
        if self.generation == process::generation() {
            let life = &self.layout.lives[self.at];
            // If another process has taken the place over, that process keeps it.
            let _ = life.compare_exchange(
                self.life,
                self.life.wrapping_add(1),
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
    }
}

impl Layout {
    /// Claims a free place, or one whose process has ended without giving the place back.
    fn claim(&'static self) -> Option<ContextPlace> {
        let own = ProcessId::own();
        let free = |at: usize, life: u64| (!is_live(life)).then(|| self.take(at, life, 1, own))?;
        let left = |at: usize, life: u64| {
            let owner = self.places[at].owner.get();
            let gone = is_live(life) && owner.pid != own.pid && !sys::has_process(owner.pid);
            gone.then(|| self.take(at, life, 2, own))?
        };
        let look = |take: &dyn Fn(usize, u64) -> Option<ContextPlace>| {
            let mut lives = self.lives.iter().enumerate();
            lives.find_map(|(at, life)| take(at, life.load(Ordering::Acquire)))
        };
        look(&free).or_else(|| look(&left))
    }

    /// Takes the place over, if its word in `lives` still is `life`: adds `step` to that word.
    fn take(
        &'static self,
        at: usize,
        life: u64,
        step: u64,
        own: ProcessId,
    ) -> Option<ContextPlace> {
        let (word, next) = (&self.lives[at], life.wrapping_add(step));
        word.compare_exchange(life, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let place = &self.places[at];
        place.owner.set(own);
        place.note("");
        let counters = &place.counters;
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended = [
            &counters.reads,
            &counters.writes,
            &counters.fsyncs,
            &counters.polls,
            &counters.others,
            &counters.canceled,
        ];
        let ended = ended.into_iter().map(now).fold(0, u64::wrapping_add);
        place.lost.store(now(&counters.submitted).saturating_sub(ended), Ordering::Relaxed);
        self.used.fetch_max(at as u64 + 1, Ordering::AcqRel);
        Some(ContextPlace { layout: self, at, life: next, generation: process::generation() })
    }
}

static PUBLISHED: AtomicPtr<Layout> = AtomicPtr::new(std::ptr::null_mut());

/// The counters for a new context of this process, if somebody asked for them: in a place of its
/// own, if one is free.
pub(super) fn claim() -> Option<(&'static Counters, Option<ContextPlace>)> {
    // SAFETY: null, or never unmapped.
    let layout = unsafe { PUBLISHED.load(Ordering::Acquire).as_ref() }?;
    let place = layout.claim();
    let counters = place.as_ref().map_or(&layout.rest, |place| &layout.places[place.at].counters);
    Some((counters, place))
}

/// Has contexts of this process count into `region` from now on. The first call wins. A descriptor
/// stays open, so that the counters can be found as long as the process lives.
fn publish(region: Region) {
    if count_into(region.layout.cast_mut()) {
        let mut region = std::mem::ManuallyDrop::new(region);
        if let Some(file) = region.file.take() {
            // A program that closes all its descriptors does not close the number of this copy.
            std::mem::forget(Copied::of(file.as_raw_fd()));
        }
    }
}

/// Has contexts of this process count into `layout` from now on. False: another one was first.
fn count_into(layout: *mut Layout) -> bool {
    let null = std::ptr::null_mut();
    PUBLISHED.compare_exchange(null, layout, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Has every context of this process, from now on, count into a region of another process: one from
/// [`Region::create`], at [`Region::path`]. The first call wins.
///
/// # Errors
/// Errors of open(2) and mmap(2); `InvalidData` if the file is no region.
pub fn publish_to(path: &Path) -> io::Result<()> {
    Region::open(path).map(publish)
}

/// Has every context of this process, from now on, count into a region that `uringlet top` finds.
/// That is the region of `uringlet run --stats`, if the environment names one at this call; else
/// one of the process's own. Children made by fork(2) count into the same region. Costs contexts
/// some atomic additions per request.
///
/// # Errors
/// As [`Region::create`] and [`publish_to`].
pub fn observe() -> io::Result<()> {
    observe_as(variable(STATS).as_deref(), None)
}

/// As [`observe`]. `said`: the value of the variable. If the program may not open that region any
/// more, it counts into `joined`.
pub(crate) fn observe_as(said: Option<&OsStr>, joined: Option<&'static Region>) -> io::Result<()> {
    match said {
        Some(path) if path != STATS_OWN => publish_to(Path::new(path)).or_else(|error| {
            let joined = joined.ok_or(error)?;
            count_into(joined.layout.cast_mut());
            Ok(())
        }),
        _ => observe_alone(),
    }
}

fn observe_alone() -> io::Result<()> {
    // Another copy of this library, in another drop-in, may have been first.
    if let Some(region) = own_region() {
        publish(region);
        return Ok(());
    }
    let region = Region::create()?;
    region.set_program(ProcessId::own());
    publish(region);
    Ok(())
}

/// The region that this process has open, if there is one.
fn own_region() -> Option<Region> {
    let descriptors = std::fs::read_dir("/proc/thread-self/fd").ok()?;
    descriptors.flatten().map(|entry| entry.path()).find_map(|path| {
        let link = std::fs::read_link(&path).ok()?;
        Region::is_linked_as(&link).then(|| Region::open(&path).ok())?
    })
}

impl Region {
    /// Does this link in /proc/PID/fd name a region?
    pub fn is_linked_as(link: &Path) -> bool {
        let name = link.as_os_str().as_encoded_bytes();
        let name = name.strip_prefix(b"/memfd:").and_then(|name| name.strip_suffix(b" (deleted)"));
        name == Some(NAME.to_bytes())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ContextPlace, Layout, MAGIC, PLACES, ProcessId, Region};
    use std::fs::File;
    use std::io::ErrorKind;
    use std::path::Path;
    use std::sync::atomic::Ordering;

    /// A region, and a second mapping of it that stays.
    fn made() -> (Region, &'static Layout) {
        let region = Region::create().unwrap();
        let writer = std::mem::ManuallyDrop::new(Region::open(&region.path()).unwrap());
        // SAFETY: never unmapped.
        (region, unsafe { &*writer.layout })
    }

    fn count(place: &ContextPlace) -> &super::Counters {
        &place.layout.places[place.at].counters
    }

    /// A process that has ended.
    fn ended() -> ProcessId {
        let mut cat = std::process::Command::new("cat");
        let mut child = cat.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = ProcessId::of(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        process
    }

    #[test]
    fn who_may_not_open_the_path_joins_by_the_descriptor_that_it_has_inherited() {
        let mut region = Region::create().unwrap();
        region.pass_on().unwrap();
        let number = region.path().file_name().unwrap().to_owned();
        let closed = Path::new("/nowhere").join(&number);
        Region::join(&closed).unwrap().note(3);
        assert_eq!(region.noted(3), 1);
        let inherits = std::process::Command::new("test");
        let ended = { inherits }.arg("-e").arg(Path::new("/proc/self/fd").join(&number)).status();
        assert!(ended.unwrap().success());
        let other = File::open("/dev/null").unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&other).to_string();
        for path in [Path::new("/nowhere/x"), Path::new("/nowhere").join(other).as_path()] {
            assert!(Region::join(path).is_err());
        }
    }

    #[test]
    fn a_reader_sees_each_context_and_the_sum_of_all_that_were() {
        let (region, writer) = made();
        let reader = Region::read_from(File::open(region.path()).unwrap()).unwrap();
        let (first, second) = (writer.claim().unwrap(), writer.claim().unwrap());
        first.note("auto, direct I/O through linux_aio");
        count(&first).submitted.fetch_add(5, Ordering::Relaxed);
        count(&first).reads.fetch_add(3, Ordering::Relaxed);
        count(&second).writes.fetch_add(4, Ordering::Relaxed);
        let contexts = reader.contexts();
        assert_eq!(contexts.len(), 2);
        assert_eq!(contexts[0].choice, "auto, direct I/O through linux_aio");
        assert_eq!((contexts[0].in_flight, contexts[0].counted.reads), (2, 3));
        assert_eq!(contexts[0].process, ProcessId::of(std::process::id()).unwrap());
        drop(first);
        assert_eq!(reader.contexts().len(), 1);
        assert_eq!(reader.snapshot().requests(), 7, "what ended contexts have done stays");
        let third = writer.claim().unwrap();
        let again = &reader.contexts()[0];
        assert_eq!((again.place, again.choice.as_str()), (0, ""));
        assert!(again.generation > contexts[0].generation);
        assert_eq!(again.in_flight, 0, "what the one before has left in flight is not this one's");
        drop((second, third));
        assert!(reader.contexts().is_empty());
    }

    #[test]
    fn places_of_killed_processes_are_taken_over_and_living_ones_are_not() {
        let (region, writer) = made();
        let mut places: Vec<ContextPlace> = (0..PLACES).map(|_| writer.claim().unwrap()).collect();
        assert!(writer.claim().is_none(), "every place has a living owner");
        writer.places[7].owner.set(ended());
        assert_eq!(region.contexts().len(), PLACES - 1);
        let taken = writer.claim().unwrap();
        assert_eq!(taken.at, 7);
        // If the old owner gives the place up after all, the new one keeps it.
        drop(places.remove(7));
        assert_eq!(region.contexts().len(), PLACES);
    }

    #[test]
    fn what_is_no_region_is_refused() {
        let refused = |file| Region::read_from(file).unwrap_err().kind();
        assert_eq!(refused(tempfile::tempfile().unwrap()), ErrorKind::InvalidData);
        assert_eq!(refused(File::open("/dev/zero").unwrap()), ErrorKind::InvalidData);
        let (region, writer) = made();
        let open = || File::options().read(true).write(true).open(region.path()).unwrap();
        assert!(open().set_len(10).is_err(), "nobody can take the memory away");
        writer.magic.store(MAGIC + 1, Ordering::Relaxed);
        assert_eq!(refused(open()), ErrorKind::InvalidData);
    }

    #[test]
    fn wild_values_are_no_panic() {
        let (region, writer) = made();
        let bytes = size_of::<Layout>();
        // SAFETY: shared memory of that size, which atomics are read from.
        unsafe { std::ptr::from_ref(writer).cast_mut().cast::<u8>().write_bytes(0xff, bytes) };
        let own = ProcessId::of(std::process::id()).unwrap();
        for at in 0..PLACES {
            writer.places[at].owner.set(own);
        }
        assert_eq!(region.contexts().len(), PLACES);
        assert!(region.contexts().iter().all(|context| !context.choice.contains(char::is_control)));
        let snapshot = region.snapshot();
        let _ = (snapshot.in_flight(), snapshot.completion.latency(), snapshot.since(&snapshot));
    }

    #[test]
    fn links_of_regions_are_known_by_their_whole_name() {
        assert!(Region::is_linked_as(Path::new("/memfd:uringlet-stats (deleted)")));
        for other in ["/memfd:uringlet-stats", "/memfd:uringlet-stats2 (deleted)", "/dev/null"] {
            assert!(!Region::is_linked_as(Path::new(other)));
        }
    }
}
