//! Preloads a drop-in into a second process of this command, which reads a file through it. Checks
//! that the drop-in has counted the read. A drop-in is a library that replaces libaio, POSIX AIO or
//! liburing.
#![allow(unsafe_code)]

use crate::run::library::DropIn;
use crate::sandbox::Sandbox;
use crate::session::{self, STOP};
use anyhow::{Context as _, Error, Result, ensure};
use clap::ValueEnum as _;
use std::ffi::{CStr, c_int, c_uint};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use uringlet::EngineKind;
use uringlet::probe::Probe;
use uringlet::stats::Region;
use uringlet_lab::bench::{Engine, Job, Workload};

/// A file that exists everywhere, and is longer than a block: this program.
const READ: &str = "/proc/self/exe";
/// The number of bytes that the read transfers.
const BLOCK: u64 = 4096;

/// The result of asking a drop-in.
pub enum Answer {
    /// This command cannot ask the drop-in.
    NotAsked,
    /// The drop-in has answered, with this remark.
    Given(String),
    /// The drop-in has not answered, for this reason.
    Missing(String),
}

/// Starts this command once more, with the drop-in preloaded, and in the sandbox. The new process
/// asks the drop-in.
pub fn of(drop_in: DropIn, library: &Path, sandbox: &Sandbox) -> Result<Answer> {
    if cfg!(target_feature = "crt-static") {
        // A statically linked command has no loader that could preload the drop-in.
        return Ok(Answer::NotAsked);
    }
    let region = Region::create().context("cannot make the memory that collects the counters")?;
    let own = std::env::current_exe().context("cannot find the uringlet executable")?;
    let value = drop_in.to_possible_value().expect("none is hidden");
    let mut command = Command::new(own);
    command.args(["check", "--answer", value.get_name()]).env("LD_PRELOAD", library);
    for variable in ["ENGINE", "QUEUE_AFFINITY", "COMPLETION_AFFINITY", "RQ_AFFINITY", "SPARE_CPUS"]
    {
        command.env_remove(format!("URINGLET_{variable}"));
    }
    // The drop-in has to answer even if the kernel has io_uring.
    command.env("URINGLET_IO_URING", "always").env("URINGLET_STATS", region.path());
    sandbox.lock_in(&mut command)?;
    let output = command.output().context("cannot start this command once more")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Ok(Answer::Missing(format!("{} ({})", said.trim(), output.status)));
    }
    Ok(match region.snapshot().reads {
        1 => Answer::Given(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        reads => Answer::Missing(format!("it has counted {reads} reads, not 1")),
    })
}

/// Asks a drop-in by one read. The bytes do not matter: the parent process checks the counters.
pub fn ask(drop_in: DropIn) -> Result<ExitCode> {
    let file = File::open(READ).context(READ)?;
    let engine = match drop_in {
        DropIn::Libaio => Engine::Libaio,
        DropIn::PosixAio => Engine::Posixaio,
        DropIn::IoUring => {
            ask_liburing(&file)?;
            session::say(&format!("{}\n", rings(&Probe::look())))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let load = Workload::CachedRead.load(BLOCK, BLOCK);
    // With a time of zero, the job ends after the first read.
    let time = (Duration::ZERO, false);
    let mut job = Job::new(file.as_raw_fd(), &load, 1, (0, 0), time, &STOP);
    engine.run(None, &mut job).map_err(Error::msg)?;
    Ok(ExitCode::SUCCESS)
}

/// Says whether a program's rings are the kernel's or the drop-in's under `uringlet run`.
pub fn rings(probe: &Probe) -> String {
    let io_uring = probe.engines.iter().find(|engine| engine.kind == EngineKind::IoUring);
    match io_uring.and_then(|engine| engine.refusal.as_ref()) {
        Some(refusal) => format!("uringlet serves them, since the kernel refuses them ({refusal})"),
        None => "the kernel's, which allows them; `uringlet run --io-uring always` serves them"
            .to_owned(),
    }
}

/// The first function of this name in this process (dlsym(3)). A preloaded library comes first.
fn function(name: &CStr) -> Result<*mut libc::c_void> {
    // SAFETY: a string that ends with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    ensure!(!found.is_null(), "there is no {}", name.to_string_lossy());
    Ok(found)
}

/// Reads a block through liburing's functions, from a preloaded library.
fn ask_liburing(file: &File) -> Result<()> {
    /// This is larger than `struct io_uring`.
    type Ring = [u64; 64];
    /// `IORING_OP_READ`.
    const OP_READ: u8 = 22;
    let [init, entry, submit, peek, exit] = [
        function(c"io_uring_queue_init")?,
        function(c"io_uring_get_sqe")?,
        function(c"io_uring_submit_and_wait")?,
        function(c"io_uring_peek_batch_cqe")?,
        function(c"io_uring_queue_exit")?,
    ];
    let (mut ring, mut block, mut completion) =
        ([0; 64], [0u8; BLOCK as usize], [std::ptr::null()]);
    // SAFETY: the types are those of liburing's functions (liburing.h). The ring and the block
    // outlive the request. An entry has 64 bytes. A completion has its result in bytes 8 to 11.
    let result = unsafe {
        let init: extern "C" fn(c_uint, *mut Ring, c_uint) -> c_int = std::mem::transmute(init);
        let entry: extern "C" fn(*mut Ring) -> *mut [u64; 8] = std::mem::transmute(entry);
        let submit: extern "C" fn(*mut Ring, c_uint) -> c_int = std::mem::transmute(submit);
        let peek: extern "C" fn(*mut Ring, *mut *const [i32; 4], c_uint) -> c_uint =
            std::mem::transmute(peek);
        let exit: extern "C" fn(*mut Ring) = std::mem::transmute(exit);
        let made = init(1, &raw mut ring, 0);
        ensure!(made == 0, "io_uring_queue_init: {}", std::io::Error::from_raw_os_error(-made));
        let head = u64::from(OP_READ) | (file.as_raw_fd() as u64) << 32;
        let at = block.as_mut_ptr().expose_provenance() as u64;
        entry(&raw mut ring).write([head, 0, at, BLOCK, 0, 0, 0, 0]);
        let submitted = submit(&raw mut ring, 1);
        ensure!(submitted == 1, "io_uring_submit_and_wait: {submitted}");
        let completions = peek(&raw mut ring, completion.as_mut_ptr(), 1);
        ensure!(completions == 1, "io_uring_peek_batch_cqe: {completions}");
        let result = (*completion[0])[2];
        exit(&raw mut ring);
        result
    };
    ensure!(result == BLOCK as i32, "the read ended with {result}");
    Ok(())
}
