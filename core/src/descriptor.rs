//! What is known about a descriptor number: its kind, its flags, and whether reads and writes
//! through it have lately slept.
//!
//! One word per number, written without locks. Numbers are reused, and flags change behind our
//! back: what stands here may be about another file. So [`Facts`] are hints, which decide where a
//! request is executed, never what it does or answers: a positional call on what turns out to be a
//! pipe fails with `ESPIPE` and is sent on. What decides an answer is a [`Fresh`], which only the
//! kernel's answer makes.

use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::OnceNumber;
use crate::sys;

/// What lies behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Regular file or block device: has offsets, and never waits for a peer.
    Seekable,
    /// Pipe, socket, terminal and the like: readable or writable when poll(2) says so.
    Stream,
}

/// What is remembered of a descriptor number: hints, since the number may stand for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts(u64);

/// What the kernel has just said about a descriptor. Only [`Facts::fresh`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    word: u64,
    /// The hints that were kept.
    facts: Facts,
}

const KNOWN: u64 = 1;
const STREAM: u64 = 1 << 1;
const DIRECT: u64 = 1 << 2;
const APPEND: u64 = 1 << 3;
const NONBLOCK: u64 = 1 << 4;
const NO_READ: u64 = 1 << 5;
const NO_WRITE: u64 = 1 << 6;
const NO_SYNC: u64 = 1 << 7;
/// Two bytes of score and two flags, for reads and for writes.
const SCORE_SHIFT: [u32; 2] = [8, 16];
const SLEEPS: [u64; 2] = [1 << 24, 1 << 25];
/// Two bits that count slow submissions to the kernel, for reads and for writes.
const SLOW_SHIFT: [u32; 2] = [26, 28];
/// Two bits that count fsyncs in a row that took no longer than a system call does; three are of a file in memory.
const QUICK_SHIFT: u32 = 30;
/// Two bits: which file systems can hold up whoever asks them.
const CLASS: u64 = 3 << 32;
/// Not known yet is 0.
const LOCAL: u64 = 1 << 32;
const REMOTE: u64 = 2 << 32;
/// A read has ended without a sleep, or has had one and the score says so.
const READ: u64 = 1 << 34;
/// The number's upper bits: the lower ones are the place in the table.
const NUMBER_SHIFT: u32 = 44;

const ENTRIES: usize = 4096;
static TABLE: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

fn entry(fd: RawFd) -> &'static AtomicU64 {
    &TABLE[fd as usize % ENTRIES]
}

/// What of the word says which number it is about.
#[inline]
fn number(fd: RawFd) -> u64 {
    u64::from(fd as u32 / ENTRIES as u32)
}

/// Is the word about this number?
#[inline]
fn is_about(word: u64, fd: RawFd) -> bool {
    word & KNOWN != 0 && word >> NUMBER_SHIFT == number(fd)
}

