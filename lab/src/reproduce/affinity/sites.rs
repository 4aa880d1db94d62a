//! The CPUs of this machine for the letters of the publication. A cell is a set of CPUs that are
//! near each other, such as those of a NUMA node or with a common cache.

use serde::Serialize;
use std::fmt;
use uringlet::affinity::CpuSet;

/// A CPU by its role: the disk's interrupt, the application, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Site {
    /// The CPU that serves the interrupt.
    I,
    /// The CPU that runs the application.
    A,
    /// A CPU in another cell. For the queue, that is a cell other than the application's. For
    /// completions and for the application, it is a cell other than the interrupt's.
    X,
}

/// A row of the matrix: the application's CPU, and the CPUs of the queue and of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Letters {
    /// The application's cell: the interrupt's ([`Site::I`]) or another one ([`Site::X`]). In the
    /// interrupt's cell, its CPU is not the interrupt's if the cell has a second one.
    pub application: Site,
    /// The CPU that hands requests over.
    pub queue: Site,
    /// The CPU that completes requests.
    pub completion: Site,
}

impl fmt::Display for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.application, self.queue, self.completion)
    }
}

/// The letters as CPUs of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cpus {
    pub application: usize,
    pub queue: usize,
    pub completion: usize,
}

/// One of the 18 placements.
#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    pub letters: Letters,
    /// `None` if this machine has too few cells for the placement.
    pub cpus: Option<Cpus>,
    /// An earlier row with the same CPUs.
    pub same_as: Option<Letters>,
    /// Whether the counters should show that the queue is in the application's cell.
    pub queue_local: bool,
    /// Whether the counters should show that completions are in the interrupt's cell.
    pub completion_local: bool,
}

/// All placements, in the published order, for a machine with these cells (of usable CPUs), whose
/// disk's interrupt is served on `interrupt`.
pub fn placements(cells: &[CpuSet], interrupt: usize) -> Vec<Placed> {
    use Site::{A, I, X};
    let mut rows: Vec<Placed> = Vec::new();
    for application in [X, I] {
        for queue in [X, A, I] {
            for completion in [X, A, I] {
                let letters = Letters { application, queue, completion };
                let cpus = find(cells, interrupt, letters);
                let same = rows.iter().find(|row| cpus.is_some() && row.cpus == cpus);
                let same_as = same.map(|row| row.letters);
                let queue_local = queue == A || queue == I && application == I;
                let completion_local = completion == I || completion == A && application == I;
                rows.push(Placed { letters, cpus, same_as, queue_local, completion_local });
            }
        }
    }
    rows
}

fn find(cells: &[CpuSet], interrupt: usize, letters: Letters) -> Option<Cpus> {
    let near = cells.iter().position(|cell| cell.contains(interrupt))?;
    // A CPU of the cell, if possible not the interrupt's, so that the application has its own CPU.
    let beside = |cell: &CpuSet| cell.iter().find(|&cpu| cpu != interrupt).or(cell.first());
    let others: Vec<usize> = (0..cells.len()).filter(|&at| at != near).collect();
    let home = if letters.application == Site::I { near } else { *others.first()? };
    let application = beside(&cells[home])?;
    // First choice: a cell without another role. Second: a cell that is neither the application's
    // nor the interrupt's. Last: any cell except `excluded`.
    let away_from = |excluded: usize, taken: &[usize]| {
        let free = others.iter().find(|at| **at != home && !taken.contains(at));
        let any = free.or(others.iter().find(|at| **at != home));
        let last = (0..cells.len()).find(|&at| at != excluded);
        any.copied().or(last)
    };
    let site = |site: Site, excluded: usize, taken: &[usize]| match site {
        Site::I => Some((near, interrupt)),
        Site::A => Some((home, application)),
        Site::X => {
            let at = away_from(excluded, taken)?;
            // In the cell of the interrupt or of the application, X is the CPU of that role.
            let cpu = match at {
                at if at == near => interrupt,
                at if at == home => application,
                at => cells[at].first()?,
            };
            Some((at, cpu))
        }
    };
    let (queue_cell, queue) = site(letters.queue, home, &[])?;
    let taken = if letters.queue == Site::X { vec![queue_cell] } else { Vec::new() };
    let (_, completion) = site(letters.completion, near, &taken)?;
    Some(Cpus { application, queue, completion })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(lists: &[&str]) -> Vec<CpuSet> {
        lists.iter().map(|list| list.parse().unwrap()).collect()
    }

    fn proves(cells: &[CpuSet], interrupt: usize) -> usize {
        let at = |cpu| cells.iter().position(|cell| cell.contains(cpu)).unwrap();
        let rows = placements(cells, interrupt);
        assert_eq!(rows.len(), 18);
        for row in &rows {
            let Some(cpus) = row.cpus else { continue };
            assert_eq!(at(cpus.queue) == at(cpus.application), row.queue_local, "{row:?}");
            assert_eq!(at(cpus.completion) == at(interrupt), row.completion_local, "{row:?}");
            assert_eq!(at(cpus.application) == at(interrupt), row.letters.application == Site::I);
        }
        rows.iter().filter(|row| row.cpus.is_some() && row.same_as.is_none()).count()
    }

    #[test]
    fn eight_cpus_in_four_cells_have_all_eighteen() {
        let cells = cells(&["0-1", "2-3", "4-5", "6-7"]);
        for interrupt in 0..8 {
            assert_eq!(proves(&cells, interrupt), 18);
        }
    }

    #[test]
    fn with_fewer_cells_some_fall_together_and_the_rest_is_still_what_it_says() {
        assert_eq!(proves(&cells(&["0", "1"]), 1), 8);
        assert_eq!(proves(&cells(&["0-1", "2-3"]), 0), 13);
        assert_eq!(proves(&cells(&["0", "1", "2"]), 0), 13);
        assert_eq!(proves(&cells(&["0"]), 0), 1);
    }
}
