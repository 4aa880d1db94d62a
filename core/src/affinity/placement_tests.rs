//! Placements are refused with a reason, resolved, or replaced with a reason.

use super::recorded;
use super::{Affinity, CpuSet, Device, EffectivePlacement, Placement, Topology};

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn queue(text: &str) -> Placement {
    Placement { queue: text.parse().unwrap(), ..Placement::default() }
}

fn refusal(machine: &recorded::Machine, text: &str) -> String {
    let placement = Placement { completion: Affinity::Cpus(set(text)), ..Placement::default() };
    placement.check(&Topology::read(machine.root())).unwrap_err().to_string()
}

#[test]
fn texts_are_words_or_lists() {
    for text in ["any", "application", "interrupt", "other-cell", "0-3,8"] {
        assert_eq!(text.parse::<Affinity>().unwrap().to_string(), text);
    }
    let expected =
        "expected a list of CPUs as in 0-3,8, or one of application, interrupt, other-cell, any";
    for (text, value) in [("", "an empty list"), ("  ", "an empty list"), ("x\n", "\"x\\n\"")] {
        let error = text.parse::<Affinity>().unwrap_err();
        assert_eq!(error.to_string(), format!("affinity is {value}, {expected}"));
        assert_eq!(error.errno(), libc::EINVAL);
    }
}

#[test]
fn every_bad_list_has_an_error_of_its_own() {
    assert_eq!(
        refusal(&recorded::two(), "1-3"),
        "completion_affinity is 1-3, expected CPUs out of 0-1 (CPUs 2-3 are not there)"
    );
    assert_eq!(
        refusal(&recorded::two(), ""),
        "completion_affinity is an empty list, expected CPUs out of 0-1"
    );
    assert_eq!(
        refusal(&recorded::half_offline(), "4-5"),
        "completion_affinity is 4-5, expected CPUs out of 0-1,4,6 (CPU 5 is offline)"
    );
    assert_eq!(
        refusal(&recorded::container(), "5-6"),
        "completion_affinity is 5-6, expected CPUs out of 5,20-21 \
         (CPU 6 is outside the control group)"
    );
    let placement = Placement { rq_affinity: 3, ..Placement::default() };
    let topology = Topology::read(recorded::two().root());
    let error = placement.check(&topology).unwrap_err().to_string();
    assert_eq!(error, "rq_affinity is 3, expected 0, 1 or 2");
    let ok = Placement { queue: Affinity::Cpus(set("1")), rq_affinity: 2, ..Placement::default() };
    ok.check(&topology).unwrap();
    queue("interrupt").check(&Topology::read(recorded::one().root())).unwrap();
}

#[test]
fn a_process_that_confined_itself_may_name_more_than_it_has() {
    let machine = recorded::eight_cells();
    machine.allow("0-3");
    let topology = Topology::read(machine.root());
    queue("9").check(&topology).unwrap();
    let choice = queue("other-cell").resolve(&topology, &set("0"), 0, Err("none"));
    assert_eq!(choice.queue, None, "what is chosen automatically stays within");
    assert!(choice.notes[0].contains("no other NUMA node"), "{choice}");
}

fn of_eight_cells(text: &str, confined: &str, cpu: usize) -> EffectivePlacement {
    let machine = recorded::eight_cells();
    let device = Device::of(machine.root(), 8, 0).unwrap();
    queue(text).resolve(&Topology::read(machine.root()), &set(confined), cpu, Ok(&device))
}

#[test]
fn words_are_found_on_a_large_machine() {
    assert_eq!(of_eight_cells("application", "0-31", 9).queue, Some(set("8-11")));
    assert_eq!(of_eight_cells("application", "9", 9).queue, Some(set("9")));
    assert_eq!(of_eight_cells("interrupt", "0-31", 9).queue, Some(set("5")));
    assert_eq!(of_eight_cells("other-cell", "9", 9).queue, Some(set("0-3,12-31")));
    assert_eq!(of_eight_cells("other-cell", "4", 4).queue, Some(set("0-3,8-31")));
    assert_eq!(of_eight_cells("any", "4", 4), EffectivePlacement::default());
    let choice = of_eight_cells("2,30", "4", 4);
    assert_eq!((choice.queue, choice.notes.len()), (Some(set("2,30")), 0));
}

