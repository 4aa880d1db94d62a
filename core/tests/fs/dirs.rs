//! Directories that are opened once.

use std::path::Path;
use std::sync::Arc;

use uringlet::fs::{BufResult, Dir, File, Fs};

use crate::executors::Executor;

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

async fn put(dir: &Dir, name: &str, text: &'static str) {
    let file = dir.create(name).await.unwrap();
    let BufResult(result, _) = file.write_all_at(text.as_bytes().to_vec(), 0).await;
    result.unwrap();
}

#[test]
fn names_are_relative_to_the_directory_that_was_opened_wherever_it_moves() {
    Executor::each(|executor| {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        std::fs::create_dir(&before).unwrap();
        executor.run(async move {
            let dir = Dir::open(&before).await.unwrap();
            put(&dir, "one", "first").await;
            // Another directory has the name from here on.
            std::fs::rename(&before, &after).unwrap();
            std::fs::create_dir(&before).unwrap();
            put(&dir, "two", "second").await;
            dir.create_dir("below").await.unwrap();
            let below = dir.open_dir("below").await.unwrap();
            dir.rename("two", &below, "three").await.unwrap();
            dir.hard_link("one", &below, "again").await.unwrap();
            below.symlink("../one", "link").await.unwrap();
            assert_eq!(below.read_link("link").await.unwrap(), Path::new("../one"));
            dir.sync_all().await.unwrap();

            let read = |name: &str| std::fs::read_to_string(after.join(name)).unwrap();
            assert_eq!([read("one"), read("below/three")], ["first", "second"]);
            assert_eq!(read("below/again"), read("below/link"));
            let file = below.open_file("link").await.unwrap();
            let BufResult(result, buffer) = file.read_at(Vec::with_capacity(9), 0).await;
            assert_eq!((result.unwrap(), &buffer[..]), (5, &b"first"[..]));
            let (one, link) =
                (dir.metadata("below/link").await, below.symlink_metadata("link").await);
            assert_eq!((one.unwrap().len(), link.unwrap().is_symlink()), (5, true));
            assert!(dir.dir_metadata().await.unwrap().is_dir());

            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600);
            assert_eq!(errno(dir.open_file_with("one", &options).await), Some(libc::EEXIST));
            dir.open_file_with("four", &options).await.unwrap();
            let mut names = Vec::new();
            for path in [".", "below"] {
                let mut entries = dir.read_dir(path).await.unwrap();
                while let Some(entry) = entries.next_entry().await.unwrap() {
                    assert_eq!(entry.path(), Path::new(path).join(entry.file_name()));
                    assert_eq!(entry.metadata().await.unwrap().ino(), entry.ino());
                    names.push(entry.file_name().into_string().unwrap());
                }
            }
            names.sort();
            assert_eq!(names, ["again", "below", "four", "link", "one", "three"]);
            for name in ["again", "link", "three"] {
                below.remove_file(name).await.unwrap();
            }
            dir.remove_dir("below").await.unwrap();
            // The directory exists as long as it is open, and is empty.
            assert_eq!(errno(below.create("x").await), Some(libc::ENOENT));
            assert_eq!(std::fs::read_dir(&before).unwrap().count(), 0);
            assert_eq!(std::fs::read_dir(&after).unwrap().count(), 2);
        });
    });
}

#[test]
fn whole_files_are_relative_to_the_directory_wherever_it_moves() {
    Executor::each(|executor| {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        std::fs::create_dir_all(before.join("below")).unwrap();
        executor.run(async move {
            let dir = Dir::open(&before).await.unwrap();
            std::fs::rename(&before, &after).unwrap();
            std::fs::create_dir(&before).unwrap();
            for length in [0, 10, 300_000] {
                let path = format!("below/{length}");
                let data = vec![7u8; length];
                assert_eq!(dir.write(&path, data.clone()).await.unwrap().1, data);
                assert_eq!(dir.read(&path).await.unwrap(), data);
                assert_eq!(dir.replace(&path, "word").await.unwrap().1, "word");
                assert_eq!(dir.read_to_string(&path).await.unwrap(), "word");
                assert!(dir.try_exists(&path).await.unwrap());
                dir.remove_file(&path).await.unwrap();
                assert!(!dir.try_exists(&path).await.unwrap());
            }
            dir.replace("file", "one").await.0.unwrap();
            assert_eq!(std::fs::read_to_string(after.join("file")).unwrap(), "one");
            let nul = "a\0b";
            let refused = [
                (errno(dir.read("none").await), libc::ENOENT),
                (errno(dir.read(nul).await), libc::EINVAL),
                (errno(dir.write("file/x", "").await.0), libc::ENOTDIR),
                (errno(dir.replace("below", "").await.0), libc::EISDIR),
                (errno(dir.replace("none/x", "").await.0), libc::ENOENT),
                (errno(dir.replace("..", "").await.0), libc::EINVAL),
                (errno(dir.replace(nul, "").await.0), libc::EINVAL),
                (errno(dir.try_exists("file/x").await), libc::ENOTDIR),
                (errno(dir.try_exists(nul).await), libc::EINVAL),
            ];
            for (at, (found, expected)) in refused.into_iter().enumerate() {
                assert_eq!(found, Some(expected), "{at}");
            }
            // No file is left beside the new one.
            let names = std::fs::read_dir(&after).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            assert_eq!(names, ["below", "file"]);
            assert_eq!(std::fs::read_dir(&before).unwrap().count(), 0);
        });
    });
}

