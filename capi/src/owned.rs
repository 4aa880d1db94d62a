//! The part of a context that one thread at a time uses: its entries, and what is in flight.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use uringlet::table::Pages;
use uringlet::{Context, Cqe, Sqe};

use crate::abi::Range;
use crate::{Answer, errno};

/// A context and its entries. Only the thread that has a `handle::Turn` uses them.
#[derive(Debug)]
pub(crate) struct Owned {
    /// `None` once the context was destroyed.
    context: Option<Context>,
    /// The entries that the program fills, in `pages`. Their number is [`Context::entries`].
    sqes: *mut Sqe,
    pages: Option<Pages>,
    /// The number of entries that were handed out since the last submit.
    filled: usize,
    /// Requests that were accepted and not reaped.
    outstanding: usize,
    /// The context's own eventfd, if it has one.
    eventfd: Option<RawFd>,
}

// SAFETY: `sqes` points to memory that only this value uses, whichever thread has it.
unsafe impl Send for Owned {}

impl Owned {
    /// # Safety
    /// `pages` have room for the context's entries, and nothing else uses them.
    pub(crate) unsafe fn new(context: Context, pages: Pages) -> Self {
        let sqes = pages.address() as *mut Sqe;
        let (context, pages) = (Some(context), Some(pages));
        Self { context, sqes, pages, filled: 0, outstanding: 0, eventfd: None }
    }

    /// The context. It exists, because no thread gets a `handle::Turn` after [`Owned::end`].
    #[inline]
    fn context_mut(&mut self) -> &mut Context {
        self.context.as_mut().expect("not destroyed")
    }

    /// The context.
    pub(crate) fn context(&self) -> &Context {
        self.context.as_ref().expect("not destroyed")
    }

    /// Requests that were accepted and not reaped.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The address of a zeroed entry. `None`: all are handed out or wait for room.
    #[inline]
    pub(crate) fn next_entry(&mut self) -> Option<*mut Sqe> {
        let context = self.context();
        if context.pushed() + self.filled == context.entries() {
            return None;
        }
        // SAFETY: `filled` is less than the number of entries, as was just checked.
        let sqe = unsafe { self.sqes.add(self.filled) };
        // SAFETY: the entry is in `pages`, which nothing else uses.
        unsafe { sqe.write(Sqe::default()) };
        self.filled += 1;
        Some(sqe)
    }

    /// Submits the entries that were handed out.
    ///
    /// # Errors
    /// `-EAGAIN` if there is no room for any.
    ///
    /// # Safety
    /// The program ensures that the addresses in the entries are valid.
    #[inline]
    pub(crate) unsafe fn submit(&mut self) -> Answer<usize> {
        let (filled, sqes) = (std::mem::take(&mut self.filled), self.sqes);
        let context = self.context_mut();
        for at in 0..filled {
            // SAFETY: `next_entry` has initialized it, and any bytes are a valid `Sqe`.
            let sqe = unsafe { sqes.add(at).read() };
            // SAFETY: the caller's contract.
            let pushed = unsafe { context.push(sqe) };
            pushed.expect("no more are handed out than there is room for");
        }
        if context.pushed() == 0 {
            return Ok(0);
        }
        let accepted = context.submit().map_err(|error| errno(&error))?;
        self.outstanding += accepted;
        Ok(accepted)
    }

    /// Submits, and waits for `min` completions, or for those of all requests if there are fewer.
    /// Returns the number that can be reaped.
    ///
    /// # Errors
    /// `-EINTR`: a signal handler ran.
    ///
    /// # Safety
    /// As [`Owned::submit`].
    #[inline]
    pub(crate) unsafe fn wait(&mut self, min: usize, timeout: Option<Duration>) -> Answer<usize> {
        // SAFETY: the caller's contract.
        match unsafe { self.submit() } {
            // A full queue does not prevent the wait, which makes room.
            Ok(_) => {}
            Err(errno) if errno == -libc::EAGAIN => {}
            Err(errno) => return Err(errno),
        }
        self.wait_more(min, timeout)
    }

    #[inline]
    fn wait_more(&mut self, min: usize, timeout: Option<Duration>) -> Answer<usize> {
        let min = min.min(self.outstanding);
        self.context_mut().wait(min, timeout).map_err(|error| errno(&error))
    }

    /// Takes completions, and checks once more if there seem to be none. Returns how many of `cqes`
    /// are completions now, from the first on.
    #[inline]
    pub(crate) fn reap(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        let mut reaped = self.context_mut().reap_into_uninit(cqes);
        if reaped == 0 && self.outstanding > 0 && !cqes.is_empty() {
            // A wait for zero completions executes requests that need not sleep.
            let _ = self.context_mut().wait(0, None);
            reaped = self.context_mut().reap_into_uninit(cqes);
        }
        if reaped < cqes.len() && self.eventfd.is_some() {
            reaped += self.reap_last(&mut cqes[reaped..]);
        }
        self.outstanding -= reaped;
        reaped
    }

