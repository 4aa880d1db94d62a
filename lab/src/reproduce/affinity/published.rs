//! Figures as they were published, from the tables in `data/published`.

use super::sites::Letters;
use crate::reproduce::published::read as table;
use serde::{Deserialize, Serialize};

const MATRIX: &str = include_str!("../../../data/published/affinity_matrix.csv");
const CYCLES: &str = include_str!("../../../data/published/affinity_cycles.csv");
const FILE_SYSTEMS: &str = include_str!("../../../data/published/affinity_filesystem.csv");

/// The published machine and implementation that are most like this project's: a completion thread
/// for each CPU.
const MACHINE: &str = "16way-24disks";
const VARIANT: &str = "kthreads";

/// A row of the matrix.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    pub machine: String,
    pub variant: String,
    pub application: String,
    pub queue: String,
    pub completion: String,
    pub rq_affinity: Option<u8>,
    pub mb_per_s: f64,
    pub avg_latency_s: f64,
    pub stddev_latency_s: f64,
    pub queue_local: f64,
    pub queue_remote: f64,
    pub completion_local: f64,
    pub completion_remote: f64,
}

/// A row of the measurement of small reads.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Small {
    pub variant: String,
    pub rq_affinity: Option<u8>,
    pub mb_per_s: f64,
    pub cpu_cycles: u64,
    pub stall_cycles: u64,
    pub stall_percent: f64,
    pub user_percent: f64,
    pub sys_percent: f64,
    pub iowait_percent: f64,
    pub idle_percent: f64,
}

/// A row of the measurement with file systems: the seconds of a step, over all file systems.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FileSystem {
    pub variant: String,
    pub phase: String,
    /// 1: set to a CPU; 0: not set.
    pub queue_affinity: u8,
    pub completion_affinity: u8,
    pub rq_affinity: u8,
    pub min_s: f64,
    pub avg_s: f64,
    pub max_s: f64,
    pub stddev_s: f64,
}

/// The matrix that was published for `MACHINE` and `VARIANT`.
pub fn matrix() -> Vec<Row> {
    let mut rows: Vec<Row> = table(MATRIX);
    rows.retain(|row| (&*row.machine, &*row.variant) == (MACHINE, VARIANT));
    rows
}

/// The measurement of small reads: without placement, and with completion threads.
pub fn small() -> Vec<Small> {
    let mut rows: Vec<Small> = table(CYCLES);
    rows.retain(|row| row.variant == VARIANT || row.variant == "none");
    rows
}

/// The measurement with file systems, with completion threads.
pub fn file_systems() -> Vec<FileSystem> {
    let mut rows: Vec<FileSystem> = table(FILE_SYSTEMS);
    rows.retain(|row| row.variant == VARIANT);
    rows
}

impl Row {
    /// Is this the row of the placement with these letters?
    pub fn is(&self, letters: Letters) -> bool {
        let Letters { application, queue, completion } = letters;
        [(&self.application, application), (&self.queue, queue), (&self.completion, completion)]
            .into_iter()
            .all(|(text, site)| *text == format!("{site:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sites::placements;
    use super::*;

    #[test]
    fn the_tables_are_read_and_every_placement_is_in_the_matrix() {
        assert_eq!(table::<Row>(MATRIX).len(), MATRIX.lines().count() - 1);
        assert_eq!(table::<FileSystem>(FILE_SYSTEMS).len(), FILE_SYSTEMS.lines().count() - 1);
        assert_eq!(table::<Small>(CYCLES).len(), CYCLES.lines().count() - 1);
        let (matrix, cells) = (matrix(), ["0-1".parse().unwrap(), "2-3".parse().unwrap()]);
        assert_eq!(matrix.len(), 20);
        for placed in placements(&cells, 0) {
            let row = matrix.iter().find(|row| row.is(placed.letters)).unwrap();
            // The expected counters are the published ones.
            assert_eq!(row.queue_local > 0.0, placed.queue_local, "{}", placed.letters);
            assert_eq!(row.completion_local > 0.0, placed.completion_local, "{}", placed.letters);
        }
        let back: Vec<_> = matrix.iter().filter_map(|row| row.rq_affinity).collect();
        assert_eq!(back, [0, 1]);
        assert_eq!(small().len(), 3);
        assert_eq!(file_systems().len(), 4 * 5);
    }
}
