//! What one thread at a time uses of a context: its entries, and what is in flight.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use uringlet::table::Pages;
use uringlet::{Context, Cqe, Sqe};

use crate::abi::Range;
use crate::{Answer, errno};

/// What is the owner's.
#[derive(Debug)]
pub(crate) struct Owned {
    /// `None` once it was destroyed.
    context: Option<Context>,
    /// Where the entries lie that the program fills: as many as the context has, in `pages`.
    sqes: *mut Sqe,
    pages: Option<Pages>,
    /// Of them, handed out since the last submit.
    filled: usize,
    /// Accepted and not reaped.
    outstanding: usize,
    /// The context's own, if it has one.
    eventfd: Option<RawFd>,
}

// SAFETY: the entries are the context's alone, whichever thread uses it.
unsafe impl Send for Owned {}

impl Owned {
    /// # Safety
    /// `pages` have room for the context's entries, and are nobody else's.
    pub(crate) unsafe fn new(context: Context, pages: Pages) -> Self {
        let sqes = pages.address() as *mut Sqe;
        let (context, pages) = (Some(context), Some(pages));
        Self { context, sqes, pages, filled: 0, outstanding: 0, eventfd: None }
    }

    /// The context, which is there: nobody gets here after its end.
    #[inline]
    fn context_mut(&mut self) -> &mut Context {
        self.context.as_mut().expect("not destroyed")
    }

    /// As it is now.
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
        // SAFETY: there are as many as the context has, and fewer are filled.
        let sqe = unsafe { self.sqes.add(self.filled) };
        // SAFETY: memory of the context's own.
        unsafe { sqe.write(Sqe::default()) };
        self.filled += 1;
        Some(sqe)
    }

    /// Submits what was filled.
    ///
    /// # Errors
    /// `-EAGAIN` if there is room for none.
    ///
    /// # Safety
    /// The program answers for what the entries point to.
    #[inline]
    pub(crate) unsafe fn submit(&mut self) -> Answer<usize> {
        let (filled, sqes) = (std::mem::take(&mut self.filled), self.sqes);
        let context = self.context_mut();
        for at in 0..filled {
            // SAFETY: handed out, and whatever bytes it has now are an entry.
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

    /// Submits, and waits for `min` completions, or all that are to come. Gives how many can be
    /// reaped.
    ///
    /// # Errors
    /// `-EINTR`.
    ///
    /// # Safety
    /// As [`Owned::submit`].
    #[inline]
    pub(crate) unsafe fn wait(&mut self, min: usize, timeout: Option<Duration>) -> Answer<usize> {
        // SAFETY: the caller's contract.
        match unsafe { self.submit() } {
            // No room for more is no reason not to wait for what makes room.
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

    /// Takes completions that are there, and looks once more for some if there seem to be none.
    /// Gives how many of `cqes` are completions now, from the first on.
    #[inline]
    pub(crate) fn reap(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        let mut reaped = self.context_mut().reap_into_uninit(cqes);
        if reaped == 0 && self.outstanding > 0 && !cqes.is_empty() {
            // What does not sleep is executed, and is there then.
            let _ = self.context_mut().wait(0, None);
            reaped = self.context_mut().reap_into_uninit(cqes);
        }
        if reaped < cqes.len() && self.eventfd.is_some() {
            reaped += self.reap_last(&mut cqes[reaped..]);
        }
        self.outstanding -= reaped;
        reaped
    }

    /// No completion seems to wait: the eventfd is to say so.
    #[cold]
    fn reap_last(&mut self, cqes: &mut [MaybeUninit<Cqe>]) -> usize {
        self.count_down();
        // A completion can be seen before it is counted: one whose count was just taken away is
        // seen here, and one that is not seen has its count yet to come.
        let reaped = self.context_mut().reap_into_uninit(cqes);
        if reaped == cqes.len() {
            self.count_up();
        }
        reaped
    }

    fn count_down(&self) {
        let Some(eventfd) = self.eventfd else { return };
        let mut count = 0u64;
        // SAFETY: eight bytes; a descriptor that does not block.
        unsafe { libc::read(eventfd, (&raw mut count).cast(), 8) };
    }

    fn count_up(&self) {
        let Some(eventfd) = self.eventfd else { return };
        let one = 1u64;
        // SAFETY: as above.
        unsafe { libc::write(eventfd, (&raw const one).cast(), 8) };
    }

    /// The descriptor that is readable while completions wait.
    ///
    /// # Errors
    /// `-EBUSY` if requests are in flight that do not know of it, or that of eventfd(2).
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
    /// `-EBUSY` if there is anything else in the context.
    ///
    /// # Safety
    /// At `ranges` are `count` of them, whose results nobody has written yet. The buffers are the
    /// reads' until this returns.
    pub(crate) unsafe fn read_many(&mut self, ranges: *mut Range, count: usize) -> Answer<usize> {
        if self.filled > 0 || self.outstanding > 0 || self.context().pushed() > 0 {
            return Err(-libc::EBUSY);
        }
        let room = self.context().entries();
        let (mut next, mut good) = (0, 0);
        while next < count || self.outstanding > 0 {
            while next < count && self.context().pushed() + self.outstanding < room {
                // SAFETY: one of them, by the caller's contract.
                let (fd, off, buf, len) = unsafe {
                    let range = ranges.add(next);
                    ((*range).fd, (*range).off, (*range).buf, (*range).len)
                };
                let buffer = std::ptr::slice_from_raw_parts_mut(buf.cast::<u8>(), len);
                let sqe = Sqe::read(fd, buffer, off).user_data(next as u64);
                // SAFETY: the caller's contract; nothing is left in flight below.
                let pushed = unsafe { self.context_mut().push(sqe) };
                pushed.expect("there is room for it");
                next += 1;
            }
            // While more are to come, half of them are to be in flight meanwhile.
            let all = next == count;
            let min = |outstanding: usize| if all { outstanding } else { outstanding.div_ceil(2) };
            // SAFETY: as above.
            let submitted = unsafe { self.submit() };
            match submitted.and_then(|_| self.wait_more(min(self.outstanding), None)) {
                Ok(_) => {}
                // A signal handler has run; the buffers are still the reads'.
                Err(errno) if [-libc::EINTR, -libc::EAGAIN].contains(&errno) => {}
                Err(errno) => return Err(errno),
            }
            while let Some(cqe) = self.context_mut().reap() {
                self.outstanding -= 1;
                // SAFETY: the number of one of them, from above.
                unsafe { (*ranges.add(cqe.user_data as usize)).res = cqe.res };
                good += usize::from(cqe.res >= 0);
            }
        }
        self.count_down();
        Ok(good)
    }

    /// Waits for everything that is in flight.
    ///
    /// # Errors
    /// `-ETIME` if it is not over in time.
    pub(crate) fn drain(&mut self, timeout: Duration) -> Answer<()> {
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            match self.wait_more(usize::MAX, Some(left)) {
                Ok(available) if available >= self.outstanding => return Ok(()),
                Ok(_) => return Err(-libc::ETIME),
                // Interrupted: for the rest of the time.
                Err(errno) if errno == -libc::EINTR => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Cancels what has not been started, waits for what has, and gives the memory of the entries.
    pub(crate) fn end(&mut self) -> Option<Pages> {
        drop(self.context.take());
        self.eventfd = None;
        self.pages.take()
    }
}
