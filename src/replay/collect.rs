//! Reading a response to its end, so that it can be stored, without losing any of it if it cannot.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE, response};
use http_body::Body;

use crate::{
    error::BoxError,
    web::{ResponseBody, Rest},
};

/// What was read of a body.
pub(crate) enum Collected<B> {
    /// All.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// As much as may be read, and more; or it broke off.
    Part(Bytes, Rest<B>),
}

impl<B> Collected<B> {
    /// The same bytes for the client.
    pub(crate) fn into_body(self) -> ResponseBody<B> {
        match self {
            Self::Whole(bytes, trailers) => ResponseBody::read(bytes, Rest::End(trailers)),
            Self::Part(bytes, rest) => ResponseBody::read(bytes, rest),
        }
    }
}

/// Reads up to `limit` bytes, and the frame that goes beyond, or until it has to stop. One that says
/// beforehand that it is longer is not read.
pub(crate) async fn collect<B>(
    body: B,
    limit: usize,
    mut stops: impl FnMut(&mut Context<'_>) -> bool,
) -> Collected<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    if body.size_hint().lower() > limit as u64 {
        return Collected::Part(Bytes::new(), Rest::Body(body));
    }
    let (mut bytes, mut joined, mut trailers) = (Bytes::new(), BytesMut::new(), None);
    let known = |bytes: Bytes, joined: BytesMut| {
        if joined.is_empty() {
            bytes
        } else {
            joined.freeze()
        }
    };
    loop {
        let next = poll_fn(|cx| {
            if stops(cx) {
                return Poll::Ready(None);
            }
            body.as_mut().poll_frame(cx).map(Some)
        });
        let Some(frame) = next.await else {
            return Collected::Part(known(bytes, joined), Rest::Body(body));
        };
        let frame = match frame {
            None => return Collected::Whole(known(bytes, joined), trailers),
            Some(Err(error)) => {
                return Collected::Part(known(bytes, joined), Rest::Error(Some(error.into())));
            }
            Some(Ok(frame)) => frame,
        };
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers
                        .get_or_insert_with(Box::<HeaderMap>::default)
                        .extend(more);
                }
                continue;
            }
        };
        let length = bytes.len() + joined.len() + data.remaining();
        // Most bodies are one frame, which is kept as it is.
        if bytes.is_empty() && joined.is_empty() {
            bytes = data.copy_to_bytes(data.remaining());
        } else {
            if joined.is_empty() {
                joined.reserve(length);
                joined.put(std::mem::take(&mut bytes));
            }
            joined.put(data);
        }
        if length > limit {
            return Collected::Part(known(bytes, joined), Rest::Body(body));
        }
    }
}

/// One that may never end, and whose reader wants each event when it happens.
pub(crate) fn is_event_stream(head: &response::Parts) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| {
        let name = value.as_bytes().split(|byte| *byte == b';').next();
        name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    })
}
