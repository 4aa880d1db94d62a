//! Sockets that receives wait for: they stay registered while receives come and go. A try of a
//! receive is *in vain* if it finds no data.

use crate::tuning::{UNCLAIMED, UNTRIED};

/// What is known of a socket that stays registered, level-triggered.
#[derive(Debug, Default)]
pub(super) struct Stays {
    /// The number of receives to come that are not tried before an event.
    untried: u32,
    /// The value of `untried` after the last try in vain.
    patience: u32,
    /// A receive was left to be tried, and its try has not been in vain so far.
    is_tried: bool,
    /// The number of events in a row that nothing waited for.
    unclaimed: u32,
    /// The round of confirmations in which a receive has joined last.
    pub(super) joined: u32,
    /// The group is in the list of groups to confirm.
    pub(super) is_listed: bool,
    /// Data may be there that no event reports. `None`: that is unknown.
    hides_data: Option<bool>,
    /// It is a socket of the Unix domain. `None`: that is unknown.
    pub(super) is_unix: Option<bool>,
}

impl Stays {
    /// Does the next receive wait for an event without a try? Yes if the last tries were in vain.
    /// `hides_data` is asked once.
    pub(super) fn is_left_untried(&mut self, hides_data: impl FnOnce() -> bool) -> bool {
        self.unclaimed = 0;
        if self.untried > 0 {
            self.untried -= 1;
            return !*self.hides_data.get_or_insert_with(hides_data);
        }
        if std::mem::replace(&mut self.is_tried, true) {
            // The last try was not in vain.
            self.patience = 0;
        }
        false
    }

    /// A receive was tried in vain.
    pub(super) fn missed(&mut self) {
        self.is_tried = false;
        self.patience = UNTRIED.min(2 * self.patience + 1);
        self.untried = self.patience;
    }

    /// Notes whether the socket may have data that no event reports. Returns true if it may, and
    /// the note before said that it may not.
    pub(super) fn hides_data_now(&mut self, hides: bool) -> bool {
        self.hides_data.replace(hides) == Some(false) && hides
    }

    /// An event was reported. False: nothing has waited for the last events, and the socket does
    /// not stay registered.
    pub(super) fn goes_on(&mut self, is_claimed: bool) -> bool {
        self.unclaimed = if is_claimed { 0 } else { self.unclaimed + 1 };
        self.unclaimed <= UNCLAIMED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries receives, of which one in `period` finds data. Returns the number of tries in vain.
    fn vain(period: u32, receives: u32) -> u32 {
        let mut stays = Stays::default();
        (0..receives).fold(0, |vain, at| {
            let is_vain = !stays.is_left_untried(|| false) && at % period != 0;
            if is_vain {
                stays.missed();
            }
            vain + u32::from(is_vain)
        })
    }

    #[test]
    fn few_tries_are_in_vain_and_none_where_data_is_always_there() {
        assert_eq!(vain(1, 1000), 0);
        assert!(vain(u32::MAX, 10_000) < 10_000 / UNTRIED + 10);
    }

    #[test]
    fn events_that_nothing_waits_for_end_it() {
        let mut stays = Stays::default();
        for _ in 0..3 {
            assert!((0..UNCLAIMED).all(|_| stays.goes_on(false)));
            assert!(stays.goes_on(true));
        }
        assert!((0..UNCLAIMED).all(|_| stays.goes_on(false)));
        assert!(!stays.goes_on(false));
    }
}
