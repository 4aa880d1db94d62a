//! Which context has used a descriptor number: the end of that number's life concerns no other, so
//! that closing a file costs the same with one context and with thousands.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use uringlet::front::Ends;

/// By number: 0 if none has since it was last closed, a [`User`], or `SEVERAL`. Anybody may have
/// used those beyond.
static USERS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
const NUMBERS: usize = 4096;
const SEVERAL: u32 = u32::MAX;

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

/// Who has used numbers whose present life ends.
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

/// Forgets who has used numbers that are about to be closed. Not where another file takes their
/// place: a request that another thread submits meanwhile may be on either.
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
        // Numbers that no other test has: there are no such descriptors.
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
        // One after the other.
        (0..2).for_each(|_| other.uses(at));
        one.uses(at);
        assert_eq!(of(&(at..=at)), Users::Anybody);
        forget(&(at..=at), Ends::Closed);
        assert_eq!(of(&(at..=at)), Users::Nobody);
        other.uses(at);
        assert_eq!(of(&(at..=at)), Users::One(4), "the first is forgotten");
        // Numbers of which there is no record, and none at all.
        one.uses(NUMBERS as i32);
        one.uses(-1);
        assert_eq!(of(&(NUMBERS as i32..=NUMBERS as i32)), Users::Anybody);
        assert_eq!(of(&(at..=i32::MAX)), Users::Anybody);
        forget(&(at..=i32::MAX), Ends::Closed);
        assert_eq!(of(&(at..=at + 2)), Users::Nobody);
    }
}
