//! The key that a client sent, and how it is read from a header.

use std::{borrow::Cow, fmt, ops::RangeInclusive, sync::Arc};

/// The idempotency key of a request as its client chose it, in the extensions of every request
/// that has one. Of a key by [`IdempotencyKey::from_extractor`](super::IdempotencyKey::from_extractor)
/// it is the canonical form of the extractor's key. Handlers of axum take `Extension<ClientKey>`.
///
/// Pass it on to whoever is called for this request and knows idempotency keys of its own, such as
/// a payment provider: then a run that is repeated after a crash takes effect once there too. It is
/// unique only within its tenant and operation. Cloning is cheap; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientKey(Arc<str>);

impl ClientKey {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The key: of a structured-field string what is between the quotes. Not for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientKey").finish_non_exhaustive()
    }
}

/// The bytes that a structured-field string (RFC 9651, section 3.3.3) may hold between its quotes.
const STRING: RangeInclusive<u8> = b' '..=b'~';

/// Reads a key from the value of a header, or says what the header must be.
///
/// A string of RFC 9651 and the same text without quotes are one key. Without quotes more is
/// accepted than RFC 9651's token, which may not begin with a digit: UUIDs do.
pub(super) fn parse(
    value: &[u8],
    length: &RangeInclusive<usize>,
) -> Result<ClientKey, Cow<'static, str>> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return Err("must not be empty".into());
    }
    let key = match value.strip_prefix(b"\"") {
        Some(rest) => string(rest, *length.end())?,
        None => bare(value)?.into(),
    };
    if !length.contains(&key.len()) {
        return Err(wrong_length(length));
    }
    Ok(ClientKey::new(&key))
}

fn wrong_length(length: &RangeInclusive<usize>) -> Cow<'static, str> {
    let (min, max) = (length.start(), length.end());
    format!("must be of {min} to {max} characters").into()
}

/// What follows the opening quote. Reads no further than the longest key.
fn string(rest: &[u8], max: usize) -> Result<String, Cow<'static, str>> {
    const MALFORMED: &str = "is not a well-formed string: a quote stands at both ends, \
         and between them only visible ASCII characters and spaces, with `\\\"` for a quote and \
         `\\\\` for a backslash";
    let mut key = String::new();
    let mut bytes = rest.iter();
    loop {
        let byte = match bytes.next() {
            Some(b'"') => break,
            Some(b'\\') => match bytes.next() {
                Some(&escaped @ (b'"' | b'\\')) => escaped,
                _ => return Err(MALFORMED.into()),
            },
            Some(&byte) if STRING.contains(&byte) => byte,
            _ => return Err(MALFORMED.into()),
        };
        if key.len() > max {
            // Long enough to be refused for its length.
            return Ok(key);
        }
        key.push(char::from(byte));
    }
    match bytes.as_slice().trim_ascii_start().first() {
        None => Ok(key),
        Some(b',') => Err(LIST.into()),
        Some(b';') => Err(PARAMETERS.into()),
        Some(_) => Err(MALFORMED.into()),
    }
}

const LIST: &str = "must be a single key, not a list";
const PARAMETERS: &str = "must be a single key, without parameters";

fn bare(value: &[u8]) -> Result<&str, Cow<'static, str>> {
    // A proxy may have joined two lines of the header into one.
    if value.contains(&b',') {
        return Err(LIST.into());
    }
    if value.contains(&b';') {
        return Err(PARAMETERS.into());
    }
    std::str::from_utf8(value)
        .ok()
        .filter(|key| key.bytes().all(stands_bare))
        .ok_or(Cow::Borrowed(
            "may without quotes hold only letters, digits and !#$%&'*+-./:=@^_`|~",
        ))
}

