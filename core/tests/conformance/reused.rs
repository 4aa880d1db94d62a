//! Descriptor numbers come to name another kind of file, unseen by the library. Remembered
//! facts about the numbers may cost time, but change no answer and no byte. Random sequences are
//! compared with plain calls on a twin.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common::{
    LONG, Random, bounded, builder, finish, from_env, isolated, make_fifo, plain, push, seed,
};
use uringlet::{Context, Sqe};

/// In a process of its own, nothing else uses these numbers.
const NUMBER: RawFd = 700;
const TWIN: RawFd = 800;
const SIZE: u64 = 20_000;
const FILLED: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File(i32),
    PipeToRead(i32),
    PipeToWrite(i32),
    Socket,
    Fifo,
    Eventfd,
    Directory,
    Zero,
    Nothing,
}

const KINDS: [Kind; 16] = [
    Kind::File(libc::O_RDWR),
    Kind::File(libc::O_RDONLY),
    Kind::File(libc::O_WRONLY),
    Kind::File(libc::O_RDWR | libc::O_APPEND),
    Kind::File(libc::O_RDWR | libc::O_DIRECT),
    Kind::File(libc::O_RDWR | libc::O_DSYNC),
    Kind::PipeToRead(0),
    Kind::PipeToWrite(0),
    Kind::PipeToRead(libc::O_DIRECT),
    Kind::PipeToWrite(libc::O_DIRECT),
    Kind::Socket,
    Kind::Fifo,
    Kind::Eventfd,
    Kind::Directory,
    Kind::Zero,
    Kind::Nothing,
];

/// A number, its kind of file, and the other end of a pipe or socket.
#[derive(Debug)]
struct Side {
    number: RawFd,
    folder: PathBuf,
    kind: Kind,
    other: Option<File>,
}

fn opened(path: &Path, flags: i32) -> File {
    let open = |flags| {
        let (read, write) =
            (flags & libc::O_ACCMODE != libc::O_WRONLY, flags & libc::O_ACCMODE != libc::O_RDONLY);
        OpenOptions::new().read(read).write(write).custom_flags(flags & !libc::O_ACCMODE).open(path)
    };
    // Not every file system has O_DIRECT.
    open(flags).or_else(|_| open(flags & !libc::O_DIRECT)).expect("a file of the test")
}

impl Side {
    fn new(number: RawFd, folder: &Path) -> Self {
        let folder = folder.join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        make_fifo(&folder.join("fifo"));
        File::create(folder.join("file")).and_then(|file| file.set_len(SIZE)).expect("a file");
        Self { number, folder, kind: Kind::Nothing, other: None }
    }

    fn becomes(&mut self, kind: Kind, filling: &[u8]) {
        self.other = None;
        let filled = |mut file: File| {
            file.write_all(filling).expect("room for it");
            file
        };
        let new: Option<OwnedFd> = match kind {
            Kind::File(flags) => Some(opened(&self.folder.join("file"), flags).into()),
            Kind::PipeToRead(flags) | Kind::PipeToWrite(flags) => {
                let mut ends = [0; 2];
                // SAFETY: room for two descriptors, which nobody else owns.
                let [reader, writer] = unsafe {
                    assert_eq!(libc::pipe2(ends.as_mut_ptr(), flags | libc::O_CLOEXEC), 0);
                    ends.map(|fd| File::from_raw_fd(fd))
                };
                let reads = matches!(kind, Kind::PipeToRead(_));
                let writer = if reads { filled(writer) } else { writer };
                let (new, other) = if reads { (reader, writer) } else { (writer, reader) };
                self.other = Some(other);
                Some(new.into())
            }
            Kind::Socket => {
                let (new, other) = UnixStream::pair().expect("sockets");
                self.other = Some(filled(File::from(OwnedFd::from(other))));
                Some(new.into())
            }
            Kind::Fifo => Some(filled(opened(&self.folder.join("fifo"), libc::O_RDWR)).into()),
            // SAFETY: a descriptor that nobody else owns.
            Kind::Eventfd => Some(unsafe { OwnedFd::from_raw_fd(libc::eventfd(3, 0)) }),
            Kind::Directory => Some(opened(&self.folder, libc::O_RDONLY).into()),
            Kind::Zero => Some(opened(Path::new("/dev/zero"), libc::O_RDWR).into()),
            Kind::Nothing => None,
        };
        // SAFETY: the number is this test's; it may be closed already.
        unsafe {
            match &new {
                Some(new) => assert_eq!(libc::dup2(new.as_raw_fd(), self.number), self.number),
                None => drop(libc::close(self.number)),
            }
        }
        self.kind = kind;
    }

