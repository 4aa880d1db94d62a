//! Which context has used a descriptor number: the end of that number's life concerns no other, so that closing a file costs the
//! same with one context and with thousands.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// By number: 0 if none has since it was last closed, a [`User`], or `SEVERAL`. Anybody may have used those beyond.
static USERS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
const NUMBERS: usize = 4096;
const SEVERAL: u32 = u32::MAX;

/// Threads that are about to close something.
static CLOSERS: AtomicUsize = AtomicUsize::new(0);

/// The id of a context, as it stands in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User(u32);

impl User {
    pub(crate) fn new(id: u32) -> Self {
        Self(id + 1)
    }

    /// Says that it uses a number: to be called before it does.
    #[inline]
    pub(crate) fn uses(self, fd: i32) {
        if let Some(user) = USERS.get(fd as usize) {
            let now = user.load(Ordering::Relaxed);
            if now != self.0 && now != SEVERAL {
                self.begins_to_use(user);
            }
        }
    }

    #[cold]
    fn begins_to_use(self, user: &AtomicU32) {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        match user.compare_exchange(0, self.0, success, failure) {
            Ok(_) => {}
            Err(now) if now == self.0 => {}
            Err(_) => user.store(SEVERAL, Ordering::SeqCst),
        }
    }
}

/// Who may use some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    Nobody,
    /// The one with this id.
    One(u32),
    Anybody,
}

/// Calls `before` with those who have used numbers that are about to be closed, and forgets them.
pub(crate) fn before_close(fds: &RangeInclusive<i32>, before: impl FnOnce(Users)) {
    struct Closing;
    impl Drop for Closing {
        fn drop(&mut self) {
            CLOSERS.fetch_sub(1, Ordering::SeqCst);
        }
    }
    CLOSERS.fetch_add(1, Ordering::SeqCst);
    let _closing = Closing;
    // First forgotten, then looked for: of one that comes meanwhile, as dup2(2) may put a file in the place of another, the next
    // closing knows.
    let users = take(fds);
    // Who closes the same number may have forgotten them, and is still looking.
    let shared = CLOSERS.load(Ordering::SeqCst) > 1;
    before(if users == Users::Nobody && shared { Users::Anybody } else { users });
}

fn take(fds: &RangeInclusive<i32>) -> Users {
    let (first, last) = (*fds.start() as usize, *fds.end() as usize);
    if last >= NUMBERS {
        (first..NUMBERS).for_each(|fd| USERS[fd].store(0, Ordering::SeqCst));
        return Users::Anybody;
    }
    let mut users = Users::Nobody;
    for user in &USERS[first..=last] {
        let user = match user.load(Ordering::SeqCst) {
            0 => continue,
            _ => user.swap(0, Ordering::SeqCst),
        };
        users = match (user, users) {
            (0, _) => users,
            (SEVERAL, _) => Users::Anybody,
            (user, Users::Nobody) => Users::One(user - 1),
            (user, Users::One(id)) if user - 1 == id => users,
            _ => Users::Anybody,
        };
    }
    users
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::{NUMBERS, User, Users, before_close};

    fn users(fds: RangeInclusive<i32>) -> Users {
        let mut found = None;
        before_close(&fds, |users| found = Some(users));
        found.unwrap()
    }

    #[test]
    fn who_has_used_a_number_is_told_when_it_is_closed() {
        // Numbers that no other test has: there are no such descriptors.
        let at = NUMBERS as i32 - 100;
        let (one, other) = (User::new(3), User::new(4));
        (0..2).for_each(|_| one.uses(at));
        assert_eq!(users(at..=at), Users::One(3));
        one.uses(at);
        one.uses(at + 2);
        assert_eq!(users(at..=at + 2), Users::One(3));
        one.uses(at);
        other.uses(at + 2);
        assert_eq!(users(at..=at + 2), Users::Anybody);
        one.uses(at);
        (0..2).for_each(|_| other.uses(at));
        one.uses(at);
        assert_eq!(users(at..=at), Users::Anybody);
        other.uses(at);
        assert_eq!(users(at..=at), Users::One(4), "the first is forgotten");
        one.uses(at);
        // Numbers that nobody keeps a record of, and none at all.
        one.uses(NUMBERS as i32);
        one.uses(-1);
        assert_eq!(users(at..=i32::MAX), Users::Anybody);
        one.uses(at);
        let mut inner = None;
        before_close(&(at..=at), |outer| {
            assert_eq!(outer, Users::One(3));
            inner = Some(users(at..=at));
        });
        assert_eq!(inner, Some(Users::Anybody), "somebody is still looking");
    }
}
