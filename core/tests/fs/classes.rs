//! Operations in the background, and others that go before them.

use std::io::Write as _;
use std::task::Poll;

use uringlet::fs::{self, Coalesce, File, Fs};

use crate::executors::Executor;
use crate::limits::in_time;
use crate::{file_of, pipe};

fn settle(fs: &Fs) {
    while fs.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
}

#[test]
fn operations_in_the_background_are_few_among_the_others_and_go_in_order() {
    for few in [1, 3] {
        Executor::each(|executor| {
            let own = Fs::builder().background(few).build().unwrap();
            let (reader, mut writer) = pipe();
            let (named, data) = file_of(100_000);
            let (fs, path) = (own.clone(), named.path().to_owned());
            executor.run(async move {
                let pipe = File::from(reader);
                let read = || pipe.read_at([0; 1], 0).on(&fs).background().submit();
                let mut reads: Vec<_> = (0..20).map(|_| read()).collect();
                assert_eq!(fs.in_flight(), (few, 20 - few));
                // Other operations go first, whatever their number and kind.
                for round in 0..20 {
                    assert_eq!(fs::read(&path).on(&fs).await.unwrap(), data);
                    let file = File::options().read(true).write(true).open(&path).on(&fs).await;
                    let file = file.unwrap();
                    file.write_all_at(data.clone(), 0).await.0.unwrap();
                    file.read_exact_at(vec![0; 90_000], round).forced_async().await.0.unwrap();
                    file.sync_data().await.unwrap();
                }
                while fs.in_flight() != (few, 20 - few) {
                    std::thread::yield_now();
                }
                // Two reads are dropped or cancelled while they are queued. A third one is in the
                // engine, and its drop makes room.
                drop(reads.pop());
                let error = reads.pop().unwrap().cancel().await.0.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                drop(reads.remove(0));
                while fs.in_flight() != (few, 17 - few) {
                    std::thread::yield_now();
                }
                writer.write_all(b"0123456789abcdefg").unwrap();
                let mut found = Vec::new();
                for read in reads {
                    found.extend(read.await.unwrap().1);
                }
                assert_eq!(found, b"0123456789abcdefg");
            });
            settle(&own);
        });
    }
}

#[test]
fn what_is_in_the_background_ends_in_every_way() {
    let (named, data) = file_of(50_000);
    for own in [
        Fs::builder().build().unwrap(),
        Fs::builder().threads(1).background(64).in_flight(1).build().unwrap(),
        Fs::builder().bytes_in_flight(1).background(0).build().unwrap(),
    ] {
        let file = in_time("open", File::open(named.path()).on(&own).background()).unwrap();
        let read = || file.read_exact_at(vec![0; 40_000], 7).forced_async().background();
        let mut kept = Vec::new();
        for number in 0..100 {
            match number % 5 {
                0 => drop(read()),
                1 => drop(read().submit()),
                2 => read().detach(),
                3 => {
                    if let Err(error) = in_time("cancel", read().submit().cancel()).0 {
                        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                    }
                }
                _ => kept.push(read().submit()),
            }
        }
        // One operation with several requests.
        let copy = in_time("read", fs::read(named.path()).on(&own).background());
        assert!(copy.unwrap() == data);
        for read in kept {
            assert!(in_time("read", read).unwrap().1[..] == data[7..40_007]);
        }
        settle(&own);
        in_time("shut down", File::open(named.path()).on(&own).background()).unwrap();
        own.shutdown(std::time::Duration::from_secs(60)).wait().unwrap();
        let late = File::open(named.path()).on(&own).background().wait().unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::ESHUTDOWN));
    }
}

/// A batch and ranges in the background wait for an earlier background operation. Operations that
/// are not in the background do not wait.
#[test]
fn batches_in_the_background_let_others_go_before() {
    let (named, data) = file_of(300_000);
    let own = Fs::builder().build().unwrap();
    let (reader, mut writer) = pipe();
    let never = File::from(reader).read_at([0; 1], 0).on(&own).background().submit();
    let file = File::open(named.path()).on(&own).wait().unwrap();
    let ranges: Vec<_> = (0..100u64).map(|at| at * 3000..at * 3000 + 1000).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());

    let mut files = fs::read_many([named.path(); 3]).on(&own).background();
    assert!(files.poll_next(&mut context).is_pending());
    let apart = Coalesce { gap: 0, max: 0 };
    let mut chunks = file.read_ranges(&ranges, apart).background().each();
    while let Poll::Ready(Some((number, chunk))) = chunks.poll_next(&mut context) {
        // Chunks that are in memory are ready at once, also in the background.
        assert_eq!(chunk.unwrap()[..], data[3000 * number..][..1000]);
    }
    // The open counts as in flight until its slot is free, a little after it has ended.
    while own.in_flight().0 != 1 {
        std::thread::yield_now();
    }
    assert!(own.in_flight().1 > 0);
    assert!(in_time("read", fs::read(named.path()).on(&own)).unwrap() == data);
    assert!(files.poll_next(&mut context).is_pending());

    writer.write_all(b"x").unwrap();
    assert_eq!(&in_time("read", never).unwrap().1, b"x");
    for _ in 0..3 {
        assert!(files.wait_next().unwrap().1.unwrap() == data);
    }
    assert!(files.wait_next().is_none());
    while let Some((number, chunk)) = pollster::block_on(chunks.next()) {
        assert_eq!(chunk.unwrap()[..], data[3000 * number..][..1000]);
    }
    settle(&own);
}

#[cfg(feature = "faulty")]
#[test]
fn what_the_engine_refuses_in_the_background_lets_the_next_one_pass() {
    let (named, _) = file_of(50_000);
    for seed in 0..20 {
        let faults = uringlet::Faults { eio: 300, ..uringlet::Faults::none(seed) };
        let own = Fs::builder().faulty(faults).build().unwrap();
        let looks: Vec<_> =
            (0..50).map(|_| fs::metadata(named.path()).on(&own).background().submit()).collect();
        // Each operation ends, whatever the result.
        looks.into_iter().for_each(|look| drop(in_time("metadata", look)));
        settle(&own);
    }
}
