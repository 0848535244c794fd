//! What a grant is made of: tokens, the end of a lease, and the signal of its loss.

use std::{cell::RefCell, fmt, future::Future, num::NonZeroU64, time::Duration};

use tokio::time::Instant;

use crate::error::BackendError;
pub use crate::loss::{Loss, LossSignal};

/// A number that grows with every grant of a key; storage uses it to refuse a stale holder.
///
/// Tokens are `1..=i64::MAX`, so every database can store them. Tokens of different backends, and
/// of different keys, are not comparable. There are gaps. Show the token to the storage on the
/// *first* contact, reads included: [`guide::guarantees`](crate::guide::guarantees) has the SQL and
/// says why. In axum it is an extractor, for routes that hold one lock.
///
/// Chubby calls it a sequencer (M. Burrows, OSDI 2006); the name is Kleppmann's ([*How to do
/// distributed locking*](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html),
/// 2016).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The largest token, `i64::MAX`.
    pub const MAX: Self = Self(NonZeroU64::new(i64::MAX as u64).expect("not zero"));

    /// A token of this number, or `None` outside `1..=i64::MAX`.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(n) if number <= i64::MAX as u64 => Some(Self(n)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as databases take it; never negative.
    pub const fn as_i64(self) -> i64 {
        self.0.get() as i64
    }

    /// The token `n` places after this one in a reserved range.
    pub(crate) fn offset(self, n: u64) -> Option<Self> {
        self.get().checked_add(n).and_then(Self::new)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random secret of one acquisition, by which a backend knows the holder.
///
/// 128 bits from the operating system's generator. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
    /// A new random token.
    ///
    /// # Panics
    ///
    /// If the operating system has no randomness to give, which it does not do once booted.
    pub fn random() -> Self {
        // One system call for 64 tokens: a call per request costs more than the lock.
        struct Pool {
            bytes: [u8; 1024],
            used: usize,
        }
        thread_local! {
            static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; 1024], used: 1024 }) };
        }
        POOL.with_borrow_mut(|pool| {
            if pool.used == pool.bytes.len() || cfg!(test) {
                fill(&mut pool.bytes);
                pool.used = 0;
            }
            let slot = &mut pool.bytes[pool.used..pool.used + 16];
            let mut token = [0; 16];
            token.copy_from_slice(slot);
            slot.fill(0);
            pool.used += 16;
            Self(token)
        })
    }

    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a backend to encode.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 64 bits that spread well: the token is random.
    pub(crate) fn hash64(&self) -> u64 {
        u64::from_ne_bytes(self.0[..8].try_into().expect("eight bytes"))
    }
}

#[cfg(not(test))]
fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives randomness");
}

/// By the seed of the thread, so that a simulation is the same again.
#[cfg(test)]
fn fill(bytes: &mut [u8]) {
    fastrand::fill(bytes);
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// How far clocks may drift apart during a lease: 1 % of the ttl + 2 ms, the margin that the
/// clients of Redis' [Redlock](https://redis.io/docs/latest/develop/use/patterns/distributed-locks/)
/// use.
pub fn drift_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// The end of a lease whose request was sent at `sent`: the ttl less the [`drift_margin`].
///
/// ```
/// use std::time::Duration;
/// use tokio::time::Instant;
/// use tower_lock::lease::valid_until;
///
/// let sent = Instant::now();
/// let end = valid_until(sent, Duration::from_secs(10));
/// assert_eq!(end - sent, Duration::from_millis(9898));
/// ```
pub fn valid_until(sent: Instant, ttl: Duration) -> Instant {
    #[cfg(all(test, feature = "redis"))]
    let sent = crate::simulation::counted_from(sent);
    sent + ttl.saturating_sub(drift_margin(ttl))
}

/// A backend's grant of a key to one owner.
///
/// The musts of [`LockBackend`](crate::backend::LockBackend) apply. All methods take `&self`:
/// the manager renews from one task and releases from another. There are no default methods.
pub trait Lease: fmt::Debug + Send + Sync + 'static {
    /// The token of this grant; where a range was reserved, the first of it.
    fn fencing_token(&self) -> FencingToken;

    /// How many tokens were reserved, `fencing_token()` included; 1 without a reservation.
    fn reserved_tokens(&self) -> u32;

    /// Until when the holder may act, unless renewed (must 2). It only moves to later.
    fn valid_until(&self) -> Instant;

    /// Extends the lease to a whole ttl from now, if this owner still holds it (must 7).
    ///
    /// # Errors
    ///
    /// `Lost` on an owner mismatch: the implementation has then fired [`lost`](Self::lost).
    /// Any other kind leaves `valid_until` as it was; the caller tries again until then (must 8).
    fn renew(&self) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// The signal of this lease's loss. The backend fires it as soon as it knows.
    fn lost(&self) -> &LossSignal;

    /// Gives the key back, if this owner still holds it; harmless otherwise, and when repeated.
    ///
    /// # Cancellation
    ///
    /// The first poll sends the release. A caller that drops the future does not learn the
    /// outcome; the manager never drops it but hands it to the reaper.
    fn release(&self) -> impl Future<Output = Result<(), BackendError>> + Send;
}
