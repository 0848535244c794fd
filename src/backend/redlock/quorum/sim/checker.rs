//! Whether a history keeps must 1 and must 3.

use std::time::Duration;

/// A grant, in the time of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) from: Duration,
    /// When its client ceased to count on it.
    pub(crate) until: Duration,
    pub(crate) token: u64,
    pub(crate) raised: bool,
    pub(crate) renewals: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) grants: u64,
    pub(crate) raised: u64,
    pub(crate) renewals: u64,
    /// Two held at once.
    pub(crate) doubles: u64,
    /// A token not above the one before.
    pub(crate) tokens: u64,
    /// The same, between grants that did not overlap.
    pub(crate) tokens_of_singles: u64,
    /// The first seed that showed something.
    pub(crate) seed: Option<u64>,
}

impl Found {
    pub(crate) fn add(&mut self, other: Self, seed: u64) {
        self.grants += other.grants;
        self.raised += other.raised;
        self.renewals += other.renewals;
        self.doubles += other.doubles;
        self.tokens += other.tokens;
        self.tokens_of_singles += other.tokens_of_singles;
        if self.seed.is_none() && other.doubles + other.tokens > 0 {
            self.seed = Some(seed);
        }
    }
}

pub(crate) fn check(history: &[Held]) -> Found {
    let mut sorted: Vec<_> = history.iter().collect();
    sorted.sort_by_key(|held| held.from);
    let mut found = Found::default();
    let mut latest_end = Duration::ZERO;
    for (at, held) in sorted.iter().enumerate() {
        found.grants += 1;
        found.raised += u64::from(held.raised);
        found.renewals += held.renewals;
        if held.from < latest_end {
            found.doubles += 1;
        }
        latest_end = latest_end.max(held.until);
        let lower = |earlier: &&&Held| earlier.token >= held.token;
        if sorted[..at].iter().any(|earlier| lower(&earlier)) {
            found.tokens += 1;
        }
        let before = |earlier: &&&Held| earlier.until <= held.from && earlier.token >= held.token;
        if sorted[..at].iter().any(|earlier| before(&earlier)) {
            found.tokens_of_singles += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(from: u64, until: u64, token: u64) -> Held {
        Held {
            from: Duration::from_millis(from),
            until: Duration::from_millis(until),
            token,
            raised: false,
            renewals: 0,
        }
    }

    #[test]
    fn histories_that_must_fail_do() {
        let good = [held(0, 5, 1), held(5, 9, 2), held(20, 30, 7)];
        let found = check(&good);
        assert_eq!((found.doubles, found.tokens), (0, 0));
        assert_eq!(check(&[held(0, 5, 1), held(4, 9, 2)]).doubles, 1);
        // Also beside one that is not the last before it.
        let long = [held(0, 50, 1), held(4, 9, 2), held(20, 30, 3)];
        assert_eq!(check(&long).doubles, 2);
        assert_eq!(check(&[held(0, 5, 1), held(5, 9, 1)]).tokens, 1);
        assert_eq!(check(&[held(0, 5, 2), held(5, 9, 1)]).tokens_of_singles, 1);
        assert_eq!(check(&[held(0, 5, 2), held(4, 9, 1)]).tokens_of_singles, 0);
    }
}
