//! The response's body: the inner service's, watched if a lock ends with it, or our own.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use pin_project::{pin_project, pinned_drop};

use crate::error::BoxError;

/// What holds on to a lock for as long as a body lasts.
///
/// Dropped without [`finished`](Self::finished) only if the inner body panics in its drop: that
/// must release too.
pub(crate) trait BodyWatch: Send {
    /// Asked before each poll of the inner body: `Ready` ends the body with this error, `Pending`
    /// lets it go on and wakes the task when that changes.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<BoxError>;

    /// Told after each poll of the inner body that [`poll_lost`](Self::poll_lost) let through: a
    /// lock that was lost meanwhile ends the body with this error.
    fn left(&mut self) -> Option<BoxError>;

    /// The inner body is over and dropped. Must not block or panic: it can run inside a drop.
    fn finished(self: Box<Self>);
}

/// The body of a response that came through a layer: the inner service's, or a refusal's.
///
/// Size, end, trailers and errors are those of the inner body. Where the lock is held to the end
/// of the body and lost before, the body ends with an error, so that no client takes a cut stream
/// for a whole one.
#[pin_project(PinnedDrop)]
pub struct ResponseBody<B> {
    #[pin]
    state: State<B>,
    watch: Option<Box<dyn BodyWatch>>,
}

#[pin_project(project = StateProj)]
enum State<B> {
    Inner(#[pin] B),
    Bytes(Bytes),
    Foreign(#[pin] UnsyncBoxBody<Bytes, BoxError>),
    /// Bytes that are known, and what comes after them.
    Read(Bytes, Rest<B>),
    /// The inner body is over and dropped; this is the size that it told last.
    Done(SizeHint),
}

/// What comes after the bytes of a body that are known.
pub(crate) enum Rest<B> {
    /// Its end, with trailers if it has some.
    End(Option<Box<HeaderMap>>),
    /// What has not been read yet.
    Body(Pin<Box<B>>),
    /// It broke off.
    Error(Option<BoxError>),
}

impl<B> ResponseBody<B> {
    /// A body of which this much is known.
    pub(crate) fn read(bytes: Bytes, rest: Rest<B>) -> Self {
        Self {
            state: State::Read(bytes, rest),
            watch: None,
        }
    }

    /// The inner service's body, passed through.
    pub(crate) fn inner(body: B) -> Self {
        Self {
            state: State::Inner(body),
            watch: None,
        }
    }

    /// The inner service's body, watched to its end.
    ///
    /// One that has already ended is not polled by any server (nor are those of `HEAD` and 204,
    /// which end when they are dropped): the watch is finished here.
    pub(crate) fn watched(body: B, watch: Box<dyn BodyWatch>) -> Self
    where
        B: Body,
    {
        if body.is_end_stream() {
            let size = body.size_hint();
            drop(body);
            watch.finished();
            return Self {
                state: State::Done(size),
                watch: None,
            };
        }
        Self {
            state: State::Inner(body),
            watch: Some(watch),
        }
    }

    /// A refusal's body.
    pub(crate) fn refusal(body: Bytes) -> Self {
        Self {
            state: State::Bytes(body),
            watch: None,
        }
    }

    /// The body of an answer of the application's own, such as an extractor's rejection.
    pub(crate) fn foreign(body: UnsyncBoxBody<Bytes, BoxError>) -> Self {
        Self {
            state: State::Foreign(body),
            watch: None,
        }
    }

    /// Whether the inner service still works after its head: a body without an end in sight.
    pub(crate) fn outlives_head(&self) -> bool
    where
        B: Body,
    {
        match &self.state {
            State::Inner(body) => !body.is_end_stream() && body.size_hint().exact().is_none(),
            _ => false,
        }
    }

    /// Drops the inner body, then finishes the watch, if this has not been done yet.
    fn end(self: Pin<&mut Self>, size: SizeHint) {
        let mut this = self.project();
        this.state.set(State::Done(size));
        if let Some(watch) = this.watch.take() {
            watch.finished();
        }
    }
}

impl<B> ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
    B::Error: Into<BoxError>,
{
    /// One poll of an inner body with a watch: it ends in one of four ways, or with its lock.
    fn poll_watched(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.as_mut().project();
        if let Some(watch) = this.watch
            && let Poll::Ready(lost) = watch.poll_lost(cx)
        {
            self.end(SizeHint::with_exact(0));
            return Poll::Ready(Some(Err(lost)));
        }
        let StateProj::Inner(mut body) = this.state.as_mut().project() else {
            return Poll::Ready(None);
        };
        let polled = body.as_mut().poll_frame(cx);
        if let Some(lost) = this.watch.as_mut().and_then(|watch| watch.left()) {
            self.end(SizeHint::with_exact(0));
            return Poll::Ready(Some(Err(lost)));
        }
        let frame = ready!(polled);
        // A body with a length may never be polled to `None`, so its end is asked for.
        let ended = match &frame {
            Some(Ok(_)) => body.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if ended {
            self.end(SizeHint::with_exact(0));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.watch.is_some() {
            return self.poll_watched(cx);
        }
        match self.project().state.project() {
            StateProj::Inner(body) => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(Into::into))),
            StateProj::Bytes(bytes) => Poll::Ready(match mem::take(bytes) {
                bytes if bytes.is_empty() => None,
                bytes => Some(Ok(Frame::data(bytes.into()))),
            }),
            StateProj::Foreign(body) => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(Into::into)))),
            StateProj::Read(bytes, _) if !bytes.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(mem::take(bytes).into()))))
            }
            StateProj::Read(_, Rest::End(trailers)) => {
                let trailers = trailers.take();
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))))
            }
            StateProj::Read(_, Rest::Body(body)) => body
                .as_mut()
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(Into::into))),
            StateProj::Read(_, Rest::Error(error)) => Poll::Ready(error.take().map(Err)),
            StateProj::Done(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Inner(body) => body.is_end_stream(),
            State::Bytes(bytes) => bytes.is_empty(),
            State::Foreign(body) => body.is_end_stream(),
            State::Read(bytes, rest) => {
                bytes.is_empty()
                    && match rest {
                        Rest::End(trailers) => trailers.is_none(),
                        Rest::Body(body) => body.is_end_stream(),
                        Rest::Error(error) => error.is_none(),
                    }
            }
            State::Done(_) => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Inner(body) => body.size_hint(),
            State::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            State::Foreign(body) => body.size_hint(),
            State::Read(bytes, rest) => {
                let known = bytes.len() as u64;
                match rest {
                    Rest::End(None) => SizeHint::with_exact(known),
                    // With a length servers of HTTP/1 send no trailers.
                    Rest::End(Some(_)) => plus(known, &SizeHint::default()),
                    Rest::Body(body) => plus(known, &body.size_hint()),
                    Rest::Error(_) => plus(known, &SizeHint::default()),
                }
            }
            // `Copy` only in newer versions of `http-body`.
            State::Done(size) => SizeHint::clone(size),
        }
    }
}

