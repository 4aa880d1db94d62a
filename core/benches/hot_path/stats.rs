//! The cost of counting: reads of a cached page that are not counted, counted, and counted where
//! `uringlet top` sees them.
#![allow(unsafe_code)]

use criterion::{Criterion, Throughput};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use uringlet::{Context, Cqe, EngineKind, Sqe};

const AT_A_TIME: usize = 32;
const PAGE: usize = 4096;

/// A context, and the pages into which it reads.
struct Reader {
    context: Context,
    pages: Vec<[u8; PAGE]>,
}

impl Reader {
    fn new(counts: bool) -> Self {
        let builder = Context::builder().entries(128).engine(EngineKind::Workers).stats(counts);
        Self { context: builder.build().expect("a context"), pages: vec![[0; PAGE]; AT_A_TIME] }
    }

    /// Reads all pages this many times, and returns the time that this took.
    fn read(&mut self, file: &File, batches: u64) -> Duration {
        let mut cqes = [Cqe::default(); AT_A_TIME];
        let begin = Instant::now();
        for _ in 0..batches {
            for (at, page) in self.pages.iter_mut().enumerate() {
                let read = Sqe::read(file.as_raw_fd(), &mut page[..], (at * PAGE) as u64);
                // SAFETY: the pages stay, and are not touched before all reads are reaped below.
                unsafe { self.context.push(read) }.expect("room");
            }
            self.context.submit().expect("room");
            self.context.wait(AT_A_TIME, None).expect("completions");
            assert_eq!(self.context.reap_into(&mut cqes), AT_A_TIME);
        }
        begin.elapsed()
    }
}

pub fn counting(criterion: &mut Criterion) {
    let file = tempfile::tempfile().expect("a file");
    file.set_len((AT_A_TIME * PAGE) as u64).expect("room");
    let alone = [false, true].map(Reader::new);
    // The counters of contexts that are made from here on are in memory that other processes can
    // read. Earlier contexts are unchanged.
    uringlet::stats::observe().expect("a region");
    let [off, own] = alone;
    let mut readers = [off, own, Reader::new(false)];
    let names = ["not counted", "counted by the context", "observed"];
    let mut group = criterion.benchmark_group("32 cached reads of 4 KiB");
    group.throughput(Throughput::Elements(AT_A_TIME as u64));
    for (at, name) in names.into_iter().enumerate() {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|batches| {
                // The readers take turns of this many batches, so that disturbances affect all of
                // them equally.
                const TURN: u64 = 64;
                let mut time = Duration::ZERO;
                for from in (0..batches).step_by(TURN as usize) {
                    let turn = TURN.min(batches - from);
                    for (other, reader) in readers.iter_mut().enumerate() {
                        let took = reader.read(&file, turn);
                        time += if other == at { took } else { Duration::ZERO };
                    }
                }
                time
            });
        });
    }
    group.finish();
}
