//! What is remembered of a descriptor number: its kind, its flags, and whether its reads and writes
//! have lately slept.
//!
//! A table has 4,096 words, written without locks. Numbers that differ by a multiple of 4,096 share
//! a word, which says whose facts it has. Numbers are reused, and flags change without notice: a
//! word may be about another file. So [`Facts`] are hints, which decide where a request is
//! executed, never its answer. A decision about the answer needs a [`Fresh`], made of the kernel's
//! latest answer (`descriptor.rs` asks the kernel).

use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tuning::{
    COPIED_PER_US, QUICK_SYNC_US, SELDOM_EVERY, SLEPT_DIRECT_US, SLEPT_READ_US, TICK, TIMED_EVERY,
};

/// The kind of file behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Regular file, block device, folder, or a character device with offsets: never waits for a
    /// peer.
    Seekable,
    /// Pipe, socket, terminal and the like: ready when poll(2) says so.
    Stream,
}

/// What is remembered of a descriptor number: hints, because the number may name another file now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts(u64);

/// What the kernel has just answered about a descriptor. Only [`Facts::note`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    word: u64,
    /// The hints that were stored.
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
/// For reads and for writes: a byte with the score ([`observed`]), and a flag that transfers are
/// expected to sleep.
const SCORE_SHIFT: [u32; 2] = [8, 16];
const SLEEPS: [u64; 2] = [1 << 24, 1 << 25];
/// Two bits that count slow submissions to the kernel, for reads and for writes.
const SLOW_SHIFT: [u32; 2] = [26, 28];
/// Two bits that count successive fsyncs that took no longer than a system call. Three mean that
/// the file is in memory only.
const QUICK_SHIFT: u32 = 30;
/// Two bits: is the file system a local one? If not, its server may hold up a thread. 0: unknown.
const CLASS: u64 = 3 << 32;
/// The file system is a local one.
const LOCAL: u64 = 1 << 32;
const REMOTE: u64 = 2 << 32;
/// A read of the file has ended. Whether the read has slept is in the score.
const READ: u64 = 1 << 34;
const SOCKET: u64 = 1 << 35;
/// The number's upper bits: the lower ones are the index in the table.
const NUMBER_SHIFT: u32 = 44;

const ENTRIES: usize = 4096;
static TABLE: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

fn entry(fd: RawFd) -> &'static AtomicU64 {
    &TABLE[fd as usize % ENTRIES]
}

/// The part of the word that says which number it is about.
#[inline]
fn number(fd: RawFd) -> u64 {
    u64::from(fd as u32 / ENTRIES as u32)
}

/// Is the word about this number?
#[inline]
fn is_about(word: u64, fd: RawFd) -> bool {
    word & KNOWN != 0 && word >> NUMBER_SHIFT == number(fd)
}

/// Mounted file systems by their numbers: `number << 1`, plus 1 if the file system is local.
static MOUNTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn mount_entry(mount: u64) -> &'static AtomicU64 {
    &MOUNTS[(mount.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
}

/// Is the file system with this number a local one? `None`: unknown. The number 0 names no file
/// system.
pub(crate) fn is_local_mount(mount: u64) -> Option<bool> {
    let found = mount_entry(mount).load(Ordering::Relaxed);
    (mount != 0 && found >> 1 == mount).then_some(found & 1 == 1)
}

/// Notes whether the file system with this number is a local one.
pub(crate) fn note_mount(mount: u64, local: bool) {
    if mount != 0 {
        mount_entry(mount).store(mount << 1 | u64::from(local), Ordering::Relaxed);
    }
}

/// The kernel's answers about a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// The result of fcntl(2), `F_GETFL`.
    pub(crate) flags: i32,
    /// The file has offsets.
    pub(crate) seekable: bool,
    /// The file is a character device.
    pub(crate) device: bool,
    pub(crate) socket: bool,
    /// Is the file on a local file system? `None`: unknown.
    pub(crate) local: Option<bool>,
}

impl Facts {
    /// The hints about `fd`, if there are any.
    #[inline]
    pub(crate) fn noted(fd: RawFd) -> Option<Self> {
        let word = entry(fd).load(Ordering::Relaxed);
        is_about(word, fd).then_some(Self(word))
    }

