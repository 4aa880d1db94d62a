//! An image that the kernel can mount: one file of FUSE (fuse(4)). A context executes its reads,
//! writes and fsyncs on a part of another file.
//!
//! One thread takes requests from the kernel and submits them. The context's handler answers them
//! when they complete, on the CPU on which completions are placed.

#![allow(unsafe_code)]

use super::mount::Mount;
use crate::bench::Buffers;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite,
    Request, Session, SessionACL, WriteFlags,
};
use rustix::mount::UnmountFlags;
use serde::Serialize;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};
use uringlet::stats::Snapshot;
use uringlet::{Builder, Context, Cqe, Sqe};

/// The maximum number of the kernel's requests that are handled at a time.
const REQUESTS: usize = 64;
/// The maximum number of bytes of a request.
const LARGEST: usize = 256 << 10;
/// The image does not use the page cache, because the file system above has one. Several writers
/// run at a time.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_NOFLUSH)
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub offset: u64,
    pub length: u64,
}

impl Part {
    /// The offset of a transfer in the whole file, and its length within the part; none if it is
    /// outside.
    fn within(&self, offset: u64, size: usize) -> Option<(u64, usize)> {
        let room = usize::try_from(self.length.checked_sub(offset)?).unwrap_or(usize::MAX);
        let size = size.min(room).min(LARGEST);
        (size > 0).then_some((self.offset + offset, size))
    }
}

/// The reply to a request of the kernel, by the kind of the request.
enum Reply {
    Read(ReplyData),
    Write(ReplyWrite),
    Fsync(ReplyEmpty),
}

impl Reply {
    fn error(self, error: Error) {
        match self {
            Self::Read(reply) => reply.error(error.into()),
            Self::Write(reply) => reply.error(error.into()),
            Self::Fsync(reply) => reply.error(error.into()),
        }
    }
}

/// The data that the thread and the context's handler share: a buffer and a reply for each slot.
///
/// A free slot belongs to the thread. While its request is in flight, it belongs to the request.
/// When the request is complete, it belongs to the handler, until the thread reaps the completion.
struct Slots {
    buffers: Buffers,
    replies: Vec<Mutex<Option<Reply>>>,
}

