//! A request's way: its key, its place in the flight, the handler, and what it leaves for the others.

use std::{future::poll_fn, sync::Arc};

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
};
use crate::{
    backend::WaitBound,
    error::BoxError,
    key::{KeyExtractor, KeyRejection, LockKeys},
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
    /// It said who asks.
    is_personal: bool,
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
        let shares = policy.shared_for().is_some();
        let key = match keys {
            Ok(LockKeys::One(key)) => vary.key(key, &parts, shares),
            Ok(LockKeys::Skip) => {
                let response = pass(inner, Request::from_parts(parts, body)).await?;
                return Ok(response.map(ResponseBody::inner));
            }
            Ok(LockKeys::Many(_)) => {
                let rejection = KeyRejection::misconfigured(
                    "a single flight is one key: give one, by `LockKey::from_values`",
                );
                return Ok(route.reject(rejection, &parts).into_response());
            }
            Err(rejection) => return Ok(route.reject(rejection, &parts).into_response()),
        };
        // Within a layer of the same key, which does all of it.
        if route.outer(&parts, &key).is_some() {
            let response = pass(inner, Request::from_parts(parts, body)).await?;
            return Ok(response.map(ResponseBody::inner));
        }
        if shares {
            ask_for_all(&mut parts.headers);
        }
        let terms = route.terms(&parts);
        let label = terms.route.clone();
        let lead = |beginning, parts: &request::Parts| Lead {
            beginning,
            route: label.clone(),
            is_personal: vary.is_personal(&parts.headers),
        };
        match self.find(&key, &parts, terms).await {
            Place::Refused(response) => Ok(response),
            Place::Runs(flight) => {
                parts.extensions.insert(flight);
                let response = pass(inner, Request::from_parts(parts, body)).await?;
                Ok(response.map(ResponseBody::inner))
            }
            Place::Leads(beginning) => {
                let lead = lead(beginning, &parts);
                self.lead(lead, inner, Request::from_parts(parts, body))
                    .await
            }
            Place::Gets(shared, how) => {
                let is_stale = shared.age() >= shared.fresh();
                let may_be_stale = !policy.stale_for().is_zero();
                count_flight(
                    key.namespace(),
                    &label,
                    match how {
                        How::Hit if is_stale && may_be_stale => "stale",
                        _ => "shared",
                    },
                );
                if is_stale
                    && may_be_stale
                    && let Some(rebuild) = self.settings.rebuilding.clone().begin(&key)
                    // Another executor answers, and rebuilds nothing.
                    && let Ok(runtime) = Handle::try_current()
                {
                    let request = Request::from_parts(parts, body);
                    let rebuilding = self.clone().rebuild(rebuild, label.clone(), inner, request);
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
        let Settings { route, vary, .. } = &*self.settings;
        let (mut parts, body) = request.into_parts();
        // Of a request that is over by then.
        parts.extensions.remove::<HeldLock>();
        let terms = route.terms(&parts);
        let mut wish = route.wish(rebuild.key.clone(), &terms);
        wish.wait = WaitBound::Fail;
        let shared = route.manager.shared();
        let beginning = match shared.begin(&wish, None).await {
            Ok(Begun::First(beginning)) => beginning,
            Ok(_) => return,
            Err(error) => return route.log(&error, &rebuild.key, &parts),
        };
        let kept = match shared.load(&rebuild.key).await {
            Ok(record) => record.and_then(|record| Kept::decode(record.bytes)),
            Err(error) => {
                route.log(&error, &rebuild.key, &parts);
                None
            }
        };
        if let Some(Kept::Response(shared)) = kept
            && shared.age() < shared.fresh()
        {
            return beginning.forget().await;
        }
        let lead = Lead {
            is_personal: vary.is_personal(&parts.headers),
            beginning: Box::new(beginning),
            route: label,
        };
        // What went wrong, the handler knows; the next one tries again.
        let _ = self
            .lead(lead, inner, Request::from_parts(parts, body))
            .await;
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
        let namespace = lead.beginning.guard().key().namespace().to_owned();
        let count = |outcome| count_flight(&namespace, &lead.route, outcome);
        let called = async {
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            let (mut parts, body) = request.into_parts();
            self.show(&lead.beginning, &mut parts.extensions);
            self.progress.begins();
            inner.call(Request::from_parts(parts, body)).await
        };
        let (head, body) = match called.await {
            Ok(response) => response.into_parts(),
            Err(error) => {
                count("led_failed");
                lead.beginning.forget().await;
                return Err(error);
            }
        };
        let held = lead.beginning.guard().hold().held_for(Instant::now());
        self.settings.route.stats.record(held);
        Ok(self.leave(lead, head, body).await)
    }

    /// Leaves the response, or that it is done, or nothing: then the next one leads.
    async fn leave<R>(
        &self,
        lead: Lead,
        head: response::Parts,
        body: R,
    ) -> Response<ResponseBody<R>>
    where
        R: Body,
        R::Error: Into<BoxError>,
    {
        let Settings { policy, vary, .. } = &*self.settings;
        let landing = self.settings.landing(&head);
        let fresh = match landing {
            Landing::Done => shared_for(policy, vary, lead.is_personal, &head),
            _ => None,
        };
        let (body, kept, landing) = match fresh {
            None => (ResponseBody::inner(body), None, landing),
            Some(fresh) => match collect(body, policy.max_response(), |_| false).await {
                Collected::Whole(bytes, trailers) => {
                    let kept = self.kept(fresh, &head, &bytes, trailers.as_deref());
                    let body = ResponseBody::read(bytes, Rest::End(trailers));
                    (body, kept.map(|bytes| (bytes, fresh)), landing)
                }
                broken @ Collected::Part(_, Rest::Error(_)) => {
                    (broken.into_body(), None, Landing::Failed)
                }
                part => (part.into_body(), None, Landing::GaveUp),
            },
        };
        let namespace = lead.beginning.guard().key().namespace().to_owned();
        let count = |outcome| count_flight(&namespace, &lead.route, outcome);
        let pass = Outcome::Keep {
            bytes: Kept::Pass.encode(),
            ttl: self.settings.pass_ttl(),
        };
        let mut stored = false;
        match (landing, kept) {
            (Landing::Failed, _) => {
                count("led_failed");
                lead.beginning.forget().await;
            }
            (landing, kept) => {
                count(match landing {
                    Landing::GaveUp => "led_gave_up",
                    _ => "led",
                });
                stored = kept.is_some();
                let (keep, less) = match kept {
                    None => (pass, None),
                    Some((bytes, fresh)) => {
                        let ttl = fresh.left.saturating_add(policy.stale_for());
                        (Outcome::Keep { bytes, ttl }, Some(pass))
                    }
                };
                if lead.beginning.end(keep, less).await.is_err() {
                    // Logged where it fails for good.
                    count("unsaved");
                    stored = false;
                }
            }
        }
        let mut response = Response::from_parts(head, body);
        if policy.shared_for().is_some() {
            tell(response.headers_mut(), How::Led { stored }, None);
        }
        response
    }

    /// The record of a response; `None` if it is longer than the store takes.
    fn kept(
        &self,
        fresh: Fresh,
        head: &response::Parts,
        body: &Bytes,
        trailers: Option<&HeaderMap>,
    ) -> Option<Bytes> {
        let headers = self.settings.policy.stored_headers();
        let mut response = StoredResponse::new(head.status, body.clone());
        response.headers = headers.select(&head.headers);
        response.trailers = trailers.map(|trailers| Box::new(headers.select(trailers)));
        let kept = Kept::Response(Shared::new(response, fresh.age, fresh.left)).encode();
        (kept.len() <= self.settings.limits.max_bytes).then_some(kept)
    }

    fn show(&self, beginning: &Beginning, extensions: &mut http::Extensions) {
        let outer = extensions.remove::<HeldLock>();
        self.progress.is_within(outer.clone());
        let hold = beginning.guard().hold().clone();
        extensions.insert(HeldLock::link(hold, 1, outer.map(Arc::new)));
        extensions.insert(Flight::Leads);
    }
}
