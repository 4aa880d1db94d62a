//! A task whose futures are all ready at once would never yield. A budget makes such a task yield
//! now and then. Each thread has a budget, of operations and of bytes.
//!
//! [`in_turn`] polls a future within the budget. A future that is ready without having waited for a
//! result uses up some of the budget. Once nothing is left, further futures of the thread are
//! deferred: they wake their task and are pending. When a deferred future is polled again, its
//! executor has had the chance to run other tasks. So the budget is renewed. If a deferred future
//! is dropped, the budget is renewed, too.

use std::cell::Cell;
use std::future::Future;
use std::task::{Context, Poll};

use crate::router::tuning::{HIT_BYTES, HITS};

/// The work that was done in a poll: operations, and bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) hits: u32,
    pub(super) bytes: u32,
}

impl Spent {
    /// Adds an operation that was executed. `result` is its bytes, or a negative errno.
    pub(super) fn add(&mut self, result: i32) {
        self.hits += 1;
        self.bytes = self.bytes.saturating_add(u32::try_from(result).unwrap_or(0));
    }
}

thread_local! {
    static LEFT: Cell<Spent> = const { Cell::new(Spent { hits: HITS, bytes: HIT_BYTES }) };
}

/// Renews the thread's budget: a deferred future is polled again, or was dropped.
fn renew() {
    LEFT.set(Spent { hits: HITS, bytes: HIT_BYTES });
}

/// Whether a future was pending, and why. [`in_turn`] keeps this for each future.
#[derive(Debug, Default)]
pub(super) enum Turns {
    /// The future was not pending since its last result, or is polled again after a deferral.
    #[default]
    Fresh,
    /// The future was deferred, so that other tasks run.
    Deferred,
    /// The future was pending by itself, so other tasks have run.
    Waited,
}

impl Drop for Turns {
    fn drop(&mut self) {
        if let Self::Deferred = self {
            renew();
        }
    }
}

pub(super) trait HasTurns {
    fn turns(&mut self) -> &mut Turns;
}

/// Polls with `body`, which adds the work that it does to its last argument. If other tasks have to
/// run first, wakes the task and returns pending.
#[inline]
pub(super) fn in_turn<W: HasTurns, T>(
    what: &mut W,
    context: &mut Context<'_>,
    body: impl FnOnce(&mut W, &mut Context<'_>, &mut Spent) -> Poll<T>,
) -> Poll<T> {
    let mut spent = Spent::default();
    if let Turns::Waited = what.turns() {
        let output = body(what, context, &mut spent);
        if output.is_ready() {
            *what.turns() = Turns::Fresh;
        }
        return output;
    }
    #[cfg(feature = "tokio")]
    let coop = std::task::ready!(tokio::task::coop::poll_proceed(context));
    if let Turns::Deferred = what.turns() {
        // The drop of `Deferred` renews the budget.
        *what.turns() = Turns::Fresh;
    } else if LEFT.get().hits == 0 {
        *what.turns() = Turns::Deferred;
        context.waker().wake_by_ref();
        return Poll::Pending;
    }
    let output = body(what, context, &mut spent);
    if output.is_pending() {
        *what.turns() = Turns::Waited;
        return output;
    }
    #[cfg(feature = "tokio")]
    coop.made_progress();
    let left = LEFT.get();
    let bytes = left.bytes.saturating_sub(spent.bytes);
    let hits = if bytes == 0 { 0 } else { left.hits.saturating_sub(spent.hits.max(1)) };
    LEFT.set(Spent { hits, bytes });
    output
}

/// A future of this module, whose [`Future`] is made by [`awaited`].
pub(super) trait Awaited: Future + HasTurns + Unpin {
    /// Polls without a check of the budget: for [`in_turn`], for code that it calls, and for code
    /// that blocks its thread. Adds the work that was done to `spent`.
    fn poll_in_turn(&mut self, context: &mut Context<'_>, spent: &mut Spent) -> Poll<Self::Output>;
}

/// Implements [`Future`] for a type that is [`Awaited`] and has the field `turns`. No other file of
/// this module implements `Future`: a test checks that.
macro_rules! awaited {
    ($name:ident $(<$parameter:ident: $bound:ident>)?, $output:ty) => {
        impl$(<$parameter: $bound>)? $crate::fs::budget::HasTurns for $name$(<$parameter>)? {
            #[inline]
            fn turns(&mut self) -> &mut $crate::fs::budget::Turns {
                &mut self.turns
            }
        }

        impl$(<$parameter: $bound>)? std::future::Future for $name$(<$parameter>)? {
            type Output = $output;

            /// # Panics
            /// The future was polled after it was ready.
            #[inline]
            fn poll(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<$output> {
                let poll = $crate::fs::budget::Awaited::poll_in_turn;
                $crate::fs::budget::in_turn(&mut *self, context, poll)
            }
        }
    };
}
pub(super) use awaited;