/// The characters of RFC 9651's token, and two that other keys in use have.
fn stands_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/=@".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: RangeInclusive<usize> = 1..=255;

    fn key(value: &str) -> Result<String, String> {
        parse(value.as_bytes(), &ANY)
            .map(|key| key.as_str().to_owned())
            .map_err(Cow::into_owned)
    }

    /// As RFC 9651, section 4.1.6, writes a string.
    fn quoted(text: &str) -> String {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{escaped}\"")
    }

    #[test]
    fn a_string_and_the_bare_text_are_one_key() {
        let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
        assert_eq!(key(uuid).unwrap(), uuid);
        assert_eq!(key(&quoted(uuid)).unwrap(), uuid);
        assert_eq!(key(&format!("  {}\t", quoted(uuid))).unwrap(), uuid);
        for bare in [
            "a",
            "0",
            "*token/:",
            "aGVsbG8=",
            "a.b_c~d",
            "KG5LxwFBepaKHyUD",
        ] {
            assert_eq!(key(bare).unwrap(), bare);
            assert_eq!(key(&quoted(bare)).unwrap(), bare);
        }
        assert_eq!(key(r#""a \"b\" \\ c;d,e""#).unwrap(), r#"a "b" \ c;d,e"#);
        assert_ne!(key("abc").unwrap(), key("ABC").unwrap());
    }

    #[test]
    fn what_is_no_key_is_refused_and_told_why() {
        let table = [
            ("", "empty"),
            ("   ", "empty"),
            (r#""""#, "1 to 255"),
            ("a,b", "list"),
            (r#""a", "b""#, "list"),
            (r#""a","b""#, "list"),
            ("a;q=1", "parameters"),
            (r#""a";q=1"#, "parameters"),
            (r#""a" ;q"#, "parameters"),
            (r#""a"#, "well-formed"),
            (r#"""#, "well-formed"),
            (r#"a""#, "without quotes"),
            (r#""a"b"#, "well-formed"),
            (r#""a\b""#, "well-formed"),
            (r#""a\"#, "well-formed"),
            ("\"a\tb\"", "well-formed"),
            ("\"é\"", "well-formed"),
            ("a b", "without quotes"),
            ("a\\b", "without quotes"),
            ("(a)", "without quotes"),
            ("{a}", "without quotes"),
            ("é", "without quotes"),
            ("'a'<b>", "without quotes"),
        ];
        for (value, word) in table {
            let error = key(value).unwrap_err();
            assert!(error.contains(word), "{value}: {error}");
        }
        for raw in [&b"\xff"[..], b"\"\xff\"", b"a\0", b"\"\x7f\"", b"a\r\nb"] {
            assert!(parse(raw, &ANY).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn length_is_that_of_the_key_not_of_its_form() {
        let longest = "\"".repeat(255);
        assert_eq!(key(&quoted(&longest)).unwrap(), longest);
        for long in ["a".repeat(256), "a".repeat(8192)] {
            assert!(key(&long).unwrap_err().contains("1 to 255"));
            assert!(key(&quoted(&long)).unwrap_err().contains("1 to 255"));
        }
        let length = 16..=20;
        assert!(parse(&[b'a'; 15], &length).is_err());
        assert!(parse(&[b'a'; 16], &length).is_ok());
        assert!(parse(&[b'a'; 20], &length).is_ok());
        assert!(parse(&[b'a'; 21], &length).is_err());
    }

    #[test]
    fn a_refusal_never_quotes_the_value() {
        for value in ["secret,", "secret;", "\"secret", "sec ret", "\"secret\"x"] {
            assert!(!key(value).unwrap_err().contains("sec"), "{value}");
        }
    }

    proptest! {
        #[test]
        fn every_string_is_read_as_it_was_written(text in "[ -~]{1,255}") {
            prop_assert_eq!(key(&quoted(&text)).unwrap(), text);
        }

        #[test]
        fn bare_text_is_itself_and_the_same_as_its_string(
            text in "[A-Za-z0-9!#$%&'*+.^_`|~:/=@-]{1,255}"
        ) {
            prop_assert_eq!(key(&text).unwrap(), text.clone());
            prop_assert_eq!(key(&quoted(&text)).unwrap(), text);
        }

        #[test]
        fn no_value_panics(value in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(key) = parse(&value, &ANY) {
                prop_assert!(ANY.contains(&key.as_str().len()));
                prop_assert!(key.as_str().bytes().all(|b| STRING.contains(&b)));
            }
        }
    }
}
