//! Keys from the path, by axum's router.

use std::{
    borrow::Cow,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::extract::{
    FromRequestParts, MatchedPath, OriginalUri, RawPathParams, rejection::RawPathParamsRejection,
};
use http::{Uri, request::Parts};
use percent_encoding::percent_decode;

use super::{
    ExtractResult, Extraction, KeyExtractor, KeyRejection, LockKey, LockKeys,
    lock_key::check_namespace,
};

/// A key from parameters of the matched route, such as `id` of `/orders/{id}/pay`.
///
/// Values are percent-decoded as the handler's `Path` sees them: `/orders/42` and `/orders/%34%32`
/// are one key. Case, and everything else, counts as it is: `/orders/42` and `/orders/042` are two
/// keys, so where the handler parses a number, derive the key from the parsed value, by
/// [`from_extractors`](super::from_extractors). Method, route and prefix do not
/// count: `/orders/{id}/pay` and `/orders/{id}/refund` exclude each other, and so do two nested
/// routers that use the same namespace.
///
/// Put the layer on the route (`post(pay).route_layer(..)`), where the parameters are known.
///
/// | the request | is |
/// |---|---|
/// | matched a route with the parameter | locked |
/// | matched a route without it, or with two of that name | answered with 500 `lock-misconfigured`, so that a misspelt name does not unlock a route; unlocked if absent and [`optional`](Self::optional) |
/// | matched no route (404) | unlocked |
/// | never met an axum `Router` (the layer is around the whole of it) | answered with 500 `lock-misconfigured` |
/// | has a parameter that is not UTF-8 when decoded | answered with 400 `key-invalid` |
///
/// ```
/// use tower_lock::key::PathKey;
///
/// let order = PathKey::new("order", "id"); // for /orders/{id}/pay
/// let seat = PathKey::several("seat", ["hall", "seat"]); // for /halls/{hall}/seats/{seat}
/// # let _: [PathKey; 2] = [order, seat];
/// ```
#[derive(Clone, Debug)]
pub struct PathKey {
    namespace: Box<str>,
    params: Box<[Box<str>]>,
    optional: bool,
}

impl PathKey {
    /// A key in this namespace from this parameter: the name between the braces.
    ///
    /// # Panics
    ///
    /// If the namespace is not 1 to 64 characters of `[A-Za-z0-9_.-]`, or the parameter's name is
    /// empty or holds one of `{}*/`.
    #[track_caller]
    pub fn new(namespace: &str, param: &str) -> Self {
        Self::several(namespace, [param])
    }

    /// One key from several parameters, in this order.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and if there is no parameter or one is named twice.
    #[track_caller]
    pub fn several<P: AsRef<str>>(namespace: &str, params: impl IntoIterator<Item = P>) -> Self {
        let namespace = check_namespace(namespace);
        let mut names: Vec<Box<str>> = Vec::new();
        for param in params {
            let param = param.as_ref();
            assert!(
                !param.is_empty() && !param.contains(['{', '}', '*', '/']),
                "{param:?} is not the name of a path parameter: \
                 give the name between the braces, `id` for `/orders/{{id}}`"
            );
            assert!(
                names.iter().all(|name| **name != *param),
                "the path parameter {param:?} is named twice: each counts once"
            );
            names.push(param.into());
        }
        assert!(
            !names.is_empty(),
            "a key from the path needs the name of at least one path parameter"
        );
        Self {
            namespace,
            params: names.into(),
            optional: false,
        }
    }

    /// A request whose route lacks (one of) the parameters runs unlocked. By default it is
    /// answered with 500, as a route without its parameter is a mistake.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    fn keys(&self, parts: &mut Parts) -> ExtractResult {
        let params = match raw_params(parts) {
            Ok(params) => params,
            Err(Some(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(KeyRejection::invalid(
                    "the parameters of the path must be UTF-8 when percent-decoded",
                ));
            }
            Err(_) => return self.absent(parts, &self.params[0]),
        };
        let mut problem = None;
        let values = self.params.iter().map_while(|name| {
            let mut named = params.iter().filter(|(param, _)| *param == &**name);
            match (named.next(), named.next()) {
                (Some((_, value)), None) => Some(value),
                (found, _) => {
                    problem = Some((name, found.is_some()));
                    None
                }
            }
        });
        let key = LockKey::from_values(&self.namespace, values);
        match problem {
            None => Ok(key.into()),
            Some((name, false)) => self.absent(parts, name),
            Some((name, true)) => Err(KeyRejection::misconfigured(format!(
                "the route {} has two parameters `{{{name}}}`: rename one, \
                 so that it is clear which is the lock key `{}`",
                route(parts).unwrap_or("of this request"),
                self.namespace
            ))),
        }
    }

    #[cold]
    fn absent(&self, parts: &Parts, name: &str) -> ExtractResult {
        if parts.extensions.get::<OriginalUri>().is_none() {
            // Every axum router leaves the original URI before anything that is inside of it runs.
            return Err(KeyRejection::misconfigured(format!(
                "the lock key `{}` comes from the path parameter `{name}`, but the lock layer is \
                 outside of axum's router: put it on the route by `MethodRouter::route_layer`",
                self.namespace
            )));
        }
        match route(parts) {
            Some(route) if !self.optional => Err(KeyRejection::misconfigured(format!(
                "the route {route} has no parameter `{{{name}}}` for the lock key `{}`: \
                 correct the name, or declare the key `.optional()`",
                self.namespace
            ))),
            _ => Ok(LockKeys::Skip),
        }
    }
}

impl KeyExtractor for PathKey {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        Extraction::Ready(self.keys(parts))
    }
}

