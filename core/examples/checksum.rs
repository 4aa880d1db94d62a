//! Checksums 10,000 random blocks of a file: `cargo run -p uringlet --example checksum -- FILE`
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use uringlet::fs::File;

const BLOCK: u64 = 4096;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let file = File::open(std::env::args().nth(1).expect("usage: checksum FILE")).await?;
    let blocks = (file.metadata().await?.len() / BLOCK).max(1);
    let random = (0..10_000u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks);
    let reads = random.map(|block| file.read_at(vec![0; BLOCK as usize], block * BLOCK));
    let sums = stream::iter(reads).buffer_unordered(64).map(|read| {
        let (count, buffer) = (read.0?, read.1);
        Ok::<u64, std::io::Error>(buffer[..count].iter().map(|&byte| u64::from(byte)).sum())
    });
    println!("{}", sums.try_fold(0, async |all: u64, sum| Ok(all.wrapping_add(sum))).await?);
    Ok(())
}
