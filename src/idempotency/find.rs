//! From a request's head to its lock key.

use std::{fmt, future::Future, pin::Pin};

use http::request::Parts;

use super::{
    client_key::{self, ClientKey},
    key::{FromExtractor, FromHeader, IdempotencyKey, Scoped},
    place::operation,
};
use crate::key::{ExtractResult, Extraction, KeyExtractor, KeyRejection, LockKey, LockKeys};

/// Where a key is: [`FromHeader`] and [`FromExtractor`]. Not to be named outside of this crate.
pub trait Source: Clone + Send + Sync + 'static {
    /// The client's key, if there is one.
    fn find(&self, parts: &mut Parts) -> Step<Option<ClientKey>>;

    /// What a client lacks that has none.
    fn what(&self) -> String;
}

/// Of [`ScopedKey`](super::ScopedKey), so that it is not implemented outside of this crate.
pub trait Sealed {}

impl<K: Source> Sealed for IdempotencyKey<K, Scoped> {}

/// As [`Extraction`], of any value: a future owns the head meanwhile.
pub enum Step<T> {
    Ready(Result<T, KeyRejection>),
    Pending(Later<T>),
}

type Later<T> = Pin<Box<dyn Future<Output = (Parts, Result<T, KeyRejection>)> + Send>>;

impl<T> fmt::Debug for Step<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready(..)",
            Self::Pending(_) => "Pending(..)",
        })
    }
}

impl<T: Send + 'static> Step<T> {
    fn from_extraction(
        extraction: Extraction,
        read: impl FnOnce(ExtractResult) -> Result<T, KeyRejection> + Send + 'static,
    ) -> Self {
        match extraction {
            Extraction::Ready(result) => Self::Ready(read(result)),
            Extraction::Pending(later) => Self::Pending(Box::pin(async move {
                let (parts, result) = later.await;
                (parts, read(result))
            })),
        }
    }
}

impl Source for FromHeader {
    fn find(&self, parts: &mut Parts) -> Step<Option<ClientKey>> {
        let mut values = parts.headers.get_all(&self.name).iter();
        Step::Ready(match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(self.invalid("must be sent once")),
            (Some(value), None) => client_key::parse(value.as_bytes(), &self.length)
                .map(Some)
                .map_err(|what| self.invalid(&what)),
        })
    }

    fn what(&self) -> String {
        format!("header `{}`", self.name)
    }
}

impl FromHeader {
    fn invalid(&self, what: &str) -> KeyRejection {
        KeyRejection::invalid(format!("header `{}` {what}", self.name))
    }
}

impl Source for FromExtractor {
    fn find(&self, parts: &mut Parts) -> Step<Option<ClientKey>> {
        Step::from_extraction(self.0.extract(parts), |result| match result? {
            LockKeys::Skip => Ok(None),
            LockKeys::One(key) => Ok(Some(ClientKey::new(key.as_str()))),
            LockKeys::Many(_) => Err(KeyRejection::misconfigured(
                "the extractor of an idempotency key gave several keys: give one, by `LockKey::from_values`",
            )),
        })
    }

    fn what(&self) -> String {
        "idempotency key".into()
    }
}

impl Scoped {
    /// The tenant; empty without a scope, which no tenant is.
    fn find(&self, parts: &mut Parts) -> Step<String> {
        let Some(scope) = &self.0 else {
            return Step::Ready(Ok(String::new()));
        };
        Step::from_extraction(scope.extract(parts), |result| match result? {
            LockKeys::One(tenant) => Ok(tenant.as_str().to_owned()),
            LockKeys::Skip => Err(KeyRejection::misconfigured(
                "the scope of an idempotency key gave none: put the layer inside of the \
                 authentication, or reject such requests in the scope",
            )),
            LockKeys::Many(_) => Err(KeyRejection::misconfigured(
                "the scope of an idempotency key gave several keys: give one, by `LockKey::from_values`",
            )),
        })
    }
}

impl<K: Source> IdempotencyKey<K, Scoped> {
    fn absent(&self) -> ExtractResult {
        if self.optional {
            Ok(LockKeys::Skip)
        } else {
            Err(KeyRejection::missing(self.source.what()))
        }
    }

    /// The second half: the key is known, its tenant is not.
    fn scope(&self, parts: &mut Parts, key: Result<Option<ClientKey>, KeyRejection>) -> Extraction {
        let key = match key {
            Ok(Some(key)) => key,
            Ok(None) => return Extraction::Ready(self.absent()),
            Err(rejection) => return Extraction::Ready(Err(rejection)),
        };
        match self.scope.find(parts) {
            Step::Ready(tenant) => Extraction::Ready(self.finish(parts, tenant, key)),
            Step::Pending(later) => {
                let this = self.clone();
                Extraction::Pending(Box::pin(async move {
                    let (mut parts, tenant) = later.await;
                    let result = this.finish(&mut parts, tenant, key);
                    (parts, result)
                }))
            }
        }
    }

    fn finish(
        &self,
        parts: &mut Parts,
        tenant: Result<String, KeyRejection>,
        key: ClientKey,
    ) -> ExtractResult {
        let tenant = tenant?;
        let (kind, operation) = operation(parts);
        let values = [
            &*tenant,
            parts.method.as_str(),
            kind,
            operation,
            key.as_str(),
        ];
        let lock_key = LockKey::from_values(&self.namespace, values);
        parts.extensions.insert(key);
        Ok(lock_key.into())
    }
}

impl<K: Source> KeyExtractor for IdempotencyKey<K, Scoped> {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        match self.source.find(parts) {
            Step::Ready(key) => self.scope(parts, key),
            Step::Pending(later) => {
                let this = self.clone();
                Extraction::Pending(Box::pin(async move {
                    let (mut parts, key) = later.await;
                    let extraction = this.scope(&mut parts, key);
                    extraction.resolve(parts).await
                }))
            }
        }
    }
}
