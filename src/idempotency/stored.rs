//! What stands in the store for an idempotency key.

use std::{error::Error, fmt};

use bytes::Bytes;
use http::StatusCode;

use super::fingerprint::Fingerprint;
use crate::replay::{Corrupt, Reader, StoredResponse, Writer};

/// What stands in the store for an idempotency key: that a request was begun, or how it ended.
///
/// [`encode`](Self::encode) and [`decode`](Self::decode) turn it into bytes and back. The bytes say
/// what they are and by which version of this crate they can be read, so that instances of two
/// versions can share a store; they are the same on every machine.
///
/// | bytes | what |
/// |---|---|
/// | 2 | `TL` |
/// | 1 | the version of the form, 1 |
/// | 1 | what follows: 0 begun, 1 a response, 2 a response with trailers, 3 a tombstone |
/// | 32 | the fingerprint of the request |
/// | 2 | of the three that ended: the status, big-endian |
/// | | of a response: headers, body, trailers if it has them |
///
/// A length or count is a LEB128 number, as short as it can be. Headers and trailers: the count of
/// names; for each of them its length and text in lower case, the count of its values, and for each
/// of these twice its length, plus 1 if it is sensitive, and its bytes. The body: its length and
/// bytes.
///
/// ```
/// use bytes::Bytes;
/// use http::StatusCode;
/// use tower_lock::idempotency::{FingerprintOf, Stored, StoredOutcome, StoredResponse};
///
/// let (head, ()) = http::Request::post("/checkout").body(()).unwrap().into_parts();
/// let fingerprint = FingerprintOf::body().fingerprint(&head, b"cart 7").unwrap();
///
/// let mut response = StoredResponse::new(StatusCode::CREATED, Bytes::from("order 42"));
/// response.headers.insert("location", "/orders/42".parse().unwrap());
/// let stored = Stored::new(fingerprint, StoredOutcome::Response(response));
/// assert_eq!(Stored::decode(stored.encode()).unwrap(), stored);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Of the request that came first.
    pub fingerprint: Fingerprint,
    /// How far it came.
    pub outcome: StoredOutcome,
}

/// How far the first request of a key came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredOutcome {
    /// It was begun, and has not said how it ended.
    Begun,
    /// It ended with this response, which is replayed.
    Response(StoredResponse),
    /// It ended, and its response could not be kept.
    Tombstone {
        /// The status of the response.
        original_status: StatusCode,
    },
}

const MAGIC: [u8; 2] = *b"TL";
const VERSION: u8 = 1;

const BEGUN: u8 = 0;
const RESPONSE: u8 = 1;
const RESPONSE_WITH_TRAILERS: u8 = 2;
const TOMBSTONE: u8 = 3;

impl Stored {
    /// How many bytes a store must take at least: those of a tombstone.
    pub const MIN_BYTES: usize = MAGIC.len() + 2 + Fingerprint::LENGTH + 2;

    /// What stands for a request of this fingerprint.
    pub fn new(fingerprint: Fingerprint, outcome: StoredOutcome) -> Self {
        Self {
            fingerprint,
            outcome,
        }
    }

    /// The bytes for the store.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.capacity());
        writer.raw(&MAGIC);
        writer.byte(VERSION);
        let mut start = |kind| {
            writer.byte(kind);
            writer.raw(self.fingerprint.as_bytes());
        };
        match &self.outcome {
            StoredOutcome::Begun => start(BEGUN),
            StoredOutcome::Tombstone { original_status } => {
                start(TOMBSTONE);
                writer.short(original_status.as_u16());
            }
            StoredOutcome::Response(response) => {
                start(match response.trailers {
                    None => RESPONSE,
                    Some(_) => RESPONSE_WITH_TRAILERS,
                });
                response.write(&mut writer);
            }
        }
        writer.finish()
    }

    /// Enough for most, so that bodies are copied once.
    fn capacity(&self) -> usize {
        let StoredOutcome::Response(response) = &self.outcome else {
            return Self::MIN_BYTES;
        };
        Self::MIN_BYTES + response.capacity()
    }

    /// What the bytes of a store say. Body and header values share their memory.
    ///
    /// # Errors
    ///
    /// A [`StoredError`]; never a panic, whatever the bytes are.
    pub fn decode(bytes: Bytes) -> Result<Self, StoredError> {
        let mut reader = Reader::new(bytes);
        if reader.array() != Ok(MAGIC) {
            return Err(StoredError::NotARecord);
        }
        match reader.byte() {
            Ok(VERSION) => Ok(Self::decode_first(reader)?),
            Ok(version) => Err(StoredError::UnknownVersion(version)),
            Err(Corrupt) => Err(StoredError::Corrupt),
        }
    }

    /// The form of version 1, after its number.
    fn decode_first(mut reader: Reader) -> Result<Self, Corrupt> {
        let kind = reader.byte()?;
        let fingerprint = Fingerprint::from_bytes(reader.array()?);
        let outcome = match kind {
            BEGUN => StoredOutcome::Begun,
            TOMBSTONE => StoredOutcome::Tombstone {
                original_status: reader.status()?,
            },
            RESPONSE | RESPONSE_WITH_TRAILERS => {
                let has_trailers = kind == RESPONSE_WITH_TRAILERS;
                StoredOutcome::Response(StoredResponse::read(&mut reader, has_trailers)?)
            }
            _ => return Err(Corrupt),
        };
        reader.finish()?;
        Ok(Self {
            fingerprint,
            outcome,
        })
    }
}

