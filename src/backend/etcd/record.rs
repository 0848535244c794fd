//! What a record says, and what becomes of it: decided here, and done by the transactions of
//! [`steps`](super::steps).

use bytes::Bytes;

use super::trouble::Trouble;
use crate::{
    lease::FencingToken,
    record::{Opening, Outcome, Record, RecordState, Results, Save},
};

/// What stands in a record:
///
/// - `c <token> <bytes>`, a result;
/// - `o <token> <owner> <lease> <n> <n bytes: what it took the place of><bytes>`, that this owner may
///   have begun; `-` for a token is the revision at which this was written; the lease is that of
///   what it took the place of, to which it is put back;
/// - `f <token> `, only that this one was there.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) token: FencingToken,
    what: What,
}

#[derive(Clone, PartialEq, Eq)]
enum What {
    Closed(Bytes),
    Open {
        /// In hexadecimal digits.
        owner: String,
        before: Before,
        bytes: Bytes,
    },
    Fence,
}

/// What an open record took the place of.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum Before {
    #[default]
    Nothing,
    Orphan {
        token: FencingToken,
        owner: String,
        bytes: Bytes,
        lease: i64,
        /// Token and lease of what that one had taken the place of.
        fence: Option<(FencingToken, i64)>,
    },
    /// Not for who took its place, but for those who waited for its holder.
    Result {
        token: FencingToken,
        bytes: Bytes,
        lease: i64,
    },
    Fence(FencingToken, i64),
}

/// Of longer results only the token is kept when another takes their place.
const SHORT: usize = 256;

/// What a save comes to.
#[derive(PartialEq, Eq)]
pub(super) enum Close {
    /// A later holder has left a record.
    Refused,
    /// There is nothing to write.
    Stands,
    /// A result, for a time of its own.
    Keep(Vec<u8>),
    Change(Change),
}

/// What is done to a record without a new end.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// With the lease that it has.
    Write(Vec<u8>),
    /// With this one, that it had before.
    PutBack(Vec<u8>, i64),
    Delete,
}

impl Before {
    /// Of what a record of this owner takes the place, if this stands there with this lease; and the
    /// leases that nothing needs then.
    pub(super) fn of(kept: Option<&Kept>, lease: i64, by: &str) -> (Self, Vec<i64>) {
        let Some(kept) = kept else {
            return (Self::Nothing, Vec::new());
        };
        // Its own, of a grant that ended unheard of.
        if let Some(before) = kept.before_of(by) {
            return (before.clone(), vec![lease]);
        }
        let before = Self::from(kept.clone(), lease);
        let mut left = kept.leases();
        left.retain(|lease| !before.leases().contains(lease));
        (before, left)
    }

    fn from(kept: Kept, lease: i64) -> Self {
        match kept.what {
            What::Closed(bytes) if bytes.len() <= SHORT => Self::Result {
                token: kept.token,
                bytes,
                lease,
            },
            What::Closed(_) | What::Fence => Self::Fence(kept.token, lease),
            What::Open {
                owner,
                before,
                bytes,
            } => Self::Orphan {
                token: kept.token,
                owner,
                bytes,
                lease,
                fence: match before {
                    Self::Nothing => None,
                    Self::Orphan { token, lease, .. }
                    | Self::Result { token, lease, .. }
                    | Self::Fence(token, lease) => Some((token, lease)),
                },
            },
        }
    }

    pub(super) fn record(&self) -> Option<Record> {
        match self {
            Self::Orphan { token, bytes, .. } => {
                Some(Record::new(RecordState::Open, *token, bytes.clone()))
            }
            Self::Nothing | Self::Result { .. } | Self::Fence(..) => None,
        }
    }

    fn lease(&self) -> i64 {
        match self {
            Self::Nothing => 0,
            Self::Orphan { lease, .. } | Self::Result { lease, .. } | Self::Fence(_, lease) => {
                *lease
            }
        }
    }

