//! Records beside locks: what the holder of a key left for those who come after it.
//!
//! A key has at most one record: [`Open`](RecordState::Open) from the moment at which a holder may
//! begin, [`Closed`](RecordState::Closed) once there is a result. Idempotent routes replay it,
//! single flight shares it. Every record ends by its ttl.
//!
//! A [`RecordStore`] keeps them. Where it is the backend of the locks as well, it is a
//! [`LockingRecordStore`](crate::backend::LockingRecordStore): then looking up, reserving and
//! acquiring are one step, and so are saving and releasing. [`MemoryBackend`](crate::MemoryBackend)
//! is one, and so are `RedisBackend`, `EtcdBackend` and `ZooKeeperBackend`:
//!
//! ```
//! use std::time::Duration;
//! use tower_lock::{
//!     Lease, LockKey, MemoryBackend,
//!     backend::{AcquireRequest, Found, LockingRecordStore},
//!     record::{Opening, Save},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let day = Duration::from_secs(24 * 3600);
//! let store = MemoryBackend::new();
//! let checkout = LockKey::new("checkout", "8e03978e");
//!
//! // The first request of a key gets the lock, and the key is marked as begun.
//! let request = AcquireRequest::new(checkout.clone(), Duration::from_secs(30));
//! let opening = Opening::new("fingerprint", day);
//! let Found::Lease { lease, previous } = store.acquire_or_load(&request, Some(&opening)).await?
//! else {
//!     panic!("the key is new");
//! };
//! assert!(previous.is_none(), "nobody began before");
//!
//! // A second one meanwhile is told so, with what was left by the first.
//! let second = AcquireRequest::new(checkout.clone(), Duration::from_secs(30));
//! let Found::Held { open: Some(open), .. } = store.acquire_or_load(&second, Some(&opening)).await?
//! else {
//!     panic!("the first is under way");
//! };
//! assert_eq!(open.bytes, "fingerprint");
//!
//! // The first is done: its result is there, and the lock is free, in one step.
//! let token = lease.fencing_token();
//! let save = Save::keep(checkout.clone(), request.owner, token, "201 Created", day);
//! store.save_and_release(&save).await?;
//!
//! // Whoever comes from now on gets the result, and no lock.
//! let Found::Record(result) = store.acquire_or_load(&second, Some(&opening)).await? else {
//!     panic!("the result is there");
//! };
//! assert_eq!(result.bytes, "201 Created");
//! # Ok(())
//! # }
//! ```
//!
//! # What a record does not do
//!
//! It is as safe as the store's memory: where the store forgets a lock (a fail-over, lost data), it
//! may forget the record too, and the work is done again. A holder that dies leaves an open record,
//! an *orphan*: nobody knows how far it came. [`Orphans`] says what the next one does.

mod save;
mod store;
mod values;

pub use self::{
    save::{Outcome, Save},
    store::RecordStore,
    values::{Opening, Orphans, Record, RecordLimits, RecordState, Results},
};
