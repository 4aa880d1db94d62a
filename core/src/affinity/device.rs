//! The block device behind a file, and the CPUs on which its interrupts are served.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::topology::list;
use crate::cpus::CpuSet;

/// The maximum depth of stacked devices. A deeper stack is taken for a cycle, and is not followed.
const DEPTH_MAX: usize = 8;

/// A hardware queue of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// CPUs whose requests go through this queue.
    pub cpus: CpuSet,
    /// CPUs on which the queue's interrupt is served; empty if unknown.
    pub interrupt: CpuSet,
}

/// The disks behind a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Names of the disks, as in `/sys/block`.
    pub disks: Vec<String>,
    /// The hardware queues of the device.
    pub queues: Vec<Queue>,
    /// CPUs on which any of the disks' interrupts is served; empty if unknown.
    pub interrupts: CpuSet,
    /// What could not be found out, and why.
    pub notes: Vec<String>,
}

impl Device {
    /// The device behind an open file, or the block device itself.
    ///
    /// # Errors
    /// A text: the file has no block device, or sysfs does not show it.
    pub fn behind(file: &std::fs::Metadata) -> Result<Self, String> {
        let number = if file.file_type().is_block_device() { file.rdev() } else { file.dev() };
        Self::of(Path::new("/"), libc::major(number), libc::minor(number))
    }

    /// The device with this number, on a machine whose sysfs and procfs lie below `root`.
    ///
    /// # Errors
    /// A text: sysfs does not have the device, or no disk was found below it. Files on tmpfs,
    /// overlay, btrfs and network file systems have major number 0: no device.
    pub fn of(root: &Path, major: u32, minor: u32) -> Result<Self, String> {
        if major == 0 {
            return Err(format!("no block device behind it (device {major}:{minor})"));
        }
        let link = root.join(format!("sys/dev/block/{major}:{minor}"));
        let folder = link
            .canonicalize()
            .map_err(|error| format!("/sys/dev/block/{major}:{minor}: {error}"))?;
        let mut disks = BTreeSet::new();
        let mut device = Self::default();
        find_disks(root, folder, DEPTH_MAX, &mut disks, &mut device.notes);
        for disk in &disks {
            device.add(root, disk);
        }
        if device.disks.is_empty() {
            let reasons = device.notes.join("; ");
            return Err(format!("no disk behind device {major}:{minor} ({reasons})"));
        }
        Ok(device)
    }

    /// CPUs on which the interrupt of a request is served if `cpu` has handed the request over;
    /// empty if unknown.
    pub fn interrupt_of(&self, cpu: usize) -> CpuSet {
        let mut cpus = CpuSet::new();
        for queue in self.queues.iter().filter(|queue| queue.cpus.contains(cpu)) {
            cpus = cpus.or(&queue.interrupt);
        }
        if cpus.is_empty() { self.interrupts.clone() } else { cpus }
    }

    /// Adds a whole disk: its queues, and the CPUs that serve their interrupts.
    fn add(&mut self, root: &Path, disk: &Path) {
        let name = disk.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let mut queues: Vec<(usize, CpuSet)> = numbered(&disk.join("mq"))
            .filter_map(|number| {
                Some((number, list(&disk.join(format!("mq/{number}/cpu_list"))).ok()?))
            })
            .collect();
        queues.sort_by_key(|(number, _)| *number);
        let interrupts = interrupts(root, disk);
        if interrupts.is_empty() {
            self.notes.push(format!("{name}: no interrupt of its own is to be seen"));
        }
        let whole = |of: &mut dyn Iterator<Item = &Interrupt>| {
            of.flat_map(|interrupt| interrupt.cpus.iter()).collect::<CpuSet>()
        };
        let of_queues = |interrupt: &&Interrupt| interrupt.queue != Some(Serves::NoQueue);
        let all = whole(&mut interrupts.iter().filter(of_queues));
        let many = queues.len() > 1;
        for (number, cpus) in queues {
            let mut own = interrupts.iter().filter(|i| i.queue == Some(Serves::Queue(number)));
            let mut interrupt = whole(&mut own);
            if interrupt.is_empty() {
                interrupt = if !all.is_empty() {
                    all.clone()
                } else if many {
                    // The interrupt's CPUs are unknown. Each queue serves some of the CPUs, and the
                    // kernel has those CPUs serve the queue's interrupt.
                    cpus.clone()
                } else {
                    CpuSet::new()
                };
            }
            self.interrupts = self.interrupts.or(&interrupt);
            self.queues.push(Queue { cpus, interrupt });
        }
        self.interrupts = self.interrupts.or(&all);
        self.disks.push(name);
    }
}

