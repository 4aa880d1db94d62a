//! Fsyncs of one descriptor that come while one is under way. They wait for it, and then one call
//! serves all of them. Databases call this a group commit. Executed alone, each fsync would have
//! the device flush its cache.
//!
//! A *seat* is the place where the fsyncs of one descriptor wait; there are a few. The thread that
//! executes the descriptor's fsyncs has the seat. A seat is one word: `fd << 33 | (newest waiting
//! slot + 1) << 1 | TAKEN`. Waiting slots are linked. A call serves only fsyncs that came before it
//! began: the thread that has the seat takes them out of the word first.

use crate::sync::{AtomicU64, Ordering};

const TAKEN: u64 = 1;
const SLOT: u64 = 0xffff_ffff << 1;
const FD_SHIFT: u32 = 33;
/// The number of descriptors on which fsyncs can wait for another fsync. Each fsync of a further
/// descriptor is executed alone.
const SEATS: usize = 8;

#[derive(Debug)]
pub(crate) struct Seats([AtomicU64; SEATS]);

/// What an arriving fsync does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The calling thread has this seat: it executes the fsync, and then the waiting ones.
    Leads(usize),
    /// The fsync waits at the seat of its descriptor. The thread that has the seat executes it.
    Waits,
    /// No seat is free: the calling thread executes this fsync only.
    Alone,
}

/// The word of a seat where no fsync waits.
fn taken_for(fd: i32) -> u64 {
    u64::from(fd as u32) << FD_SHIFT | TAKEN
}

fn newest(word: u64) -> Option<u32> {
    ((word & SLOT) >> 1).checked_sub(1).map(|slot| slot as u32)
}

impl Seats {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Registers an fsync of `fd`. If a seat is free, the calling thread has the seat until no
    /// fsync waits there. `link` gets the newest waiting slot, and has to make it reachable from
    /// `slot`. `link` may be called again. Once `link` was called, other threads may see `slot`
    /// waiting, even before this function returns.
    pub(crate) fn arrive(&self, fd: i32, slot: u32, mut link: impl FnMut(Option<u32>)) -> Arrival {
        loop {
            let Err(free) = self.join(fd, slot, &mut link) else { return Arrival::Waits };
            let Some(at) = free else { return Arrival::Alone };
            let taken = taken_for(fd);
            let seat = self.0[at].compare_exchange(0, taken, Ordering::AcqRel, Ordering::Relaxed);
            if seat.is_ok() {
                return Arrival::Leads(at);
            }
        }
    }

    /// As [`Seats::arrive`], if another thread executes an fsync of this descriptor. Otherwise
    /// returns a free seat, if there is one.
    pub(crate) fn join(
        &self,
        fd: i32,
        slot: u32,
        mut link: impl FnMut(Option<u32>),
    ) -> Result<(), Option<usize>> {
        let taken = taken_for(fd);
        let mut free = None;
        for (at, seat) in self.0.iter().enumerate() {
            let mut now = seat.load(Ordering::Relaxed);
            if now == 0 {
                free.get_or_insert(at);
            }
            while now & !SLOT == taken {
                link(newest(now));
                let waiting = taken | (u64::from(slot) + 1) << 1;
                // Release: the thread at the seat sees the link and the request.
                match seat.compare_exchange(now, waiting, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return Ok(()),
                    Err(changed) => now = changed,
                }
            }
        }
        Err(free)
    }

