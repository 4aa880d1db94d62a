//! What a cell of the table (`main.rs`) reads: a file, and its blocks. Also the check that these
//! blocks are in the page cache, or are not.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub const BLOCK: usize = 4096;

/// The state of the blocks before they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// In the page cache.
    Cached,
    /// The block is not in the page cache, and is read through it.
    Cold,
    /// Read past the page cache.
    Direct,
    /// Nine of ten in the page cache.
    Mixed,
}

/// A generator of numbers (xorshift64*): the same blocks in every row.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % end
    }
}

/// Makes a file of this many bytes, unless there is one of at least this size.
pub fn make_file(path: &Path, bytes: u64) -> Result<()> {
    if path.metadata().is_ok_and(|metadata| metadata.len() >= bytes) {
        return Ok(());
    }
    let mut file = File::create(path)?;
    let mut numbers = Numbers::new(7);
    let mut part = vec![0u8; 1 << 20];
    for _ in 0..bytes.div_ceil(1 << 20) {
        part.chunks_exact_mut(8).for_each(|word| {
            word.copy_from_slice(&numbers.below(u64::MAX).to_ne_bytes());
        });
        file.write_all(&part)?;
    }
    file.sync_all()?;
    Ok(())
}

/// The offsets to be read by each task.
pub struct Plan {
    pub column: Column,
    pub depth: usize,
    pub tasks: Vec<Arc<[u64]>>,
    pub path: std::path::PathBuf,
    /// The number of reads in a thousand that find their block in memory.
    hits_permille: u64,
}

impl Plan {
    /// Chooses blocks, and brings them into memory, or out of it.
    pub fn prepare(path: &Path, column: Column, depth: usize, reads: usize) -> Result<Self> {
        let file = File::open(path)?;
        let blocks = file.metadata()?.len() / BLOCK as u64;
        let mut numbers = Numbers::new(column as u64 + 1);
        let hot = (blocks / 8).min(16 << 10);
        let hits_permille = match column {
            Column::Cached => 1000,
            Column::Mixed => 900,
            Column::Cold | Column::Direct => 0,
        };
        let misses = reads as u64 * (1000 - hits_permille) / 1000 + 1;
        ensure!(
            hits_permille == 1000 || misses < (blocks - hot) / 2,
            "{misses} cold reads need a larger file"
        );
        // Each cold block is read once, in random order, so that the kernel does not read ahead.
        let mut cold = std::collections::HashSet::new();
        let mut offsets = Vec::with_capacity(reads);
        for _ in 0..reads {
            if numbers.below(1000) < hits_permille {
                offsets.push(numbers.below(hot) * BLOCK as u64);
                continue;
            }
            let block = loop {
                let block = hot + numbers.below(blocks - hot);
                if cold.insert(block) {
                    break block;
                }
            };
            offsets.push(block * BLOCK as u64);
        }
        // All pages are dropped, and then the hot ones are read.
        advise(&file, libc::POSIX_FADV_DONTNEED);
        advise(&file, libc::POSIX_FADV_RANDOM);
        if hits_permille > 0 {
            let mut part = vec![0u8; 1 << 20];
            for at in (0..hot * BLOCK as u64).step_by(part.len()) {
                let left = (hot * BLOCK as u64 - at).min(part.len() as u64) as usize;
                file.read_exact_at(&mut part[..left], at)?;
            }
        }
        let resident = Resident::look(&file)?;
        for &block in &cold {
            ensure!(!resident.has(block), "block {block} is in memory: another program reads it?");
        }
        for block in (0..hot).filter(|_| hits_permille > 0) {
            ensure!(resident.has(block), "block {block} has left memory");
        }
        let tasks = (0..depth)
            .map(|task| offsets.iter().skip(task).step_by(depth).copied().collect())
            .collect();
        let path = path.to_owned();
        Ok(Self { column, depth, tasks, path, hits_permille })
    }

    pub fn reads(&self) -> usize {
        self.tasks.iter().map(|task| task.len()).sum()
    }

    /// The file as a row opens it.
    pub fn open(&self) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        if self.column == Column::Direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.read(true).open(&self.path)?;
        advise(&file, libc::POSIX_FADV_RANDOM);
        Ok(file)
    }

    /// Checks that about as many bytes came from the device as the cold reads need.
    pub fn check(&self, device_bytes: u64) -> Result<()> {
        let all = (self.reads() * BLOCK) as u64;
        let expected = all * (1000 - self.hits_permille) / 1000;
        let (least, most) = (expected * 8 / 10, expected * 12 / 10 + (1 << 20));
        ensure!(
            (least..=most).contains(&device_bytes),
            "{device_bytes} bytes came from the device, expected about {expected}"
        );
        Ok(())
    }
}

/// Announces how a file will be used (posix_fadvise(2)).
pub fn advise(file: &impl std::os::fd::AsRawFd, advice: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
}

/// The blocks in the page cache (mincore(2)).
struct Resident(Vec<u8>);

impl Resident {
    fn look(file: &File) -> Result<Self> {
        let length = file.metadata()?.len() as usize;
        let mut pages = vec![0u8; length.div_ceil(BLOCK)];
        // SAFETY: a mapping of the whole file that nobody reads; the vector has a byte for each of
        // its pages.
        let told = unsafe {
            let (at, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
            let map = libc::mmap(at, length, libc::PROT_READ, flags, file.as_raw_fd(), 0);
            ensure!(map != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
            let told = libc::mincore(map, length, pages.as_mut_ptr());
            libc::munmap(map, length);
            told
        };
        ensure!(told == 0, "mincore: {}", std::io::Error::last_os_error());
        Ok(Self(pages))
    }

    fn has(&self, block: u64) -> bool {
        self.0[block as usize] & 1 != 0
    }
}

/// Bytes that were read from devices for this process (proc(5), `read_bytes`).
pub fn device_bytes() -> Result<u64> {
    let mut text = String::new();
    File::open("/proc/self/io")?.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.context("no read_bytes")?.parse().context("read_bytes is no number")
}
