//! The response future: waits for the lock, runs the handler under it, releases.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project::{pin_project, pinned_drop};
use tokio::runtime::Handle;
use tower_service::Service;

use super::{
    session::{Finished, Session},
    start::Start,
};
use crate::{
    error::BoxError,
    key::LockKey,
    lease::Loss,
    manager::{LockGuard, Releasing},
    policy::OnLost,
    web::ResponseBody,
};

/// The future of a request behind a [`LockLayer`](crate::LockLayer).
#[pin_project(PinnedDrop)]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    #[pin]
    state: State<S, S::Future, B, R>,
    /// How the handler finishes when the caller leaves, under `Detach`.
    detach: Option<Detach<S::Future>>,
}

/// Moves a running handler to the application's runtime. A plain function pointer: its bounds
/// are checked where it is made, so that the future itself needs none.
type Detach<F> = fn(Pin<Box<F>>, Session);

#[pin_project(project = StateProj)]
enum State<S, F, B, R> {
    /// Waiting for a key, a body or a lock.
    Waiting {
        start: Start<B>,
        inner: Option<S>,
    },
    /// The lock is held; the inner service becomes ready.
    Readying {
        inner: S,
        request: Option<Request<B>>,
        session: Option<Session>,
    },
    /// The handler runs. It is declared before its locks: dropped before they are released.
    Running {
        #[pin]
        handler: F,
        session: Option<Session>,
    },
    /// As `Running`, able to move.
    Detachable {
        handler: Option<Pin<Box<F>>>,
        session: Option<Session>,
    },
    /// The response waits for its releases to be confirmed.
    Confirming {
        response: Option<Response<ResponseBody<R>>>,
        releasing: Vec<Releasing>,
    },
    Done,
}

