//! Where the idempotency key of a request is, and whom it belongs to.

use std::{fmt, future::Future, ops::RangeInclusive, pin::Pin, sync::Arc};

use http::{HeaderName, request::Parts};

use super::{
    client_key::{self, ClientKey},
    place::operation,
    source::IntoKeyExtractor,
};
use crate::key::{
    ExtractResult, Extraction, KeyExtractor, KeyRejection, LockKey, LockKeys, check_namespace,
};

const DEFAULT_NAME: HeaderName = HeaderName::from_static("idempotency-key");
const DEFAULT_NAMESPACE: &str = "idempotency";
/// The longest key of a header, in bytes.
const MAX_LENGTH: usize = 255;

/// Where the idempotency key of a request is, and whom it belongs to.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::{IdempotencyKey, LockKey};
///
/// #[derive(Clone)]
/// struct Tenant(String); // put into the extensions by your authentication
///
/// let key = IdempotencyKey::header().scoped_by(|parts: &Parts| {
///     let tenant = parts.extensions.get::<Tenant>()?;
///     Some(LockKey::new("tenant", &tenant.0))
/// });
/// # let _: &dyn tower_lock::KeyExtractor = &key;
/// ```
///
/// # Scope
///
/// Clients choose their keys, so two of them can choose the same, by accident or to read the
/// response of another. A key is therefore of no use before it says whose it is:
/// [`scoped_by`](Self::scoped_by) what your authentication knows, or
/// [`global_keys`](Self::global_keys) where one client is all there is. Without either it does not
/// compile into a layer:
///
/// ```
/// # use tower_lock::{IdempotencyKey, idempotency::ScopedKey};
/// fn layer(key: impl ScopedKey) {}
/// layer(IdempotencyKey::header().global_keys());
/// ```
///
/// ```compile_fail,E0277
/// # use tower_lock::{IdempotencyKey, idempotency::ScopedKey};
/// fn layer(key: impl ScopedKey) {}
/// layer(IdempotencyKey::header());
/// ```
///
/// # The lock key
///
/// A request is known by these together; its record and its lock stand under a [`LockKey`] of them:
///
/// | part | from |
/// |---|---|
/// | namespace | [`with_namespace`](Self::with_namespace) |
/// | tenant | the scope; none is apart from every tenant |
/// | method | the request |
/// | operation | axum's matched route, such as `/orders/{id}/refund`, prefixes of nested routers included; without a matched route, the path as the client sent it |
/// | key | the client |
///
/// So one key on two routes is two requests, and both run. One key on `/orders/1/refund` and
/// `/orders/2/refund` is one request with two payloads, and the second is refused, as the draft
/// wants; where axum's router has not matched a route (plain Tower, or a layer around the whole
/// router) these are two paths, and both run. Query, host and headers do not count here; the first
/// of them counts for the fingerprint.
#[must_use = "a key does nothing until a layer takes it"]
#[derive(Clone)]
pub struct IdempotencyKey<K = FromHeader, S = Unscoped> {
    source: K,
    scope: S,
    namespace: Box<str>,
    optional: bool,
}

/// A key from a header; see [`IdempotencyKey::header`].
#[derive(Clone, Debug)]
pub struct FromHeader {
    name: HeaderName,
    length: RangeInclusive<usize>,
}

/// A key from an extractor; see [`IdempotencyKey::from_extractor`].
#[derive(Clone)]
pub struct FromExtractor(Arc<dyn KeyExtractor>);

/// It is not said yet whose the keys are.
#[derive(Clone, Copy, Debug)]
pub struct Unscoped;

/// It is said whose the keys are.
#[derive(Clone)]
pub struct Scoped(Option<Arc<dyn KeyExtractor>>);

/// An [`IdempotencyKey`] of which it is said whose the keys are.
///
/// Its [`KeyExtractor::extract`] gives one [`LockKey`], or [`LockKeys::Skip`] for a request without
/// a key where that is allowed, and puts the [`ClientKey`] into the request's extensions.
#[diagnostic::on_unimplemented(
    message = "it is not said whose idempotency keys these are",
    label = "an idempotency key without a scope",
    note = "add `.scoped_by(|parts: &Parts| ..)` with what your authentication knows of the client, so that no client gets the response of another",
    note = "or `.global_keys()`, where one client is all there is"
)]
pub trait ScopedKey: KeyExtractor + sealed::Sealed {}

