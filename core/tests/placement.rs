//! Requests and completions run on their placed CPUs, as the counters and checks in the handlers
//! show.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use uringlet::affinity::{Affinity, CpuSet, Topology, thread_affinity};
use uringlet::{Builder, Context, EngineKind, Sqe};

const BLOCK: usize = 4096;
const BLOCKS: usize = 32;
const LAPS: usize = 8;

/// A lock, so that tests run one at a time: each checks or places threads of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn current_cpu() -> usize {
    // SAFETY: the call takes no arguments.
    unsafe { libc::sched_getcpu() as usize }
}

/// Confines the calling thread to a CPU until this value is dropped.
struct Confined(CpuSet);

impl Confined {
    fn to(cpu: usize) -> Self {
        let before = thread_affinity().unwrap();
        set_affinity(&[cpu].into_iter().collect());
        Self(before)
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        set_affinity(&self.0);
    }
}

fn set_affinity(cpus: &CpuSet) {
    // SAFETY: a set of zeroes is an empty one, and CPU_SET stays within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// Reports that a test is skipped, by a write to standard error that the harness does not capture.
fn skipped(test: &str, reason: impl std::fmt::Display) {
    // The message has a line of its own: the harness may have printed half a line.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {reason}");
}

/// Two CPUs in different cells (groups of CPUs that share a NUMA node, a cache or a core). `None`,
/// with a message, if there is one cell only.
fn two_cells(test: &str) -> Option<(usize, usize)> {
    let topology = Topology::look();
    let mut cells = topology.cells().iter().filter_map(|cell| cell.and(topology.allowed()).first());
    let pair = cells.next().zip(cells.next());
    if pair.is_none() {
        skipped(test, "one cell only on this machine");
    }
    pair
}

fn one(cpu: usize) -> Affinity {
    Affinity::Cpus([cpu].into_iter().collect())
}

fn data() -> File {
    let mut file = tempfile::tempfile_in(".").unwrap();
    file.write_all(&vec![7; BLOCK * BLOCKS]).unwrap();
    file
}

/// The same file through the page cache and, if its file system allows that, for direct I/O.
fn ways_in(file: &File) -> Vec<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::iter::once(File::open(&path).unwrap()).chain(direct).collect()
}

/// Runs the check with every engine that is allowed here, except `null`.
fn each_engine(test: &str, mut check: impl FnMut(Builder)) {
    for engine in EngineKind::ALL {
        let builder = Context::builder().engine(engine).entries(BLOCKS as u32).stats(true);
        if engine == EngineKind::Null {
            continue;
        }
        match builder.clone().build() {
            Ok(_) => check(builder),
            Err(error) => skipped(&format!("{test} with {engine}"), error),
        }
    }
}

#[repr(align(4096))]
struct Blocks([u8; BLOCK * BLOCKS]);

/// Reads every block several times, all blocks at a time. Returns the number of reads.
fn read_all(context: &mut Context, file: &File) -> u64 {
    let mut blocks = Box::new(Blocks([0; BLOCK * BLOCKS]));
    for _ in 0..LAPS {
        for (at, block) in blocks.0.chunks_exact_mut(BLOCK).enumerate() {
            let read = Sqe::read(file.as_raw_fd(), block, (at * BLOCK) as u64);
            // SAFETY: the blocks outlive the requests, which are all reaped below.
            unsafe { context.push(read.user_data(at as u64)) }.unwrap();
        }
        assert_eq!(context.submit().unwrap(), BLOCKS);
        let mut seen = BTreeSet::new();
        while seen.len() < BLOCKS {
            context.wait(1, Some(Duration::from_secs(30))).unwrap();
            let before = seen.len();
            while let Some(cqe) = context.reap() {
                assert_eq!(cqe.result().unwrap() as usize, BLOCK);
                assert!(seen.insert(cqe.user_data), "completed twice");
            }
            assert!(seen.len() > before, "nothing has completed in 30 s");
        }
        assert!(blocks.0.iter().all(|&byte| byte == 7));
        blocks.0.fill(0);
    }
    (LAPS * BLOCKS) as u64
}