/// How a poll of the handler ended.
enum Outcome<T, E> {
    Answered(Result<T, E>),
    Lost(Loss, LockKey),
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    pub(super) fn new(inner: S, start: Start<B>, detach: bool) -> Self
    where
        S::Future: Send + 'static,
        R: Body,
    {
        let state = match start {
            Start::Run(request, session) => State::Readying {
                inner,
                request: Some(request),
                session,
            },
            start => State::Waiting {
                start,
                inner: Some(inner),
            },
        };
        Self {
            state,
            detach: detach.then_some(finish_detached::<S::Future, R, S::Error>),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    R::Data: From<Bytes>,
    R::Error: Into<BoxError>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (outcome, session) = match this.state.as_mut().project() {
                StateProj::Waiting { start, inner } => {
                    if let Start::Wait(wait) = start {
                        *start = ready!(wait.as_mut().poll(cx));
                        continue;
                    }
                    let inner = inner.take().expect("polled after completion");
                    match std::mem::replace(start, Start::Taken) {
                        Start::Run(request, session) => {
                            this.state.set(State::Readying {
                                inner,
                                request: Some(request),
                                session,
                            });
                            continue;
                        }
                        Start::Answer(answer) => {
                            this.state.set(State::Done);
                            return Poll::Ready(Ok(answer.into_response()));
                        }
                        Start::Wait(_) | Start::Taken => unreachable!("it does not wait"),
                    }
                }
                StateProj::Readying {
                    inner,
                    request,
                    session,
                } => {
                    let ready = inner.poll_ready(cx);
                    let lost = session.as_ref().and_then(|session| match ready {
                        Poll::Ready(_) => session.abort(),
                        Poll::Pending => session.poll_abort(cx),
                    });
                    if let Some((loss, key)) = lost {
                        let session = session.take().expect("just seen");
                        this.state.set(State::Done);
                        return Poll::Ready(Ok(session.aborted(loss, &key)));
                    }
                    if let Err(error) = ready!(ready) {
                        if let Some(session) = session.take() {
                            session.fail();
                        }
                        this.state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                    let request = request.take().expect("taken once");
                    let session = session.take();
                    let handler = inner.call(request);
                    // Only a handler that holds a lock has a reason to outlive its caller.
                    let state = match (&this.detach, session) {
                        (Some(_), Some(session)) => State::Detachable {
                            handler: Some(Box::pin(handler)),
                            session: Some(session),
                        },
                        (_, session) => State::Running { handler, session },
                    };
                    this.state.set(state);
                    continue;
                }
                StateProj::Running { handler, session } => {
                    let outcome = ready!(poll_handler(handler, session.as_ref(), cx));
                    (outcome, session.take())
                }
                StateProj::Detachable { handler, session } => {
                    // Taken while it runs: a handler that panics must not be detached later.
                    let mut running = handler.take().expect("polled after completion");
                    match poll_handler(running.as_mut(), session.as_ref(), cx) {
                        Poll::Pending => {
                            *handler = Some(running);
                            return Poll::Pending;
                        }
                        Poll::Ready(outcome) => (outcome, session.take()),
                    }
                }
                StateProj::Confirming {
                    response,
                    releasing,
                } => {
                    while let Some(release) = releasing.last_mut() {
                        // An error was logged, and the reaper repeats the release.
                        let _ = ready!(Pin::new(release).poll(cx));
                        releasing.pop();
                    }
                    let response = response.take().expect("polled after completion");
                    this.state.set(State::Done);
                    return Poll::Ready(Ok(response));
                }
                StateProj::Done => panic!("polled after completion"),
            };
            // The handler is dropped here, before its lock can be released.
            this.state.set(State::Done);
            match end(outcome, session) {
                Ok(Finished::Respond(response)) => return Poll::Ready(Ok(response)),
                Ok(Finished::Confirm(response, releasing)) => {
                    this.state.set(State::Confirming {
                        response: Some(response),
                        releasing,
                    });
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Polls the handler unless a lock of it is lost: then it is never polled again.
fn poll_handler<F, T, E>(
    handler: Pin<&mut F>,
    session: Option<&Session>,
    cx: &mut Context<'_>,
) -> Poll<Outcome<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let Some(session) = session else {
        return handler.poll(cx).map(Outcome::Answered);
    };
    if let Some((loss, key)) = session.abort() {
        return Poll::Ready(Outcome::Lost(loss, key));
    }
    match handler.poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Outcome::Answered(answer)),
        // Only who goes to sleep needs to be woken.
        Poll::Pending => match session.poll_abort(cx) {
            Some((loss, key)) => Poll::Ready(Outcome::Lost(loss, key)),
            None => Poll::Pending,
        },
    }
}

fn end<R: Body, E>(
    outcome: Outcome<Response<R>, E>,
    session: Option<Session>,
) -> Result<Finished<R>, E> {
    match (outcome, session) {
        (Outcome::Answered(Ok(response)), Some(session)) => Ok(session.finish(response)),
        (Outcome::Answered(Ok(response)), None) => {
            Ok(Finished::Respond(response.map(ResponseBody::inner)))
        }
        (Outcome::Answered(Err(error)), session) => {
            if let Some(session) = session {
                session.fail();
            }
            Err(error)
        }
        (Outcome::Lost(loss, key), Some(session)) => {
            Ok(Finished::Respond(session.aborted(loss, &key)))
        }
        (Outcome::Lost(..), None) => unreachable!("only a session reports a loss"),
    }
}

/// A handler whose caller has left. In this order: wherever its task ends, the handler is dropped
/// before its locks.
struct Detached<F> {
    handler: Pin<Box<F>>,
    session: Session,
    /// The locks of the outer layers of the request.
    outer: Vec<LockGuard>,
}

impl<F> Detached<F> {
    /// Whether the handler must be dropped because a lock of an outer layer is lost.
    fn poll_outer(&self, cx: &mut Context<'_>) -> Poll<(Loss, LockKey)> {
        for guard in &self.outer {
            let hold = guard.hold();
            if hold.plan.on_lost == OnLost::Abort
                && let Poll::Ready(loss) = hold.lease.dyn_lost().poll_holder(cx)
            {
                return Poll::Ready((loss, guard.key().clone()));
            }
        }
        Poll::Pending
    }
}

/// Runs a handler to its end under its locks, with nobody to answer to.
fn finish_detached<F, R, E>(handler: Pin<Box<F>>, mut session: Session)
where
    F: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: Body,
{
    let detached = Detached {
        outer: session.take_outer(),
        handler,
        session,
    };
    let work = async move {
        let mut detached = detached;
        let outcome = std::future::poll_fn(|cx| {
            if let Poll::Ready(lost) = detached.poll_outer(cx) {
                return Poll::Ready(Some(lost));
            }
            let session = Some(&detached.session);
            poll_handler(detached.handler.as_mut(), session, cx).map(|outcome| match outcome {
                // The response has no reader; only its end matters, and that is now.
                Outcome::Answered(_) => None,
                Outcome::Lost(loss, key) => Some((loss, key)),
            })
        })
        .await;
        drop(detached.handler);
        detached.session.detached_end(outcome);
        drop(detached.outer);
    };
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(work)),
        // Dropped outside any runtime, the handler cannot go on. Dropping it releases the lock.
        Err(_) => tracing::warn!(
            target: "tower_lock",
            "a detached handler was dropped because no runtime is running"
        ),
    }
}

#[pinned_drop]
impl<S, B, R> PinnedDrop for ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        if let (Some(detach), StateProj::Detachable { handler, session }) =
            (this.detach, this.state.project())
            && let (Some(handler), Some(session)) = (handler.take(), session.take())
        {
            detach(handler, session);
        }
    }
}

impl<S, B, R> fmt::Debug for ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "waiting",
            State::Readying { .. } => "readying",
            State::Running { .. } | State::Detachable { .. } => "running",
            State::Confirming { .. } => "confirming",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