    /// Takes the newest slot that waits at this seat, and those linked to it. `None`: no slot
    /// waits, and the seat is free. For the thread that has the seat.
    pub(crate) fn next(&self, seat: usize) -> Option<u32> {
        let seat = &self.0[seat];
        let mut now = seat.load(Ordering::Relaxed);
        loop {
            let waiting = newest(now);
            let next = if waiting.is_some() { now & !SLOT } else { 0 };
            match seat.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return waiting,
                Err(changed) => now = changed,
            }
        }
    }

    /// As [`next`](Self::next), and frees the seat in any case.
    pub(crate) fn leave(&self, seat: usize) -> Option<u32> {
        newest(self.0[seat].swap(0, Ordering::AcqRel))
    }

    /// The newest slot that waits at this seat.
    #[cfg(test)]
    pub(crate) fn newest_waiting(&self, seat: usize) -> Option<u32> {
        newest(self.0[seat].load(Ordering::Acquire))
    }

    /// Takes the waiting slots of each seat whose descriptor is `wanted`. `f` gets the newest slot
    /// of each. Any thread may call this.
    pub(crate) fn take_waiting(&self, wanted: impl Fn(i32) -> bool, mut f: impl FnMut(u32)) {
        for seat in &self.0 {
            let mut now = seat.load(Ordering::Relaxed);
            while let Some(slot) = newest(now)
                && wanted((now >> FD_SHIFT) as i32)
            {
                let none = now & !SLOT;
                match seat.compare_exchange(now, none, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        f(slot);
                        break;
                    }
                    Err(changed) => now = changed,
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Arrival, SEATS, Seats};

    #[test]
    fn those_of_one_descriptor_wait_and_others_do_not() {
        let syncs = Seats::new();
        let mut below = Vec::new();
        assert_eq!(syncs.arrive(5, 0, |_| panic!("nobody is there")), Arrival::Leads(0));
        assert_eq!(syncs.arrive(6, 1, |_| panic!("another one")), Arrival::Leads(1));
        for slot in [2, 3] {
            assert_eq!(syncs.arrive(5, slot, |newest| below.push(newest)), Arrival::Waits);
        }
        assert_eq!(below, [None, Some(2)]);
        assert_eq!(syncs.next(0), Some(3));
        assert_eq!(syncs.next(0), None);
        assert_eq!(syncs.arrive(i32::MAX, 4, |_| panic!("it is free")), Arrival::Leads(0));
        assert_eq!(syncs.arrive(6, 5, |_| ()), Arrival::Waits);
        assert_eq!(syncs.leave(1), Some(5));
        assert_eq!(syncs.arrive(6, 6, |_| panic!("it is free")), Arrival::Leads(1));
    }

    #[test]
    fn without_a_seat_it_is_alone_and_what_waits_can_be_taken_away() {
        let syncs = Seats::new();
        for fd in 0..SEATS {
            assert_eq!(syncs.arrive(fd as i32, fd as u32, |_| ()), Arrival::Leads(fd));
        }
        assert_eq!(syncs.arrive(100, 100, |_| ()), Arrival::Alone);
        assert_eq!(syncs.arrive(3, 101, |_| ()), Arrival::Waits);
        let mut taken = Vec::new();
        syncs.take_waiting(|fd| fd != 3, |slot| taken.push(slot));
        assert!(taken.is_empty());
        syncs.take_waiting(|_| true, |slot| taken.push(slot));
        assert_eq!(taken, [101]);
        assert_eq!(syncs.next(3), None, "its thread finds nobody, and goes");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: an fsync that no thread executes, or one that is served by a call that
    //! had begun before it came.

    use super::{Arrival, Seats};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    /// Three slots, each with its link, and a thread that writes once before its fsync. `written`
    /// has a bit for each slot whose thread has written. `synced` has, for each slot, the bits of
    /// `written` at the beginning of the call that synced it.
    struct Model {
        syncs: Seats,
        links: [AtomicU32; 3],
        synced: [AtomicU32; 3],
        written: AtomicU32,
    }

    const NOBODY: u32 = u32::MAX;

    impl Model {
        fn run(sync: fn(&Self, u32)) {
            loom::model(move || {
                let model = Arc::new(Self {
                    syncs: Seats::new(),
                    links: std::array::from_fn(|_| AtomicU32::new(NOBODY)),
                    synced: std::array::from_fn(|_| AtomicU32::new(0)),
                    written: AtomicU32::new(0),
                });
                let threads = [1, 2].map(|slot| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.write_and_sync(slot, sync))
                });
                model.write_and_sync(0, sync);
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                for slot in 0..3 {
                    let synced = model.synced[slot].load(Ordering::SeqCst);
                    assert!(synced & 1 << slot != 0, "not synced what was written before");
                }
            });
        }

        fn write_and_sync(&self, slot: u32, sync: fn(&Self, u32)) {
            self.written.fetch_add(1 << slot, Ordering::SeqCst);
            sync(self, slot);
        }

        fn arrive(&self, slot: u32) -> Arrival {
            let link = |below: Option<u32>| {
                self.links[slot as usize].store(below.unwrap_or(NOBODY), Ordering::Relaxed);
            };
            self.syncs.arrive(3, slot, link)
        }

        /// One fsync call, for the newest slot and all slots that are linked to it.
        fn execute(&self, newest: u32, written: u32) {
            let mut slot = newest;
            while slot != NOBODY {
                let below = self.links[slot as usize].load(Ordering::Relaxed);
                let before = self.synced[slot as usize].swap(written, Ordering::SeqCst);
                assert_eq!(before, 0, "synced twice");
                slot = below;
            }
        }

        fn sync(&self, slot: u32) {
            let arrival = self.arrive(slot);
            if arrival == Arrival::Waits {
                return;
            }
            self.links[slot as usize].store(NOBODY, Ordering::Relaxed);
            let written = self.written.load(Ordering::SeqCst);
            self.execute(slot, written);
            if let Arrival::Leads(seat) = arrival {
                while let Some(newest) = self.syncs.next(seat) {
                    let written = self.written.load(Ordering::SeqCst);
                    self.execute(newest, written);
                }
            }
        }
    }

    #[test]
    fn loom_every_fsync_is_executed_once_and_after_it_came() {
        Model::run(Model::sync);
    }

    /// Canary: a call serves fsyncs that came while it was under way.
    #[test]
    #[should_panic(expected = "not synced")]
    fn loom_canary_an_fsync_that_had_begun_does_not_count_for_later_ones() {
        Model::run(|model, slot| {
            let Arrival::Leads(seat) = model.arrive(slot) else { return };
            let written = model.written.load(Ordering::SeqCst);
            model.execute(slot, written);
            while let Some(newest) = model.syncs.next(seat) {
                model.execute(newest, written);
            }
        });
    }

    /// Canary: a thread that leaves without checking for waiting fsyncs.
    #[test]
    #[should_panic(expected = "not synced")]
    fn loom_canary_leaving_without_a_look_leaves_an_fsync_behind() {
        Model::run(|model, slot| {
            let Arrival::Leads(seat) = model.arrive(slot) else { return };
            let written = model.written.load(Ordering::SeqCst);
            model.execute(slot, written);
            let _ = model.syncs.leave(seat);
        });
    }
}
