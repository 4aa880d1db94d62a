// A program that uses all of tokio::fs. It is compiled twice: with `use tokio::fs` and with `use
// uringlet::fs` before it. Both modules that include it define `write`, `stream` and `into_std`, in
// which the libraries differ.

use std::collections::BTreeMap;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

/// The program's findings: the same with both libraries.
type Seen = BTreeMap<&'static str, String>;

pub(super) async fn run(folder: &Path) -> io::Result<Seen> {
    let mut seen = Seen::new();
    directories(folder, &mut seen).await?;
    whole_files(folder, &mut seen).await?;
    links(folder, &mut seen).await?;
    attributes(folder, &mut seen).await?;
    opened(folder, &mut seen).await?;
    streams(folder, &mut seen).await?;
    entries(folder, &mut seen).await?;
    failures(folder, &mut seen).await;
    removed(folder, &mut seen).await?;
    Ok(seen)
}

async fn directories(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    fs::create_dir(folder.join("one")).await?;
    fs::create_dir_all(folder.join("two/three/four")).await?;
    fs::create_dir_all(folder.join("two/three")).await?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(folder.join("five/six")).await?;
    fs::DirBuilder::new().create(folder.join("seven")).await?;
    let metadata = fs::metadata(folder.join("five/six")).await?;
    seen.insert("mode of a directory", format!("{:o}", metadata.permissions().mode()));
    let found = [metadata.is_dir(), metadata.is_file(), metadata.is_symlink()];
    seen.insert("a directory", format!("{found:?}"));
    Ok(())
}

async fn whole_files(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let (small, large) = (folder.join("one/small"), folder.join("one/large"));
    write(&small, b"a small file\nof two lines\n".to_vec()).await?;
    write(&large, vec![7; 1 << 20]).await?;
    write(folder.join("one/empty"), Vec::new()).await?;
    seen.insert("read", String::from_utf8_lossy(&fs::read(&small).await?).into_owned());
    seen.insert("read a large one", fs::read(&large).await?.len().to_string());
    seen.insert("read an empty one", fs::read(folder.join("one/empty")).await?.len().to_string());
    seen.insert("read_to_string", fs::read_to_string(&small).await?);
    seen.insert("of no length", fs::read_to_string("/proc/self/comm").await?.len().to_string());
    seen.insert("copy", fs::copy(&large, folder.join("one/copy")).await?.to_string());
    fs::rename(folder.join("one/copy"), folder.join("seven/copy")).await?;
    let is_there = fs::try_exists(folder.join("one/copy")).await?;
    seen.insert("renamed", format!("{is_there} {}", fs::try_exists(&large).await?));
    Ok(())
}

async fn links(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let (hard, soft) = (folder.join("seven/hard"), folder.join("seven/soft"));
    fs::hard_link(folder.join("one/small"), &hard).await?;
    fs::symlink("hard", &soft).await?;
    seen.insert("read_link", fs::read_link(&soft).await?.display().to_string());
    let real = fs::canonicalize(folder.join("seven/../seven/soft")).await?;
    let root = fs::canonicalize(folder).await?;
    seen.insert("canonicalize", real.strip_prefix(&root).unwrap().display().to_string());
    let (link, file) = (fs::symlink_metadata(&soft).await?, fs::metadata(&soft).await?);
    seen.insert("names", file.nlink().to_string());
    let types = [link.file_type(), file.file_type()];
    let types = types.map(|found| (found.is_symlink(), found.is_file(), found.is_fifo()));
    seen.insert("types", format!("{types:?} {} {}", link.is_symlink(), file.len()));
    let is_same = file.ino() == fs::metadata(&hard).await?.ino();
    seen.insert("the same file", is_same.to_string());
    Ok(())
}

async fn attributes(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let path = folder.join("one/small");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).await?;
    let metadata = fs::metadata(&path).await?;
    seen.insert("set_permissions", format!("{:o}", metadata.permissions().mode()));
    let read_only = metadata.permissions().readonly();
    let is_recent = metadata.modified()? > SystemTime::UNIX_EPOCH;
    let order = metadata.accessed().is_ok() && metadata.blksize() > 0 && metadata.blocks() > 0;
    // Not every C library supports this call.
    let _ = metadata.created();
    seen.insert("attributes", format!("{read_only} {is_recent} {order}"));
    Ok(())
}

