//! Every future of the module lets other tasks run now and then, even if it is always ready. Each
//! thread has a budget of results, after which a future is pending once.
//!
//! The test finds the futures in the sources. A new future without a budget, or without a loop
//! here, fails the test.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use uringlet::fs::{self, Coalesce, Fs, Op, Operation, Pool};

use crate::limits::hot;

/// The sources of the module, by the names of their files.
fn sources() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fs");
    let files = folder.read_dir().unwrap().map(|file| file.unwrap());
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(file.path()).unwrap())
        })
        .collect()
}

/// The names that follow each `mark` in a text.
fn names_behind<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(mark).map(move |(at, _)| {
        let rest = &text[at + mark.len()..];
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
    })
}

struct Woken {
    task: Thread,
    /// The number of wake-ups by the polling thread.
    here: AtomicUsize,
    any: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if thread::current().id() == self.task.id() {
            self.here.fetch_add(1, Ordering::Relaxed);
        }
        self.any.store(true, Ordering::Release);
        self.task.unpark();
    }
}

/// Calls `poll` until it returns pending and has woken its task on this thread. Then the future has
/// let others run. False: `poll` has returned ready a thousand times before.
fn lets_others_run<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> bool {
    let (here, any) = (AtomicUsize::new(0), AtomicBool::new(false));
    let woken = Arc::new(Woken { task: thread::current(), here, any });
    let waker = Waker::from(Arc::clone(&woken));
    let mut ready = 0;
    while ready < 1000 {
        let before = woken.here.load(Ordering::Relaxed);
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(_) => ready += 1,
            Poll::Pending if woken.here.load(Ordering::Relaxed) > before => return true,
            // The result comes from another thread, which wakes the task.
            Poll::Pending => {
                while !woken.any.swap(false, Ordering::Acquire) {
                    thread::park();
                }
            }
        }
    }
    false
}

fn check<F: Future + Unpin>(what: &str, mut make: impl FnMut() -> F) {
    let mut future = make();
    let lets = lets_others_run(|context| {
        let poll = Pin::new(&mut future).poll(context);
        if poll.is_ready() {
            future = make();
        }
        poll
    });
    assert!(lets, "a loop over {what} never lets others run");
}

/// Checks an operation as it is, one that was begun before it is awaited, and a cancelled one.
fn check_op<O: Operation>(what: &str, mut make: impl FnMut() -> Op<O>) {
    check(what, &mut make);
    check(&format!("{what}, submitted"), || make().submit());
    check(&format!("{what}, cancelled"), || make().cancel());
}

#[test]
fn every_future_that_is_ready_at_once_lets_others_run() {
    let name = "every_future_that_is_ready_at_once_lets_others_run";
    let sources = sources();
    for (file, text) in &sources {
        let is_made_here = file == "budget.rs" || file == "tests.rs";
        assert!(is_made_here || !text.contains("Future for"), "{file}: a future beside `awaited!`");
    }
    let futures: BTreeSet<&str> =
        sources.iter().flat_map(|(_, text)| names_behind(text, "\nawaited!(")).collect();
    assert!(futures.contains("Op"), "{futures:?}");
    let Some((named, file)) = hot(name) else { return };
    let pool = Pool::new(16, 1, 1).unwrap();
    for future in futures {
        match future {
            "Op" => {
                check_op("reads", || file.read_at([0u8; 16], 0));
                check_op("whole reads", || file.read_exact_at([0u8; 16], 0));
                check_op("metadata of a name with a NUL", || fs::metadata("a\0b"));
                check_op("closing a file of several handles", || file.clone().close());
            }
            "Timeout" => {
                let minute = Duration::from_secs(60);
                check("reads in time", || file.read_at([0u8; 16], 0).timeout(minute));
                check("submitted", || file.read_at([0u8; 16], 0).timeout(minute).submit());
                check("too late", || fs::metadata(named.path()).timeout(Duration::ZERO));
                check("deadlines", || fs::metadata(named.path()).deadline(Instant::now()));
            }
            "ReadRanges" => {
                check("ranges", || file.read_ranges(&[0..16, 9000..9001], Coalesce::default()));
                let apart = Coalesce { gap: 0, max: 0 };
                let mut chunks = file.read_ranges(&vec![0..16; 100], apart).each();
                let lets = lets_others_run(|context| chunks.poll_next(context));
                assert!(lets, "a loop over chunks never lets others run");
                check("no ranges", || file.read_ranges(&[], Coalesce::default()));
                let bad = std::ops::Range { start: 1, end: 0 };
                check("bad ranges", || {
                    file.read_ranges(std::slice::from_ref(&bad), Coalesce::default())
                });
            }
            "Take" => check("buffers of a pool", || pool.take()),
            "Drain" | "Over" => {
                let fs = Fs::builder().build().unwrap();
                check("drains", || fs.drain());
                check("drains of a file", || file.drain(Duration::ZERO));
                check("shutdowns", || fs.shutdown(Duration::ZERO));
            }
            other => panic!("{other}: there is no loop over this future here"),
        }
    }
}