    /// Does poll(2) report the number as ready, so that plain calls on it would not wait?
    fn is_ready(&self, write: bool) -> bool {
        let events = if write { libc::POLLOUT } else { libc::POLLIN };
        let mut set = libc::pollfd { fd: self.number, events, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut set, 1, 0) == 1 && set.revents & events != 0 }
    }

    /// The data that is left.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.kind {
            Kind::File(_) => {
                bytes = std::fs::read(self.folder.join("file")).expect("the file");
            }
            Kind::PipeToWrite(_) | Kind::Socket => {
                // The number is the only writer: after its close, a read meets the end of the data.
                // SAFETY: the number is this test's.
                unsafe { libc::close(self.number) };
                let other = self.other.as_mut().expect("an end");
                // If a socket is closed with unread data, a later read of its peer fails.
                let _ = other.read_to_end(&mut bytes);
            }
            Kind::PipeToRead(_) | Kind::Fifo | Kind::Eventfd => {
                while self.is_ready(false) {
                    let mut more = [0; 8192];
                    // SAFETY: a live buffer.
                    let n = unsafe { libc::read(self.number, more.as_mut_ptr().cast(), 8192) };
                    bytes.extend_from_slice(&more[..n.try_into().expect("it was ready")]);
                }
            }
            Kind::Directory | Kind::Zero | Kind::Nothing => {}
        }
        bytes
    }
}

/// One transfer or fsync.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// `None`: an fsync.
    write: Option<bool>,
    vectored: bool,
    len: usize,
    offset: u64,
}

/// A buffer that is aligned for direct files.
#[repr(align(4096))]
struct Buffer([u8; 8192]);

fn parts(buffer: &mut Buffer, len: usize) -> [libc::iovec; 2] {
    let (front, back) = buffer.0[..len].split_at_mut(len / 2);
    [front, back]
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
}

fn ours(context: &mut Context, fd: RawFd, step: Step, buffer: &mut Buffer) -> i32 {
    let Step { write, vectored, len, offset } = step;
    let iov = parts(buffer, len);
    let sqe = match (write, vectored) {
        (None, _) => Sqe::fsync(fd),
        (Some(false), false) => Sqe::read(fd, &mut buffer.0[..len], offset),
        (Some(true), false) => Sqe::write(fd, &buffer.0[..len], offset),
        (Some(false), true) => Sqe::readv(fd, &iov[..], offset),
        (Some(true), true) => Sqe::writev(fd, &iov[..], offset),
    };
    push(context, sqe);
    finish(context)[&0]
}

/// Makes the step as a plain call. On a stream, this is a call without an offset.
fn plainly(fd: RawFd, step: Step, buffer: &mut Buffer) -> i32 {
    let Step { write, vectored, len, offset } = step;
    let (iov, at, offset) = (parts(buffer, len), buffer.0.as_mut_ptr().cast(), offset as i64);
    // SAFETY: live buffers.
    let call = |stream: bool| unsafe {
        plain(match (write, vectored, stream) {
            (None, ..) => libc::fsync(fd).into(),
            (Some(false), false, false) => libc::pread(fd, at, len, offset) as i64,
            (Some(true), false, false) => libc::pwrite(fd, at, len, offset) as i64,
            (Some(false), true, false) => libc::preadv(fd, iov.as_ptr(), 2, offset) as i64,
            (Some(true), true, false) => libc::pwritev(fd, iov.as_ptr(), 2, offset) as i64,
            (Some(false), false, true) => libc::read(fd, at, len) as i64,
            (Some(true), false, true) => libc::write(fd, at, len) as i64,
            (Some(false), true, true) => libc::readv(fd, iov.as_ptr(), 2) as i64,
            (Some(true), true, true) => libc::writev(fd, iov.as_ptr(), 2) as i64,
        })
    };
    // SAFETY: no byte is read.
    let stream = unsafe { plain(libc::pread(fd, std::ptr::null_mut(), 0, 0) as i64) };
    call(write.is_some() && stream == -libc::ESPIPE)
}

