//! The end of a thread. The rings that it has registered are released. Its requests are cancelled,
//! because their buffers may be on its stack.
//!
//! The hook is the destructor of a key (pthread_key_create(3)). It runs when a thread ends. It does
//! not run when a thread calls exit(3), whose handlers may still use rings.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front;
use uringlet::table::Pinned;

use crate::rings::{self, Ring};

/// The number of rings that a thread can register, and the number of last used rings that it
/// remembers.
const REGISTERED: usize = 16;
const ENTERED: usize = 8;

/// The data of the calling thread, in its process.
struct Thread {
    generation: Cell<u64>,
    /// Unique in the process; 0 until the thread submits.
    number: Cell<u32>,
    registered: [Cell<usize>; REGISTERED],
    /// The handles of rings that the thread has submitted to, the last one first.
    entered: [Cell<usize>; ENTERED],
    /// The thread has submitted to other rings, too.
    entered_more: Cell<bool>,
}

thread_local! {
    // Nothing in this value is dropped, so that it can be used until the thread has ended.
    static THREAD: Thread = const {
        Thread {
            generation: Cell::new(0),
            number: Cell::new(0),
            registered: [const { Cell::new(0) }; REGISTERED],
            entered: [const { Cell::new(0) }; ENTERED],
            entered_more: Cell::new(false),
        }
    };
}

/// The key whose destructor is the hook. `None`: no key is left, and the end of threads is not
/// seen.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a place for the key, and a destructor that stays loaded as long as the process.
        let answer = unsafe { libc::pthread_key_create(&raw mut key, Some(on_end)) };
        (answer == 0).then_some(key)
    })
}

/// Makes the hook run in the given round of destructors.
fn ends_in(round: usize) {
    if let Some(key) = key() {
        // SAFETY: a key of ours; the value is a number.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(round)) };
    }
}

impl Thread {
    /// Forgets the data of a parent process, and sets the hook.
    fn prepare(&self) {
        let generation = front::generation();
        if self.generation.replace(generation) != generation {
            self.number.set(0);
            self.entered_more.set(false);
            self.registered.iter().chain(&self.entered).for_each(|place| place.set(0));
            ends_in(1);
        }
    }

    #[cold]
    fn enters(&self, handle: usize) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        self.prepare();
        if self.number.get() == 0 {
            self.number.set(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        }
        let mut moved = handle;
        for place in &self.entered {
            moved = place.replace(moved);
            if moved == handle || moved == 0 {
                return self.number.get();
            }
        }
        self.entered_more.set(true);
        self.number.get()
    }
}

/// The number of the calling thread, which is about to submit to the ring with this handle.
#[inline]
pub(crate) fn enters(handle: usize) -> u32 {
    THREAD.with(|thread| {
        let is_last = thread.entered[0].get() == handle;
        if is_last { thread.number.get() } else { thread.enters(handle) }
    })
}

/// The ring that the calling thread has registered under an index.
pub(crate) fn registered(index: u32) -> Result<Pinned<'static, Ring>, i32> {
    let place = |thread: &Thread| thread.registered.get(index as usize).map(Cell::get);
    let handle = THREAD.with(place).ok_or(-libc::EINVAL)?;
    if rings::none() {
        return Err(-libc::EINVAL);
    }
    if handle == 0 {
        return Err(-libc::EBADF);
    }
    rings::behind(handle).ok_or(-libc::EBADF)
}

/// Registers a ring for the calling thread, under `index`, or under any free index (`u32::MAX`).
/// Returns the index.
pub(crate) fn register(fd: i32, index: u32) -> Result<u32, i32> {
    let ring = rings::find(fd)?.ok_or(-libc::EBADF)?;
    THREAD.with(|thread| {
        thread.prepare();
        let all = &thread.registered;
        let at = match index {
            u32::MAX => all.iter().position(|one| one.get() == 0).ok_or(-libc::EBUSY)?,
            index => index as usize,
        };
        let place = all.get(at).ok_or(-libc::EINVAL)?;
        if place.get() != 0 {
            return Err(-libc::EBUSY);
        }
        place.set(ring.handle);
        ring.is_registered();
        Ok(at as u32)
    })
}

/// Removes a registration.
pub(crate) fn unregister(index: u32) -> Result<(), i32> {
    let take = |thread: &Thread| thread.registered.get(index as usize).map(Cell::take);
    let handle = THREAD.with(take).ok_or(-libc::EINVAL)?;
    rings::is_unregistered(handle);
    Ok(())
}

/// The destructor of the key.
unsafe extern "C" fn on_end(round: *mut c_void) {
    // The program's destructors may use rings, so this one acts in the last round (POSIX has four).
    const ROUNDS: usize = 4;
    front::enter(|| match round.addr() {
        round if round < ROUNDS => ends_in(round + 1),
        _ => THREAD.with(end),
    });
}

fn end(thread: &Thread) {
    if thread.generation.get() != front::generation() {
        return;
    }
    let cancel = |ring: &Ring| {
        let (core, instance) = (Arc::clone(&ring.core), ring.instance().cloned());
        move || {
            if let Some(instance) = instance {
                core.thread_ends(&instance, thread.number.get());
            }
        }
    };
    // Rings may be dropped meanwhile: none is pinned while its requests end.
    for place in &thread.entered {
        if let Some(cancel) = rings::behind(place.take()).map(|ring| cancel(&ring)) {
            cancel();
        }
    }
    if thread.entered_more.get() {
        let mut all = Vec::new();
        rings::each(|ring| all.push(cancel(ring)));
        all.into_iter().for_each(|cancel| cancel());
    }
    for place in &thread.registered {
        rings::is_unregistered(place.take());
    }
}
