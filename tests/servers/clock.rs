//! A wall clock of a server's own, which a test sets while the server runs.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use super::scratch::ScratchDir;

/// Where a process that is started in [`environment`](Self::environment) has its time from. The
/// monotonic clock is left alone.
#[derive(Debug)]
pub struct Clock {
    dir: ScratchDir,
    offset: File,
}

impl Clock {
    pub fn new() -> Self {
        let dir = ScratchDir::new();
        let code = dir.path().join("clock.c");
        fs::write(&code, include_str!("clock.c")).unwrap();
        let built = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(dir.path().join("clock.so"))
            .arg(&code)
            .status();
        let built = built.unwrap_or_else(|error| panic!("cc: {error}: scripts/test installs it"));
        assert!(built.success(), "the clock does not compile");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let offset = options.open(dir.path().join("offset")).unwrap();
        offset.set_len(4096).unwrap();
        Self { dir, offset }
    }

    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.dir.path().join("clock.so")),
            ("CLOCK_OFFSET", self.dir.path().join("offset")),
        ]
    }

    /// Sets it so far ahead of the machine's.
    pub fn set_ahead(&self, by: Duration) {
        self.set(by.as_nanos() as i64);
    }

    /// Sets it so far behind the machine's.
    pub fn set_behind(&self, by: Duration) {
        self.set(-(by.as_nanos() as i64));
    }

    fn set(&self, nanos: i64) {
        self.offset.write_all_at(&nanos.to_le_bytes(), 0).unwrap();
    }

    /// Whether a process has asked for the time since it was set, and got it from here.
    pub fn was_read(&self) -> bool {
        let mut words = [0; 16];
        self.offset.read_exact_at(&mut words, 0).unwrap();
        words[..8] == words[8..]
    }
}