    fn leases(&self) -> Vec<i64> {
        let fence = match self {
            Self::Orphan { fence, .. } => fence.map(|(_, lease)| lease),
            Self::Nothing | Self::Result { .. } | Self::Fence(..) => None,
        };
        let leases = [Some(self.lease()), fence].into_iter().flatten();
        leases.filter(|lease| *lease != 0).collect()
    }

    /// What stood there.
    fn kept(&self) -> Option<Kept> {
        let (token, what) = match self {
            Self::Nothing => return None,
            Self::Fence(token, _) => (*token, What::Fence),
            Self::Result { token, bytes, .. } => (*token, What::Closed(bytes.clone())),
            Self::Orphan {
                token,
                owner,
                bytes,
                lease: _,
                fence,
            } => {
                let fence = fence.map(|(token, lease)| Self::Fence(token, lease));
                let what = What::Open {
                    owner: owner.clone(),
                    before: fence.unwrap_or_default(),
                    bytes: bytes.clone(),
                };
                (*token, what)
            }
        };
        Some(Kept { token, what })
    }

    /// An open record of this owner, behind this; without a token that of the revision.
    pub(super) fn open(&self, by: &str, token: Option<FencingToken>, bytes: &Bytes) -> Vec<u8> {
        let before = self.kept().map(|kept| kept.text()).unwrap_or_default();
        let token = token.map_or("-".into(), |token| token.to_string());
        let mut text = format!("o {token} {by} {} {} ", self.lease(), before.len()).into_bytes();
        text.extend_from_slice(&before);
        text.extend_from_slice(bytes);
        text
    }
}

impl Kept {
    /// What was written at this revision.
    pub(super) fn read(value: &[u8], revision: i64) -> Result<Self, Trouble> {
        let revision = u64::try_from(revision).unwrap_or_default();
        parse(Bytes::copy_from_slice(value), revision).ok_or_else(Trouble::strange)
    }

    /// As it was opened at a grant.
    pub(super) fn opened(token: FencingToken, owner: &str, before: Before) -> Self {
        let what = What::Open {
            owner: owner.into(),
            before,
            bytes: Bytes::new(),
        };
        Self { token, what }
    }

    fn text(&self) -> Vec<u8> {
        match &self.what {
            What::Closed(bytes) => closed(self.token, bytes),
            What::Open {
                owner,
                before,
                bytes,
            } => before.open(owner, Some(self.token), bytes),
            What::Fence => fence(self.token),
        }
    }

    pub(super) fn record(&self) -> Option<Record> {
        let (state, bytes) = match &self.what {
            What::Open { bytes, .. } => (RecordState::Open, bytes),
            What::Closed(bytes) => (RecordState::Closed, bytes),
            What::Fence => return None,
        };
        Some(Record::new(state, self.token, bytes.clone()))
    }

    /// The result for who asks for such ones; `since`: the token of the holder for whom it waits, if
    /// it does.
    pub(super) fn result(&self, results: Results, since: Option<FencingToken>) -> Option<Record> {
        let (token, bytes) = match &self.what {
            What::Closed(bytes) => (self.token, bytes),
            What::Open {
                before: Before::Result { token, bytes, .. },
                ..
            } => (*token, bytes),
            What::Open { .. } | What::Fence => return None,
        };
        let is_for_it = match results {
            Results::ForAll => matches!(self.what, What::Closed(_)),
            Results::ForWaiting => since.is_some_and(|since| token >= since),
        };
        is_for_it.then(|| Record::new(RecordState::Closed, token, bytes.clone()))
    }

    /// The orphan that is returned to this owner rather than a grant, where nobody holds the key.
    pub(super) fn orphan(&self, by: &str, open: Option<&Opening>) -> Option<Record> {
        let (What::Open { owner, bytes, .. }, Some(open)) = (&self.what, open) else {
            return None;
        };
        let stays = owner != by && open.keeps(bytes);
        if stays { self.record() } else { None }
    }

