//! Keys from a field of a JSON body.

use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE, request::Parts};
use serde_json::Value;

use super::{
    BodyKeyExtractor, ExtractResult, KeyRejection, LockKey, LockKeys, lock_key::check_namespace,
};

/// The default of [`JsonKey::with_max_body`], in bytes.
const DEFAULT_MAX_BODY: usize = 64 * 1024;

/// A key from one field of a JSON body, for `LockLayer::buffered`.
///
/// The field is named by a JSON pointer (RFC 6901) and holds a non-empty string, an integer of up
/// to 64 bits, or a boolean. Its text is the key, so `"7"` and `7` are one key; a float is refused,
/// as it has many texts. The field is required; `null` counts as absent.
///
/// | the body | the answer |
/// |---|---|
/// | is longer than [`with_max_body`](Self::with_max_body) | 413 |
/// | is not called JSON by its `content-type` (`application/json` or `application/*+json`) | 400 `key-invalid`, even if optional: a client must not leave the lock by a header |
/// | is not JSON, or the field has another type | 400 `key-invalid` |
/// | is empty, or has no such field | 400 `key-missing`; unlocked if [`optional`](Self::optional) |
///
/// Of a field that occurs twice in one object the last counts, as in `serde_json::Value`.
/// Clients choose the value: where tenants must not meet, use
/// [`body_from_fn`](super::body_from_fn) and make the tenant a part of the key.
///
/// ```
/// use bytes::Bytes;
/// use tower_lock::{LockKey, key::{BodyKeyExtractor, JsonKey, LockKeys}};
///
/// let order = JsonKey::new("order", "/order/id");
///
/// let request = http::Request::post("/pay").header("content-type", "application/json");
/// let (head, body) = request.body(Bytes::from(r#"{"order":{"id":42}}"#)).unwrap().into_parts();
/// assert_eq!(order.extract(&head, &body).unwrap(), LockKeys::One(LockKey::new("order", 42)));
/// ```
#[derive(Clone, Debug)]
pub struct JsonKey {
    namespace: Box<str>,
    pointer: Box<str>,
    max_body: usize,
    optional: bool,
}

impl JsonKey {
    /// A key in this namespace from the field at this JSON pointer, such as `/order/id`.
    ///
    /// # Panics
    ///
    /// If the namespace is not 1 to 64 characters of `[A-Za-z0-9_.-]`, or the pointer is not one:
    /// it must be empty (the whole body) or start with `/`, and `~` stands only in `~0` and `~1`.
    #[track_caller]
    pub fn new(namespace: &str, pointer: &str) -> Self {
        assert!(
            is_pointer(pointer),
            "{pointer:?} is not a JSON pointer: it must start with `/` (such as `/order/id`), \
             `~` is written `~0` and a slash within a name `~1`"
        );
        Self {
            namespace: check_namespace(namespace),
            pointer: pointer.into(),
            max_body: DEFAULT_MAX_BODY,
            optional: false,
        }
    }

    /// A request whose body is empty or lacks the field runs unlocked. By default it is answered
    /// with 400.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// The longest body that is buffered, in bytes; a longer one is answered with 413. Default
    /// 64 KiB. Every request that waits for its lock holds its body in memory.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    fn absent(&self) -> ExtractResult {
        if self.optional {
            Ok(LockKeys::Skip)
        } else {
            Err(KeyRejection::missing(self.field()))
        }
    }

    fn field(&self) -> String {
        if self.pointer.is_empty() {
            return "JSON body".into();
        }
        format!("JSON field `{}`", self.pointer)
    }
}

impl BodyKeyExtractor for JsonKey {
    fn max_body(&self) -> usize {
        self.max_body
    }

    fn extract(&self, parts: &Parts, body: &Bytes) -> ExtractResult {
        if body.is_empty() {
            return self.absent();
        }
        if !is_json(&parts.headers) {
            return Err(KeyRejection::invalid(
                "the body must be JSON, with the content type `application/json`",
            ));
        }
        // The parser's own message is not for clients: it can quote the body.
        let document: Value = serde_json::from_slice(body)
            .map_err(|_| KeyRejection::invalid("the body is not well-formed JSON"))?;
        let key = match document.pointer(&self.pointer) {
            None | Some(Value::Null) => return self.absent(),
            Some(Value::String(text)) if !text.is_empty() => {
                LockKey::from_values(&self.namespace, [text])
            }
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
                LockKey::new(&self.namespace, number)
            }
            Some(Value::Bool(flag)) => LockKey::new(&self.namespace, flag),
            Some(_) => {
                return Err(KeyRejection::invalid(format!(
                    "{} must be a non-empty string, an integer of up to 64 bits or a boolean",
                    self.field()
                )));
            }
        };
        Ok(key.into())
    }
}

/// RFC 6901, section 3.
pub(crate) fn is_pointer(pointer: &str) -> bool {
    let escapes_right = pointer
        .split('~')
        .skip(1)
        .all(|rest| rest.starts_with(['0', '1']));
    escapes_right && (pointer.is_empty() || pointer.starts_with('/'))
}

/// Whether the one `content-type` says JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else {
        return false;
    };
    let Ok(value) = value.to_str() else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence
        .strip_prefix("application/")
        .is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}
