//! A file system that loses data that was not synced, and files that are replaced on it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::PipeWriter;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use uringlet::fs::{self, BufResult, Fs};

use crate::executors::Executor;
use crate::skipped;

#[allow(dead_code, reason = "other file systems of the tests use the rest")]
#[path = "../../../libaio/tests/support/wire.rs"]
mod wire;
use wire::*;

/// The maximum number of bytes of one write request: small, so that `content(5000)` takes two.
const WRITE_MAX: u32 = 4096;

type Bytes = Arc<Vec<u8>>;
type Names = BTreeMap<Vec<u8>, u64>;

/// A file: its content now, and the content that was synced to the disk.
#[derive(Debug, Default)]
struct Node {
    now: Bytes,
    synced: Bytes,
    mode: u32,
}

/// The file system: one folder. A crash may undo unsynced changes, but need not.
#[derive(Debug, Default)]
struct Folder {
    nodes: BTreeMap<u64, Node>,
    names: Names,
    synced: Names,
    last: u64,
    /// The allowed contents of the file named `file` after a crash.
    legal: Vec<Bytes>,
    /// Crashes that would leave another content, or other files.
    faults: Vec<String>,
    /// A request that fails: its opcode and errno.
    refused: Option<(u32, i32)>,
}

impl Folder {
    /// The files after a crash now. The flags say whether names and data that were not synced are
    /// on the disk.
    fn crashed(&self, has_names: bool, has_data: bool) -> BTreeMap<&[u8], &Bytes> {
        let names = if has_names { &self.names } else { &self.synced };
        let content = |node| {
            let node: &Node = &self.nodes[node];
            if has_data { &node.now } else { &node.synced }
        };
        names.iter().map(|(name, node)| (&**name, content(node))).collect()
    }

    fn crashes(&self) -> impl Iterator<Item = (&'static str, BTreeMap<&[u8], &Bytes>)> {
        [
            ("nothing", false, false),
            ("names", true, false),
            ("data", false, true),
            ("everything", true, true),
        ]
        .into_iter()
        .map(|(what, names, data)| (what, self.crashed(names, data)))
    }

    /// Adds to `faults` each crash that would leave a forbidden state now.
    fn look(&mut self, opcode: u32) {
        if self.legal.is_empty() {
            return;
        }
        let mut faults = Vec::new();
        for (what, found) in self.crashes() {
            let length = found.get(&b"file"[..]).map(|content| content.len());
            let is_legal = found.get(&b"file"[..]).is_some_and(|it| self.legal.contains(it));
            let mut others = found.keys().filter(|name| **name != b"file");
            if !is_legal || !others.all(|name| name.starts_with(b".uringlet-")) {
                faults.push(format!("after {opcode}, {what} unsynced is left: {length:?} bytes"));
            }
        }
        self.faults.extend(faults);
    }

    /// The content after every crash: `None` if crashes differ, or if there are other files.
    fn settled(&self) -> Option<Bytes> {
        let mut crashes = self.crashes().map(|(_, found)| found);
        let first = crashes.next()?;
        let is_settled = crashes.all(|other| other == first) && first.len() == 1;
        first.get(&b"file"[..]).filter(|_| is_settled).map(|content| Bytes::clone(content))
    }

    fn entry(&self, number: u64) -> Body {
        self.attributes(Body::default().long(&[number, 0, 0, 0]).int(&[0, 0]), number)
    }

    fn attributes(&self, body: Body, number: u64) -> Body {
        match self.nodes.get(&number) {
            Some(node) => body.attributes(number, node.now.len() as u64, libc::S_IFREG | node.mode),
            None => body.attributes(ROOT, 0, libc::S_IFDIR | 0o700),
        }
    }

