//! The right to collect a kernel lane's completions: one thread at a time has it, asleep or awake.
//!
//! While requests are in flight, a waiting thread has to have the right. A thread that gives it up
//! wakes threads that sleep elsewhere, on the completion queue. These have registered as sleepers
//! of the completion queue first, and read this word afterwards. So either the thread that gives up
//! the right sees the sleeper, or the sleeper sees that the right is free.
//!
//! A signal handler may leave the sleep by a jump (siglongjmp(3)), and then nobody gives the right
//! up. So the word names the thread that sleeps with the right. When that thread wants the right
//! again, it takes the right from its own sleep. That sleep is over, or interrupted by the handler
//! that asks.

use crate::queue::Completions;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence, this_thread};

/// `FREE`: no thread has the right. `AWAKE`: a thread has it and is awake.
const FREE: usize = 0;
const AWAKE: usize = 1;

#[derive(Debug)]
pub(crate) struct Reaper {
    /// [`FREE`], [`AWAKE`], or the thread that sleeps with the right.
    holder: AtomicUsize,
    /// A thread wanted the right while another had it.
    wanted: AtomicBool,
}

/// The right, given up on drop: [`Reaper::pass_on`] has to follow.
#[derive(Debug)]
pub(crate) struct Reaping<'a> {
    reaper: &'a Reaper,
    is_held: bool,
}

impl Reaper {
    pub(crate) fn new() -> Self {
        Self { holder: AtomicUsize::new(FREE), wanted: AtomicBool::new(false) }
    }

    /// Takes the right, if it is free, or held by a sleep of this thread.
    #[inline]
    pub(crate) fn take(&self) -> Option<Reaping<'_>> {
        // The load comes first, so that threads that only check do not take the cache line from the
        // holder.
        let holder = self.holder.load(Ordering::Relaxed);
        if holder != FREE && (holder == AWAKE || holder != this_thread()) {
            return None;
        }
        let taken =
            self.holder.compare_exchange(holder, AWAKE, Ordering::Acquire, Ordering::Relaxed);
        // The `Reaping` is made only if the exchange has succeeded, because dropping one gives up
        // the right.
        taken.is_ok().then(|| Reaping { reaper: self, is_held: true })
    }

    /// As [`Reaper::take`], for a thread that is signalled once for its completions. `None`:
    /// [`Reaper::was_wanted`] tells the holder that this thread wanted the right.
    pub(crate) fn take_or_be_missed(&self) -> Option<Reaping<'_>> {
        self.take().or_else(|| {
            self.wanted.store(true, Ordering::Relaxed);
            if self.is_free() { self.take() } else { None }
        })
    }

    /// Asked after [`Reaper::pass_on`]: did a thread want the right meanwhile? Then the caller has
    /// to call that thread.
    #[inline]
    pub(crate) fn was_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Is the right free? Asked by a thread that is registered as a sleeper, and about to sleep
    /// elsewhere.
    pub(crate) fn is_free(&self) -> bool {
        // Pairs with the fence in `pass_on`. Two threads each write their own word, and then read
        // the other's: at least one reads what was written.
        fence(Ordering::SeqCst);
        self.holder.load(Ordering::Relaxed) == FREE
    }

    fn sees_sleepers(completions: &Completions) -> bool {
        fence(Ordering::SeqCst);
        completions.has_sleepers()
    }

    /// The right was given up, and requests are in flight. Wakes a thread that sleeps elsewhere, so
    /// that it takes the right.
    pub(crate) fn pass_on(&self, completions: &Completions) {
        if Self::sees_sleepers(completions) {
            completions.wake_now();
        }
    }
}

