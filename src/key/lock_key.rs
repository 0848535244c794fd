//! What is locked: namespaced, canonical, unambiguous bytes.

use std::{
    fmt::{self, Write as _},
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use sha2::{Digest, Sha256};

use crate::sync::HashState;

/// The longest namespace that stands in a key as it is.
const MAX_NAMESPACE: usize = 64;
/// The longest value part that stands in a key as it is; a longer one is hashed.
const MAX_VALUES: usize = 200;

/// What is locked: a namespace and values, never a method or a route, so that
/// `/orders/7/pay` and `/orders/7/refund` can exclude each other.
///
/// The canonical form is ASCII without spaces, slashes or braces, and prefix-free: two different
/// keys never have the same form, and none is the beginning of another. Every value is written
/// with its length (`order:1.7;`), so no value can pretend to be two. Values that are longer than
/// 200 bytes together, or that hold other characters, are replaced by their SHA-256.
///
/// Cloning is cheap. `Debug` shows the namespace only: values come from requests.
///
/// ```
/// use tower_lock::LockKey;
///
/// let key = LockKey::new("order", 7);
/// assert_eq!(key.as_str(), "order:1.7;");
/// assert_eq!(key.namespace(), "order");
///
/// let pair = LockKey::from_values("seat", ["hall 3", "12"]);
/// assert_ne!(pair, LockKey::from_values("seat", ["hall", "312"]));
/// ```
#[derive(Clone)]
pub struct LockKey {
    text: Arc<str>,
    hash: u64,
}

impl LockKey {
    /// A key of one value.
    ///
    /// A namespace is `[A-Za-z0-9_.-]`, 1 to 64 bytes; any other is percent-encoded, and cut
    /// with a hash if too long, so that it stays unambiguous. (The ready-made extractors refuse
    /// any other when they are built.)
    pub fn new(namespace: &str, value: impl fmt::Display) -> Self {
        let mut text = Scratch::new();
        // Writing fails only if the Display itself does; what it wrote still counts.
        let _ = write!(text, "{value}");
        Self::from_values(namespace, [text.bytes()])
    }

    /// A key of several values, in this order; of none, for a lock of the namespace itself.
    pub fn from_values<V: AsRef<[u8]>>(
        namespace: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let mut writer = Writer::new(namespace);
        for value in values {
            writer.push(value.as_ref());
        }
        Self::from_canonical(writer.finish())
    }

    fn from_canonical(text: &str) -> Self {
        static STATE: OnceLock<HashState> = OnceLock::new();
        let hash = STATE.get_or_init(HashState::default).hash_one(text);
        Self {
            text: text.into(),
            hash,
        }
    }

    /// The canonical form, for backends and operators. It holds values of requests: not for logs.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The namespace, for logs and metrics.
    pub fn namespace(&self) -> &str {
        self.text.split(':').next().unwrap_or_default()
    }

    /// A hash for tables of this process, computed once; differs between processes.
    pub(crate) fn hash64(&self) -> u64 {
        self.hash
    }
}

/// A formatted value, without an allocation if it is short, as a number or a UUID is.
struct Scratch {
    short: [u8; 40],
    len: usize,
    /// The whole of it, once it is longer; else empty.
    long: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        Self {
            short: [0; 40],
            len: 0,
            long: Vec::new(),
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.len]
        } else {
            &self.long
        }
    }
}

impl fmt::Write for Scratch {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.len + part.len();
        if self.long.is_empty() && end <= self.short.len() {
            self.short[self.len..end].copy_from_slice(part.as_bytes());
            self.len = end;
            return Ok(());
        }
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(part.as_bytes());
        Ok(())
    }
}

/// Writes the canonical form; the values are hashed if they cannot stand as they are.
///
/// On the stack: a key is made for every request, and allocates once, when it is done.
struct Writer {
    text: [u8; MAX_NAMESPACE + 1 + MAX_VALUES + 1],
    len: usize,
    /// Where the values begin.
    start: usize,
    hashed: Option<Sha256>,
}

impl Writer {
    fn new(namespace: &str) -> Self {
        let mut writer = Self {
            text: [0; MAX_NAMESPACE + 1 + MAX_VALUES + 1],
            len: 0,
            start: 0,
            hashed: None,
        };
        if is_namespace(namespace) {
            writer.put(namespace.as_bytes());
        } else {
            writer.put(encoded_namespace(namespace).as_bytes());
        }
        writer.put(b":");
        writer.start = writer.len;
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        self.text[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push(&mut self, value: &[u8]) {
        let mut digits = [0; 20];
        let length = decimal(value.len(), &mut digits);
        if self.hashed.is_none() {
            let end = self.len + length.len() + 1 + value.len();
            if end - self.start <= MAX_VALUES && value.iter().copied().all(stands_plain) {
                self.put(length);
                self.put(b".");
                self.put(value);
                return;
            }
            let plain = &self.text[self.start..self.len];
            self.hashed = Some(Sha256::new_with_prefix(plain));
            self.len = self.start;
        }
        if let Some(hash) = &mut self.hashed {
            hash.update(length);
            hash.update(b".");
            hash.update(value);
        }
    }

    fn finish(&mut self) -> &str {
        if let Some(hash) = self.hashed.take() {
            let mut hex = String::new();
            push_hex(&mut hex, &hash.finalize());
            // A plain value starts with a digit, so the two forms never meet.
            self.put(b"#");
            self.put(hex.as_bytes());
        }
        self.put(b";");
        std::str::from_utf8(&self.text[..self.len]).expect("only ASCII was written")
    }
}

/// The digits of a number, at the end of the buffer.
fn decimal(mut number: usize, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

/// Whether a byte of a value stands as it is: no backend gives it a meaning.
fn stands_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'/' | b'\\' | b'{' | b'}' | b';' | b'*' | b'?')
}

/// The namespace of a ready-made extractor: a wrong one is a mistake of the caller of the
/// constructor, at whose line this panics.
#[track_caller]
pub(crate) fn check_namespace(namespace: &str) -> Box<str> {
    assert!(
        is_namespace(namespace),
        "the namespace {namespace:?} of a lock key is not usable: \
         1 to {MAX_NAMESPACE} characters of A-Z, a-z, 0-9, `_`, `.` and `-` are"
    );
    namespace.into()
}

fn is_namespace(namespace: &str) -> bool {
    (1..=MAX_NAMESPACE).contains(&namespace.len()) && namespace.bytes().all(stands_in_namespace)
}

fn stands_in_namespace(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn encoded_namespace(namespace: &str) -> String {
    let mut encoded = String::from("%");
    for byte in namespace.bytes() {
        if stands_in_namespace(byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    if encoded.len() > MAX_NAMESPACE {
        encoded.truncate(MAX_NAMESPACE - 34);
        encoded.push_str("%-");
        push_hex(&mut encoded, &Sha256::digest(namespace.as_bytes())[..16]);
    }
    encoded
}

pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text == other.text
    }
}

impl Eq for LockKey {}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The canonical order in which several keys are acquired; the same in every process.
impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKey")
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}