    /// Serves a request: the answer, or an errno.
    fn serve(&mut self, request: &Request) -> Result<Body, i32> {
        if let Some((_, errno)) = self.refused.take_if(|(opcode, _)| *opcode == request.opcode()) {
            return Err(errno);
        }
        let body = Body::default();
        let number = request.node();
        match request.opcode() {
            INIT => return Ok(body.init(WRITE_MAX)),
            LOOKUP => {
                let found = self.names.get(names(request.rest(0)).0).ok_or(libc::ENOENT)?;
                return Ok(self.entry(*found));
            }
            GETATTR => return Ok(self.attributes(body.long(&[0, 0]), number)),
            OPEN | OPENDIR => return Ok(body.long(&[0, 0])),
            CREATE => {
                self.last += 1;
                let number = ROOT + self.last;
                let mode = request.int(4) & 0o7777;
                self.nodes.insert(number, Node { mode, ..Node::default() });
                self.names.insert(names(request.rest(16)).0.to_vec(), number);
                let opened = Body::default().long(&[0, 0]);
                return Ok(Body([self.entry(number).0, opened.0].concat()));
            }
            SETATTR => {
                let (node, valid) =
                    (self.nodes.get_mut(&number).ok_or(libc::EPERM)?, request.int(0));
                if valid & 1 != 0 {
                    node.mode = request.int(68) & 0o7777;
                }
                if valid & 1 << 3 != 0 {
                    Arc::make_mut(&mut node.now).resize(request.long(16) as usize, 0);
                }
                return Ok(self.attributes(body.long(&[0, 0]), number));
            }
            READ => {
                let (offset, length) = request.transfer();
                let now = &self.nodes[&number].now;
                let from = now.len().min(offset as usize);
                return Ok(Body(now[from..now.len().min(from + length)].to_vec()));
            }
            WRITE => {
                let (offset, length) = request.transfer();
                let (offset, data) = (offset as usize, &request.rest(Request::TRANSFER)[..length]);
                let node = self.nodes.get_mut(&number).ok_or(libc::EIO)?;
                let now = Arc::make_mut(&mut node.now);
                now.resize(now.len().max(offset + length), 0);
                now[offset..][..length].copy_from_slice(data);
                return Ok(body.int(&[length as u32, 0]));
            }
            RENAME | RENAME2 => {
                let skipped = if request.opcode() == RENAME { 8 } else { 16 };
                let (from, to) = names(request.rest(skipped));
                let number = self.names.remove(from).ok_or(libc::ENOENT)?;
                self.names.insert(to.to_vec(), number);
            }
            UNLINK => {
                self.names.remove(names(request.rest(0)).0).ok_or(libc::ENOENT)?;
            }
            FSYNC => {
                let node = self.nodes.get_mut(&number).ok_or(libc::EIO)?;
                node.synced = Bytes::clone(&node.now);
            }
            FSYNCDIR => self.synced = self.names.clone(),
            STATFS => return Ok(body.long(&[0; 5]).int(&[4096, 255, 4096, 0]).int(&[0; 6])),
            READDIR | FLUSH | RELEASE | RELEASEDIR => {}
            _ => return Err(libc::ENOSYS),
        }
        Ok(body)
    }
}

