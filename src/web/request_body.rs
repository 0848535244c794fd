//! The request's body, as it came or read beforehand to find the key.

use std::{
    error::Error,
    fmt,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError};

use crate::error::BoxError;

/// The body that a service behind a layer with a body key gets: the same bytes and trailers as
/// the client sent, whether they were read to find the key or not.
#[pin_project::pin_project]
pub struct RequestBody<B> {
    #[pin]
    state: State<B>,
}

#[pin_project::pin_project(project = StateProj)]
enum State<B> {
    Streaming(#[pin] B),
    Buffered(Buffered),
}

/// A body that was read to its end.
#[derive(Default)]
pub(crate) struct Buffered {
    pub(crate) bytes: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

/// Why a body was not buffered. The body's own error is not kept: it can hold what a client sent.
#[derive(Debug)]
pub(crate) enum BufferError {
    /// It is longer than this limit, or says so.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A layer outside has a smaller limit.
    LimitOutside,
    /// The client left or sent nonsense.
    Read,
}

impl<B> RequestBody<B> {
    /// The body as it came.
    pub(crate) fn streaming(body: B) -> Self {
        Self {
            state: State::Streaming(body),
        }
    }

    /// The body that was read.
    pub(crate) fn buffered(body: Buffered) -> Self {
        Self {
            state: State::Buffered(body),
        }
    }
}

/// Reads a body of at most `limit` bytes to its end, trailers included.
///
/// One that says that it is longer, by `Content-Length` or by itself, is refused without a poll,
/// so that a client that waits for `100 Continue` is never told to send it. One that says nothing
/// is refused as soon as it is over the limit.
///
/// # Cancellation safety
///
/// What was read is lost, with the body: the request is over then.
pub(crate) async fn buffer<B>(
    headers: &HeaderMap,
    body: B,
    limit: usize,
) -> Result<Buffered, BufferError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let too_large = || BufferError::TooLarge { limit };
    let declared = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok())
        .unwrap_or(0)
        .max(body.size_hint().lower());
    match usize::try_from(declared) {
        Ok(declared) if declared <= limit => {}
        _ => return Err(too_large()),
    }

    let mut body = pin!(body);
    let mut read = Buffered::default();
    // Most bodies are one frame, which is kept as it is. Several are copied together, so that
    // many tiny frames cost no more memory than their bytes.
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| classify(error.into()))?;
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    match &mut read.trailers {
                        Some(all) => all.extend(trailers),
                        none => *none = Some(Box::new(trailers)),
                    }
                }
                continue;
            }
        };
        let length = read.bytes.len() + joined.len();
        if data.remaining() > limit - length {
            return Err(too_large());
        }
        if length == 0 {
            read.bytes = data.copy_to_bytes(data.remaining());
        } else {
            if joined.is_empty() {
                joined.reserve((declared as usize).max(length + data.remaining()));
                joined.put(std::mem::take(&mut read.bytes));
            }
            joined.put(data);
        }
    }
    if !joined.is_empty() {
        read.bytes = joined.freeze();
    }
    Ok(read)
}

/// A limit of a layer outside looks like a failed read.
fn classify(error: BoxError) -> BufferError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return BufferError::LimitOutside;
        }
        cause = error.source();
    }
    BufferError::Read
}

