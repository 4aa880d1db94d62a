//! How many of the queued requests go to the kernel with one call.

use super::KernelLane;
use crate::request::{Request, Requests};
use crate::router::tuning::{EARLY, TOGETHER};
use crate::sqe::opcode;

/// The number of these requests, from the first on, that go to the kernel with one call.
/// `in_kernel` requests were handed over before, and `queued` more wait. The block layer merges
/// adjacent requests of one file. Up to half of all requests go if they are adjacent: the device
/// works on one half while the program gets the other half. Otherwise as many go as the kernel has
/// already, but at least [`TOGETHER`], to keep the device busy.
pub(super) fn together(requests: Requests<'_>, in_kernel: usize, queued: usize) -> usize {
    let all = requests.iter().map(|(_, request)| request);
    let pairs = all.clone().zip(all.skip(1));
    let adjacent = 1 + pairs.take_while(|(one, next)| follows(one, next)).count();
    at_once(adjacent, requests.len(), in_kernel, queued)
}

/// The number that [`together`] returns, if the first `adjacent` of `len` requests are adjacent in
/// their file.
fn at_once(adjacent: usize, len: usize, in_kernel: usize, queued: usize) -> usize {
    let apart = TOGETHER.max(in_kernel).min(len);
    let half = (in_kernel + len + queued).div_ceil(2);
    if adjacent < apart { apart } else { adjacent.min(half.max(2)) }
}

fn follows(one: &Request, next: &Request) -> bool {
    let (len, next_len) = (transfer_len(one), transfer_len(next));
    let (one, next) = (&one.sqe, &next.sqe);
    let is_same = (one.fd, one.opcode, len) == (next.fd, next.opcode, next_len);
    is_same && one.off.wrapping_add(len) == next.off
}

/// Bytes that a read or write asks for.
pub(super) fn transfer_len(request: &Request) -> u64 {
    match (request.sqe.opcode, &request.copied) {
        (opcode::READV | opcode::WRITEV, Some(copied)) => {
            copied.iov.iter().fold(0, |sum, iov| sum.saturating_add(iov.iov_len as u64))
        }
        _ => request.sqe.len.into(),
    }
}

impl KernelLane {
    /// Is it worth handing over what is queued, although a waiter will come and do it? Yes if the
    /// kernel has fewer requests than are queued: the device may be idle before that waiter comes.
    #[inline]
    pub(crate) fn is_worth_a_call(&self) -> bool {
        is_enough(self.queued(), self.in_flight()) && self.can_at_once()
    }
}

fn is_enough(queued: usize, in_kernel: usize) -> bool {
    queued >= EARLY.max(in_kernel)
}

#[cfg(test)]
mod tests {
    use super::{TOGETHER, at_once, follows, is_enough};
    use crate::request::{BATCH, CopiedIn, Iovec, Request};
    use crate::sqe::Sqe;

    fn reads(lengths: &[usize], offset: u64) -> Request {
        let iov = |&iov_len: &usize| Iovec { iov_base: std::ptr::null_mut(), iov_len };
        let iov: Vec<Iovec> = lengths.iter().map(iov).collect();
        let sqe = match lengths {
            [len] => Sqe { len: *len as u32, off: offset, ..Sqe::read(3, &mut [], 0) },
            _ => Sqe::readv(3, &raw const iov[..], offset),
        };
        let copied = Some(Box::new(CopiedIn { iov, ..CopiedIn::default() }));
        Request { sqe, copied, ..Request::zero() }
    }

    /// The sizes of the calls that hand `depth` queued requests over to an idle kernel.
    fn calls(depth: usize, are_adjacent: bool) -> Vec<usize> {
        let (mut sizes, mut in_kernel) = (Vec::new(), 0);
        while in_kernel < depth {
            let len = (depth - in_kernel).min(BATCH);
            let adjacent = if are_adjacent { len } else { 1 };
            let taken = at_once(adjacent, len, in_kernel, depth - in_kernel - len);
            assert!((1..=len).contains(&taken));
            in_kernel += taken;
            sizes.push(taken);
        }
        sizes
    }

    #[test]
    fn what_lies_next_to_each_other_goes_in_two_halves() {
        assert_eq!(
            [1, 2, 4, 8, 32].map(|depth| calls(depth, true)).concat(),
            [1, 2, 2, 2, 4, 4, 16, 16]
        );
        assert_eq!(calls(74, true), [32, 32, 10]);
        assert_eq!(
            [1, 2, 4, 8, 32].map(|depth| calls(depth, false)).concat(),
            [1, 2, 4, 4, 4, 4, 4, 8, 16]
        );
        // Half of the requests have returned, while the kernel has the other half.
        assert_eq!(at_once(16, 16, 16, 0), 16);
        // A pair of adjacent requests among others.
        assert_eq!(at_once(2, 16, 0, 0), TOGETHER);
    }

    #[test]
    fn requests_are_next_to_each_other_by_their_bytes() {
        let next = |one: &[usize], next: &[usize], gap| {
            let end: usize = one.iter().sum();
            follows(&reads(one, 4096), &reads(next, 4096 + end as u64 + gap))
        };
        assert!(next(&[512], &[512], 0));
        assert!(!next(&[512], &[512], 512));
        assert!(!next(&[512], &[1024], 0), "of one length");
        assert!(next(&[4096, 4096, 512], &[512, 8192], 0));
        assert!(!next(&[4096, 4096], &[4096, 4096], 4096));
        // Two vectors; the second starts two bytes too far.
        assert!(!follows(&reads(&[512, 512], 0), &reads(&[512, 512], 2)));
    }

    #[test]
    fn an_idle_kernel_gets_requests_early_and_more_with_each_call() {
        let (mut queued, mut in_kernel, mut calls) = (0, 0, Vec::new());
        for _ in 0..32 {
            queued += 1;
            if is_enough(queued, in_kernel) {
                calls.push(queued);
                in_kernel += std::mem::take(&mut queued);
            }
        }
        assert_eq!(calls, [2, 2, 4, 8, 16]);
    }
}