    /// Is a read (or write) of this file executed inline? True for a [trusted](Self::is_trusted)
    /// file with offsets that is open for the transfer, is not direct, and is not known to sleep. A
    /// write must not append.
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

    /// May a submitter that must not wait try a read (or write) of this file? As
    /// [`is_inline`](Self::is_inline), but no earlier read must have ended: a tried read returns
    /// what is in memory only.
    #[inline]
    pub(crate) fn is_tried(self, write: bool) -> bool {
        Self(self.0 | READ).is_inline(write)
    }

    /// Has a read of this file ended?
    #[inline]
    pub(crate) fn was_read(self) -> bool {
        self.0 & READ != 0
    }

    /// May a thread with a deadline, or a poll, execute a read (or write) of this file that is not
    /// expected to sleep? Its file system must be a local one. For a read, an earlier read must
    /// have ended.
    #[inline]
    pub(crate) fn is_trusted(self, write: bool) -> bool {
        self.is_local() && (write || self.0 & READ != 0)
    }

    /// Is the file on a local file system? Then no file server can hold up a call on the file.
    #[inline]
    pub(crate) fn is_local(self) -> bool {
        self.0 & CLASS == LOCAL
    }

    /// Notes the kernel's answers, and keeps what was learned if they are unchanged.
    pub(crate) fn note(fd: RawFd, said: &Said) -> Fresh {
        let &Said { flags, seekable, device, socket, local } = said;
        let class = local.map_or(0, |local| if local { LOCAL } else { REMOTE });
        let device = seekable && device;
        let mut word = KNOWN | number(fd) << NUMBER_SHIFT | class;
        let mut set = |bit, on| word |= if on { bit } else { 0 };
        set(STREAM, !seekable);
        set(SOCKET, socket);
        set(DIRECT, flags & libc::O_DIRECT != 0);
        set(APPEND, flags & libc::O_APPEND != 0);
        set(NONBLOCK, flags & libc::O_NONBLOCK != 0);
        set(NO_READ, flags & libc::O_ACCMODE == libc::O_WRONLY);
        set(NO_WRITE, flags & libc::O_ACCMODE == libc::O_RDONLY);
        set(NO_SYNC, !seekable || device);
        // Before anything is learned, direct transfers and those of character devices are expected
        // to sleep. So are writes that wait for the device (O_DSYNC, O_SYNC).
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
            // These bits are the new answer's: the old word may be about another file with the same
            // flags.
            const NOW: u64 = CLASS | SOCKET;
            word = old & !NOW | word & NOW;
        }
        entry(fd).store(word, Ordering::Relaxed);
        Fresh { word, facts: Self(word) }
    }

    /// Clears the hints about a descriptor that is not open.
    pub(crate) fn note_closed(fd: RawFd) {
        entry(fd).store(0, Ordering::Relaxed);
    }

    /// Clears the hints about numbers that are about to name other files.
    pub(crate) fn forget(fds: &RangeInclusive<RawFd>) {
        // At most `ENTRIES` numbers, the last ones, are cleared: the words of earlier numbers are
        // among theirs.
        let last = *fds.end();
        let first = (*fds.start()).max(last.saturating_sub(ENTRIES as RawFd - 1)).max(0);
        (first..=last).for_each(|fd| entry(fd).store(0, Ordering::Relaxed));
    }

    /// Was O_NONBLOCK set?
    pub(crate) fn seems_nonblocking(self) -> bool {
        self.0 & NONBLOCK != 0
    }

    /// Was the descriptor a socket when it was last asked about?
    pub(crate) fn seems_socket(self) -> bool {
        self.0 & SOCKET != 0
    }

    /// Did the file have offsets?
    #[inline]
    pub(crate) fn seems_seekable(self) -> bool {
        self.0 & STREAM == 0
    }

    /// Was the descriptor open for reads (or writes)?
    #[inline]
    pub(crate) fn seems_open_for(self, write: bool) -> bool {
        self.0 & if write { NO_WRITE } else { NO_READ } == 0
    }

    /// Did fsync(2) support this kind of file?
    #[inline]
    pub(crate) fn seems_to_sync(self) -> bool {
        self.0 & NO_SYNC == 0
    }

    /// Might the file be on a server? Then poll(2) may ask the server whether the file is ready.
    #[inline]
    pub(crate) fn seems_to_have_a_server(self) -> bool {
        self.seems_seekable() && self.seems_to_sync() && !self.is_local()
    }

    /// Does a successful read (or write) contradict the hints, so that they are probably about
    /// another file? True if the file was not open for the transfer, or is direct and its transfers
    /// do not sleep. For a write, hints with O_APPEND count as doubtful, too: the flag is rare, and
    /// makes writes slower.
    fn is_doubtful(self, write: bool) -> bool {
        let refused = if write { NO_WRITE | APPEND } else { NO_READ };
        self.0 & refused != 0 || self.is_direct() && !self.sleeps(write)
    }

    /// Was O_APPEND set?
    #[inline]
    pub(crate) fn seems_to_append(self) -> bool {
        self.0 & APPEND != 0
    }

    /// Was O_DIRECT set?
    #[inline]
    pub(crate) fn is_direct(self) -> bool {
        self.0 & DIRECT != 0
    }

    /// Did the last hand-overs of reads (or writes) of this file to the kernel block? With some
    /// file systems, and with writes that allocate, the kernel is not asynchronous. Answers no now
    /// and then, by the clock `now`, so that the hand-over is tried again.
    #[inline]
    pub(crate) fn submit_blocks(self, write: bool, now: u64) -> bool {
        let counts = self.0 >> SLOW_SHIFT[usize::from(write)] & 3;
        counts == 3 && !now.is_multiple_of(SELDOM_EVERY)
    }

    /// Did the last fsyncs wait for nothing, and does the file system keep the file in memory only?
    #[inline]
    pub(crate) fn syncs_quickly(self) -> bool {
        self.0 >> QUICK_SHIFT & 3 == 3
    }

    /// Do reads (or writes) through this descriptor usually sleep?
    #[inline]
    pub(crate) fn sleeps(self, write: bool) -> bool {
        self.0 & SLEEPS[usize::from(write)] != 0
    }
}

