//! Random programs run through a context and, with plain system calls, on a twin file. Both have
//! the same results and leave the same contents.

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};

use crate::common::{LONG, bounded, builder, file_with, finish, from_env, pattern, plain, push};
use proptest::prelude::*;
use uringlet::{Context, Sqe};

/// A batch has at most `LANES` members, each with a range of `LANE` bytes of its own.
const LANES: usize = 12;
const LANE: usize = 3000;

/// A transfer within a lane.
#[derive(Clone, Debug)]
struct Transfer {
    write: bool,
    /// Lengths of the parts. With one part, the transfer is a plain read or write.
    parts: Vec<usize>,
    start: usize,
    seed: u64,
    flags: i32,
}

/// Requests that are submitted together.
#[derive(Clone, Debug)]
enum Batch {
    Transfers(Vec<Option<Transfer>>),
    /// Appends, in order.
    Appends(Vec<(u64, usize)>),
    Truncate(u64),
    Allocate {
        mode: i32,
        offset: u64,
        len: u64,
    },
    Sync(bool),
}

fn transfer() -> impl Strategy<Value = Transfer> {
    let parts = prop::collection::vec(0..400usize, 1..7);
    let flags = prop_oneof![8 => Just(0), 1 => Just(libc::RWF_DSYNC), 1 => Just(1 << 30)];
    (any::<bool>(), parts, 0..600usize, any::<u64>(), flags).prop_map(
        |(write, parts, start, seed, flags)| Transfer { write, parts, start, seed, flags },
    )
}

fn batch() -> impl Strategy<Value = Batch> {
    let end = (LANES * LANE) as u64;
    let modes = prop_oneof![
        Just(0),
        Just(libc::FALLOC_FL_KEEP_SIZE),
        Just(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE),
        Just(libc::FALLOC_FL_ZERO_RANGE),
    ];
    prop_oneof![
        12 => prop::collection::vec(prop::option::of(transfer()), 1..=LANES)
            .prop_map(Batch::Transfers),
        2 => prop::collection::vec((any::<u64>(), 0..2000usize), 1..8).prop_map(Batch::Appends),
        2 => (0..end).prop_map(Batch::Truncate),
        1 => (modes, 0..end, 0..end)
            .prop_map(|(mode, offset, len)| Batch::Allocate { mode, offset, len }),
        1 => any::<bool>().prop_map(Batch::Sync),
    ]
}

/// The buffers of a batch, one for each lane, and the iovecs of their parts. Each side of the
/// comparison has its own.
struct Buffers {
    bytes: Vec<Vec<u8>>,
    iovecs: Vec<Vec<libc::iovec>>,
}

impl Buffers {
    fn new(transfers: &[Option<Transfer>]) -> Self {
        let bytes = |one: &Option<Transfer>| match one {
            Some(one) if one.write => pattern(one.seed % 1000, one.parts.iter().sum()),
            Some(one) => vec![0; one.parts.iter().sum()],
            None => Vec::new(),
        };
        let mut bytes: Vec<Vec<u8>> = transfers.iter().map(bytes).collect();
        let iovecs = transfers.iter().zip(&mut bytes).map(|(one, bytes)| {
            let mut rest: &mut [u8] = bytes;
            let parts = one.iter().flat_map(|one| &one.parts);
            let iovec = |&len: &usize| {
                let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
                rest = behind;
                libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: len }
            };
            parts.map(iovec).collect()
        });
        let iovecs = iovecs.collect();
        Self { bytes, iovecs }
    }
}

fn offset_of(lane: usize, one: &Transfer) -> u64 {
    (lane * LANE + one.start) as u64
}

fn sqe_of(fd: RawFd, lane: usize, one: &Transfer, buffers: &mut Buffers) -> Sqe {
    let (offset, iovecs) = (offset_of(lane, one), &buffers.iovecs[lane]);
    // SAFETY: the iovec of a transfer with one part covers the live buffer of this lane.
    let whole = |iovec: &libc::iovec| {
        std::ptr::slice_from_raw_parts_mut(iovec.iov_base.cast::<u8>(), iovec.iov_len)
    };
    let sqe = match (&iovecs[..], one.write) {
        ([iovec], false) => Sqe::read(fd, whole(iovec), offset),
        ([iovec], true) => Sqe::write(fd, whole(iovec), offset),
        (iovecs, false) => Sqe::readv(fd, iovecs, offset),
        (iovecs, true) => Sqe::writev(fd, iovecs, offset),
    };
    sqe.rw_flags(one.flags).user_data(lane as u64)
}

