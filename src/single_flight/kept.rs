//! What a leader leaves for those who wait.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::replay::{Corrupt, Reader, StoredResponse, Writer};

/// `TF`, the version of the form, and what follows: 0 nothing, 1 a response, 2 a response with
/// trailers. Of these: when it was made, in ms since 1970, for how many ms it is fresh, both as
/// LEB128, and the response as in [`Stored`](crate::idempotency::Stored).
const MAGIC: [u8; 2] = *b"TF";
const VERSION: u8 = 1;

const PASS: u8 = 0;
const RESPONSE: u8 = 1;
const RESPONSE_WITH_TRAILERS: u8 = 2;

/// What a leader leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// That it is done: they may run.
    Pass,
    /// Its response.
    Response(Shared),
}

/// A response for more than one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// By the clock of the process that made it.
    made: SystemTime,
    fresh: Duration,
    pub(super) response: StoredResponse,
}

impl Shared {
    /// One of this age, that is fresh for so long from now on.
    pub(super) fn new(response: StoredResponse, age: Duration, fresh: Duration) -> Self {
        let now = SystemTime::now();
        Self {
            made: now.checked_sub(age).unwrap_or(now),
            fresh: age.saturating_add(fresh),
            response,
        }
    }

    /// By the clocks of two machines: never less than zero, and as wrong as they are.
    pub(super) fn age(&self) -> Duration {
        self.made.elapsed().unwrap_or_default()
    }

    /// For how long it is fresh, counted like its age.
    pub(super) fn fresh(&self) -> Duration {
        self.fresh
    }
}

impl Kept {
    pub(super) fn encode(&self) -> Bytes {
        let shared = match self {
            Self::Pass => None,
            Self::Response(shared) => Some(shared),
        };
        let mut writer =
            Writer::with_capacity(24 + shared.map_or(0, |shared| shared.response.capacity()));
        writer.raw(&MAGIC);
        writer.byte(VERSION);
        match shared {
            None => writer.byte(PASS),
            Some(shared) => {
                writer.byte(match shared.response.trailers {
                    None => RESPONSE,
                    Some(_) => RESPONSE_WITH_TRAILERS,
                });
                let made = shared.made.duration_since(SystemTime::UNIX_EPOCH);
                writer.number(millis(made.unwrap_or_default()));
                writer.number(millis(shared.fresh));
                shared.response.write(&mut writer);
            }
        }
        writer.finish()
    }

    /// `None` of what this version did not write.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let read = |reader: &mut Reader| -> Result<Self, Corrupt> {
            if reader.array()? != MAGIC || reader.byte()? != VERSION {
                return Err(Corrupt);
            }
            let has_trailers = match reader.byte()? {
                PASS => return Ok(Self::Pass),
                RESPONSE => false,
                RESPONSE_WITH_TRAILERS => true,
                _ => return Err(Corrupt),
            };
            let made = Duration::from_millis(reader.number()?);
            Ok(Self::Response(Shared {
                made: SystemTime::UNIX_EPOCH.checked_add(made).ok_or(Corrupt)?,
                fresh: Duration::from_millis(reader.number()?),
                response: StoredResponse::read(reader, has_trailers)?,
            }))
        };
        let kept = read(&mut reader).ok()?;
        reader.finish().ok()?;
        Some(kept)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, StatusCode};
    use proptest::prelude::*;

    use super::*;

    fn shared() -> Shared {
        let mut response = StoredResponse::new(StatusCode::OK, Bytes::from("report"));
        response
            .headers
            .insert("etag", HeaderValue::from_static("\"7\""));
        Shared {
            made: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            fresh: Duration::from_secs(60),
            response,
        }
    }

    #[test]
    fn what_is_left_is_read_as_it_was() {
        let mut with_trailers = shared();
        let trailers = HeaderMap::from_iter([("x".parse().unwrap(), "1".parse().unwrap())]);
        with_trailers.response.trailers = Some(Box::new(trailers));
        for kept in [
            Kept::Pass,
            Kept::Response(shared()),
            Kept::Response(with_trailers),
        ] {
            assert_eq!(Kept::decode(kept.encode()), Some(kept));
        }
        assert_eq!(&*Kept::Pass.encode(), b"TF\x01\x00");
    }

    #[test]
    fn an_age_is_never_below_zero() {
        let mut shared = shared();
        assert!(shared.age() > Duration::ZERO);
        shared.made = SystemTime::now() + Duration::from_secs(3600);
        assert_eq!(shared.age(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn nothing_else_is_taken_for_it(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(kept) = Kept::decode(bytes.clone().into()) {
                prop_assert_eq!(&*kept.encode(), &*bytes);
            }
        }

        #[test]
        fn a_part_is_not_the_whole(cut in 0usize..64) {
            let whole = Kept::Response(shared()).encode();
            let cut = cut % whole.len();
            prop_assert_eq!(Kept::decode(whole.slice(..cut)), None);
            let mut more = whole.to_vec();
            more.push(0);
            prop_assert_eq!(Kept::decode(more.into()), None);
        }
    }
}
