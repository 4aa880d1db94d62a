//! A context's placement: the CPUs where each request was submitted and executed, and where it
//! completes. A *cell* is a group of CPUs: a NUMA node, a last-level cache, or a core
//! (`../affinity/README.md`).
#![allow(unsafe_code)]

mod completers;
pub(crate) mod completion;

use std::cell::Cell;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, Weak};

use self::completers::{Completers, RemoteCompletion};
use self::completion::{Chain, Node};
use crate::affinity::{Device, EffectivePlacement, Placement, Topology, thread_affinity};
use crate::board::{Board, Delivery, Dispatcher, Placing};
use crate::config::{Builder, ConfigError, Handler};
use crate::cpus::CpuSet;
use crate::cqe::Cqe;
use crate::stats::Counters;
use crate::sys;

/// No CPU has executed the request yet.
const NOWHERE: u32 = u32::MAX;
/// The maximum number of CPUs whose chains are collected at a time. Completions for further CPUs
/// are sent one by one.
const GATHERED: usize = 8;

/// Placement and handler of one context. A context with neither has no `Placed`, unless it has
/// `cell_stats`.
#[derive(Debug)]
pub(crate) struct Placed {
    placement: Placement,
    handler: Option<Handler>,
    topology: Topology,
    owner: Weak<dyn Dispatcher>,
    completers: &'static Completers,
    found: OnceLock<Detected>,
    requests: Box<[SubmitSite]>,
}

/// The placement in effect, as found at the first submit.
#[derive(Debug)]
struct Detected {
    choice: EffectivePlacement,
    /// For each CPU that may execute a request: the CPUs of the cells in which the request's
    /// interrupt is served.
    near_interrupt: Vec<CpuSet>,
    /// For each CPU that may submit: the CPU on which its requests complete, if they do not
    /// complete where they arrive.
    away: Vec<usize>,
}

/// The CPUs of the request in a slot.
#[derive(Debug)]
struct SubmitSite {
    /// The CPU on which the request was submitted.
    home: AtomicU32,
    /// The CPU that has executed the request, or handed it to the kernel.
    ran: AtomicU32,
    node: Node<RemoteCompletion>,
}

/// The pending completions of one CPU: a chain, and its last completion, which will keep the
/// context alive.
struct PendingChain {
    cpu: usize,
    chain: Chain<RemoteCompletion>,
    last: Option<RemoteCompletion>,
}

/// Completions for other CPUs that one thread has found at the same time.
struct Gathered {
    board: *const Board,
    chains: [Option<PendingChain>; GATHERED],
}

thread_local! {
    static GATHERING: Cell<*mut Gathered> = const { Cell::new(std::ptr::null_mut()) };
}

impl Placed {
    /// The machine's topology, for a context with a placement, a handler or `cell_stats`.
    ///
    /// # Errors
    /// As [`Placement::check`].
    pub(crate) fn look(builder: &Builder) -> Result<Option<Topology>, ConfigError> {
        if builder.placement.is_free() && builder.handler.is_none() && !builder.cell_stats {
            return Ok(None);
        }
        let topology = Topology::look();
        builder.placement.check(&topology)?;
        Ok(Some(topology))
    }

    pub(crate) fn new(
        builder: &Builder,
        topology: Topology,
        slots: usize,
        owner: Weak<dyn Dispatcher>,
    ) -> Self {
        let nowhere = || AtomicU32::new(NOWHERE);
        let whereabouts = |_| SubmitSite { home: nowhere(), ran: nowhere(), node: Node::new() };
        Self {
            placement: builder.placement.clone(),
            handler: builder.handler.clone(),
            topology,
            owner,
            completers: Completers::of_this_process(),
            found: OnceLock::new(),
            requests: (0..slots).map(whereabouts).collect(),
        }
    }