#[test]
fn a_directory_refuses_as_the_system_calls_do() {
    Executor::each(|executor| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        executor.run(async move {
            std::fs::write(path.join("file"), "").unwrap();
            assert_eq!(errno(Dir::open(path.join("none")).await), Some(libc::ENOENT));
            assert_eq!(errno(Dir::open(path.join("file")).await), Some(libc::ENOTDIR));
            let dir = Dir::open(&path).await.unwrap();
            let nul = "a\0b";
            let refused = [
                (errno(Dir::open(nul).await), libc::EINVAL),
                (errno(dir.open_dir("file").await), libc::ENOTDIR),
                (errno(dir.open_dir(nul).await), libc::EINVAL),
                (errno(dir.open_file("none").await), libc::ENOENT),
                (errno(dir.open_file(nul).await), libc::EINVAL),
                (errno(dir.open_file_with("file", &File::options()).await), libc::EINVAL),
                (errno(dir.create_dir("file").await), libc::EEXIST),
                (errno(dir.create_dir(nul).await), libc::EINVAL),
                (errno(dir.metadata("none").await), libc::ENOENT),
                (errno(dir.metadata("").await), libc::ENOENT),
                (errno(dir.metadata(nul).await), libc::EINVAL),
                (errno(dir.rename("none", &dir, "x").await), libc::ENOENT),
                (errno(dir.rename("file", &dir, nul).await), libc::EINVAL),
                (errno(dir.remove_file("none").await), libc::ENOENT),
                (errno(dir.remove_dir("file").await), libc::ENOTDIR),
                (errno(dir.hard_link("file", &dir, "file").await), libc::EEXIST),
                (errno(dir.symlink("x", "file").await), libc::EEXIST),
                (errno(dir.read_link("file").await), libc::EINVAL),
                (errno(dir.read_dir("file").await), libc::ENOTDIR),
            ];
            for (at, (found, expected)) in refused.into_iter().enumerate() {
                assert_eq!(found, Some(expected), "{at}");
            }
            // This descriptor is not that of a directory.
            let file =
                Dir::from(std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
            assert_eq!(errno(file.create("x").await), Some(libc::ENOTDIR));
        });
    });
}

/// A file that is opened in a directory has the engine to which its operation was sent.
#[test]
fn what_a_directory_opens_has_the_engine_of_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    let own = Fs::builder().build().unwrap();
    let opened = std::fs::File::open(folder.path()).unwrap();
    let dir = Dir::from(std::os::fd::OwnedFd::from(opened));
    let below = dir.open_dir("below").on(&own).wait().unwrap();
    let file = dir.create("file").on(&own).wait().unwrap();
    let again = below.open_dir(".").wait().unwrap();
    own.shutdown(std::time::Duration::from_secs(60)).wait().unwrap();
    let late = Some(libc::ESHUTDOWN);
    assert_eq!(errno(below.open_dir(".").wait()), late);
    assert_eq!(errno(again.metadata(".").wait()), late);
    assert_eq!(errno(below.read("x").wait()), late);
    assert_eq!(errno(below.replace("x", "").wait().0), late);
    assert_eq!(errno(file.metadata().wait()), late);
    // `dir` itself has no `Fs`, so this operation uses the `Fs` of the process.
    dir.open_dir("below").wait().unwrap();
}

/// The directory's descriptor stays open until the operations that use it have ended.
#[test]
fn operations_of_a_directory_that_is_dropped_are_dropped_cancelled_or_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let own = Fs::builder().in_flight(2).build().unwrap();
    Executor::each(|executor| {
        let (path, own) = (folder.path().to_owned(), own.clone());
        executor.run(async move {
            let file = Arc::new(File::open("/proc/self/exe").await.unwrap());
            for number in 0..200 {
                let dir = Dir::open(&path).on(&own).await.unwrap();
                let name = number.to_string();
                let make = dir.create(&name).submit();
                let look = dir.metadata(&name).submit();
                let listing = dir.read_dir(".").submit();
                let remove = dir.remove_file(&name).submit();
                drop(dir);
                match number % 3 {
                    0 => drop((make, look, listing, remove)),
                    1 => {
                        for found in [
                            errno(make.cancel().await),
                            errno(look.cancel().await),
                            errno(listing.cancel().await),
                            errno(remove.cancel().await),
                        ] {
                            let found = found.unwrap_or(libc::ECANCELED);
                            assert!([libc::ECANCELED, libc::ENOENT].contains(&found), "{found}");
                        }
                    }
                    _ => {
                        make.await.unwrap();
                        let _ = (look.await, remove.await);
                        listing.await.unwrap();
                    }
                }
                assert!(file.metadata().await.unwrap().len() > 0);
            }
        });
    });
    while own.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
}

#[test]
fn in_a_child_of_a_fork_a_directory_of_the_parent_refuses_and_its_own_works() {
    use crate::fork::in_child;

    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).wait().unwrap();
    let status = in_child(|| {
        let refused = [
            errno(dir.create("x").wait()),
            errno(dir.open_dir(".").wait()),
            errno(dir.metadata(".").wait()),
            errno(dir.rename("x", &dir, "y").wait()),
            errno(dir.read_dir(".").wait()),
        ];
        if let Some(at) = refused.iter().position(|errno| *errno != Some(libc::EINVAL)) {
            return Some(1 + at as i32);
        }
        let own = Dir::open(folder.path()).wait().ok()?;
        let is_made = own.create("child").wait().is_ok() && own.metadata("child").wait().is_ok();
        (!is_made).then_some(100)
    });
    assert_eq!(status, 0, "the step that failed");
    assert!(dir.metadata("child").wait().unwrap().is_file());
}
