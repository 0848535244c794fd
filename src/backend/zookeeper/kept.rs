//! What the node of a record says, and what follows from it: pure.
//!
//! | data | what it says |
//! |---|---|
//! | `c <token> <ttl> <bytes>` | a result |
//! | `o <token> <ttl> <owner> <n> <n bytes><bytes>` | this owner may have begun; the `n` bytes say what its record took the place of: `o <token> <owner> <bytes>`, an orphan, `c <token> <zxid> <bytes>`, a short result for those who came before it, `f <token> `, a mark, or nothing |
//! | `f <token> <ttl> ` | a mark: a holder of this token was there, and is not to be preceded |
//!
//! The ttl is in milliseconds of the servers' clock, from the time of the write, which is in the
//! node's stat. A token of 0 is that of the write itself: an open record that is written in the
//! transaction that creates its holder's node has the same zxid, which nobody knows before.

use bytes::Bytes;
use zookeeper_client::Stat;

use crate::{
    lease::{FencingToken, OwnerToken},
    record::{Opening, Record, RecordState, Results},
};

/// The longest result that an open record keeps which takes its place: few look for it there.
const SHORT: usize = 256;

/// What stands under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    token: FencingToken,
    what: What,
    /// In milliseconds of the servers' clock.
    ends: i64,
    /// The number of the write.
    written: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Open {
        owner: OwnerToken,
        before: Before,
        bytes: Bytes,
    },
    Closed(Bytes),
    Fence,
}

/// What an open record took the place of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    Orphan(FencingToken, OwnerToken, Bytes),
    /// For those whose node was made before this write.
    Result(FencingToken, i64, Bytes),
    /// Only the token counts.
    Fence(FencingToken),
}

/// How an undo, or who forgets, leaves the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    AsItIs,
    Nothing,
    Data(Vec<u8>),
}

impl Before {
    pub(super) fn record(&self) -> Option<Record> {
        match self {
            Self::Orphan(token, _, bytes) => {
                Some(Record::new(RecordState::Open, *token, bytes.clone()))
            }
            Self::Nothing | Self::Result(..) | Self::Fence(_) => None,
        }
    }

    fn write(&self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Orphan(token, owner, bytes) => {
                let head = format!("o {token} {} ", hex(owner));
                [head.as_bytes(), bytes].concat()
            }
            Self::Result(token, written, bytes) => {
                [format!("c {token} {written} ").as_bytes(), bytes].concat()
            }
            Self::Fence(token) => format!("f {token} ").into_bytes(),
        }
    }

    fn read(mut bytes: Bytes) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::Nothing);
        }
        match &*word(&mut bytes)? {
            b"o" => {
                let token = token(&mut bytes)?;
                Some(Self::Orphan(token, owner(&mut bytes)?, bytes))
            }
            b"c" => {
                let token = token(&mut bytes)?;
                let written = i64::try_from(decimal(&word(&mut bytes)?)?).ok()?;
                Some(Self::Result(token, written, bytes))
            }
            b"f" => Some(Self::Fence(token(&mut bytes)?)),
            _ => None,
        }
    }
}

impl Kept {
    /// What this node says; `None` if it is no record. `number` makes a token of a zxid.
    pub(super) fn read(
        data: Vec<u8>,
        stat: &Stat,
        number: impl FnOnce(i64) -> Option<FencingToken>,
    ) -> Option<Self> {
        let mut bytes = Bytes::from(data);
        let kind = word(&mut bytes)?;
        let token = match decimal(&word(&mut bytes)?)? {
            0 => number(stat.mzxid)?,
            token => FencingToken::new(token)?,
        };
        let ttl = i64::try_from(decimal(&word(&mut bytes)?)?).ok()?;
        let what = match &*kind {
            b"c" => What::Closed(bytes),
            b"f" => What::Fence,
            b"o" => {
                let owner = owner(&mut bytes)?;
                let length = usize::try_from(decimal(&word(&mut bytes)?)?).ok()?;
                if length > bytes.len() {
                    return None;
                }
                let before = Before::read(bytes.split_to(length))?;
                What::Open {
                    owner,
                    before,
                    bytes,
                }
            }
            _ => return None,
        };
        Some(Self {
            token,
            what,
            ends: stat.mtime.saturating_add(ttl),
            written: stat.mzxid,
        })
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// In milliseconds of the servers' clock.
    pub(super) fn ends(&self) -> i64 {
        self.ends
    }

    /// The number of the write: later ones are higher, and so are the nodes of those who come later.
    pub(super) fn written(&self) -> i64 {
        self.written
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.what, What::Closed(_))
    }

