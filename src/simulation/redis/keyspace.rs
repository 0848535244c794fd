//! What a Redis server keeps, with the commands that the scripts use.

use std::collections::{BTreeMap, BTreeSet};

use super::Time;

/// A reply, or what a command says to a script.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(&'static str),
    Error(String),
    List(Vec<Reply>),
}

#[derive(Debug, Default)]
pub(super) struct Keyspace {
    keys: BTreeMap<Vec<u8>, Entry>,
    /// By channel, who hears.
    pub(super) subscribers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// What was published, and to whom.
    pub(super) published: Vec<(u64, Vec<u8>, Vec<u8>)>,
    /// Microseconds.
    pub(super) now: Time,
}

#[derive(Debug)]
struct Entry {
    value: Stored,
    /// Milliseconds.
    ends: Option<u64>,
}

type Members = Vec<(f64, Vec<u8>)>;

#[derive(Debug)]
enum Stored {
    Text(Vec<u8>),
    /// Sorted by score, then by member.
    Set(Members),
}

fn wrong_type() -> Reply {
    Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
}

fn syntax(what: &str) -> Reply {
    Reply::Error(format!("ERR the simulated server does not know: {what}"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

fn score(bytes: &[u8]) -> f64 {
    match text(bytes) {
        "-inf" => f64::NEG_INFINITY,
        "+inf" | "inf" => f64::INFINITY,
        number => number.parse().unwrap_or(f64::NAN),
    }
}

/// As a server prints a score.
fn printed(score: f64) -> Reply {
    Reply::Bulk(format!("{score}").into_bytes())
}

/// A bound of a range, which `(` excludes.
fn bound(bytes: &[u8]) -> (f64, bool) {
    match bytes.strip_prefix(b"(") {
        Some(rest) => (score(rest), true),
        None => (score(bytes), false),
    }
}

impl Keyspace {
    /// The time of day of the server, in microseconds.
    pub(super) fn clock(&self) -> u64 {
        1_795_000_000_000_000 + self.now
    }

    fn ms(&self) -> u64 {
        self.clock() / 1000
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    /// What stands there, without what has ended.
    pub(super) fn names(&mut self) -> Vec<String> {
        let now = self.ms();
        self.keys
            .retain(|_, entry| entry.ends.is_none_or(|e| e > now));
        let names = self.keys.keys();
        names
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect()
    }

    pub(super) fn without_end(&self) -> Option<String> {
        let mut endless = self.keys.iter().filter(|(_, entry)| entry.ends.is_none());
        let endless = endless.next();
        endless.map(|(key, _)| String::from_utf8_lossy(key).into_owned())
    }

    pub(super) fn text(&mut self, key: &[u8]) -> Option<String> {
        match &self.entry(key)?.value {
            Stored::Text(value) => Some(String::from_utf8_lossy(value).into_owned()),
            Stored::Set(_) => None,
        }
    }

    pub(super) fn members(&mut self, key: &[u8]) -> Vec<(f64, String)> {
        match self.entry(key).map(|entry| &entry.value) {
            Some(Stored::Set(set)) => set
                .iter()
                .map(|(at, member)| (*at, String::from_utf8_lossy(member).into_owned()))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.ms();
        if self.keys.get(key)?.ends.is_some_and(|ends| ends <= now) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    fn set(&mut self, key: &[u8]) -> Result<Option<&mut Members>, Reply> {
        match self.entry(key) {
            None => Ok(None),
            Some(Entry {
                value: Stored::Set(set),
                ..
            }) => Ok(Some(set)),
            Some(_) => Err(wrong_type()),
        }
    }

    fn tidy(&mut self, key: &[u8]) {
        if let Ok(Some(set)) = self.set(key)
            && set.is_empty()
        {
            self.keys.remove(key);
        }
    }

    /// Runs a command that scripts may use too.
    pub(super) fn run(&mut self, args: &[Vec<u8>]) -> Reply {
        match self.try_run(args) {
            Ok(reply) | Err(reply) => reply,
        }
    }

    fn try_run(&mut self, args: &[Vec<u8>]) -> Result<Reply, Reply> {
        let words: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let (name, rest) = words.split_first().ok_or_else(|| syntax("nothing"))?;
        Ok(match (text(name), rest) {
            ("TIME", []) => {
                let clock = self.clock();
                let part = |n: u64| Reply::Bulk(n.to_string().into_bytes());
                Reply::List(vec![part(clock / 1_000_000), part(clock % 1_000_000)])
            }
            ("GET", [key]) => self.get(key)?,
            ("MGET", keys) => Reply::List(
                keys.iter()
                    .map(|key| self.get(key).unwrap_or(Reply::Nil))
                    .collect(),
            ),
            ("SET", [key, value, options @ ..]) => self.put(key, value, options)?,
            ("EXISTS", keys) => {
                Reply::Int(keys.iter().filter(|key| self.entry(key).is_some()).count() as i64)
            }
            ("DEL", keys) => {
                let mut removed = 0;
                for key in keys {
                    removed += i64::from(self.entry(key).is_some());
                    self.keys.remove(*key);
                }
                Reply::Int(removed)
            }
            ("PTTL", [key]) => {
                let now = self.ms();
                Reply::Int(match self.entry(key) {
                    None => -2,
                    Some(Entry { ends: None, .. }) => -1,
                    Some(Entry {
                        ends: Some(ends), ..
                    }) => ends.saturating_sub(now) as i64,
                })
            }
            ("PEXPIRE", [key, ms]) => {
                let ends = self.ms() + text(ms).parse::<u64>().map_err(|_| syntax("PEXPIRE"))?;
                match self.entry(key) {
                    None => Reply::Int(0),
                    Some(entry) => {
                        entry.ends = Some(ends);
                        Reply::Int(1)
                    }
                }
            }
            ("ZADD", [key, b"NX", at, member]) => self.add(key, at, member, true)?,
            ("ZADD", [key, at, member]) => self.add(key, at, member, false)?,
            ("ZREM", [key, members @ ..]) => {
                let mut removed = 0;
                if let Some(set) = self.set(key)? {
                    let before = set.len();
                    set.retain(|(_, m)| !members.contains(&m.as_slice()));
                    removed = before - set.len();
                }
                self.tidy(key);
                Reply::Int(removed as i64)
            }
            ("ZSCORE", [key, member]) => match self.set(key)? {
                Some(set) => set
                    .iter()
                    .find(|(_, m)| m == member)
                    .map_or(Reply::Nil, |(at, _)| printed(*at)),
                None => Reply::Nil,
            },
            ("ZCOUNT", [key, from, to]) => {
                let inside = within(bound(from), bound(to));
                let set = self.set(key)?;
                Reply::Int(
                    set.map_or(0, |set| set.iter().filter(|(at, _)| inside(*at)).count()) as i64,
                )
            }
            ("ZREMRANGEBYSCORE", [key, from, to]) => {
                let inside = within(bound(from), bound(to));
                let mut removed = 0;
                if let Some(set) = self.set(key)? {
                    let before = set.len();
                    set.retain(|(at, _)| !inside(*at));
                    removed = before - set.len();
                }
                self.tidy(key);
                Reply::Int(removed as i64)
            }
            ("ZRANGE", [key, from, to, options @ ..]) => {
                let with_scores = options.first().is_some_and(|o| *o == b"WITHSCORES");
                self.range(key, from, to, with_scores)?
            }
            ("PUBLISH", [channel, message]) => {
                let hearers = self.subscribers.get(*channel).cloned().unwrap_or_default();
                for hearer in &hearers {
                    let message = (*hearer, channel.to_vec(), message.to_vec());
                    self.published.push(message);
                }
                Reply::Int(hearers.len() as i64)
            }
            (other, _) => return Err(syntax(other)),
        })
    }

    fn get(&mut self, key: &[u8]) -> Result<Reply, Reply> {
        match self.entry(key).map(|entry| &entry.value) {
            None => Ok(Reply::Nil),
            Some(Stored::Text(value)) => Ok(Reply::Bulk(value.clone())),
            Some(Stored::Set(_)) => Err(wrong_type()),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Result<Reply, Reply> {
        let now = self.ms();
        let (mut ends, mut gets, mut only_new) = (None, false, false);
        let mut words = options.iter();
        while let Some(option) = words.next() {
            let mut number = || -> Result<u64, Reply> {
                let word = words.next().map(|word| text(word)).unwrap_or_default();
                word.parse().map_err(|_| syntax("a time of SET"))
            };
            match text(option) {
                "PX" => ends = Some(now + number()?),
                "EX" => ends = Some(now + number()? * 1000),
                "GET" => gets = true,
                "NX" => only_new = true,
                "KEEPTTL" => ends = self.entry(key).and_then(|entry| entry.ends),
                other => return Err(syntax(other)),
            }
        }
        let before = if gets { self.get(key)? } else { Reply::Nil };
        if only_new && self.entry(key).is_some() {
            return Ok(Reply::Nil);
        }
        let value = Stored::Text(value.to_vec());
        self.keys.insert(key.to_vec(), Entry { value, ends });
        Ok(if gets { before } else { Reply::Status("OK") })
    }

    fn add(&mut self, key: &[u8], at: &[u8], member: &[u8], new: bool) -> Result<Reply, Reply> {
        let at = score(at);
        if self.set(key)?.is_none() {
            let value = Stored::Set(Vec::new());
            self.keys.insert(key.to_vec(), Entry { value, ends: None });
        }
        let Some(set) = self.set(key)? else {
            return Ok(Reply::Int(0));
        };
        let known = set.iter_mut().find(|(_, m)| m == member);
        let added = match known {
            Some(known) => {
                if !new {
                    known.0 = at;
                }
                0
            }
            None => {
                set.push((at, member.to_vec()));
                1
            }
        };
        set.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        Ok(Reply::Int(added))
    }

    fn range(&mut self, key: &[u8], from: &[u8], to: &[u8], scores: bool) -> Result<Reply, Reply> {
        let Some(set) = self.set(key)? else {
            return Ok(Reply::List(Vec::new()));
        };
        let place = |bytes: &[u8]| -> i64 {
            let n = text(bytes).parse::<i64>().unwrap_or(0);
            if n < 0 { n + set.len() as i64 } else { n }
        };
        let (from, to) = (place(from).max(0), place(to));
        let mut found = Vec::new();
        for (n, (at, member)) in set.iter().enumerate() {
            if (from..=to).contains(&(n as i64)) {
                found.push(Reply::Bulk(member.clone()));
                if scores {
                    found.push(printed(*at));
                }
            }
        }
        Ok(Reply::List(found))
    }
}

fn within(from: (f64, bool), to: (f64, bool)) -> impl Fn(f64) -> bool {
    move |at| {
        let above = if from.1 { at > from.0 } else { at >= from.0 };
        above && if to.1 { at < to.0 } else { at <= to.0 }
    }
}