/// Follows partitions, mapped devices, RAID arrays and loop devices down to the disks.
fn find_disks(
    root: &Path,
    mut folder: PathBuf,
    depth: usize,
    disks: &mut BTreeSet<PathBuf>,
    notes: &mut Vec<String>,
) {
    if depth == 0 {
        notes.push(format!("{}: too many devices on top of each other", folder.display()));
        return;
    }
    if folder.join("partition").exists() {
        folder.pop();
    }
    let below = read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<PathBuf> = below.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    if !below.is_empty() {
        for device in below {
            find_disks(root, device, depth - 1, disks, notes);
        }
        return;
    }
    let Ok(backing) = read_to_string(folder.join("loop/backing_file")) else {
        disks.insert(folder);
        return;
    };
    let backing = backing.trim_end_matches('\n');
    let file = root.join(backing.trim_start_matches('/'));
    let number = file.metadata().map(|metadata| metadata.dev());
    let under = number.map_err(|error| error.to_string()).and_then(|number| {
        let (major, minor) = (libc::major(number), libc::minor(number));
        let link = root.join(format!("sys/dev/block/{major}:{minor}"));
        link.canonicalize().map_err(|error| format!("device {major}:{minor}: {error}"))
    });
    match under {
        Ok(device) => find_disks(root, device, depth - 1, disks, notes),
        Err(reason) => notes.push(format!("{backing}, behind a loop device: {reason}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    Queue(usize),
    /// The device's configuration or administration.
    NoQueue,
}

struct Interrupt {
    cpus: CpuSet,
    /// The queue that the interrupt's name stands for; `None` if the name stands for none.
    queue: Option<Serves>,
}

/// The interrupts of the first device above the disk that has any.
fn interrupts(root: &Path, disk: &Path) -> Vec<Interrupt> {
    for up in disk.ancestors().skip(1) {
        let mut numbers: Vec<usize> = numbered(&up.join("msi_irqs")).collect();
        if numbers.is_empty() {
            // Without MSI, one interrupt serves all queues. The file has 0 if there is no
            // interrupt.
            let text = read_to_string(up.join("irq")).unwrap_or_default();
            numbers.extend(text.trim().parse::<usize>().ok().filter(|&number| number > 0));
        }
        numbers.sort_unstable();
        let found: Vec<Interrupt> =
            numbers.iter().filter_map(|&number| interrupt(root, number)).collect();
        if !found.is_empty() {
            return found;
        }
        if up.file_name().is_none_or(|name| name == "devices") {
            break;
        }
    }
    Vec::new()
}

fn interrupt(root: &Path, number: usize) -> Option<Interrupt> {
    let folder = root.join(format!("proc/irq/{number}"));
    let served = list(&folder.join("effective_affinity_list")).ok().filter(|cpus| !cpus.is_empty());
    let cpus = served.or_else(|| list(&folder.join("smp_affinity_list")).ok())?;
    // Each handler of the interrupt has a folder here. The handler's driver has chosen the folder's
    // name.
    let entries = read_dir(&folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let queue = folders.filter_map(|entry| serves(entry.file_name().to_str()?)).next();
    Some(Interrupt { cpus, queue })
}

/// The queue that an interrupt's name stands for. The first queue's interrupt is named
/// `virtio1-req.0` by virtio, and `nvme0q1` by NVMe. The interrupt `nvme0q0`, and those whose names
/// end with `-config`, `-control` or `-event`, serve no queue for requests.
fn serves(name: &str) -> Option<Serves> {
    if name.ends_with("-config") || name.ends_with("-control") || name.ends_with("-event") {
        return Some(Serves::NoQueue);
    }
    if let Some((_, number)) = name.split_once("-req.") {
        return number.parse().ok().map(Serves::Queue);
    }
    let (_, number) = name.strip_prefix("nvme")?.split_once('q')?;
    match number.parse().ok()? {
        0 => Some(Serves::NoQueue),
        queue => Some(Serves::Queue(queue - 1)),
    }
}

/// Entries of a folder whose names are numbers.
fn numbered(folder: &Path) -> impl Iterator<Item = usize> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
