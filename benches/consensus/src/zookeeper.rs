//! ZooKeeper: the raw operations, the recipe of zookeeper-client, kazoo, Curator.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Runtime;
use tower_lock::ZooKeeperBackend;
use zookeeper_client::{Acls, Client, CreateMode, Error, LockOptions, LockPrefix, OwnedLockClient};

use crate::{
    hand_off,
    latency::{Candidate, latency},
    locks::{Lock, Managed, Ours},
    peers,
    report::Effort,
    servers::ZooKeeperServer,
};

const SERVER: &str = "ZooKeeper";
const SESSION: Duration = Duration::from_secs(10);

/// The parent of a key, as each process that locks it often has it: made once.
async fn parent(client: &Client, key: &str) -> String {
    let parent = format!("/raw-{key}");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    match client.create(&parent, b"", &options).await {
        Ok(_) | Err(Error::NodeExists) => parent,
        Err(error) => panic!("the parent: {error}"),
    }
}

/// What the protocol cannot do without: create, list, delete.
#[derive(Clone)]
struct Raw(Arc<Client>);

impl Lock for Raw {
    type Held = String;

    async fn acquire(&self, key: &str) -> String {
        let parent = format!("/raw-{key}");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{parent}/_c_{:032x}-lock-", fastrand::u128(..));
        let (_, sequence) = self.0.create(&prefix, b"", &options).await.expect("a node");
        let children = self.0.list_children(&parent).await.expect("children");
        assert!(!children.is_empty());
        format!("{prefix}{sequence}")
    }

    async fn release(&self, path: String) {
        self.0.delete(&path, None).await.expect("deleted");
    }
}

/// zookeeper-client's own recipe.
#[derive(Clone)]
struct Recipe(Arc<Client>);

impl Lock for Recipe {
    type Held = OwnedLockClient;

    async fn acquire(&self, key: &str) -> OwnedLockClient {
        let dir = format!("/raw-{key}");
        let prefix = LockPrefix::new_curator(&dir, "lock-").expect("a prefix");
        let lock = self
            .0
            .lock(prefix, b"", LockOptions::new(Acls::anyone_all()))
            .await
            .expect("a grant");
        lock.into_owned()
    }

    async fn release(&self, held: OwnedLockClient) {
        let path = held.lock_path().to_owned();
        held.client().delete(&path, None).await.expect("deleted");
        // What is left of it deletes the node again when it is dropped, which costs a request.
        drop(held);
    }
}

pub(crate) fn run(effort: Effort) {
    let server = ZooKeeperServer::start();
    let url = server.url();
    let runtime = Runtime::new().expect("a runtime");
    let requests = || server.figure("zk_packets_received");
    let connect = async || {
        let client = Client::connector()
            .with_session_timeout(SESSION)
            .connect(&server.address().to_string())
            .await
            .expect("a session");
        for key in ["uncontended", "hot"] {
            parent(&client, key).await;
        }
        Arc::new(client)
    };
    let raw = runtime.block_on(connect());
    let ours = || {
        let backend = ZooKeeperBackend::builder(&url).with_session_timeout(SESSION);
        runtime.block_on(backend.connect()).expect("a backend")
    };
    let backend = Ours(Arc::new(ours()));
    let managed = Managed::new(ours());

    latency(
        effort,
        SERVER,
        vec![
            Candidate::new(
                "create, list, delete",
                &runtime,
                Raw(raw.clone()),
                &requests,
            ),
            Candidate::new("ZooKeeperBackend", &runtime, backend.clone(), &requests),
            Candidate::new("LockManager", &runtime, managed.clone(), &requests),
            Candidate::new(
                "zookeeper-client's recipe",
                &runtime,
                Recipe(raw.clone()),
                &requests,
            ),
        ],
    );
    let recipe = Recipe(raw);
    let hand_offs = [
        hand_off::measure(
            effort,
            "zookeeper-client's recipe",
            &runtime,
            recipe,
            &requests,
        ),
        hand_off::measure(effort, "ZooKeeperBackend", &runtime, backend, &requests),
        hand_off::measure(effort, "LockManager", &runtime, managed, &requests),
        peers::kazoo(effort, server.address()),
        peers::curator(effort, server.address()),
    ];
    hand_off::report(SERVER, &hand_offs);
}