/// Mounted file systems by their numbers ([`sys::FileStat::mount`]): `number << 1`, and 1 if it is local.
static MOUNTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn mount_entry(mount: u64) -> &'static AtomicU64 {
    &MOUNTS[(mount.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
}

fn note_mount(mount: u64, local: bool) {
    if mount != 0 {
        mount_entry(mount).store(mount << 1 | u64::from(local), Ordering::Relaxed);
    }
}

/// What is known of the file system with this number, as in [`CLASS`].
fn class_of(mount: u64) -> u64 {
    let found = mount_entry(mount).load(Ordering::Relaxed);
    match found & 1 {
        _ if mount == 0 || found >> 1 != mount => 0,
        0 => REMOTE,
        _ => LOCAL,
    }
}

/// lseek(2) would know, but waits for who is inside a read(2) of the same file.
fn has_offsets(fd: RawFd, file_type: u32) -> bool {
    match file_type {
        libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR => true,
        // Some have, terminals do not.
        libc::S_IFCHR => sys::has_offsets(fd),
        _ => false,
    }
}

impl Facts {
    /// The hints about `fd`, looked up if there are none. `Err` with the negative errno: the kernel
    /// was asked, and there is no such descriptor.
    #[inline]
    pub(crate) fn known(fd: RawFd) -> Result<Self, i32> {
        match Self::noted(fd) {
            Some(facts) => Ok(facts),
            None => Self::fresh(fd).map(|fresh| fresh.facts),
        }
    }

    /// As [`Facts::known`], without looking anything up.
    #[inline]
    pub(crate) fn noted(fd: RawFd) -> Option<Self> {
        let word = entry(fd).load(Ordering::Relaxed);
        is_about(word, fd).then_some(Self(word))
    }

    /// A file with offsets, of which nothing is known that would have a read (or write) done elsewhere than inline: not
    /// direct, not known to sleep, and no write that appends. And it is open for that, and [trusted](Self::is_trusted).
    #[inline]
    pub(crate) fn is_inline(self, write: bool) -> bool {
        const EITHER: u64 = KNOWN | STREAM | DIRECT | CLASS;
        let (not, is) = if write {
            (EITHER | APPEND | NO_WRITE | SLEEPS[1], KNOWN | LOCAL)
        } else {
            (EITHER | NO_READ | SLEEPS[0] | READ, KNOWN | LOCAL | READ)
        };
        self.0 & not == is
    }

    /// Whoever has a deadline, or only looks, may execute a read (or write) of this file that is not expected to sleep: its
    /// file system is a local one, and a read of it was seen.
    #[inline]
    pub(crate) fn is_trusted(self, write: bool) -> bool {
        self.is_local() && (write || self.0 & READ != 0)
    }

    /// Its file system is the kernel's own: no server can hold up whoever asks it.
    #[inline]
    pub(crate) fn is_local(self) -> bool {
        self.0 & CLASS == LOCAL
    }

    /// Asks the kernel (fcntl, statx), and keeps what was learned if nothing changed. The file system is not asked.
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
                entry(fd).store(0, Ordering::Relaxed);
                return Err(errno as i32);
            }
        };
        let (flags, file_type) = (flags as i32, stat.kind);
        if flags & libc::O_PATH != 0 {
            // Names a file, and cannot be used for I/O (open(2)).
            return Err(-libc::EBADF);
        }
        let seekable = has_offsets(fd, file_type);
        let device = seekable && file_type == libc::S_IFCHR;
        let mut class = class_of(stat.mount);
        if class == 0 && file_type == libc::S_IFREG && sys::takes_nowait(fd) {
            note_mount(stat.mount, true);
            class = LOCAL;
        }
        let mut word = KNOWN | number(fd) << NUMBER_SHIFT | class;
        let mut set = |bit, on| word |= if on { bit } else { 0 };
        set(STREAM, !seekable);
        set(DIRECT, flags & libc::O_DIRECT != 0);
        set(APPEND, flags & libc::O_APPEND != 0);
        set(NONBLOCK, flags & libc::O_NONBLOCK != 0);
        set(NO_READ, flags & libc::O_ACCMODE == libc::O_WRONLY);
        set(NO_WRITE, flags & libc::O_ACCMODE == libc::O_RDONLY);
        set(NO_SYNC, !seekable || device);
        // Before anything is learned, direct transfers are expected to sleep, and so are writes
        // that wait for the device.
        let synced = flags & (libc::O_DSYNC | libc::O_SYNC) != 0;
        let sleeps = word & DIRECT != 0 || device;
        for (which, sleeps) in [(0, sleeps), (1, sleeps || synced)] {
            if sleeps {
                word |= SLEEPS[which] | 255 << SCORE_SHIFT[which];
            }
        }
        let identity = |word: u64| word >> NUMBER_SHIFT << 8 | word & 0xff;
        let old = entry(fd).load(Ordering::Relaxed);
        if identity(old) == identity(word) {
            // Where the kernel has no numbers for file systems, it may be another file's.
            word = old & !CLASS | word & CLASS;
        }
        entry(fd).store(word, Ordering::Relaxed);
        Ok(Fresh { word, facts: Self(word) })
    }

    /// Its flags right now, 0 if there is no such descriptor. One system call.
    pub(crate) fn flags_now(fd: RawFd) -> i32 {
        sys::status_flags(fd).max(0) as i32
    }

    /// Does it have offsets right now? One system call, two for a character device.
    pub(crate) fn has_offsets_now(fd: RawFd) -> bool {
        sys::stat(fd).is_ok_and(|stat| has_offsets(fd, stat.kind))
    }

    /// The numbers are about to stand for something else.
    pub(crate) fn forget(fds: &RangeInclusive<RawFd>) {
        // Of the last ones: those before them have the same entries.
        let last = *fds.end();
        let first = (*fds.start()).max(last.saturating_sub(ENTRIES as RawFd - 1)).max(0);
        (first..=last).for_each(|fd| entry(fd).store(0, Ordering::Relaxed));
    }

    /// O_NONBLOCK, it seems.
    pub(crate) fn seems_nonblocking(self) -> bool {
        self.0 & NONBLOCK != 0
    }

    /// It had offsets.
    #[inline]
    pub(crate) fn seems_seekable(self) -> bool {
        self.0 & STREAM == 0
    }

    /// It was open for reads (or writes).
    #[inline]
    pub(crate) fn seems_open_for(self, write: bool) -> bool {
        self.0 & if write { NO_WRITE } else { NO_READ } == 0
    }

    /// fsync(2) knew its kind of file.
    #[inline]
    pub(crate) fn seems_to_sync(self) -> bool {
        self.0 & NO_SYNC == 0
    }

    /// What is known of another file, it seems, if reads (or writes) were executed with success: it is not open for them, or
    /// direct and nothing sleeps. Or what is rare and makes them slower: O_APPEND.
    fn is_doubtful(self, write: bool) -> bool {
        let refused = if write { NO_WRITE | APPEND } else { NO_READ };
        self.0 & refused != 0 || self.is_direct() && !self.sleeps(write)
    }

    /// It had O_APPEND.
    #[inline]
    pub(crate) fn seems_to_append(self) -> bool {
        self.0 & APPEND != 0
    }

    /// It had O_DIRECT.
    #[inline]
    pub(crate) fn is_direct(self) -> bool {
        self.0 & DIRECT != 0
    }

    /// Handing reads (or writes) of this file to the kernel has blocked the last few times: with
    /// some file systems, and with writes that allocate, the kernel is not asynchronous. Says no now
    /// and then, so that it is tried again.
    #[inline]
    pub(crate) fn submit_blocks(self, write: bool) -> bool {
        self.0 >> SLOW_SHIFT[usize::from(write)] & 3 == 3 && !sys::ticks().is_multiple_of(256)
    }

    /// The last fsyncs waited for nothing, and the file system keeps the file in memory only.
    #[inline]
    pub(crate) fn syncs_quickly(self) -> bool {
        self.0 >> QUICK_SHIFT & 3 == 3
    }

    /// Reads (or writes) through this descriptor usually sleep.
    #[inline]
    pub(crate) fn sleeps(self, write: bool) -> bool {
        self.0 & SLEEPS[usize::from(write)] != 0
    }
}

