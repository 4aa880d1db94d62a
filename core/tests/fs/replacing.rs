//! Files that are replaced have the old or the new content. Only a killed writer leaves a temporary
//! file beside them.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use uringlet::fs::{self, BufResult, Fs};

use crate::executors::Executor;

fn names(folder: &Path) -> Vec<String> {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_file_is_replaced_with_its_permissions_and_nothing_is_left_beside_it() {
    Executor::each(|executor| {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("file"));
        executor.run(async move {
            fs::replace(&path, b"new".to_vec()).await.unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
            let buffer = fs::replace(&path, vec![7u8; 1 << 20]).await.unwrap().1;
            assert_eq!(buffer.len(), 1 << 20);
            assert_eq!(std::fs::read(&path).unwrap(), buffer);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o604);
            let folder = path.parent().unwrap();
            for (bad, errno) in [
                (folder.to_owned(), libc::EISDIR),
                (folder.join("none/file"), libc::ENOENT),
                (path.join("file"), libc::ENOTDIR),
                ("/".into(), libc::EINVAL),
                ("..".into(), libc::EINVAL),
                ("a\0b".into(), libc::EINVAL),
            ] {
                let BufResult(result, buffer) = fs::replace(&bad, vec![1]).await;
                assert_eq!(result.unwrap_err().raw_os_error(), Some(errno), "{bad:?}");
                assert_eq!(buffer, [1]);
            }
        });
        assert_eq!(names(folder.path()), ["file"]);
        assert_eq!(std::fs::read(other).unwrap().len(), 1 << 20);
    });
}

#[test]
fn a_replacement_that_is_dropped_or_cancelled_is_there_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 1000]).unwrap();
    let own = Fs::builder().in_flight(2).build().unwrap();
    Executor::each(|executor| {
        let (path, own) = (path.clone(), own.clone());
        executor.run(async move {
            for number in 0..100u8 {
                let replace = || fs::replace(&path, vec![number; 1000]).on(&own);
                match number % 4 {
                    0 => drop(replace()),
                    1 => drop(replace().submit()),
                    2 => {
                        let BufResult(result, buffer) = replace().submit().cancel().await;
                        assert_eq!(buffer, [number; 1000]);
                        if let Err(error) = result {
                            assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                        }
                    }
                    _ => replace().await.0.unwrap(),
                }
                let now = std::fs::read(&path).unwrap();
                assert!(now.len() == 1000 && now.iter().all(|&byte| byte == now[0]));
            }
        });
    });
    while own.in_flight() != (0, 0) {
        std::thread::yield_now();
    }
    assert_eq!(names(folder.path()), ["file"]);
}

#[cfg(feature = "faulty")]
#[test]
fn a_replacement_that_the_engine_refuses_has_not_happened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "old").unwrap();
    let (mut failed, mut made) = (0, 0);
    for seed in 0..50 {
        let faults = uringlet::Faults { eio: 500, ..uringlet::Faults::none(seed) };
        let own = Fs::builder().faulty(faults).build().unwrap();
        let before = std::fs::read(&path).unwrap();
        match fs::replace(&path, vec![seed as u8; 10]).on(&own).wait().0 {
            Ok(()) => made += 1,
            Err(_) => {
                failed += 1;
                assert_eq!(std::fs::read(&path).unwrap(), before);
            }
        }
    }
    assert!(failed > 0 && made > 0, "{failed}, {made}");
    assert_eq!(names(folder.path()), ["file"]);
}

/// A child replaces the file repeatedly, and is killed at any moment. `URINGLET_STORM` of a hundred
/// thousand means a thousand kills; the default is a hundred.
#[test]
fn a_file_has_its_old_or_its_new_content_when_its_writer_is_killed() {
    use std::io::BufRead as _;

    const CHILD: &str = "URINGLET_TEST_LIMITED";
    let name = "replacing::a_file_has_its_old_or_its_new_content_when_its_writer_is_killed";
    if let Some(path) = std::env::var_os(CHILD) {
        println!("\nready");
        for byte in (0..=u8::MAX).cycle() {
            fs::replace(&path, vec![byte; 100_000]).wait().0.unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [9; 100_000]).unwrap();
    let storm = std::env::var("URINGLET_STORM").ok().and_then(|told| told.parse().ok());
    for kill in 0..storm.map_or(100, |storm: usize| storm / 100).min(1000) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
        // These reads delay the kill, so that it comes at another moment each time.
        for _ in 0..kill % 20 {
            let now = std::fs::read(&path).unwrap();
            assert!(now.len() == 100_000 && now.iter().all(|&byte| byte == now[0]), "{kill}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let now = std::fs::read(&path).unwrap();
        assert!(now.len() == 100_000 && now.iter().all(|&byte| byte == now[0]), "{kill}");
    }
    let left = names(folder.path());
    assert!(left.iter().all(|name| name == "file" || name.starts_with(".uringlet-")), "{left:?}");
}