/// The CPUs on which handlers ran.
type Seen = Arc<Mutex<Vec<usize>>>;

fn with_handler(builder: Builder) -> (Builder, Seen) {
    let seen = Seen::default();
    let other = Arc::clone(&seen);
    let handler = move |_| other.lock().unwrap().push(current_cpu());
    (builder.handler(handler), seen)
}

/// The number of threads of this process with this name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    tasks.filter(is).count()
}

/// The engine's threads are named `uringlet-…`; the kernel keeps 15 bytes.
const COMPLETER: &str = "uringlet-comple";

#[test]
fn every_placement_is_proved_by_its_counters_and_handlers() {
    let _alone = alone();
    let test = "every_placement_is_proved_by_its_counters_and_handlers";
    let Some((here, there)) = two_cells(test) else { return };
    let file = data();
    for file in ways_in(&file) {
        each_engine(test, |builder| {
            for (queue, completion) in [(here, here), (here, there), (there, here), (there, there)]
            {
                let _confined = Confined::to(here);
                let placed = builder.clone().queue_affinity(one(queue));
                let placed = placed.completion_affinity(one(completion));
                let (placed, seen) = with_handler(placed);
                let mut context = placed.build().unwrap();
                let all = read_all(&mut context, &file);
                let stats = context.stats().unwrap();
                let (choice, engine) = (context.placement().unwrap().clone(), context.engine());
                let what = format!("{engine}: {choice}: {stats:?}");
                let split = |to_local: bool| if to_local { (all, 0) } else { (0, all) };
                let submissions = (stats.submissions_local, stats.submissions_remote);
                assert_eq!(submissions, split(queue == here), "{what}");
                let home = (stats.completions_home, stats.completions_away);
                assert_eq!(home, split(completion == here), "{what}");
                assert_eq!(stats.completions_local + stats.completions_remote, all, "{what}");
                let hops = u64::from(queue != here) + u64::from(completion != queue);
                assert_eq!(stats.cpu_handovers, hops * all, "{what}");
                assert_eq!(stats.by_waiter, 0, "the program's threads stand by: {what}");
                assert_eq!(*seen.lock().unwrap(), vec![completion; all as usize], "{what}");
            }
        });
    }
}

#[test]
fn completions_come_back_to_their_submitter() {
    let _alone = alone();
    let test = "completions_come_back_to_their_submitter";
    let Some((here, there)) = two_cells(test) else { return };
    let file = data();
    each_engine(test, |builder| {
        for back in [1, 2] {
            let _confined = Confined::to(here);
            let placed = builder.clone().queue_affinity(one(there)).rq_affinity(back);
            let (placed, seen) = with_handler(placed);
            let mut context = placed.build().unwrap();
            let all = read_all(&mut context, &file);
            let stats = context.stats().unwrap();
            assert_eq!((stats.completions_home, stats.completions_away), (all, 0), "{stats:?}");
            assert_eq!((stats.submissions_local, stats.submissions_remote), (0, all), "{stats:?}");
            let cell = Topology::look().cells_around(&[here].into_iter().collect());
            let seen = seen.lock().unwrap();
            assert!(seen.iter().all(|&cpu| cell.contains(cpu) && (back == 1 || cpu == here)));
        }
    });
}

