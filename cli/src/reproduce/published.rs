//! Figures as they were published, from the tables in `data/published`.

use serde::{Deserialize, Serialize};

/// The pool of duplicated descriptors (QEMU, 2008).
const FD_POOL: &str = include_str!("../../data/published/fd_pool.csv");

/// One line of the table about pools of duplicated descriptors.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct FdPool {
    /// `randwrite` or `write`.
    pub workload: String,
    /// `off` (direct) or `on`.
    pub cache: String,
    /// Who executed the requests.
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
        let lines: Result<_, _> =
            csv::Reader::from_reader(FD_POOL.as_bytes()).into_deserialize().collect();
        lines.expect("the table is part of the program, and read by a test")
    }

    /// As it is called in words.
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
