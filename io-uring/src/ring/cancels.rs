//! Decides which requests a cancel means, and how they end.

use std::collections::BTreeMap;

use super::state::Locked;
use super::types::{CancelJob, Request, Stage, Task};
use crate::abi::{cancel, op};
use crate::calls::Call;
use crate::chains::NONE;
use crate::prepare::{self, Match};
use crate::sys;

impl Match {
    /// Does the cancel mean requests with its user data only?
    fn is_by_user_data(&self) -> bool {
        let has = |flag| self.flags & flag != 0;
        !has(cancel::ANY) && (has(cancel::USERDATA) || !has(cancel::FD) && !has(cancel::OP))
    }

    /// Does the cancel mean this request? `is_on_it`: does this number name the cancel's file?
    fn is(&self, request: &Request, mut is_on_it: impl FnMut(i32) -> bool) -> bool {
        let has = |flag| self.flags & flag != 0;
        if has(cancel::ANY) {
            return true;
        }
        if has(cancel::OP) && request.opcode != self.opcode {
            return false;
        }
        if self.is_by_user_data() && request.user_data != self.user_data {
            return false;
        }
        !has(cancel::FD) || prepare::has_file(request.opcode) && is_on_it(request.number())
    }
}

impl Request {
    /// Does only the first cancel find the request? The kernel cancels other requests again until
    /// their completion is posted.
    pub(super) fn is_cancelled_once(&self) -> bool {
        matches!(
            self.opcode,
            op::TIMEOUT | op::LINK_TIMEOUT | op::WAITID | op::FUTEX_WAIT | op::FUTEX_WAITV
        )
    }
}