impl Fresh {
    /// What is remembered of the descriptor from now on.
    pub(crate) fn facts(self) -> Facts {
        self.facts
    }

    pub(crate) fn kind(self) -> FileKind {
        if self.word & STREAM != 0 { FileKind::Stream } else { FileKind::Seekable }
    }

    /// Is the descriptor open for reads (or writes)?
    pub(crate) fn is_open_for(self, write: bool) -> bool {
        self.word & if write { NO_WRITE } else { NO_READ } == 0
    }

    /// Does fsync(2) support this kind of file?
    pub(crate) fn may_sync(self) -> bool {
        self.word & NO_SYNC == 0
    }

    /// Is O_APPEND set? Then writes take place in the order in which they are made.
    pub(crate) fn appends(self) -> bool {
        self.word & APPEND != 0
    }

    /// Is O_NONBLOCK set? Then no read or write of a stream sleeps.
    pub(crate) fn is_nonblocking(self) -> bool {
        self.word & NONBLOCK != 0
    }
}

/// Did a transfer of `bytes` bytes, which took `ticks`, sleep so that a worker of its own would
/// have helped? Its length counts: a copy from or to the page cache takes about a microsecond, and
/// a quarter of a nanosecond a byte. A device takes far longer.
#[inline]
fn slept(ticks: u64, rate: u64, bytes: u64, write: bool, direct: bool) -> bool {
    let base = match (direct, write) {
        // A direct transfer that takes longer than a system call has waited for a device, fast or
        // slow.
        (true, _) => SLEPT_DIRECT_US,
        (false, false) => SLEPT_READ_US,
        // Slow cached writes come in bursts, when pages are read first or being written back. They
        // hold the file's lock meanwhile, so a worker would only wait for that lock. Writes of
        // other files wait for about a tick, until the watchdog takes the baton away.
        (false, true) => TICK.as_micros() as u64,
    };
    ticks > rate * (base + bytes / COPIED_PER_US)
}

