//! The topology of a machine: CPUs, their cores, caches and nodes, and the CPUs that this process
//! may use.
//!
//! All files are read below a root folder, so that tests can use recorded machines. Nothing here
//! fails: what cannot be read is left out, and a note says so.

use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use crate::cpus::CpuSet;

/// What a cell is on this machine. A cell is a group of CPUs that are near each other: placement
/// counts what happens in one cell as local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellKind {
    /// A NUMA node.
    Node,
    /// The CPUs that share a last-level cache.
    Cache,
    /// The CPUs of one core.
    Core,
    /// The whole machine: it has one node, one cache and one core only.
    Machine,
}

impl fmt::Display for CellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "NUMA node",
            Self::Cache => "last-level cache",
            Self::Core => "core",
            Self::Machine => "machine",
        })
    }
}

/// The CPUs of a machine, at the moment of reading.
#[derive(Clone, Debug)]
pub struct Topology {
    present: CpuSet,
    online: CpuSet,
    cgroup: Option<CpuSet>,
    allowed: CpuSet,
    reachable: CpuSet,
    kind: CellKind,
    cells: Vec<CpuSet>,
    /// The cell of each CPU; `u16::MAX` for none.
    cell_of: Vec<u16>,
    nodes: Vec<CpuSet>,
    caches: Vec<CpuSet>,
    cores: Vec<CpuSet>,
    notes: Vec<String>,
}

impl Topology {
    /// The topology of this machine. A thread asks for all CPUs, to find out which ones it can get
    /// (sched_setaffinity(2)).
    pub fn look() -> Self {
        let mut topology = Self::read(Path::new("/"));
        if let Some(reachable) = reachable() {
            topology.reachable = reachable;
        }
        if let Some(mine) = thread_affinity() {
            // `allowed` comes from a file, which has the mask of the process's first thread. `mine`
            // is the mask of the calling thread. If only one of the two was confined, the process
            // was not.
            topology.allowed = topology.allowed.or(&mine).and(&topology.reachable);
        }
        topology
    }

