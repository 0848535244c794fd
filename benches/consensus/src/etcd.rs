//! etcd: the raw transactions, and the server's own `Lock`.

use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, LockOptions, PutOptions, Txn, TxnOp};
use tokio::runtime::Runtime;
use tower_lock::EtcdBackend;

use crate::{
    hand_off,
    latency::{Candidate, latency},
    locks::{Lock, Managed, Ours},
    report::Effort,
    servers::Etcd,
};

const SERVER: &str = "etcd";
/// In seconds; longer than any run.
const LEASE: i64 = 600;

/// What the protocol cannot do without: put and look in one transaction, delete.
#[derive(Clone)]
struct Raw {
    client: Client,
    lease: i64,
}

impl Lock for Raw {
    type Held = String;

    async fn acquire(&self, key: &str) -> String {
        let prefix = format!("raw/{key}/");
        let path = format!("{prefix}{:032x}", fastrand::u128(..));
        let put = PutOptions::new().with_lease(self.lease);
        let txn = Txn::new()
            .when([Compare::create_revision(path.as_str(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(path.as_str(), "", Some(put)),
                TxnOp::get(prefix, Some(GetOptions::new().with_prefix())),
            ]);
        let answer = self.client.clone().txn(txn).await.expect("an answer");
        assert!(answer.succeeded());
        path
    }

    async fn release(&self, path: String) {
        let deleted = self.client.clone().delete(path, None).await;
        assert_eq!(deleted.expect("an answer").deleted(), 1);
    }
}

/// The lock that the server offers by itself.
#[derive(Clone)]
struct Server {
    client: Client,
}

impl Lock for Server {
    type Held = (i64, Vec<u8>);

    async fn acquire(&self, key: &str) -> Self::Held {
        let mut client = self.client.clone();
        // A lease for each: two asks under one lease are one owner.
        let lease = client.lease_grant(LEASE, None).await.expect("a lease").id();
        let options = LockOptions::new().with_lease(lease);
        let held = client.lock(format!("server/{key}"), Some(options)).await;
        (lease, held.expect("a grant").key().to_vec())
    }

    async fn release(&self, (lease, key): Self::Held) {
        let mut client = self.client.clone();
        client.unlock(key).await.expect("a release");
        client.lease_revoke(lease).await.expect("an answer");
    }
}

pub(crate) fn run(effort: Effort) {
    let server = Etcd::start();
    let url = server.url();
    let runtime = Runtime::new().expect("a runtime");
    let requests = || server.metric(0, "grpc_server_msg_received_total");
    let client = runtime
        .block_on(Client::connect([server.endpoint(0)], None))
        .expect("a client");
    let lease = runtime
        .block_on(client.clone().lease_grant(LEASE, None))
        .expect("a lease")
        .id();
    let raw = Raw {
        client: client.clone(),
        lease,
    };
    let ours = || {
        let backend = runtime.block_on(EtcdBackend::connect(&url));
        backend.expect("a backend")
    };
    let backend = Ours(Arc::new(ours()));
    let managed = Managed::new(ours());
    let own = Server { client };

    latency(
        effort,
        SERVER,
        vec![
            Candidate::new("put and get, delete", &runtime, raw, &requests),
            Candidate::new("EtcdBackend", &runtime, backend.clone(), &requests),
            Candidate::new("LockManager", &runtime, managed.clone(), &requests),
            Candidate::new("etcd's own Lock", &runtime, own.clone(), &requests),
        ],
    );
    let hand_offs = [
        hand_off::measure(effort, "etcd's own Lock", &runtime, own, &requests),
        hand_off::measure(effort, "EtcdBackend", &runtime, backend, &requests),
        hand_off::measure(effort, "LockManager", &runtime, managed, &requests),
    ];
    hand_off::report(SERVER, &hand_offs);
}
