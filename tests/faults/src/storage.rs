//! What the locks protect: numbers that are read, and written one higher. Beside each stands the
//! number of those who compare no tokens, so that one sees what would be lost without.
//!
//! It runs in the harness, which no fault stops, and has its own word on what happened, with its
//! own clock readings.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use crate::history::{AttemptId, Event, Nanos, What, now};

#[derive(Clone, Debug, Default)]
pub(crate) struct Storage(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    rows: HashMap<u32, Row>,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// The highest token that was shown.
    fence: u64,
    fenced: u64,
    accepted: u64,
    unfenced: u64,
    written: u64,
    /// By whom, and when, if it has not written since.
    claimed: Option<(AttemptId, Nanos)>,
}

impl Storage {
    /// Serves at this path for as long as this process lives.
    pub(crate) fn serve(path: &Path) -> Self {
        let this = Self::default();
        let listener = UnixListener::bind(path).expect("a socket of our own");
        let storage = this.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let storage = storage.clone();
                // Its client may be killed at any moment.
                thread::spawn(move || drop(storage.converse(stream)));
            }
        });
        this
    }

    /// All that it was asked, and at the end what it has.
    pub(crate) fn events(&self) -> Vec<Event> {
        let table = self.0.lock().expect("no panic");
        let mut events = table.events.clone();
        let at = now();
        events.extend(table.rows.iter().map(|(&key, row)| Event {
            at,
            what: What::Sum {
                key,
                accepted: row.accepted,
                fenced: row.fenced,
                written: row.written,
                unfenced: row.unfenced,
            },
        }));
        events
    }

    fn converse(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        // What has no end is of a client that was killed while it wrote.
        while reader.read_line(&mut line)? > 0 && line.pop() == Some('\n') {
            writer.write_all(self.answer(&line).as_bytes())?;
            line.clear();
        }
        Ok(())
    }

    /// Who claimed this row last, and has not written since; and when it did.
    pub(crate) fn works_on(&self, key: u32) -> Option<(u32, Nanos)> {
        let table = self.0.lock().expect("no panic");
        let (id, at) = table.rows.get(&key)?.claimed?;
        Some((id.process, at))
    }

    fn answer(&self, line: &str) -> String {
        let (what, numbers) = line.split_once(' ').expect("a request");
        let numbers: Vec<u64> = numbers
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let id = AttemptId {
            process: numbers[0] as u32,
            number: numbers[1],
        };
        let (key, token) = (numbers[2] as u32, numbers[3]);
        let mut table = self.0.lock().expect("no panic");
        let row = table.rows.entry(key).or_default();
        let (answer, what) = match (what, &numbers[4..]) {
            ("claim", []) => {
                let accepted = row.fence <= token;
                let fenced = if accepted {
                    row.fence = token;
                    row.claimed = Some((id, now()));
                    row.fenced.to_string()
                } else {
                    "stale".to_owned()
                };
                let answer = format!("{fenced} {}\n", row.unfenced);
                let claim = What::Claim {
                    id,
                    key,
                    token,
                    accepted,
                };
                (answer, claim)
            }
            ("write", &[fenced, unfenced]) => {
                row.unfenced = unfenced;
                row.written += 1;
                row.claimed = row.claimed.filter(|claimed| claimed.0 != id);
                let accepted = row.fence == token;
                if accepted {
                    row.fenced = fenced;
                    row.accepted += 1;
                }
                let answer = if accepted { "yes\n" } else { "no\n" };
                let write = What::Write {
                    id,
                    key,
                    token,
                    accepted,
                };
                (answer.to_owned(), write)
            }
            _ => panic!("what is {line:?}?"),
        };
        // Read under the lock: the order of the lines is that of the table.
        let at = now();
        table.events.push(Event { at, what });
        answer
    }
}
