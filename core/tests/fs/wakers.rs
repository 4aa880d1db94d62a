//! Which tasks are woken, how often, and the explanation of a file's lanes.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use uringlet::EngineKind;
use uringlet::fs::{File, Fs};

use crate::limits::Count;
use crate::{file_of, pipe};

#[test]
fn a_file_explains_where_its_requests_run() {
    let (named, _) = file_of(1000);
    let fs = Fs::builder().engine(EngineKind::Workers).inline_max(100).build().unwrap();
    let file = File::options().read(true).append(true).open(named.path()).on(&fs).wait().unwrap();
    let explained = file.explain().unwrap();
    assert_eq!((explained.reads.name, explained.writes.name), ("inline", "ordered"));
    assert_eq!((&explained.choice, explained.inline_max), (&fs.choice(), 100));
    // The text has all these values.
    let text = explained.to_string();
    let (choice, most) = (explained.choice.to_string(), explained.inline_max.to_string());
    let lanes = [explained.reads.to_string(), explained.writes.to_string()];
    for part in [&choice, &most, explained.tried, &lanes[0], &lanes[1]] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (reader, _writer) = pipe();
    let explained = File::from(reader).explain().unwrap();
    assert_eq!(explained.reads.name, "stream");
}

/// A waker that counts its clones.
struct Clones(Arc<AtomicUsize>);

mod clones {
    #![allow(unsafe_code)]
    use super::*;
    use std::task::{RawWaker, RawWakerVTable};

    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: `data` is from `Arc::into_raw`, and the caller has a reference.
        let count = unsafe { &*data.cast::<AtomicUsize>() };
        count.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { Arc::increment_strong_count(data.cast::<AtomicUsize>()) };
        RawWaker::new(data, &VTABLE)
    }
    unsafe fn drop_it(data: *const ()) {
        // SAFETY: as above; the caller gives its reference up.
        drop(unsafe { Arc::from_raw(data.cast::<AtomicUsize>()) });
    }
    unsafe fn wake_by_ref(_: *const ()) {}
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, drop_it, wake_by_ref, drop_it);

    impl Clones {
        pub(super) fn waker(&self) -> Waker {
            let data = Arc::into_raw(Arc::clone(&self.0)).cast();
            // SAFETY: the functions above count the references of one `Arc`.
            unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
        }
    }
}

#[test]
fn a_waker_is_cloned_once_however_often_its_operation_is_polled() {
    let (reader, _writer) = pipe();
    let mut read = File::from(reader).read_at([0u8; 1], 0);
    let (first, second) = (Clones(Arc::default()), Clones(Arc::default()));
    for clones in [&first, &second, &first] {
        let waker = clones.waker();
        for _ in 0..3 {
            assert!(Pin::new(&mut read).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        // A waker that was replaced is dropped, and cloned again if it is used again.
        assert_eq!(Arc::strong_count(&clones.0), 3);
    }
    assert_eq!(first.0.load(Ordering::SeqCst) + second.0.load(Ordering::SeqCst), 3);
    drop(read);
    assert_eq!((Arc::strong_count(&first.0), Arc::strong_count(&second.0)), (1, 1));
}

/// Tasks that are polled repeatedly, with changing wakers: each is woken at most once, by its last
/// waker.
#[test]
fn a_task_is_woken_once_by_its_last_waker() {
    let (named, _) = file_of(1 << 20);
    let fs = Fs::builder().inline_max(0).build().unwrap();
    let file = File::open(named.path()).on(&fs).wait().unwrap();
    let round = |round: u64| {
        let mut reads: Vec<_> =
            (0..16).map(|at| file.read_at(vec![0u8; 256], round * 16 + at)).collect();
        let counts: Vec<[Arc<Count>; 2]> = (0..16).map(|_| Default::default()).collect();
        let mut is_done = [false; 16];
        for which in [0, 0, 1] {
            for (at, read) in reads.iter_mut().enumerate() {
                let waker = Waker::from(Arc::clone(&counts[at][which]));
                let mut poll = || Pin::new(&mut *read).poll(&mut Context::from_waker(&waker));
                is_done[at] = is_done[at] || poll().is_ready();
            }
        }
        for (at, read) in reads.iter_mut().enumerate() {
            if is_done[at] {
                continue;
            }
            while counts[at][1].0.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let waker = Waker::from(Arc::clone(&counts[at][1]));
            assert!(Pin::new(read).poll(&mut Context::from_waker(&waker)).is_ready());
        }
        for [old, new] in &counts {
            let woken = old.0.load(Ordering::SeqCst) + new.0.load(Ordering::SeqCst);
            assert!(woken <= 1, "woken {woken} times");
        }
    };
    // Each round runs in a new thread, whose budget suffices for its reads: no read is deferred.
    for number in 0..300 {
        std::thread::scope(|scope| _ = scope.spawn(|| round(number)));
    }
}