#[test]
fn with_two_cpus_the_other_cell_may_be_the_interrupts() {
    let machine = recorded::two();
    let topology = Topology::read(machine.root());
    let device = Device::of(machine.root(), 254, 1).unwrap();
    let resolve = |text: &str, cpu| queue(text).resolve(&topology, &set("0-1"), cpu, Ok(&device));
    assert_eq!(resolve("application", 0).queue, Some(set("0")), "its core");
    assert_eq!(resolve("interrupt", 0).queue, Some(set("1")));
    let other = resolve("other-cell", 0);
    assert_eq!(other.queue, Some(set("1")));
    assert!(other.notes[0].contains("interrupts are served in every other cell"), "{other}");
    assert_eq!(resolve("other-cell", 1).queue, Some(set("0")));
    let one = Topology::read(recorded::one().root());
    let alone = queue("other-cell").resolve(&one, &set("0"), 0, Ok(&device));
    assert_eq!(alone.queue, None);
    let line = "queue on any, completion on any, rq_affinity 0; queue_affinity=other-cell: no \
                other machine is for this process: left to the scheduler";
    assert_eq!(alone.to_string(), line);
}

#[test]
fn without_a_disk_or_its_interrupts_the_reason_is_said() {
    let machine = recorded::two();
    let topology = Topology::read(machine.root());
    let none = Device::of(machine.root(), 0, 30).unwrap_err();
    let choice = queue("interrupt").resolve(&topology, &set("0-1"), 0, Err(&none));
    assert_eq!(choice.queue, None);
    assert!(choice.notes[0].contains("no block device"), "{choice}");
    machine.remove("proc/irq");
    let device = Device::of(machine.root(), 254, 0).unwrap();
    let choice = queue("interrupt").resolve(&topology, &set("0-1"), 0, Ok(&device));
    assert!(choice.queue.is_none() && choice.notes[0].contains("vda"), "{choice}");
}

#[test]
fn in_a_container_the_interrupts_cell_stands_in_for_its_cpu() {
    let machine = recorded::container();
    let path = "host0/target0:0:0/0:0:0:0/block/sda";
    machine.disk("8:0", "0000:00:07.0", path, &["0-63"], &[60]);
    machine.interrupt(60, "mpt3sas0-msix0", "0-63", "17");
    let topology = Topology::read(machine.root());
    let device = Device::of(machine.root(), 8, 0).unwrap();
    let choice = queue("interrupt").resolve(&topology, &set("5,20-21"), 5, Ok(&device));
    assert_eq!(choice.queue, Some(set("20-21")));
    assert!(choice.notes[0].contains("17 is not for this process: 20-21"), "{choice}");
    machine.interrupt(60, "other", "0-63", "40");
    let device = Device::of(machine.root(), 8, 0).unwrap();
    let choice = queue("interrupt").resolve(&topology, &set("5,20-21"), 5, Ok(&device));
    assert!(choice.queue.is_none() && choice.notes[0].contains("40 is not for"), "{choice}");
}

#[test]
fn cpus_that_went_offline_are_left_out() {
    let topology = Topology::read(recorded::half_offline().root());
    let choice = queue("4-5").resolve(&topology, &set("0-1"), 0, Err("none"));
    assert_eq!(choice.queue, Some(set("4")));
    assert_eq!(choice.notes, ["queue_affinity=4-5: 5 went offline: 4 is left"]);
    let choice = queue("5,7").resolve(&topology, &set("0-1"), 0, Err("none"));
    assert_eq!(choice.queue, None);
    assert!(choice.notes[0].contains("left to the scheduler"), "{choice}");
}
