//! What the server under test says about its own work, and what it is told.

use std::{collections::BTreeMap, ops::Deref, sync::mpsc, thread};

use crate::{report::round, servers::RedisServer};

/// A `redis-server` of this run, which ends with it.
pub(crate) struct Server(RedisServer);

/// What the server did while something ran.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Microseconds that its main thread ran.
    cpu_us: f64,
    /// How often each command was called, by clients and by scripts.
    calls: BTreeMap<String, u64>,
}

/// A command as a client sent it.
pub(crate) type Sent = Vec<Vec<u8>>;

impl Server {
    pub(crate) fn start() -> Self {
        Self(RedisServer::start())
    }

    /// Forgets everything but the scripts.
    pub(crate) fn flush(&self) {
        self.command(&["FLUSHALL"]);
    }

    /// How often which commands ran and for how long the server was busy, while `work` ran.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Work) {
        self.reset_calls();
        let before = self.cpu_us();
        let found = work();
        let cpu_us = self.cpu_us() - before;
        let mut calls = self.all_calls();
        for asked in ["info", "config|resetstat"] {
            calls.remove(asked);
        }
        (found, Work { cpu_us, calls })
    }

    fn cpu_us(&self) -> f64 {
        let info = self.command(&["INFO", "cpu"]).to_string();
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(name, _)| name.ends_with("_main_thread"))
            .map(|(_, seconds)| seconds.parse::<f64>().expect("seconds") * 1e6)
            .sum()
    }

    fn all_calls(&self) -> BTreeMap<String, u64> {
        let info = self.command(&["INFO", "commandstats"]).to_string();
        info.lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            .filter_map(|(name, rest)| {
                Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
            })
            .collect()
    }

    /// The commands that clients send while `work` runs, without those that scripts call.
    pub(crate) fn sent<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Sent>) {
        const END: &str = "the bench has seen enough";
        let mut monitor = self.client();
        monitor.call(&["MONITOR"]).expect("it is allowed");
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            while let Ok(line) = monitor.read() {
                if line.text().contains(END) || sender.send(line).is_err() {
                    break;
                }
            }
        });
        let found = work();
        self.command(&["ECHO", END]);
        reader.join().expect("the monitor reads to its end");
        let sent = lines
            .iter()
            .filter(|line| !line.text().contains(" lua] "))
            .map(|line| words(line.text()))
            .collect();
        (found, sent)
    }
}

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl Work {
    /// Microseconds of the server's thread per operation.
    pub(crate) fn cpu_per(&self, operations: usize) -> f64 {
        self.cpu_us / operations.max(1) as f64
    }

    /// Commands per operation, those that scripts call included.
    pub(crate) fn calls_per(&self, operations: usize) -> f64 {
        self.calls.values().sum::<u64>() as f64 / operations.max(1) as f64
    }

    /// How often each command ran per operation, those that scripts call included.
    pub(crate) fn each_per(&self, operations: usize) -> BTreeMap<&str, f64> {
        let per = |calls: u64| round(calls as f64 / operations.max(1) as f64);
        let calls = self.calls.iter();
        calls.map(|(name, &calls)| (&**name, per(calls))).collect()
    }

    /// How often this command ran.
    pub(crate) fn calls(&self, command: &str) -> usize {
        self.calls.get(command).copied().unwrap_or_default() as usize
    }

    /// Scripts per operation.
    pub(crate) fn scripts_per(&self, operations: usize) -> f64 {
        let scripts = ["evalsha", "eval", "fcall"];
        let calls = scripts.iter().filter_map(|name| self.calls.get(*name));
        calls.sum::<u64>() as f64 / operations.max(1) as f64
    }
}

/// The arguments in a line of `MONITOR`: quoted, with `\"`, `\\`, `\n`, `\xhh` inside.
fn words(line: &str) -> Sent {
    let start = line.find("] \"").expect("a command") + 2;
    let mut words = Vec::new();
    let mut bytes = line.bytes().skip(start);
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        while let Some(byte) = bytes.next().filter(|&byte| byte != b'"') {
            let escaped = if byte == b'\\' { bytes.next() } else { None };
            word.push(match escaped {
                None => byte,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'x') => {
                    let digits =
                        [bytes.next(), bytes.next()].map(|b| char::from(b.unwrap_or(b'0')));
                    u8::from_str_radix(&String::from_iter(digits), 16).expect("two digits")
                }
                Some(other) => other,
            });
        }
        words.push(word);
    }
    words
}
