//! The native engines: pread/pwrite, Linux AIO, io_uring and POSIX AIO, with as little code as
//! possible.
//!
//! The native engines make their own system calls and share nothing with uringlet, so that
//! uringlet's overhead is visible. None registers files or buffers, because no engine of uringlet
//! does.

#![allow(unsafe_code)]

mod io_uring;
mod libaio;
mod posixaio;

pub use self::io_uring::IoUring;
pub use libaio::Libaio;
pub use posixaio::Posixaio;

use super::drive::{Figure, Latency};
use super::stream::Next;
use super::workload::{Job, Operation};
use std::io::Error;
use std::time::Instant;

/// Plain pread(2), pwrite(2) and fsync(2), one after the other.
///
/// # Errors
/// A request failed or was short.
pub fn psync(job: &mut Job<'_>) -> Result<Figure, String> {
    let mut latency = job.timed.then(|| Latency::new(1));
    let mut done = 0;
    let mut meter = job.meter();
    while meter.goes_on(done)
        && let Some(Next { operation, offset }) = job.next(0)
    {
        let begun = latency.is_some().then(Instant::now);
        let buffer = job.buffer(0);
        let (fd, start, len) = (job.fd, buffer.cast(), buffer.len());
        let offset = offset.cast_signed();
        // SAFETY: the buffer belongs to the job and is as long as given.
        let result = unsafe {
            match operation {
                Operation::Read => libc::pread(fd, start, len, offset),
                Operation::Write => libc::pwrite(fd, start, len, offset),
                Operation::Fsync => libc::fsync(fd) as isize,
            }
        };
        job.check(0, if result < 0 { -last_errno() } else { result as i64 })?;
        if operation == Operation::Fsync {
            continue;
        }
        done += 1;
        if let (Some(latency), Some(begun)) = (&mut latency, begun) {
            let time = begun.elapsed();
            latency.completed(time, time);
        }
    }
    Ok(meter.stop(done, latency.as_ref()))
}

fn last_errno() -> i64 {
    i64::from(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
