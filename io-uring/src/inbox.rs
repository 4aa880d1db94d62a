//! Mail for the thread that holds a lock, from threads that must not wait for the lock. They put
//! their mail into the inbox. The holder reads the mail after taking the lock, and looks for more
//! after releasing it.
//!
//! | brings mail | gives the lock back |
//! |---|---|
//! | puts it into the inbox | unlocks |
//! | fence | fence |
//! | tries the lock, and then reads the mail | looks for mail; if there is some, tries to lock |
//!
//! The fences make at least one of the two threads see what the other has done. So no mail is left
//! when all threads have gone.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use crate::sync::{AtomicPtr, Ordering};

/// The inbox of one lock.
#[derive(Debug)]
pub(crate) struct Inbox<M> {
    newest: AtomicPtr<Letter<M>>,
}

#[derive(Debug)]
struct Letter<M> {
    content: M,
    older: *mut Letter<M>,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> Self {
        Self { newest: AtomicPtr::new(null_mut()) }
    }

    /// Puts mail into the inbox. A fence and an attempt to take the lock have to follow.
    pub(crate) fn put(&self, content: M) {
        let older = self.newest.load(Ordering::Relaxed);
        let letter = Box::into_raw(Box::new(Letter { content, older }));
        let mut seen = older;
        while let Err(now) =
            self.newest.compare_exchange_weak(seen, letter, Ordering::AcqRel, Ordering::Relaxed)
        {
            // SAFETY: made above, and seen by nobody yet.
            unsafe { (*letter).older = now };
            seen = now;
        }
    }

    /// Is there mail? Asked after a fence that follows the release of the lock.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        !self.newest.load(Ordering::Relaxed).is_null()
    }

    /// Takes all mail, the oldest first. With the lock held.
    pub(crate) fn take(&self) -> impl Iterator<Item = M> + use<M> {
        let mut at = self.newest.swap(null_mut(), Ordering::AcqRel);
        let mut oldest = null_mut();
        while !at.is_null() {
            // SAFETY: the letter was taken out just now, so it is this thread's alone.
            let next = unsafe { std::mem::replace(&mut (*at).older, oldest) };
            oldest = at;
            at = next;
        }
        Letters(oldest)
    }
}

/// Mail that was taken out, the oldest letter first. Here `older` points to the next newer letter.
struct Letters<M>(*mut Letter<M>);

impl<M> Iterator for Letters<M> {
    type Item = M;

    fn next(&mut self) -> Option<M> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: made by `put`, and taken out by `take`.
        let letter = unsafe { Box::from_raw(self.0) };
        self.0 = letter.older;
        Some(letter.content)
    }
}

impl<M> Drop for Letters<M> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        self.take().for_each(drop);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Arc, Mutex, MutexGuard};
    use loom::thread;

    use super::Inbox;
    use crate::sync::{Ordering, fence};

    struct Model {
        inbox: Inbox<u32>,
        read: Mutex<Vec<u32>>,
        /// Other work under the lock.
        work: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                inbox: Inbox::new(),
                read: Mutex::new(Vec::new()),
                work: AtomicU32::new(0),
            })
        }

        fn try_lock(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
            self.read.try_lock().ok()
        }

        /// As `Locked::give_back`.
        fn hold<'a>(&'a self, mut read: MutexGuard<'a, Vec<u32>>, looks_again: bool) {
            loop {
                read.extend(self.inbox.take());
                self.work.fetch_add(1, Ordering::Relaxed);
                drop(read);
                fence(Ordering::SeqCst);
                if !looks_again || !self.inbox.has_mail() {
                    return;
                }
                match self.try_lock() {
                    Some(again) => read = again,
                    None => return,
                }
            }
        }

        /// As `Core::bring`.
        fn bring(&self, mail: u32, tries_again: bool) {
            if let Some(mut read) = self.try_lock() {
                read.extend(self.inbox.take());
                read.push(mail);
                return self.hold(read, true);
            }
            self.inbox.put(mail);
            fence(Ordering::SeqCst);
            if tries_again && let Some(read) = self.try_lock() {
                self.hold(read, true);
            }
        }

        fn work(&self, looks_again: bool) {
            let read = self.read.lock().unwrap();
            self.hold(read, looks_again);
        }

        fn check(&self) {
            assert!(!self.inbox.has_mail(), "mail stays");
        }
    }

    /// One thread brings mail twice, and another one works with the lock.
    fn model(looks_again: bool, tries_again: bool) {
        loom::model(move || {
            let model = Model::new();
            let other = Arc::clone(&model);
            let brings = thread::spawn(move || {
                (1..=2).for_each(|mail| other.bring(mail, tries_again));
            });
            model.work(looks_again);
            brings.join().unwrap();
            model.check();
            assert_eq!(*model.read.lock().unwrap(), [1, 2], "each once, in its order");
        });
    }

    #[test]
    fn loom_no_mail_stays_and_each_thread_s_keeps_its_order() {
        model(true, true);
    }

    #[test]
    fn loom_two_that_bring_mail_leave_none_behind() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let brings = thread::spawn(move || other.bring(1, true));
            model.bring(2, true);
            brings.join().unwrap();
            model.check();
            let mut read = model.read.lock().unwrap().clone();
            read.sort_unstable();
            assert_eq!(read, [1, 2]);
        });
    }

    #[test]
    #[should_panic(expected = "mail stays")]
    fn loom_canary_who_gives_the_lock_back_does_not_look_again() {
        model(false, true);
    }

    #[test]
    #[should_panic(expected = "mail stays")]
    fn loom_canary_the_lock_is_only_tried_before_the_mail_is_put_in() {
        model(true, false);
    }
}
