//! Made-up machines are read correctly, and broken files cause no failure.

use std::path::Path;

use super::recorded::{self, Machine};
use super::{CellKind, CpuSet, Device, Topology};

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn cells(topology: &Topology) -> Vec<String> {
    topology.cells().iter().map(ToString::to_string).collect()
}

#[test]
fn one_cpu_is_one_cell() {
    let topology = Topology::read(recorded::one().root());
    assert_eq!((topology.cell_kind(), cells(&topology)), (CellKind::Machine, vec!["0".into()]));
    assert_eq!(topology.allowed(), &set("0"));
    assert_eq!((topology.cell_of(0), topology.cell_of(1)), (Some(0), None));
    assert!(topology.notes().is_empty(), "{:?}", topology.notes());
}

#[test]
fn two_cpus_are_two_cores_and_the_disk_is_found_behind_its_partition() {
    let machine = recorded::two();
    let topology = Topology::read(machine.root());
    assert_eq!(
        (topology.cell_kind(), cells(&topology)),
        (CellKind::Core, vec!["0".into(), "1".into()])
    );
    for minor in [0, 1] {
        let device = Device::of(machine.root(), 254, minor).unwrap();
        assert_eq!(device.disks, ["vda"]);
        assert_eq!(device.queues.len(), 1);
        assert_eq!(device.queues[0].cpus, set("0-1"));
        assert_eq!(device.interrupts, set("1"), "of the queue, not of the configuration");
        assert_eq!(device.interrupt_of(0), set("1"));
        assert!(device.notes.is_empty(), "{:?}", device.notes);
    }
}

#[test]
fn thirty_two_cpus_in_eight_cells() {
    let machine = recorded::eight_cells();
    let topology = Topology::read(machine.root());
    assert_eq!(topology.cell_kind(), CellKind::Node);
    assert_eq!(cells(&topology)[..3], ["0-3", "4-7", "8-11"]);
    assert_eq!((topology.cells().len(), topology.cores().len()), (8, 32));
    assert_eq!((topology.cell_of(5), topology.cell_of(31)), (Some(1), Some(7)));
    assert_eq!(topology.cells_around(&set("5,31")), set("4-7,28-31"));
    let device = Device::of(machine.root(), 8, 0).unwrap();
    assert_eq!((device.disks, device.interrupts), (vec!["sda".into()], set("5")));
}

#[test]
fn two_sockets_with_threads_and_a_queue_for_each_core() {
    let machine = recorded::two_sockets();
    let topology = Topology::read(machine.root());
    assert_eq!(topology.cell_kind(), CellKind::Node);
    assert_eq!(cells(&topology), ["0-63,128-191", "64-127,192-255"]);
    assert_eq!((topology.caches().len(), topology.cores().len()), (16, 128));
    assert_eq!(topology.cores()[3], set("3,131"));
    let device = Device::of(machine.root(), 259, 0).unwrap();
    assert_eq!(device.queues.len(), 128);
    assert_eq!(device.interrupt_of(70), set("70"));
    assert_eq!(device.interrupt_of(70 + 128), set("70"), "the other thread of the core");
    assert_eq!(device.interrupts, set("0-127"));
}

#[test]
fn offline_cpus_are_in_no_cell() {
    let topology = Topology::read(recorded::half_offline().root());
    assert_eq!(
        (topology.cell_kind(), cells(&topology)),
        (CellKind::Cache, vec!["0-1".into(), "4,6".into()])
    );
    assert_eq!((topology.present(), topology.allowed()), (&set("0-7"), &set("0-1,4,6")));
    assert_eq!((topology.cell_of(5), topology.cell_of(6)), (None, Some(1)));
}

#[test]
fn a_container_may_use_what_its_group_allows() {
    let machine = recorded::container();
    let topology = Topology::read(machine.root());
    assert_eq!(topology.allowed(), &set("5,20-21"));
    assert_eq!(topology.cgroup(), Some(&set("5,20-21")), "from the group above");
    assert_eq!(topology.cells().len(), 4);
    machine.file("proc/self/cgroup", "9:name=systemd:/\n3:cpuset:/docker/1\n0::/");
    machine.file("sys/fs/cgroup/cpuset/docker/1/cpuset.effective_cpus", "20-23");
    let topology = Topology::read(machine.root());
    assert_eq!(topology.cgroup(), Some(&set("20-23")), "the older interface");
    assert_eq!(topology.allowed(), &set("20-21"));
    machine.file("proc/self/cgroup", "nothing\n3:cpuset:/docker/1\n");
    let topology = Topology::read(machine.root());
    assert_eq!(topology.cgroup(), Some(&set("20-23")), "behind a line that is none");
}

#[test]
fn without_files_there_is_one_cpu_and_a_reason() {
    let topology = Topology::read(Machine::empty().root());
    assert_eq!((topology.online(), topology.allowed()), (&set("0"), &set("0")));
    assert_eq!(topology.cell_kind(), CellKind::Machine);
    assert!(topology.notes()[0].contains("cpu/online"), "{:?}", topology.notes());
    let topology = Topology::read(Path::new("/nonexistent"));
    assert!(!topology.cells().is_empty() && !topology.notes().is_empty());
}

