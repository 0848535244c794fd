//! A response as it is kept.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::codec::{Corrupt, Reader, Writer};

/// A response to replay.
///
/// It has no HTTP version: that is each connection's own. Headers keep their order, and those with
/// several values all of them. `Debug` shows sizes only.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers that [`StoredHeaders`](super::StoredHeaders) selects.
    pub headers: HeaderMap,
    /// Every byte of the body.
    pub body: Bytes,
    /// The trailers, if there were any; gRPC has its status there.
    pub trailers: Option<Box<HeaderMap>>,
}

impl StoredResponse {
    /// A response without headers and trailers.
    pub fn new(status: StatusCode, body: Bytes) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body,
            trailers: None,
        }
    }

    /// About how many bytes it is written in.
    pub(crate) fn capacity(&self) -> usize {
        let size = |headers: &HeaderMap| {
            let each =
                |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
            headers.iter().map(each).sum::<usize>()
        };
        let trailers = self.trailers.as_deref().map_or(0, size);
        32 + size(&self.headers) + self.body.len() + trailers
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.short(self.status.as_u16());
        writer.headers(&self.headers);
        writer.part(&self.body);
        if let Some(trailers) = &self.trailers {
            writer.headers(trailers);
        }
    }

    pub(crate) fn read(reader: &mut Reader, has_trailers: bool) -> Result<Self, Corrupt> {
        Ok(Self {
            status: reader.status()?,
            headers: reader.headers()?,
            body: reader.part()?,
            trailers: match has_trailers {
                true => Some(Box::new(reader.headers()?)),
                false => None,
            },
        })
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .field("trailers", &self.trailers.as_deref().map(HeaderMap::len))
            .finish()
    }
}
