//! A file system that stops answering when a test says so: a FUSE server (fuse(4)) in a process of
//! its own.
//!
//! The process is this test binary once more. It mounts in a namespace of its own, which ends with
//! the process. The process ends with the test, even if the test panics or is killed. Then the
//! kernel ends every held request with an error.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Error, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "other file systems of the tests use the rest")]
#[path = "wire.rs"]
mod wire;
use wire::*;

/// Bytes in each file.
pub const SIZE: usize = 16 << 20;

/// The time limit of [`Disk::holds`].
const LONG: Duration = Duration::from_secs(30);

/// The environment variable that makes a process the server. Its value is the name of the test.
const CHILD: &str = "URINGLET_TEST_CHILD";
/// The prefix of the server's lines. The test harness prints beside them.
const MARK: &str = "= ";

const WRITE_MAX: u32 = 128 << 10;

/// Two names of the same content. Closing a descriptor of the second does not wait for the server,
/// so that a process can end while the server does not answer.
const FILE: u64 = 2;
const UNFLUSHED: u64 = 3;

/// Requests that are held, a bit for each opcode.
pub const ALL: u64 = u64::MAX;
/// Reads, writes and fsyncs. Requests for attributes, and closes, are answered.
pub const TRANSFERS: u64 = 1 << READ | 1 << WRITE | 1 << FSYNC;
pub const READS: u64 = 1 << READ;

/// The byte at this offset of a file, until it is written: as for `holds` in answers.h.
pub fn byte(at: usize) -> u8 {
    (at / 4096 * 7 + at % 4096 % 251) as u8
}

/// The period of the bytes: 256 pages.
const REPEATS: usize = 1 << 20;

/// The file system, until it is dropped.
#[derive(Debug)]
pub struct Disk {
    server: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Disk {
    /// # Errors
    /// A text: why this cannot be tested here.
    pub fn start() -> Result<Self, String> {
        let binary = std::env::current_exe().expect("this binary");
        let test = name();
        let mut server = Command::new(binary)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(CHILD, test)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        let commands = server.stdin.take().expect("piped");
        let answers = BufReader::new(server.stdout.take().expect("piped"));
        let mut disk = Self { server, commands, answers, folder: PathBuf::new() };
        let answer = disk.answer();
        match answer.split_once(' ') {
            Some(("ready", path)) => disk.folder = path.into(),
            _ => return Err(answer),
        }
        Ok(disk)
    }

    /// The path of a file. It leads through the server's mount namespace, so it is valid until the
    /// server ends.
    pub fn file(&self) -> PathBuf {
        self.folder.join("file")
    }

    /// The same content, in a file whose close does not wait for the server: the kernel sends no
    /// FLUSH, and does not wait for the answer to RELEASE.
    #[allow(dead_code, reason = "only a process that ends needs it")]
    pub fn unflushed(&self) -> PathBuf {
        self.folder.join("unflushed")
    }

    /// From now on, requests of these kinds are read and not answered.
    pub fn hold(&mut self, kinds: u64) {
        assert_eq!(self.ask(&format!("hold {kinds}")), "done");
    }

    /// From now on no requests are read, as by a server that was stopped with a signal.
    pub fn stop(&mut self) {
        assert_eq!(self.ask("stop"), "done");
    }

    /// Answers held requests, and everything from now on.
    pub fn go_on(&mut self) {
        assert_eq!(self.ask("go"), "done");
    }

    /// The number of held requests of these kinds. After [`Disk::stop`], one more if the kernel has
    /// a request of any kind for the server.
    pub fn held(&mut self, kinds: u64) -> usize {
        self.ask(&format!("held {kinds}")).parse().expect("a number")
    }

    /// Waits until this many requests are held. False if that takes too long.
    pub fn holds(&mut self, count: usize, kinds: u64) -> bool {
        let begin = Instant::now();
        while self.held(kinds) < count {
            if begin.elapsed() > LONG {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn ask(&mut self, command: &str) -> String {
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("a server");
        self.answer()
    }

    /// The next line from the server.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            if self.answers.read_line(&mut line).expect("text") == 0 {
                return "the server has ended".to_owned();
            }
            if let Some(answer) = line.trim_end().strip_prefix(MARK) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The path of the test below, as the harness names it.
fn name() -> &'static str {
    fn of<F: FnOnce()>(_: F) -> &'static str {
        std::any::type_name::<F>()
    }
    let here = of(|| ()).strip_suffix("name::{{closure}}").expect("a closure of this function");
    let here = here.split_once("::").expect("a path in this crate").1;
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| format!("{here}what_is_held_is_answered_when_the_server_goes_on"))
}

/// Serves, if this process is the server.
fn serve_if_asked() {
    if std::env::var(CHILD).is_ok_and(|child| child == name()) {
        let ended = Server::mount().and_then(Server::serve);
        say(&ended.expect_err("it serves until it is told to end"));
        // Exits here, before the harness in this process reports a result of the test.
        std::process::exit(0);
    }
}

/// The message has a line of its own: the harness may have printed half a line.
fn say(answer: &str) {
    println!("\n{MARK}{answer}");
}

/// The range of the file that a transfer uses.
fn range(request: &Request) -> std::ops::Range<usize> {
    let (offset, length) = request.transfer();
    let begin = (offset as usize).min(SIZE);
    begin..(begin + length).min(SIZE)
}

fn attributes(body: Body, node: u64) -> Body {
    match node {
        ROOT => body.attributes(node, 0, libc::S_IFDIR | 0o700),
        _ => body.attributes(node, SIZE as u64, libc::S_IFREG | 0o600),
    }
}

struct Server {
    channel: File,
    content: Vec<u8>,
    held: Vec<Request>,
    /// The kinds of requests to hold.
    kinds: u64,
    /// Are requests read?
    taking: bool,
}

impl Server {
    fn mount() -> Result<Self, String> {
        let (channel, folder) = mount()?;
        say(&format!("ready {}", folder.display()));
        // The bytes repeat, because a test build takes a third of a second to compute all of them.
        let content = (0..REPEATS).map(byte).collect::<Vec<u8>>().repeat(SIZE / REPEATS);
        Ok(Self { channel, content, held: Vec::new(), kinds: 0, taking: true })
    }