async fn opened(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let path = folder.join("one/opened");
    let file = fs::File::create(&path).await?;
    file.set_len(1000).await?;
    file.set_permissions(Permissions::from_mode(0o600)).await?;
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_times(fs::FileTimes::new().set_accessed(then).set_modified(then)).await?;
    file.sync_all().await?;
    file.sync_data().await?;
    let other = file.try_clone().await?;
    drop(file);
    let metadata = other.metadata().await?;
    let is_then = metadata.modified()? == then && metadata.accessed()? == then;
    seen.insert("opened", format!("{:o} {} {is_then}", metadata.mode(), metadata.len()));
    other.set_modified(then + Duration::from_secs(1)).await?;
    let std = into_std(other).await?;
    let is_later = std.metadata()?.modified()? > then;
    seen.insert("set_modified", is_later.to_string());
    let back = fs::File::from_std(std);
    seen.insert("from_std", back.metadata().await?.len().to_string());
    let again = fs::File::create_new(&path).await.err().map(|error| error.kind());
    seen.insert("create_new", format!("{again:?}"));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o604).custom_flags(libc::O_NOFOLLOW);
    options.open(folder.join("one/options")).await?;
    let mode = fs::metadata(folder.join("one/options")).await?.mode();
    seen.insert("options", format!("{mode:o}"));
    let nothing = fs::OpenOptions::new().open(&path).await.err().map(|error| error.kind());
    seen.insert("opened for nothing", format!("{nothing:?}"));
    Ok(())
}

async fn streams(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let path = folder.join("one/stream");
    let options = fs::File::options().read(true).write(true).create(true).truncate(true).clone();
    let mut file = stream(options.open(&path).await?);
    file.write_all(b"one\ntwo\nthree\n").await?;
    file.flush().await?;
    file.seek(SeekFrom::Start(4)).await?;
    let mut rest = String::new();
    file.read_to_string(&mut rest).await?;
    seen.insert("from a position on", rest);
    file.seek(SeekFrom::End(-6)).await?;
    let mut end = [0; 5];
    file.read_exact(&mut end).await?;
    seen.insert("from the end", String::from_utf8_lossy(&end).into_owned());
    let mut appended = stream(fs::OpenOptions::new().append(true).open(&path).await?);
    appended.write_all(b"four\n").await?;
    appended.flush().await?;
    let mut lines = tokio::io::BufReader::new(stream(fs::File::open(&path).await?)).lines();
    let mut count = 0;
    while lines.next_line().await?.is_some() {
        count += 1;
    }
    seen.insert("lines", count.to_string());
    Ok(())
}

async fn entries(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    let mut names = Vec::new();
    let mut found = fs::read_dir(folder.join("seven")).await?;
    while let Some(entry) = found.next_entry().await? {
        let metadata = entry.metadata().await?;
        let kind = entry.file_type().await?;
        assert_eq!(entry.path(), folder.join("seven").join(entry.file_name()));
        assert!(entry.ino() == metadata.ino() && kind.is_symlink() == metadata.is_symlink());
        names.push((entry.file_name(), metadata.len(), kind.is_file()));
    }
    names.sort();
    seen.insert("entries", format!("{names:?}"));
    let mut empty = fs::read_dir(folder.join("two/three/four")).await?;
    let none = std::future::poll_fn(|context| empty.poll_next_entry(context)).await?;
    seen.insert("no entries", none.is_none().to_string());
    Ok(())
}

async fn failures(folder: &Path, seen: &mut Seen) {
    fn errno<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }
    let (none, file) = (folder.join("none/at/all"), folder.join("one/small"));
    let errors = [
        errno(fs::read(&none).await),
        errno(fs::read_to_string(folder).await),
        errno(fs::File::open(&none).await),
        errno(fs::read_dir(&file).await),
        errno(fs::create_dir(folder).await),
        errno(fs::create_dir(&none).await),
        errno(fs::remove_dir(folder).await),
        errno(fs::remove_file(&none).await),
        errno(fs::remove_dir_all(&none).await),
        errno(fs::rename(&none, folder).await),
        errno(fs::read_link(&file).await),
        errno(fs::canonicalize(&none).await),
        errno(fs::hard_link(&none, &file).await),
        errno(fs::symlink("x", &file).await),
        errno(fs::metadata(&none).await),
        errno(fs::symlink_metadata(&none).await),
        errno(fs::set_permissions(&none, Permissions::from_mode(0o0)).await),
        errno(fs::copy(&none, &file).await),
        errno(write(none, vec![1]).await),
    ];
    seen.insert("errors", format!("{errors:?}"));
    let bytes = folder.join("one/bytes");
    write(&bytes, vec![0xff; 3]).await.unwrap();
    let kind = fs::read_to_string(&bytes).await.err().map(|error| error.kind());
    seen.insert("no text", format!("{kind:?}"));
}

async fn removed(folder: &Path, seen: &mut Seen) -> io::Result<()> {
    fs::remove_file(folder.join("seven/soft")).await?;
    fs::remove_dir(folder.join("two/three/four")).await?;
    for name in ["one", "two", "five", "seven"] {
        fs::remove_dir_all(folder.join(name)).await?;
    }
    let mut rest = fs::read_dir(folder).await?;
    seen.insert("left", rest.next_entry().await?.is_some().to_string());
    Ok(())
}
