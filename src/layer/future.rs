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
    refuse::Answer,
    session::{Finished, Session},
    start::Start,
};
use crate::{error::BoxError, key::LockKey, lease::Loss, manager::Releasing, web::ResponseBody};

/// The future of a request behind a [`LockLayer`](crate::LockLayer).
#[pin_project(PinnedDrop)]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    #[pin]
    state: State<S, S::Future, B, S::Response>,
    /// How to let the handler finish when the caller leaves, under `Detach`.
    detach: Option<Detach<S::Future>>,
}

/// Moves a running handler to the application's runtime. A plain function pointer: its bounds
/// are checked where it is made, so that the future itself needs none.
type Detach<F> = fn(Pin<Box<F>>, Session);

#[pin_project(project = StateProj)]
enum State<S, F, B, T> {
    /// Waiting for a key, a body or a lock.
    Waiting {
        start: Option<Start<B>>,
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
    /// The response waits for its release to be confirmed.
    Confirming {
        response: Option<Held<T>>,
        releasing: Vec<Releasing>,
    },
    Done,
}

/// A response that is finished but for its body's type.
type Held<T> = Box<T>;

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn new(inner: S, start: Start<B>, detach: bool) -> Self
    where
        S::Future: Send + 'static,
    {
        todo!()
    }
}
