//! Has a drop-in read from a file, for this command itself, and looks whether it has counted that.
#![allow(unsafe_code)]

use crate::run::library::DropIn;
use crate::sandbox::Sandbox;
use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::mem;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::ptr;
use uringlet::stats::Region;

/// What every program on Linux begins with.
const MAGIC: [u8; 4] = *b"\x7fELF";
/// Known to everybody, and a program.
const READ: &str = "/proc/self/exe";

/// Starts this command under a drop-in, in the sandbox. The inner error: why it does not answer.
pub fn of(drop_in: DropIn, library: &Path, sandbox: &Sandbox) -> Result<Result<(), String>> {
    let region = Region::create().context("cannot make the memory that collects the counters")?;
    let own = std::env::current_exe().context("cannot find the uringlet executable")?;
    let value = drop_in.to_possible_value().expect("none is hidden");
    let mut command = Command::new(own);
    command.args(["check", "--answer", value.get_name()]).env("LD_PRELOAD", library);
    for variable in ["ENGINE", "QUEUE_AFFINITY", "COMPLETION_AFFINITY", "RQ_AFFINITY"] {
        command.env_remove(format!("URINGLET_{variable}"));
    }
    command.env("URINGLET_STATS", region.path());
    sandbox.lock_in(&mut command)?;
    let output = command.output().context("cannot start this command once more")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Ok(Err(format!("{} ({})", said.trim(), output.status)));
    }
    let reads = region.snapshot().reads;
    Ok(if reads == 1 { Ok(()) } else { Err(format!("it has counted {reads} reads, not 1")) })
}

/// Can this command ask a drop-in? Not the one for io_uring: it serves no program that has
/// io_uring's system calls as instructions of its own, as this command does.
pub fn can_be_asked(drop_in: DropIn) -> bool {
    drop_in != DropIn::IoUring
}

/// One read through the interface, whoever answers.
pub fn ask(drop_in: DropIn) -> Result<ExitCode> {
    let file = File::open(READ).context(READ)?;
    let bytes = match drop_in {
        DropIn::Libaio => by_libaio(&file),
        DropIn::PosixAio => by_posix_aio(&file),
        DropIn::IoUring => bail!("this command cannot ask it"),
    };
    ensure!(bytes? == MAGIC, "{READ} does not begin as a program does");
    Ok(ExitCode::SUCCESS)
}

/// io_submit(2): its control block.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    size: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// IOCB_CMD_PREAD.
const PREAD: u16 = 0;

/// io_getevents(2): its event.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    second: i64,
}

/// A call of libc's syscall(), which the drop-in answers.
fn checked(result: libc::c_long, what: &str) -> Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Error::last_os_error()).with_context(|| what.to_owned())
}

fn by_libaio(file: &File) -> Result<[u8; 4]> {
    let mut bytes = [0; MAGIC.len()];
    let mut context: libc::c_ulong = 0;
    let block = Iocb {
        opcode: PREAD,
        fd: file.as_raw_fd() as u32,
        buffer: bytes.as_mut_ptr() as u64,
        size: bytes.len() as u64,
        ..Iocb::default()
    };
    let mut event = Event::default();
    let blocks = [ptr::from_ref(&block)];
    // SAFETY: io_setup(2): a zeroed context that lives on.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
    checked(made, "io_setup")?;
    // SAFETY: io_submit(2): one pointer to a block, whose buffer is not touched until the event.
    let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, blocks.as_ptr()) };
    ensure!(checked(submitted, "io_submit")? == 1, "io_submit accepted nothing");
    let no_time = ptr::null::<libc::timespec>();
    // SAFETY: io_getevents(2): room for one event, and no timeout.
    let got =
        unsafe { libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, no_time) };
    ensure!(checked(got, "io_getevents")? == 1, "io_getevents gave no event");
    // SAFETY: io_destroy(2): made above; nothing is in flight.
    checked(unsafe { libc::syscall(libc::SYS_io_destroy, context) }, "io_destroy")?;
    ensure!(event.result == bytes.len() as i64, "the read ended with {}", event.result);
    Ok(bytes)
}

fn by_posix_aio(file: &File) -> Result<[u8; 4]> {
    let mut bytes = [0; MAGIC.len()];
    // SAFETY: aio(7): zeroes are a valid control block.
    let mut block: libc::aiocb = unsafe { mem::zeroed() };
    block.aio_fildes = file.as_raw_fd();
    block.aio_buf = bytes.as_mut_ptr().cast();
    block.aio_nbytes = bytes.len();
    block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    let at = &raw mut block;
    // SAFETY: aio_read(3): neither block nor buffer is touched or moved until it has ended.
    checked(unsafe { libc::aio_read(at) }.into(), "aio_read")?;
    let error = loop {
        // SAFETY: aio_suspend(3): a list of one block.
        let ended = unsafe { libc::aio_suspend(&at.cast_const(), 1, ptr::null()) };
        if ended < 0 && Error::last_os_error().kind() != ErrorKind::Interrupted {
            return Err(Error::last_os_error()).context("aio_suspend");
        }
        // SAFETY: aio_error(3): the block of a request.
        let error = unsafe { libc::aio_error(at) };
        if error != libc::EINPROGRESS {
            break error;
        }
    };
    ensure!(error == 0, "the read failed: {}", Error::from_raw_os_error(error));
    // SAFETY: aio_return(3): it has ended, and is asked once.
    let count = unsafe { libc::aio_return(at) };
    ensure!(count == bytes.len() as isize, "the read ended with {count}");
    Ok(bytes)
}
