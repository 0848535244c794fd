//! One connection to one member, from its opening to its end. The lock runtime drives it.

use std::{
    fmt,
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use etcd_client::{
    Client, ConnectOptions, DeleteOptions, Error, GetOptions, GetResponse, LeaseGrantOptions,
    LeaseTimeToLiveResponse, Txn, TxnResponse, WatchOptions, WatchStream,
};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use super::trouble::Trouble;

pub(super) struct Connection {
    client: Client,
    /// For how long one answer is waited for.
    patience: Duration,
    ended: CancellationToken,
    /// Somebody got no answer, and it has not been probed since.
    doubtful: AtomicBool,
    doubt: Notify,
}

impl Connection {
    /// Connects and authenticates; the member has a leader and a majority behind it then.
    /// `probe` is a key that this user may read.
    pub(super) async fn open(
        endpoint: &str,
        options: ConnectOptions,
        patience: Duration,
        probe: &str,
    ) -> Result<Self, Trouble> {
        let open = async {
            let connection = Self {
                client: Client::connect([endpoint], Some(options)).await?,
                patience,
                ended: CancellationToken::new(),
                doubtful: AtomicBool::new(false),
                doubt: Notify::new(),
            };
            connection.probe(probe).await?;
            Ok(connection)
        };
        timeout(patience, open)
            .await
            .unwrap_or_else(|_| Err(Trouble::no_answer()))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Whether it is as good as anybody knows.
    pub(super) fn is_trusted(&self) -> bool {
        !self.has_ended() && !self.doubtful.load(Ordering::Acquire)
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Resolves when somebody got no answer.
    pub(super) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Nobody uses it any more, whether the server knows or not.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// An answer, or that there was none in time: then it may have been done, or be done later.
    async fn ask<T>(
        &self,
        patience: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Trouble> {
        match timeout(patience.min(self.patience), request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let trouble = Trouble::from(error);
                if trouble.elsewhere {
                    self.end();
                }
                Err(trouble)
            }
            Err(_) => {
                self.doubtful.store(true, Ordering::Release);
                self.doubt.notify_one();
                Err(Trouble::no_answer())
            }
        }
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnResponse, Trouble> {
        let mut kv = self.client.kv_client();
        self.ask(self.patience, kv.txn(txn)).await
    }

    /// Linearizable: what a majority agrees on.
    pub(super) async fn get(
        &self,
        key: impl Into<Vec<u8>>,
        options: GetOptions,
    ) -> Result<GetResponse, Trouble> {
        let mut kv = self.client.kv_client();
        self.ask(self.patience, kv.get(key, Some(options))).await
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), Trouble> {
        let mut kv = self.client.kv_client();
        let deleted = self.ask(self.patience, kv.delete(key, None::<DeleteOptions>));
        deleted.await.map(drop)
    }

    /// Whether the member answers for a majority.
    pub(super) async fn probe(&self, key: &str) -> Result<(), Trouble> {
        self.get(key, GetOptions::new().with_keys_only()).await?;
        self.doubtful.store(false, Ordering::Release);
        Ok(())
    }

    /// A new lease: its number, and for how many seconds it is, which may be more.
    pub(super) async fn grant(&self, seconds: i64) -> Result<(i64, i64), Trouble> {
        let mut leases = self.client.lease_client();
        let granted = self.ask(self.patience, leases.grant(seconds, None)).await?;
        Ok((granted.id(), granted.ttl()))
    }

    /// A new lease of this number.
    pub(super) async fn grant_as(&self, id: i64, seconds: i64) -> Result<(), Trouble> {
        let mut leases = self.client.lease_client();
        let options = LeaseGrantOptions::new().with_id(id);
        let granted = self.ask(self.patience, leases.grant(seconds, Some(options)));
        granted.await.map(drop)
    }

    /// Renews a lease to all of its time, by a stream that lives for this one answer: so the answer
    /// is known to be that of this request, and there is no stream to be lost.
    pub(super) async fn keep_alive(&self, id: i64, patience: Duration) -> Result<(), Trouble> {
        let mut leases = self.client.lease_client();
        // It returns with the first answer, and with an error if that is of no time to live.
        self.ask(patience, leases.keep_alive(id)).await.map(drop)
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), Trouble> {
        let mut leases = self.client.lease_client();
        let revoked = self.ask(self.patience, leases.revoke(id)).await;
        match revoked {
            Err(trouble) if trouble.lease_gone => Ok(()),
            result => result.map(drop),
        }
    }

    /// For how many seconds a lease is still good; negative if there is none of this number.
    pub(super) async fn time_to_live(&self, id: i64) -> Result<i64, Trouble> {
        let mut leases = self.client.lease_client();
        let left: LeaseTimeToLiveResponse = self
            .ask(self.patience, leases.time_to_live(id, None))
            .await?;
        Ok(left.ttl())
    }

    /// A stream of watches, with its first one.
    pub(super) async fn watch(
        &self,
        key: &str,
        options: WatchOptions,
    ) -> Result<WatchStream, Trouble> {
        let mut watches = self.client.watch_client();
        self.ask(self.patience, watches.watch(key, Some(options)))
            .await
    }

    /// What the member says of itself.
    pub(super) async fn version(&self) -> Result<String, Trouble> {
        let mut maintenance = self.client.maintenance_client();
        let status = self.ask(self.patience, maintenance.status()).await?;
        Ok(status.version().to_owned())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}