    /// Makes the eventfd unreadable, as no completions seem to be left. Then reaps once more.
    #[cold]
    fn reap_last(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        self.count_down();
        // A completion can be visible before the eventfd counts it. If `count_down` has taken the
        // count of a completion, that completion is visible now. The eventfd counts any other
        // completion later.
        let reaped = self.context_mut().reap_into_uninit(cqes);
        if reaped == cqes.len() {
            self.count_up();
        }
        reaped
    }

    fn count_down(&self) {
        let Some(eventfd) = self.eventfd else { return };
        let mut count = 0u64;
        // SAFETY: `count` has room for eight bytes.
        unsafe { libc::read(eventfd, (&raw mut count).cast(), 8) };
    }

    fn count_up(&self) {
        let Some(eventfd) = self.eventfd else { return };
        let one = 1u64;
        // SAFETY: `one` has eight bytes.
        unsafe { libc::write(eventfd, (&raw const one).cast(), 8) };
    }

    /// The descriptor that is readable while completions wait.
    ///
    /// # Errors
    /// `-EBUSY` if requests are in flight that were submitted without the eventfd, or the errno of
    /// eventfd(2).
    pub(crate) fn event_fd(&mut self) -> Answer<RawFd> {
        if let Some(eventfd) = self.eventfd {
            return Ok(eventfd);
        }
        if self.outstanding > 0 || self.context().pushed() > 0 {
            return Err(-libc::EBUSY);
        }
        let eventfd = self.context_mut().eventfd().map_err(|error| errno(&error))?.as_raw_fd();
        self.eventfd = Some(eventfd);
        Ok(eventfd)
    }

    /// Reads all ranges, and waits for all.
    ///
    /// # Errors
    /// `-EBUSY` if the context has other requests or entries.
    ///
    /// # Safety
    /// `ranges` points to `count` ranges; their results may be uninitialized. The buffers belong
    /// to the reads until this returns.
    pub(crate) unsafe fn read_many(&mut self, ranges: *mut Range, count: usize) -> Answer<usize> {
        if self.filled > 0 || self.outstanding > 0 || self.context().pushed() > 0 {
            return Err(-libc::EBUSY);
        }
        let room = self.context().entries();
        let (mut next, mut good) = (0, 0);
        while next < count || self.outstanding > 0 {
            while next < count && self.context().pushed() + self.outstanding < room {
                // SAFETY: `next` is less than `count`, so this is a range of the caller's.
                let (fd, off, buf, len) = unsafe {
                    let range = ranges.add(next);
                    ((*range).fd, (*range).off, (*range).buf, (*range).len)
                };
                let buffer = std::ptr::slice_from_raw_parts_mut(buf.cast::<u8>(), len);
                let sqe = Sqe::read(fd, buffer, off).user_data(next as u64);
                // SAFETY: the caller's contract; below, this waits for all reads.
                let pushed = unsafe { self.context_mut().push(sqe) };
                pushed.expect("there is room for it");
                next += 1;
            }
            // While there are more ranges, this waits for half of the requests only, so that the
            // others stay in flight.
            let all = next == count;
            let min = |outstanding: usize| if all { outstanding } else { outstanding.div_ceil(2) };
            // SAFETY: as above.
            let submitted = unsafe { self.submit() };
            match submitted.and_then(|_| self.wait_more(min(self.outstanding), None)) {
                Ok(_) => {}
                // A signal handler has run, or there was no room. The buffers still belong to the
                // reads.
                Err(errno) if [-libc::EINTR, -libc::EAGAIN].contains(&errno) => {}
                Err(errno) => return Err(errno),
            }
            while let Some(cqe) = self.context_mut().reap() {
                self.outstanding -= 1;
                // SAFETY: `user_data` is the index of a range, which was set above.
                unsafe { (*ranges.add(cqe.user_data as usize)).res = cqe.res };
                good += usize::from(cqe.res >= 0);
            }
        }
        self.count_down();
        Ok(good)
    }

    /// Waits for all requests in flight.
    ///
    /// # Errors
    /// `-ETIME` if some have not ended in time.
    pub(crate) fn drain(&mut self, timeout: Duration) -> Answer<()> {
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            match self.wait_more(usize::MAX, Some(left)) {
                Ok(available) if available >= self.outstanding => return Ok(()),
                Ok(_) => return Err(-libc::ETIME),
                // A signal interrupted the wait: this waits for the rest of the time.
                Err(errno) if errno == -libc::EINTR => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Cancels requests that have not started, waits for the others, and returns the memory of the
    /// entries.
    pub(crate) fn end(&mut self) -> Option<Pages> {
        drop(self.context.take());
        self.eventfd = None;
        self.pages.take()
    }
}
