//! Facts about the machine, the kernel, and the device of a file.

use serde::Serialize;
use std::ffi::CStr;
use std::fs::{File, read_to_string};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The version of the package, and the commit if it is known.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("URINGLET_COMMIT_SUFFIX"));

/// The facts about the machine that a benchmark's reader needs.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// uringlet's version.
    pub version: &'static str,
    /// Built without optimization: the figures mean nothing.
    pub debug_build: bool,
    /// The host's name.
    pub host: String,
    /// Name, release and architecture, such as `Linux 6.18.1 x86_64`.
    pub kernel: String,
    /// The model name, as the kernel reports it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Runs under a hypervisor.
    pub virtual_machine: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that could be used without swapping.
    pub memory_available: u64,
    /// Load average over the last minute.
    pub load: f64,
}

impl Machine {
    /// Asks the kernel. An unknown value is empty or 0; the CPU is then `unknown CPU`, and the
    /// number of CPUs is 1.
    pub fn look() -> Self {
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let load = read_to_string("/proc/loadavg").unwrap_or_default();
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        Self {
            version: VERSION,
            debug_build: cfg!(debug_assertions),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            kernel: kernel(),
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown CPU").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            memory: kibibytes(&meminfo, "MemTotal"),
            memory_available: kibibytes(&meminfo, "MemAvailable"),
            load: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// The file system and the device of a file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Storage {
    /// The type of the file system, such as `ext4`. For a block device: `block device`.
    pub file_system: String,
    /// Mount options of the mount and of the file system.
    pub options: String,
    /// The source of the mount, such as `/dev/vda`.
    pub device: String,
    /// Facts from sysfs: model, rotational or not, scheduler.
    pub device_facts: Vec<String>,
}

impl Storage {
    /// The storage of `file`.
    pub fn behind(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.file_type().is_block_device() {
            let number = metadata.rdev();
            let name = sysfs(number).and_then(|folder| Some(folder.file_name()?.to_owned()));
            return Ok(Self {
                file_system: "block device".into(),
                options: String::new(),
                device: name.map_or_else(String::new, |name| format!("/dev/{}", name.display())),
                device_facts: facts(number),
            });
        }
        let number = metadata.dev();
        let id = format!("{}:{}", libc::major(number), libc::minor(number));
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // All mounts of a file system have its device number. The last line with it is used.
        let mount = mounts.lines().rev().find_map(|line| parse_mount(line, &id));
        let mut storage = mount.unwrap_or_default();
        if storage.file_system.is_empty() {
            // No mount shows the device numbers of, for example, btrfs subvolumes.
            storage.file_system = by_magic(file);
        }
        storage.device_facts = facts(number);
        Ok(storage)
    }

    /// Is the file in memory? Then nothing can be cold, and nothing is direct.
    pub fn is_memory(&self) -> bool {
        matches!(self.file_system.as_str(), "tmpfs" | "ramfs" | "hugetlbfs")
    }
}

/// Numbers of the CPUs that this process may use.
pub fn cpus_allowed() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// The counters of a CPU in /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Time
/// of guests is part of the first two.
pub type Ticks = [u64; 8];

/// The numbers of CPUs, each with its counters: lines of /proc/stat (proc_stat(5)). The sum of all
/// comes first, without a number.
pub fn cpu_ticks(stat: &str) -> impl Iterator<Item = (&str, Ticks)> {
    stat.lines().filter_map(|line| {
        let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        let times: Option<Vec<u64>> =
            times.split_whitespace().take(8).map(|time| time.parse().ok()).collect();
        Some((number, times?.try_into().ok()?))
    })
}

/// The differences between two samples of the counters.
pub fn ticks_between(before: &Ticks, after: &Ticks) -> Ticks {
    std::array::from_fn(|at| after[at].saturating_sub(before[at]))
}

/// The value of a kernel setting under /proc/sys.
pub fn sysctl(name: &str) -> Option<String> {
    Some(read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().to_owned())
}

/// The kernel's name, release and architecture, such as `Linux 6.18.1 x86_64`.
pub fn kernel() -> String {
    let names = rustix::system::uname();
    let text = |field: &CStr| field.to_string_lossy().into_owned();
    format!("{} {} {}", text(names.sysname()), text(names.release()), text(names.machine()))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line =
        text.lines().find(|line| line.split(':').next().is_some_and(|n| n.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

fn kibibytes(meminfo: &str, name: &str) -> u64 {
    let value = field(meminfo, name).and_then(|text| text.strip_suffix("kB"));
    value.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// One line of mountinfo (proc_pid_mountinfo(5)), if it is about the device number `id`.
fn parse_mount(line: &str, id: &str) -> Option<Storage> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    if mount.nth(2)? != id {
        return None;
    }
    let own = mount.nth(2)?;
    let mut system = system.split(' ');
    let (kind, source) = (system.next()?, system.next()?);
    let shared = system.next().unwrap_or_default();
    let mut options: Vec<&str> = own.split(',').chain(shared.split(',')).collect();
    let mut seen = std::collections::HashSet::new();
    options.retain(|option| !option.is_empty() && seen.insert(*option));
    Some(Storage {
        file_system: kind.into(),
        options: options.join(","),
        device: source.into(),
        device_facts: Vec::new(),
    })
}

fn by_magic(file: &File) -> String {
    match rustix::fs::fstatfs(file).map_or(0, |found| found.f_type) {
        libc::TMPFS_MAGIC => "tmpfs".into(),
        libc::BTRFS_SUPER_MAGIC => "btrfs".into(),
        libc::OVERLAYFS_SUPER_MAGIC => "overlay".into(),
        other => format!("file system {other:#x}"),
    }
}

fn sysfs(number: libc::dev_t) -> Option<PathBuf> {
    let name = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    Path::new(&name).canonicalize().ok()
}

fn facts(number: libc::dev_t) -> Vec<String> {
    let Some(mut disk) = sysfs(number) else { return Vec::new() };
    if disk.join("partition").exists() {
        disk.pop();
    }
    let read = |name: &str| {
        let text = read_to_string(disk.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let mut facts = Vec::new();
    facts.extend(read("device/model"));
    match read("queue/rotational").as_deref() {
        Some("0") => facts.push("not rotational".into()),
        Some("1") => facts.push("rotational".into()),
        _ => {}
    }
    if let Some(choices) = read("queue/scheduler") {
        let chosen = choices.split(['[', ']']).nth(1).unwrap_or(&choices);
        facts.push(format!("scheduler {chosen}"));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_gives_type_source_and_options() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse_mount(line, "98:0").unwrap();
        assert_eq!((mount.file_system.as_str(), mount.device.as_str()), ("ext3", "/dev/root"));
        assert_eq!(mount.options, "rw,noatime,errors=continue");
        assert!(parse_mount(line, "98:1").is_none());
    }

    #[test]
    fn proc_files_are_read_by_name() {
        let text = "MemTotal:       49368196 kB\nMemAvailable:   10 kB\n";
        assert_eq!(kibibytes(text, "MemTotal"), 49_368_196 << 10);
        assert_eq!(kibibytes(text, "Mem"), 0);
    }

    #[test]
    fn this_machine_has_a_kernel_memory_and_a_file_system() {
        let machine = Machine::look();
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        assert!(machine.memory > 0 && machine.cpus > 0);
        let storage = Storage::behind(&tempfile::tempfile().unwrap()).unwrap();
        assert!(!storage.file_system.is_empty());
    }
}