#[test]
fn words_place_as_well_as_numbers() {
    let _alone = alone();
    let test = "words_place_as_well_as_numbers";
    let Some((here, _)) = two_cells(test) else { return };
    let file = data();
    let _confined = Confined::to(here);
    for (word, local) in [("application", true), ("other-cell", false)] {
        let builder = Context::builder().stats(true).queue_affinity(word.parse().unwrap());
        let mut context = builder.build().unwrap();
        assert!(context.placement().is_none(), "not before the first submit");
        let all = read_all(&mut context, &file);
        let stats = context.stats().unwrap();
        let expected = if local { (all, 0) } else { (0, all) };
        assert_eq!((stats.submissions_local, stats.submissions_remote), expected, "{word}");
    }
    let builder = Context::builder().stats(true).completion_affinity(Affinity::Interrupt);
    let mut context = builder.build().unwrap();
    let all = read_all(&mut context, &file);
    let (stats, choice) = (context.stats().unwrap(), context.placement().unwrap());
    if choice.completion.is_some() {
        assert_eq!((stats.completions_local, stats.completions_remote), (all, 0), "{choice}");
    } else {
        assert_eq!(choice.notes.len(), 1, "a fall-back has its reason: {choice}");
    }
}

#[test]
fn a_handler_runs_once_for_each_completion_without_any_placement() {
    let _alone = alone();
    let file = data();
    each_engine("a_handler_runs_once_for_each_completion_without_any_placement", |builder| {
        let (builder, seen) = with_handler(builder);
        let mut context = builder.build().unwrap();
        let all = read_all(&mut context, &file);
        assert_eq!(seen.lock().unwrap().len() as u64, all);
        let stats = context.stats().unwrap();
        assert_eq!(stats.submissions_local + stats.submissions_remote, all);
    });
}