/// Two names, each with a NUL after it; the second one may be missing.
fn names(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = bytes.split(|&byte| byte == 0);
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// The file system's server, which ends when this value is dropped.
struct Disk {
    folder: Arc<Mutex<Folder>>,
    path: PathBuf,
    end: Option<PipeWriter>,
    server: Option<JoinHandle<()>>,
}

impl Disk {
    /// Starts the server. `None`, with a message, if no file system can be mounted here.
    fn start(test: &str) -> Option<Self> {
        let folder = Arc::<Mutex<Folder>>::default();
        let served = Arc::clone(&folder);
        let (ended, end) = std::io::pipe().unwrap();
        let (sender, mounted) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let mount = mount();
            sender
                .send(mount.as_ref().map(|(_, path)| path.clone()).map_err(Clone::clone))
                .unwrap();
            let Ok((channel, _)) = mount else { return };
            loop {
                let [is_over, _] = readable([ended.as_raw_fd(), channel.as_raw_fd()], -1);
                if is_over {
                    return;
                }
                serve_one(&channel, &served);
            }
        });
        match mounted.recv().unwrap() {
            Ok(path) => Some(Self { folder, path, end: Some(end), server: Some(server) }),
            Err(reason) => {
                skipped(test, reason);
                None
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.path.join("file")
    }

    /// From now on, a crash may leave one of these contents.
    fn allow(&self, legal: [&[u8]; 2]) {
        let legal = legal.map(|bytes| Bytes::new(bytes.to_vec()));
        self.folder.lock().unwrap().legal = legal.to_vec();
    }

    fn refuse(&self, opcode: u32, errno: i32) {
        self.folder.lock().unwrap().refused = Some((opcode, errno));
    }

    /// The content that every crash leaves now. Panics if crashes differ, or if an earlier crash
    /// could have left a forbidden state.
    fn settled(&self, what: &str) -> Vec<u8> {
        let folder = self.folder.lock().unwrap();
        assert!(folder.faults.is_empty(), "{what}: {:?}", folder.faults);
        assert!(folder.refused.is_none(), "{what}: nothing was refused");
        folder.settled().unwrap_or_else(|| panic!("{what}: not on the disk: {folder:?}")).to_vec()
    }
}

fn serve_one(channel: &File, folder: &Mutex<Folder>) {
    let Some(request) = Request::read(channel, WRITE_MAX).unwrap() else { return };
    if let FORGET | BATCH_FORGET | INTERRUPT = request.opcode() {
        // No answer is expected for this request.
        return;
    }
    let mut folder = folder.lock().unwrap();
    let answer = folder.serve(&request);
    folder.look(request.opcode());
    match answer {
        Ok(body) => request.answer(channel, 0, &body.0),
        Err(errno) => request.answer(channel, errno, &[]),
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end = None;
        let served = self.server.take().expect("dropped once").join();
        assert!(served.is_ok() || std::thread::panicking(), "the server has panicked");
    }
}

/// The content with this number. All contents differ in length and bytes. Most take several write
/// requests.
fn content(number: usize) -> Vec<u8> {
    (0..1 + number * 97 % 20_000).map(|at| (at + number) as u8).collect()
}

/// Writes the first content, and brings it to the disk.
fn furnish(disk: &Disk) {
    fs::replace(disk.file(), content(0)).wait().0.unwrap();
    assert_eq!(disk.settled("at first"), content(0));
}

#[test]
fn whatever_a_power_cut_leaves_of_a_thousand_replacements_is_old_or_new() {
    let name = "whatever_a_power_cut_leaves_of_a_thousand_replacements_is_old_or_new";
    let Some(disk) = Disk::start(name) else { return };
    furnish(&disk);
    let disk = Arc::new(disk);
    Executor::each(|executor| {
        let disk = Arc::clone(&disk);
        executor.run(async move {
            for number in 1..=200 {
                let (old, new) = (disk.settled("before"), content(number));
                disk.allow([&old, &new]);
                fs::replace(disk.file(), new.clone()).await.0.unwrap();
                let what = format!("{executor:?}, {number}");
                assert!(disk.settled(&what) == new, "{what}: it is not replaced");
            }
        });
    });
}

#[test]
fn whatever_a_power_cut_leaves_of_a_replacement_that_is_given_up_is_old_or_new() {
    let name = "whatever_a_power_cut_leaves_of_a_replacement_that_is_given_up_is_old_or_new";
    let Some(disk) = Disk::start(name) else { return };
    furnish(&disk);
    let disk = Arc::new(disk);
    let own = Fs::builder().in_flight(2).build().unwrap();
    Executor::each(|executor| {
        let (disk, own) = (Arc::clone(&disk), own.clone());
        executor.run(async move {
            for number in 1..100 {
                let (old, new) = (disk.settled("before"), content(number));
                disk.allow([&old, &new]);
                let replace = fs::replace(disk.file(), new.clone()).on(&own).submit();
                // The replacement is dropped or cancelled after 0 to 9 calls to the file system.
                for _ in 0..number % 10 {
                    std::fs::metadata(disk.file()).unwrap();
                }
                let result = if number % 2 == 0 {
                    drop(replace);
                    None
                } else {
                    Some(replace.cancel().await.0)
                };
                while own.in_flight() != (0, 0) {
                    std::thread::yield_now();
                }
                let now = disk.settled(&number.to_string());
                match result {
                    None => assert!(now == old || now == new),
                    Some(Ok(())) => assert!(now == new),
                    Some(Err(error)) => {
                        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                        assert!(now == old);
                    }
                }
            }
        });
    });
}

#[test]
fn a_replacement_that_the_file_system_refuses_leaves_the_old_file_alone() {
    let name = "a_replacement_that_the_file_system_refuses_leaves_the_old_file_alone";
    let Some(disk) = Disk::start(name) else { return };
    furnish(&disk);
    let replace = |number| {
        let BufResult(result, buffer) = fs::replace(disk.file(), content(number)).wait();
        assert!(buffer == content(number));
        result.map_err(|error| error.raw_os_error().unwrap())
    };
    disk.allow([&content(0), &content(1)]);
    for (opcode, errno) in [
        (CREATE, libc::ENOSPC),
        (SETATTR, libc::EPERM),
        (WRITE, libc::ENOSPC),
        (FSYNC, libc::EIO),
        (RENAME, libc::EACCES),
    ] {
        disk.refuse(opcode, errno);
        assert_eq!(replace(1), Err(errno), "{opcode}");
        assert!(disk.settled(&opcode.to_string()) == content(0), "{opcode}");
    }
    // If only the folder's fsync fails, the file is replaced, but a crash may restore the old one.
    disk.refuse(FSYNCDIR, libc::EIO);
    assert_eq!(replace(1), Err(libc::EIO));
    assert!(std::fs::read(disk.file()).unwrap() == content(1));
    assert!(disk.folder.lock().unwrap().settled().is_none());
    assert_eq!(replace(1), Ok(()));
    assert!(disk.settled("again") == content(1));
}

/// The file system is as strict as a disk: each missing step is found.
#[test]
fn a_replacement_that_leaves_out_a_step_is_found_by_a_power_cut() {
    use std::io::Write as _;

    let name = "a_replacement_that_leaves_out_a_step_is_found_by_a_power_cut";
    let Some(disk) = Disk::start(name) else { return };
    furnish(&disk);
    let staged = disk.path.join(".uringlet-test");
    let found = |steps: &dyn Fn(&Path) -> std::io::Result<()>| {
        fs::replace(disk.file(), content(0)).wait().0.unwrap();
        disk.folder.lock().unwrap().faults.clear();
        disk.allow([&content(0), &content(5000)]);
        steps(&disk.file()).unwrap();
        let mut folder = disk.folder.lock().unwrap();
        let has_faults = !std::mem::take(&mut folder.faults).is_empty();
        (has_faults, folder.settled().is_some())
    };
    let write = |path: &Path| {
        let mut file = File::create(path)?;
        file.write_all(&content(5000)).map(|()| file)
    };
    let sync_folder = || File::open(&disk.path)?.sync_all();
    let rename = |path: &Path| std::fs::rename(&staged, path);
    // A crash may leave a part of a file that is written in place.
    assert!(found(&|path| write(path)?.sync_all().and_then(|()| sync_folder())).0);
    // Without the file's fsync, or with a late one, a crash may leave an empty file. Without the
    // folder's fsync, a crash may restore the old file.
    assert!(
        found(&|path| write(&staged).and_then(|_| rename(path)).and_then(|()| sync_folder())).0
    );
    assert!(
        found(&|path| write(&staged).and_then(|file| rename(path).and_then(|()| file.sync_all())))
            .0
    );
    let without_folder = found(&|path| write(&staged)?.sync_all().and_then(|()| rename(path)));
    assert_eq!(without_folder, (false, false));
    // With all fsyncs, nothing is lost.
    let whole = found(&|path| {
        write(&staged)?.sync_all()?;
        rename(path)?;
        sync_folder()
    });
    assert_eq!(whole, (false, true));
}
