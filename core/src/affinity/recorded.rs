//! Made-up machines: sysfs and procfs files of a machine, written to a temporary folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::CpuSet;

/// The sysfs and procfs files of a made-up machine, in a temporary folder. Dropping the `Machine`
/// deletes the folder.
pub(super) struct Machine(TempDir);

/// The CPU topology of a machine: the core, last-level cache and node of each CPU.
pub(super) struct Shape {
    pub(super) cpus: usize,
    pub(super) online: &'static str,
    pub(super) core: fn(usize) -> usize,
    pub(super) cache: fn(usize) -> usize,
    pub(super) node: fn(usize) -> usize,
}

impl Machine {
    pub(super) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn new(shape: &Shape) -> Self {
        let machine = Self::empty();
        let Shape { cpus, online, core, cache, node } = *shape;
        let online: CpuSet = online.parse().unwrap();
        let alike = |of: fn(usize) -> usize, cpu: usize| {
            online.iter().filter(|&other| of(other) == of(cpu)).collect::<CpuSet>().to_string()
        };
        let system = "sys/devices/system";
        machine.file(&format!("{system}/cpu/online"), &online.to_string());
        let all: CpuSet = (0..cpus).collect();
        for name in ["present", "possible"] {
            machine.file(&format!("{system}/cpu/{name}"), &all.to_string());
        }
        for cpu in online.iter() {
            let folder = format!("{system}/cpu/cpu{cpu}");
            machine.file(&format!("{folder}/topology/core_cpus_list"), &alike(core, cpu));
            let caches = [("Data", 1, alike(core, cpu)), ("Instruction", 1, alike(core, cpu))];
            let caches = caches.into_iter().chain([("Unified", 3, alike(cache, cpu))]);
            for (index, (kind, level, shared)) in caches.enumerate() {
                let folder = format!("{folder}/cache/index{index}");
                machine.file(&format!("{folder}/type"), kind);
                machine.file(&format!("{folder}/level"), &level.to_string());
                machine.file(&format!("{folder}/shared_cpu_list"), &shared);
            }
        }
        let mut nodes: Vec<usize> = (0..cpus).map(node).collect();
        nodes.dedup();
        let list: CpuSet = nodes.iter().copied().collect();
        machine.file(&format!("{system}/node/online"), &list.to_string());
        for number in nodes {
            let mine: CpuSet = online.iter().filter(|&cpu| node(cpu) == number).collect();
            machine.file(&format!("{system}/node/node{number}/cpulist"), &mine.to_string());
        }
        machine.allow(&all.to_string());
        machine
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn allow(&self, cpus: &str) {
        self.file(
            "proc/self/status",
            &format!("Name:\ttest\nCpus_allowed_list:\t{cpus}\nMems:\t0"),
        );
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub(super) fn link(&self, path: &str, to: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.root().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// An interrupt, its handler, and the CPUs that may serve it.
    pub(super) fn interrupt(&self, number: usize, handler: &str, allowed: &str, effective: &str) {
        let folder = format!("proc/irq/{number}");
        fs::create_dir_all(self.root().join(&folder).join(handler)).unwrap();
        self.file(&format!("{folder}/smp_affinity_list"), allowed);
        self.file(&format!("{folder}/effective_affinity_list"), effective);
    }

    /// A PCI disk with these hardware queues. `number` is its device number, such as `259:0`.
    pub(super) fn disk(
        &self,
        number: &str,
        pci: &str,
        path: &str,
        queues: &[&str],
        interrupts: &[usize],
    ) {
        let device = format!("devices/pci0000:00/{pci}");
        for (at, cpus) in queues.iter().enumerate() {
            self.file(&format!("sys/{device}/{path}/mq/{at}/cpu_list"), cpus);
        }
        fs::create_dir_all(self.root().join(format!("sys/{device}/{path}"))).unwrap();
        for interrupt in interrupts {
            self.file(&format!("sys/{device}/msi_irqs/{interrupt}"), "msix");
        }
        self.link(&format!("sys/dev/block/{number}"), &format!("../../{device}/{path}"));
    }
}

/// A machine with one CPU, one core, one cache and one node.
pub(super) fn one() -> Machine {
    let alone = |_| 0;
    let shape = Shape { cpus: 1, online: "0", core: alone, cache: alone, node: alone };
    Machine::new(&shape)
}

/// A virtual machine of two CPUs, with a virtio disk of one queue served by CPU 1.
pub(super) fn two() -> Machine {
    let shape = Shape { cpus: 2, online: "0-1", core: |cpu| cpu, cache: |_| 0, node: |_| 0 };
    let machine = Machine::new(&shape);
    machine.disk("254:0", "0000:00:02.0", "virtio1/block/vda", &["0, 1"], &[35, 36]);
    machine.file("sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/vda1/partition", "1");
    machine.link(
        "sys/dev/block/254:1",
        "../../devices/pci0000:00/0000:00:02.0/virtio1/block/vda/vda1",
    );
    machine.interrupt(35, "virtio1-config", "0-1", "0");
    machine.interrupt(36, "virtio1-req.0", "0-1", "1");
    machine
}

/// 32 CPUs in 8 nodes, each with its own cache. CPU 5 serves an adapter's interrupt. This is the
/// machine of the publication of 2008 (`affinity/README.md`).
pub(super) fn eight_cells() -> Machine {
    let shape = Shape {
        cpus: 32,
        online: "0-31",
        core: |cpu| cpu,
        cache: |cpu| cpu / 4,
        node: |cpu| cpu / 4,
    };
    let machine = Machine::new(&shape);
    let path = "host0/target0:0:0/0:0:0:0/block/sda";
    machine.disk("8:0", "0000:00:07.0", path, &["0-31"], &[60]);
    machine.interrupt(60, "qla2xxx", "4-7", "5");
    machine
}

/// Two sockets of 64 cores and 128 threads each. Each socket is one node with eight caches. An NVMe
/// disk has a queue for each core.
pub(super) fn two_sockets() -> Machine {
    let shape = Shape {
        cpus: 256,
        online: "0-255",
        core: |cpu| cpu % 128,
        cache: |cpu| cpu % 128 / 8,
        node: |cpu| cpu % 128 / 64,
    };
    let machine = Machine::new(&shape);
    let queues: Vec<String> = (0..128).map(|core| format!("{core}, {}", core + 128)).collect();
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    let interrupts: Vec<usize> = (100..=228).collect();
    machine.disk("259:0", "0000:41:00.0", "nvme/nvme0/nvme0n1", &queues, &interrupts);
    machine.interrupt(100, "nvme0q0", "0-255", "17");
    for core in 0..128 {
        let both = format!("{core},{}", core + 128);
        machine.interrupt(101 + core, &format!("nvme0q{}", core + 1), &both, &core.to_string());
    }
    machine
}

/// Eight CPUs, four of which are offline: two caches, and one node.
pub(super) fn half_offline() -> Machine {
    Machine::new(&Shape {
        cpus: 8,
        online: "0-1,4,6",
        core: |cpu| cpu,
        cache: |cpu| cpu / 4,
        node: |_| 0,
    })
}

/// A container that may use three CPUs of a machine of 64 in four nodes.
pub(super) fn container() -> Machine {
    let shape = Shape {
        cpus: 64,
        online: "0-63",
        core: |cpu| cpu,
        cache: |cpu| cpu / 8,
        node: |cpu| cpu / 16,
    };
    let machine = Machine::new(&shape);
    machine.allow("5,20-21");
    machine.file("proc/self/cgroup", "0::/kubepods/pod1/c1");
    machine.file("sys/fs/cgroup/kubepods/pod1/cpuset.cpus.effective", "5,20-21");
    machine
}