    pub(super) fn record(&self) -> Option<Record> {
        let (state, bytes) = match &self.what {
            What::Open { bytes, .. } => (RecordState::Open, bytes),
            What::Closed(bytes) => (RecordState::Closed, bytes),
            What::Fence => return None,
        };
        Some(Record::new(state, self.token, bytes.clone()))
    }

    /// The record, if its holder has not said how it ended.
    pub(super) fn open_record(&self) -> Option<Record> {
        self.record().filter(|record| !record.is_closed())
    }

    /// The result for one who waits for what is written after `came`, if it waits.
    pub(super) fn result(&self, open: Option<&Opening>, came: Option<i64>) -> Option<Record> {
        let (token, written, bytes) = match &self.what {
            What::Closed(bytes) => (self.token, self.written, bytes),
            What::Open {
                before: Before::Result(token, written, bytes),
                ..
            } => (*token, *written, bytes),
            What::Open { .. } | What::Fence => return None,
        };
        let is_for_it = match open.map_or(Results::ForAll, |open| open.results) {
            Results::ForAll => self.is_closed(),
            Results::ForWaiting => came.is_some_and(|came| came < written),
        };
        is_for_it.then(|| Record::new(RecordState::Closed, token, bytes.clone()))
    }

    /// The orphan that is to be returned to this owner rather than a grant, where nobody holds the
    /// key.
    pub(super) fn orphan(&self, by: &OwnerToken, open: Option<&Opening>) -> Option<Record> {
        let (What::Open { owner, bytes, .. }, Some(open)) = (&self.what, open) else {
            return None;
        };
        let stays = owner != by && open.keeps(bytes);
        stays.then(|| Record::new(RecordState::Open, self.token, bytes.clone()))
    }

    /// What this owner's open record took the place of.
    pub(super) fn before_of(&self, by: &OwnerToken) -> Option<&Before> {
        match &self.what {
            What::Open { owner, before, .. } if owner == by => Some(before),
            _ => None,
        }
    }

    /// What an open record of this owner would take the place of.
    pub(super) fn before(&self, by: &OwnerToken) -> Before {
        match &self.what {
            // Its own, of a grant that ended unheard of.
            What::Open { owner, before, .. } if owner == by => before.clone(),
            What::Open { owner, bytes, .. } => Before::Orphan(self.token, *owner, bytes.clone()),
            What::Closed(bytes) if bytes.len() <= SHORT => {
                Before::Result(self.token, self.written, bytes.clone())
            }
            What::Fence | What::Closed(_) => Before::Fence(self.token),
        }
    }

    /// When this owner forgets: its open record goes. Where that took the place of something, its
    /// token stays: the holder of an orphan may be there still, and is not to write after this one.
    pub(super) fn forgotten_by(&self, by: &OwnerToken, now: i64) -> Leaves {
        match self.before_of(by) {
            None => Leaves::AsItIs,
            Some(Before::Nothing) => Leaves::Nothing,
            Some(Before::Orphan(..) | Before::Result(..) | Before::Fence(_)) => {
                Leaves::Data(fence(self.token, self.left(now)))
            }
        }
    }

    /// When the grant of this owner is undone: what its open record took the place of comes back.
    /// Where another has taken that for an orphan already, it is one to nobody else.
    pub(super) fn undone_by(&self, by: &OwnerToken, now: i64) -> Leaves {
        let left = self.left(now);
        match &self.what {
            What::Open { owner, before, .. } if owner == by => match before {
                Before::Nothing => Leaves::Nothing,
                Before::Orphan(token, owner, bytes) => {
                    let before = &Before::Nothing;
                    Leaves::Data(open(Some(*token), left, owner, before, bytes))
                }
                // Written again, a result would be new to those who came after it.
                Before::Result(token, ..) | Before::Fence(token) => {
                    Leaves::Data(fence(*token, left))
                }
            },
            What::Open {
                owner,
                before: Before::Orphan(token, orphan_of, _),
                bytes,
            } if orphan_of == by => {
                let before = Before::Fence(*token);
                Leaves::Data(open(Some(self.token), left, owner, &before, bytes))
            }
            _ => Leaves::AsItIs,
        }
    }

