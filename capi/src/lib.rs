//! uringlet for C: the functions of `include/uringlet.h`, which the man pages in `man/` describe.
//!
//! The functions have a leading underscore here; `build.rs` has the linker make the real names and
//! versions, and `install.sh` those of the static library. A context's address is looked up in a
//! table, and never followed, so that any address can be passed.
#![allow(unsafe_code)]

mod abi;
mod entries;
mod handle;
mod owned;
mod text;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uringlet::front::{self, enter, enter_whole};
use uringlet::{Context, Cqe, EngineKind, Sqe};

pub use crate::abi::{Handler, Options, Range, Stats, VERSION};
use crate::owned::Owned;
use crate::text::Text;

/// An allocator with a reserve. Without it, this library would end the program when memory is
/// short.
#[global_allocator]
static MEMORY: front::Reserve = front::Reserve::new();

const EINVAL: c_int = -libc::EINVAL;
const EFAULT: c_int = -libc::EFAULT;

/// `struct uringlet`: an address that is looked up.
pub type Handle = *const c_void;

/// A result, or a negative errno.
type Answer<T = c_int> = Result<T, c_int>;

fn answer(answer: Answer) -> c_int {
    answer.unwrap_or_else(|errno| errno)
}

/// A count as a C `int`. Larger counts become the maximum.
fn count(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn errno(error: &std::io::Error) -> c_int {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Runs `body` with the context's [`Owned`], which one thread at a time may use. `-EBUSY` if
/// another thread uses it.
#[inline]
fn with_owned(u: Handle, body: impl FnOnce(&mut Owned) -> Answer) -> c_int {
    enter(|| answer(handle::with_owned(u as usize, body)))
}

/// `uringlet_version()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_version() -> u32 {
    VERSION
}

/// `uringlet_strerror()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_strerror(err: c_int) -> *const c_char {
    enter(|| Text::Errno.set(&text::of_errno(err)))
}

/// `uringlet_explain()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_explain(u: Handle) -> *const c_char {
    enter(|| {
        if u.is_null() {
            return Text::Failure.get();
        }
        let mut choice = String::new();
        let found = handle::with_owned(u as usize, |owned| {
            choice = owned.context().choice().to_string();
            Ok(0)
        });
        match found {
            Ok(_) => Text::Choice.set(&choice),
            Err(errno) if errno == -libc::EBUSY => {
                Text::Choice.set("another thread uses this context")
            }
            Err(_) => std::ptr::null(),
        }
    })
}

/// `uringlet_create()`.
///
/// # Safety
/// If the options can be read, they are valid; `engine` in them is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_create(out: *mut Handle, options: *const Options) -> c_int {
    enter_whole(|| {
        if !front::writable(out as usize) {
            Text::Failure.set("out is no address that can be written to");
            return EFAULT;
        }
        // SAFETY: eight bytes can be written there, as was just checked: room for a pointer.
        unsafe { out.write_unaligned(std::ptr::null()) };
        // SAFETY: the caller's contract.
        match unsafe { create(options) } {
            Ok(address) => {
                // SAFETY: as above.
                unsafe { out.write_unaligned(address as Handle) };
                0
            }
            Err((errno, text)) => {
                Text::Failure.set(&text);
                errno
            }
        }
    })
}

