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
    /// The token that was held when it began to wait.
    since: Option<FencingToken>,
}

impl<'a> Loads<'a> {
    pub(super) fn new(names: &Names, open: Option<&'a Opening>) -> Self {
        Self {
            name: names.record(),
            open,
            seen: None,
            since: None,
        }
    }

    /// It has to wait: for whoever holds this token, and saw this record open.
    pub(super) fn waits(&mut self, held: Option<FencingToken>, seen: Option<Record>) {
        self.since = self.since.or(held);
        self.seen = seen;
    }

    /// The result for this one, of what stands there.
    pub(super) fn result(&self, stands: &Stands) -> Option<Record> {
        let record = stands.record.as_ref().filter(|record| record.is_closed());
        match self.open.map_or(Results::ForAll, |open| open.results) {
            Results::ForAll => record.cloned(),
            Results::ForWaiting => {
                let since = self.since?;
                let result = record.or(stands.replaced.as_ref());
                result.filter(|result| result.token >= since).cloned()
            }
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
        match self.since {
            Some(since) => cmd.arg(since.get()),
            None => cmd.arg(""),
        };
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
        held: Option<FencingToken>,
    },
    Undone,
}

impl Said {
    pub(super) fn read(answer: Value) -> Result<Self, Trouble> {
        let mut items = match answer {
            Value::Array(items) => items,
            token => return Ok(Self::Granted(answer::int(&token)?, None)),
        };
        let (mut held, mut seen) = (None, None);
        if items.len() == 7 {
            held = items.pop().as_ref().and_then(token);
            seen = read(items.pop().ok_or_else(Trouble::strange)?)?.record;
        }
        match items.as_slice() {
            [Value::Int(0), ms, ticket, foreign, head] => Ok(Self::Wait {
                outlook: Outlook {
                    ms: answer::int(ms)?,
                    foreign: answer::int(foreign)? == 1,
                    head_is_here: answer::int(head)? == 1,
                },
                ticket: answer::string(ticket)?.to_owned(),
                seen,
                held,
            }),
            [Value::Int(-1)] => Ok(Self::Undone),
            [mark, token, _] if text(mark) == Some("+") => {
                let token = answer::int(token)?;
                let before = items.pop().ok_or_else(Trouble::strange)?;
                let previous = read(before)?.record;
                let previous = previous.filter(|record| !record.is_closed());
                Ok(Self::Granted(token, previous))
            }
            [mark, _] if text(mark) == Some("=") => {
                let record = items.pop().ok_or_else(Trouble::strange)?;
                let record = read(record)?.record;
                record.map(Self::Found).ok_or_else(Trouble::strange)
            }
            _ => Err(Trouble::strange()),
        }
    }
}

/// What stands under the name of a record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) record: Option<Record>,
    /// The result whose place an open record took.
    replaced: Option<Record>,
}

/// See `scripts/record.lua`.
pub(super) fn read(value: Value) -> Result<Stands, Trouble> {
    let bytes = match value {
        Value::BulkString(bytes) => Bytes::from(bytes),
        Value::Nil => return Ok(Stands::default()),
        _ => return Err(Trouble::strange()),
    };
    if bytes.is_empty() {
        return Ok(Stands::default());
    }
    parse(bytes).ok_or_else(Trouble::strange)
}

fn token(text: &Value) -> Option<FencingToken> {
    FencingToken::new(number(answer::string(text).ok()?.as_bytes())?)
}

fn parse(mut bytes: Bytes) -> Option<Stands> {
    let mut replaced = None;
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
            let before = bytes.split_to(before);
            if before.starts_with(b"c ") {
                replaced = parse(before)?.record;
            }
            RecordState::Open
        }
        b"f" => return Some(Stands::default()),
        _ => return None,
    };
    Some(Stands {
        record: Some(Record::new(state, token, bytes)),
        replaced,
    })
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
        Ok(read(Value::BulkString(text.to_vec()))?.record)
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
        assert_eq!(read(Value::Nil).unwrap(), Stands::default());
        for garbage in [
            &b"c"[..],
            b"c 17",
            b"c 0 x",
            b"c x x",
            b"x 17 x",
            b"o 17 x",
            b"o 17 ab 4 new",
            b"o 17 ab -1 new",
            b"o 17 ab 3 c xnew",
        ] {
            assert!(of(garbage).is_err(), "{garbage:?}");
        }
        assert!(read(Value::Int(1)).is_err());
    }

    #[test]
    fn a_result_is_for_those_who_waited_for_it() {
        let token = |n| FencingToken::new(n).unwrap();
        let closed = Stands {
            record: Some(Record::new(RecordState::Closed, token(17), "done")),
            replaced: None,
        };
        let replaced = read(Value::BulkString(b"o 18 ab 9 c 17 donenew".to_vec())).unwrap();
        assert_eq!(replaced.replaced, closed.record);
        let for_waiting =
            Opening::new("", std::time::Duration::from_secs(1)).with_results(Results::ForWaiting);
        for (since, is_its) in [
            (None, false),
            (Some(16), true),
            (Some(17), true),
            (Some(18), false),
        ] {
            let loads = Loads {
                name: String::new(),
                open: Some(&for_waiting),
                seen: None,
                since: since.map(token),
            };
            for stands in [&closed, &replaced] {
                let result = loads.result(stands);
                assert_eq!(
                    result,
                    closed.record.clone().filter(|_| is_its),
                    "{since:?}"
                );
            }
        }
        let for_all = Opening::new("", std::time::Duration::from_secs(1));
        for (stands, result) in [(&closed, &closed.record), (&replaced, &None)] {
            let loads = Loads {
                name: String::new(),
                open: Some(&for_all),
                seen: None,
                since: None,
            };
            assert_eq!(&loads.result(stands), result);
        }
    }
}
