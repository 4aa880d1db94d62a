//! Local files as an `object_store`, read and written by uringlet.
//!
//! [`Store`] wraps object_store's own `LocalFileSystem`. Calls that move data go through uringlet:
//! `get`, `get_ranges`, `head`, and `put`. Calls that only change names (lists, copies, renames,
//! deletes) and uploads in parts stay with `LocalFileSystem`, so both see the same objects.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use uringlet::fs::{self, BufResult, Coalesce, File, Metadata};

/// A stream is read in parts of this length: uringlet copies at most as much in a first poll.
const PART: usize = 64 << 10;

/// Ranges with at most `gap` bytes between them are read as one, of at most `max` bytes.
const COALESCE: Coalesce = Coalesce { gap: 64 << 10, max: 4 << 20 };

/// Objects that are files below a directory.
#[derive(Debug)]
pub struct Store {
    local: LocalFileSystem,
    /// The number of temporary files made so far: a part of the name of the next one.
    staged: AtomicU64,
}

impl Store {
    /// A store below this directory.
    ///
    /// # Errors
    /// As `LocalFileSystem::new_with_prefix`.
    pub fn new(directory: impl AsRef<std::path::Path>) -> Result<Self> {
        let local = LocalFileSystem::new_with_prefix(directory)?;
        Ok(Self { local, staged: AtomicU64::new(0) })
    }

    /// The file of an object, and its metadata.
    async fn open(&self, location: &Path) -> Result<(File, ObjectMeta)> {
        let path = self.local.path_to_filesystem(location)?;
        let failed = |error| failed(error, location);
        let file = File::open(path).await.map_err(failed)?;
        let metadata = file.metadata().await.map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::NotFound)));
        }
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: metadata.modified().map_err(failed)?.into(),
            size: metadata.len(),
            e_tag: Some(e_tag(&metadata)),
            version: None,
        };
        Ok((file, meta))
    }

    /// Writes a file beside the final one, and renames it.
    async fn write(&self, path: PathBuf, payload: PutPayload) -> io::Result<Metadata> {
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        let mut staged = path.clone().into_os_string();
        // `LocalFileSystem` leaves names that end in `#` and digits out of its lists.
        staged.push(format!("#{}{number}", std::process::id()));
        let staged = PathBuf::from(staged);
        let mut options = File::options();
        options.write(true).create_new(true);
        let file = match options.open(&staged).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&path)).await?;
                options.open(&staged).await?
            }
            other => other?,
        };
        let written = async {
            let mut offset = 0;
            for part in payload {
                let length = part.len() as u64;
                let BufResult(result, _) = file.write_all_at(part, offset).await;
                result?;
                offset += length;
            }
            let metadata = file.metadata().await?;
            fs::rename(&staged, &path).await?;
            Ok(metadata)
        };
        let written = written.await;
        if written.is_err() {
            let _ = fs::remove_file(&staged).await;
        }
        written
    }
}

/// As in `LocalFileSystem`, so that both give the same tag for an object.
fn e_tag(metadata: &Metadata) -> String {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}-{:x}", metadata.ino(), since.as_micros(), metadata.len())
}

fn failed(error: io::Error, location: &Path) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::NotFound { path: location.to_string(), source: Box::new(error) }
        }
        _ => Error::Generic { store: "uringlet", source: Box::new(error) },
    }
}

/// The part of a range that exists.
fn clamped(range: &GetRange, size: u64) -> Result<Range<u64>> {
    let invalid = |error| Error::Generic { store: "uringlet", source: Box::new(error) };
    range.as_range(size).map_err(invalid)
}

/// A range of a file, part by part.
fn parts(file: File, location: Path, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    let begin = (file, location, range);
    let next = |(file, location, left): (File, Path, Range<u64>)| async move {
        if left.is_empty() {
            return Ok(None);
        }
        let length = usize::try_from(left.end - left.start).map_or(PART, |left| left.min(PART));
        let buffer = BytesMut::zeroed(length);
        let BufResult(result, buffer) = file.read_exact_at(buffer, left.start).await;
        result.map_err(|error| failed(error, &location))?;
        let rest = left.start + length as u64..left.end;
        Ok(Some((buffer.freeze(), (file, location, rest))))
    };
    stream::try_unfold(begin, next).boxed()
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uringlet, {}", self.local)
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if options.mode != PutMode::Overwrite || !options.attributes.is_empty() {
            // `LocalFileSystem` does `Create`, and refuses `Update` and attributes.
            return self.local.put_opts(location, payload, options).await;
        }
        let path = self.local.path_to_filesystem(location)?;
        let written = self.write(path, payload).await;
        let metadata = written.map_err(|error| failed(error, location))?;
        Ok(PutResult { e_tag: Some(e_tag(&metadata)), version: None })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.local.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (file, meta) = self.open(location).await?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => clamped(range, meta.size)?,
            None => 0..meta.size,
        };
        let asked = if options.head { 0..0 } else { range.clone() };
        let payload = GetResultPayload::Stream(parts(file, location.clone(), asked));
        Ok(GetResult { payload, meta, range, attributes: Attributes::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (file, meta) = self.open(location).await?;
        let ranges = ranges.iter().map(|range| clamped(&range.clone().into(), meta.size));
        let ranges: Vec<_> = ranges.collect::<Result<_>>()?;
        let chunks = file.read_ranges(&ranges, COALESCE).await;
        let chunks = chunks.map_err(|error| failed(error, location))?;
        // A chunk keeps in memory the buffer that it shares with other chunks.
        Ok(chunks.into_iter().map(Bytes::from_owner).collect())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.local.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.local.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.local.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.local.rename_opts(from, to, options).await
    }
}
