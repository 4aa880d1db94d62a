//! The contexts that have used a descriptor number. When a number is closed, only these contexts
//! are told, so that the cost does not depend on the number of all contexts.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::Ends;

/// By descriptor number: 0 (unused since it was last closed), a context's [`User`], or `SEVERAL`.
/// Numbers beyond the table count as used by any context.
static USERS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
const NUMBERS: usize = 4096;
const SEVERAL: u32 = u32::MAX;

/// A context, by its id in the table of contexts plus one. So no context has the value 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User(u32);

impl User {
    pub(crate) fn new(id: u32) -> Self {
        Self(id + 1)
    }

    /// Notes that the context uses a number. Called before the use.
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

/// The contexts that may use the numbers of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    Nobody,
    /// The context with this id.
    One(u32),
    Anybody,
}

/// The contexts that have used numbers which are about to be closed.
pub(crate) fn of(fds: &RangeInclusive<i32>) -> Users {
    let (first, last) = (*fds.start() as usize, *fds.end() as usize);
    let Some(users) = USERS.get(first..=last) else { return Users::Anybody };
    let mut found = Users::Nobody;
    for user in users {
        found = match (user.load(Ordering::SeqCst), found) {
            (0, _) => found,
            (SEVERAL, _) => return Users::Anybody,
            (user, Users::Nobody) => Users::One(user - 1),
            (user, Users::One(id)) if user - 1 == id => found,
            _ => return Users::Anybody,
        };
    }
    found
}

/// Forgets the users of numbers that are about to be closed. Does nothing if another file takes the
/// number, because a request that another thread submits meanwhile may be on either file.
pub(crate) fn forget(fds: &RangeInclusive<i32>, ends: Ends) {
    let (first, last) = (*fds.start() as usize, *fds.end() as usize);
    if ends == Ends::Closed && first < NUMBERS {
        let used = |user: &&AtomicU32| user.load(Ordering::Relaxed) != 0;
        USERS[first..=last.min(NUMBERS - 1)]
            .iter()
            .filter(used)
            .for_each(|user| user.store(0, Ordering::SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use uringlet::front::Ends;

    use super::{NUMBERS, User, Users, forget, of};

    #[test]
    fn who_has_used_a_number_is_known_until_it_is_closed() {
        // Numbers that no other test uses: they are not open.
        let at = NUMBERS as i32 - 100;
        let (one, other) = (User::new(3), User::new(4));
        assert_eq!(of(&(at..=at + 2)), Users::Nobody);
        (0..2).for_each(|_| one.uses(at));
        assert_eq!(of(&(at..=at)), Users::One(3));
        one.uses(at + 2);
        assert_eq!(of(&(at..=at + 2)), Users::One(3));
        forget(&(at..=at + 2), Ends::Replaced);
        other.uses(at + 2);
        assert_eq!(of(&(at..=at + 2)), Users::Anybody);
        assert_eq!(of(&(at..=at + 1)), Users::One(3));
        // `one` has used the number. Now `other` uses it, and then `one` again.
        (0..2).for_each(|_| other.uses(at));
        one.uses(at);
        assert_eq!(of(&(at..=at)), Users::Anybody);
        forget(&(at..=at), Ends::Closed);
        assert_eq!(of(&(at..=at)), Users::Nobody);
        other.uses(at);
        assert_eq!(of(&(at..=at)), Users::One(4), "the first is forgotten");
        // A number beyond the table, and -1, which names no file.
        one.uses(NUMBERS as i32);
        one.uses(-1);
        assert_eq!(of(&(NUMBERS as i32..=NUMBERS as i32)), Users::Anybody);
        assert_eq!(of(&(at..=i32::MAX)), Users::Anybody);
        forget(&(at..=i32::MAX), Ends::Closed);
        assert_eq!(of(&(at..=at + 2)), Users::Nobody);
    }
}
