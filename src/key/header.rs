//! Keys from a request header.

use http::{HeaderName, request::Parts};

use super::{
    ExtractResult, Extraction, KeyExtractor, KeyRejection, LockKey, LockKeys,
    lock_key::check_namespace,
};

/// The longest header value that is a key, in bytes.
const MAX_VALUE: usize = 255;

/// A key from one header (or gRPC metadata entry), such as `x-order-id`.
///
/// The header is required, once, with 1 to 255 visible ASCII characters (no spaces); any other
/// request is answered with 400. The value is the key as it is: case counts.
///
/// A client chooses its headers, so it chooses what it locks: two tenants that send the same value
/// exclude each other. Where that matters, make the authenticated tenant a part of the key by
/// [`from_fn`](super::from_fn). Do not use a credential: backends and their operators see keys.
///
/// ```
/// use tower_lock::{KeyExtractor, LockKey, key::{Extraction, HeaderKey, LockKeys}};
///
/// let order = HeaderKey::new("order", "x-order-id");
///
/// let request = http::Request::post("/pay").header("X-Order-Id", "42").body(()).unwrap();
/// let (mut head, _) = request.into_parts();
/// let Extraction::Ready(Ok(keys)) = order.extract(&mut head) else { panic!() };
/// assert_eq!(keys, LockKeys::One(LockKey::new("order", 42)));
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey {
    namespace: Box<str>,
    name: HeaderName,
    optional: bool,
}

impl HeaderKey {
    /// A key in this namespace from this header.
    ///
    /// # Panics
    ///
    /// If the namespace is not 1 to 64 characters of `[A-Za-z0-9_.-]`, or the header name is not
    /// one by HTTP's rules.
    #[track_caller]
    pub fn new(namespace: &str, header: impl AsRef<str>) -> Self {
        let header = header.as_ref();
        let Ok(name) = HeaderName::from_bytes(header.as_bytes()) else {
            panic!(
                "{header:?} is not the name of a header: \
                 letters, digits and some of HTTP's marks such as `-` are accepted"
            )
        };
        Self {
            namespace: check_namespace(namespace),
            name,
            optional: false,
        }
    }

    /// A request without the header runs unlocked. By default it is answered with 400.
    ///
    /// A header that is there must still be right.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    fn keys(&self, parts: &Parts) -> ExtractResult {
        let mut values = parts.headers.get_all(&self.name).iter();
        let Some(value) = values.next() else {
            return if self.optional {
                Ok(LockKeys::Skip)
            } else {
                Err(KeyRejection::missing(format!("header `{}`", self.name)))
            };
        };
        let value = value.as_bytes();
        let right = values.next().is_none()
            && (1..=MAX_VALUE).contains(&value.len())
            && value.iter().all(u8::is_ascii_graphic);
        if !right {
            return Err(KeyRejection::invalid(format!(
                "header `{}` must be sent once, with 1 to {MAX_VALUE} visible ASCII characters",
                self.name
            )));
        }
        Ok(LockKey::from_values(&self.namespace, [value]).into())
    }
}

impl KeyExtractor for HeaderKey {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        Extraction::Ready(self.keys(parts))
    }
}