impl<K: Source> ScopedKey for IdempotencyKey<K, Scoped> {}

impl IdempotencyKey {
    /// A key from the header `Idempotency-Key`, as
    /// [draft-ietf-httpapi-idempotency-key-header](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/)
    /// says.
    ///
    /// | the header | the request |
    /// |---|---|
    /// | `"abc"`, a string of RFC 9651, or `abc`, the same without quotes | has the key `abc`; case counts |
    /// | is not there | is answered with 400 `key-missing`; runs as if there were no layer if [`optional`](Self::optional) |
    /// | is there twice, or a list (proxies join lines) | is answered with 400 `key-invalid` |
    /// | is empty, or the key is shorter or longer than [`with_length`](Self::with_length) | the same |
    /// | has parameters, is not well-formed, or not ASCII | the same |
    ///
    /// Without quotes a key may hold letters, digits and ``!#$%&'*+-./:=@^_`|~``; with quotes all
    /// visible ASCII and spaces.
    pub fn header() -> Self {
        Self {
            source: FromHeader {
                name: DEFAULT_NAME,
                length: 1..=MAX_LENGTH,
            },
            scope: Unscoped,
            namespace: DEFAULT_NAMESPACE.into(),
            optional: false,
        }
    }
}

impl IdempotencyKey<FromExtractor> {
    /// A key from any [`KeyExtractor`], or a closure that [`from_fn`](crate::key::from_fn) takes.
    ///
    /// It must give one key; [`LockKeys::Skip`] is an absent key, and several are answered with
    /// 500 `lock-misconfigured`. Its rejections are the answer. What it derives a key from must be
    /// the same when a client repeats a request, and another for every new one.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_lock::{IdempotencyKey, LockKey};
    ///
    /// struct Delivery { sender: String, id: String } // parsed by a middleware of yours
    ///
    /// // A webhook: its sender makes the ids.
    /// let key = IdempotencyKey::from_extractor(|parts: &Parts| {
    ///     let delivery = parts.extensions.get::<Delivery>()?;
    ///     Some(LockKey::new("delivery", &delivery.id))
    /// })
    /// .scoped_by(|parts: &Parts| {
    ///     let delivery = parts.extensions.get::<Delivery>()?;
    ///     Some(LockKey::new("sender", &delivery.sender))
    /// });
    /// # let _: &dyn tower_lock::KeyExtractor = &key;
    /// ```
    pub fn from_extractor<M>(extractor: impl IntoKeyExtractor<M>) -> Self {
        Self {
            source: FromExtractor(Arc::new(extractor.into_key_extractor())),
            scope: Unscoped,
            namespace: DEFAULT_NAMESPACE.into(),
            optional: false,
        }
    }
}

impl<S> IdempotencyKey<FromHeader, S> {
    /// Another header, such as `x-request-token`. Default `Idempotency-Key`.
    ///
    /// # Panics
    ///
    /// If it is not the name of a header by HTTP's rules.
    #[track_caller]
    pub fn with_name(mut self, header: impl AsRef<str>) -> Self {
        let header = header.as_ref();
        let Ok(name) = HeaderName::from_bytes(header.as_bytes()) else {
            panic!(
                "{header:?} is not the name of a header: \
                 letters, digits and some of HTTP's marks such as `-` are accepted"
            )
        };
        self.source.name = name;
        self
    }

    /// How long a key may be, in bytes without its quotes. Default 1 to 255.
    ///
    /// Short keys can be guessed and met by accident: `36..=255` wants a UUID or more.
    ///
    /// # Panics
    ///
    /// If the range is empty, begins at 0, or ends above 255.
    #[track_caller]
    pub fn with_length(mut self, bytes: RangeInclusive<usize>) -> Self {
        assert!(
            *bytes.start() >= 1 && *bytes.end() <= MAX_LENGTH && !bytes.is_empty(),
            "the length of an idempotency key is {bytes:?}, accepted is a range within 1..={MAX_LENGTH}"
        );
        self.source.length = bytes;
        self
    }
}

