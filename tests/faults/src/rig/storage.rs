//! The client of the storage: claims with a token, then writes.

use std::{io, path::PathBuf, sync::Mutex};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

use crate::history::AttemptId;

/// Connections to the storage. One whose request was dropped halfway is not used again.
#[derive(Debug)]
pub(super) struct Client {
    path: PathBuf,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
}

/// What the storage had when it was shown the token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// `None` where a higher token was shown before.
    pub(super) fenced: Option<u64>,
    /// What those have who compare no tokens.
    pub(super) unfenced: u64,
}

impl Client {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::default(),
        }
    }

    /// The first contact: shows the token, and reads.
    pub(super) async fn claim(&self, id: AttemptId, key: u32, token: u64) -> io::Result<Row> {
        let asked = format!("claim {} {} {key} {token}\n", id.process, id.number);
        let answer = self.ask(&asked).await?;
        let mut words = answer.split(' ');
        let fenced = words.next().and_then(|word| word.parse().ok());
        let unfenced = words.next().and_then(|word| word.parse().ok());
        let unfenced = unfenced.ok_or_else(|| io::Error::other(answer))?;
        Ok(Row { fenced, unfenced })
    }

    /// Writes one more than what was read. Whether it was accepted.
    pub(super) async fn write(
        &self,
        id: AttemptId,
        key: u32,
        token: u64,
        row: Row,
    ) -> io::Result<bool> {
        let fenced = row.fenced.unwrap_or_default() + 1;
        let unfenced = row.unfenced + 1;
        let (process, number) = (id.process, id.number);
        let asked = format!("write {process} {number} {key} {token} {fenced} {unfenced}\n");
        Ok(self.ask(&asked).await? == "yes")
    }

    async fn ask(&self, line: &str) -> io::Result<String> {
        let idle = self.idle.lock().expect("nobody panics there").pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => BufReader::new(UnixStream::connect(&self.path).await?),
        };
        stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        if answer.pop() != Some('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.idle.lock().expect("nobody panics there").push(stream);
        Ok(answer)
    }
}