/// Makes a context, and returns its handle; or a negative errno and the reason.
///
/// # Safety
/// As [`_uringlet_create`].
unsafe fn create(options: *const Options) -> Result<usize, (c_int, String)> {
    let because = |errno: c_int, text: &str| (errno, format!("{text}: {}", text::of_errno(errno)));
    // SAFETY: the caller's contract.
    let options = unsafe { Options::read(options) }?;
    if options.flags & !abi::STATS != 0 {
        let flags = options.flags;
        return Err((EINVAL, format!("flags are {flags:#x}, expected 0 or URINGLET_WITH_STATS")));
    }
    if options.reserved != 0 {
        return Err((EINVAL, format!("reserved is {:#x}, expected 0", options.reserved)));
    }
    if front::has_parted() {
        return Err((EINVAL, "this thread has descriptors of its own (unshare(2))".to_owned()));
    }
    let mut builder = Context::builder().stats(options.flags & abi::STATS != 0);
    if options.entries != 0 {
        builder = builder.entries(options.entries);
    }
    if options.workers != 0 {
        builder = builder.workers_max(options.workers as usize);
    }
    if !options.engine.is_null() {
        // SAFETY: a string, by the caller's contract.
        let name = unsafe { CStr::from_ptr(options.engine) }.to_string_lossy();
        let kind = name.parse::<EngineKind>();
        builder = builder.engine(kind.map_err(|error| (-error.errno(), error.to_string()))?);
    }
    let most = options.entries.min(uringlet::ENTRIES_MAX) as usize;
    if !front::has_memory(front::context_bytes(most) + most * 2 * size_of::<Sqe>()) {
        return Err(because(-libc::ENOMEM, "the context"));
    }
    // The member has another name than the builder's function.
    let named = |error: String| error.replacen("workers_max is", "workers is", 1);
    let context = builder.build().map_err(|error| (-error.errno(), named(error.to_string())))?;
    let engine = text::of_engine(context.engine());
    let pages = handle::allocate(context.entries());
    let pages = pages.map_err(|errno| because(errno, "the context's entries"))?;
    Ok(handle::publish(context, pages, engine))
}

/// `uringlet_destroy()`.
///
/// # Safety
/// The buffers of requests in flight stay valid until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_destroy(u: Handle, timeout_ns: i64) -> c_int {
    enter_whole(|| {
        let destroyed = handle::destroy(u as usize, |owned| match timeout(timeout_ns) {
            Some(timeout) => owned.drain(timeout),
            None => Ok(()),
        });
        answer(destroyed.map(|()| 0))
    })
}

/// The timeout; negative means none.
#[inline]
fn timeout(ns: i64) -> Option<Duration> {
    u64::try_from(ns).ok().map(Duration::from_nanos)
}

/// `uringlet_engine()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_engine(u: Handle) -> *const c_char {
    enter(|| handle::get(u as usize).map_or(std::ptr::null(), |shared| shared.engine.as_ptr()))
}

/// `uringlet_event_fd()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_event_fd(u: Handle) -> c_int {
    with_owned(u, Owned::event_fd)
}

/// `uringlet_get_sqe()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_get_sqe(u: Handle) -> *mut Sqe {
    enter(|| {
        let sqe = handle::with_owned(u as usize, |owned| owned.next_entry().ok_or(-libc::EAGAIN));
        sqe.unwrap_or(std::ptr::null_mut())
    })
}

/// `uringlet_submit()`.
///
/// # Safety
/// The buffers of the entries belong to the requests until their completions were reaped. The other
/// addresses in them can be read until the requests were accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_submit(u: Handle) -> c_int {
    // SAFETY: the caller's contract.
    with_owned(u, |owned| unsafe { owned.submit() }.map(count))
}

/// `uringlet_wait()`.
///
/// # Safety
/// As [`_uringlet_submit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_wait(u: Handle, min: c_uint, timeout_ns: i64) -> c_int {
    // SAFETY: the caller's contract.
    with_owned(u, |owned| unsafe { owned.wait(min as usize, timeout(timeout_ns)) }.map(count))
}

/// `uringlet_peek()`.
///
/// # Safety
/// `out` has room for `n` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_peek(u: Handle, out: *mut Cqe, n: c_uint) -> c_int {
    with_owned(u, |owned| {
        if n == 0 {
            return Ok(0);
        }
        if out.is_null() {
            return Err(EFAULT);
        }
        // There cannot be more completions than this.
        let n = (n as usize).min(owned.context().entries());
        // SAFETY: room for `n` completions, by the caller's contract. `MaybeUninit` needs no value.
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<MaybeUninit<Cqe>>(), n) };
        Ok(count(owned.reap(out)))
    })
}

