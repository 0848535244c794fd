//! Where the idempotency key of a request is, and whom it belongs to.

use std::{fmt, ops::RangeInclusive, sync::Arc};

use http::HeaderName;

use super::{
    find::{Sealed, Source},
    source::IntoKeyExtractor,
};
use crate::key::{KeyExtractor, check_namespace};

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
/// A request is known by these together; its record and its lock stand under a [`LockKey`](crate::LockKey) of them:
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
    pub(super) source: K,
    pub(super) scope: S,
    pub(super) namespace: Box<str>,
    pub(super) optional: bool,
}

/// A key from a header; see [`IdempotencyKey::header`].
#[derive(Clone, Debug)]
pub struct FromHeader {
    pub(super) name: HeaderName,
    pub(super) length: RangeInclusive<usize>,
}

/// A key from an extractor; see [`IdempotencyKey::from_extractor`].
#[derive(Clone)]
pub struct FromExtractor(pub(super) Arc<dyn KeyExtractor>);

/// It is not said yet whose the keys are.
#[derive(Clone, Copy, Debug)]
pub struct Unscoped;

/// It is said whose the keys are.
#[derive(Clone)]
pub struct Scoped(pub(super) Option<Arc<dyn KeyExtractor>>);

/// An [`IdempotencyKey`] of which it is said whose the keys are.
///
/// Its [`KeyExtractor::extract`] gives one [`LockKey`](crate::LockKey), or [`LockKeys::Skip`](crate::key::LockKeys::Skip) for a request without
/// a key where that is allowed, and puts the [`ClientKey`](super::ClientKey) into the request's extensions.
#[diagnostic::on_unimplemented(
    message = "it is not said whose idempotency keys these are",
    label = "an idempotency key without a scope",
    note = "add `.scoped_by(|parts: &Parts| ..)` with what your authentication knows of the client, so that no client gets the response of another",
    note = "or `.global_keys()`, where one client is all there is"
)]
pub trait ScopedKey: KeyExtractor + Sealed {}

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
    /// It must give one key; [`LockKeys::Skip`](crate::key::LockKeys::Skip) is an absent key, and several are answered with
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
    /// | several | the same: their order would not count; use [`LockKey::from_values`](crate::LockKey::from_values) |
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

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request, StatusCode, request::Parts};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        idempotency::ClientKey,
        key::{ExtractResult, Extraction, HeaderKey, KeyRejection, LockKey, LockKeys, from_fn},
    };

    fn head(method: &str, uri: &str, keys: &[&[u8]]) -> Parts {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let (mut head, ()) = request.into_parts();
        for key in keys {
            let key = HeaderValue::from_bytes(key).unwrap();
            head.headers.append("idempotency-key", key);
        }
        head
    }

    fn post(key: &str) -> Parts {
        head("POST", "/orders", &[key.as_bytes()])
    }

    fn extract(key: &impl ScopedKey, mut parts: Parts) -> ExtractResult {
        match key.extract(&mut parts) {
            Extraction::Ready(result) => result,
            Extraction::Pending(_) => panic!("it waits"),
        }
    }

    fn one(key: &impl ScopedKey, parts: Parts) -> LockKey {
        match extract(key, parts) {
            Ok(LockKeys::One(key)) => key,
            other => panic!("not one key: {other:?}"),
        }
    }

    #[derive(Clone)]
    struct Tenant(String);

    fn tenant(parts: &Parts) -> Option<LockKey> {
        let tenant = parts.extensions.get::<Tenant>()?;
        Some(LockKey::new("tenant", &tenant.0))
    }

    fn of_tenant(mut parts: Parts, tenant: &str) -> Parts {
        parts.extensions.insert(Tenant(tenant.into()));
        parts
    }

    /// Waits once, then is another extractor.
    struct Late<E>(Arc<E>);

    impl<E: KeyExtractor> KeyExtractor for Late<E> {
        fn extract(&self, parts: &mut Parts) -> Extraction {
            let (extractor, mut parts) = (self.0.clone(), parts.clone());
            Extraction::Pending(Box::pin(async move {
                tokio::task::yield_now().await;
                let Extraction::Ready(result) = extractor.extract(&mut parts) else {
                    panic!("it waits twice");
                };
                (parts, result)
            }))
        }
    }

    #[test]
    fn a_request_is_known_by_namespace_tenant_method_path_and_key() {
        let global = IdempotencyKey::header().global_keys();
        let scoped = IdempotencyKey::header().scoped_by(tenant);
        let other_namespace = global.clone().with_namespace("checkout");
        let keys = [
            one(&global, post("abc")),
            one(&global, post("ABC")),
            one(&global, head("PATCH", "/orders", &[b"abc"])),
            one(&global, head("POST", "/orders/", &[b"abc"])),
            one(&other_namespace, post("abc")),
            one(&scoped, of_tenant(post("abc"), "a")),
            one(&scoped, of_tenant(post("abc"), "b")),
            one(&scoped, of_tenant(post("abc"), "")),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[i + 1..].contains(key), "{i}");
        }
        assert_eq!(keys[0].namespace(), "idempotency");
        assert_eq!(keys[4].namespace(), "checkout");
        // What does not count.
        assert_eq!(
            keys[0],
            one(&global, head("POST", "/orders?a=b", &[b"\"abc\""]))
        );
        assert_eq!(keys[5], one(&scoped, of_tenant(post("\"abc\""), "a")));
    }

    #[cfg(feature = "axum")]
    #[tokio::test]
    async fn one_key_is_one_request_on_a_route_whatever_its_parameters() {
        use axum::{Router, body::Body, extract::Request, middleware, routing::post};
        use tower::ServiceExt;

        let key = Arc::new(IdempotencyKey::header().global_keys());
        let show = middleware::from_fn(move |request: Request, _: middleware::Next| {
            let key = key.clone();
            async move { one(&*key, request.into_parts().0).as_str().to_owned() }
        });
        let orders = |show| Router::new().route("/{id}", post(async || {}).route_layer(show));
        let app = Router::new()
            .nest("/a", orders(show.clone()))
            .nest("/b", orders(show.clone()))
            .fallback_service(post(async || {}).layer(show));
        let get = async |uri: &str| {
            let request = Request::post(uri).header("idempotency-key", "abc");
            let response = app.clone().oneshot(request.body(Body::empty()).unwrap());
            let body = response.await.unwrap().into_body();
            axum::body::to_bytes(body, 1000).await.unwrap()
        };
        assert_eq!(get("/a/1").await, get("/a/2").await);
        assert_ne!(get("/a/1").await, get("/b/1").await);
        // Without a route, paths are told apart, and none passes for a route.
        assert_ne!(get("/c/1").await, get("/c/2").await);
        let plain = one(
            &IdempotencyKey::header().global_keys(),
            head("POST", "/a/{id}", &[b"abc"]),
        );
        assert_ne!(get("/a/1").await, plain.as_str());
    }

    #[test]
    fn a_request_without_its_key_is_refused_unless_it_may() {
        let required = IdempotencyKey::header().global_keys();
        let none = || head("POST", "/", &[]);
        let error = extract(&required, none()).unwrap_err();
        assert_eq!(error.to_string(), "missing: header `idempotency-key`");
        let renamed = required.clone().with_name("X-Request-Token");
        let error = extract(&renamed, none()).unwrap_err();
        assert_eq!(error.to_string(), "missing: header `x-request-token`");
        assert!(
            extract(&renamed, post("abc")).is_err(),
            "another header counts"
        );
        let optional = required.optional();
        assert_eq!(extract(&optional, none()).unwrap(), LockKeys::Skip);
        assert!(
            extract(&optional, post("")).is_err(),
            "it is there, and wrong"
        );
    }

    #[test]
    fn a_wrong_header_is_refused_and_told_why() {
        let key = IdempotencyKey::header()
            .with_length(2..=10)
            .global_keys()
            .optional();
        let long = [b'a'; 8192];
        for (keys, what) in [
            (&[&b"abc"[..], b"abc"][..], "must be sent once"),
            (&[b"abc, def"], "not a list"),
            (&[b""], "must not be empty"),
            (&[b"a"], "must be of 2 to 10 characters"),
            (&[&long], "must be of 2 to 10 characters"),
            (&[b"\xff\xff"], "only letters, digits"),
            (&[b"\"ab"], "not a well-formed string"),
            (&[b"\"abc\";v=1"], "without parameters"),
        ] {
            let error = extract(&key, head("POST", "/", keys)).unwrap_err();
            assert!(matches!(error, KeyRejection::Invalid { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("header `idempotency-key` ") && text.contains(what),
                "{text}"
            );
        }
    }

    #[test]
    fn no_tenant_is_never_all_tenants() {
        let key = IdempotencyKey::header().scoped_by(tenant);
        let error = extract(&key, post("abc")).unwrap_err();
        assert!(
            matches!(error, KeyRejection::Misconfigured { .. }),
            "{error}"
        );
        let several = IdempotencyKey::header()
            .scoped_by(|_: &Parts| [LockKey::new("a", 1), LockKey::new("a", 2)]);
        let error = extract(&several, post("abc")).unwrap_err();
        assert!(
            matches!(error, KeyRejection::Misconfigured { .. }),
            "{error}"
        );
        let refusing = IdempotencyKey::header()
            .scoped_by(|parts: &Parts| tenant(parts).ok_or(StatusCode::UNAUTHORIZED));
        let error = extract(&refusing, post("abc")).unwrap_err();
        assert_eq!(error.to_string(), "answered with 401 Unauthorized");
        assert!(extract(&refusing, of_tenant(post("abc"), "a")).is_ok());
        // Even a request that needs no key is not asked who it is.
        assert_eq!(
            extract(&refusing.optional(), head("POST", "/", &[])).unwrap(),
            LockKeys::Skip
        );
    }

    #[test]
    fn any_extractor_gives_keys() {
        let by_header = HeaderKey::new("delivery", "idempotency-key");
        let key = IdempotencyKey::from_extractor(by_header.clone()).global_keys();
        assert_eq!(one(&key, post("abc")), one(&key, post("abc")));
        assert_ne!(one(&key, post("abc")), one(&key, post("abd")));
        assert!(extract(&key, post("a b")).is_err());

        let absent = IdempotencyKey::from_extractor(by_header.optional()).global_keys();
        let none = || head("POST", "/", &[]);
        let error = extract(&absent, none()).unwrap_err();
        assert_eq!(error.to_string(), "missing: idempotency key");
        assert_eq!(extract(&absent.optional(), none()).unwrap(), LockKeys::Skip);

        let several = IdempotencyKey::from_extractor(|_: &Parts| {
            vec![LockKey::new("a", 1), LockKey::new("a", 2)]
        });
        let error = extract(&several.global_keys(), none()).unwrap_err();
        assert!(
            matches!(error, KeyRejection::Misconfigured { .. }),
            "{error}"
        );
    }

    #[tokio::test]
    async fn extractors_that_wait_give_the_same_and_the_head_back() {
        let late_key = || Late(Arc::new(HeaderKey::new("delivery", "idempotency-key")));
        let late_tenant = || Late(Arc::new(from_fn(tenant)));
        let at_once = IdempotencyKey::from_extractor(HeaderKey::new("delivery", "idempotency-key"))
            .scoped_by(tenant);
        let expected = one(&at_once, of_tenant(post("abc"), "a"));
        let keys: [Box<dyn KeyExtractor>; 3] = [
            Box::new(IdempotencyKey::from_extractor(late_key()).scoped_by(tenant)),
            Box::new(IdempotencyKey::from_extractor(late_key()).scoped_by(late_tenant())),
            Box::new(
                IdempotencyKey::from_extractor(HeaderKey::new("delivery", "idempotency-key"))
                    .scoped_by(late_tenant()),
            ),
        ];
        for key in keys {
            let mut parts = of_tenant(post("abc"), "a");
            let Extraction::Pending(later) = key.extract(&mut parts) else {
                panic!("it does not wait");
            };
            let (parts, result) = later.await;
            assert_eq!(result.unwrap(), LockKeys::One(expected.clone()));
            assert_eq!(parts.uri, "/orders");
            assert!(parts.extensions.get::<ClientKey>().is_some());
        }
    }

    #[test]
    fn the_handler_finds_the_clients_key() {
        let key = IdempotencyKey::header().global_keys();
        let mut parts = post("\"a \\\"b\\\"\"");
        let _ = key.extract(&mut parts);
        let found = parts.extensions.get::<ClientKey>().unwrap();
        assert_eq!(found.as_str(), "a \"b\"");
        assert_eq!(format!("{found:?}"), "ClientKey { .. }");
    }

    #[test]
    fn debug_tells_the_setting() {
        let key = IdempotencyKey::header().scoped_by(tenant);
        let text = format!("{key:?}");
        assert!(
            text.contains("idempotency-key") && text.contains("Scoped"),
            "{text}"
        );
        let global = format!("{:?}", IdempotencyKey::header().global_keys());
        assert!(global.contains("Global"), "{global}");
    }

    #[test]
    fn wrong_settings_panic() {
        type Wrong = fn();
        let wrong: [(Wrong, &str); 6] = [
            (
                || drop(IdempotencyKey::header().with_name("a b")),
                "not the name of a header",
            ),
            (
                || drop(IdempotencyKey::header().with_length(0..=9)),
                "is 0..=9, accepted",
            ),
            (
                || drop(IdempotencyKey::header().with_length(1..=256)),
                "is 1..=256, accepted",
            ),
            #[expect(clippy::reversed_empty_ranges, reason = "this is the mistake")]
            (
                || drop(IdempotencyKey::header().with_length(9..=8)),
                "is 9..=8, accepted",
            ),
            (
                || drop(IdempotencyKey::header().with_namespace("")),
                "is not usable",
            ),
            (
                || drop(IdempotencyKey::header().with_namespace("a:b")),
                "is not usable",
            ),
        ];
        for (wrong, what) in wrong {
            let panic = std::panic::catch_unwind(wrong).unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains(what), "{text}");
        }
    }

    /// Tenant, method, path, key.
    type Request4 = (Option<String>, String, String, String);

    /// Texts that look like parts of the canonical form.
    fn any_request() -> impl Strategy<Value = Request4> {
        let part = "[a1.:;#%{} ]{0,3}";
        (
            proptest::option::of(part),
            "[A1]{1,2}",
            "/[a1.:;/]{0,3}",
            "[a1.:;#%{} ]{1,3}",
        )
    }

    fn key_of((tenant_of, method, path, key): &Request4) -> LockKey {
        let quoted = format!("\"{key}\"");
        let parts = head(method, path, &[quoted.as_bytes()]);
        match tenant_of {
            None => one(&IdempotencyKey::header().global_keys(), parts),
            Some(name) => one(
                &IdempotencyKey::header().scoped_by(tenant),
                of_tenant(parts, name),
            ),
        }
    }

    proptest! {
        #[test]
        fn different_requests_never_meet(a in any_request(), b in any_request()) {
            prop_assert_eq!(key_of(&a) == key_of(&b), a == b);
        }

        #[test]
        fn nothing_moves_from_tenant_to_key(
            text in "[a1.:;#%{} ]{2,8}", cut in 1usize..7, path in "/[a1]{0,2}",
        ) {
            // The same characters, divided otherwise between the client and its tenant.
            let cut = cut.min(text.len() - 1);
            let whole = (Some(String::new()), "POST".into(), path.clone(), text.clone());
            let (tenant, key) = text.split_at(cut);
            let divided = (Some(tenant.to_owned()), "POST".into(), path, key.to_owned());
            prop_assert_ne!(key_of(&whole), key_of(&divided));
        }
    }
}