impl Locked<'_> {
    pub(super) fn begin_cancel(&mut self, at: u32, what: Match) -> Option<i32> {
        let key = self.key(at);
        match self.matching(at, &what) {
            Ok(found) => self.cancel_these(key, &found, what.is_for_all(), false),
            Err(errno) => Some(errno),
        }
    }

    /// The descriptor number of a cancel's file.
    fn file_of(&self, what: &Match) -> Result<i32, i32> {
        if what.flags & cancel::FD == 0 {
            return Ok(-1);
        }
        let number = if what.flags & cancel::FD_FIXED == 0 {
            Some(what.fd).filter(|&fd| sys::is_open(fd))
        } else {
            self.files.as_ref().and_then(|all| all.get(what.fd as u32)).map(|file| file.number())
        };
        number.ok_or(-libc::EBADF)
    }

    /// The requests that a cancel means. Requests in stages that no cancel reaches are left out.
    fn matching(&self, except: u32, what: &Match) -> Result<Vec<u32>, i32> {
        let meant = self.file_of(what)?;
        // While the lock is held, a number names one file. So each number is checked once.
        let mut known = BTreeMap::from([(meant, true)]);
        let mut is_on_it =
            |number| *known.entry(number).or_insert_with(|| sys::is_same_file(number, meant));
        let reachable = |request: &Request| match request.stage {
            Stage::Ready
            | Stage::Behind
            | Stage::Tried
            | Stage::Engine
            | Stage::Poll(_)
            | Stage::Timer(_) => true,
            Stage::Ends => !request.is_cancelled_once(),
            _ => false,
        };
        let mut is_meant = |at: u32| {
            let request = &self.requests[at as usize];
            at != except && reachable(request) && what.is(request, &mut is_on_it)
        };
        let (mut by_user_data, mut all);
        let meant: &mut dyn Iterator<Item = u32> = if what.is_by_user_data() {
            by_user_data = self.by_user_data.all(what.user_data).filter(|&at| is_meant(at));
            &mut by_user_data
        } else {
            all = self.live().map(|(at, _)| at).filter(|&at| is_meant(at));
            &mut all
        };
        if !what.is_for_all() {
            return Ok(meant.next().into_iter().collect());
        }
        let mut found: Vec<(u32, u32)> =
            meant.map(|at| (self.requests[at as usize].generation, at)).collect();
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, at)| at).collect())
    }

    /// Ends the requests in `found` that neither the engine nor a trying thread has. Returns their
    /// number, and the keys of the others. `by` is the key of the cancel, if the cancel is a
    /// request.
    fn cancel_here(&mut self, found: &[u32], all: bool, by: Option<u64>) -> (i32, Vec<u64>) {
        let (mut done, mut keys, mut ends) = (0, Vec::new(), Vec::new());
        for &at in found {
            if !all && (done > 0 || !keys.is_empty()) {
                break;
            }
            match self.request(at).stage {
                Stage::Tried | Stage::Engine => keys.push(self.key(at)),
                Stage::Free => {}
                Stage::Ends => done += 1,
                _ => {
                    ends.push(at);
                    done += 1;
                }
            }
        }
        for at in ends {
            match by {
                // The request ends after the cancel, which waits for the answer of the engine.
                Some(by) if !keys.is_empty() => self.end_behind(by, at),
                _ => self.end_later(at, -libc::ECANCELED),
            }
        }
        (done, keys)
    }

    /// Cancels the requests `found`, for the request with the key `by`: a cancel, or a linked
    /// timeout (`link`). Returns the result of that request. `None`: the engine is asked first, and
    /// its answer ends that request.
    pub(super) fn cancel_these(
        &mut self,
        by: u64,
        found: &[u32],
        all: bool,
        link: bool,
    ) -> Option<i32> {
        let (done, keys) = self.cancel_here(found, all, Some(by));
        if keys.is_empty() {
            return Some(match () {
                () if all => done,
                () if done > 0 => 0,
                () => -libc::ENOENT,
            });
        }
        for &key in &keys {
            self.request(key as u32).canceled_by = by;
        }
        if !link {
            self.begin_asking(by as u32);
        }
        let job = CancelJob { keys, done, all, by, is_link_timeout: link };
        self.tasks.push(Task::Cancel(job));
        None
    }

    /// IORING_REGISTER_SYNC_CANCEL: ends requests and returns keys, as `cancel_here`.
    pub(crate) fn cancel_now(&mut self, what: &Match) -> Result<(i32, Vec<u64>), i32> {
        let found = self.matching(NONE, what)?;
        Ok(self.cancel_here(&found, what.is_for_all(), None))
    }

    /// Closes the ring: every request that waits in it ends. Returns the keys of the requests that
    /// the engine has.
    pub(super) fn cancel_everything(&mut self) -> Vec<u64> {
        self.end_chain();
        while let Some(head) = self.state.chains.pop_held() {
            self.cancel_chain(head, true);
        }
        let live: Vec<(u32, Stage)> =
            self.live().map(|(at, request)| (at, request.stage)).collect();
        let mut keys = Vec::new();
        for (at, stage) in live {
            let generation_matches = self.state.requests[at as usize].stage == stage;
            if !generation_matches {
                continue;
            }
            match stage {
                Stage::Engine => keys.push(self.key(at)),
                Stage::Poll(_) | Stage::Timer(_) | Stage::Ready | Stage::Behind => {
                    self.finish(at, -libc::ECANCELED, 0);
                }
                _ => {}
            }
        }
        self.state.chains.forget_starts();
        keys
    }

    /// Cancels the requests of a thread that ends, except timeouts. Returns the keys of the
    /// requests that the engine has or will get. With each key comes the descriptor number of a
    /// transfer, or -1.
    pub(super) fn cancel_thread(&mut self, thread: u32) -> Vec<(u64, i32)> {
        let mut found = Vec::new();
        for at in 0..self.state.requests.len() as u32 {
            let request = self.request(at);
            if request.thread != thread {
                continue;
            }
            let fd = if request.call.is_none() { request.number() } else { -1 };
            match request.stage {
                Stage::Engine | Stage::Ready => found.push((self.key(at), fd)),
                // A poll writes to no memory, so it may keep waiting. Its next event ends it with
                // ECANCELED.
                Stage::Poll(_) if request.opcode == op::POLL_ADD => {
                    request.refused = -libc::ECANCELED;
                }
                Stage::Poll(_) | Stage::Behind => self.end_later(at, -libc::ECANCELED),
                // The request has not started, or is being tried. It ends when it starts, or if its
                // try would wait.
                Stage::Waits | Stage::Tried if request.refused == 0 => {
                    request.refused = -libc::ECANCELED
                }
                _ => {}
            }
        }
        found
    }

    /// Does the engine have requests that may never end?
    pub(super) fn may_hang(&self) -> bool {
        self.live().any(|(at, request)| request.stage == Stage::Engine && !self.will_end(at))
    }

    /// Will the request end by itself?
    pub(super) fn will_end(&self, at: u32) -> bool {
        let request = &self.state.requests[at as usize];
        // The engine has a poll only if a file server has to be asked.
        request.opcode != op::POLL_ADD && !request.call.as_deref().is_some_and(Call::may_hang)
    }
}