fn plus(known: u64, rest: &SizeHint) -> SizeHint {
    let mut size = SizeHint::new();
    size.set_lower(known.saturating_add(rest.lower()));
    if let Some(upper) = rest.upper() {
        size.set_upper(known.saturating_add(upper));
    }
    size
}

#[pinned_drop]
impl<B> PinnedDrop for ResponseBody<B> {
    fn drop(self: Pin<&mut Self>) {
        if self.watch.is_some() {
            self.end(SizeHint::default());
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Inner(_) => "inner",
            State::Bytes(_) => "refusal",
            State::Foreign(_) => "foreign",
            State::Read(..) => "read",
            State::Done(_) => "done",
        };
        f.debug_struct("ResponseBody")
            .field("state", &state)
            .field("watched", &self.watch.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{Arc, Mutex},
        task::Waker,
    };

    use http::{HeaderMap, HeaderValue};
    use http_body_util::{
        BodyExt, Empty, Full, StreamBody,
        channel::{Channel, Sender},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::lease::{Loss, LossSignal};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<&'static str>>>);

    impl Log {
        fn add(&self, line: &'static str) {
            self.0.lock().unwrap().push(line);
        }

        fn lines(&self) -> Vec<&'static str> {
            self.0.lock().unwrap().clone()
        }
    }

    struct LogDrop(Log, &'static str);

    impl Drop for LogDrop {
        fn drop(&mut self) {
            self.0.add(self.1);
        }
    }

    /// What every watched body must leave behind, in this order and once.
    const OVER: [&str; 3] = ["inner dropped", "finished", "watch dropped"];

    /// An inner body that logs its polls and its drop.
    #[pin_project]
    struct Logged<B> {
        #[pin]
        inner: B,
        log: Log,
        _drop: LogDrop,
    }

    impl<B: Body> Body for Logged<B> {
        type Data = B::Data;
        type Error = B::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
            let this = self.project();
            this.log.add("polled");
            this.inner.poll_frame(cx)
        }

        fn is_end_stream(&self) -> bool {
            self.inner.is_end_stream()
        }

        fn size_hint(&self) -> SizeHint {
            self.inner.size_hint()
        }
    }

    struct TestWatch {
        signal: Arc<LossSignal>,
        log: Log,
        _drop: LogDrop,
    }

    impl BodyWatch for TestWatch {
        fn left(&mut self) -> Option<BoxError> {
            None
        }

        fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
            self.signal.poll_holder(cx).map(|loss| loss.as_str().into())
        }

        fn finished(self: Box<Self>) {
            self.log.add("finished");
        }
    }

