//! Jobs of many files or many bytes, by `uringlet::fs` and by others, in turn.

mod jobs;
mod measure;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures jobs of files, by uringlet::fs and by others.
#[derive(Parser)]
struct Arguments {
    job: Job,
    /// Where the files of the job are made; they are removed afterwards
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Times that each side runs; one more time before that does not count
    #[arg(long, default_value_t = 11)]
    rounds: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Job {
    /// 10,000 files of 4 KiB, read whole
    Small,
    /// A copy of 1 GiB
    Copy,
    /// 4,000 ranges of 16 KiB past the page cache, aligned and not
    Ranges,
    /// 100,000 entries with their metadata
    Walk,
    /// object_store's get_ranges: 16 calls at a time, 64 ranges of 16 KiB each
    Objects,
}

fn main() -> anyhow::Result<()> {
    let Arguments { job, folder, rounds } = Arguments::parse();
    let job = match job {
        Job::Small => jobs::small,
        Job::Copy => jobs::copy,
        Job::Ranges => jobs::ranges,
        Job::Walk => jobs::walk,
        Job::Objects => jobs::objects,
    };
    let scratch = tempfile::tempdir_in(folder)?;
    job(scratch.path(), rounds)
}