    /// A machine whose sysfs, procfs and cgroup files lie below `root`.
    ///
    /// What the files do not say is assumed. CPUs whose node, cache or core is unknown share one,
    /// and all online CPUs may be used. [`Topology::notes`] lists what was assumed.
    pub fn read(root: &Path) -> Self {
        let mut notes = Vec::new();
        let system = root.join("sys/devices/system");
        let online = online(&system, &mut notes);
        let present = list(&system.join("cpu/present")).unwrap_or_else(|_| online.clone());
        let cgroup = cgroup(root);
        let allowed = allowed(root, &online, cgroup.as_ref(), &mut notes);
        let reachable =
            cgroup.as_ref().map(|group| group.and(&online)).filter(|cpus| !cpus.is_empty());
        let reachable = reachable.unwrap_or_else(|| online.clone());
        let nodes = nodes(&system, &online);
        let caches = groups(&online, |cpu| last_level_cache(&system, cpu));
        let cores = groups(&online, |cpu| {
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            list(&folder.join("core_cpus_list"))
                .or_else(|_| list(&folder.join("thread_siblings_list")))
        });
        let mut ways =
            [(CellKind::Node, &nodes), (CellKind::Cache, &caches), (CellKind::Core, &cores)];
        for (kind, found) in &mut ways {
            if found.missing > 0 {
                notes.push(format!(
                    "no {kind} is known of {} of {} CPUs: they count as one",
                    found.missing,
                    online.len()
                ));
            }
        }
        let chosen = ways.into_iter().find(|(_, groups)| groups.sets.len() > 1);
        let (kind, cells) = match chosen {
            Some((kind, groups)) => (kind, groups.sets.clone()),
            None => (CellKind::Machine, vec![online.clone()]),
        };
        let mut cell_of = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            for cpu in cell.iter() {
                if cpu >= cell_of.len() {
                    cell_of.resize(cpu + 1, u16::MAX);
                }
                cell_of[cpu] = at as u16;
            }
        }
        let (nodes, caches, cores) = (nodes.sets, caches.sets, cores.sets);
        Self {
            present,
            online,
            cgroup,
            allowed,
            reachable,
            kind,
            cells,
            cell_of,
            nodes,
            caches,
            cores,
            notes,
        }
    }

    /// CPUs that exist, whether online or not.
    pub fn present(&self) -> &CpuSet {
        &self.present
    }

    /// CPUs that are online.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// CPUs that were given to this process (proc/self/status, and the control group). Automatic
    /// choices stay within these CPUs.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// CPUs that a thread of this process may be confined to. There are more of them than in
    /// [`Topology::allowed`] if taskset(1) has confined the process, and not its control group.
    pub fn reachable(&self) -> &CpuSet {
        &self.reachable
    }

    /// CPUs that the process's control group allows (cpuset.cpus.effective, cgroups(7)); none if
    /// unknown.
    pub fn cgroup(&self) -> Option<&CpuSet> {
        self.cgroup.as_ref()
    }

    /// What a cell is here: a NUMA node if there are several, else a last-level cache, else a core.
    /// With only one of each, the whole machine is one cell.
    pub fn cell_kind(&self) -> CellKind {
        self.kind
    }

    /// The cells: every online CPU is in one of them.
    pub fn cells(&self) -> &[CpuSet] {
        &self.cells
    }

    /// The number of the CPU's cell; none if the CPU is offline.
    #[inline]
    pub fn cell_of(&self, cpu: usize) -> Option<usize> {
        let cell = *self.cell_of.get(cpu)?;
        (cell != u16::MAX).then_some(usize::from(cell))
    }

    /// All CPUs of the cells that these CPUs are in.
    pub fn cells_around(&self, cpus: &CpuSet) -> CpuSet {
        self.cells.iter().filter(|cell| cell.meets(cpus)).flat_map(CpuSet::iter).collect()
    }

    /// NUMA nodes that have CPUs.
    pub fn nodes(&self) -> &[CpuSet] {
        &self.nodes
    }

    /// CPUs by the last-level cache that they share.
    pub fn caches(&self) -> &[CpuSet] {
        &self.caches
    }

    /// CPUs by core.
    pub fn cores(&self) -> &[CpuSet] {
        &self.cores
    }

    /// What could not be read, and what was assumed instead.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Sets of CPUs that share a node, cache or core, and the number of CPUs of which nothing is known.
struct Groups {
    sets: Vec<CpuSet>,
    missing: usize,
}

/// The set of CPUs in a file. `Err` has the reason why the file could not be read, as text for a
/// note.
pub(super) fn list(path: &Path) -> Result<CpuSet, String> {
    let text = read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse().map_err(|bad| format!("{}: {bad}", path.display()))
}

/// As [`list`], but an empty list is an error, too.
fn some_list(path: &Path) -> Result<CpuSet, String> {
    let cpus = list(path)?;
    if cpus.is_empty() { Err(format!("{}: empty", path.display())) } else { Ok(cpus) }
}

fn online(system: &Path, notes: &mut Vec<String>) -> CpuSet {
    some_list(&system.join("cpu/online")).unwrap_or_else(|reason| {
        let entries = std::fs::read_dir(system.join("cpu")).into_iter().flatten().flatten();
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("cpu")?.parse().ok();
        let named: CpuSet = entries.filter_map(|entry| number(entry.file_name())).collect();
        let cpus = if named.is_empty() { [0].into_iter().collect() } else { named };
        notes.push(format!("{reason}; assumed to be online: {cpus}"));
        cpus
    })
}

/// Groups the CPUs by the answers of `find`. One more group has the CPUs for which `find` fails, or
/// whose answer does not contain them.
fn groups(online: &CpuSet, find: impl Fn(usize) -> Result<CpuSet, String>) -> Groups {
    let mut sets: Vec<CpuSet> = Vec::new();
    let mut rest = CpuSet::new();
    let mut known = CpuSet::new();
    for cpu in online.iter() {
        if known.contains(cpu) {
            continue;
        }
        match find(cpu) {
            Ok(cpus) if cpus.contains(cpu) => {
                let mine = cpus.and(online).without(&known);
                known = known.or(&mine);
                sets.push(mine);
            }
            _ => rest.insert(cpu),
        }
    }
    let rest = rest.without(&known);
    let missing = rest.len();
    if missing > 0 {
        sets.push(rest);
    }
    Groups { sets, missing }
}