    fn watch<B: Body>(inner: B) -> (ResponseBody<Logged<B>>, Arc<LossSignal>, Log) {
        let log = Log::default();
        let signal = Arc::new(LossSignal::new());
        let body = Logged {
            inner,
            log: log.clone(),
            _drop: LogDrop(log.clone(), "inner dropped"),
        };
        let watch = TestWatch {
            signal: signal.clone(),
            log: log.clone(),
            _drop: LogDrop(log.clone(), "watch dropped"),
        };
        (ResponseBody::watched(body, Box::new(watch)), signal, log)
    }

    /// The log without the polls.
    fn ending(log: &Log) -> Vec<&'static str> {
        let mut lines = log.lines();
        lines.retain(|line| *line != "polled");
        lines
    }

    fn polls(log: &Log) -> usize {
        log.lines().len() - ending(log).len()
    }

    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll<B>(body: &mut B) -> Poll<Option<Item>>
    where
        B: Body<Data = Bytes, Error = BoxError> + Unpin,
    {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn bytes(polled: Poll<Option<Item>>) -> Bytes {
        let Poll::Ready(Some(Ok(frame))) = polled else {
            panic!("expected data, got {polled:?}");
        };
        frame.into_data().unwrap()
    }

    fn error(polled: Poll<Option<Item>>) -> String {
        let Poll::Ready(Some(Err(error))) = polled else {
            panic!("expected an error, got {polled:?}");
        };
        error.to_string()
    }

    fn is_end(polled: Poll<Option<Item>>) -> bool {
        matches!(polled, Poll::Ready(None))
    }

    fn trailers() -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )])
    }

    /// A stream of items that are there at once; it tells neither its size nor its end.
    struct Items(std::vec::IntoIter<Item>);

    impl futures_core::Stream for Items {
        type Item = Item;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
            Poll::Ready(self.0.next())
        }
    }

    fn stream(items: Vec<Item>) -> StreamBody<Items> {
        StreamBody::new(Items(items.into_iter()))
    }

    fn data(text: &'static str) -> Item {
        Ok(Frame::data(Bytes::from(text)))
    }

    #[test]
    fn end_at_construction_needs_no_poll() {
        let (mut body, _, log) = watch(Empty::<Bytes>::new());
        assert_eq!(log.lines(), OVER);
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert!(is_end(poll(&mut body)));
        drop(body);
        assert_eq!(log.lines(), OVER);
    }

    #[test]
    fn end_at_construction_keeps_the_size() {
        /// As for `HEAD`: nothing to send, and the size of what would have been.
        struct Head;

        impl Body for Head {
            type Data = Bytes;
            type Error = Infallible;

            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                Poll::Ready(None)
            }

            fn is_end_stream(&self) -> bool {
                true
            }

            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(1234)
            }
        }

        let (body, _, log) = watch(Head);
        assert_eq!(body.size_hint().exact(), Some(1234));
        assert_eq!(log.lines(), OVER);
    }

    #[test]
    fn end_after_the_last_frame_needs_no_poll_to_none() {
        let (mut body, _, log) = watch(Full::new(Bytes::from("whole")));
        assert!(log.lines().is_empty());
        assert_eq!(body.size_hint().exact(), Some(5));
        assert_eq!(bytes(poll(&mut body)), "whole");
        assert_eq!(ending(&log), OVER);
        assert!(body.is_end_stream());
        assert!(is_end(poll(&mut body)));
        assert_eq!(polls(&log), 1);
        drop(body);
        assert_eq!(ending(&log), OVER);
    }

    #[test]
    fn end_at_none() {
        let (mut body, _, log) = watch(stream(vec![data("a"), data("b")]));
        assert_eq!(bytes(poll(&mut body)), "a");
        assert_eq!(bytes(poll(&mut body)), "b");
        assert!(ending(&log).is_empty(), "not before the end");
        assert!(!body.is_end_stream());
        assert!(is_end(poll(&mut body)));
        assert_eq!(ending(&log), OVER);
        assert!(is_end(poll(&mut body)));
        assert_eq!(polls(&log), 3);
    }

    #[test]
    fn end_at_an_error() {
        let (mut body, _, log) = watch(stream(vec![data("a"), Err("broken".into()), data("b")]));
        assert_eq!(bytes(poll(&mut body)), "a");
        assert_eq!(error(poll(&mut body)), "broken");
        assert_eq!(ending(&log), OVER);
        assert!(is_end(poll(&mut body)), "nothing after an error");
        assert_eq!(polls(&log), 2);
    }

    #[test]
    fn end_at_drop() {
        // Unread, as for HEAD and 204, and half read, by a client that left.
        for reads in 0..2 {
            let (mut body, _, log) = watch(stream(vec![data("a"), data("b")]));
            for _ in 0..reads {
                bytes(poll(&mut body));
            }
            assert!(ending(&log).is_empty());
            drop(body);
            assert_eq!(ending(&log), OVER, "after {reads} reads");
        }
    }

    #[tokio::test]
    async fn trailers_come_before_the_end() {
        let (mut body, _, log) = watch(stream(vec![data("a"), Ok(Frame::trailers(trailers()))]));
        assert_eq!(bytes(poll(&mut body)), "a");
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_trailers().unwrap(), trailers());
        assert!(ending(&log).is_empty(), "the stream has not said so");
        assert!(body.frame().await.is_none());
        assert_eq!(ending(&log), OVER);

        let full = Full::new(Bytes::from("whole"));
        let (body, _, log) =
            watch(full.with_trailers(async { Some(Ok::<_, Infallible>(trailers())) }));
        let read = body.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers()));
        assert_eq!(read.to_bytes(), "whole");
        assert_eq!(ending(&log), OVER);
    }

    #[test]
    fn a_lost_lock_is_an_error_and_never_a_clean_end() {
        for reads in 0..=2 {
            let (mut body, signal, log) = watch(stream(vec![data("a"), data("b")]));
            for _ in 0..reads {
                bytes(poll(&mut body));
            }
            signal.fire(Loss::Expired);
            assert!(!body.is_end_stream(), "a server would end it cleanly");
            assert_eq!(error(poll(&mut body)), "expired");
            assert_eq!(polls(&log), reads, "the inner body is not polled any more");
            assert_eq!(ending(&log), OVER);
            assert!(is_end(poll(&mut body)));
        }
    }

    #[test]
    fn a_lock_lost_after_the_end_changes_nothing() {
        let (mut body, signal, log) = watch(Full::new(Bytes::from("whole")));
        assert_eq!(bytes(poll(&mut body)), "whole");
        signal.fire(Loss::Expired);
        assert!(is_end(poll(&mut body)));
        assert_eq!(ending(&log), OVER);
    }

    #[tokio::test]
    async fn a_loss_wakes_an_idle_stream() {
        let (mut sender, channel) = Channel::<Bytes, BoxError>::new(1);
        let (mut body, signal, log) = watch(channel);
        sender.send_data(Bytes::from("a")).await.unwrap();
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "a");
        let read = tokio::spawn(async move { body.frame().await });
        while polls(&log) < 2 {
            tokio::task::yield_now().await;
        }
        signal.fire(Loss::Revoked);
        let error = read.await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "revoked");
        assert_eq!(ending(&log), OVER);
        let sent = sender.send_data(Bytes::from("b")).await;
        assert!(sent.is_err(), "the handler's end of the channel is told");
    }

    /// What a client gets of a watched stream of which it has read "begun".
    async fn served(end: impl FnOnce(Sender<Bytes, BoxError>, &LossSignal)) -> (String, Log) {
        let (mut sender, channel) = Channel::<Bytes, BoxError>::new(1);
        let (body, signal, log) = watch(channel);
        let body = Arc::new(Mutex::new(Some(axum::body::Body::new(body))));
        let app = axum::Router::new()
            .fallback(move || std::future::ready(body.lock().unwrap().take().unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async { axum::serve(listener, app).await });
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        client.write_all(head).await.unwrap();
        sender.send_data(Bytes::from("begun")).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"begun\r\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
        end(sender, &signal);
        // A reset is as good as a close.
        let _ = client.read_to_end(&mut answer).await;
        server.abort();
        (String::from_utf8(answer).unwrap(), log)
    }

    #[tokio::test]
    async fn a_client_can_tell_a_lost_lock_from_the_end() {
        const LAST_CHUNK: &str = "\r\n0\r\n\r\n";
        let (whole, log) = served(|sender, _| drop(sender)).await;
        assert!(whole.ends_with(LAST_CHUNK), "{whole}");
        assert_eq!(ending(&log), OVER);

        let mut kept = None;
        let (cut, log) = served(|sender, signal| {
            kept = Some(sender);
            signal.fire(Loss::Expired);
        })
        .await;
        assert!(cut.ends_with("begun\r\n"), "{cut}");
        assert_eq!(ending(&log), OVER);
    }

    #[test]
    fn a_panic_while_the_inner_body_is_dropped_still_lets_the_watch_go() {
        struct Bomb;

        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("bomb");
            }
        }

        let (body, _, log) = watch(stream(vec![data("a")]).map_frame({
            let bomb = Bomb;
            move |frame| {
                let _ = &bomb;
                frame
            }
        }));
        catch_unwind(AssertUnwindSafe(|| drop(body))).unwrap_err();
        assert!(ending(&log).contains(&"watch dropped"));
    }

    #[tokio::test]
    async fn without_a_watch_the_inner_body_passes_through() {
        let body = ResponseBody::inner(Full::new(Bytes::from("whole")));
        assert_eq!(body.size_hint().exact(), Some(5));
        assert!(!body.is_end_stream());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
        assert!(ResponseBody::inner(Empty::<Bytes>::new()).is_end_stream());

        let inner = stream(vec![data("a"), Ok(Frame::trailers(trailers()))]);
        let read = ResponseBody::inner(inner).collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers()));

        let mut body = ResponseBody::inner(stream(vec![Err("broken".into())]));
        assert_eq!(error(poll(&mut body)), "broken");
    }

    #[tokio::test]
    async fn our_own_answers() {
        let mut body = ResponseBody::<Empty<Bytes>>::refusal(Bytes::from("refused"));
        assert_eq!(body.size_hint().exact(), Some(7));
        assert!(!body.is_end_stream());
        assert_eq!(bytes(poll(&mut body)), "refused");
        assert!(body.is_end_stream());
        assert!(is_end(poll(&mut body)));
        assert!(ResponseBody::<Empty<Bytes>>::refusal(Bytes::new()).is_end_stream());

        let foreign = UnsyncBoxBody::new(stream(vec![
            data("unauthorised"),
            Ok(Frame::trailers(trailers())),
        ]));
        let read = ResponseBody::<Empty<Bytes>>::foreign(foreign);
        assert_eq!(read.size_hint().exact(), None);
        let read = read.collect().await.unwrap();
        assert_eq!(read.trailers(), Some(&trailers()));
        assert_eq!(read.to_bytes(), "unauthorised");
    }

    #[test]
    fn only_streams_outlive_their_head() {
        assert!(!ResponseBody::inner(Empty::<Bytes>::new()).outlives_head());
        assert!(!ResponseBody::inner(Full::new(Bytes::from("whole"))).outlives_head());
        assert!(ResponseBody::inner(stream(vec![])).outlives_head());
        assert!(ResponseBody::inner(Channel::<Bytes, BoxError>::new(1).1).outlives_head());
        assert!(!ResponseBody::<Empty<Bytes>>::refusal(Bytes::from("refused")).outlives_head());
    }

    #[tokio::test]
    async fn bodies_nest_and_move() {
        fn assert<T: Send + Unpin + 'static>(_: &T) {}
        let body = ResponseBody::inner(ResponseBody::inner(Full::new(Bytes::from("whole"))));
        assert(&body);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "whole");
    }
}
