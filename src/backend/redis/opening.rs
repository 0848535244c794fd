//! What an acquire asks and hears about the record beside its lock.

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{answer, connection::text, names::Names, room::Outlook, trouble::Trouble};
use crate::{
    lease::FencingToken,
    record::{Opening, Orphans, Record, RecordState, Results},
};

/// The record that is looked for, and what is opened with a grant.
pub(super) struct Loads<'a> {
    pub(super) name: String,
    pub(super) open: Option<&'a Opening>,
    /// What was open there when the key was not to be had.
    pub(super) seen: Option<Record>,
}

impl<'a> Loads<'a> {
    pub(super) fn new(names: &Names, open: Option<&'a Opening>) -> Self {
        Self {
            name: names.record(),
            open,
            seen: None,
        }
    }

    pub(super) fn add_to(&self, cmd: &mut Cmd) {
        let Some(open) = self.open else {
            cmd.arg("-");
            return;
        };
        cmd.arg(match open.orphans {
            Orphans::Replace => "r",
            Orphans::ReplaceEqual => "e",
            Orphans::Keep => "k",
        });
        // Rounded up, so that no ttl comes to nothing.
        let ms = open.ttl.as_nanos().div_ceil(1_000_000) as u64;
        let results = match open.results {
            Results::ForAll => "a",
            Results::ForWaiting => "w",
        };
        cmd.arg(ms).arg(&*open.bytes).arg(results);
    }
}

/// What the scripts of an acquire answer.
pub(super) enum Said {
    Granted(i64, Option<Record>),
    Found(Record),
    Wait {
        outlook: Outlook,
        ticket: String,
        seen: Option<Record>,
    },
    Undone,
}

impl Said {
    pub(super) fn read(answer: Value) -> Result<Self, Trouble> {
        let mut items = match answer {
            Value::Array(items) => items,
            token => return Ok(Self::Granted(answer::int(&token)?, None)),
        };
        let seen = match items.len() {
            6 => read(items.pop().ok_or_else(Trouble::strange)?)?,
            _ => None,
        };
        match items.as_slice() {
            [Value::Int(0), ms, ticket, foreign, head] => Ok(Self::Wait {
                outlook: Outlook {
                    ms: answer::int(ms)?,
                    foreign: answer::int(foreign)? == 1,
                    head_is_here: answer::int(head)? == 1,
                },
                ticket: answer::string(ticket)?.to_owned(),
                seen,
            }),
            [Value::Int(-1)] => Ok(Self::Undone),
            [mark, token, _] if text(mark) == Some("+") => {
                let token = answer::int(token)?;
                let before = items.pop().ok_or_else(Trouble::strange)?;
                Ok(Self::Granted(token, read(before)?))
            }
            [mark, _] if text(mark) == Some("=") => {
                let record = items.pop().ok_or_else(Trouble::strange)?;
                read(record)?.map(Self::Found).ok_or_else(Trouble::strange)
            }
            _ => Err(Trouble::strange()),
        }
    }
}

/// What stands in a record: see `scripts/record.lua`.
pub(super) fn read(value: Value) -> Result<Option<Record>, Trouble> {
    let bytes = match value {
        Value::BulkString(bytes) => Bytes::from(bytes),
        Value::Nil => return Ok(None),
        _ => return Err(Trouble::strange()),
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    parse(bytes).ok_or_else(Trouble::strange)
}

fn parse(mut bytes: Bytes) -> Option<Option<Record>> {
    let kind = word(&mut bytes)?;
    let token = FencingToken::new(number(&word(&mut bytes)?)?)?;
    let state = match &*kind {
        b"c" => RecordState::Closed,
        b"o" => {
            let _owner = word(&mut bytes)?;
            let before = usize::try_from(number(&word(&mut bytes)?)?).ok()?;
            if before > bytes.len() {
                return None;
            }
            drop(bytes.split_to(before));
            RecordState::Open
        }
        b"f" => return Some(None),
        _ => return None,
    };
    Some(Some(Record::new(state, token, bytes)))
}

/// Takes what stands before the next space.
fn word(bytes: &mut Bytes) -> Option<Bytes> {
    let end = bytes.iter().take(64).position(|&byte| byte == b' ')?;
    let word = bytes.split_to(end);
    drop(bytes.split_to(1));
    Some(word)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8]) -> Result<Option<Record>, Trouble> {
        read(Value::BulkString(text.to_vec()))
    }

    #[test]
    fn records_are_read_and_garbage_is_not() {
        let token = |n| FencingToken::new(n).unwrap();
        let closed = Record::new(RecordState::Closed, token(17), &b"a b \xff"[..]);
        assert_eq!(of(b"c 17 a b \xff").unwrap(), Some(closed));
        let open = Record::new(RecordState::Open, token(18), "new");
        assert_eq!(of(b"o 18 ab 0 new").unwrap(), Some(open.clone()));
        assert_eq!(of(b"o 18 ab 12 o 17 - 0 oldnew").unwrap(), Some(open));
        let empty = Record::new(RecordState::Closed, token(17), "");
        assert_eq!(of(b"c 17 ").unwrap(), Some(empty));
        for nothing in [&b""[..], b"f 17 "] {
            assert_eq!(of(nothing).unwrap(), None);
        }
        assert_eq!(read(Value::Nil).unwrap(), None);
        for garbage in [
            &b"c"[..],
            b"c 17",
            b"c 0 x",
            b"c x x",
            b"x 17 x",
            b"o 17 x",
            b"o 17 ab 4 new",
            b"o 17 ab -1 new",
        ] {
            assert!(of(garbage).is_err(), "{garbage:?}");
        }
        assert!(read(Value::Int(1)).is_err());
    }
}