fn nodes(system: &Path, online: &CpuSet) -> Groups {
    // A kernel without NUMA has no folder `node`: the machine is one node.
    let numbers = list(&system.join("node/online")).unwrap_or_default();
    let read = |node: usize| list(&system.join(format!("node/node{node}/cpulist"))).ok();
    let lists: Vec<CpuSet> = numbers.iter().filter_map(read).collect();
    if lists.is_empty() {
        return Groups { sets: vec![online.clone()], missing: 0 };
    }
    groups(online, |cpu| lists.iter().find(|l| l.contains(cpu)).cloned().ok_or_else(String::new))
}

/// The CPUs that share the cache of the highest level that holds data.
fn last_level_cache(system: &Path, cpu: usize) -> Result<CpuSet, String> {
    let caches = system.join(format!("cpu/cpu{cpu}/cache"));
    let mut best: Option<(u32, CpuSet)> = None;
    for index in 0..16 {
        let cache = caches.join(format!("index{index}"));
        let Ok(level) = read_to_string(cache.join("level")) else { break };
        let kind = read_to_string(cache.join("type")).unwrap_or_default();
        let (Ok(level), Ok(cpus)) = (level.trim().parse(), list(&cache.join("shared_cpu_list")))
        else {
            continue;
        };
        if kind.trim() != "Instruction" && best.as_ref().is_none_or(|(found, _)| level > *found) {
            best = Some((level, cpus));
        }
    }
    best.map(|(_, cpus)| cpus).ok_or_else(|| format!("{}: no cache", caches.display()))
}

/// The CPUs of the control group, or of the first group above it that has a list.
fn cgroup(root: &Path) -> Option<CpuSet> {
    let text = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let unified = number == "0" && controllers.is_empty();
        if !unified && !controllers.split(',').any(|controller| controller == "cpuset") {
            continue;
        }
        let folders: &[(&str, &str)] = if unified {
            &[("", "cpuset.cpus.effective"), ("unified", "cpuset.cpus.effective")]
        } else {
            &[("cpuset", "cpuset.effective_cpus"), ("cpuset", "cpuset.cpus")]
        };
        for (folder, file) in folders {
            let base = mount.join(folder);
            let relative: PathBuf = Path::new(path)
                .components()
                .filter(|c| matches!(c, std::path::Component::Normal(_)))
                .collect();
            let found =
                relative.ancestors().find_map(|up| some_list(&base.join(up).join(file)).ok());
            if found.is_some() {
                return found;
            }
        }
    }
    // In a container, the group's path may be outside of the mount: the mount is the group then.
    some_list(&mount.join("cpuset.cpus.effective")).ok()
}

fn allowed(
    root: &Path,
    online: &CpuSet,
    cgroup: Option<&CpuSet>,
    notes: &mut Vec<String>,
) -> CpuSet {
    let status = read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let told = line.and_then(|text| text.parse::<CpuSet>().ok()).unwrap_or_default();
    let mut cpus = told.and(online);
    if cpus.is_empty() {
        notes.push(format!("proc/self/status names no CPU that is online; assumed: {online}"));
        cpus = online.clone();
    }
    match cgroup.map(|group| cpus.and(group)) {
        Some(both) if both.is_empty() => {
            notes.push("the control group and the process have no CPU in common".into());
            cpus
        }
        Some(both) => both,
        None => cpus,
    }
}

/// The CPUs that the calling thread may run on (sched_getaffinity(2)); none if the kernel refuses.
pub fn thread_affinity() -> Option<CpuSet> {
    crate::sys::affinity(0).ok().map(|words| CpuSet::from_words(&words))
}

/// The CPUs that the kernel grants to a thread that asks for all CPUs.
fn reachable() -> Option<CpuSet> {
    let ask = || {
        let all = [u64::MAX; crate::cpus::CPUS_MAX / 64];
        (crate::sys::set_affinity(&all) == 0).then(thread_affinity).flatten()
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(ask).ok()?.join().ok()?
}