    /// The leases of what it took the place of, which wait for it to end.
    pub(super) fn leases(&self) -> Vec<i64> {
        match &self.what {
            What::Open { before, .. } => before.leases(),
            What::Closed(_) | What::Fence => Vec::new(),
        }
    }

    /// What this owner's open record took the place of.
    pub(super) fn before_of(&self, by: &str) -> Option<&Before> {
        match &self.what {
            What::Open { owner, before, .. } if owner == by => Some(before),
            _ => None,
        }
    }

    /// What this save, by an owner who holds or nobody does, comes to.
    pub(super) fn close(kept: Option<&Self>, by: &str, save: &Save) -> Close {
        if kept.is_some_and(|kept| kept.token > save.token) {
            return Close::Refused;
        }
        match (&save.outcome, kept) {
            // The first result of a token stays.
            (Outcome::Keep { .. }, Some(kept)) if kept.is_result_of(save.token) => Close::Stands,
            (Outcome::Keep { bytes, .. }, _) => Close::Keep(closed(save.token, bytes)),
            (Outcome::Forget, kept) => {
                match kept.and_then(|kept| Some((kept, kept.before_of(by)?))) {
                    None => Close::Stands,
                    Some((_, Before::Nothing)) => Close::Change(Change::Delete),
                    // Whoever was there before may be there still, and is not to write after this one.
                    Some((kept, _)) => Close::Change(Change::Write(fence(kept.token))),
                }
            }
        }
    }

    pub(super) fn is_result_of(&self, token: FencingToken) -> bool {
        matches!(self.what, What::Closed(_)) && self.token == token
    }

    /// What is to be done as this owner's grant is undone, of which nobody heard.
    pub(super) fn withdrawn(&self, by: &str) -> Option<Change> {
        let What::Open {
            owner,
            before,
            bytes,
        } = &self.what
        else {
            return None;
        };
        if owner == by {
            return Some(match (before.kept(), before.lease()) {
                (None, _) => Change::Delete,
                // One that was written by hand.
                (Some(kept), 0) => Change::Write(kept.text()),
                (Some(kept), lease) => Change::PutBack(kept.text(), lease),
            });
        }
        match before {
            // Its lease had ended, and another took it for an orphan: to nobody else. Its token
            // stays, for the sake of those whose place it took itself.
            Before::Orphan {
                owner: its,
                token,
                lease,
                ..
            } if its == by => {
                let open = Before::Fence(*token, *lease);
                let open = open.open(owner, Some(self.token), bytes);
                Some(Change::Write(open))
            }
            _ => None,
        }
    }
}

fn closed(token: FencingToken, bytes: &Bytes) -> Vec<u8> {
    let mut text = format!("c {token} ").into_bytes();
    text.extend_from_slice(bytes);
    text
}

fn fence(token: FencingToken) -> Vec<u8> {
    format!("f {token} ").into_bytes()
}

fn parse(mut text: Bytes, revision: u64) -> Option<Kept> {
    let kind = word(&mut text)?;
    let token = word(&mut text)?;
    let token = match &*token {
        b"-" => revision,
        digits => number(digits)?,
    };
    let token = FencingToken::new(token)?;
    let what = match &*kind {
        b"c" => What::Closed(text),
        b"f" => What::Fence,
        b"o" => {
            let owner = String::from_utf8(word(&mut text)?.to_vec()).ok()?;
            let lease = i64::try_from(number(&word(&mut text)?)?).ok()?;
            let length = usize::try_from(number(&word(&mut text)?)?).ok()?;
            if length > text.len() {
                return None;
            }
            let before = text.split_to(length);
            let before = match length {
                0 => Before::Nothing,
                _ => Before::from(parse(before, 0)?, lease),
            };
            What::Open {
                owner,
                before,
                bytes: text,
            }
        }
        _ => return None,
    };
    Some(Kept { token, what })
}