impl Fresh {
    /// What is remembered of it from now on.
    pub(crate) fn facts(self) -> Facts {
        self.facts
    }

    pub(crate) fn kind(self) -> FileKind {
        if self.word & STREAM != 0 { FileKind::Stream } else { FileKind::Seekable }
    }

    /// Open for reads (or writes).
    pub(crate) fn is_open_for(self, write: bool) -> bool {
        self.word & if write { NO_WRITE } else { NO_READ } == 0
    }

    /// fsync(2) knows this kind of file.
    pub(crate) fn may_sync(self) -> bool {
        self.word & NO_SYNC == 0
    }

    /// O_APPEND: writes take place in the order in which they are made.
    pub(crate) fn appends(self) -> bool {
        self.word & APPEND != 0
    }

    /// O_NONBLOCK: nothing sleeps.
    pub(crate) fn is_nonblocking(self) -> bool {
        self.word & NONBLOCK != 0
    }
}

/// Ticks ([`sys::ticks`]) in a microsecond.
pub(crate) fn ticks_per_us() -> u64 {
    static RATE: OnceNumber = OnceNumber::new();
    RATE.get(|| {
        let (ticks, ns) = (sys::ticks(), sys::monotonic_ns());
        loop {
            let passed = sys::monotonic_ns() - ns;
            if passed > 50_000 {
                return ((sys::ticks().wrapping_sub(ticks)) * 1000 / passed).max(1);
            }
            std::hint::spin_loop();
        }
    })
}

/// Did a transfer of `bytes` that took `ticks` sleep in a way that a worker of its own would help? By
/// its length: a copy from or to the page cache takes about a microsecond and a quarter of a
/// nanosecond a byte; a device far longer.
#[inline]
fn slept(ticks: u64, rate: u64, bytes: u64, write: bool, direct: bool) -> bool {
    let base = match (direct, write) {
        // One that takes longer than a system call has waited for a device, fast or not.
        (true, _) => 3,
        (false, false) => 15,
        // Cached writes come in bursts of slow ones, when pages are read first or being written back, and hold
        // the file's lock meanwhile: other threads would only wait for it too. Those of other files need not wait
        // longer than the watchdog takes.
        (false, true) => 1000,
    };
    ticks > rate * (base + bytes / 2048)
}

