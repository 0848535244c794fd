//! What is locked: namespaced, canonical, unambiguous bytes.

use std::{
    fmt::{self, Write as _},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{Arc, OnceLock},
};

use sha2::{Digest, Sha256};

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
    /// with a hash if too long, so that it stays unambiguous.
    pub fn new(namespace: &str, value: impl fmt::Display) -> Self {
        Self::build(namespace, |values| values.push_display(&value))
    }

    /// A key of several values, in this order; of none, for a lock of the namespace itself.
    pub fn from_values<V: AsRef<[u8]>>(
        namespace: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self::build(namespace, |out| {
            for value in values {
                out.push(value.as_ref());
            }
        })
    }

    fn build(namespace: &str, fill: impl FnOnce(&mut Values)) -> Self {
        let mut values = Values::default();
        fill(&mut values);
        let mut text = String::with_capacity(namespace.len() + values.plain.len() + 2);
        push_namespace(&mut text, namespace);
        text.push(':');
        values.finish(&mut text);
        text.push(';');
        Self::from_canonical(&text)
    }

    fn from_canonical(text: &str) -> Self {
        static STATE: OnceLock<RandomState> = OnceLock::new();
        let hash = STATE.get_or_init(RandomState::new).hash_one(text);
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

/// The values as they are written, and as they are hashed if they cannot stand as they are.
#[derive(Default)]
struct Values {
    plain: String,
    scratch: String,
    hashed: Option<Sha256>,
}

impl Values {
    fn push_display(&mut self, value: &dyn fmt::Display) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        // Writing to a String fails only if the Display itself does; what it wrote still counts.
        let _ = write!(scratch, "{value}");
        self.push(scratch.as_bytes());
        self.scratch = scratch;
    }

    fn push(&mut self, value: &[u8]) {
        if self.hashed.is_none() {
            match std::str::from_utf8(value) {
                Ok(value) if value.bytes().all(stands_plain) => {
                    let _ = write!(self.plain, "{}.{value}", value.len());
                    if self.plain.len() > MAX_VALUES {
                        self.start_hash();
                    }
                    return;
                }
                _ => self.start_hash(),
            }
        }
        if let Some(hash) = &mut self.hashed {
            hash.update(format!("{}.", value.len()).as_bytes());
            hash.update(value);
        }
    }

    fn start_hash(&mut self) {
        self.hashed = Some(Sha256::new_with_prefix(self.plain.as_bytes()));
    }

    fn finish(self, text: &mut String) {
        match self.hashed {
            None => text.push_str(&self.plain),
            Some(hash) => {
                // A plain value starts with a digit, so the two forms never meet.
                text.push('#');
                push_hex(text, &hash.finalize());
            }
        }
    }
}

/// Whether a byte of a value stands as it is: no backend gives it a meaning.
fn stands_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'/' | b'\\' | b'{' | b'}' | b';' | b'*' | b'?')
}

fn push_namespace(text: &mut String, namespace: &str) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if (1..=MAX_NAMESPACE).contains(&namespace.len()) && namespace.bytes().all(plain) {
        text.push_str(namespace);
        return;
    }
    let mut encoded = String::from("%");
    for byte in namespace.bytes() {
        if plain(byte) {
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
    text.push_str(&encoded);
}

fn push_hex(text: &mut String, bytes: &[u8]) {
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
