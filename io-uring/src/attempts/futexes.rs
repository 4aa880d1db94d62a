//! FUTEX_WAIT, FUTEX_WAITV and FUTEX_WAKE.
//!
//! A thread waits for the words of the program and for two words of the request, `bell` and
//! `place`. To end the wait, a thread changes and wakes `bell`. The kernel registers the waiter on
//! `place` last. From then on, a wake of any word reaches the waiting thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use uringlet::front::Patience;

use super::sleepers::{Sleeper, Tell, Telling, spawn};
use super::{Attempt, Tried};
use crate::sys::futexes::{self, FutexWaitV};

/// FUTEX_WAKE: wakes up to `count` waiters of a word. Each of them waits for a bit of the mask.
#[derive(Debug)]
pub(crate) struct FutexWake {
    pub(crate) word: u64,
    pub(crate) count: u32,
    pub(crate) mask: u32,
    pub(crate) is_private: bool,
}

impl Attempt for FutexWake {
    fn attempt(&self, _: i32) -> Tried {
        Tried::Done(match self.count {
            0 => futexes::wake_none(self.word, self.mask, self.is_private),
            count => futexes::wake(self.word, count, self.mask, self.is_private),
        })
    }
}

/// FUTEX_WAIT and FUTEX_WAITV.
#[derive(Debug)]
pub(crate) struct FutexWait {
    words: Vec<FutexWaitV>,
    /// The result says which word was woken.
    says_which: bool,
    /// 1: the wait must end.
    bell: AtomicU32,
    place: AtomicU32,
    was_cancelled: AtomicBool,
    telling: Telling,
}

/// Words that a wait can have: the kernel takes 128, and two are our own.
const MOST: usize = 126;

impl FutexWait {
    /// # Errors
    /// `-EINVAL`: there are too many words.
    pub(crate) fn new(words: Vec<FutexWaitV>, says_which: bool) -> Result<Self, i32> {
        if words.len() > MOST {
            return Err(-libc::EINVAL);
        }
        Ok(Self {
            words,
            says_which,
            bell: AtomicU32::new(0),
            place: AtomicU32::new(0),
            was_cancelled: AtomicBool::new(false),
            telling: Telling::new(),
        })
    }

    /// The result of the wait. `-ETIMEDOUT`: the call would wait, but `may_wait` is false.
    fn wait(&self, may_wait: bool) -> i32 {
        let ours = |word: &AtomicU32| FutexWaitV::own(word);
        let mut all = vec![ours(&self.bell)];
        all.extend(&self.words);
        all.push(ours(&self.place));
        loop {
            let answer = futexes::wait_any(&all, may_wait);
            if answer == -libc::EINTR {
                continue;
            }
            let is_told = self.bell.load(Ordering::Acquire) != 0;
            return match answer {
                0 => -libc::ECANCELED,
                errno if errno == -libc::EAGAIN && is_told => -libc::ECANCELED,
                1.. if self.says_which => answer - 1,
                1.. => 0,
                errno => errno,
            };
        }
    }
}

impl Attempt for FutexWait {
    fn attempt(&self, _: i32) -> Tried {
        match self.wait(false) {
            errno if errno == -libc::ETIMEDOUT => Tried::Sleeps,
            result => Tried::Done(result),
        }
    }

    fn sleeper(self: Arc<Self>) -> Option<Arc<dyn Sleeper>> {
        Some(self)
    }
}

impl Sleeper for FutexWait {
    fn sleep(self: Arc<Self>, tell: Tell) {
        let this = Arc::clone(&self);
        let wait = move || {
            let result = this.wait(true);
            let is_cancelled = result == -libc::ECANCELED;
            this.was_cancelled.store(is_cancelled, Ordering::Relaxed);
            this.telling.end(|| Some(result));
        };
        self.telling.begin(tell, || spawn(wait));
        let mut patience = Patience::default();
        while !self.telling.is_over() && !futexes::has_waiter(&self.place) {
            patience.wait();
        }
    }

    fn cancel(&self) -> bool {
        if self.telling.cancel_before() {
            return true;
        }
        self.bell.store(1, Ordering::Release);
        futexes::wake_own(&self.bell);
        let mut patience = Patience::default();
        while !self.telling.is_over() {
            patience.wait();
        }
        self.was_cancelled.load(Ordering::Relaxed)
    }
}