impl<K> IdempotencyKey<K, Unscoped> {
    /// Whose the keys are: any [`KeyExtractor`], or a closure that
    /// [`from_fn`](crate::key::from_fn) takes. Keys of different scopes never meet, whatever the
    /// clients choose.
    ///
    /// Take what your authentication knows and the client cannot choose: the account, not a
    /// header. So the layer stands inside of your authentication.
    ///
    /// | the scope gives | the request |
    /// |---|---|
    /// | one key | is of this tenant |
    /// | none | is answered with 500 `lock-misconfigured`, and never shares keys with others: return a rejection such as `StatusCode::UNAUTHORIZED` if it can happen |
    /// | several | the same: their order would not count; use [`LockKey::from_values`] |
    /// | a rejection | is answered with it |
    pub fn scoped_by<M>(self, scope: impl IntoKeyExtractor<M>) -> IdempotencyKey<K, Scoped> {
        self.with_scope(Scoped(Some(Arc::new(scope.into_key_extractor()))))
    }

    /// All clients share their keys: whoever sends a key again, with the same request, gets the
    /// response that the first one got.
    ///
    /// Only where all clients may see each other's responses, or there is one client.
    pub fn global_keys(self) -> IdempotencyKey<K, Scoped> {
        self.with_scope(Scoped(None))
    }

    fn with_scope(self, scope: Scoped) -> IdempotencyKey<K, Scoped> {
        IdempotencyKey {
            source: self.source,
            scope,
            namespace: self.namespace,
            optional: self.optional,
        }
    }
}

impl<K, S> IdempotencyKey<K, S> {
    /// A request without a key runs as if there were no layer. By default it is answered with
    /// 400 `key-missing`. A key that is there must still be right.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// The namespace of the lock keys, for logs, metrics and operators. Default `idempotency`.
    ///
    /// Two services that share a backend, and have a route of the same name, need two namespaces.
    ///
    /// # Panics
    ///
    /// If it is not 1 to 64 characters of `[A-Za-z0-9_.-]`.
    #[track_caller]
    pub fn with_namespace(mut self, namespace: &str) -> Self {
        self.namespace = check_namespace(namespace);
        self
    }
}

/// Where a key is. Implemented by [`FromHeader`] and [`FromExtractor`].
pub trait Source: sealed::Source {}

impl<T: sealed::Source> Source for T {}

mod sealed {
    use super::*;

    pub trait Sealed {}

    impl<K: super::Source> Sealed for IdempotencyKey<K, Scoped> {}

    pub trait Source: Clone + fmt::Debug + Send + Sync + 'static {
        /// The client's key, if there is one.
        fn find(&self, parts: &mut Parts) -> Step<Option<ClientKey>>;

        /// What a client lacks that has none.
        fn what(&self) -> String;
    }
}

/// As [`Extraction`], of any value: a future owns the head meanwhile.
pub enum Step<T> {
    Ready(Result<T, KeyRejection>),
    Pending(Later<T>),
}

type Later<T> = Pin<Box<dyn Future<Output = (Parts, Result<T, KeyRejection>)> + Send>>;

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

impl sealed::Source for FromHeader {
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

impl sealed::Source for FromExtractor {
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
        let values = [&*tenant, parts.method.as_str(), kind, operation, key.as_str()];
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
                    match this.scope(&mut parts, key) {
                        Extraction::Ready(result) => (parts, result),
                        Extraction::Pending(later) => later.await,
                    }
                }))
            }
        }
    }
}

impl fmt::Debug for FromExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromExtractor")
    }
}

impl fmt::Debug for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Scoped" } else { "Global" })
    }
}

impl<K: fmt::Debug, S: fmt::Debug> fmt::Debug for IdempotencyKey<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKey")
            .field("source", &self.source)
            .field("scope", &self.scope)
            .field("namespace", &self.namespace)
            .field("optional", &self.optional)
            .finish()
    }
}