/// A random step. `None` if it would wait.
fn step(twin: &Side, random: &mut Random) -> Option<Step> {
    let write = if random.one_in(60) { None } else { Some(random.one_in(2)) };
    let (vectored, direct) = (random.one_in(4), random.below(5) > 0);
    let direct = direct && matches!(twin.kind, Kind::File(flags) if flags & libc::O_DIRECT != 0);
    let len = match twin.kind {
        Kind::Eventfd => 8,
        _ if direct => 1024 << random.below(3),
        // At least one byte: on some engines, a read of 0 bytes of a folder succeeds.
        _ => 1 + random.below(1500),
    };
    let offset = match random.below(12) {
        0 => [i64::MAX as u64 - 10, 5 | 1 << 63][random.below(2)],
        _ if direct => 4096 * random.below(4) as u64,
        _ => random.below(SIZE as usize) as u64,
    };
    // SAFETY: no byte is read.
    let stream = unsafe { plain(libc::pread(twin.number, std::ptr::null_mut(), 0, 0) as i64) };
    // SAFETY: no memory is passed.
    let flags = plain(unsafe { libc::fcntl(twin.number, libc::F_GETFL).into() });
    let closed = if write == Some(true) { libc::O_RDONLY } else { libc::O_WRONLY };
    let possible = flags >= 0 && flags & libc::O_ACCMODE != closed;
    if write.is_some() && stream == -libc::ESPIPE && possible && !twin.is_ready(write?) {
        return None;
    }
    // An eventfd takes its whole number from one buffer.
    let vectored = vectored && twin.kind != Kind::Eventfd;
    Some(Step { write, vectored, len, offset })
}

#[test]
fn numbers_that_are_reused_unseen_answer_as_plain_calls_do() {
    isolated(|| {
        let _bound = bounded(4 * LONG);
        // SAFETY: ignores a signal. A write to a pipe without a reader then fails with EPIPE.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (seed, sequences) = (seed(), from_env("URINGLET_TEST_SEQUENCES", 3000));
        println!("URINGLET_TEST_SEED={seed} URINGLET_TEST_SEQUENCES={sequences}");
        let mut random = Random::new(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let mut context = builder().entries(16).build().expect("a context");
        let mut sides = [NUMBER, TWIN].map(|number| Side::new(number, folder.path()));
        let (mut mine, mut twins) = (Box::new(Buffer([0; 8192])), Box::new(Buffer([0; 8192])));
        for sequence in 0..sequences {
            let kind = [KINDS[0], KINDS[random.below(KINDS.len())]][usize::from(sequence % 2 > 0)];
            let rests = sides.each_mut().map(Side::rest);
            assert!(rests[0] == rests[1], "{sequence}: contents of {:?}", sides[0].kind);
            if rests[0].len() as u64 > 2 * SIZE {
                for side in &sides {
                    let file = opened(&side.folder.join("file"), libc::O_RDWR);
                    file.set_len(SIZE).expect("a file");
                }
            }
            let filling: Vec<u8> = (0..FILLED).map(|_| random.below(256) as u8).collect();
            sides.iter_mut().for_each(|side| side.becomes(kind, &filling));
            for _ in 0..=random.below(3) {
                let Some(step) = step(&sides[1], &mut random) else { continue };
                let byte = random.below(256) as u8;
                mine.0.fill(byte);
                if kind == Kind::Eventfd {
                    mine.0[..8].copy_from_slice(&u64::from(byte).to_ne_bytes());
                }
                twins.0.copy_from_slice(&mine.0);
                let found = ours(&mut context, sides[0].number, step, &mut mine);
                let expected = plainly(sides[1].number, step, &mut twins);
                assert_eq!(found, expected, "{sequence}: {step:?} on {kind:?}");
                assert!(mine.0 == twins.0, "{sequence}: other bytes by {step:?} on {kind:?}");
            }
        }
        drop(context);
        // SAFETY: the numbers are this test's.
        sides.iter().for_each(|side| unsafe {
            libc::close(side.number);
        });
    });
}
