//! Writes events down.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    panic,
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

/// From now on, every panic of any task or thread of this process is an event: of the lock's own
/// threads too, and also where somebody catches it. It has a file of its own, since a panic may come
/// while the recorder's is in use.
pub(super) fn tell_of_panics(process: u32, path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).open(path)?;
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let (at, text) = (now(), info.to_string());
        let what = What::Panicked { process, text };
        let mut line = serde_json::to_vec(&Event { at, what }).unwrap_or_default();
        line.push(b'\n');
        if let Err(error) = (&file).write_all(&line) {
            eprintln!("the history cannot be written: {error}");
            std::process::exit(4);
        }
        usual(info);
    }));
    Ok(())
}
