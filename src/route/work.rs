//! What a layer does for one request, as a future that can go on without its caller.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http::{Request, Response};
use tokio::runtime::Handle;
use tower_service::Service;

use crate::{
    manager::{HeldLock, LockGuard},
    policy::{OnDisconnect, OnLost},
    sync::lock,
    web::ResponseBody,
};

/// Calls the inner service once it is ready.
pub(crate) async fn pass<S, B, R>(
    mut inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    poll_fn(|cx| inner.poll_ready(cx)).await?;
    Ok(inner.call(request).await?.map(ResponseBody::inner))
}

/// What others know of a request on its way.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Its handler was called, so it may have had effects.
    begun: AtomicBool,
    /// The locks of the outer layers.
    outer: Mutex<Option<HeldLock>>,
}

impl Progress {
    /// Its handler is called now: from here on it is finished although its caller leaves.
    pub(crate) fn begins(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Before it begins: the locks of the outer layers, which it needs to its end.
    pub(crate) fn is_within(&self, outer: Option<HeldLock>) {
        *lock(&self.outer) = outer;
    }
}

type Boxed<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static>>;

type Detach<R, E> = fn(Boxed<R, E>, Option<HeldLock>);

/// All of what a layer does for one request. Dropped once it has begun, it goes on by itself, if it is
/// to.
pub(crate) struct Work<R, E> {
    work: Option<Boxed<R, E>>,
    /// Only where the handler is to finish although its caller leaves. A plain function pointer: its
    /// bounds are checked where it is made.
    detach: Option<(Arc<Progress>, Detach<R, E>)>,
}

impl<R: 'static, E: 'static> Work<R, E> {
    /// That ends where its caller leaves.
    pub(crate) fn attached<F>(work: F) -> Self
    where
        F: Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static,
    {
        Self {
            work: Some(Box::pin(work)),
            detach: None,
        }
    }

    /// That is finished although its caller leaves, once it has begun, if it is to detach.
    pub(crate) fn new<F>(on_disconnect: OnDisconnect, work: impl FnOnce(Arc<Progress>) -> F) -> Self
    where
        F: Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static,
    {
        let progress = Arc::<Progress>::default();
        let mut this = Self::attached(work(progress.clone()));
        if on_disconnect == OnDisconnect::Detach {
            this.detach = Some((progress, finish_detached::<R, E> as _));
        }
        this
    }
}

impl<R, E> Future for Work<R, E> {
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken while it runs: one that panics must not be detached later.
        let mut work = self.work.take().expect("polled after completion");
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<R, E> Drop for Work<R, E> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && let Some((progress, detach)) = self.detach.take()
            && progress.begun.load(Ordering::Acquire)
        {
            let outer = lock(&progress.outer).take();
            detach(work, outer);
        }
    }
}

/// Runs a handler to its end with nobody to answer to, under the locks of the outer layers too: they
/// end with it, and not with the outer layers' futures, which are being dropped.
fn finish_detached<R: 'static, E: 'static>(work: Boxed<R, E>, outer: Option<HeldLock>) {
    let chain = outer.iter().flat_map(HeldLock::chain);
    let outer: Vec<LockGuard> = chain.filter_map(HeldLock::take_guard).collect();
    let finishing = async move {
        // Declared in this order: wherever the task ends, the handler is dropped before its locks.
        let outer = outer;
        let mut work = work;
        let mut lost = false;
        poll_fn(|cx| {
            lost = outer.iter().any(|guard| {
                let hold = guard.hold();
                hold.plan.on_lost == OnLost::Abort
                    && hold.lease.dyn_lost().poll_holder(cx).is_ready()
            });
            if lost {
                return Poll::Ready(());
            }
            // The response has no reader: what is stored of it is what counts.
            work.as_mut().poll(cx).map(drop)
        })
        .await;
        if lost {
            tracing::warn!(
                target: "tower_lock",
                "a detached handler was dropped because a lock of an outer layer was lost"
            );
        }
        drop(work);
        drop(outer);
    };
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(finishing)),
        // Dropped outside any runtime, it cannot go on.
        Err(_) => tracing::warn!(
            target: "tower_lock",
            "a detached handler was dropped because no runtime is running"
        ),
    }
}