/// Why the bytes of a store are not understood. Something stands there all the same: whoever finds
/// it must not take its key for unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredError {
    /// Something else than this crate wrote them.
    NotARecord,
    /// Another version of this crate wrote them, in this version of the form.
    UnknownVersion(u8),
    /// They were cut or changed.
    Corrupt,
}

impl From<Corrupt> for StoredError {
    fn from(Corrupt: Corrupt) -> Self {
        Self::Corrupt
    }
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecord => f.write_str("the stored bytes are not a record of idempotency"),
            Self::UnknownVersion(version) => write!(
                f,
                "the stored record has version {version}, this release reads version {VERSION}"
            ),
            Self::Corrupt => f.write_str("the stored record is cut or changed"),
        }
    }
}

impl Error for StoredError {}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const PRINT: Fingerprint = Fingerprint::from_bytes([7; Fingerprint::LENGTH]);

    fn begun() -> Stored {
        Stored::new(PRINT, StoredOutcome::Begun)
    }

    fn response(response: StoredResponse) -> Stored {
        Stored::new(PRINT, StoredOutcome::Response(response))
    }

    fn example() -> Stored {
        let mut stored =
            StoredResponse::new(StatusCode::CREATED, Bytes::from_static(b"\0body\xff"));
        let headers = &mut stored.headers;
        headers.append("link", HeaderValue::from_static("</a>"));
        headers.append("location", HeaderValue::from_static("/orders/42"));
        headers.append("link", HeaderValue::from_bytes(b"</\xe9>").unwrap());
        headers.append("x-empty", HeaderValue::from_static(""));
        let mut token = HeaderValue::from_static("secret");
        token.set_sensitive(true);
        headers.append("x-token", token);
        let mut trailers = HeaderMap::new();
        trailers.append("grpc-status", HeaderValue::from_static("0"));
        stored.trailers = Some(Box::new(trailers));
        response(stored)
    }

    #[test]
    fn the_form_is_fixed() {
        // Instances of two versions share a store: a change of this is a new VERSION.
        let mut expected = b"TL\x01\x00".to_vec();
        expected.extend([7; 32]);
        assert_eq!(begun().encode(), expected);

        let mut expected = b"TL\x01\x03".to_vec();
        expected.extend([7; 32]);
        expected.extend([0, 204]);
        let status = StatusCode::NO_CONTENT;
        let tombstone = Stored::new(
            PRINT,
            StoredOutcome::Tombstone {
                original_status: status,
            },
        );
        assert_eq!(tombstone.encode(), expected);
        assert_eq!(expected.len(), Stored::MIN_BYTES);

        let mut expected = b"TL\x01\x02".to_vec();
        expected.extend([7; 32]);
        expected.extend([0, 201]);
        expected.extend(b"\x04\x04link\x02\x08</a>\x08</\xe9>\x08location\x01\x14/orders/42");
        expected.extend(b"\x07x-empty\x01\x00\x07x-token\x01\x0dsecret");
        expected.extend(b"\x06\0body\xff");
        expected.extend(b"\x01\x0bgrpc-status\x01\x020");
        assert_eq!(example().encode(), expected);
    }

    #[test]
    fn order_values_and_marks_come_back() {
        let Ok(Stored {
            outcome: StoredOutcome::Response(back),
            ..
        }) = Stored::decode(example().encode())
        else {
            panic!("not a response");
        };
        let names: Vec<&str> = back.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["link", "link", "location", "x-empty", "x-token"]);
        assert!(back.headers["x-token"].is_sensitive());
        assert!(!back.headers["location"].is_sensitive());
    }

    #[test]
    fn what_is_not_understood_says_why() {
        let of = |bytes: &[u8]| Stored::decode(Bytes::copy_from_slice(bytes)).unwrap_err();
        assert_eq!(of(b""), StoredError::NotARecord);
        assert_eq!(of(b"{\"a\":1}"), StoredError::NotARecord);
        assert_eq!(of(b"TL"), StoredError::Corrupt);
        assert_eq!(of(b"TL\x02and more"), StoredError::UnknownVersion(2));
        assert_eq!(of(b"TL\0"), StoredError::UnknownVersion(0));
        assert!(of(b"TL\x02").to_string().contains("version 2"));
        let mut unknown_kind = begun().encode().to_vec();
        unknown_kind[3] = 4;
        assert_eq!(of(&unknown_kind), StoredError::Corrupt);
        let mut wrong_status = example().encode().to_vec();
        wrong_status[36..38].copy_from_slice(&[0, 99]);
        assert_eq!(of(&wrong_status), StoredError::Corrupt);
    }

    #[test]
    fn a_part_of_it_or_more_than_it_is_corrupt() {
        for stored in [begun(), example()] {
            let bytes = stored.encode();
            for end in 2..bytes.len() {
                assert_eq!(
                    Stored::decode(bytes.slice(..end)),
                    Err(StoredError::Corrupt),
                    "{end}"
                );
            }
            let more = [&bytes[..], b"\0"].concat();
            assert_eq!(Stored::decode(more.into()), Err(StoredError::Corrupt));
        }
    }

    #[test]
    fn debug_shows_no_content() {
        let text = format!("{:?}", example());
        assert!(text.contains("body_bytes: 6"), "{text}");
        for content in ["secret", "orders", "link", "7, 7"] {
            assert!(!text.contains(content), "{text}");
        }
    }

    /// Headers beyond what a map takes, which would panic if they were appended unchecked.
    #[test]
    fn more_headers_than_a_map_takes_are_corrupt() {
        let mut writer = Writer::with_capacity(1 << 20);
        writer.raw(b"TL\x01\x01");
        writer.raw(&[7; 32]);
        writer.short(200);
        writer.number(40_000);
        for i in 0..40_000 {
            writer.part(format!("x-{i}").as_bytes());
            writer.number(1);
            writer.number(0);
        }
        writer.part(b"");
        assert_eq!(Stored::decode(writer.finish()), Err(StoredError::Corrupt));
    }

    fn any_headers() -> impl Strategy<Value = HeaderMap> {
        let value = vec(prop_oneof![Just(b'\t'), 32u8..127, 128u8..=255], 0..40);
        vec(("[a-z][a-z0-9-]{0,6}", value, any::<bool>()), 0..12).prop_map(|entries| {
            let mut headers = HeaderMap::new();
            for (name, value, sensitive) in entries {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                let mut value = HeaderValue::from_bytes(&value).unwrap();
                value.set_sensitive(sensitive);
                headers.append(name, value);
            }
            headers
        })
    }

    fn any_stored() -> impl Strategy<Value = Stored> {
        let status = || (100u16..1000).prop_map(|code| StatusCode::from_u16(code).unwrap());
        let outcome = prop_oneof![
            Just(StoredOutcome::Begun),
            status().prop_map(|original_status| StoredOutcome::Tombstone { original_status }),
            (
                status(),
                any_headers(),
                vec(any::<u8>(), 0..600),
                proptest::option::of(any_headers()),
            )
                .prop_map(|(status, headers, body, trailers)| {
                    StoredOutcome::Response(StoredResponse {
                        status,
                        headers,
                        body: body.into(),
                        trailers: trailers.map(Box::new),
                    })
                }),
        ];
        (any::<[u8; 32]>(), outcome)
            .prop_map(|(print, outcome)| Stored::new(Fingerprint::from_bytes(print), outcome))
    }

    /// What comes out goes in again as the same bytes, so nothing else was read than was there.
    fn check(bytes: Bytes) {
        if let Ok(stored) = Stored::decode(bytes.clone()) {
            assert_eq!(stored.encode(), bytes);
        }
    }

    proptest! {
        #[test]
        fn every_record_round_trips(stored in any_stored()) {
            let bytes = stored.encode();
            let back = Stored::decode(bytes.clone()).unwrap();
            prop_assert_eq!(&back, &stored);
            // Equal maps may still differ in order and marks; equal bytes may not.
            prop_assert_eq!(back.encode(), bytes);
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200), start in 0usize..5) {
            check(bytes.clone().into());
            let headed = [&b"TL\x01\x02"[..start.min(4)], &bytes].concat();
            check(headed.into());
        }

        #[test]
        fn no_changed_record_panics(
            stored in any_stored(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = stored.encode().to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            check(bytes.clone().into());
            bytes.truncate(cut.index(bytes.len()));
            check(bytes.into());
        }
    }

    /// Many small changes of one record, each at every place: what a property test rarely meets.
    #[test]
    fn every_byte_of_a_record_may_be_any() {
        let bytes = example().encode();
        let mut accepted = 0;
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut changed = bytes.to_vec();
                changed[at] = byte;
                check(changed.clone().into());
                accepted += usize::from(Stored::decode(changed.into()).is_ok());
            }
        }
        // Prints, statuses, texts and bodies may be others; lengths may not.
        assert!(accepted > 32 * 256, "{accepted}");
        assert!(accepted < bytes.len() * 256, "{accepted}");
    }

    /// Random splices of two records, with a fixed seed.
    #[test]
    fn no_splice_of_records_panics() {
        let mut random = fastrand::Rng::with_seed(42);
        let sources = [begun().encode(), example().encode()];
        for _ in 0..50_000 {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..4) {
                let source = &sources[random.usize(..2)];
                let from = random.usize(..source.len());
                let to = random.usize(from..=source.len());
                bytes.extend_from_slice(&source[from..to]);
            }
            let at = random.usize(..=bytes.len());
            bytes.insert(at, random.u8(..));
            let headed = [&sources[1][..random.usize(..48)], &bytes].concat();
            check(headed.into());
        }
    }
}
