//! The promises of design and documentation about order, cancelling, destroying, threads and forks.
//!
//! This file has what the tests of several promises use.

mod blocked;
mod cancelling;
mod cold;
mod destroying;
mod eventfd;
mod fork;
mod hung;
mod order;
mod polls;
mod real_time;
mod streams;
mod stuck;
mod threads;
mod without_threads;

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsRawFd as _;

use crate::common::{
    by_user_data, context, file_with, pattern, push, reap_all, submit_all, wait_for, wait_until,
};
use uringlet::{Context, Sqe};

const BLOCK: usize = 512;

fn errno(result: std::io::Result<()>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().expect("an errno"))
}

/// Pushes a read of one block into each of the `buffers`, numbered from 0.
fn push_reads(context: &mut Context, file: &File, buffers: &mut [[u8; BLOCK]]) {
    let blocks = file.metadata().unwrap().len() / BLOCK as u64;
    for (at, buffer) in (0..).zip(buffers) {
        let offset = at % blocks * BLOCK as u64;
        push(context, Sqe::read(file.as_raw_fd(), &mut buffer[..], offset).user_data(at));
    }
}

struct Pipes {
    ends: Vec<(PipeReader, PipeWriter)>,
    buffers: Vec<[u8; 16]>,
}

/// The first user_data of reads on pipes.
const PIPES: u64 = 1 << 32;

impl Pipes {
    fn new(count: usize) -> Self {
        let ends = (0..count).map(|_| std::io::pipe().unwrap()).collect();
        Self { ends, buffers: vec![[0; 16]; count] }
    }

    fn push_read(&mut self, context: &mut Context, at: usize) {
        let fd = self.ends[at].0.as_raw_fd();
        push(context, Sqe::read(fd, &mut self.buffers[at][..], 0).user_data(PIPES + at as u64));
    }
}

/// 1,000 file reads with 40 reads on empty pipes among them. Returns the context when the file
/// reads have completed and only the pipe reads are left.
fn files_among_pipes(pipes: &mut Pipes) -> Context {
    let content = pattern(1, 64 * BLOCK);
    let file = file_with(&content);
    let mut context = context(2048);
    let mut buffers = vec![[0u8; BLOCK]; 1000];
    for (chunk, part) in buffers.chunks_mut(25).enumerate() {
        pipes.push_read(&mut context, chunk);
        for (at, buffer) in part.iter_mut().enumerate() {
            let at = (chunk * 25 + at) as u64;
            let offset = at % 64 * BLOCK as u64;
            push(&mut context, Sqe::read(file.as_raw_fd(), &mut buffer[..], offset).user_data(at));
        }
    }
    submit_all(&mut context);
    wait_for(&mut context, 1000);
    let results = by_user_data(&reap_all(&mut context));
    assert_eq!(results.len(), 1000, "the pipe reads cannot complete");
    assert!((0..1000).all(|at| results[&at] == BLOCK as i32));
    for (at, buffer) in buffers.iter().enumerate() {
        assert!(buffer[..] == content[at % 64 * BLOCK..][..BLOCK], "read {at}");
    }
    context
}

/// Makes workers, poller and watchdog start: a blocked pipe read, syncs, and reads that nobody
/// waits for.
fn busy(context: &mut Context, pipes: &mut Pipes) {
    let file = file_with(&pattern(1, 64 * BLOCK));
    let mut buffers = vec![[0u8; BLOCK]; 100];
    pipes.push_read(context, 0);
    push_reads(context, &file, &mut buffers);
    for at in 0..8 {
        push(context, Sqe::fsync(file.as_raw_fd()).user_data(1000 + at));
    }
    submit_all(context);
    let mut reaped = 0;
    assert!(wait_until(|| {
        reaped += reap_all(context).len();
        reaped == 108
    }));
}
