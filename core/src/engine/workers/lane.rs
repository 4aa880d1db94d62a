//! The lane of a request: where it is executed, decided at submit from what is known.

use crate::descriptor::{Facts, FileKind};
use crate::engine::kernel::Reach;
use crate::request::{Expect, Kind, Request};
use crate::sqe::{FILE_POSITION, Sqe, opcode};

/// Where a request is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lane {
    /// One after the other, by whoever holds the baton.
    #[default]
    Inline,
    /// As inline, and never before another of these is done that was submitted earlier.
    Ordered,
    /// On a worker of its own, or on a waiter that has to wait for it anyway.
    Pool,
    /// Cached reads that have lately slept: tried without waiting, and then one after the other as their pages come.
    Cold,
    /// On a worker of its own: it may wait for ever, as opening a FIFO does.
    Worker,
    /// In the pool lane, after the inline requests that were submitted before it.
    AfterInline,
    /// The same once more: after the ordered requests too.
    AfterOrdered,
    /// When its descriptor is ready.
    Poll,
    /// Handed to the kernel.
    Kernel,
    /// Large copies out of the page cache: side by side on as many threads as there are CPUs.
    Copy,
}

/// Copies from this size on take long enough to be worth another thread.
pub(super) const LARGE: u32 = 256 << 10;

/// The kernel's flag. The C library's is 0 where all files may be large.
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE: i32 = 0o400_000;
#[cfg(not(target_arch = "aarch64"))]
const O_LARGEFILE: i32 = 0o100_000;

/// What the kernel has said about the descriptor that a batch has last asked for: one system call for requests that
/// follow each other on one.
#[derive(Debug)]
pub(crate) struct Flags {
    fd: i32,
    flags: i32,
    /// Another one, and whether it has offsets.
    offsets: (i32, bool),
}

impl Flags {
    pub(crate) fn new() -> Self {
        Self { fd: -1, flags: 0, offsets: (-1, false) }
    }

    /// F_GETFL, 0 if there is no such descriptor.
    fn of(&mut self, fd: i32) -> i32 {
        if self.fd != fd {
            (self.fd, self.flags) = (fd, Facts::flags_now(fd));
        }
        self.flags
    }

    /// Is O_APPEND set? If so, this is noted.
    fn append(&mut self, fd: i32) -> bool {
        let appends = self.of(fd) & libc::O_APPEND != 0;
        if appends && !Facts::noted(fd).is_some_and(Facts::seems_to_append) {
            let _ = Facts::fresh(fd);
        }
        appends
    }

    /// Is O_DIRECT set, and is it a file? A pipe may have that flag as well (pipe2(2)), and the kernel would wait inside
    /// its call for that. But unlike a file that was opened by its name, a pipe does not have O_LARGEFILE.
    fn are_of_direct_file(&mut self, fd: i32) -> bool {
        let flags = self.of(fd);
        flags & libc::O_DIRECT != 0 && (flags & O_LARGEFILE != 0 || self.have_offsets(fd))
    }

    /// Has it offsets right now? No, if there is no such descriptor.
    pub(super) fn have_offsets(&mut self, fd: i32) -> bool {
        if self.offsets.0 != fd {
            self.offsets = (fd, Facts::has_offsets_now(fd));
        }
        self.offsets.1
    }
}

/// A lane, and whether the descriptor is a stream (the offset is ignored). `beside_others`: others are
/// queued, which may be writes to the same file. `reach`: what the kernel lane takes.
#[inline(always)]
pub(crate) fn choose(
    sqe: &Sqe,
    kind: Kind,
    beside_others: impl FnOnce() -> bool,
    reach: Reach,
    flags: &mut Flags,
) -> (Lane, bool) {
    if kind == Kind::Read || kind == Kind::Write {
        return transfer(sqe, kind == Kind::Write, beside_others, reach, flags);
    }
    no_transfer(sqe, kind)
}

#[inline(never)]
fn no_transfer(sqe: &Sqe, kind: Kind) -> (Lane, bool) {
    let lane = match kind {
        Kind::Sync => Lane::AfterInline,
        // poll(2) passes negative descriptors over; the executor does not.
        Kind::Poll if sqe.fd >= 0 => Lane::Poll,
        Kind::Other => Lane::Worker,
        _ => Lane::Inline,
    };
    (lane, false)
}

