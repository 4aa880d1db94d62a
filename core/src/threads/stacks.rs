//! Threads whose stacks are apart from the program's memory ([`Mapping`]). The C library might
//! place a stack where the program has unmapped a buffer. A request may still write there.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process;
use crate::sys::{self, Mapping};

/// The number of bytes at the stack's lowest addresses that cannot be accessed.
const GUARD_BYTES: usize = 64 * 1024;

type Body = Box<dyn FnOnce() + Send>;

struct Thread {
    name: CString,
    body: Option<Body>,
    stack: Mapping,
    /// The generation of the process that has made the thread ([`process::enter`]).
    generation: u64,
    id: libc::pthread_t,
    next: *mut Self,
}

/// Threads that are ending, or have ended. Their stacks are freed, or used again, when the next
/// thread is made.
static ENDED: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());

/// Makes a thread with a stack of this many bytes. Returns `body` if no thread can be made.
pub(super) fn start(name: String, body: Body, bytes: usize) -> Result<(), Body> {
    let Some(stack) = ended().or_else(|| new_stack(bytes)) else { return Err(body) };
    // SAFETY: inside the mapping.
    let lowest = unsafe { stack.base().add(GUARD_BYTES) }.cast::<c_void>();
    let generation = process::enter();
    let name = CString::new(name).unwrap_or_default();
    let (body, next) = (Some(body), std::ptr::null_mut());
    // SAFETY: zero is valid for a number, and for a pointer (musl).
    let mut id: libc::pthread_t = unsafe { std::mem::zeroed() };
    let thread = Box::into_raw(Box::new(Thread { name, body, stack, generation, id, next }));
    // SAFETY: attributes that are initialised first; `run` takes the thread, whose stack lives
    // until it has ended.
    let made = unsafe {
        if cfg!(miri) {
            let null = std::ptr::null();
            return match libc::pthread_create(&raw mut id, null, run, thread.cast()) {
                0 => Ok(()),
                errno => panic!("pthread_create: {errno}"),
            };
        }
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, lowest, bytes);
        let made = libc::pthread_create(&raw mut id, &raw const attributes, run, thread.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        made
    };
    if made == 0 {
        return Ok(());
    }
    // SAFETY: the box made above; no thread was started, so no other thread has the pointer.
    Err(unsafe { Box::from_raw(thread) }.body.expect("not started"))
}

fn new_stack(bytes: usize) -> Option<Mapping> {
    let stack = Mapping::new(GUARD_BYTES + bytes, libc::PROT_READ | libc::PROT_WRITE).ok()?;
    (stack.protect(0, GUARD_BYTES, libc::PROT_NONE) == 0).then_some(stack)
}

/// The function for pthread_create(3), with a thread from `start`.
extern "C" fn run(thread: *mut c_void) -> *mut c_void {
    let thread = thread.cast::<Thread>();
    // SAFETY: from `start`, and nobody else's until it is put on the list below.
    let fields = unsafe { &mut *thread };
    sys::name_thread(&fields.name);
    if let Some(body) = fields.body.take()
        && std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err()
    {
        std::process::abort();
    }
    // SAFETY: the call takes no arguments, and cannot fail.
    fields.id = unsafe { libc::pthread_self() };
    // SAFETY: as above, and not used any more.
    unsafe { put(thread) };
    std::ptr::null_mut()
}

/// Puts a thread on the list.
///
/// # Safety
/// The thread is from `start`, and belongs to the caller alone until this call.
unsafe fn put(thread: *mut Thread) {
    let mut first = ENDED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the caller's until the exchange.
        unsafe { (*thread).next = first };
        match ENDED.compare_exchange_weak(first, thread, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// The stack of a thread that has ended, if there is one. The stacks of other ended threads are
/// freed.
fn ended() -> Option<Mapping> {
    let mut stack = None;
    let mut at = ENDED.swap(std::ptr::null_mut(), Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: taken from the list, and so the caller's.
        let fields = unsafe { &*at };
        let next = fields.next;
        // In the child of a fork the thread does not exist. In this process, the thread may still
        // run on its stack, because it is about to end. SAFETY: a thread of this process that was
        // not joined.
        let is_over = fields.generation != process::enter()
            || cfg!(miri) && unsafe { libc::pthread_join(fields.id, std::ptr::null_mut()) } == 0
            || unsafe { libc::pthread_tryjoin_np(fields.id, std::ptr::null_mut()) } == 0;
        if is_over {
            // SAFETY: from `start`; the thread has ended.
            stack = Some(unsafe { Box::from_raw(at) }.stack);
        } else {
            // SAFETY: as above.
            unsafe { put(at) };
        }
        at = next;
    }
    stack
}