/// A read (or write) by a thread that may wait has ended: the next ones are [trusted](Facts::is_trusted), if the file is on a
/// local file system. Asks it which it is, if that is not known, and so may wait for it.
#[inline(never)]
pub(crate) fn prove(fd: RawFd, write: bool) {
    let word = entry(fd).load(Ordering::Relaxed);
    if !is_about(word, fd) {
        return;
    }
    if word & CLASS == 0 {
        classify(fd);
    }
    if !write {
        change(fd, |word| word | READ);
    }
}

/// A read that was not to wait has found its pages: of the file systems that take the question all are local ones.
pub(crate) fn prove_by_try(fd: RawFd) {
    change(fd, |word| word & !CLASS | LOCAL | READ);
}

/// As if the file were on a file system whose server can hang.
#[cfg(test)]
pub(crate) fn distrust(fd: RawFd) {
    change(fd, |word| word & !CLASS & !READ | REMOTE);
}

#[cold]
fn classify(fd: RawFd) {
    // The number may stand for another file meanwhile: then nothing is learned.
    let Ok(before) = sys::stat(fd) else { return };
    let local = sys::is_local(fd);
    if sys::stat(fd).ok().map(|after| after.identity) != Some(before.identity) {
        return;
    }
    note_mount(before.mount, local);
    let class = if local { LOCAL } else { REMOTE };
    change(fd, |word| word & !CLASS | class);
}

/// Changes the word if it is about this number.
fn change(fd: RawFd, to: impl Fn(u64) -> u64) {
    let relaxed = Ordering::Relaxed;
    let _ = entry(fd).fetch_update(relaxed, relaxed, |word| is_about(word, fd).then(|| to(word)));
}

/// Has a read (or write) through this number lately slept, so that the next one is worth timing?
#[inline]
pub(crate) fn is_suspect(fd: RawFd, write: bool) -> bool {
    entry(fd).load(Ordering::Relaxed) >> SCORE_SHIFT[usize::from(write)] & 0xff != 0
}

/// Is a cached read (or write) through this number one that could change the mind, if it sleeps? A thread that was preempted has
/// not slept: it takes a look at [`sys::sleeps_of_this_thread`] to tell.
#[inline]
pub(crate) fn is_on_the_brink(fd: RawFd, write: bool) -> bool {
    let word = entry(fd).load(Ordering::Relaxed);
    let which = usize::from(write);
    word >> SCORE_SHIFT[which] & 0xff != 0 && word & (SLEEPS[which] | DIRECT) == 0
}

/// Learns from a finished read or write: a moving average with hysteresis, so that three sleeps
/// in a row change the mind, and fifteen transfers without one change it back. The kernel is asked again when the mind changes, and
/// now and then where what is known does not go with a transfer that was executed: the number may stand for another file.
#[inline]
pub(crate) fn learn(fd: RawFd, write: bool, ticks: u64, rate: u64, bytes: u64) {
    const DOUBTED_EVERY: u64 = 8;
    let slept = |word| slept(ticks, rate, bytes, write, word & DIRECT != 0);
    let changed = update_score(fd, write, slept, 8);
    let doubtful = || Facts(entry(fd).load(Ordering::Relaxed)).is_doubtful(write);
    if changed || ticks.is_multiple_of(DOUBTED_EVERY) && doubtful() {
        let _ = Facts::fresh(fd);
    }
}

/// Learns from a cached read that was tried without waiting, whether its pages were `present`. Where trying costs little,
/// it takes about sixty of them that were to change the mind.
#[inline]
pub(crate) fn learn_tried(fd: RawFd, present: bool) {
    update_score(fd, false, |_| !present, 32);
}

/// Moves the score up if it `slept`, and down by one part in `down` if not. Has that changed the mind?
#[inline]
fn update_score(fd: RawFd, write: bool, slept: impl Fn(u64) -> bool, down: u64) -> bool {
    let entry = entry(fd);
    let word = entry.load(Ordering::Relaxed);
    if !is_about(word, fd) {
        return false;
    }
    let which = usize::from(write);
    let score = word >> SCORE_SHIFT[which] & 0xff;
    let next =
        if slept(word) { score + (256 - score) / 4 } else { score - score.div_ceil(down) }.min(255);
    let mut new = word & !(0xff << SCORE_SHIFT[which]) | next << SCORE_SHIFT[which];
    if word & SLEEPS[which] == 0 && next >= 128 {
        new |= SLEEPS[which] | 0xff << SCORE_SHIFT[which];
    } else if word & SLEEPS[which] != 0 && next <= 32 {
        new &= !(SLEEPS[which] | 0xff << SCORE_SHIFT[which]);
    }
    if new != word {
        // A lost one costs a little learning.
        let _ = entry.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
    }
    (new ^ word) & SLEEPS[which] != 0
}

