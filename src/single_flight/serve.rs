//! A request's way: its key, its place in the flight, the handler, and what it leaves for the others.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request, response};
use http_body::Body;
use tokio::{runtime::Handle, time::Instant};
use tower_service::Service;

use super::{
    find::Place,
    flight::Flight,
    kept::{Kept, Shared},
    landing::Landing,
    settings::{Rebuild, Settings},
    share::{Fresh, How, ask_for_all, give, shared_for, tell},
    vary::Audience,
};
use crate::{
    backend::WaitBound,
    error::BoxError,
    key::{KeyExtractor, KeyRejection, LockKey, LockKeys},
    lease::Loss,
    manager::{
        Beginning, Begun, HeldLock,
        observe::{Route, count_flight},
    },
    record::Outcome,
    replay::{Collected, StoredResponse, collect},
    route::{Progress, pass},
    web::{ResponseBody, Rest},
};

/// One request.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) settings: Arc<Settings>,
    pub(super) progress: Arc<Progress>,
}

/// A request that leads, and what is known of it.
struct Lead {
    beginning: Box<Beginning>,
    route: Route,
    audience: Audience,
    /// Nobody waits for it: a stale response is served meanwhile.
    in_background: bool,
}

impl Visit {
    pub(super) async fn serve<S, B, R>(
        self,
        extractor: Arc<dyn KeyExtractor>,
        inner: S,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Send + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let extraction = extractor.extract(&mut parts);
        let (mut parts, keys) = extraction.resolve(parts).await;
        let Settings {
            route,
            policy,
            vary,
            ..
        } = &*self.settings;
        let key = match keys {
            Ok(LockKeys::One(key)) => Some(vary.key(key, &parts, policy.shared_for().is_some())),
            Ok(LockKeys::Skip) => None,
            Ok(LockKeys::Many(_)) => {
                let rejection = KeyRejection::misconfigured(
                    "a single flight is one key: give one, by `LockKey::from_values`",
                );
                return Ok(route.reject(rejection, &parts).into_response());
            }
            Err(rejection) => return Ok(route.reject(rejection, &parts).into_response()),
        };
        // Within a layer that holds the same key, that one does all of it.
        let Some(key) = key.filter(|key| route.outer(&parts, key).is_none()) else {
            return pass(inner, Request::from_parts(parts, body)).await;
        };
        let terms = route.terms(&parts);
        let label = terms.route.clone();
        match self.find(&key, &parts, terms).await {
            Place::Refused(response) => Ok(response),
            Place::Runs(flight) => {
                parts.extensions.insert(flight);
                pass(inner, Request::from_parts(parts, body)).await
            }
            Place::Leads(beginning) => {
                let lead = Lead {
                    beginning,
                    route: label,
                    audience: vary.audience(&parts.headers),
                    in_background: false,
                };
                let request = Request::from_parts(parts, body);
                self.lead(lead, inner, request).await
            }
            Place::Gets(shared, how) => {
                let is_stale = how == How::Hit && shared.age() >= self.settings.freshness(&shared);
                count_flight(
                    key.namespace(),
                    &label,
                    if is_stale { "stale" } else { "shared" },
                );
                // What is made for somebody by name is not for the others. And another executor
                // answers, and rebuilds nothing.
                if is_stale
                    && vary.audience(&parts.headers) == Audience::All
                    && let Some(rebuild) = self.settings.rebuilding.clone().begin(&key)
                    && let Ok(runtime) = Handle::try_current()
                {
                    let request = Request::from_parts(parts, body);
                    let rebuilding = self.clone().rebuild(rebuild, label, inner, request);
                    drop(runtime.spawn(rebuilding));
                }
                Ok(give(shared, how))
            }
        }
    }

