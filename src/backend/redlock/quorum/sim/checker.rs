//! Whether a history keeps must 1 and must 3.

use super::Time;

/// A grant, in the time of the world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// When its owner sent the first request.
    pub(super) asked: Time,
    pub(super) from: Time,
    /// When its owner ceased to count on it.
    pub(super) until: Time,
    pub(super) token: u64,
    /// When the last renewal was sent that extended it.
    pub(super) extended: Time,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Two held at once.
    pub(super) doubles: u64,
    /// A token not above that of a grant before.
    pub(super) inverted: u64,
    /// The same, though it was asked for after that grant.
    pub(super) overtaken: u64,
    /// The same token twice.
    pub(super) repeated: u64,
    /// A lease extended by a renewal that was sent after another had asked, held, and ended.
    pub(super) spanned: u64,
}

impl Found {
    pub(super) fn add(&mut self, other: Self) {
        self.doubles += other.doubles;
        self.inverted += other.inverted;
        self.overtaken += other.overtaken;
        self.repeated += other.repeated;
        self.spanned += other.spanned;
    }

    pub(super) fn any(&self) -> bool {
        self.doubles + self.inverted + self.repeated + self.spanned > 0
    }
}

pub(super) fn check(history: &mut [Held]) -> Found {
    history.sort_unstable_by_key(|held| held.from);
    let mut found = Found::default();
    let (mut latest_end, mut highest) = (0, 0);
    for (at, held) in history.iter().enumerate() {
        let before = &history[..at];
        if held.from < latest_end {
            found.doubles += 1;
            let spans = |other: &&Held| other.from < held.asked && held.until < other.extended;
            found.spanned += before.iter().filter(spans).count() as u64;
        }
        if held.token <= highest {
            found.inverted += 1;
            let higher = |other: &&Held| other.token >= held.token;
            let asked_after = |other: &Held| other.from < held.asked;
            let repeats = |other: &Held| other.token == held.token;
            found.overtaken += u64::from(before.iter().filter(higher).any(asked_after));
            found.repeated += u64::from(before.iter().any(repeats));
        }
        latest_end = latest_end.max(held.until);
        highest = highest.max(held.token);
    }
    found
}

fn held(asked: Time, from: Time, until: Time, token: u64) -> Held {
    Held {
        asked,
        from,
        until,
        token,
        extended: 0,
    }
}

#[test]
fn good_histories_pass() {
    let found = check(&mut [held(20, 20, 30, 7), held(0, 0, 5, 1), held(4, 5, 9, 2)]);
    assert!(!found.any(), "{found:?}");
}

#[test]
fn histories_that_must_fail_do() {
    assert_eq!(check(&mut [held(0, 0, 5, 1), held(4, 4, 9, 2)]).doubles, 1);
    // Also beside one that is not the last before it.
    let mut long = [held(0, 0, 50, 1), held(4, 4, 9, 2), held(20, 20, 30, 3)];
    assert_eq!(check(&mut long).doubles, 2);
    long[0].extended = 15;
    assert_eq!(check(&mut long).spanned, 1);
    let same = check(&mut [held(0, 0, 5, 1), held(4, 5, 9, 1)]);
    assert_eq!((same.inverted, same.repeated, same.overtaken), (1, 1, 1));
    let lower = check(&mut [held(0, 0, 5, 2), held(3, 5, 9, 1)]);
    assert_eq!((lower.inverted, lower.repeated, lower.overtaken), (1, 0, 1));
    let under_way = check(&mut [held(3, 3, 5, 2), held(0, 5, 9, 1)]);
    assert_eq!((under_way.inverted, under_way.overtaken), (1, 0));
}