    /// Serves until the test has closed its end of the pipe. An error is a text.
    fn serve(mut self) -> Result<(), String> {
        let mut commands = std::io::stdin().lock();
        loop {
            let channel = self.channel.as_raw_fd();
            let [asked, requested] = readable([0, if self.taking { channel } else { -1 }], -1);
            if asked {
                let mut line = String::new();
                commands.read_line(&mut line).map_err(|error| error.to_string())?;
                let (command, kinds) =
                    line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "0"));
                let kinds: u64 = kinds.parse().map_err(|_| format!("no number: {line}"))?;
                match command {
                    "" => return Err("ended".to_owned()),
                    "hold" => self.kinds = kinds,
                    "stop" => self.taking = false,
                    "go" => self.go_on(),
                    "held" => {
                        let held = self.held.iter().filter(|request| request.is_of(kinds)).count();
                        let [waiting] = readable([channel], 0);
                        say(&(held + usize::from(waiting && !self.taking)).to_string());
                        continue;
                    }
                    other => return Err(format!("no command: {other}")),
                }
                say("done");
            } else if requested {
                self.take()?;
            }
        }
    }

    fn go_on(&mut self) {
        (self.kinds, self.taking) = (0, true);
        for request in std::mem::take(&mut self.held) {
            self.answer(&request);
        }
    }

    fn take(&mut self) -> Result<(), String> {
        let Some(request) = Request::read(&self.channel, WRITE_MAX)? else { return Ok(()) };
        match request.opcode() {
            // The server sends no answer to these. Interrupted requests stay held.
            FORGET | BATCH_FORGET | INTERRUPT => {}
            _ if request.is_of(self.kinds) => self.held.push(request),
            _ => self.answer(&request),
        }
        Ok(())
    }

    fn answer(&mut self, request: &Request) {
        let body = Body::default();
        let body = match request.opcode() {
            INIT => body.init(WRITE_MAX),
            LOOKUP => {
                // The kernel caches the answer for `valid` seconds. It caches no attributes.
                let (node, valid) = match request.rest(0) {
                    b"file\0" => (FILE, 0),
                    b"unflushed\0" => (UNFLUSHED, 0),
                    b"remembered\0" => (FILE, 3600),
                    _ => return request.answer(&self.channel, libc::ENOENT, &[]),
                };
                attributes(body.long(&[node, 0, valid, 0]).int(&[0, 0]), node)
            }
            GETATTR => attributes(body.long(&[0, 0]), request.node()),
            OPEN if request.node() == UNFLUSHED => body.long(&[0]).int(&[NO_FLUSH, 0]),
            OPEN | OPENDIR => body.long(&[0, 0]),
            READ => Body(self.content[range(request)].to_vec()),
            WRITE => {
                let (range, data) = (range(request), request.rest(Request::TRANSFER));
                self.content[range.clone()].copy_from_slice(&data[..range.len()]);
                body.int(&[range.len() as u32, 0])
            }
            // POLLIN and POLLOUT.
            POLL => body.int(&[5, 0]),
            STATFS => body.long(&[0; 5]).int(&[4096, 255, 4096, 0]).int(&[0; 6]),
            READDIR | FLUSH | FSYNC | RELEASE | RELEASEDIR => body,
            _ => return request.answer(&self.channel, libc::ENOSYS, &[]),
        };
        request.answer(&self.channel, 0, &body.0);
    }
}