impl<B> Body for RequestBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().state.project() {
            StateProj::Streaming(body) => body.poll_frame(cx),
            StateProj::Buffered(body) => Poll::Ready(if !body.bytes.is_empty() {
                Some(Ok(Frame::data(std::mem::take(&mut body.bytes).into())))
            } else {
                let trailers = body.trailers.take();
                trailers.map(|trailers| Ok(Frame::trailers(*trailers)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Streaming(body) => body.is_end_stream(),
            State::Buffered(body) => body.bytes.is_empty() && body.trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Streaming(body) => body.size_hint(),
            State::Buffered(body) => SizeHint::with_exact(body.bytes.len() as u64),
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Streaming(_) => "streaming",
            State::Buffered(_) => "buffered",
        };
        f.debug_struct("RequestBody")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use futures_core::Stream;
    use http::HeaderValue;
    use http_body_util::{Empty, Full, Limited, StreamBody, channel::Channel};
    use proptest::prelude::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::web::{Refusal, RefusalKind};

    /// Frames that are there at once, and how often it was asked for one.
    struct Frames<E> {
        frames: VecDeque<Result<Frame<Bytes>, E>>,
        polls: Arc<AtomicUsize>,
    }

    impl<E: Unpin> Stream for Frames<E> {
        type Item = Result<Frame<Bytes>, E>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(self.frames.pop_front())
        }
    }

    /// A body of these frames that tells no size, and the count of its polls.
    fn frames<E: Unpin>(
        frames: impl IntoIterator<Item = Result<Frame<Bytes>, E>>,
    ) -> (StreamBody<Frames<E>>, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let frames = Frames {
            frames: frames.into_iter().collect(),
            polls: polls.clone(),
        };
        (StreamBody::new(frames), polls)
    }

    fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, BoxError> {
        Ok(Frame::data(Bytes::from_static(bytes)))
    }

    fn trailers(name: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            HeaderValue::from_static("1"),
        )])
    }

    fn length(length: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static(length))])
    }

    /// A body that says how long it is and must not be polled.
    struct Declared(u64);

    impl Body for Declared {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("polled, so the client would be told to send it");
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(self.0);
            hint
        }
    }

    #[tokio::test]
    async fn a_body_that_says_it_is_too_long_is_not_polled() {
        for (headers, body) in [
            (HeaderMap::new(), Declared(11)),
            (length("11"), Declared(0)),
            (length("18446744073709551615"), Declared(0)),
            (HeaderMap::new(), Declared(u64::MAX)),
        ] {
            let refused = buffer(&headers, body, 10).await;
            assert!(matches!(refused, Err(BufferError::TooLarge { limit: 10 })));
        }
    }

    #[tokio::test]
    async fn limits_are_inclusive() {
        for (body, limit, fits) in [
            ("", 0, true),
            ("x", 0, false),
            ("0123456789", 10, true),
            ("0123456789", 9, false),
            ("0123456789", usize::MAX, true),
        ] {
            let sized = buffer(&HeaderMap::new(), Full::new(Bytes::from(body)), limit).await;
            assert_eq!(sized.is_ok(), fits, "sized {body:?} in {limit}");
            let (unsized_body, _) = frames([data(body.as_bytes())]);
            let unsized_body = buffer(&HeaderMap::new(), unsized_body, limit).await;
            assert_eq!(unsized_body.is_ok(), fits, "unsized {body:?} in {limit}");
        }
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_refused_once_it_is_over() {
        let (body, polls) = frames([data(b"0123"), data(b"4567"), data(b"89")]);
        let refused = buffer(&HeaderMap::new(), body, 6).await;
        assert!(matches!(refused, Err(BufferError::TooLarge { limit: 6 })));
        assert_eq!(polls.load(Ordering::Relaxed), 2, "the rest was not read");
    }

    #[tokio::test]
    async fn a_lying_content_length_does_not_raise_the_limit() {
        let (body, _) = frames([data(b"0123"), data(b"4567")]);
        let refused = buffer(&length("4"), body, 6).await;
        assert!(matches!(refused, Err(BufferError::TooLarge { .. })));
        let (body, _) = frames([data(b"0123")]);
        let read = buffer(&length("nonsense"), body, 6).await.ok().unwrap();
        assert_eq!(read.bytes, "0123");
    }

    #[tokio::test]
    async fn one_frame_is_not_copied() {
        let bytes = Bytes::from(vec![7; 1000]);
        let read = buffer(&HeaderMap::new(), Full::new(bytes.clone()), 1000).await;
        assert_eq!(read.ok().unwrap().bytes.as_ptr(), bytes.as_ptr());
    }

    #[tokio::test]
    async fn a_body_that_arrives_slowly_is_read_to_its_end() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let read = tokio::spawn(async move { buffer(&HeaderMap::new(), body, 100).await });
        for part in ["slow", "ly"] {
            sender.send_data(Bytes::from(part)).await.unwrap();
        }
        sender.send_trailers(trailers("checksum")).await.unwrap();
        drop(sender);
        let read = read.await.unwrap().ok().unwrap();
        assert_eq!(read.bytes, "slowly");
        assert_eq!(read.trailers.as_deref(), Some(&trailers("checksum")));
    }

    #[tokio::test]
    async fn failures_become_refusals() {
        let refusal = |error: BufferError| Refusal::from_buffer_error(&error);
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(2);
        sender.send_data(Bytes::from("half")).await.unwrap();
        sender.abort("the client's secret".into());
        let error = buffer(&HeaderMap::new(), body, 100).await.err().unwrap();
        assert!(matches!(error, BufferError::Read));
        assert_eq!(refusal(error).kind(), RefusalKind::KeyInvalid);

        let (body, _) = frames([data(b"0123"), data(b"4567")]);
        let error = buffer(&HeaderMap::new(), Limited::new(body, 5), 100)
            .await
            .err()
            .unwrap();
        assert!(matches!(error, BufferError::LimitOutside));
        assert_eq!(refusal(error).kind(), RefusalKind::BodyTooLarge);

        let error = buffer(&length("101"), Empty::<Bytes>::new(), 100)
            .await
            .err()
            .unwrap();
        let refusal = refusal(error);
        assert_eq!(refusal.kind(), RefusalKind::BodyTooLarge);
        assert!(refusal.detail().contains("100 bytes"));
    }

    #[tokio::test]
    async fn an_untouched_body_passes_through() {
        let full = Full::new(Bytes::from("body"));
        let body = RequestBody::streaming(
            full.with_trailers(async { Some(Ok::<_, Infallible>(trailers("checksum"))) }),
        );
        let read = body.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers("checksum")));
        assert_eq!(read.to_bytes(), "body");
        let body = RequestBody::streaming(Full::new(Bytes::from("body")));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert!(!body.is_end_stream());
    }

    #[tokio::test]
    async fn an_empty_buffered_body_has_ended() {
        let mut body = RequestBody::<Empty<Bytes>>::buffered(Buffered::default());
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn trailers_alone_are_not_the_end() {
        let (body, _) = frames([data(b"body"), Ok(Frame::trailers(trailers("checksum")))]);
        let read = buffer(&HeaderMap::new(), body, 4).await.ok().unwrap();
        let mut body = RequestBody::<Empty<Bytes>>::buffered(read);
        assert!(body.frame().await.unwrap().unwrap().is_data());
        assert!(!body.is_end_stream());
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.is_end_stream());
    }

    /// What a server sends to a client that waits for `100 Continue` with a body of this length.
    async fn expect_continue(length: usize) -> String {
        let app = axum::Router::new().fallback(|request: http::Request<axum::body::Body>| async {
            let (parts, body) = request.into_parts();
            match buffer(&parts.headers, body, 10).await {
                Ok(read) => (http::StatusCode::OK, read.bytes),
                Err(error) => (
                    Refusal::from_buffer_error(&error).status(),
                    Bytes::default(),
                ),
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async { axum::serve(listener, app).await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
        if answer.starts_with(b"HTTP/1.1 100 ") {
            client.write_all(&vec![b'x'; length]).await.unwrap();
        }
        client.read_to_end(&mut answer).await.unwrap();
        server.abort();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn only_an_accepted_body_is_asked_for() {
        let accepted = expect_continue(10).await;
        assert_eq!(accepted.matches("HTTP/1.1 100 ").count(), 1, "{accepted}");
        assert!(accepted.contains("HTTP/1.1 200 "), "{accepted}");
        assert!(accepted.ends_with("xxxxxxxxxx"), "{accepted}");
        let refused = expect_continue(11).await;
        assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    }

    proptest! {
        #[test]
        fn the_handler_gets_identical_bytes_and_trailers(
            parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..30), 0..8),
            with_trailers in any::<bool>(),
        ) {
            let all = parts.concat();
            let last = with_trailers.then(|| trailers("checksum"));
            let (body, _) = frames(
                parts
                    .into_iter()
                    .map(|part| Frame::data(Bytes::from(part)))
                    .chain(last.clone().map(Frame::trailers))
                    .map(Ok::<_, Infallible>),
            );
            let (hint, read) = runtime().block_on(async {
                let read = buffer(&HeaderMap::new(), body, all.len()).await.ok().unwrap();
                let body = RequestBody::<Empty<Bytes>>::buffered(read);
                (body.size_hint().exact(), body.collect().await.unwrap())
            });
            prop_assert_eq!(hint, Some(all.len() as u64));
            prop_assert_eq!(read.trailers(), last.as_ref());
            prop_assert_eq!(read.to_bytes(), all);
        }
    }
}