/// Notes that a read has ended: the next ones are [trusted](Facts::is_trusted), if the file system
/// is a local one.
#[inline]
pub(crate) fn note_read(fd: RawFd) {
    change(fd, |word| word | READ);
}

/// Is something known about this number, but not whether its file system is a local one?
pub(crate) fn is_unclassified(fd: RawFd) -> bool {
    let word = entry(fd).load(Ordering::Relaxed);
    is_about(word, fd) && word & CLASS == 0
}

/// Notes whether the file is on a local file system.
pub(crate) fn classify(fd: RawFd, local: bool) {
    change(fd, |word| word & !CLASS | if local { LOCAL } else { REMOTE });
}

/// Notes that a read that must not wait has found its pages. So the file system is a local one:
/// others do not support such reads.
pub(crate) fn prove_by_try(fd: RawFd) {
    change(fd, |word| word & !CLASS | LOCAL | READ);
}

/// Treats the file as if its file system's server could hang.
#[cfg(test)]
pub(crate) fn distrust(fd: RawFd) {
    change(fd, |word| word & !CLASS & !READ | REMOTE);
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

/// Has a cached read (or write) lately slept, while reads (or writes) are still expected not to
/// sleep? Then the thread that times the next call also compares its count of sleeps: a thread that
/// was only preempted has not slept.
#[inline]
pub(crate) fn is_on_the_brink(fd: RawFd, write: bool) -> bool {
    let word = entry(fd).load(Ordering::Relaxed);
    let which = usize::from(write);
    word >> SCORE_SHIFT[which] & 0xff != 0 && word & (SLEEPS[which] | DIRECT) == 0
}

/// Learns from a finished read or write; `rate` ticks are a microsecond. The score is a moving
/// average with hysteresis. After three sleeps in a row, transfers are expected to sleep
/// ([`Facts::sleeps`]). After fifteen transfers without a sleep, they are not. True: the kernel has
/// to be asked again, because the number may name another file. That is so if the expectation has
/// changed. It is also so if the hints contradict a successful transfer, which is checked now and
/// then.
#[inline]
#[must_use]
pub(crate) fn observed(fd: RawFd, write: bool, ticks: u64, rate: u64, bytes: u64) -> bool {
    let slept = |word| slept(ticks, rate, bytes, write, word & DIRECT != 0);
    let changed = update_score(fd, write, slept, 8);
    let doubtful = || Facts(entry(fd).load(Ordering::Relaxed)).is_doubtful(write);
    changed || ticks.is_multiple_of(TIMED_EVERY) && doubtful()
}

/// Learns from a cached read that was tried without waiting: were its pages `present`? A try costs
/// little. So reads are expected to sleep until about sixty in a row had their pages.
#[inline]
pub(crate) fn learn_tried(fd: RawFd, present: bool) {
    update_score(fd, false, |_| !present, 32);
}

/// Moves the score up if the transfer `slept`, and down by one part in `down` if not. True if that
/// has changed whether transfers are expected to sleep.
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
        // A lost update costs a little learning.
        let _ = entry.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
    }
    (new ^ word) & SLEEPS[which] != 0
}

/// Learns whether handing a read (or write) to the kernel was `slow`.
#[inline]
pub(crate) fn learn_submit(fd: RawFd, write: bool, slow: bool) {
    let next = |count: u64| if slow { count + 1 } else { count.saturating_sub(1) };
    update_count(fd, SLOW_SHIFT[usize::from(write)], next);
}

/// Learns how many ticks an fsync took; `rate` ticks are a microsecond. `in_memory`: the file
/// system keeps its files in memory only. On other file systems, a quick fsync may have had nothing
/// to write, and the next one may wait.
#[inline]
pub(crate) fn learn_sync(fd: RawFd, ticks: u64, rate: u64, in_memory: impl FnOnce() -> bool) {
    let quick = ticks <= QUICK_SYNC_US * rate;
    let count = entry(fd).load(Ordering::Relaxed) >> QUICK_SHIFT & 3;
    if quick && count == 2 && !in_memory() {
        return;
    }
    update_count(fd, QUICK_SHIFT, |count| if quick { count + 1 } else { 0 });
}

/// Changes a count of two bits, whose maximum is three.
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