/// Calls `f` with up to `max` completions, outside of `enter`. `f` may do anything, and may end its
/// thread: no value here needs to be dropped.
fn each(u: Handle, max: usize, mut f: impl FnMut(&Cqe)) -> c_int {
    // Takes no more completions than there are requests now. Otherwise, an `f` that submits
    // requests could keep this loop going without end.
    let begin = enter(|| handle::with_owned(u as usize, |owned| Ok(owned.outstanding())));
    let max = match begin {
        Ok(outstanding) => outstanding.min(max),
        Err(errno) => return errno,
    };
    let mut done = 0;
    while done < max {
        let mut cqe = [MaybeUninit::<Cqe>::uninit()];
        let reaped = enter(|| handle::with_owned(u as usize, |owned| Ok(owned.reap(&mut cqe))));
        // `f` may have destroyed the context.
        if reaped != Ok(1) {
            break;
        }
        done += 1;
        // SAFETY: `reap` returned 1, so it has written this completion.
        f(unsafe { cqe[0].assume_init_ref() });
    }
    count(done)
}

/// The function that `uringlet_for_each()` calls.
type Visitor = unsafe extern "C-unwind" fn(*const Cqe, *mut c_void);

/// `uringlet_for_each()`.
///
/// # Safety
/// `f` can be called with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _uringlet_for_each(
    u: Handle,
    max: c_uint,
    f: Option<Visitor>,
    arg: *mut c_void,
) -> c_int {
    let Some(f) = f else { return EINVAL };
    // SAFETY: the caller's contract.
    each(u, max as usize, |cqe| unsafe { f(cqe, arg) })
}

/// `uringlet_run()`.
///
/// # Safety
/// As [`_uringlet_submit`]; each `user_data` is 0 or the address of a handler that can be called.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _uringlet_run(u: Handle, min: c_uint, timeout_ns: i64) -> c_int {
    // SAFETY: the caller's contract.
    let waited = unsafe { _uringlet_wait(u, min, timeout_ns) };
    // Completions are handled even if a signal has ended the wait.
    if waited < 0 && waited != -libc::EINTR {
        return waited;
    }
    let handled = each(u, usize::MAX, |cqe| {
        let handler = cqe.user_data as usize as *mut Handler;
        // SAFETY: null or a handler, by the caller's contract.
        if let Some(handler_done) = unsafe { handler.as_ref() }.and_then(|handler| handler.done) {
            // SAFETY: as above.
            unsafe { handler_done(handler, cqe.res) };
        }
    });
    if handled == 0 { waited.min(0) } else { handled }
}

/// `uringlet_cancel()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_cancel(u: Handle, user_data: u64) -> c_int {
    enter(|| {
        let canceled = handle::get(u as usize)
            .and_then(|shared| shared.canceller.cancel(user_data).map_err(|error| errno(&error)));
        answer(canceled.map(|()| 0))
    })
}

/// `uringlet_cancel_fd()`.
#[unsafe(no_mangle)]
pub extern "C" fn _uringlet_cancel_fd(u: Handle, fd: c_int) -> c_int {
    enter(|| {
        let canceled = handle::get(u as usize).and_then(|shared| {
            if fd < 0 {
                return Err(-libc::ENOENT);
            }
            // SAFETY: the number is only compared with those of requests. No call is made on it.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            shared.canceller.cancel_fd(fd).map_err(|error| errno(&error))
        });
        answer(canceled.map(count))
    })
}

/// `uringlet_read_many()`.
///
/// # Safety
/// There are `n` ranges. Their buffers belong to the reads until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_read_many(
    u: Handle,
    ranges: *mut Range,
    n: c_uint,
) -> libc::ssize_t {
    with_owned(u, |owned| {
        if ranges.is_null() && n > 0 {
            return Err(EFAULT);
        }
        // SAFETY: the caller's contract.
        unsafe { owned.read_many(ranges, n as usize) }.map(count)
    }) as libc::ssize_t
}

/// `uringlet_get_stats()`.
///
/// # Safety
/// If `out` can be written to, it is a structure whose member `size` was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _uringlet_get_stats(u: Handle, out: *mut Stats) -> c_int {
    with_owned(u, |owned| {
        let now = owned.context().stats().ok_or(-libc::ENODATA)?;
        // SAFETY: the caller's contract.
        unsafe { Stats::from(now).write(out) }.map(|()| 0)
    })
}