    /// Leads in the background, unless another does, or has just done it.
    async fn rebuild<S, B, R>(self, rebuild: Rebuild, label: Route, inner: S, request: Request<B>)
    where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body,
        R::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        // Of a request that is over by then.
        parts.extensions.remove::<HeldLock>();
        let Some(beginning) = self.begin_rebuild(&rebuild.key, &parts).await else {
            return rebuild.rests().await;
        };
        let hold = beginning.guard().hold().clone();
        let lead = Lead {
            beginning: Box::new(beginning),
            route: label,
            audience: Audience::All,
            in_background: true,
        };
        let mut leading = pin!(self.lead(lead, inner, Request::from_parts(parts, body)));
        let lost = hold.lease.dyn_lost();
        let led = poll_fn(|cx| match leading.as_mut().poll(cx) {
            Poll::Ready(led) => Poll::Ready(Some(led.is_ok_and(|response| is_kept(&response)))),
            Poll::Pending => lost.poll_holder(cx).map(|_| None),
        });
        match led.await {
            Some(true) => {}
            Some(false) => rebuild.rests().await,
            // It takes too long: another may rebuild beside it.
            None => {
                drop(rebuild);
                let _ = leading.await;
            }
        }
    }

    async fn begin_rebuild(&self, key: &LockKey, parts: &request::Parts) -> Option<Beginning> {
        let route = &self.settings.route;
        let mut wish = route.wish(key.clone(), &route.terms(parts));
        wish.wait = WaitBound::Fail;
        let shared = route.manager.shared();
        let log = |error| route.log(&error, key, parts);
        let Begun::First(beginning) = shared.begin(&wish, None).await.map_err(log).ok()? else {
            return None;
        };
        // Another may have done it before this one had the lock.
        let record = shared.load(key).await.map_err(log).ok().flatten();
        match record.and_then(|record| Kept::decode(record.bytes)) {
            Some(Kept::Response(kept)) if kept.age() >= self.settings.freshness(&kept) => {
                Some(beginning)
            }
            _ => {
                beginning.forget().await;
                None
            }
        }
    }

    /// Runs the handler, whose end is told to the others before its own client has the response.
    async fn lead<S, B, R>(
        self,
        lead: Lead,
        mut inner: S,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body,
        R::Error: Into<BoxError>,
    {
        let hold = lead.beginning.guard().hold().clone();
        let count = |outcome| count_flight(hold.key.namespace(), &lead.route, outcome);
        let called = async {
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            let (mut parts, body) = request.into_parts();
            if self.settings.policy.shared_for().is_some() {
                ask_for_all(&mut parts.headers);
            }
            self.show(&lead.beginning, &mut parts.extensions);
            self.progress.begins();
            inner.call(Request::from_parts(parts, body)).await
        };
        let called = {
            let mut called = pin!(called);
            poll_fn(|cx| {
                // Whoever is too slow is not waited for until its lease ends.
                if let Poll::Ready(Loss::MaxHold) = hold.lease.dyn_lost().poll_holder(cx) {
                    drop(lead.beginning.guard().start_release());
                }
                called.as_mut().poll(cx)
            })
            .await
        };
        let (head, body) = match called {
            Ok(response) => response.into_parts(),
            Err(error) => {
                count("led_failed");
                return Err(error);
            }
        };
        self.settings
            .route
            .stats
            .record(hold.held_for(Instant::now()));
        let landing = self.settings.landing(&head);
        if landing == Landing::Failed {
            count("led_failed");
            // In the background, as where it is dropped: nobody waits for this response to end.
            drop(lead);
            return Ok(self.finish(head, ResponseBody::inner(body), false));
        }
        let (body, kept, landing) = self.collect(&lead, landing, &head, body).await;
        count(match landing {
            Landing::Done => "led",
            Landing::GaveUp => "led_gave_up",
            Landing::Failed => "led_failed",
        });
        let pass = Outcome::Keep {
            bytes: Kept::Pass.encode(),
            ttl: self.settings.pass_ttl(),
        };
        let is_kept = kept.is_some();
        // It would have been for others, as far as its request is concerned: one of them asks anew.
        let asks_anew = lead.audience == Audience::Client
            && landing == Landing::Done
            && self.settings.policy.shared_for().is_some();
        let (outcome, less) = match kept {
            // What is stale is served on.
            Some(kept) if lead.in_background => (kept, None),
            Some(kept) => (kept, Some(pass)),
            None if landing == Landing::Failed || asks_anew || lead.in_background => {
                (Outcome::Forget, None)
            }
            None => (pass, None),
        };
        let saved = lead.beginning.end(outcome, less).await;
        if saved.is_err() {
            // Logged where it fails for good.
            count("unsaved");
        }
        Ok(self.finish(head, body, is_kept && saved.is_ok()))
    }

    /// Reads a response that may be shared: all of it, what is left of it for the others, and what it
    /// means to them by now.
    async fn collect<R>(
        &self,
        lead: &Lead,
        landing: Landing,
        head: &response::Parts,
        body: R,
    ) -> (ResponseBody<R>, Option<Outcome>, Landing)
    where
        R: Body,
        R::Error: Into<BoxError>,
    {
        let Settings { policy, vary, .. } = &*self.settings;
        let fresh = shared_for(policy, vary, lead.audience, head);
        let Some(fresh) = fresh.filter(|_| landing == Landing::Done) else {
            return (ResponseBody::inner(body), None, landing);
        };
        let began = Instant::now();
        let hold = lead.beginning.guard().hold();
        // Whoever takes longer than a leader may has a stream, perhaps.
        let stops = |cx: &mut Context<'_>| hold.lease.dyn_lost().poll_holder(cx).is_ready();
        match collect(body, policy.max_response(), stops).await {
            Collected::Whole(bytes, trailers) => {
                let fresh = fresh.later(began.elapsed());
                let kept =
                    fresh.and_then(|fresh| self.kept(fresh, head, &bytes, trailers.as_deref()));
                (
                    ResponseBody::read(bytes, Rest::End(trailers)),
                    kept,
                    landing,
                )
            }
            broken @ Collected::Part(_, Rest::Error(_)) => {
                (broken.into_body(), None, Landing::Failed)
            }
            part => (part.into_body(), None, Landing::GaveUp),
        }
    }

    /// The record of a response; `None` if it is longer than the store takes.
    fn kept(
        &self,
        fresh: Fresh,
        head: &response::Parts,
        body: &Bytes,
        trailers: Option<&HeaderMap>,
    ) -> Option<Outcome> {
        let headers = self.settings.policy.stored_headers();
        let mut response = StoredResponse::new(head.status, body.clone());
        response.headers = headers.select(&head.headers);
        response.trailers = trailers.map(|trailers| Box::new(headers.select(trailers)));
        let bytes = Kept::Response(Shared::new(response, fresh.age, fresh.left)).encode();
        let ttl = fresh.left.saturating_add(fresh.stale);
        (bytes.len() <= self.settings.limits.max_bytes).then_some(Outcome::Keep { bytes, ttl })
    }

    fn finish<R>(
        &self,
        head: response::Parts,
        body: ResponseBody<R>,
        stored: bool,
    ) -> Response<ResponseBody<R>> {
        let mut response = Response::from_parts(head, body);
        if self.settings.policy.shared_for().is_some() {
            tell(response.headers_mut(), How::Led { stored }, None);
        }
        if stored {
            response.extensions_mut().insert(IsKept);
        }
        response
    }

    fn show(&self, beginning: &Beginning, extensions: &mut http::Extensions) {
        let outer = extensions.remove::<HeldLock>();
        self.progress.is_within(outer.clone());
        let hold = beginning.guard().hold().clone();
        extensions.insert(HeldLock::link(hold, 1, outer.map(Arc::new)));
        extensions.insert(Flight::Leads);
    }
}

/// In the extensions of a response that others get, too.
#[derive(Clone, Copy)]
struct IsKept;

fn is_kept<R>(response: &Response<R>) -> bool {
    response.extensions().get::<IsKept>().is_some()
}