impl Reaping<'_> {
    /// Calls `sleep`. In it, a signal handler may take the right ([`Reaping::is_held`]), or leave
    /// the sleep by a jump.
    #[cfg(not(loom))]
    pub(crate) fn asleep<T>(&mut self, sleep: impl FnOnce() -> T) -> T {
        let (holder, me) = (&self.reaper.holder, this_thread());
        holder.store(me, Ordering::Release);
        let slept = sleep();
        let back = holder.compare_exchange(me, AWAKE, Ordering::Acquire, Ordering::Relaxed);
        self.is_held = back.is_ok();
        slept
    }

    /// Does this thread still have the right? A signal handler may have taken it during the sleep.
    #[cfg(not(loom))]
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.reaper.holder.store(FREE, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Reaper;

    fn is_taken_by_another_thread(reaper: &Reaper) -> bool {
        std::thread::scope(|scope| scope.spawn(|| reaper.take().is_none()).join().unwrap())
    }

    #[test]
    fn a_sleeping_holder_keeps_the_right_from_other_threads_only() {
        let reaper = Reaper::new();
        let mut right = reaper.take().expect("free");
        assert!(reaper.take().is_none() && is_taken_by_another_thread(&reaper));
        assert_eq!(right.asleep(|| 7), 7);
        assert!(right.is_held() && reaper.take().is_none());
        // A signal handler's jump: the thread comes again, and the code after the sleep never runs.
        right.asleep(|| {
            assert!(is_taken_by_another_thread(&reaper));
            drop(reaper.take().expect("from the sleep"));
        });
        // Or the handler has returned, and another thread takes the right.
        assert!(!right.is_held() && reaper.is_free());
        let other = reaper.take().expect("free");
        drop(right);
        assert!(!reaper.is_free(), "it is not given up by who has lost it");
        drop(other);
        assert!(reaper.is_free());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: a thread that is never woken while requests are in flight and nobody
    //! collects them.

    use std::cell::Cell;

    use super::{AtomicBool, Ordering, Reaper, Reaping};
    use crate::queue::{Completions, Ring, Sleeper};
    use crate::sync::AtomicU32;
    use loom::sync::Arc;
    use loom::thread;

    fn reaper_and_queue() -> (Arc<Reaper>, Arc<Completions>) {
        (Arc::new(Reaper::new()), Arc::new(Completions::new(Ring::cqes(1), 1)))
    }

    /// Two threads want the right. `takes` may only give it to one at a time.
    fn is_exclusive(takes: fn(&Reaper) -> Option<Reaping<'_>>) {
        loom::model(move || {
            let reaper = Arc::new(Reaper::new());
            let holders = Arc::new(AtomicU32::new(0));
            let collect = move |reaper: &Reaper, holders: &AtomicU32| {
                for _ in 0..2 {
                    if let Some(right) = takes(reaper) {
                        assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two have it");
                        holders.fetch_sub(1, Ordering::Relaxed);
                        drop(right);
                    }
                }
            };
            let (other, counted) = (Arc::clone(&reaper), Arc::clone(&holders));
            let thread = thread::spawn(move || collect(&other, &counted));
            collect(&reaper, &holders);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_one_thread_at_a_time_has_the_right() {
        is_exclusive(Reaper::take);
    }

    /// A thread that gives up a right that it did not get.
    #[test]
    #[should_panic(expected = "two have it")]
    fn loom_a_thread_that_gives_up_what_it_did_not_get() {
        is_exclusive(|reaper| {
            let took = reaper.take();
            if took.is_none() {
                drop(Reaping { reaper, is_held: true });
            }
            took
        });
    }

    /// A submitter hands over, and copies a part of the request only afterwards. The thread that
    /// collects the completion has to find that part. `has_the_right`: the submitter takes the
    /// right to collect, and keeps it meanwhile. If another thread has the right, the submitter
    /// copies first.
    fn is_whole(has_the_right: bool) {
        loom::model(move || {
            let reaper = Arc::new(Reaper::new());
            let (ended, copied) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
            let all = (Arc::clone(&reaper), Arc::clone(&ended), Arc::clone(&copied));
            let collector = thread::spawn(move || {
                let (reaper, ended, copied) = all;
                for _ in 0..2 {
                    let right = reaper.take();
                    if right.is_some() && ended.load(Ordering::Acquire) {
                        assert_eq!(copied.load(Ordering::Relaxed), 1, "it is not whole");
                    }
                }
            });
            let right = if has_the_right { reaper.take() } else { None };
            let copies_first = has_the_right && right.is_none();
            if copies_first {
                copied.store(1, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Release);
            if !copies_first {
                copied.store(1, Ordering::Relaxed);
            }
            drop(right);
            collector.join().unwrap();
        });
    }

    #[test]
    fn loom_what_is_handed_over_under_the_right_is_whole_when_it_is_collected() {
        is_whole(true);
    }

    #[test]
    #[should_panic(expected = "it is not whole")]
    fn loom_canary_what_is_handed_over_without_the_right_is_not_whole() {
        is_whole(false);
    }

    #[test]
    fn loom_the_right_to_collect_is_passed_on() {
        loom::model(|| {
            let (reaper, completions) = reaper_and_queue();
            let right = reaper.take().expect("free");
            let (other, queue) = (Arc::clone(&reaper), Arc::clone(&completions));
            let waiter = thread::spawn(move || {
                while other.take().is_none() {
                    let stay_up = || other.is_free();
                    let sleeper = Sleeper {
                        need: 1,
                        concern: None,
                        stay_up: &stay_up,
                        even_if_closed: false,
                        restarts: false,
                    };
                    queue.sleep(&sleeper, None);
                }
            });
            drop(right);
            reaper.pass_on(&completions);
            // A thread that is never woken would be a deadlock.
            waiter.join().unwrap();
        });
    }

    /// Either the thread that leaves sees the sleeper, or the sleeper sees the free right.
    /// `looks_after`: the sleeper checks after it is registered, not before.
    fn one_sees_the_other(looks_after: bool) {
        loom::model(move || {
            let (reaper, completions) = reaper_and_queue();
            let right = reaper.take().expect("free");
            let (other, queue) = (Arc::clone(&reaper), Arc::clone(&completions));
            let has_looked = Arc::new(AtomicBool::new(false));
            let leaver_has_looked = Arc::clone(&has_looked);
            let waiter = thread::spawn(move || {
                let before = other.is_free();
                let after = Cell::new(false);
                let stay_up = || {
                    after.set(other.is_free());
                    // The thread stays registered, as a sleeping thread does.
                    while !leaver_has_looked.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    true
                };
                let sleeper = Sleeper {
                    need: 1,
                    concern: None,
                    stay_up: &stay_up,
                    even_if_closed: false,
                    restarts: false,
                };
                queue.sleep(&sleeper, None);
                if looks_after { after.get() } else { before }
            });
            drop(right);
            let seen = Reaper::sees_sleepers(&completions);
            has_looked.store(true, Ordering::Release);
            assert!(waiter.join().unwrap() || seen, "neither sees the other");
        });
    }

    #[test]
    fn loom_leaver_or_sleeper_sees_the_other() {
        one_sees_the_other(true);
    }

    /// A request completes. The thread that is signalled for it wants to collect, while another is
    /// about to give up the right. `looks`: the thread that gives it up checks whether the right
    /// was wanted.
    fn what_has_completed_is_collected(looks: bool) {
        loom::model(move || {
            let (reaper, completions) = reaper_and_queue();
            let completed = Arc::new(AtomicBool::new(false));
            let right = reaper.take().expect("free");
            let (other, also_completed) = (Arc::clone(&reaper), Arc::clone(&completed));
            let told = thread::spawn(move || {
                also_completed.store(true, Ordering::Relaxed);
                other.take_or_be_missed().is_some()
            });
            let collected = completed.load(Ordering::Relaxed);
            drop(right);
            reaper.pass_on(&completions);
            let calls = looks && reaper.was_wanted();
            assert!(collected | told.join().unwrap() | calls, "nobody collects");
        });
    }

    #[test]
    fn loom_who_is_told_once_collects_or_is_called() {
        what_has_completed_is_collected(true);
    }

    /// Collects completions, gives the right up, and wakes the loop if the loop has wanted the
    /// right.
    fn collect(
        right: Reaping<'_>,
        reaper: &Reaper,
        queue: &Completions,
        (completed, eventfd): &(AtomicU32, AtomicU32),
    ) {
        completed.swap(0, Ordering::AcqRel);
        drop(right);
        reaper.pass_on(queue);
        if reaper.was_wanted() {
            eventfd.fetch_add(1, Ordering::Release);
        }
    }

    /// The kernel completes a request, and then counts its eventfd up. That, or something else, has
    /// woken an event loop. The loop collects, drains the eventfd, and then sleeps until the
    /// eventfd is counted up. `drains_first`: the loop drains between two collections, not after
    /// the last. Another thread collects, too.
    fn a_loop_is_woken_for_what_is_left(drains_first: bool) {
        loom::model(move || {
            let (reaper, queue) = reaper_and_queue();
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let kernel = Arc::clone(&words);
            let kernel = thread::spawn(move || {
                kernel.0.fetch_add(1, Ordering::Relaxed);
                kernel.1.fetch_add(1, Ordering::Release);
            });
            let (reaper_too, queue_too, words_too) =
                (Arc::clone(&reaper), Arc::clone(&queue), Arc::clone(&words));
            let other = thread::spawn(move || {
                if let Some(right) = reaper_too.take() {
                    collect(right, &reaper_too, &queue_too, &words_too);
                }
            });
            let collect_if_free = || {
                if let Some(right) = reaper.take_or_be_missed() {
                    collect(right, &reaper, &queue, &words);
                }
            };
            if drains_first {
                // The program's call returns after this collection. Its next call that waits drains
                // first.
                collect_if_free();
                words.1.swap(0, Ordering::AcqRel);
            }
            collect_if_free();
            if !drains_first {
                words.1.swap(0, Ordering::AcqRel);
            }
            kernel.join().unwrap();
            other.join().unwrap();
            let [left, told] = [&words.0, &words.1].map(|word| word.load(Ordering::Relaxed));
            assert!(left == 0 || told > 0, "it sleeps beside a completion");
        });
    }

    #[test]
    fn loom_a_loop_that_drains_before_it_collects_is_woken() {
        a_loop_is_woken_for_what_is_left(true);
    }

    /// Canary: a loop that drains the eventfd after collecting may drain the signal for a
    /// completion that it has not seen.
    #[test]
    #[should_panic(expected = "it sleeps beside a completion")]
    fn loom_canary_a_loop_that_drains_afterwards_sleeps_on() {
        a_loop_is_woken_for_what_is_left(false);
    }

    /// The kernel has completed a request, and counts the program's eventfd up. Another thread
    /// collects and posts the completion. The program sleeps on the eventfd, drains it, and reaps:
    /// if nothing is posted, it wants to collect. `asks_first`: it collects only if the kernel has
    /// requests.
    fn a_program_finds_what_another_thread_collects(asks_first: bool) {
        loom::model(move || {
            let (reaper, queue) = reaper_and_queue();
            // Requests that the kernel has; completions posted; the eventfd.
            let words = || (AtomicU32::new(1), AtomicU32::new(0), AtomicU32::new(1));
            let words = Arc::new(words());
            let (reaper_too, queue_too, words_too) =
                (Arc::clone(&reaper), Arc::clone(&queue), Arc::clone(&words));
            let finish = |(in_kernel, posted, _): &(AtomicU32, AtomicU32, AtomicU32)| {
                if in_kernel.swap(0, Ordering::AcqRel) > 0 {
                    posted.store(1, Ordering::Release);
                }
            };
            let other = thread::spawn(move || {
                if let Some(right) = reaper_too.take() {
                    finish(&words_too);
                    drop(right);
                    reaper_too.pass_on(&queue_too);
                    if reaper_too.was_wanted() {
                        words_too.2.fetch_add(1, Ordering::Release);
                    }
                }
            });
            words.2.swap(0, Ordering::AcqRel);
            let is_posted = || words.1.load(Ordering::Acquire) > 0;
            if !is_posted()
                && (!asks_first || words.0.load(Ordering::Acquire) > 0)
                && let Some(right) = reaper.take_or_be_missed()
            {
                finish(&words);
                drop(right);
            }
            let reaps = is_posted();
            other.join().unwrap();
            assert!(reaps || words.2.load(Ordering::Relaxed) > 0, "it sleeps beside a completion");
        });
    }

    #[test]
    fn loom_a_program_finds_what_another_thread_collects() {
        a_program_finds_what_another_thread_collects(false);
    }

    /// Canary: the other thread has taken the request from the kernel, and not posted it yet.
    #[test]
    #[should_panic(expected = "it sleeps beside a completion")]
    fn loom_canary_a_program_that_asks_the_kernel_first_sleeps_on() {
        a_program_finds_what_another_thread_collects(true);
    }

    /// Canary: a thread that gives up the right without checking leaves a completion.
    #[test]
    #[should_panic(expected = "nobody collects")]
    fn loom_canary_a_holder_that_does_not_look_leaves_a_completion() {
        what_has_completed_is_collected(false);
    }

    /// Canary: a thread that checks only before it is registered is left asleep.
    #[test]
    #[should_panic(expected = "neither sees the other")]
    fn loom_canary_looking_before_is_too_early() {
        one_sees_the_other(false);
    }
}