#[inline(always)]
fn transfer(
    sqe: &Sqe,
    write: bool,
    beside_others: impl FnOnce() -> bool,
    reach: Reach,
    flags: &mut Flags,
) -> (Lane, bool) {
    let Ok(facts) = Facts::known(sqe.fd) else {
        return (Lane::Inline, false);
    };
    // The file position, or an offset that only a stream does not mind.
    let special = sqe.op_flags != 0 || (sqe.off as i64) < 0;
    if !facts.seems_seekable() || special {
        return uncommon(sqe, write, reach);
    }
    // Beside others its order counts, and the number may stand for another file since it was looked up.
    if write && (facts.seems_to_append() || beside_others() && flags.append(sqe.fd)) {
        return (Lane::Ordered, false);
    }
    if reach == Reach::Everything || facts.sleeps(write) {
        return sleeping(sqe, write, facts, reach, flags);
    }
    // Writes of one file wait for its lock, whatever the number of threads.
    let copy = sqe.len >= LARGE && sqe.opcode == opcode::READ && !facts.is_direct();
    (if copy { Lane::Copy } else { Lane::Inline }, false)
}

/// One that leaves the inline lane.
#[inline(never)]
fn sleeping(sqe: &Sqe, write: bool, facts: Facts, reach: Reach, flags: &mut Flags) -> (Lane, bool) {
    // It loses its order, which appends must keep, and the kernel would wait inside its call for what is no file: what was known
    // about the number is not enough for that.
    if write && flags.append(sqe.fd) {
        return (Lane::Ordered, false);
    }
    let kernel = match reach {
        // A server that does not answer would hold up the call that hands it over, and all others of the context.
        Reach::Everything if !flags.have_offsets(sqe.fd) => {
            return uncommon(sqe, write, Reach::Nothing);
        }
        _ if !facts.is_local() => return (Lane::Worker, false),
        Reach::Nothing => false,
        Reach::Direct if !facts.is_direct() || facts.submit_blocks(write) => false,
        Reach::Direct => flags.are_of_direct_file(sqe.fd),
        Reach::Everything => true,
    };
    // Large ones are worth a thread each.
    let cold = !write && !facts.is_direct() && sqe.opcode == opcode::READ && sqe.len < LARGE;
    let lane = match () {
        () if kernel => Lane::Kernel,
        () if cold => Lane::Cold,
        () => Lane::Pool,
    };
    (lane, false)
}

/// May a thread with a deadline not execute the request of this lane, because a file system's server may hold it up? And what may
/// a poll expect of it? `kernel_executes`: the kernel executes cached requests inside of the call that hands them over.
#[inline]
pub(super) fn patience(
    request: &Request,
    lane: Lane,
    stream: bool,
    kernel_executes: bool,
) -> (bool, Expect) {
    let fd = request.sqe.fd;
    let noted = || Facts::noted(fd);
    let write = request.kind == Kind::Write;
    let harmless = match (lane, request.kind) {
        _ if stream || request.refused != 0 => true,
        (Lane::Inline | Lane::Ordered | Lane::Copy, Kind::Read | Kind::Write) => {
            noted().is_some_and(|facts| facts.is_trusted(write))
        }
        (Lane::Inline, Kind::Quick) => {
            request.sqe.opcode == opcode::NOP || noted().is_some_and(Facts::is_local)
        }
        (Lane::Inline, _) => true,
        // It may only have waited for a thread that was preempted and holds the file's lock; and where the kernel executes it,
        // the submit has waited for it.
        (Lane::Pool, Kind::Write) if request.sqe.op_flags == 0 => {
            let soon = noted().is_some_and(|facts| !facts.is_direct());
            return (false, if soon { Expect::Soon } else { Expect::Nothing });
        }
        (Lane::Kernel, _) => {
            let soon = kernel_executes && noted().is_some_and(|facts| !facts.is_direct());
            return (false, if soon { Expect::Soon } else { Expect::Nothing });
        }
        (Lane::Worker, Kind::Read | Kind::Write) => {
            // Whoever executes it finds out what file system it is on.
            return (true, Expect::Nothing);
        }
        _ => return (false, Expect::Nothing),
    };
    match lane {
        Lane::Inline | Lane::Ordered | Lane::Copy if harmless => (false, Expect::Soon),
        Lane::Inline | Lane::Ordered | Lane::Copy => (true, Expect::Perhaps),
        _ => (false, Expect::Nothing),
    }
}

/// The flags that a transfer on a stream may carry and still sleep: HIPRI, DSYNC, SYNC.
const RWF_ON_STREAMS: u32 = 0x7;

