//! The completion threads of this process: one for each CPU in use, made when needed, gone when
//! idle.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use super::completion::{Chain, CompletionList, Owner};
use crate::board::{Board, Delivery, Dispatcher};
use crate::cpus::CPUS_MAX;
use crate::process::PerProcess;
use crate::router::tuning::RETIRE_AFTER;
use crate::threads::spawn::spawn_on;

/// A completion on its way to the CPU on which it has to be processed.
#[derive(Debug)]
pub(super) struct RemoteCompletion {
    /// The board of a live context. The slot of this completion is held, so the context is not
    /// destroyed. The newest completion of the chain keeps the board's memory.
    pub(super) board: *const Board,
    /// Set in the newest completion of a chain, where it keeps the context alive for the whole
    /// chain.
    pub(super) keep: Option<Arc<dyn Dispatcher>>,
    pub(super) slot: u32,
    pub(super) result: i32,
    pub(super) how: Delivery,
}

// SAFETY: a board can be used from any thread.
unsafe impl Send for RemoteCompletion {}

/// The completion list of one CPU. A thread on that CPU serves it, and ends when idle.
#[derive(Debug)]
pub(super) struct Completer {
    cpu: usize,
    list: CompletionList<RemoteCompletion>,
}

/// The completers of a process, by CPU.
#[derive(Debug)]
pub(super) struct Completers {
    by_cpu: Box<[OnceLock<Box<Completer>>]>,
}

static COMPLETERS: PerProcess<Completers> = PerProcess::new();

impl Completers {
    /// The completers of this process. The child of a fork gets a new set, because its parent's
    /// threads do not exist there.
    pub(super) fn of_this_process() -> &'static Self {
        let by_cpu = || (0..CPUS_MAX).map(|_| OnceLock::new()).collect();
        let Ok(completers) =
            COMPLETERS.current_or(|| Ok::<_, Infallible>(Self { by_cpu: by_cpu() }));
        completers
    }

    /// Makes the CPU's thread complete the requests on the chain.
    pub(super) fn add(&'static self, cpu: usize, chain: Chain<RemoteCompletion>) {
        let place = &self.by_cpu[cpu.min(CPUS_MAX - 1)];
        let completer =
            place.get_or_init(|| Box::new(Completer { cpu, list: CompletionList::new() }));
        match completer.list.add(chain) {
            Owner::Awake => {}
            Owner::Asleep => completer.list.wake(),
            Owner::Gone => completer.make(),
        }
    }
}

impl Completer {
    /// Makes a thread for the list, which has no owner. If that fails, serves the list here.
    #[cold]
    fn make(&'static self) {
        let cpus = [self.cpu].into_iter().collect();
        let made = spawn_on("complete", Some(&cpus), move || {
            self.serve(|| self.list.rest(Some(RETIRE_AFTER)));
        });
        if made.is_err() {
            // The completions are handled on the current CPU.
            self.serve(|| !self.list.leave());
        }
    }

    fn serve(&self, mut stay: impl FnMut() -> bool) {
        loop {
            let drained = self.list.drain(|done| {
                // SAFETY: the slot is held until this completion is handled, so the context is not
                // destroyed. The chain's newest completion keeps the board's memory. It is this
                // one, or is handled later.
                let board = unsafe { &*done.board };
                board.complete_placed(done.slot, done.result, done.how);
            });
            if drained == 0 && !stay() {
                return;
            }
        }
    }
}