#[test]
fn cancelled_requests_are_handled_too() {
    let _alone = alone();
    let (reader, _writer) = std::io::pipe().unwrap();
    let (builder, seen) = with_handler(Context::builder().stats(true));
    let mut context = builder.build().unwrap();
    let mut byte = [0u8; 1];
    // SAFETY: the byte outlives the context's requests: one is cancelled, the other by `destroy`.
    unsafe {
        context.push(Sqe::poll_add(reader.as_raw_fd(), libc::POLLIN).user_data(1)).unwrap();
        context.push(Sqe::read(reader.as_raw_fd(), &mut byte[..], 0).user_data(2)).unwrap();
    }
    assert_eq!(context.submit().unwrap(), 2);
    context.cancel(1).unwrap();
    assert_eq!(context.wait(1, Some(Duration::from_secs(30))).unwrap(), 1);
    let cqe = context.reap().unwrap();
    assert_eq!((cqe.user_data, cqe.res), (1, -libc::ECANCELED));
    assert_eq!(seen.lock().unwrap().len(), 1);
    let rest = context.destroy();
    assert_eq!((rest.len(), rest[0].user_data, rest[0].res), (1, 2, -libc::ECANCELED));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn contexts_come_and_go_while_their_completions_are_on_their_way() {
    let _alone = alone();
    let file = data();
    let cpus: Vec<usize> = Topology::look().allowed().iter().collect();
    for round in 0..300 {
        let (builder, seen) = with_handler(Context::builder().entries(8));
        let builder = match round % 3 {
            0 => builder,
            1 => builder.completion_affinity(one(cpus[round % cpus.len()])),
            _ => builder.queue_affinity(one(cpus[round % cpus.len()])).rq_affinity(2),
        };
        let mut context = builder.build().unwrap();
        let mut blocks = Box::new(Blocks([0; BLOCK * BLOCKS]));
        for block in blocks.0.chunks_exact_mut(BLOCK).take(8) {
            // SAFETY: the blocks outlive the context, which is destroyed below.
            unsafe { context.push(Sqe::read(file.as_raw_fd(), block, 0)) }.unwrap();
        }
        assert_eq!(context.submit().unwrap(), 8);
        if round % 2 == 0 {
            context.wait(1, Some(Duration::from_secs(30))).unwrap();
        }
        let mut completed = 0;
        while round % 4 == 0 && context.reap().is_some() {
            completed += 1;
        }
        completed += context.destroy().len();
        assert_eq!((completed, seen.lock().unwrap().len()), (8, 8), "round {round}");
    }
}

#[test]
fn without_placement_and_handlers_there_is_no_completion_thread_and_idle_ones_end() {
    let _alone = alone();
    let file = data();
    let begin = Instant::now();
    let gone = || threads_named(COMPLETER) == 0;
    while !gone() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(gone(), "idle completion threads have not ended in 30 s");
    let mut context = Context::builder().stats(true).build().unwrap();
    read_all(&mut context, &file);
    assert!(gone());
    let stats = context.stats().unwrap();
    assert_eq!((stats.submissions_local, stats.completions_home, stats.cpu_handovers), (0, 0, 0));
    assert!(context.placement().is_none());
    let (builder, _) = with_handler(Context::builder());
    read_all(&mut builder.build().unwrap(), &file);
    assert!(!gone());
}

#[test]
fn a_placement_that_cannot_be_had_is_refused_by_name() {
    let topology = Topology::look();
    let beyond = topology.present().iter().last().unwrap() + 1;
    let refusal = |builder: Builder| builder.build().unwrap_err();
    let error = refusal(Context::builder().queue_affinity(one(beyond)));
    assert_eq!(error.errno(), libc::EINVAL);
    let reachable = topology.reachable();
    let expected = format!(
        "queue_affinity is {beyond}, expected CPUs out of {reachable} (CPU {beyond} is not there)"
    );
    assert_eq!(error.to_string(), expected);
    let empty = Affinity::Cpus(CpuSet::new());
    let error = refusal(Context::builder().completion_affinity(empty)).to_string();
    assert!(error.starts_with("completion_affinity is an empty list"), "{error}");
    let error = refusal(Context::builder().rq_affinity(3)).to_string();
    assert_eq!(error, "rq_affinity is 3, expected 0, 1 or 2");
}

#[test]
fn threads_without_a_place_do_not_inherit_one() {
    let _alone = alone();
    let test = "threads_without_a_place_do_not_inherit_one";
    let Some((here, there)) = two_cells(test) else { return };
    let file = data();
    let all = thread_affinity().unwrap().to_string();
    let expected = all.clone();
    // The handler makes a context, for which the engine starts its poller. This thread must not be
    // confined to the handler's CPU.
    let (answer, answers) = std::sync::mpsc::channel();
    let handler = move |_| {
        let mut inner = Context::builder().engine(EngineKind::Workers).stats(true).build().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let poll = Sqe::poll_add(reader.as_raw_fd(), libc::POLLIN);
        // SAFETY: a poll has no buffer.
        unsafe { inner.push(poll) }.unwrap();
        inner.submit().unwrap();
        // A new thread needs a moment to set its CPUs.
        let mut masks = masks_of("uringlet-poll");
        let begin = Instant::now();
        while !masks.contains(&expected) && begin.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
            masks = masks_of("uringlet-poll");
        }
        writer.write_all(b"x").unwrap();
        inner.wait(1, Some(Duration::from_secs(30))).unwrap();
        answer.send((current_cpu(), masks)).unwrap();
    };
    let placed = Context::builder().completion_affinity(one(there)).entries(1).handler(handler);
    let mut context = placed.build().unwrap();
    let _confined = Confined::to(here);
    let mut block = vec![0u8; BLOCK];
    // SAFETY: the block outlives the request, which is reaped below.
    unsafe { context.push(Sqe::read(file.as_raw_fd(), &mut block[..], 0)) }.unwrap();
    context.submit().unwrap();
    assert_eq!(context.wait(1, Some(Duration::from_secs(30))).unwrap(), 1);
    let (cpu, masks) = answers.recv().unwrap();
    assert_eq!(cpu, there);
    assert!(masks.contains(&all), "{masks:?}");
}

/// The CPUs that the threads of this name may run on.
fn masks_of(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let of = |status: String| {
        let field = |name: &str| {
            status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        (field("Name:")? == name).then(|| field("Cpus_allowed_list:"))?
    };
    tasks.filter_map(status).filter_map(of).collect()
}