/// Here a system call more is cheap, and the answer must not rest on what an earlier file of this
/// number was: whether the offset counts, and whether the order does.
#[inline(never)]
pub(super) fn uncommon(sqe: &Sqe, write: bool, reach: Reach) -> (Lane, bool) {
    let Ok(fresh) = Facts::fresh(sqe.fd) else {
        return (Lane::Inline, false);
    };
    let flag = |flag: i32| sqe.op_flags & flag as u32 != 0;
    if fresh.kind() == FileKind::Stream {
        // What the call answers at once needs no waiting for the descriptor.
        let possible = fresh.is_open_for(write);
        let waits = possible && sqe.len > 0 && sqe.op_flags & !RWF_ON_STREAMS == 0;
        let waits = waits && !fresh.is_nonblocking();
        return (if waits { Lane::Poll } else { Lane::Inline }, true);
    }
    // Appends, and whatever moves the file position, take place in the order of submission.
    let ordered = sqe.off == FILE_POSITION || write && (fresh.appends() || flag(libc::RWF_APPEND));
    let waits = fresh.facts().sleeps(write) || flag(libc::RWF_DSYNC) || flag(libc::RWF_SYNC);
    let direct = fresh.facts().is_direct();
    // A direct one waits for its device all the same.
    let waits = waits && (direct || !flag(libc::RWF_NOWAIT));
    let lane = match () {
        () if ordered => Lane::Ordered,
        () if waits && direct && fresh.facts().is_local() && reach != Reach::Nothing => {
            Lane::Kernel
        }
        () if waits && !fresh.facts().is_local() => Lane::Worker,
        () if waits => Lane::Pool,
        () => Lane::Inline,
    };
    (lane, false)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    #![allow(unsafe_code)]

    use super::{Flags, Lane, choose};
    use crate::Sqe;
    use crate::descriptor::Facts;
    use crate::engine::kernel::Reach;
    use crate::request::Kind;
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
            choose(&sqe, Kind::Read, || false, Reach::Direct, &mut Flags::new())
        };
        assert_eq!(lane(&open(0).unwrap()), (Lane::Inline, false));
        match open(libc::O_DIRECT) {
            Ok(file) if Facts::known(file.as_raw_fd()).unwrap().is_local() => {
                assert_eq!(lane(&file), (Lane::Kernel, false));
            }
            _ => crate::skipped(name, "no O_DIRECT on a local file system here"),
        }
    }

    #[test]
    fn a_write_beside_others_is_an_append_if_the_kernel_says_so() {
        // Nobody else in this process gets or uses it.
        const NUMBER: i32 = 902;
        let file = tempfile::NamedTempFile::new().unwrap();
        let append = std::fs::File::options().append(true).open(file.path()).unwrap();
        let lane = |beside_others| {
            let sqe = Sqe::write(NUMBER, &[0; 512], 0);
            let flags = &mut Flags::new();
            choose(&sqe, Kind::Write, || beside_others, Reach::Nothing, flags).0
        };
        // SAFETY: nobody has the number.
        assert_eq!(unsafe { libc::dup2(file.as_file().as_raw_fd(), NUMBER) }, NUMBER);
        Facts::fresh(NUMBER).unwrap();
        assert_eq!((lane(false), lane(true)), (Lane::Inline, Lane::Inline));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(append.as_raw_fd(), NUMBER) }, NUMBER);
        assert_eq!((lane(false), lane(true)), (Lane::Inline, Lane::Ordered));
        assert_eq!(lane(false), Lane::Ordered, "it is remembered");
        // SAFETY: it was made above.
        assert_eq!(unsafe { libc::close(NUMBER) }, 0);
        Facts::forget(&(NUMBER..=NUMBER));
    }

    #[test]
    fn a_direct_file_whose_number_stands_for_a_pipe_of_packets_is_not_handed_to_the_kernel() {
        // Nobody else in this process gets or uses it.
        const NUMBER: i32 = 901;
        let folder = tempfile::tempdir().unwrap();
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let Ok(file) = options.open(folder.path().join("file")) else {
            let name = "a_direct_file_whose_number_stands_for_a_pipe_of_packets_is_not_handed_to_the_kernel";
            let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: no O_DIRECT here");
            return;
        };
        let lane = || {
            let sqe = Sqe::write(NUMBER, &[0; 512], 0);
            choose(&sqe, Kind::Write, || false, Reach::Direct, &mut Flags::new())
        };
        // SAFETY: nobody has the number.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), NUMBER) }, NUMBER);
        Facts::fresh(NUMBER).unwrap();
        assert_eq!(lane(), (Lane::Kernel, false));
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which nobody else owns; nobody else has the number.
        let [_reader, writer] = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT), 0);
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), NUMBER) }, NUMBER);
        assert_eq!(lane(), (Lane::Pool, false));
        // SAFETY: it was made above.
        assert_eq!(unsafe { libc::close(NUMBER) }, 0);
        Facts::forget(&(NUMBER..=NUMBER));
    }
}