impl Slots {
    fn reply(&self, slot: usize) -> MutexGuard<'_, Option<Reply>> {
        self.replies[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the request of a slot, with its result.
    fn completed(&self, cqe: Cqe) {
        let slot = cqe.user_data as usize;
        let Some(reply) = self.reply(slot).take() else { return };
        match (cqe.result(), reply) {
            (Ok(count), Reply::Read(reply)) => {
                // SAFETY: the request has completed; the slot is given back after this.
                let buffer = unsafe { &*self.buffers.slot(slot) };
                reply.data(&buffer[..count as usize]);
            }
            (Ok(count), Reply::Write(reply)) => reply.written(count),
            (Ok(_), Reply::Fsync(reply)) => reply.ok(),
            (Err(error), reply) => reply.error(error),
        }
    }
}

/// The context, and the slots without a request.
struct Queue {
    context: Context,
    free: Vec<usize>,
}

impl Queue {
    /// Waits until this many slots are free.
    fn wait_for(&mut self, free: usize) -> Result<(), Error> {
        loop {
            while let Some(cqe) = self.context.reap() {
                self.free.push(cqe.user_data as usize);
            }
            if self.free.len() >= free {
                return Ok(());
            }
            match self.context.wait(1, None) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

/// The file system.
struct Disk {
    file: File,
    part: Part,
    // Dropped before `slots`: when the context is dropped, it waits for the requests that use the
    // buffers in `slots`.
    queue: Mutex<Queue>,
    slots: Arc<Slots>,
    /// Set when the file system ends.
    served: Arc<Mutex<Option<Served>>>,
}

impl Disk {
    /// Has the context execute the request that `request` makes for a slot's buffer.
    fn execute(&self, reply: Reply, request: impl FnOnce(i32, &mut [u8]) -> Sqe) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = queue.wait_for(1) {
            return reply.error(error);
        }
        let slot = queue.free.pop().expect("it was just waited for");
        // SAFETY: a free slot belongs to this thread, so nothing else uses its buffer.
        let buffer = unsafe { &mut *self.slots.buffers.slot(slot) };
        let sqe = request(self.file.as_raw_fd(), buffer).user_data(slot as u64);
        *self.slots.reply(slot) = Some(reply);
        // SAFETY: the buffer outlives the context, and nothing else uses it before the request has
        // completed.
        let pushed = unsafe { queue.context.push(sqe) };
        let pushed = pushed.map_err(|_full| Error::from(ErrorKind::WouldBlock));
        if let Err(error) = pushed.and_then(|()| queue.context.submit().map(drop))
            && let Some(reply) = self.slots.reply(slot).take()
        {
            reply.error(error);
        }
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> Result<(), Error> {
        // An error is ignored: the kernel may lack a capability, or have a lower limit.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(REQUESTS as u16);
        let _ = config.set_congestion_threshold(REQUESTS as u16);
        let _ = config.set_max_write(LARGEST as u32);
        let _ = config.set_max_readahead(LARGEST as u32);
        Ok(())
    }

    fn destroy(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = queue.wait_for(REQUESTS);
        let served = ended.is_ok().then(|| Served::by(&queue.context));
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = served;
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = FileAttr {
            ino: INodeNo::ROOT,
            size: self.part.length,
            blocks: self.part.length / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(3600), &attributes);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), OPEN_FLAGS);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((offset, size)) = self.part.within(offset, size as usize) else {
            return reply.data(&[]);
        };
        self.execute(Reply::Read(reply), |fd, buffer| Sqe::read(fd, &mut buffer[..size], offset));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some((offset, size)) = self.part.within(offset, data.len()) else {
            return reply.error(Errno::ENOSPC);
        };
        self.execute(Reply::Write(reply), |fd, buffer| {
            buffer[..size].copy_from_slice(&data[..size]);
            Sqe::write(fd, &buffer[..size], offset)
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.execute(Reply::Fsync(reply), |fd, _| Sqe::fsync(fd));
    }
}

/// A mounted image.
pub struct Image {
    /// `None` once the work has ended.
    work: Option<(Mount, JoinHandle<Result<(), Error>>)>,
    served: Arc<Mutex<Option<Served>>>,
    pub path: PathBuf,
}

/// The counts of an image's context. A cell is a NUMA node, the CPUs with a common cache, a core,
/// or the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    pub reads: u64,
    pub writes: u64,
    pub fsyncs: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Requests executed or handed to the kernel in the cell of the thread that read them from
    /// /dev/fuse.
    pub queue_local: u64,
    /// Requests executed or handed to the kernel in another cell.
    pub queue_remote: u64,
    /// Requests completed and answered in the cell of the disk's interrupt.
    pub completion_local: u64,
    /// Requests completed and answered in another cell.
    pub completion_remote: u64,
    /// A text for the placement in effect.
    pub placement: String,
}

impl Served {
    fn by(context: &Context) -> Self {
        let stats: Snapshot = context.stats().unwrap_or_default();
        Self {
            reads: stats.reads,
            writes: stats.writes,
            fsyncs: stats.fsyncs,
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            queue_local: stats.submissions_local,
            queue_remote: stats.submissions_remote,
            completion_local: stats.completions_local,
            completion_remote: stats.completions_remote,
            placement: context.placement().map_or_else(String::new, ToString::to_string),
        }
    }
}

impl Image {
    /// Mounts a part of `file` as a file over the empty file `at`.
    ///
    /// # Errors
    /// A text that says which step failed, and why.
    pub fn mount(at: &Path, file: &File, part: Part, builder: &Builder) -> Result<Self, String> {
        let opened = File::options().read(true).write(true).open("/dev/fuse");
        let channel = opened.map_err(|error| format!("/dev/fuse: {error}"))?;
        let slots = Arc::new(Slots {
            buffers: Buffers::new(REQUESTS, LARGEST, 0),
            replies: std::iter::repeat_with(Mutex::default).take(REQUESTS).collect(),
        });
        let handler = Arc::clone(&slots);
        let builder = builder.clone().entries(REQUESTS as u32).stats(true).cell_stats(true);
        let context = builder.handler(move |cqe| handler.completed(cqe)).build();
        let context = context.map_err(|error| format!("no context: {error}"))?;
        let queue = Mutex::new(Queue { context, free: (0..REQUESTS).collect() });
        let file = file.try_clone().map_err(|error| format!("no more descriptors: {error}"))?;
        let served = Arc::default();
        let disk = Disk { file, part, queue, slots, served: Arc::clone(&served) };
        let fd = channel.as_raw_fd();
        let options = format!("fd={fd},rootmode=100600,user_id=0,group_id=0");
        // A forced unmount ends the requests that still wait for an answer.
        let mount = Mount::new("uringlet", at, "fuse", &options, UnmountFlags::FORCE)?;
        let acl = SessionACL::Owner;
        let session = Session::from_fd(disk, channel.into(), acl, Config::default());
        let session = session.map_err(|error| format!("/dev/fuse: {error}"))?;
        let thread = std::thread::spawn(move || session.run());
        Ok(Self { work: Some((mount, thread)), served, path: at.into() })
    }

    /// Unmounts the image, and waits for its last requests.
    ///
    /// # Errors
    /// The kernel could not be asked for requests, or the context failed.
    pub fn end(mut self) -> Result<Served, String> {
        match self.end_work() {
            // ECONNABORTED means that the file system was unmounted by force.
            Err(error) if error.raw_os_error() != Some(libc::ECONNABORTED) => {
                return Err(format!("/dev/fuse: {error}"));
            }
            _ => {}
        }
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner).take();
        served.ok_or_else(|| "the context has failed".into())
    }

    fn end_work(&mut self) -> Result<(), Error> {
        let Some((mount, thread)) = self.work.take() else { return Ok(()) };
        drop(mount);
        let panicked = |_| Err(Error::other("the thread that serves an image has panicked"));
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = self.end_work();
    }
}
