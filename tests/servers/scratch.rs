//! Directories of our own.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::heir;

/// A new directory, removed on drop.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// The same in memory, where the system has such a place: for servers that write to the disk
    /// for every request.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            Self::within(memory)
        } else {
            Self::new()
        }
    }

    fn within(parent: &Path) -> Self {
        // Short: the path of a Unix socket in it may not exceed 107 bytes.
        let path = parent.join(format!("tl-{:016x}", fastrand::u64(..)));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        heir::inherits(path.display());
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Removes what is in it.
    pub fn clear(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.0)?;
        fs::create_dir(&self.0)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What cannot be removed is a matter of the machine, not of the test.
        let _ = fs::remove_dir_all(&self.0);
        heir::loses(self.0.display());
    }
}