/// Takes what stands before the next space.
fn word(text: &mut Bytes) -> Option<Bytes> {
    let end = text.iter().take(64).position(|&byte| byte == b' ')?;
    let word = text.split_to(end);
    drop(text.split_to(1));
    Some(word)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::Orphans;
    use crate::{key::LockKey, lease::OwnerToken};

    const LONG: Duration = Duration::from_secs(600);

    fn of(text: &str) -> Kept {
        Kept::read(text.as_bytes(), 99).unwrap_or_else(|_| panic!("{text:?} is not read"))
    }

    fn token(n: u64) -> FencingToken {
        FencingToken::new(n).unwrap()
    }

    fn text(change: Option<Change>) -> Option<String> {
        match change? {
            Change::Write(text) => Some(String::from_utf8(text).unwrap()),
            Change::PutBack(text, lease) => {
                Some(format!("{} on {lease}", String::from_utf8(text).unwrap()))
            }
            Change::Delete => Some("gone".into()),
        }
    }

    /// Instances of other versions rely on this.
    #[test]
    fn records_are_written_as_they_are_read() {
        for written in [
            "c 17 a b ",
            "c 17 ",
            "f 17 ",
            "o 17 ab 0 0 bytes",
            "o 18 cd 7 5 f 17 bytes",
            "o 18 cd 7 17 o 17 ab 0 0 bytesnew",
            "o 19 cd 8 18 o 18 ab 7 5 f 17 onew",
        ] {
            assert_eq!(of(written).text(), written.as_bytes(), "{written}");
        }
        let record = of("o - ab 0 0 x").record().unwrap();
        assert_eq!((record.token, record.state), (token(99), RecordState::Open));
        assert!(of("f 3 ").record().is_none());
        for garbage in [
            "",
            "c",
            "c 17",
            "c 0 x",
            "c x x",
            "x 17 x",
            "o 17 x",
            "o 17 ab 4 new",
            "o 17 ab 0 4 new",
            "o 17 ab x 0 new",
        ] {
            assert!(Kept::read(garbage.as_bytes(), 99).is_err(), "{garbage:?}");
        }
        assert!(Kept::read(b"o 17 ab 0 -1 new", 99).is_err());
        assert!(Kept::read(b"o - ab 0 0 new", 0).is_err());
    }

    #[test]
    fn what_was_replaced_is_put_back() {
        // It stands with lease 9; and which leases are of no use while it is replaced.
        let undone = |before: &str| {
            let kept = (!before.is_empty()).then(|| of(before));
            let (before, left) = Before::of(kept.as_ref(), 9, "me");
            let open = before.open("me", Some(token(30)), &Bytes::from("new"));
            let kept = Kept::read(&open, 0).ok().unwrap();
            let mut all = kept.leases();
            all.extend(&left);
            (text(kept.withdrawn("me")).unwrap(), all, left)
        };
        let long = format!("c 17 {}", "x".repeat(SHORT + 1));
        for (before, back, all, left) in [
            ("", "gone", vec![], vec![]),
            ("o 17 ab 0 0 old", "o 17 ab 0 0 old on 9", vec![9], vec![]),
            // A result that was not for it; of a long one, the token.
            ("c 17 result", "c 17 result on 9", vec![9], vec![]),
            (&long, "f 17  on 9", vec![9], vec![]),
            ("f 17 ", "f 17  on 9", vec![9], vec![]),
            // What an orphan had replaced itself.
            (
                "o 18 cd 7 17 o 17 ab 0 0 bytesnew",
                "o 18 cd 7 5 f 17 new on 9",
                vec![9, 7],
                vec![],
            ),
            (
                "o 19 cd 8 18 o 18 ab 7 5 f 17 onew",
                "o 19 cd 8 5 f 18 new on 9",
                vec![9, 8, 7],
                vec![7],
            ),
            // Its own, of an earlier try.
            ("o 18 me 7 5 f 17 new", "f 17  on 7", vec![7, 9], vec![9]),
        ] {
            let expected = (back.to_owned(), all, left);
            assert_eq!(undone(before), expected, "{before}");
        }
        assert!(of("c 17 x").withdrawn("me").is_none());
        assert!(of("o 17 ab 0 0 x").withdrawn("me").is_none());
        let successors = of("o 31 ab 7 15 o 30 me 0 0 oldnew").withdrawn("me");
        assert_eq!(text(successors).unwrap(), "o 31 ab 7 5 f 30 new");
    }

    #[test]
    fn saves_are_fenced_and_may_be_repeated() {
        let key = LockKey::new("order", 7);
        let owner = OwnerToken::random();
        let close = |record: &str, forgets: bool| {
            let save = match forgets {
                true => Save::forget(key.clone(), owner, token(20)),
                false => Save::keep(key.clone(), owner, token(20), "new", LONG),
            };
            let kept = (!record.is_empty()).then(|| of(record));
            match Kept::close(kept.as_ref(), "me", &save) {
                Close::Refused => "refused".to_owned(),
                Close::Stands => "stands".to_owned(),
                Close::Keep(text) => String::from_utf8(text).unwrap(),
                Close::Change(change) => text(Some(change)).unwrap(),
            }
        };
        for (record, keep, forget) in [
            ("", "c 20 new", "stands"),
            ("c 19 old", "c 20 new", "stands"),
            ("c 20 old", "stands", "stands"),
            ("c 21 old", "refused", "refused"),
            ("o 20 me 0 0 x", "c 20 new", "gone"),
            ("o 20 me 7 5 f 17 x", "c 20 new", "f 20 "),
            ("o 19 ab 0 0 x", "c 20 new", "stands"),
            ("o 21 ab 0 0 x", "refused", "refused"),
            ("f 21 ", "refused", "refused"),
            ("f 20 ", "c 20 new", "stands"),
        ] {
            assert_eq!(close(record, false), keep, "{record}");
            assert_eq!(close(record, true), forget, "{record}");
        }
    }

    #[test]
    fn orphans_stay_as_the_opening_says() {
        for (record, orphans, expected) in [
            ("o 1 ab 0 0 same", Orphans::Replace, false),
            ("o 1 ab 0 0 other", Orphans::ReplaceEqual, true),
            ("o 1 ab 0 0 same", Orphans::ReplaceEqual, false),
            ("o 1 ab 0 0 same", Orphans::Keep, true),
            ("o 1 me 0 0 same", Orphans::Keep, false),
            ("f 1 ", Orphans::Keep, false),
            ("c 1 x", Orphans::Keep, false),
        ] {
            let open = Opening::new("same", LONG).with_orphans(orphans);
            let orphan = of(record).orphan("me", Some(&open));
            assert_eq!(orphan.is_some(), expected, "{record}");
            assert!(of(record).orphan("me", None).is_none());
        }
    }

    #[test]
    fn results_are_for_all_or_for_those_who_waited() {
        for (record, since, for_all, for_waiting) in [
            ("c 17 x", None, true, false),
            ("c 17 x", Some(17), true, true),
            ("c 17 x", Some(18), true, false),
            // A newcomer has taken its place.
            ("o 19 ab 9 6 c 17 xnew", None, false, false),
            ("o 19 ab 9 6 c 17 xnew", Some(16), false, true),
            ("o 19 ab 9 6 c 17 xnew", Some(18), false, false),
            ("o 19 ab 9 5 f 17 new", Some(16), false, false),
            ("f 17 ", Some(16), false, false),
        ] {
            let result = |results| of(record).result(results, since.map(token));
            let found = [result(Results::ForAll), result(Results::ForWaiting)];
            let expected = [for_all, for_waiting];
            assert_eq!(
                found.clone().map(|r| r.is_some()),
                expected,
                "{record} {since:?}"
            );
            for result in found.into_iter().flatten() {
                assert_eq!((result.token, &*result.bytes), (token(17), &b"x"[..]));
            }
        }
    }
}