#[test]
fn garbage_is_noted_and_the_rest_is_used() {
    let machine = recorded::eight_cells();
    let system = "sys/devices/system";
    machine.file(&format!("{system}/cpu/online"), "three");
    machine.file(&format!("{system}/node/online"), "0-99999");
    machine.file(&format!("{system}/cpu/cpu3/topology/core_cpus_list"), "\u{0}\u{1}");
    machine.file(&format!("{system}/cpu/cpu9/cache/index2/level"), "deep");
    machine.file("proc/self/status", "Cpus_allowed_list:\t4096");
    let topology = Topology::read(machine.root());
    assert_eq!(topology.online(), &set("0-31"), "counted by their folders");
    assert_eq!(topology.cell_kind(), CellKind::Cache);
    assert_eq!(topology.allowed(), &set("0-31"));
    let notes = topology.notes().join("\n");
    for expected in ["cpu/online", "status", "no core is known of 1 of 32"] {
        assert!(notes.contains(expected), "{notes}");
    }
    machine.remove(&format!("{system}/node"));
    machine.remove(&format!("{system}/cpu/cpu0/cache"));
    let all: CpuSet =
        Topology::read(machine.root()).cells().iter().flat_map(CpuSet::iter).collect();
    assert_eq!(all, set("0-31"));
}

#[test]
fn a_file_without_a_disk_says_why() {
    let machine = recorded::two();
    let root = machine.root();
    assert!(Device::of(root, 0, 25).unwrap_err().contains("no block device"));
    assert!(Device::of(root, 8, 0).unwrap_err().contains("8:0"));
    machine.file("sys/devices/virtual/block/loop0/loop/backing_file", "/nowhere/image");
    machine.link("sys/dev/block/7:0", "../../devices/virtual/block/loop0");
    let error = Device::of(root, 7, 0).unwrap_err();
    assert!(error.contains("/nowhere/image"), "{error}");
}

#[test]
fn mapped_devices_lead_to_every_disk_below_once() {
    let machine = recorded::two_sockets();
    let path = "host0/target0:0:0/0:0:0:0/block/sda";
    machine.disk("8:0", "0000:00:07.0", path, &["0-255"], &[60]);
    machine.interrupt(60, "ahci[0000:00:07.0]", "0-255", "9");
    let disk = format!("devices/pci0000:00/0000:00:07.0/{path}");
    machine.file(&format!("sys/{disk}/sda1/partition"), "1");
    let (raid, mapped) = ("devices/virtual/block/md0", "devices/virtual/block/dm-0");
    machine.link(&format!("sys/{raid}/slaves/sda1"), &format!("../../../../../{disk}/sda1"));
    let nvme = "devices/pci0000:00/0000:41:00.0/nvme/nvme0/nvme0n1";
    machine.link(&format!("sys/{raid}/slaves/nvme0n1"), &format!("../../../../../{nvme}"));
    machine.link(&format!("sys/{mapped}/slaves/md0"), "../../md0");
    machine.link(&format!("sys/{mapped}/slaves/sda1"), &format!("../../../../../{disk}/sda1"));
    machine.link("sys/dev/block/252:0", &format!("../../{mapped}"));
    let device = Device::of(machine.root(), 252, 0).unwrap();
    assert_eq!(device.disks, ["sda", "nvme0n1"]);
    assert_eq!(device.interrupt_of(3), set("3,9"));
    machine.link(&format!("sys/{raid}/slaves/dm-0"), "../../dm-0");
    let device = Device::of(machine.root(), 252, 0).unwrap();
    assert_eq!(device.disks.len(), 2, "a circle ends");
}

#[test]
fn a_disk_whose_interrupts_are_hidden_says_so() {
    let machine = recorded::two();
    machine.remove("proc/irq");
    let device = Device::of(machine.root(), 254, 0).unwrap();
    assert!(device.interrupts.is_empty() && device.interrupt_of(0).is_empty());
    assert!(device.notes[0].contains("vda"), "{:?}", device.notes);
    let machine = recorded::two_sockets();
    machine.remove("proc/irq");
    let device = Device::of(machine.root(), 259, 0).unwrap();
    assert_eq!(device.interrupt_of(70), set("70,198"), "a queue for each core is served there");
}

#[test]
fn this_machine_is_understood() {
    let topology = Topology::look();
    assert!(!topology.allowed().is_empty());
    let all: CpuSet = topology.cells().iter().flat_map(CpuSet::iter).collect();
    assert_eq!(&all, topology.online(), "every CPU is in a cell");
    let count: usize = topology.cells().iter().map(CpuSet::len).sum();
    assert_eq!(count, all.len(), "and in one only");
    let file = tempfile::tempfile().unwrap();
    match Device::behind(&file.metadata().unwrap()) {
        Ok(device) => assert!(!device.disks.is_empty()),
        Err(reason) => assert!(!reason.is_empty()),
    }
}
