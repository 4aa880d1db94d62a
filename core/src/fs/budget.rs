//! A loop of reads that are all in memory never waits: now and then it lets others run.
//!
//! Nobody tells a future when its executor comes around. But an operation that was put off is
//! polled again only after its task was: until then every other one on this thread is put off as
//! well.

use std::cell::Cell;
use std::task::{Context, Poll};

use crate::router::tuning::{HIT_BYTES, HITS};

#[derive(Clone, Copy)]
struct Left {
    hits: u32,
    bytes: u32,
}

const FULL: Left = Left { hits: HITS, bytes: HIT_BYTES };

thread_local! {
    static LEFT: Cell<Left> = const { Cell::new(FULL) };
}

/// One operation may be done on the spot.
pub(super) struct BudgetTurn {
    #[cfg(feature = "tokio")]
    coop: tokio::task::coop::RestoreOnPending,
}

impl BudgetTurn {
    /// It was, with so many bytes.
    pub(super) fn made_progress(self, bytes: u32) {
        #[cfg(feature = "tokio")]
        self.coop.made_progress();
        let left = LEFT.get();
        let bytes = left.bytes.saturating_sub(bytes);
        let hits = if bytes == 0 { 0 } else { left.hits.saturating_sub(1) };
        LEFT.set(Left { hits, bytes });
    }
}

/// Asks for a turn. Pending: the task is woken, and `deferred` is set.
pub(super) fn turn(context: &mut Context<'_>, deferred: &mut bool) -> Poll<BudgetTurn> {
    #[cfg(feature = "tokio")]
    let coop = std::task::ready!(tokio::task::coop::poll_proceed(context));
    if std::mem::take(deferred) {
        renew();
    } else if LEFT.get().hits == 0 {
        *deferred = true;
        context.waker().wake_by_ref();
        return Poll::Pending;
    }
    Poll::Ready(BudgetTurn {
        #[cfg(feature = "tokio")]
        coop,
    })
}

/// The executor has come around, or the operation that would have seen it is gone.
pub(super) fn renew() {
    LEFT.set(FULL);
}