fn plainly(fd: RawFd, lane: usize, one: &Transfer, buffers: &mut Buffers) -> i32 {
    let iovecs = &buffers.iovecs[lane];
    let (at, n, offset) = (iovecs.as_ptr(), iovecs.len() as i32, offset_of(lane, one) as i64);
    // SAFETY: the iovecs cover the live buffer of this lane.
    plain(unsafe {
        match one.write {
            false => libc::preadv2(fd, at, n, offset, one.flags) as i64,
            true => libc::pwritev2(fd, at, n, offset, one.flags) as i64,
        }
    })
}

/// If the batch has a write, leaves out reads across the end of the file. The write may move the
/// end, so the result of such a read is undefined.
fn leave_out_races(transfers: &mut [Option<Transfer>], size: u64) {
    if !transfers.iter().flatten().any(|one| one.write) {
        return;
    }
    for (lane, slot) in transfers.iter_mut().enumerate() {
        let over = |one: &Transfer| {
            let len: usize = one.parts.iter().sum();
            !one.write && offset_of(lane, one) + len as u64 > size
        };
        if slot.as_ref().is_some_and(over) {
            *slot = None;
        }
    }
}

fn execute(context: &mut Context, ours: &File, twin: &File, batch: &Batch) {
    let (fd, twin_fd) = (ours.as_raw_fd(), twin.as_raw_fd());
    match batch {
        Batch::Transfers(transfers) => {
            let mut transfers = transfers.clone();
            leave_out_races(&mut transfers, twin.metadata().unwrap().len());
            let mut buffers = Buffers::new(&transfers);
            let mut twins = Buffers::new(&transfers);
            for (lane, one) in transfers.iter().enumerate() {
                let Some(one) = one else { continue };
                push(context, sqe_of(fd, lane, one, &mut buffers));
            }
            let results = finish(context);
            for (lane, one) in transfers.iter().enumerate() {
                let Some(one) = one else { continue };
                let expected = plainly(twin_fd, lane, one, &mut twins);
                assert_eq!(results[&(lane as u64)], expected, "{one:?} in lane {lane}");
            }
            assert!(buffers.bytes == twins.bytes, "what was read by {transfers:?}");
        }
        Batch::Appends(appends) => {
            let bytes: Vec<Vec<u8>> =
                appends.iter().map(|&(seed, len)| pattern(seed % 1000, len)).collect();
            for (at, part) in bytes.iter().enumerate() {
                let sqe = Sqe::write(fd, &part[..], 0).rw_flags(libc::RWF_APPEND);
                push(context, sqe.user_data(at as u64));
            }
            let results = finish(context);
            for (at, part) in bytes.iter().enumerate() {
                let iovec = libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() };
                // SAFETY: one iovec of a live buffer that is only read.
                let expected = plain(unsafe {
                    libc::pwritev2(twin_fd, &iovec, 1, 0, libc::RWF_APPEND) as i64
                });
                assert_eq!(results[&(at as u64)], expected);
            }
        }
        &Batch::Truncate(len) => {
            push(context, Sqe::ftruncate(fd, len));
            // SAFETY: a call on a descriptor.
            let expected = plain(unsafe { libc::ftruncate(twin_fd, len as i64) }.into());
            assert_eq!(finish(context)[&0], expected);
        }
        &Batch::Allocate { mode, offset, len } => {
            push(context, Sqe::fallocate(fd, mode as u32, offset, len));
            // SAFETY: a call on a descriptor.
            let expected = unsafe { libc::fallocate(twin_fd, mode, offset as i64, len as i64) };
            assert_eq!(finish(context)[&0], plain(expected.into()));
        }
        &Batch::Sync(data) => {
            push(context, if data { Sqe::fdatasync(fd) } else { Sqe::fsync(fd) });
            assert_eq!(finish(context)[&0], 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: from_env("PROPTEST_CASES", 128) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_random_program_gives_what_plain_calls_give(
        program in prop::collection::vec(batch(), 1..20),
        workers in 1..4usize,
    ) {
        let _bound = bounded(LONG * 8);
        let mut context = builder().entries(16).workers_max(workers).build().unwrap();
        let (ours, twin) = (file_with(b""), file_with(b""));
        for batch in &program {
            execute(&mut context, &ours, &twin, batch);
            prop_assert_eq!(ours.metadata().unwrap().len(), twin.metadata().unwrap().len());
        }
        let content = |file: &File| {
            use std::os::unix::fs::FileExt as _;
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        prop_assert!(content(&ours) == content(&twin), "the contents differ");
    }
}
