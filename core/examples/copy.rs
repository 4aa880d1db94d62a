//! Copies a file with 32 requests in flight: `cargo run -p uringlet --example copy -- FROM TO`
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use uringlet::{Context, Sqe};

/// Requests in flight, each with a block of its own.
const DEPTH: usize = 32;
const BLOCK: usize = 64 * 1024;

/// A part of the file: first it is read, then written.
struct Block {
    buffer: Box<[u8]>,
    /// The range of the file that is still to be copied.
    todo: Range<u64>,
    /// The range of the buffer that is still to be written; empty during a read.
    unwritten: Range<usize>,
}

impl Block {
    fn new() -> Self {
        Self { buffer: vec![0; BLOCK].into(), todo: 0..0, unwritten: 0..0 }
    }

    /// The next request: a read, or a write of what was read.
    fn request(&mut self, source: &File, target: &File) -> Sqe {
        let Range { start, end } = self.todo;
        if self.unwritten.is_empty() {
            let length = (end - start) as usize;
            Sqe::read(source.as_raw_fd(), &mut self.buffer[..length], start)
        } else {
            Sqe::write(target.as_raw_fd(), &self.buffer[self.unwritten.clone()], start)
        }
    }

    /// Takes the result of the request, which may be short. Returns the number of bytes written.
    fn done(&mut self, count: usize) -> u64 {
        if !self.unwritten.is_empty() {
            self.unwritten.start += count;
            self.todo.start += count as u64;
            return count as u64;
        }
        self.unwritten = 0..count;
        if count == 0 {
            // The file has become shorter.
            self.todo.end = self.todo.start;
        }
        0
    }
}

/// Copies the contents of `from` to `to`, from the beginning. Returns the number of bytes.
///
/// # Errors
/// The first error of a read or write; requests in flight have ended then.
pub fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let (source, target) = (File::open(from)?, File::create(to)?);
    let length = source.metadata()?.len();
    // The blocks are made before the context, so that they are dropped after it: requests own the
    // buffers until then.
    let mut blocks: Vec<Block> = std::iter::repeat_with(Block::new).take(DEPTH).collect();
    let mut context = Context::new(DEPTH as u32).map_err(io::Error::other)?;

    let mut next = 0;
    let mut copied = 0;
    let mut idle: Vec<usize> = (0..DEPTH).collect();
    let mut ready: Vec<usize> = Vec::new();
    loop {
        while next < length
            && let Some(at) = idle.pop()
        {
            let end = length.min(next + BLOCK as u64);
            blocks[at].todo = next..end;
            next = end;
            ready.push(at);
        }
        for at in ready.drain(..) {
            let request = blocks[at].request(&source, &target).user_data(at as u64);
            // SAFETY: `blocks` outlives `context`; a block is left alone until its completion was
            // reaped.
            unsafe { context.push(request) }.expect("one request for each block");
        }
        if idle.len() == DEPTH {
            return Ok(copied);
        }
        context.submit()?;
        context.wait(1, None)?;
        while let Some(cqe) = context.reap() {
            let at = cqe.user_data as usize;
            copied += blocks[at].done(cqe.result()? as usize);
            let list = if blocks[at].todo.is_empty() { &mut idle } else { &mut ready };
            list.push(at);
        }
    }
}

#[allow(dead_code)] // The test calls `copy`, and not `main`.
fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [from, to] = &arguments[..] else {
        eprintln!("usage: copy FROM TO");
        std::process::exit(2);
    };
    let bytes = copy(Path::new(from), Path::new(to))?;
    println!("{bytes} bytes");
    Ok(())
}