    #[cold]
    fn find(&self, cpu: usize, fd: RawFd) -> Detected {
        let topology = &self.topology;
        let device = device_behind(fd);
        let confined = thread_affinity().unwrap_or_default();
        let choice =
            self.placement.resolve(topology, &confined, cpu, device.as_ref().map_err(|e| &**e));
        let cpus = topology.present().iter().last().unwrap_or(0) + 1;
        let near_interrupt = (0..cpus).map(|cpu| {
            let here: CpuSet = [cpu].into_iter().collect();
            let served = device.as_ref().map(|device| device.interrupt_of(cpu)).unwrap_or_default();
            // If the interrupt's CPUs are unknown, the CPU that executes the request stands for
            // them.
            topology.cells_around(if served.is_empty() { &here } else { &served })
        });
        let away = |home: usize| match &choice.completion {
            None => home,
            Some(cpus) if choice.rq_affinity > 0 && cpus.contains(home) => home,
            Some(cpus) => {
                let here: CpuSet = [home].into_iter().collect();
                let near = topology.cells_around(&here).and(cpus);
                let from = if choice.rq_affinity > 0 && !near.is_empty() { &near } else { cpus };
                from.iter().nth(home % from.len()).unwrap_or(home)
            }
        };
        let near_interrupt = near_interrupt.collect();
        Detected { near_interrupt, away: (0..cpus).map(away).collect(), choice }
    }

    /// The CPU on which a request completes, if its completion has arrived on `here`.
    fn target(&self, found: &Detected, home: usize, here: usize) -> usize {
        let same_cell = || self.topology.cell_of(home) == self.topology.cell_of(here);
        let stays = found.choice.completion.as_ref().is_none_or(|cpus| cpus.contains(here))
            && match found.choice.rq_affinity {
                0 => true,
                1 => same_cell(),
                _ => home == here,
            };
        if stays { here } else { found.away.get(home).copied().unwrap_or(here) }
    }
}

impl Placing for Placed {
    /// The placement in effect; none before the first submit.
    fn choice(&self) -> Option<&EffectivePlacement> {
        self.found.get().map(|found| &found.choice)
    }

    /// Notes the CPU on which these requests are submitted. The first call determines the placement
    /// in effect.
    fn submitted(&self, board: &Board, slots: &[u32]) {
        let cpu = sys::cpu();
        self.found.get_or_init(|| {
            let found = self.find(cpu, board.slot(slots[0]).fd());
            if let Some(owner) = board.dispatcher() {
                owner.place(&found.choice);
            }
            found
        });
        for &slot in slots {
            let request = &self.requests[slot as usize];
            request.home.store(cpu as u32, Ordering::Relaxed);
            request.ran.store(NOWHERE, Ordering::Relaxed);
        }
    }

    /// Notes the CPU on which these requests are handed to the kernel, just before that.
    fn ran_here(&self, slots: &[u32]) {
        let cpu = sys::cpu() as u32;
        slots
            .iter()
            .for_each(|&slot| self.requests[slot as usize].ran.store(cpu, Ordering::Relaxed));
    }

