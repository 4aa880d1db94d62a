//! Operations in the background: only a few of them at a time compete with the others.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::flight::Claim;
use crate::word::admission::Admission;

/// The gate that background operations pass before they join the line of all requests.
#[derive(Debug)]
pub(super) struct BackgroundGate<T> {
    waiting: Admission<T>,
    /// Operations that have passed the gate, and have not ended.
    passed: AtomicUsize,
    max: usize,
}

/// An operation that waits at a gate.
pub(super) trait AtGate: Sized {
    /// The claim by which one thread starts or withdraws an operation that waits at the gate.
    fn gate_claim(&self) -> &Claim;
    /// Drops the gate's reference to an operation that was withdrawn.
    fn forget(self);
}

impl<T: AtGate> BackgroundGate<T> {
    /// A gate for this many operations at a time.
    pub(super) fn new(max: usize) -> Self {
        Self { waiting: Admission::new(), passed: AtomicUsize::new(0), max }
    }

    /// Does no operation wait here? Called after [`BackgroundGate::leave`], with a fence between.
    /// Without a fence, call [`BackgroundGate::made_room`], which has one.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of waiting operations.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn has_room(&self) -> bool {
        self.passed.load(Ordering::Acquire) < self.max
    }

    fn admit(&self) -> bool {
        let room = |now| (now < self.max).then_some(now + 1);
        self.passed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, room).is_ok()
    }

    /// Passes an operation to `start`, or has it wait here until there is room.
    pub(super) fn enter(&self, one: T, start: impl Fn(T)) {
        if self.waiting.is_empty() && self.admit() {
            return start(one);
        }
        one.gate_claim().offer();
        self.waiting.push_back(one);
        self.pass_on(start);
    }

    /// Counts an operation that had passed the gate as ended. The caller calls
    /// [`BackgroundGate::made_room`] afterwards.
    pub(super) fn leave(&self) {
        self.passed.fetch_sub(1, Ordering::Release);
    }

    /// Passes waiting operations to `start`, after one that had passed the gate may have ended.
    pub(super) fn made_room(&self, start: impl Fn(T)) {
        if self.waiting.waits_for_room() {
            self.pass_on(start);
        }
    }

    /// Counts an operation that was withdrawn here, and passes the next one to `start`.
    pub(super) fn note_withdrawn(&self, start: impl Fn(T)) {
        let gone = self.waiting.note_withdrawn(|one| one.gate_claim().is_claimed());
        gone.into_iter().for_each(T::forget);
        self.pass_on(start);
    }

    fn pass_on(&self, start: impl Fn(T)) {
        let mut gone = Vec::new();
        self.waiting.run(
            || self.pass_on_now(&mut gone, &start),
            || {
                self.waiting
                    .first(|first| first.gate_claim().is_claimed() || self.has_room())
                    .unwrap_or(true)
            },
        );
        gone.into_iter().for_each(T::forget);
    }

    /// The part of [`BackgroundGate::pass_on`] that one thread at a time executes. Withdrawn
    /// operations go to `gone`. False: an operation waits, and there is no room for it.
    fn pass_on_now(&self, gone: &mut Vec<T>, start: &impl Fn(T)) -> bool {
        loop {
            let mut is_admitted = false;
            let next = self.waiting.take_if(|first| {
                is_admitted = self.admit();
                is_admitted || first.gate_claim().is_claimed()
            });
            let next = match next {
                Ok(next) => next,
                Err(is_empty) => return is_empty,
            };
            let was_withdrawn = !next.gate_claim().claim();
            if !was_withdrawn {
                start(next);
            } else {
                if is_admitted {
                    self.leave();
                }
                gone.push(next);
            }
            self.waiting.passed(was_withdrawn);
        }
    }
}