/// Tests the server. In the server's process, this test runs the server.
#[test]
fn what_is_held_is_answered_when_the_server_goes_on() {
    serve_if_asked();
    let mut disk = match Disk::start() {
        Ok(disk) => disk,
        Err(reason) => {
            let text = format!("\nSKIPPED {}: {reason}\n", name());
            return std::io::stderr().write_all(text.as_bytes()).expect("standard error");
        }
    };
    let open = |disk: &Disk| File::options().read(true).write(true).open(disk.file());
    let file = std::sync::Arc::new(open(&disk).expect("the file"));
    let read_at = |at: usize| {
        let file = std::sync::Arc::clone(&file);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            let count = std::os::unix::fs::FileExt::read_at(&*file, &mut buffer, at as u64)?;
            let right = buffer.iter().zip(at..).all(|(&found, at)| found == byte(at));
            Ok::<_, Error>((count, right))
        })
    };
    let size = |file: &File| file.metadata().map(|data| data.len());
    assert_eq!(size(&file).expect("attributes"), SIZE as u64);

    disk.hold(TRANSFERS);
    let reader = read_at(1 << 20);
    assert!(disk.holds(1, READS), "the read reaches the server");
    assert_eq!(size(&file).expect("attributes are answered"), SIZE as u64);
    assert!(!reader.is_finished(), "nobody has answered the read");
    disk.go_on();
    assert_eq!(reader.join().expect("no panic").expect("a read"), (4096, true));

    // The server behaves like a stopped process.
    disk.stop();
    let reader = read_at(4 << 20);
    assert!(disk.holds(1, ALL), "the read waits to be taken");
    assert!(!reader.is_finished(), "nobody has taken the read");
    disk.go_on();
    assert_eq!(reader.join().expect("no panic").expect("a read"), (4096, true));

    // The end of the server ends the held requests.
    disk.hold(ALL);
    let reader = read_at(8 << 20);
    assert!(disk.holds(1, READS), "the read reaches the server");
    drop(disk);
    let error = reader.join().expect("no panic").expect_err("nobody is left to answer");
    // The error is that of a held request, or of one that could no longer be sent.
    let expected = [libc::ECONNABORTED, libc::ENOTCONN];
    assert!(error.raw_os_error().is_some_and(|errno| expected.contains(&errno)), "{error}");
}
