//! Several buffers in one call, ranges as they become ready, holes, and streams of files that are
//! open for direct I/O.

use uringlet::fs::{BufResult, Coalesce, File};

use crate::executors::Executor;
use crate::{file_of, skipped};

#[test]
fn several_buffers_are_written_and_read_in_one_call() {
    Executor::each(|executor| {
        executor.run(async {
            let (named, _) = file_of(0);
            let file = File::options().read(true).write(true).open(named.path()).await.unwrap();
            let parts = vec![b"one".to_vec(), Vec::new(), b"two and three".to_vec()];
            let BufResult(result, parts) = file.write_vectored_at(parts, 5).await;
            assert_eq!((result.unwrap(), parts.len()), (16, 3));
            assert_eq!(std::fs::read(named.path()).unwrap(), b"\0\0\0\0\0onetwo and three");
            let buffers = [2, 0, 4, 100].map(Vec::with_capacity).into();
            let BufResult(result, buffers) = file.read_vectored_at(buffers, 6).await;
            assert_eq!(result.unwrap(), 15);
            assert_eq!(buffers, [&b"ne"[..], b"", b"two ", b"and three"]);
            let BufResult(result, buffers) = file.read_vectored_at(vec![[0u8; 1]; 1025], 0).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(buffers.len(), 1025);
            let BufResult(result, _) = file.read_vectored_at(vec![[0u8; 1]], u64::MAX).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            let cancelled = file.read_vectored_at(vec![[9u8; 3]; 2], 0).cancel().await;
            assert_eq!(cancelled.0.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert_eq!(cancelled.1, [[9; 3]; 2]);
            for _ in 0..200 {
                drop(file.read_vectored_at(vec![vec![0u8; 7]; 5], 0).submit());
            }
        });
    });
}

#[test]
fn a_hole_is_zeros_and_the_file_keeps_its_length() {
    let (named, mut data) = file_of(64 << 10);
    let file = File::options().write(true).open(named.path()).wait().unwrap();
    if let Err(error) = file.punch_hole(4096, 8192).wait() {
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        return skipped("a_hole_is_zeros", "this file system has no holes");
    }
    data[4096..4096 + 8192].fill(0);
    assert!(std::fs::read(named.path()).unwrap() == data);
}

#[cfg(feature = "tokio")]
#[test]
fn a_stream_of_a_direct_file_reads_from_any_position_to_any_end() {
    use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
    use uringlet::fs::{Cursor, Direct};

    Executor::each(|executor| {
        executor.run(async {
            let (named, data) = file_of(100_123);
            let file = File::options().read(true).direct(Direct::Require).open(named.path()).await;
            let Ok(file) = file else { return skipped("a_stream_of_a_direct_file", "none here") };
            for capacity in [1, 100, 4096, 5000, 1 << 20] {
                for position in [0, 1, 511, 4096, 99_999, 100_122, 100_123, 200_000] {
                    let mut cursor = Cursor::new(file.clone(), capacity);
                    cursor.seek(std::io::SeekFrom::Start(position as u64)).await.unwrap();
                    let mut rest = vec![0; 3000.min(data.len().saturating_sub(position))];
                    cursor.read_exact(&mut rest).await.unwrap();
                    let expected = data.get(position..position + rest.len()).unwrap_or(&[]);
                    assert!(rest == expected, "{capacity} from {position}");
                }
            }
            let mut all = Vec::new();
            Cursor::new(file, 10_000).read_to_end(&mut all).await.unwrap();
            assert!(all == data);
        });
    });
}

#[test]
fn ranges_come_one_by_one_each_of_them_once() {
    Executor::each(|executor| {
        executor.run(async {
            let (named, data) = file_of(200_000);
            let file = File::open(named.path()).await.unwrap();
            let mut ranges: Vec<_> =
                (0..300u64).map(|at| at * 7919 % 190_000..at * 7919 % 190_000 + at * 10).collect();
            ranges.push(199_990..200_001);
            let mut chunks = file.read_ranges(&ranges, Coalesce { gap: 0, max: 5000 }).each();
            let mut seen = std::collections::BTreeSet::new();
            while let Some((number, chunk)) = chunks.next().await {
                assert!(seen.insert(number), "{number} came twice");
                let range = ranges[number].start as usize..ranges[number].end as usize;
                match chunk {
                    Ok(chunk) => assert!(chunk[..] == data[range], "{number}"),
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                        assert!(range.end > 190_000);
                    }
                }
            }
            assert_eq!(seen.len(), ranges.len());
            assert!(chunks.next().await.is_none());
            // The stream is dropped in the middle.
            for taken in 0..50 {
                let mut chunks = file.read_ranges(&ranges, Coalesce::default()).each();
                for _ in 0..taken {
                    assert!(chunks.next().await.is_some());
                }
            }
            let bad = std::ops::Range { start: 1, end: 0 };
            let mut refused = file.read_ranges(&[0..1, bad], Coalesce::default()).each();
            while let Some((_, chunk)) = refused.next().await {
                assert_eq!(chunk.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            }
        });
    });
}