    /// Sends a completion to the CPU on which it has to be processed. False: the caller completes
    /// the request here, because that is this CPU, or the completion cannot be sent.
    fn sends_away(&self, index: u32, result: i32, how: Delivery) -> bool {
        let request = &self.requests[index as usize];
        let here = sys::cpu();
        if request.ran.load(Ordering::Relaxed) == NOWHERE && how != Delivery::Posted {
            request.ran.store(here as u32, Ordering::Relaxed);
        }
        if how == Delivery::Posted && self.handler.is_none() {
            // No CPU has executed the request. The cancelling thread looks for its completion at
            // once, so the request completes here.
            return false;
        }
        let Some(found) = self.found.get() else { return false };
        let target = self.target(found, request.home.load(Ordering::Relaxed) as usize, here);
        if self.handler.is_none() && target == here {
            return false;
        }
        let Some(owner) = self.owner.upgrade() else { return false };
        let board = std::ptr::from_ref(owner.board());
        let mut done = RemoteCompletion { board, keep: None, slot: index, result, how };
        let gathered = GATHERING.get();
        // SAFETY: null, or a local variable of `together`, which is running on this thread. Nothing
        // else uses the variable meanwhile.
        if let Some(gathered) = unsafe { gathered.as_mut() }
            && gathered.board == board
        {
            for place in &mut gathered.chains {
                let new = || PendingChain { cpu: target, chain: Chain::new(), last: None };
                let gathering = place.get_or_insert_with(new);
                if gathering.cpu == target {
                    if let Some(before) = gathering.last.replace(done) {
                        let node = &self.requests[before.slot as usize].node;
                        // SAFETY: this thread has the slot, and so its node, until the completion
                        // was sent.
                        unsafe { gathering.chain.add(node, before) };
                    }
                    return true;
                }
            }
        }
        done.keep = Some(owner);
        let mut chain = Chain::new();
        // SAFETY: as above.
        unsafe { chain.add(&request.node, done) };
        self.completers.add(target, chain);
        true
    }

    /// Completions for other CPUs that `f` makes are sent to each CPU in one batch.
    fn together(&self, board: &Board, f: &mut dyn FnMut()) {
        let chains = [const { None }; GATHERED];
        let mut gathered = Gathered { board: std::ptr::from_ref(board), chains };
        /// Restores the earlier value, even after a panic.
        struct PreviousGathered(*mut Gathered);
        impl Drop for PreviousGathered {
            fn drop(&mut self) {
                GATHERING.set(self.0);
            }
        }
        let before = PreviousGathered(GATHERING.replace(&raw mut gathered));
        f();
        drop(before);
        for PendingChain { cpu, mut chain, last } in gathered.chains.into_iter().flatten() {
            let Some(mut last) = last else { continue };
            last.keep = self.owner.upgrade();
            let node = &self.requests[last.slot as usize].node;
            // SAFETY: as in `sends_away`.
            unsafe { chain.add(node, last) };
            self.completers.add(cpu, chain);
        }
    }

    /// Runs the handler for a completion, if the context has one.
    fn handle(&self, cqe: Cqe) {
        if let Some(handler) = &self.handler
            && std::panic::catch_unwind(AssertUnwindSafe(|| handler.call(cqe))).is_err()
        {
            // The panic's message was printed. Continuing would lose later completions.
            std::process::abort();
        }
    }

    /// Counts a request that completes on the calling thread's CPU.
    fn count(&self, counters: &Counters, index: u32) {
        let Some(found) = self.found.get() else { return };
        let request = &self.requests[index as usize];
        let here = sys::cpu();
        let home = request.home.load(Ordering::Relaxed) as usize;
        let ran = match request.ran.load(Ordering::Relaxed) {
            NOWHERE => here,
            ran => ran as usize,
        };
        let cell = |cpu| self.topology.cell_of(cpu);
        let near = found.near_interrupt.get(ran).is_none_or(|near| near.contains(here));
        let pairs = [
            (cell(ran) == cell(home), &counters.submissions_local, &counters.submissions_remote),
            (near, &counters.completions_local, &counters.completions_remote),
            (cell(here) == cell(home), &counters.completions_home, &counters.completions_away),
        ];
        for (local, yes, no) in pairs {
            if local { yes } else { no }.fetch_add(1, Ordering::Relaxed);
        }
        let hops = u64::from(ran != home) + u64::from(here != ran);
        if hops > 0 {
            counters.cpu_handovers.fetch_add(hops, Ordering::Relaxed);
        }
    }
}

fn device_behind(fd: RawFd) -> Result<Device, String> {
    if fd < 0 {
        return Err("the first request has no file".into());
    }
    // SAFETY: the descriptor is used for fstat(2) only, and not closed. If it is not open, the call
    // fails.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    Device::behind(&metadata)
}