/// Learns how long it took to hand a read (or write) to the kernel.
#[inline]
pub(crate) fn learn_submit(fd: RawFd, write: bool, slow: bool) {
    let next = |count: u64| if slow { count + 1 } else { count.saturating_sub(1) };
    update_count(fd, SLOW_SHIFT[usize::from(write)], next);
}

/// Learns how many ticks an fsync took.
#[inline]
pub(crate) fn learn_sync(fd: RawFd, ticks: u64, rate: u64) {
    /// What waits for a device takes ten times as long.
    const QUICK_US: u64 = 5;
    let quick = ticks <= QUICK_US * rate;
    let count = entry(fd).load(Ordering::Relaxed) >> QUICK_SHIFT & 3;
    if quick && count == 2 && !sys::lives_in_memory(fd) {
        // There may only have been nothing to write, and the next one waits.
        return;
    }
    update_count(fd, QUICK_SHIFT, |count| if quick { count + 1 } else { 0 });
}

/// Changes a count of two bits, which stays at three.
#[inline]
fn update_count(fd: RawFd, shift: u32, next: impl Fn(u64) -> u64) {
    let entry = entry(fd);
    let word = entry.load(Ordering::Relaxed);
    if !is_about(word, fd) {
        return;
    }
    let count = word >> shift & 3;
    let next = next(count).min(3);
    if next != count {
        let new = word & !(3 << shift) | next << shift;
        let _ = entry.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(unsafe_code)]

    use super::{Facts, FileKind, learn};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_file_and_a_pipe_are_told_apart() {
        let file = tempfile::tempfile().unwrap();
        let facts = Facts::fresh(file.as_raw_fd()).unwrap();
        assert_eq!(facts.kind(), FileKind::Seekable);
        assert!(
            facts.is_open_for(false) && facts.is_open_for(true) && !facts.facts().sleeps(false)
        );
        let (reader, _writer) = std::io::pipe().unwrap();
        let facts = Facts::fresh(reader.as_raw_fd()).unwrap();
        assert_eq!(facts.kind(), FileKind::Stream);
        assert!(facts.is_open_for(false) && !facts.is_open_for(true));
        assert_eq!(Facts::known(-1), Err(-libc::EBADF));
    }

    #[test]
    fn the_mind_changes_after_some_sleeps_and_back_after_some_more() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let sleeps = || Facts::known(fd).unwrap().sleeps(true);
        Facts::fresh(fd).unwrap();
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
        assert!(!Facts::known(fd).unwrap().sleeps(false), "reads are learned apart");
    }

    /// A number that stands for a file of these flags, and then for another one, without a word to us. It is high: nobody else
    /// in this process gets or uses it.
    fn becomes(number: i32, flags: i32, other: i32) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let opened = |flags| File::options().read(true).write(true).custom_flags(flags).open(&path);
        let (file, other) = (opened(flags).unwrap_or(file), opened(other).unwrap());
        // SAFETY: calls on descriptors; nobody has the number.
        unsafe {
            assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
            Facts::fresh(number).unwrap();
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
        }
    }

    #[test]
    fn a_number_that_stands_for_another_file_is_looked_up_again() {
        const NUMBER: i32 = 900;
        // Of 4 KiB, from the page cache, and not always in as many ticks.
        let quick = |write, times: u64| {
            (0..times).for_each(|time| learn(NUMBER, write, 500 + time, 1000, 4096));
        };
        let facts = || Facts::noted(NUMBER).unwrap();
        becomes(NUMBER, libc::O_DIRECT, 0);
        // Whether or not it is direct here.
        quick(true, 100);
        assert!(!facts().is_direct() && !facts().sleeps(true));
        becomes(NUMBER, libc::O_APPEND, 0);
        assert!(facts().seems_to_append());
        quick(true, 16);
        assert!(!facts().seems_to_append());
        becomes(NUMBER, 0, libc::O_APPEND);
        (0..6).for_each(|_| learn(NUMBER, true, 2_000_000, 1000, 4096));
        assert!(facts().seems_to_append(), "it is looked at when the mind changes");
        // SAFETY: it was made above.
        assert_eq!(unsafe { libc::close(NUMBER) }, 0);
        quick(true, 16);
        assert_eq!(Facts::noted(NUMBER), None, "it is closed");
    }
}
