//! Figures as they were published, from the tables in `data/published`.

use serde::{Deserialize, Serialize};

/// The pool of duplicated descriptors (QEMU, 2008).
const FD_POOL: &str = include_str!("../../data/published/fd_pool.csv");

/// Lookups of the context of a handle (Linux AIO, 2013).
const CONTEXT_LOOKUP: &str = include_str!("../../data/published/context_lookup.csv");

/// One line of the table about lookups of the context of a handle.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ContextLookup {
    /// Threads, each with a context of its own.
    pub contexts: usize,
    /// Processors; unknown for a single context.
    pub cores: Option<usize>,
    /// `list` or `radix`.
    pub structure: String,
    /// The time of the whole job, ms.
    pub elapsed_ms: f64,
    /// The relative standard deviation of that time, percent.
    pub rsd_percent: f64,
}

impl ContextLookup {
    /// The whole table.
    pub fn table() -> Vec<Self> {
        read(CONTEXT_LOOKUP)
    }

    /// The elapsed time with the radix tree divided by that with the list, for this many contexts.
    /// Both times were published for the same number of processors: the one nearest to `cores`. The
    /// function also returns that number.
    pub fn radix_to_list(contexts: usize, cores: usize) -> Option<(f64, Option<usize>)> {
        let table = Self::table();
        let of = |structure| {
            table.iter().filter(move |l| (l.contexts, &*l.structure) == (contexts, structure))
        };
        let distance = |line: &&Self| line.cores.map_or(0, |found| found.abs_diff(cores));
        let radix = of("radix").min_by_key(distance)?;
        let list = of("list").find(|line| line.cores == radix.cores)?;
        Some((radix.elapsed_ms / list.elapsed_ms, radix.cores))
    }
}

/// Submitting inline, handing over when blocked (io_uring RFC, 2022).
const URINGLET: &str = include_str!("../../data/published/uringlet.csv");

/// One line of the table about submitting inline.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Uringlet {
    /// `uringlet` or `io_uring-async-buffered`.
    pub mode: String,
    /// Requests in flight.
    pub iodepth: usize,
    /// Thousand requests a second.
    pub kiops: f64,
    /// Throughput.
    pub mib_per_s: f64,
    /// The lowest completion latency, ns.
    pub lat_min_ns: f64,
    /// The highest.
    pub lat_max_ns: f64,
    /// The mean.
    pub lat_avg_ns: f64,
    /// Standard deviation.
    pub lat_stdev_ns: f64,
}

impl Uringlet {
    /// The whole table.
    pub fn table() -> Vec<Self> {
        read(URINGLET)
    }
}

/// The lines of a table.
pub fn read<T: serde::de::DeserializeOwned>(table: &str) -> Vec<T> {
    let lines: Result<_, _> =
        csv::Reader::from_reader(table.as_bytes()).into_deserialize().collect();
    lines.expect("the tables are part of the program, and read by tests")
}

/// One line of the table about pools of duplicated descriptors.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct FdPool {
    /// `randwrite` or `write`.
    pub workload: String,
    /// `off` (direct) or `on`.
    pub cache: String,
    /// The interface that executed the requests, such as `linux-aio`.
    pub path: String,
    /// Duplicates of the descriptor.
    pub pool: Option<usize>,
    /// Throughput.
    pub mb_per_s: f64,
    /// Mean submission latency, µs.
    pub submit_us: f64,
    /// Mean completion latency, ms.
    pub complete_ms: f64,
}

impl FdPool {
    /// The whole table.
    pub fn table() -> Vec<Self> {
        read(FD_POOL)
    }

    /// The name in words.
    pub fn name(&self) -> String {
        match self.pool {
            Some(pool) => format!("{}, pool of {pool}", self.path),
            None => self.path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_lookups_is_read_and_complete() {
        let table = ContextLookup::table();
        assert_eq!(table.len(), CONTEXT_LOOKUP.lines().count() - 1);
        assert!(table.iter().all(|line| line.elapsed_ms > 0.0 && line.rsd_percent > 0.0));
        let near = |contexts, cores| ContextLookup::radix_to_list(contexts, cores).unwrap();
        assert_eq!(near(512, 2), (41748.0 / 69119.0, Some(2)));
        assert_eq!(near(512, 200).1, Some(32));
        assert_eq!(near(1, 2), (59404.0 / 58892.0, None));
        assert_eq!(ContextLookup::radix_to_list(8, 2), None);
    }

    #[test]
    fn the_table_of_submitting_inline_is_read_and_complete() {
        let table = Uringlet::table();
        assert_eq!(table.len(), URINGLET.lines().count() - 1);
        for mode in ["uringlet", "io_uring-async-buffered"] {
            let lines = table.iter().filter(|line| line.mode == mode);
            let depths: Vec<usize> = lines.map(|line| line.iodepth).collect();
            assert_eq!(depths, [1, 2, 4, 8, 16, 32]);
        }
        for line in &table {
            assert!(line.lat_min_ns < line.lat_avg_ns && line.lat_avg_ns < line.lat_max_ns);
            assert!(line.kiops > 0.0 && line.mib_per_s > 0.0 && line.lat_stdev_ns > 0.0);
        }
    }

    #[test]
    fn the_table_of_pools_is_read_and_complete() {
        let table = FdPool::table();
        assert_eq!(table.len(), FD_POOL.lines().count() - 1);
        assert_eq!(table.len(), 14);
        for line in &table {
            assert!(line.mb_per_s > 0.0 && line.submit_us > 0.0 && line.complete_ms > 0.0);
        }
        let paths = |workload: &str, cache: &str| -> Vec<String> {
            let lines = table.iter().filter(|l| (&*l.workload, &*l.cache) == (workload, cache));
            lines.map(FdPool::name).collect()
        };
        for workload in ["randwrite", "write"] {
            let direct = paths(workload, "off");
            for path in ["baremetal", "linux-aio"] {
                assert!(direct.iter().any(|found| found == path), "{path}");
            }
            for pool in [1, 16, 64] {
                assert!(direct.contains(&format!("posix-aio, pool of {pool}")), "{pool}");
            }
            assert_eq!(paths(workload, "on"), ["posix-aio, pool of 1", "posix-aio-patched"]);
        }
    }
}
