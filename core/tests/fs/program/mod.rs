//! One program is compiled with `tokio::fs` and with `uringlet::fs`, and gets the same results.
//! This module also makes the table in the book's page for users of tokio.

use std::path::Path;

/// The number of rows in `DIFFERENT`.
const EXCEPTIONS: usize = 3;

/// Differences from `tokio::fs`, as rows of the table.
const DIFFERENT: [(&str, &str, &str); EXCEPTIONS] = [
    (
        "`File` as `AsyncRead`, `AsyncWrite`, `AsyncSeek`; `set_max_buf_size`",
        "`Cursor::new(file, capacity)`",
        "a `File` has no position; it is read and written at offsets, by many tasks at once",
    ),
    (
        "`write(path, &bytes).await?`",
        "`write(path, bytes).await.0?`",
        "the buffer is moved in, and comes back in the `BufResult`",
    ),
    (
        "`File::into_std`, `File::try_into_std`",
        "`File::into_std`",
        "it gives the handle back while there are others, or requests; it does not wait",
    ),
];

/// The rest of tokio 1.54's module: names and meanings are the same.
const SAME: [(&str, &[&str]); 6] = [
    (
        "",
        &[
            "canonicalize",
            "copy",
            "create_dir",
            "create_dir_all",
            "hard_link",
            "metadata",
            "read",
            "read_dir",
            "read_link",
            "read_to_string",
            "remove_dir",
            "remove_dir_all",
            "remove_file",
            "rename",
            "set_permissions",
            "symlink",
            "symlink_metadata",
            "try_exists",
        ],
    ),
    ("DirBuilder", &["new", "recursive", "mode", "create"]),
    ("ReadDir", &["next_entry", "poll_next_entry"]),
    ("DirEntry", &["path", "file_name", "metadata", "file_type", "ino"]),
    (
        "OpenOptions",
        &[
            "new",
            "read",
            "write",
            "append",
            "truncate",
            "create",
            "create_new",
            "mode",
            "custom_flags",
            "open",
        ],
    ),
    (
        "File",
        &[
            "open",
            "create",
            "create_new",
            "options",
            "from_std",
            "sync_all",
            "sync_data",
            "set_len",
            "metadata",
            "try_clone",
            "set_permissions",
            "set_times",
            "set_modified",
        ],
    ),
];

/// The table in the book.
fn table() -> String {
    let mut table = "| tokio::fs | here | what differs |\n|---|---|---|\n".to_owned();
    for (of, names) in SAME {
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let of = if of.is_empty() { String::new() } else { format!("`{of}`: ") };
        table += &format!("| {of}{names} | the same | |\n");
    }
    for (theirs, here, difference) in DIFFERENT {
        table += &format!("| {theirs} | {here} | {difference} |\n");
    }
    table
}

#[test]
fn the_book_has_the_table_of_the_program() {
    const BEGIN: &str = "<!-- made by core/tests/fs/program: URINGLET_WRITE_MATRIX=1 -->\n\n";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/coming-from.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has a place for it");
    let (known, after) = rest.split_once("\n\n").expect("something follows the table");
    let table = table();
    if std::env::var_os("URINGLET_WRITE_MATRIX").is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{table}\n{after}")).unwrap();
    } else {
        assert_eq!(format!("{known}\n"), table, "URINGLET_WRITE_MATRIX=1 makes it again");
    }
}

/// The program calls everything that the table lists.
#[test]
fn the_program_uses_every_name_of_the_table() {
    let program = include_str!("program.rs");
    for (of, names) in SAME {
        for name in names {
            let call = if of.is_empty() { format!("fs::{name}(") } else { format!("{name}(") };
            assert!(program.contains(&call), "{of} {name}");
        }
    }
    assert!(program.lines().count() >= 200);
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use std::fs::Permissions;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
    use tokio::fs;

    include!("program.rs");

    async fn write(path: impl AsRef<Path>, bytes: Vec<u8>) -> io::Result<()> {
        fs::write(path, bytes).await
    }

    fn stream(file: fs::File) -> fs::File {
        file
    }

    async fn into_std(file: fs::File) -> io::Result<std::fs::File> {
        Ok(file.into_std().await)
    }
}

#[cfg(feature = "tokio")]
mod with_uringlet {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use uringlet::fs;

    include!("program.rs");

    async fn write(path: impl AsRef<Path>, bytes: Vec<u8>) -> io::Result<()> {
        fs::write(path, bytes).await.0
    }

    fn stream(file: fs::File) -> fs::Cursor {
        fs::Cursor::new(file, 64 << 10)
    }

    async fn into_std(file: fs::File) -> io::Result<std::fs::File> {
        file.into_std().map_err(|_| io::ErrorKind::ResourceBusy.into())
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_program_sees_the_same_with_tokios_files_and_with_these() {
    use crate::executors::Executor;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let expected = runtime.block_on(with_tokio::run(&path)).unwrap();
    assert!(expected.len() > 20, "{expected:?}");
    Executor::each(|executor| {
        let path = path.clone();
        let seen = executor.run(async move { with_uringlet::run(&path).await }).unwrap();
        assert_eq!(seen, expected, "{executor:?}");
    });
}
