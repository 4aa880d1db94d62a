//! Asks the kernel about descriptors, and stores the answers for the router.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::request::BATCH;
use crate::router::Ask;
use crate::router::facts::{self, Facts, Fresh, Said};
use crate::router::tuning::TICK;
use crate::sys;

thread_local! {
    /// The current turn (iteration) of the event loop that the thread runs; 0 if it runs none.
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Counts the calls of [`some_end`].
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Notes that the event loop of the calling thread begins another turn.
pub(crate) fn begin_turn() {
    TURN.set(TURN.get().wrapping_add(1).max(1));
}

/// Makes all kept answers invalid, because descriptors are about to be closed.
pub(crate) fn some_end() {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// The kernel's last answer about a descriptor, for each thread. A thread that runs an event loop
/// uses an answer in the same turn only, at most [`BATCH`] times, and for at most one [`TICK`].
/// Other threads ask each time.
#[derive(Debug)]
pub(crate) struct InTurn<T: Copy>(Cell<Option<SaidInTurn<T>>>);

#[derive(Clone, Copy, Debug)]
struct SaidInTurn<T> {
    fd: RawFd,
    when: Moment,
    /// How often the answer was used.
    asked: usize,
    answer: T,
}

/// The moment of an answer.
#[derive(Clone, Copy, Debug)]
struct Moment {
    turn: u32,
    /// The value of [`ENDED`].
    ended: u32,
    ticks: u64,
}

impl Moment {
    fn now() -> Self {
        let ended = ENDED.load(Ordering::Relaxed);
        Self { turn: TURN.get(), ended, ticks: sys::ticks() }
    }

    /// Are both moments in the same turn, close together, and was no descriptor closed between
    /// them?
    fn is_with(self, now: Self) -> bool {
        let longest = TICK.as_micros() as u64 * sys::ticks_per_us();
        (self.turn, self.ended) == (now.turn, now.ended)
            && now.ticks.wrapping_sub(self.ticks) <= longest
    }
}

impl<T: Copy> InTurn<T> {
    pub(crate) const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// The kept answer if it is still valid, or a new one from `ask`. An error is not kept: the
    /// number may get a file in this turn.
    #[inline]
    pub(crate) fn ask(&self, fd: RawFd, ask: impl FnOnce() -> Result<T, i32>) -> Result<T, i32> {
        self.ask_at(Moment::now(), fd, ask)
    }

    #[inline]
    fn ask_at(
        &self,
        when: Moment,
        fd: RawFd,
        ask: impl FnOnce() -> Result<T, i32>,
    ) -> Result<T, i32> {
        let is_now = |said: &SaidInTurn<T>| said.fd == fd && said.when.is_with(when);
        let said = match self.0.get().filter(is_now) {
            Some(said) if said.asked < BATCH => SaidInTurn { asked: said.asked + 1, ..said },
            _ => SaidInTurn { fd, when, asked: 1, answer: ask()? },
        };
        self.0.set(Some(said).filter(|_| when.turn != 0));
        Ok(said.answer)
    }

    /// If the kept answer was used in the last turn, asks the kernel again, and keeps the new
    /// answer for the turn that has begun. The thread calls this before it sleeps, while the kernel
    /// works on its requests.
    pub(crate) fn ask_ahead(&self, ask: impl FnOnce(RawFd) -> Result<T, i32>) {
        self.ask_ahead_at(Moment::now(), ask);
    }

    fn ask_ahead_at(&self, when: Moment, ask: impl FnOnce(RawFd) -> Result<T, i32>) {
        let was_last = |said: &SaidInTurn<T>| said.asked > 0 && said.when.turn + 1 == when.turn;
        let said = self.0.get().filter(was_last).and_then(|SaidInTurn { fd, .. }| {
            ask(fd).ok().map(|answer| SaidInTurn { fd, when, asked: 0, answer })
        });
        self.0.set(said);
    }
}

/// Does the descriptor have offsets? lseek(2) would tell, but waits while another thread reads the
/// same file.
fn has_offsets(fd: RawFd, file_type: u32) -> bool {
    match file_type {
        libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR => true,
        // Some character devices have offsets, terminals do not.
        libc::S_IFCHR => sys::has_offsets(fd),
        _ => false,
    }
}

/// The hints about `fd`, looked up if there are none. `Err` has the negative errno: the descriptor
/// is not open.
#[inline]
pub(crate) fn known(fd: RawFd) -> Result<Facts, i32> {
    match Facts::noted(fd) {
        Some(facts) => Ok(facts),
        None => fresh(fd).map(Fresh::facts),
    }
}

/// Asks the kernel (fcntl, statx), and stores the answer. What was learned about the number stays
/// if the answer has not changed. The file system is not asked.
#[cold]
pub(crate) fn fresh(fd: RawFd) -> Result<Fresh, i32> {
    if fd < 0 {
        return Err(-libc::EBADF);
    }
    let flags = sys::status_flags(fd);
    let stat = if flags < 0 { Err(flags) } else { sys::stat(fd) };
    let stat = match stat {
        Ok(stat) => stat,
        Err(errno) => {
            Facts::note_closed(fd);
            return Err(errno as i32);
        }
    };
    let (flags, file_type) = (flags as i32, stat.kind);
    if flags & libc::O_PATH != 0 {
        // The descriptor names a file, and cannot be used for I/O (O_PATH, open(2)).
        return Err(-libc::EBADF);
    }
    let seekable = has_offsets(fd, file_type);
    let mut local = facts::is_local_mount(stat.mount);
    if local.is_none() && file_type == libc::S_IFREG && sys::takes_nowait(fd) {
        facts::note_mount(stat.mount, true);
        local = Some(true);
    }
    let device = file_type == libc::S_IFCHR;
    let socket = file_type == libc::S_IFSOCK;
    Ok(Facts::note(fd, &Said { flags, seekable, device, socket, local }))
}

/// Notes that a read (or write) has ended, in a thread that may wait. If the file is on a local
/// file system, later ones are [trusted](Facts::is_trusted). If that is unknown, this function asks
/// the file system, and so may wait for it.
#[inline(never)]
pub(crate) fn prove(fd: RawFd, write: bool) {
    if facts::is_unclassified(fd) {
        classify(fd);
    }
    if !write {
        facts::note_read(fd);
    }
}

#[cold]
fn classify(fd: RawFd) {
    // If the number gets another file between the two calls of `stat`, nothing is learned.
    let Ok(before) = sys::stat(fd) else { return };
    let local = sys::is_local(fd);
    if sys::stat(fd).ok().map(|after| after.identity) != Some(before.identity) {
        return;
    }
    facts::note_mount(before.mount, local);
    facts::classify(fd, local);
}

/// The file type bits of `st_mode`, if the file system is known to be a local one. The descriptor
/// may have been opened with `O_PATH`. The file system is not asked.
pub(crate) fn kind_if_local(fd: RawFd) -> Option<u32> {
    let stat = sys::stat(fd).ok()?;
    (facts::is_local_mount(stat.mount) == Some(true)).then_some(stat.kind)
}

/// May poll(2) of this descriptor wait, because it asks a file server? Uses what is remembered.
/// Files that are not on local file systems cost one system call more.
#[inline]
pub(crate) fn poll_may_wait(fd: RawFd) -> bool {
    known(fd).is_ok_and(Facts::seems_to_have_a_server) && !is_of_kernel(fd)
}

/// Is the descriptor a file of proc(5), sysfs(5) or cgroups(7)? Such files report events, and have
/// no server.
#[cold]
fn is_of_kernel(fd: RawFd) -> bool {
    static DEVICES: OnceLock<Vec<u64>> = OnceLock::new();
    let device = |path: &&str| std::fs::metadata(path).ok().map(|folder| folder.dev());
    let find = || ["/proc", "/sys", "/sys/fs/cgroup"].iter().filter_map(device).collect();
    let devices = DEVICES.get_or_init(find);
    sys::stat(fd).is_ok_and(|stat| devices.contains(&stat.identity.0))
}

/// Learns from a finished read or write ([`facts::observed`]), and asks the kernel again if the
/// hints may be about another file.
#[inline]
pub(crate) fn learn(fd: RawFd, write: bool, ticks: u64, rate: u64, bytes: u64) {
    if facts::observed(fd, write, ticks, rate, bytes) {
        let _ = fresh(fd);
    }
}

/// Learns how many ticks an fsync took.
pub(crate) fn learn_sync(fd: RawFd, ticks: u64, rate: u64) {
    facts::learn_sync(fd, ticks, rate, || sys::lives_in_memory(fd));
}

/// Does the kernel say that writes on this descriptor append? If they do, that is remembered.
pub(crate) fn appends(fd: RawFd) -> bool {
    Asked::new().appends(fd)
}

/// The kernel's flag. The C library's constant is 0 on 64-bit machines.
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE: i32 = 0o400_000;
#[cfg(not(target_arch = "aarch64"))]
const O_LARGEFILE: i32 = 0o100_000;

/// The kernel's last answer about a descriptor, for a batch: one system call for successive
/// requests on one descriptor.
#[derive(Debug)]
pub(crate) struct Asked {
    fd: i32,
    flags: i32,
    /// A descriptor, and whether it has offsets.
    offsets: (i32, bool),
    /// Requests wait for nonblocking streams, too.
    patient: bool,
}

impl Asked {
    pub(crate) fn new() -> Self {
        Self { fd: -1, flags: 0, offsets: (-1, false), patient: false }
    }

    /// For the requests of one context. `patient`: they wait for nonblocking streams, too.
    pub(crate) fn of(patient: bool) -> Self {
        Self { patient, ..Self::new() }
    }

    /// The file status flags (F_GETFL), 0 if the descriptor is not open. The answer is of this
    /// batch or, with `in_turn`, of this turn of an event loop. A number may get another file
    /// within a turn, and the engine may not notice. So correctness does not depend on an answer
    /// that is used `in_turn`.
    fn flags_of(&mut self, fd: i32, in_turn: bool) -> i32 {
        thread_local! {
            static LAST: InTurn<i32> = const { InTurn::new() };
        }
        let ask = || match sys::status_flags(fd) as i32 {
            errno @ ..0 => Err(errno),
            flags => Ok(flags),
        };
        if self.fd == fd {
            return self.flags;
        }
        if in_turn {
            return LAST.with(|last| last.ask(fd, ask)).unwrap_or(0);
        }
        (self.fd, self.flags) = (fd, ask().unwrap_or(0));
        self.flags
    }
}

impl Ask for Asked {
    #[inline]
    fn known(&mut self, fd: i32) -> Result<Facts, i32> {
        known(fd)
    }

    fn fresh(&mut self, fd: i32) -> Result<Fresh, i32> {
        fresh(fd)
    }

    fn poll_may_wait(&self, fd: i32) -> bool {
        poll_may_wait(fd)
    }

    fn waits_for(&self, stream: Fresh) -> bool {
        self.patient || !stream.is_nonblocking()
    }

    fn appends(&mut self, fd: i32) -> bool {
        let appends = self.flags_of(fd, false) & libc::O_APPEND != 0;
        if appends && !Facts::noted(fd).is_some_and(Facts::seems_to_append) {
            let _ = fresh(fd);
        }
        appends
    }

    fn has_offsets(&mut self, fd: i32) -> bool {
        if self.offsets.0 != fd {
            self.offsets = (fd, sys::stat(fd).is_ok_and(|stat| has_offsets(fd, stat.kind)));
        }
        self.offsets.1
    }

    /// Is this a file with O_DIRECT? A pipe may have O_DIRECT as well (pipe2(2)), and a call for it
    /// would wait inside the kernel. But a pipe does not have O_LARGEFILE.
    fn is_direct_file(&mut self, fd: i32) -> bool {
        let flags = self.flags_of(fd, true);
        flags & libc::O_DIRECT != 0 && (flags & O_LARGEFILE != 0 || self.has_offsets(fd))
    }

    #[inline]
    fn now(&self) -> u64 {
        sys::ticks()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(unsafe_code)]

    use super::{Asked, known, learn};
    use crate::router::Ask as _;
    use crate::router::facts::{Facts, FileKind};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn an_event_loop_asks_once_in_a_turn_and_other_threads_each_time() {
        let (last, asked) = (super::InTurn::new(), std::cell::Cell::new(0));
        let answer = |fd: i32| {
            asked.set(asked.get() + 1);
            if fd < 0 { Err(-libc::EBADF) } else { Ok(fd) }
        };
        let at = |turn, ended, ticks| super::Moment { turn, ended, ticks };
        // The number of times that the kernel is asked during `calls` calls.
        let times = |calls: usize, fd: i32, turn, ended| {
            let before = asked.get();
            for _ in 0..calls {
                let said = last.ask_at(at(turn, ended, 0), fd, || answer(fd));
                assert_eq!(said, if fd < 0 { Err(-libc::EBADF) } else { Ok(fd) });
            }
            asked.get() - before
        };
        assert_eq!(times(3, 1, 0, 0), 3);
        assert_eq!((times(3, 1, 1, 0), times(1, 2, 1, 0), times(2, 1, 1, 0)), (1, 1, 1));
        assert_eq!(times(3, 1, 2, 0), 1);
        assert_eq!(times(3, 1, 2, 1), 1, "a descriptor has ended");
        assert_eq!(times(3, -1, 2, 1), 3, "the number may get a file meanwhile");
        assert_eq!(times(2 * super::BATCH, 1, 3, 1), 2);
        // An answer that was asked ahead before a sleep is for the turn that has begun. If nobody
        // uses the answer, it is not asked for again.
        last.ask_ahead_at(at(4, 1, 0), answer);
        assert_eq!((times(1, 1, 4, 1), times(1, 2, 4, 1)), (0, 1));
        last.ask_ahead_at(at(5, 1, 0), answer);
        let before = asked.get();
        last.ask_ahead_at(at(6, 1, 0), answer);
        assert_eq!((asked.get() - before, times(1, 2, 6, 1)), (0, 1));
        // After a long sleep, the answer from before it is too old, and the kernel is asked again.
        last.ask_ahead_at(at(7, 1, 0), answer);
        let before = asked.get();
        assert_eq!(last.ask_at(at(7, 1, 1 << 40), 2, || answer(2)), Ok(2));
        assert_eq!(asked.get() - before, 1);
    }

    #[test]
    fn in_a_turn_a_number_that_gets_another_file_unseen_is_asked_whether_it_appends() {
        let plain = tempfile::tempfile().unwrap();
        let named = tempfile::NamedTempFile::new().unwrap();
        let append = File::options().append(true).open(named.path()).unwrap();
        let fd = plain.as_raw_fd();
        super::begin_turn();
        let asked = |fd| (Asked::new().is_direct_file(fd), Asked::new().appends(fd));
        assert_eq!(asked(fd), (false, false));
        // SAFETY: both descriptors are open. `plain` keeps its number, which names the second file
        // now, and closes it when dropped.
        assert_eq!(unsafe { libc::dup2(append.as_raw_fd(), fd) }, fd);
        assert_eq!(asked(fd), (false, true));
    }

    #[test]
    fn a_file_and_a_pipe_are_told_apart() {
        let file = tempfile::tempfile().unwrap();
        let facts = super::fresh(file.as_raw_fd()).unwrap();
        assert_eq!(facts.kind(), FileKind::Seekable);
        assert!(
            facts.is_open_for(false) && facts.is_open_for(true) && !facts.facts().sleeps(false)
        );
        let (reader, _writer) = std::io::pipe().unwrap();
        let facts = super::fresh(reader.as_raw_fd()).unwrap();
        assert_eq!(facts.kind(), FileKind::Stream);
        assert!(facts.is_open_for(false) && !facts.is_open_for(true));
        assert_eq!(known(-1), Err(-libc::EBADF));
    }

    #[test]
    fn the_mind_changes_after_some_sleeps_and_back_after_some_more() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let sleeps = || known(fd).unwrap().sleeps(true);
        // The number may have named a file of another test before. What was learned about that file
        // is forgotten.
        Facts::forget(&(fd..=fd));
        super::fresh(fd).unwrap();
        let (slow, fast) = (2_000_000, 1_000);
        let mut steps = 0;
        while !sleeps() {
            learn(fd, true, slow, 1000, 4096);
            steps += 1;
        }
        assert!((2..6).contains(&steps), "{steps} sleeps");
        steps = 0;
        while sleeps() {
            learn(fd, true, fast, 1000, 4096);
            steps += 1;
        }
        assert!((8..30).contains(&steps), "{steps} transfers without a sleep");
        assert!(!known(fd).unwrap().sleeps(false), "reads are learned apart");
    }

    /// Opens a file with these flags under this number, and then another one, without telling the
    /// engine. The number is high: nothing else in this process uses it.
    fn becomes(number: i32, flags: i32, other: i32) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let opened = |flags| File::options().read(true).write(true).custom_flags(flags).open(&path);
        let (file, other) = (opened(flags).unwrap_or(file), opened(other).unwrap());
        // SAFETY: the calls take open descriptors, and no other code in this process uses the
        // number.
        unsafe {
            assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
            super::fresh(number).unwrap();
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
        }
    }

    #[test]
    fn a_number_that_stands_for_another_file_is_looked_up_again() {
        const NUMBER: i32 = 900;
        // 4 KiB from the page cache; the number of ticks varies.
        let quick = |write, times: u64| {
            (0..times).for_each(|time| learn(NUMBER, write, 500 + time, 1000, 4096));
        };
        let facts = || Facts::noted(NUMBER).unwrap();
        becomes(NUMBER, libc::O_DIRECT, 0);
        // The first file is direct only where the file system allows that. The test holds in both
        // cases.
        quick(true, 100);
        assert!(!facts().is_direct() && !facts().sleeps(true));
        becomes(NUMBER, libc::O_APPEND, 0);
        assert!(facts().seems_to_append());
        quick(true, 16);
        assert!(!facts().seems_to_append());
        becomes(NUMBER, 0, libc::O_APPEND);
        (0..6).for_each(|_| learn(NUMBER, true, 2_000_000, 1000, 4096));
        assert!(facts().seems_to_append(), "it is looked at when the mind changes");
        // SAFETY: `becomes` has opened the descriptor.
        assert_eq!(unsafe { libc::close(NUMBER) }, 0);
        quick(true, 16);
        assert_eq!(Facts::noted(NUMBER), None, "it is closed");
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod route_tests {
    #![allow(unsafe_code)]

    use super::Asked;
    use crate::request::{Kind, Route};
    use crate::router::facts::Facts;
    use crate::router::{KernelScope, explain, route};
    use crate::{Sqe, descriptor};
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_direct_request_that_is_not_to_wait_goes_to_the_kernel_and_a_cached_one_does_not() {
        let name =
            "a_direct_request_that_is_not_to_wait_goes_to_the_kernel_and_a_cached_one_does_not";
        let folder = tempfile::tempdir().unwrap();
        let open = |flags| {
            let mut options = std::fs::File::options();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            options.open(folder.path().join("file"))
        };
        let lane = |file: &std::fs::File| {
            let fd = file.as_raw_fd();
            Facts::forget(&(fd..=fd));
            let mut buffer = [0; 512];
            let sqe = Sqe::read(fd, &mut buffer[..], 0).rw_flags(libc::RWF_NOWAIT);
            route(&sqe, Kind::Read, KernelScope::Direct, &mut Asked::new())
        };
        assert_eq!(lane(&open(0).unwrap()), (Route::Inline, false));
        match open(libc::O_DIRECT) {
            Ok(file) if descriptor::known(file.as_raw_fd()).unwrap().is_local() => {
                assert_eq!(lane(&file), (Route::Kernel, false));
            }
            _ => crate::skipped(name, "no O_DIRECT on a local file system here"),
        }
    }

    #[test]
    fn what_is_explained_is_what_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = |flags| {
            let mut options = std::fs::File::options();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            options.open(&path).ok().map(OwnedFd::from)
        };
        let (reader, writer) = std::io::pipe().unwrap();
        let files = [
            open(0),
            open(libc::O_APPEND),
            open(libc::O_SYNC),
            open(libc::O_DIRECT),
            open(libc::O_DIRECT | libc::O_APPEND),
            Some(reader.into()),
            Some(writer.into()),
            // A file on a file system that is not known to be local.
            std::fs::File::open("/proc/self/status").ok().map(OwnedFd::from),
        ];
        let mut lanes = std::collections::BTreeSet::new();
        for fd in files.iter().flatten().map(|file| file.as_raw_fd()) {
            let scopes = [
                KernelScope::Nothing,
                KernelScope::Direct,
                KernelScope::DirectAndReads,
                KernelScope::Everything,
            ];
            for scope in scopes {
                for (kind, write) in [(Kind::Read, false), (Kind::Write, true)] {
                    Facts::forget(&(fd..=fd));
                    let mut buffer = [0; 512];
                    let sqe = match kind {
                        Kind::Read => Sqe::read(fd, &mut buffer[..], 0),
                        _ => Sqe::write(fd, &buffer[..], 0),
                    };
                    let (lane, _) = route(&sqe, kind, scope, &mut Asked::new());
                    let facts = descriptor::fresh(fd).unwrap().facts();
                    let (explained, reason) = explain(facts, write, scope);
                    assert_eq!(explained, lane, "{scope:?}, {kind:?}: {reason}");
                    lanes.insert(reason);
                }
            }
        }
        assert!(lanes.len() >= 5, "{lanes:?}");
    }

    #[test]
    fn a_direct_file_whose_number_stands_for_a_pipe_of_packets_is_not_handed_to_the_kernel() {
        // Nothing else in this process uses this number.
        const NUMBER: i32 = 901;
        let folder = tempfile::tempdir().unwrap();
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let Ok(file) = options.open(folder.path().join("file")) else {
            let name = "a_direct_file_whose_number_stands_for_a_pipe_of_packets_is_not_\
                        handed_to_the_kernel";
            let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: no O_DIRECT here");
            return;
        };
        let lane = || {
            let sqe = Sqe::write(NUMBER, &[0; 512], 0);
            route(&sqe, Kind::Write, KernelScope::Direct, &mut Asked::new())
        };
        // SAFETY: no other code in this process uses the number.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), NUMBER) }, NUMBER);
        descriptor::fresh(NUMBER).unwrap();
        assert_eq!(lane(), (Route::Kernel, false));
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors. Nobody else owns the new ones.
        let [_reader, writer] = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT), 0);
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), NUMBER) }, NUMBER);
        assert_eq!(lane(), (Route::Pool, false));
        // SAFETY: the descriptor was opened above.
        assert_eq!(unsafe { libc::close(NUMBER) }, 0);
        Facts::forget(&(NUMBER..=NUMBER));
    }
}
