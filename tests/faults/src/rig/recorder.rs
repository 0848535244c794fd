//! Writes events down.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::history::{AttemptId, Event, What, now};

/// Every event is in the file when its call returns: the file outlives the process.
#[derive(Debug)]
pub(super) struct Recorder {
    process: u32,
    file: Mutex<File>,
    numbers: AtomicU64,
}

impl Recorder {
    pub(super) fn create(process: u32, path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)?;
        Ok(Self {
            process,
            file: Mutex::new(file),
            numbers: AtomicU64::new(0),
        })
    }

    pub(super) fn new_attempt(&self) -> AttemptId {
        AttemptId {
            process: self.process,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(super) fn write(&self, what: What) {
        let at = now();
        let mut line = serde_json::to_vec(&Event { at, what }).expect("an event is JSON");
        line.push(b'\n');
        let written = self
            .file
            .lock()
            .expect("nobody panics there")
            .write_all(&line);
        if let Err(error) = written {
            // A history with gaps would be read as if nothing had happened.
            eprintln!("the history cannot be written: {error}");
            std::process::exit(4);
        }
    }
}