/// Directory entries that were read already are not futures of their own, but count in the budget.
#[test]
fn a_loop_over_the_entries_of_a_directory_lets_others_run() {
    let folder = tempfile::tempdir().unwrap();
    (0..500).for_each(|at| std::fs::write(folder.path().join(at.to_string()), "").unwrap());
    let mut entries = fs::read_dir(folder.path()).wait().unwrap();
    assert!(lets_others_run(|context| entries.poll_next_entry(context)), "never lets others run");
    let with = fs::read_dir_with_metadata(folder.path()).wait().unwrap();
    let entry = pollster::block_on({
        let mut with = with;
        async move { with.next_entry().await.unwrap().unwrap() }
    });
    check_op("metadata that is known", || entry.metadata());
}

/// Finished results of a batch are not futures of their own either, and count in the budget.
#[test]
fn a_loop_over_the_results_of_a_batch_lets_others_run() {
    let mut batch = fs::metadata_many(vec!["/"; 10_000]);
    let mut at_once = 0;
    loop {
        match batch.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(_)) => at_once += 1,
            Poll::Ready(None) => break,
            Poll::Pending => at_once = 0,
        }
        // The first result after a wait does not count in the budget: other tasks have run before.
        assert!(at_once <= 1 + 128, "never lets others run");
    }
}

/// Calls of a `Cursor` are not futures of their own: each `poll_…` of its traits counts in the
/// budget.
#[cfg(all(feature = "tokio", feature = "futures-io"))]
#[test]
fn every_call_of_a_cursor_lets_others_run() {
    use std::io::SeekFrom;
    use uringlet::fs::Cursor;

    let name = "every_call_of_a_cursor_lets_others_run";
    let sources = sources();
    let (_, text) = sources.iter().find(|(file, _)| file == "cursor.rs").unwrap();
    let traits = text.find("macro_rules!").unwrap();
    // The name of the closing function is a parameter of the macro.
    let calls: BTreeSet<&str> =
        names_behind(&text[traits..], "fn ").filter(|name| name.starts_with("poll_")).collect();
    let calls = calls.into_iter().chain(["poll_shutdown", "poll_close"]);
    let Some((_named, file)) = hot(name) else { return };
    let mut cursor = Cursor::new(file, 4096);
    for call in calls {
        let looped = lets_others_run(|context| {
            use futures::io as other;
            use tokio::io as stream;
            let mut cursor = Pin::new(&mut cursor);
            if cursor.position() > 32_768 {
                cursor.set_position(0);
            }
            let mut bytes = [0u8; 16];
            match call {
                "poll_fill_buf" => {
                    let ready = stream::AsyncBufRead::poll_fill_buf(cursor.as_mut(), context);
                    let poll = ready.map(|bytes| bytes.unwrap().len());
                    stream::AsyncBufRead::consume(cursor, usize::from(poll.is_ready()));
                    poll.map(drop)
                }
                "poll_read" => {
                    let mut into = stream::ReadBuf::new(&mut bytes);
                    let poll =
                        stream::AsyncRead::poll_read(cursor.as_mut(), context, &mut into).map(drop);
                    match poll {
                        Poll::Ready(()) => {
                            other::AsyncRead::poll_read(cursor, context, &mut bytes).map(drop)
                        }
                        Poll::Pending => poll,
                    }
                }
                "poll_write" => stream::AsyncWrite::poll_write(cursor, context, &[]).map(drop),
                "poll_flush" => stream::AsyncWrite::poll_flush(cursor, context).map(drop),
                "poll_shutdown" => stream::AsyncWrite::poll_shutdown(cursor, context).map(drop),
                "poll_close" => other::AsyncWrite::poll_close(cursor, context).map(drop),
                "poll_seek" => {
                    other::AsyncSeek::poll_seek(cursor, context, SeekFrom::Start(5)).map(drop)
                }
                "poll_complete" => stream::AsyncSeek::poll_complete(cursor, context).map(drop),
                other => panic!("{other}: there is no loop over this call here"),
            }
        });
        assert!(looped, "a loop over {call} never lets others run");
    }
}
