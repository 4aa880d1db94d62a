//! Operations on names do the same as those of the standard library.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use uringlet::fs;

use crate::limits::in_time;

/// Makes the directories, files and links through which the paths of the test lead.
fn furnish(folder: &Path) {
    std::fs::create_dir(folder.join("there")).unwrap();
    std::fs::write(folder.join("file"), "").unwrap();
    for (target, name) in [
        ("nothing", "dangling"),
        ("nothing/at/all", "far"),
        ("there", "link"),
        ("file", "to-a-file"),
        ("loop", "loop"),
        ("/proc/no", "proc"),
    ] {
        symlink(target, folder.join(name)).unwrap();
    }
}

#[test]
fn directories_are_made_or_refused_as_by_std_and_every_call_ends() {
    let long = "n".repeat(300);
    let first =
        ["there", "file", "dangling", "far", "link", "to-a-file", "loop", "proc", "new", &long];
    let mut paths = vec!["/proc/no/such".into(), "/proc/self/no/such/at/all".into(), "/".into()];
    for name in first {
        for rest in ["", "/", "/x", "/x/y/z", "/./x", "/../x", "/x/../y", "/file/x"] {
            paths.push(format!("{name}{rest}"));
        }
    }
    for path in paths {
        let twins = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [here, other] = twins.each_ref().map(|folder| {
            furnish(folder.path());
            folder.path().join(&path)
        });
        let made = in_time(&path, fs::create_dir_all(&here));
        let expected = std::fs::create_dir_all(&other);
        let errno = |result: std::io::Result<()>| result.map_err(|error| error.raw_os_error());
        assert_eq!(errno(made), errno(expected), "{path}");
        assert_eq!(here.is_dir(), other.is_dir(), "{path}");
    }
}

#[test]
fn a_copy_has_the_permissions_that_one_by_std_has() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to, expected] = ["from", "to", "expected"].map(|name| folder.path().join(name));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    let set = |path: &Path, mode| {
        std::fs::write(path, "what is there").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    for source in [0o400, 0o600, 0o644, 0o664, 0o755, 0o777, 0o1777, 0o4755, 0o2711] {
        for target in [None, Some(0o600), Some(0o644), Some(0o777)] {
            set(&from, source);
            for path in [&to, &expected] {
                let _ = std::fs::remove_file(path);
                target.into_iter().for_each(|mode| set(path, mode));
            }
            assert_eq!(in_time("copy", fs::copy(&from, &to)).unwrap(), 13);
            std::fs::copy(&from, &expected).unwrap();
            assert_eq!(mode(&to), mode(&expected), "{source:o} over {target:?}");
            std::fs::remove_file(&from).unwrap();
        }
    }
    // A target that is no regular file keeps its own permissions.
    set(&from, 0o640);
    let before = mode(Path::new("/dev/null"));
    in_time("copy", fs::copy(&from, "/dev/null")).unwrap();
    assert_eq!(mode(Path::new("/dev/null")), before);
}
