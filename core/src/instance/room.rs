//! Room for further requests: which slots are free, and waits for slots that others give back.

use super::Instance;
use crate::lane::Withdraw;
use crate::request::Slot;
use crate::router::Call;
use crate::router::tuning::SOON_US;
use crate::sys;

impl Instance {
    /// Frees slots that are held although no request needs them.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&self, want: usize) {
        self.board.collect_reaped();
        self.withdraw(&Withdraw::Canceled);
        // While `withdraw` had requests out of a queue, another thread may have found the queue
        // empty, and left. This call has the watchdog call a thread for them.
        self.call(Call::Nobody);
        self.await_reaped(want);
    }

    /// Waits until `want` slots are free, while cancelled requests that were reaped still hold
    /// slots. Another thread may be popping their numbers from a queue, and frees the slots then.
    #[cold]
    fn await_reaped(&self, want: usize) {
        // The limit is 0.1 s: usually enough even if the other thread is preempted while it pops.
        let begin = sys::ticks();
        let longest = SOON_US / 10 * self.board.ticks_per_us();
        // A thread that pops several numbers frees their slots one by one, so this waits until
        // `want` slots are free.
        let most_held = self.room().saturating_sub(want);
        while self.board.free_slots().held_more_than(most_held)
            && self.board.count_held(Slot::is_of_nobody) > 0
            && sys::ticks().wrapping_sub(begin) < longest
        {
            std::thread::yield_now();
        }
    }

    /// Slots that are not free: those of [`Instance::unreaped`], and a few that will be free soon.
    pub(crate) fn held(&self) -> usize {
        self.board.free_slots().held()
    }

    /// Requests whose completions were not reaped.
    pub(crate) fn unreaped(&self) -> usize {
        self.board.count_held(|slot| !slot.is_of_nobody())
    }

    /// Is a slot free? A hint, unless no other thread submits.
    pub fn has_room(&self) -> bool {
        !self.board.free_slots().held_more_than(self.room() - 1)
    }
}
