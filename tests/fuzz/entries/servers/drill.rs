//! What is done with a backend while its server answers wrongly, and afterwards.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{
    BackendError, BackendErrorKind, Lease, LockBackend, LockKey,
    backend::{AcquireRequest, Found, WaitBound},
    record::{Opening, Save},
};

use super::relay::Relay;
use crate::entries::watch::shows_no_secret;

/// Of a lease.
pub const TTL: Duration = Duration::from_secs(3);

/// How long one answer may take, where a backend can be told.
pub const ANSWER: Duration = Duration::from_millis(250);

/// The end of whatever has an end of its own within a few [`ANSWER`]s. Above that by what a busy
/// machine needs, so only what hangs comes to it.
const BOUND: Duration = Duration::from_secs(20);

/// How long until everything is as it was, once the server answers well again.
const RECOVERY: Duration = Duration::from_secs(30);

/// A backend, and how to look at what stands on its server.
pub struct Subject<B, C> {
    /// A client of the same locks whose server answers well.
    pub clean: B,
    /// Connects through the relays.
    pub connect: C,
    /// The forms in which a server tells a token; none if the client makes tokens itself.
    pub tells: fn(u64) -> Vec<Vec<u8>>,
    /// Its locks live as long as its session: those of which it was told something else than what the
    /// server did may go with that only.
    pub has_session: bool,
}

async fn bounded<T>(what: &str, call: impl Future<Output = T>) -> T {
    let ended = timeout(BOUND, call).await;
    ended.unwrap_or_else(|_| panic!("it does not end: {what}"))
}

/// Errors say something, and nothing of what a server said.
fn look_at(what: &str, error: &BackendError) {
    let text = error.to_string();
    assert!(!text.trim().is_empty(), "{what}: an error without a text");
    shows_no_secret(&text);
    let told = text.chars().all(|c| !c.is_control());
    assert!(told, "{what}: {text:?}");
}

fn looked_at<T>(what: &str, result: Result<T, BackendError>) -> Option<T> {
    result.inspect_err(|error| look_at(what, error)).ok()
}

fn new_key() -> LockKey {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    LockKey::from_values("fuzz", [std::process::id().to_string(), number.to_string()])
}

fn request(key: &LockKey) -> AcquireRequest {
    AcquireRequest::new(key.clone(), TTL)
}