/// The router's parameters. axum gives them to extractors only, and this one never waits.
fn raw_params(parts: &mut Parts) -> Result<RawPathParams, Option<RawPathParamsRejection>> {
    let future = pin!(RawPathParams::from_request_parts(parts, &()));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.map_err(Some),
        Poll::Pending => Err(None),
    }
}

fn route(parts: &Parts) -> Option<&str> {
    parts
        .extensions
        .get::<MatchedPath>()
        .map(|path| path.as_str())
}

/// A key from the original path and the query, for what depends on nothing else of the request.
///
/// The path is the one that the client sent, also within nested routers: `/a/orders/42` and
/// `/b/orders/42` are two keys. Method and host do not count. Two requests have one key if these
/// are the same:
///
/// - the path's segments, each percent-decoded: `%34%32` is `42`, but `a%2Fb` is not `a/b`.
///   A slash at the end, `//`, `..` and case count as they are;
/// - the query's names and values, decoded as HTML forms are (`+` and `%20` are one, `?a` is `?a=`,
///   empty pairs and an empty query are nothing), sorted by name. Values of the same name keep
///   their order: `?id=1&id=2` is not `?id=2&id=1`. [`keep_query_order`](Self::keep_query_order)
///   does not sort.
///
/// Clients choose the query, and so can make as many keys as they like. Answers that differ by
/// user or tenant need these in the key: see [`from_extractors`](super::from_extractors).
///
/// ```
/// use tower_lock::{KeyExtractor, key::{Extraction, PathAndQueryKey}};
///
/// let report = PathAndQueryKey::new("report");
/// let keys = |uri: &str| {
///     let (mut head, _) = http::Request::get(uri).body(()).unwrap().into_parts();
///     let Extraction::Ready(Ok(keys)) = report.extract(&mut head) else { panic!() };
///     keys
/// };
/// assert_eq!(keys("/reports/7?from=mon&to=fri"), keys("/reports/%37?to=fri&from=mon"));
/// assert_ne!(keys("/reports/7"), keys("/reports/7/"));
/// ```
#[derive(Clone, Debug)]
pub struct PathAndQueryKey {
    namespace: Box<str>,
    keep_query_order: bool,
}

impl PathAndQueryKey {
    /// A key in this namespace.
    ///
    /// # Panics
    ///
    /// If the namespace is not 1 to 64 characters of `[A-Za-z0-9_.-]`.
    #[track_caller]
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: check_namespace(namespace),
            keep_query_order: false,
        }
    }

    /// The order of the query's pairs counts: `?a=1&b=2` is not `?b=2&a=1`. By default they are
    /// sorted by name.
    #[must_use]
    pub fn keep_query_order(mut self) -> Self {
        self.keep_query_order = true;
        self
    }

    fn key(&self, uri: &Uri) -> LockKey {
        let segments = uri.path().split('/').map(|part| decode(part.as_bytes()));
        let mut values: Vec<Cow<'_, [u8]>> = segments.collect();
        // The number of segments comes first, so that no segment can pass for a query.
        values.insert(0, Cow::Owned(values.len().to_string().into_bytes()));
        let mut pairs: Vec<_> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode_form(name), decode_form(value))
            })
            .collect();
        if !self.keep_query_order {
            // Stable, so values of one name keep their order.
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        values.extend(pairs.into_iter().flat_map(|(name, value)| [name, value]));
        LockKey::from_values(&self.namespace, values)
    }
}

impl KeyExtractor for PathAndQueryKey {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        // A nested router has cut its prefix from the head's own URI.
        let original = parts.extensions.get::<OriginalUri>();
        let uri = original.map_or(&parts.uri, |original| &original.0);
        Extraction::Ready(Ok(self.key(uri).into()))
    }
}

fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(text).into()
}

fn decode_form(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(decode(spaced.as_bytes()).into_owned());
    }
    decode(text.as_bytes())
}