    fn left(&self, now: i64) -> u64 {
        self.ends.saturating_sub(now).max(1).unsigned_abs()
    }
}

/// An open record; without a token, under that of the write.
pub(super) fn open(
    token: Option<FencingToken>,
    ttl: u64,
    owner: &OwnerToken,
    before: &Before,
    bytes: &[u8],
) -> Vec<u8> {
    let (before, token) = (before.write(), token.map_or(0, FencingToken::get));
    let head = format!("o {token} {ttl} {} {} ", hex(owner), before.len());
    [head.as_bytes(), &before, bytes].concat()
}

pub(super) fn closed(token: FencingToken, ttl: u64, bytes: &[u8]) -> Vec<u8> {
    [format!("c {token} {ttl} ").as_bytes(), bytes].concat()
}

fn fence(token: FencingToken, ttl: u64) -> Vec<u8> {
    format!("f {token} {ttl} ").into_bytes()
}

fn hex(owner: &OwnerToken) -> String {
    format!("{:032x}", u128::from_be_bytes(*owner.as_bytes()))
}

/// Takes what stands before the next space.
fn word(bytes: &mut Bytes) -> Option<Bytes> {
    let end = bytes.iter().take(64).position(|&byte| byte == b' ')?;
    let word = bytes.split_to(end);
    drop(bytes.split_to(1));
    Some(word)
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn token(bytes: &mut Bytes) -> Option<FencingToken> {
    FencingToken::new(decimal(&word(bytes)?)?)
}

fn owner(bytes: &mut Bytes) -> Option<OwnerToken> {
    let text = word(bytes)?;
    let number = u128::from_str_radix(std::str::from_utf8(&text).ok()?, 16).ok()?;
    (text.len() == 32).then(|| OwnerToken::from_bytes(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::Orphans;

    const NOW: i64 = 1_700_000_000_000;

    fn stat(mzxid: i64) -> Stat {
        Stat {
            czxid: 3,
            mzxid,
            pzxid: 3,
            ctime: NOW,
            mtime: NOW,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn number(zxid: i64) -> Option<FencingToken> {
        FencingToken::new(zxid as u64)
    }

    #[track_caller]
    fn read(data: Vec<u8>, mzxid: i64) -> Kept {
        Kept::read(data, &stat(mzxid), number).unwrap()
    }

    /// Others rely on these forms: operators, and other versions of us.
    #[test]
    fn forms_are_as_documented() {
        let owner = OwnerToken::from_bytes([0xab; 16]);
        let hex = "ab".repeat(16);
        let orphan = Before::Orphan(token(7), owner, Bytes::from_static(b"old"));
        for (written, form) in [
            (closed(token(9), 60_000, b"a b"), "c 9 60000 a b".into()),
            (fence(token(9), 1), "f 9 1 ".into()),
            (
                open(None, 5, &owner, &Before::Nothing, b"new"),
                format!("o 0 5 {hex} 0 new"),
            ),
            (
                open(Some(token(9)), 5, &owner, &Before::Fence(token(8)), b""),
                format!("o 9 5 {hex} 4 f 8 "),
            ),
            (
                open(Some(token(9)), 5, &owner, &orphan, b"new"),
                format!("o 9 5 {hex} 40 o 7 {hex} oldnew"),
            ),
        ] {
            assert_eq!(String::from_utf8(written).unwrap(), form);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let owner = OwnerToken::random();
        let kept = read(closed(token(9), 60_000, b"\xff o 1 "), 12);
        assert_eq!(&*kept.record().unwrap().bytes, b"\xff o 1 ");
        assert_eq!((kept.token(), kept.written()), (token(9), 12));
        assert_eq!(kept.ends(), NOW + 60_000);
        for before in [
            Before::Nothing,
            Before::Fence(token(8)),
            Before::Orphan(token(8), OwnerToken::random(), Bytes::from_static(b" x ")),
            Before::Result(token(8), 11, Bytes::from_static(b" x ")),
        ] {
            let kept = read(open(None, 5, &owner, &before, b" new"), 12);
            assert_eq!(kept.token(), token(12), "that of the write");
            assert_eq!(kept.before_of(&owner), Some(&before));
            let record = kept.open_record().unwrap();
            assert_eq!(&*record.bytes, b" new");
        }
        assert_eq!(read(fence(token(9), 5), 12).record(), None);
        for garbage in [
            "",
            "c",
            "c 9",
            "c 9 5",
            "c x 5 ",
            "c 9 -5 ",
            "x 9 5 ",
            "o 9 5 ",
            "o 9 5 ab 0 ",
            "o 9 5 abababababababababababababababab 4 new",
            "o 9 5 abababababababababababababababab 3 new",
        ] {
            let read = Kept::read(garbage.into(), &stat(1), number);
            assert_eq!(read, None, "{garbage}");
        }
    }

    #[test]
    fn results_are_for_all_or_for_those_who_came_before_them() {
        let owner = OwnerToken::random();
        let kept = read(closed(token(9), 60_000, b"x"), 12);
        let all = Opening::new("", Duration::from_secs(1));
        let waiting = all.clone().with_results(Results::ForWaiting);
        let record = kept.record();
        for came in [None, Some(11), Some(13)] {
            assert_eq!(kept.result(None, came), record);
            assert_eq!(kept.result(Some(&all), came), record);
        }
        // Also where the record of a newcomer has taken its place.
        let before = kept.before(&owner);
        let replaced = read(open(None, 60, &owner, &before, b"new"), 14);
        for kept in [&kept, &replaced] {
            assert_eq!(kept.result(Some(&waiting), None), None);
            assert_eq!(kept.result(Some(&waiting), Some(13)), None);
            assert_eq!(kept.result(Some(&waiting), Some(11)), record);
        }
        assert_eq!(replaced.result(Some(&all), Some(11)), None);
        let long = read(closed(token(9), 60_000, &[b'x'; SHORT + 1]), 12);
        assert_eq!(long.before(&owner), Before::Fence(token(9)));
    }

    #[test]
    fn orphans_are_dealt_with_as_asked() {
        let (mine, other) = (OwnerToken::random(), OwnerToken::random());
        let orphan = read(open(None, 5, &other, &Before::Nothing, b"same"), 12);
        for (orphans, bytes, stays) in [
            (Orphans::Replace, "other", false),
            (Orphans::ReplaceEqual, "same", false),
            (Orphans::ReplaceEqual, "other", true),
            (Orphans::Keep, "same", true),
        ] {
            let open = Opening::new(bytes, Duration::from_secs(1)).with_orphans(orphans);
            let found = orphan.orphan(&mine, Some(&open));
            assert_eq!(found.is_some(), stays, "{orphans:?}");
            assert_eq!(orphan.orphan(&other, Some(&open)), None, "its own");
        }
        assert_eq!(orphan.orphan(&mine, None), None);
    }

    #[test]
    fn what_an_undo_and_a_forget_leave() {
        let (mine, other) = (OwnerToken::random(), OwnerToken::random());
        let orphan = Before::Orphan(token(8), other, Bytes::from_static(b"old"));
        let plain = read(open(None, 60, &mine, &Before::Nothing, b"new"), 12);
        let replaced = read(open(None, 60, &mine, &orphan, b"new"), 12);
        assert_eq!(plain.undone_by(&mine, NOW), Leaves::Nothing);
        assert_eq!(plain.forgotten_by(&mine, NOW), Leaves::Nothing);
        assert_eq!(plain.undone_by(&other, NOW), Leaves::AsItIs);
        assert_eq!(plain.forgotten_by(&other, NOW), Leaves::AsItIs);
        let Leaves::Data(back) = replaced.undone_by(&mine, NOW + 20) else {
            panic!("the orphan comes back");
        };
        assert_eq!(
            back,
            open(Some(token(8)), 40, &other, &Before::Nothing, b"old")
        );
        let fence = Leaves::Data(super::fence(token(12), 40));
        assert_eq!(replaced.forgotten_by(&mine, NOW + 20), fence);
        // Another took it for an orphan: what it puts back one day is a mark.
        let Leaves::Data(marked) = replaced.undone_by(&other, NOW) else {
            panic!("it becomes a mark");
        };
        let marked = read(marked, 13);
        assert_eq!(marked.before_of(&mine), Some(&Before::Fence(token(8))));
        assert_eq!(marked.token(), token(12));
        assert_eq!(marked.open_record().unwrap().bytes, "new");
    }
}
