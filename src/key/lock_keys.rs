//! The keys of one request, and what closures may return for them.

use super::{ExtractResult, KeyRejection, LockKey};

/// The keys of one request: none (it runs unlocked), one, or several (all or nothing).
///
/// Collect keys to get the right one: `Many` is sorted in canonical order, has no key twice and
/// at least two, and cannot be written by hand. [`as_slice`](Self::as_slice) reads any of them.
///
/// ```
/// use tower_lock::{LockKey, key::LockKeys};
///
/// let transfer: LockKeys = [LockKey::new("account", 9), LockKey::new("account", 4)]
///     .into_iter()
///     .collect();
/// assert_eq!(transfer.as_slice()[0], LockKey::new("account", 4));
///
/// let to_oneself: LockKeys = [LockKey::new("account", 4), LockKey::new("account", 4)]
///     .into_iter()
///     .collect();
/// assert_eq!(to_oneself, LockKeys::One(LockKey::new("account", 4)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockKeys {
    /// The request is not locked.
    Skip,
    /// One key.
    One(LockKey),
    /// Several, in the canonical order in which they are acquired, each once.
    #[non_exhaustive]
    Many(Vec<LockKey>),
}

impl LockKeys {
    /// The keys, in the order in which they are acquired; empty for [`Skip`](Self::Skip).
    pub fn as_slice(&self) -> &[LockKey] {
        match self {
            Self::Skip => &[],
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

impl FromIterator<LockKey> for LockKeys {
    fn from_iter<I: IntoIterator<Item = LockKey>>(keys: I) -> Self {
        let mut keys: Vec<LockKey> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        match keys.len() {
            0 => Self::Skip,
            1 => keys.pop().map_or(Self::Skip, Self::One),
            _ => Self::Many(keys),
        }
    }
}

impl From<LockKey> for LockKeys {
    fn from(key: LockKey) -> Self {
        Self::One(key)
    }
}

/// What a closure may return: a key, none, several, or why there is none.
///
/// | returned | the request |
/// |---|---|
/// | [`LockKey`] | is locked by this key |
/// | [`LockKeys`], `Vec<LockKey>`, `[LockKey; N]` | is locked by all of them or refused; by none if empty |
/// | `Option<T>` | runs unlocked if `None` |
/// | `Result<T, E>` where `E: Into<KeyRejection>` | is refused if `Err`; see [`KeyRejection`] |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock key, nor several, nor a reason why there is none",
    label = "cannot become lock keys",
    note = "return a `LockKey` (such as `LockKey::new(\"order\", id)`), `Vec<LockKey>`, `[LockKey; N]`, or an `Option` or `Result` of these",
    note = "the error of a `Result` must be `Into<KeyRejection>`: `KeyRejection`, `http::StatusCode` and `http::Response<_>` are; turn another with `.map_err(IntoResponse::into_response)`"
)]
pub trait IntoLockKeys {
    /// The keys, or why there are none.
    fn into_lock_keys(self) -> ExtractResult;
}

impl IntoLockKeys for LockKeys {
    fn into_lock_keys(self) -> ExtractResult {
        Ok(self)
    }
}

impl IntoLockKeys for LockKey {
    fn into_lock_keys(self) -> ExtractResult {
        Ok(LockKeys::One(self))
    }
}

impl IntoLockKeys for Vec<LockKey> {
    fn into_lock_keys(self) -> ExtractResult {
        Ok(self.into_iter().collect())
    }
}

impl<const N: usize> IntoLockKeys for [LockKey; N] {
    fn into_lock_keys(self) -> ExtractResult {
        Ok(self.into_iter().collect())
    }
}

impl<T: IntoLockKeys> IntoLockKeys for Option<T> {
    fn into_lock_keys(self) -> ExtractResult {
        self.map_or(Ok(LockKeys::Skip), T::into_lock_keys)
    }
}

impl<T: IntoLockKeys, E: Into<KeyRejection>> IntoLockKeys for Result<T, E> {
    fn into_lock_keys(self) -> ExtractResult {
        self.map_err(Into::into)?.into_lock_keys()
    }
}
