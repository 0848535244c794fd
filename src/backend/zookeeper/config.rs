//! What a backend was set up with.

use std::time::Duration;

use zookeeper_client as zk;

use super::{layout::NodeLayout, trouble::Trouble};
use crate::{key::LockKey, lease::FencingToken};

pub(super) struct Config {
    /// Hosts and chroot, as the client library takes them.
    pub(super) servers: String,
    pub(super) chroot: String,
    /// Below the chroot; what all keys are under.
    pub(super) base: String,
    pub(super) layout: NodeLayout,
    pub(super) session_timeout: Duration,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    /// What every token is above.
    pub(super) token_floor: u64,
    /// `user:password`.
    pub(super) digest: Option<String>,
    /// What stands in our nodes: for operators, and to know our own.
    pub(super) data: Vec<u8>,
}

/// How the data of our nodes begins.
pub(super) const OURS: &[u8] = b"tower-lock ";
/// What stands in the node of a key that we made. Clients are not told whether a node is a container,
/// so this is what tells it from one that somebody made on purpose.
pub(super) const PARENT: &[u8] = b"tower-lock container";

impl Config {
    /// The node of a key. The canonical form of a key has no slash and is never `.`, `..` or
    /// begins with `~`, so it is a name as it stands, and nobody else's.
    pub(super) fn parent(&self, key: &LockKey) -> String {
        [&self.base, "/", key.as_str()].concat()
    }

    /// The token of the node that was created by this transaction.
    pub(super) fn token(&self, czxid: i64) -> Option<FencingToken> {
        token(czxid, self.token_floor)
    }

    /// Whoever has logged in, or everybody.
    pub(super) fn acls(&self) -> zk::Acls<'static> {
        if self.digest.is_some() {
            zk::Acls::creator_all()
        } else {
            zk::Acls::anyone_all()
        }
    }

    /// Of the nodes of holders and waiters.
    pub(super) fn nodes(&self) -> zk::CreateOptions<'static> {
        zk::CreateMode::EphemeralSequential.with_acls(self.acls())
    }

    /// Of the nodes of keys: the server deletes them some time after their last child has gone.
    pub(super) fn parents(&self) -> zk::CreateOptions<'static> {
        zk::CreateMode::Container.with_acls(self.acls())
    }

    pub(super) async fn make_base(&self, client: &zk::Client) -> Result<(), Trouble> {
        let options = zk::CreateMode::Persistent.with_acls(self.acls());
        match client.mkdir(&self.base, &options).await {
            Ok(()) => Ok(()),
            Err(zk::Error::NoNode) => Err(Trouble::no_chroot()),
            // It may stand under nodes in which this user may create nothing.
            Err(zk::Error::NoAuth) => match client.check_stat(&self.base).await {
                Ok(Some(_)) => Ok(()),
                _ => Err(zk::Error::NoAuth.into()),
            },
            Err(error) => Err(error.into()),
        }
    }
}

/// The token of what was done by this transaction.
pub(super) fn token(zxid: i64, floor: u64) -> Option<FencingToken> {
    FencingToken::new(u64::try_from(zxid).ok()?.checked_add(floor)?)
}