impl<B, C> Subject<B, C>
where
    B: LockBackend,
    C: AsyncFn() -> Result<B, BackendError>,
{
    /// All of it.
    pub async fn drill(&self, relays: &[Relay]) {
        let connected = bounded("connect", (self.connect)()).await;
        let backend = match looked_at("connect", connected) {
            Some(backend) => backend,
            None => {
                relays.iter().for_each(Relay::heal);
                self.connects().await
            }
        };
        let free = new_key();
        self.lock_free(relays, &backend, &free).await;
        let held = new_key();
        self.lock_held(relays, &backend, &held).await;
        let kept = new_key();
        self.records(&backend, &kept).await;
        let stolen = new_key();
        self.operate(&backend, &stolen).await;
        relays.iter().for_each(Relay::heal);
        let believes = self.has_session && relays.iter().any(Relay::lied);
        works(&backend, believes).await;
        let mut backend = Some(backend);
        if believes {
            backend = None;
        }
        let keys = [
            ("acquired", free),
            ("asked for", held),
            ("kept", kept),
            ("forced", stolen),
        ];
        for (what, key) in keys {
            self.is_free(what, &key).await;
        }
        drop(backend);
    }

    async fn connects(&self) -> B {
        let end = Instant::now() + RECOVERY;
        loop {
            match bounded("connect again", (self.connect)()).await {
                Ok(backend) => return backend,
                Err(error) => assert!(Instant::now() < end, "it does not connect again: {error}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A key that nobody has. Who gets it has it on the server.
    async fn lock_free(&self, relays: &[Relay], backend: &B, key: &LockKey) {
        let acquired = bounded("acquire", backend.acquire(&request(key))).await;
        let Some(lease) = looked_at("acquire", acquired) else {
            return;
        };
        assert!(lease.valid_until() <= Instant::now() + TTL, "too long");
        self.was_told(relays, &lease);
        let state = self.clean.inspect(key).await;
        let is_over = Instant::now() >= lease.valid_until() || lease.lost().get().is_some();
        let stands = state.is_err() || state.is_ok_and(|state| !state.holders.is_empty());
        assert!(stands || is_over, "granted, and nobody holds it");
        looked_at("inspect", bounded("inspect", backend.inspect(key)).await);
        let renewed = bounded("renew", lease.renew()).await;
        looked_at("renew", renewed);
        assert!(lease.valid_until() <= Instant::now() + TTL, "too long");
        looked_at("release", bounded("release", lease.release()).await);
    }

    /// A grant is a server's word.
    fn was_told(&self, relays: &[Relay], lease: &B::Lease) {
        let forms = (self.tells)(lease.fencing_token().get());
        let told = forms.is_empty() || told(relays, &forms);
        assert!(told, "no server told the token {}", lease.fencing_token());
    }

    /// A key that somebody else has.
    async fn lock_held(&self, relays: &[Relay], backend: &B, key: &LockKey) {
        // The clean one may have trouble of its own on a busy machine.
        let Ok(holder) = self.clean.acquire(&request(key)).await else {
            return;
        };
        let waits = Instant::now() + Duration::from_millis(50);
        for wait in [WaitBound::Fail, WaitBound::Until(waits)] {
            let asked = request(key).with_wait(wait);
            let acquired = bounded("acquire", backend.acquire(&asked)).await;
            if let Some(lease) = looked_at("acquire what is held", acquired) {
                self.was_told(relays, &lease);
                looked_at("release", bounded("release", lease.release()).await);
            }
        }
        let waits = WaitBound::Until(Instant::now() + Duration::from_millis(50));
        let freed = bounded("wait_free", backend.wait_free(key, waits)).await;
        looked_at("wait_free", freed);
        // A server that lied may have had it taken away.
        let _ = holder.release().await;
    }

    async fn records(&self, backend: &B, key: &LockKey) {
        let Some(records) = backend.records() else {
            return;
        };
        let opening = Opening::new("begun", TTL * 3);
        let asked = request(key);
        let found = records.dyn_acquire_or_load(&asked, Some(&opening));
        let found = bounded("acquire_or_load", found).await;
        let Some(Found::Lease { lease, .. }) = looked_at("acquire_or_load", found) else {
            return;
        };
        let token = lease.fencing_token();
        let save = Save::keep(key.clone(), asked.owner, token, "result", TTL * 3);
        let saved = bounded("save", records.dyn_save_and_release(&save)).await;
        looked_at("save_and_release", saved);
        let loaded = bounded("load", records.dyn_load(key)).await;
        looked_at("load", loaded);
        looked_at("release", bounded("release", lease.dyn_release()).await);
    }

    async fn operate(&self, backend: &B, key: &LockKey) {
        let forced = bounded("force_release", backend.force_release(key)).await;
        looked_at("force_release", forced);
    }

    /// What it left is gone, at the latest when its leases have ended.
    async fn is_free(&self, what: &str, key: &LockKey) {
        let end = Instant::now() + RECOVERY;
        loop {
            let asked = request(key).with_wait(WaitBound::Until(end));
            match self.clean.acquire(&asked).await {
                Ok(lease) => {
                    let _ = lease.release().await;
                    return;
                }
                Err(error) if Instant::now() < end => drop(error),
                Err(error) => {
                    let state = self.clean.inspect(key).await;
                    panic!("what was {what} is not free again: {error}; {state:?}");
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn told(relays: &[Relay], forms: &[Vec<u8>]) -> bool {
    let any = |form: &Vec<u8>| relays.iter().any(|relay| relay.told(form));
    forms.iter().any(any)
}

/// The same backend works as if nothing had been. Where it believes what it was told of its session
/// (such as a timeout that is longer than any ttl here), it may refuse what that rules out.
async fn works<B: LockBackend>(backend: &B, believes: bool) {
    let end = Instant::now() + RECOVERY;
    let late = |error: &BackendError| {
        assert!(Instant::now() < end, "it does not work again: {error}");
        let rules_out = error.kind() == BackendErrorKind::Unsupported;
        assert!(believes || !rules_out, "it refuses what it can do: {error}");
        rules_out
    };
    loop {
        let key = new_key();
        match bounded("acquire again", backend.acquire(&request(&key))).await {
            Ok(lease) => match bounded("release again", lease.release()).await {
                Ok(()) => return,
                Err(error) if late(&error) => return,
                Err(_) => {}
            },
            Err(error) if late(&error) => return,
            Err(_) => {}
        }
        sleep(Duration::from_millis(20)).await;
    }
}
