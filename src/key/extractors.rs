//! Keys from axum extractors.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{extract::FromRequestParts, response::IntoResponse};
use http::{Request, request::Parts};

use super::{ExtractResult, Extraction, IntoLockKeys, KeyExtractor, KeyRejection};

/// Keys from a closure over axum extractors, as handlers take them: 1 to 8 of them, sync or async.
///
/// The extractors run in order before anything is locked. The first that fails answers the
/// request with its own rejection, such as a 401 of your `User`. They run again for the handler,
/// so one that reads a database is best done once, in a middleware outside. Extractors of the
/// body (`Json`, `Form`) do not work here: see [`JsonKey`](super::JsonKey).
///
/// ```
/// use axum::{extract::{FromRequestParts, Path}, http::{StatusCode, request::Parts}};
/// use tower_lock::{LockKey, key};
///
/// struct User { tenant: String }
///
/// impl<S: Send + Sync> FromRequestParts<S> for User {
///     type Rejection = StatusCode;
///
///     async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
///         // Your authentication.
/// #       let _ = parts;
/// #       Err(StatusCode::UNAUTHORIZED)
///     }
/// }
///
/// // Tenants never meet: `/orders/7` of one is another key than `/orders/7` of the other.
/// let order = key::from_extractors(|user: User, Path(id): Path<u64>| {
///     LockKey::from_values("order", [user.tenant, id.to_string()])
/// });
/// # let _: &dyn tower_lock::KeyExtractor = &order;
///
/// // Async, and with no key for some requests.
/// let draft = key::from_extractors(async |Path(id): Path<u64>| {
///     (id != 0).then(|| LockKey::new("draft", id))
/// });
/// # let _: &dyn tower_lock::KeyExtractor = &draft;
/// ```
///
/// Extractors that need the router's state take it from [`from_extractors_with_state`].
pub fn from_extractors<F, M>(f: F) -> FromExtractors<F, (), M>
where
    F: ExtractorFn<M, ()>,
{
    from_extractors_with_state((), f)
}

/// [`from_extractors`] for extractors that need this state, such as `State`.
///
/// ```
/// use axum::extract::{Path, State};
/// use tower_lock::{LockKey, key};
///
/// #[derive(Clone)]
/// struct App { region: &'static str }
///
/// let app = App { region: "eu" };
/// let order = key::from_extractors_with_state(
///     app.clone(),
///     async |State(app): State<App>, Path(id): Path<u64>| {
///         LockKey::from_values("order", [app.region, &id.to_string()])
///     },
/// );
/// # let _: &dyn tower_lock::KeyExtractor = &order;
/// ```
pub fn from_extractors_with_state<F, S, M>(state: S, f: F) -> FromExtractors<F, S, M>
where
    F: ExtractorFn<M, S>,
    S: Send + Sync + 'static,
{
    FromExtractors {
        shared: Arc::new(Shared { f, state }),
        marker: PhantomData,
    }
}

/// The extractor that [`from_extractors`] and [`from_extractors_with_state`] make.
pub struct FromExtractors<F, S, M> {
    shared: Arc<Shared<F, S>>,
    marker: PhantomData<fn() -> M>,
}

struct Shared<F, S> {
    f: F,
    state: S,
}

impl<F, S, M> KeyExtractor for FromExtractors<F, S, M>
where
    F: ExtractorFn<M, S>,
    S: Send + Sync + 'static,
    M: 'static,
{
    fn extract(&self, parts: &mut Parts) -> Extraction {
        let shared = Arc::clone(&self.shared);
        let mut head = mem::replace(parts, empty_head());
        let mut future: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(async move {
            let result = shared.f.call(&mut head, &shared.state).await;
            (head, result)
        });
        // Most extractors never wait: then the caller need not either. One that does registers
        // its caller's waker when it is polled again.
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready((head, result)) => {
                *parts = head;
                Extraction::Ready(result)
            }
            Poll::Pending => Extraction::Pending(future),
        }
    }
}

fn empty_head() -> Parts {
    Request::new(()).into_parts().0
}

impl<F, S, M> Clone for FromExtractors<F, S, M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            marker: PhantomData,
        }
    }
}

impl<F, S, M> fmt::Debug for FromExtractors<F, S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromExtractors").finish_non_exhaustive()
    }
}

/// A closure that [`from_extractors`] takes; implemented for all that fit, and only for them.
///
/// `M` is found by the compiler: it tells the arguments, and sync closures from async ones.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a closure from axum extractors to lock keys",
    label = "not a closure from extractors to lock keys",
    note = "it takes 1 to 8 arguments with written types, each `FromRequestParts<{S}>` (not the body: use `JsonKey`), such as `|Path(id): Path<u64>| LockKey::new(\"order\", id)`",
    note = "it returns `LockKey`, `Vec<LockKey>`, `[LockKey; N]`, an `Option` or `Result` of these with a written error type, or a `Send` future of one of these",
    note = "extractors that need state need `from_extractors_with_state`"
)]
pub trait ExtractorFn<M, S>: Send + Sync + 'static {
    /// Runs the extractors and the closure.
    #[doc(hidden)]
    fn call(&self, parts: &mut Parts, state: &S) -> impl Future<Output = ExtractResult> + Send;
}

mod marker {
    #[derive(Debug)]
    pub enum Sync {}
    #[derive(Debug)]
    pub enum Async {}
}

macro_rules! impl_extractor_fn {
    ($($arg:ident)+) => {
        #[diagnostic::do_not_recommend]
        #[allow(non_snake_case)] // The arguments are named as their types.
        impl<F, S, R, $($arg,)+> ExtractorFn<(marker::Sync, $($arg,)+), S> for F
        where
            F: Fn($($arg,)+) -> R + Send + Sync + 'static,
            R: IntoLockKeys,
            S: Send + Sync,
            $($arg: FromRequestParts<S> + Send,)+
        {
            async fn call(&self, parts: &mut Parts, state: &S) -> ExtractResult {
                $(let $arg = run::<$arg, S>(parts, state).await?;)+
                self($($arg,)+).into_lock_keys()
            }
        }

        #[diagnostic::do_not_recommend]
        #[allow(non_snake_case)]
        impl<F, S, Fut, $($arg,)+> ExtractorFn<(marker::Async, $($arg,)+), S> for F
        where
            F: Fn($($arg,)+) -> Fut + Send + Sync + 'static,
            Fut: Future<Output: IntoLockKeys> + Send,
            S: Send + Sync,
            $($arg: FromRequestParts<S> + Send,)+
        {
            async fn call(&self, parts: &mut Parts, state: &S) -> ExtractResult {
                $(let $arg = run::<$arg, S>(parts, state).await?;)+
                self($($arg,)+).await.into_lock_keys()
            }
        }
    };
}

impl_extractor_fn!(T1);
impl_extractor_fn!(T1 T2);
impl_extractor_fn!(T1 T2 T3);
impl_extractor_fn!(T1 T2 T3 T4);
impl_extractor_fn!(T1 T2 T3 T4 T5);
impl_extractor_fn!(T1 T2 T3 T4 T5 T6);
impl_extractor_fn!(T1 T2 T3 T4 T5 T6 T7);
impl_extractor_fn!(T1 T2 T3 T4 T5 T6 T7 T8);

/// One extractor; its rejection is the answer.
async fn run<T: FromRequestParts<S>, S>(parts: &mut Parts, state: &S) -> Result<T, KeyRejection> {
    T::from_request_parts(parts, state)
        .await
        .map_err(|rejection| rejection.into_response().into())
}
