//! Where records stand, and how their nodes are changed.
//!
//! They stand beside the nodes of keys, not under them, where other clients count every child. So
//! that no list of theirs is longer than the servers send, they are spread over [`BUCKETS`] nodes,
//! by a hash of the key's name.
//!
//! Who makes the node of a record writes to its bucket in the same transaction. So the version of a
//! bucket tells whether a node in it may be another one than it was: the versions of a node begin
//! anew when it does.

use std::future::Future;

use zookeeper_client as zk;

use super::{
    config::{Config, token},
    kept::Kept,
    trouble::Trouble,
};
use crate::key::LockKey;

/// What all buckets are under, below the base. No key's node has such a name.
pub(super) const RECORDS: &str = "~records";
/// How many there are. Part of what processes of different versions have to agree on.
pub(super) const BUCKETS: u64 = 64;

/// Where the record of a key stands.
pub(super) struct Shelf {
    pub(super) bucket: String,
    pub(super) path: String,
}

/// A record, and the version of its node.
pub(super) struct Standing {
    pub(super) kept: Kept,
    pub(super) version: i32,
}

/// What becomes of the node of a record.
pub(super) enum Change {
    Create(Vec<u8>),
    Write(Vec<u8>, i32),
    Delete(i32),
}

/// What became of a transaction.
pub(super) enum Wrote {
    Done,
    /// Nothing was done: the operation of this number could not be.
    Refused(usize, zk::Error),
}

impl Shelf {
    pub(super) fn new(config: &Config, key: &LockKey) -> Self {
        Self::of_name(config, key.as_str())
    }

    pub(super) fn of_name(config: &Config, name: &str) -> Self {
        let bucket = format!("{}/{RECORDS}/{:02x}", config.base, bucket(name));
        Self {
            path: [&bucket, "/", name].concat(),
            bucket,
        }
    }

    /// The record; `None` if there is none.
    pub(super) fn read(
        &self,
        client: &zk::Client,
        config: &Config,
    ) -> impl Future<Output = Result<Option<Standing>, zk::Error>> + Send + use<> {
        // It is sent when its future is made.
        let read = client.get_data(&self.path);
        let floor = config.token_floor;
        async move {
            let (data, stat) = match read.await {
                Ok(node) => node,
                Err(zk::Error::NoNode) => return Ok(None),
                Err(error) => return Err(error),
            };
            let kept = Kept::read(data, &stat, |zxid| token(zxid, floor));
            let version = stat.version;
            // As other nodes that are not as we leave them.
            let kept = kept.ok_or(zk::Error::BadArguments(&"not a record"))?;
            Ok(Some(Standing { kept, version }))
        }
    }

    /// Adds the change to a transaction; returns how many operations it is.
    pub(super) fn change(
        &self,
        change: &Change,
        writer: &mut zk::MultiWriter<'_>,
        config: &Config,
    ) -> Result<usize, zk::Error> {
        match change {
            Change::Create(data) => {
                let options = zk::CreateMode::Persistent.with_acls(config.acls());
                writer.add_set_data(&self.bucket, b"", None)?;
                writer.add_create(&self.path, data, &options)?;
                return Ok(2);
            }
            Change::Write(data, version) => {
                writer.add_set_data(&self.path, data, Some(*version))?
            }
            Change::Delete(version) => writer.add_delete(&self.path, Some(*version))?,
        }
        Ok(1)
    }

    /// Makes the bucket, which stays.
    pub(super) async fn make(&self, client: &zk::Client, config: &Config) -> Result<(), zk::Error> {
        let options = zk::CreateMode::Persistent.with_acls(config.acls());
        client.mkdir(&self.bucket, &options).await
    }
}

/// Commits, and tells what was refused from what nobody knows.
pub(super) async fn commit(
    writer: impl Future<Output = Result<Vec<zk::MultiWriteResult>, zk::MultiWriteError>>,
) -> Result<Wrote, zk::Error> {
    match writer.await {
        Ok(_) => Ok(Wrote::Done),
        Err(zk::MultiWriteError::OperationFailed { index, source })
            if Trouble::from(source.clone()).answered =>
        {
            Ok(Wrote::Refused(index, source))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a change was refused because the record, or its bucket, is not as it was.
pub(super) fn has_changed(error: &zk::Error) -> bool {
    matches!(
        error,
        zk::Error::BadVersion | zk::Error::NodeExists | zk::Error::NoNode
    )
}

/// FNV-1a: the same in all processes and versions.
fn bucket(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_same_everywhere_and_none_is_crowded() {
        assert_eq!(
            bucket("order:1.7;"),
            0x23,
            "processes of other versions look elsewhere"
        );
        let mut sizes = [0; BUCKETS as usize];
        for n in 0..64_000 {
            sizes[bucket(&format!("order:1.{n};")) as usize] += 1;
        }
        assert!(
            sizes.iter().all(|size| (700..1300).contains(size)),
            "{sizes:?}"
        );
    }
}
