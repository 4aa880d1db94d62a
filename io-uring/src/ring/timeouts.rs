//! Timeouts of a ring's requests: setting, expiry, changes.

use super::state::Locked;
use super::types::{Request, Stage};
use crate::abi::{self, op, timeout};
use crate::chains::NONE;
use crate::prepare::{Plan, Timing};
use crate::sys;

/// The time when a timeout with this time and these flags expires, if it starts now: nanoseconds of
/// CLOCK_MONOTONIC.
fn due(time: u64, flags: u32) -> u64 {
    let clock = match flags & timeout::CLOCKS {
        timeout::BOOTTIME => libc::CLOCK_BOOTTIME,
        timeout::REALTIME => libc::CLOCK_REALTIME,
        _ => libc::CLOCK_MONOTONIC,
    };
    sys::deadline(time, clock, flags & timeout::ABS != 0)
}

impl Locked<'_> {
    pub(super) fn begin_timeout(&mut self, at: u32, mut timing: Timing) -> Option<i32> {
        let multishot = timing.flags & timeout::MULTISHOT != 0;
        timing.deadline = due(timing.period, timing.flags);
        let timer = match self.set_timer(timing.deadline, self.key(at)) {
            Ok(timer) => timer,
            Err(errno) => return Some(errno),
        };
        if timing.count > 0 && !multishot {
            timing.at = self.count_from_now(timing.count);
            self.counting.push(at);
        }
        let request = self.request(at);
        request.plan = Plan::Timeout(timing);
        request.stage = Stage::Timer(Some(timer));
        None
    }

    /// Sets the linked timeout of a request, unless it is set already. A request that is being
    /// tried gets it after its first try, as in the kernel. A request that this thread executes
    /// gets none, because it cannot be cancelled.
    #[inline]
    pub(super) fn begin_link_timeout(&mut self, at: u32) {
        let &mut Request { ref stage, next, .. } = self.request(at);
        if next != NONE
            && !matches!(stage, Stage::Here | Stage::Tried)
            && self.request(next).opcode == op::LINK_TIMEOUT
        {
            self.set_link_timeout(at, next);
        }
    }

    /// Sets a linked timeout for a request that was started.
    fn set_link_timeout(&mut self, target: u32, at: u32) {
        if self.request(at).refused != 0 || self.request(at).stage != Stage::Waits {
            return;
        }
        let Plan::LinkTimeout(mut timing) = self.request(at).plan.clone() else { return };
        timing.deadline = due(timing.period, timing.flags);
        // Without a timer, the linked timeout is cancelled when its target has ended.
        let Ok(timer) = self.set_timer(timing.deadline, self.key(at)) else { return };
        let request = self.request(at);
        request.plan = Plan::LinkTimeout(timing);
        request.stage = Stage::LinkTimer(timer);
        request.target = target;
        self.request(target).timeout = at;
    }

    pub(super) fn timer_fired(&mut self, at: u32) {
        let stage = self.request(at).stage;
        match (stage, self.request(at).plan.clone()) {
            (Stage::Timer(_), Plan::Timeout(timing)) => self.timeout_fired(at, timing),
            (Stage::LinkTimer(_), Plan::LinkTimeout(_)) => {
                let target = self.request(at).target;
                // The chain continues without the timeout.
                let after = self.request(at).next;
                if target != NONE {
                    self.request(target).timeout = NONE;
                    if self.request(target).next == at {
                        self.request(target).next = after;
                    }
                }
                let request = self.request(at);
                (request.target, request.next) = (NONE, NONE);
                request.stage = Stage::Here;
                let key = self.key(at);
                let found = if target == NONE { Vec::new() } else { vec![target] };
                if let Some(answer) = self.cancel_these(key, &found, false, true) {
                    let answer = if answer == 0 { -libc::ETIME } else { answer };
                    self.finish(at, answer, 0);
                }
            }
            _ => {}
        }
    }

    fn timeout_fired(&mut self, at: u32, mut timing: Timing) {
        if timing.flags & timeout::MULTISHOT == 0 || timing.count == 1 || !self.can_go_on() {
            return self.finish(at, -libc::ETIME, 0);
        }
        timing.count = timing.count.saturating_sub(1);
        timing.deadline = timing.deadline.saturating_add(timing.period.max(1));
        let Ok(timer) = self.set_timer(timing.deadline, self.key(at)) else {
            return self.finish(at, -libc::ETIME, 0);
        };
        let request = self.request(at);
        request.stage = Stage::Timer(Some(timer));
        request.plan = Plan::Timeout(timing);
        let user_data = request.user_data;
        self.post(abi::Cqe { user_data, res: -libc::ETIME, flags: abi::CQE_MORE }, true);
    }

    pub(super) fn change_timeout(&mut self, of: u64, update: Option<(u64, u32)>) -> i32 {
        // `LINK_UPDATE` alone removes the timeout.
        let update = update.filter(|(_, flags)| flags & timeout::UPDATE != 0);
        let of_link = update.is_some_and(|(_, flags)| flags & timeout::LINK_UPDATE != 0);
        let is_it = |at: &u32| match self.state.requests[*at as usize].stage {
            Stage::Timer(_) => !of_link,
            Stage::LinkTimer(_) => of_link,
            _ => false,
        };
        let found = self.state.by_user_data.all(of).find(is_it);
        let Some(at) = found else { return -libc::ENOENT };
        let Some((time, flags)) = update else {
            self.remove(at);
            return 0;
        };
        let (Stage::Timer(Some(before)) | Stage::LinkTimer(before)) = self.request(at).stage else {
            return -libc::ENOENT;
        };
        let deadline = due(time, flags);
        let timer = match self.set_timer(deadline, self.key(at)) {
            Ok(timer) => timer,
            Err(errno) => return errno,
        };
        before.disarm();
        let request = self.request(at);
        request.stage = match request.stage {
            Stage::LinkTimer(_) => Stage::LinkTimer(timer),
            _ => Stage::Timer(Some(timer)),
        };
        if let Plan::Timeout(timing) | Plan::LinkTimeout(timing) = &mut request.plan {
            (timing.deadline, timing.period) = (deadline, time);
        }
        0
    }
}
