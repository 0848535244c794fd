//! A request's way: its key, its fingerprint, the record or the lock, the handler, and what is left.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response, request, response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::{
    Fingerprint,
    client_key::ClientKey,
    first_run::FirstRun,
    knobs::{Keep, OnCrash, Unreplayable},
    mark::{IDEMPOTENT_REPLAYED, mark_replayed},
    policy::IdempotencyPolicy,
    repeat::{Holder, Repeat},
    stored::{Stored, StoredOutcome},
    verdict::Verdict,
};
use crate::{
    backend::WaitBound,
    error::BoxError,
    key::{KeyExtractor, KeyRejection, LockKey, LockKeys},
    lease::Loss,
    manager::{Beginning, Begun, HeldLock, observe::count_idempotent},
    policy::OnLost,
    record::{Opening, Orphans, Outcome, RecordLimits},
    replay::{Collected, StoredResponse, collect, is_event_stream},
    route::{Config, Progress, Terms, Told, pass, tell_applied},
    web::{Refusal, RefusalKind, RequestBody, ResponseBody, Rest, buffer},
};

/// Everything about a layer but its key.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) route: Config,
    pub(super) policy: IdempotencyPolicy,
    pub(super) limits: RecordLimits,
}

/// One request.
pub(super) struct Visit {
    pub(super) settings: Arc<Settings>,
    pub(super) progress: Arc<Progress>,
}

impl Visit {
    pub(super) async fn serve<S, B, R>(
        self,
        extractor: Arc<dyn KeyExtractor>,
        inner: S,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        B: Body,
        B::Error: Into<BoxError>,
        R: Body,
        R::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let extraction = extractor.extract(&mut parts);
        let (parts, keys) = extraction.resolve(parts).await;
        let key = match keys {
            Ok(LockKeys::One(key)) if self.settings.route.outer(&parts, &key).is_none() => key,
            // Without a key, or within a layer of the same key, which does all of it.
            Ok(LockKeys::Skip | LockKeys::One(_)) => {
                let request = Request::from_parts(parts, RequestBody::streaming(body));
                return pass(inner, request).await;
            }
            Ok(LockKeys::Many(_)) => {
                let rejection = KeyRejection::misconfigured("an idempotency key is one key");
                return Ok(self.reject(rejection, &parts));
            }
            Err(rejection) => return Ok(self.reject(rejection, &parts)),
        };
        let policy = &self.settings.policy;
        let limit = policy.fingerprint().max_body();
        let body = match buffer(&parts.headers, body, limit).await {
            Ok(body) => body,
            Err(error) => {
                let refusal = Refusal::from_buffer_error(&error);
                let told = Told::unwaited(&parts.headers);
                return Ok(self.refuse(refusal, &parts, told));
            }
        };
        let fingerprint = match policy.fingerprint().fingerprint(&parts, &body.bytes) {
            Ok(fingerprint) => fingerprint,
            Err(rejection) => return Ok(self.reject(rejection, &parts)),
        };
        let terms = self.settings.route.terms(&parts);
        match self.begin(&key, fingerprint, &parts, terms).await {
            Ok((beginning, terms)) => {
                let body = RequestBody::buffered(body);
                self.run(beginning, fingerprint, terms, inner, parts, body)
                    .await
            }
            Err(response) => Ok(response),
        }
    }

    fn reject<R>(
        &self,
        rejection: KeyRejection,
        parts: &request::Parts,
    ) -> Response<ResponseBody<R>> {
        self.settings.route.reject(rejection, parts).into_response()
    }

    fn refuse<R>(
        &self,
        refusal: Refusal,
        parts: &request::Parts,
        told: Told,
    ) -> Response<ResponseBody<R>> {
        let response = self.settings.route.render(refusal, Some(parts), told);
        response.map(ResponseBody::refusal)
    }

    /// The lock, or the answer of a request that is not the first of its key.
    async fn begin<R>(
        &self,
        key: &LockKey,
        fingerprint: Fingerprint,
        parts: &request::Parts,
        terms: Terms,
    ) -> Result<(Beginning, Terms), Response<ResponseBody<R>>> {
        let Settings { route, policy, .. } = &*self.settings;
        let label = terms.route.clone();
        let count = |outcome| count_idempotent(key.namespace(), &label, outcome);
        let mut opening = self.opening(fingerprint);
        // Whoever is refused for its fingerprint should not have waited for it.
        let mut looks = true;
        loop {
            let mut wish = route.wish(key.clone(), &terms);
            let waits = wish.wait != WaitBound::Fail;
            if looks {
                wish.wait = WaitBound::Fail;
            }
            let begun = match route.manager.shared().begin(&wish, Some(&opening)).await {
                Ok(begun) => begun,
                Err(error) => {
                    route.log(&error, key, parts);
                    count(error.kind().as_str());
                    return Err(route.refuse(&error, key, terms, parts).into_response());
                }
            };
            let (record, holder) = match begun {
                Begun::First(beginning) => {
                    count(if beginning.previous().is_some() {
                        "rerun"
                    } else {
                        "first"
                    });
                    return Ok((beginning, terms));
                }
                Begun::Record(record) => (Some(record), Holder::Gone),
                Begun::Held { open, remaining } => (open, Holder::Other { remaining }),
            };
            let repeat = match (record, holder) {
                (Some(record), holder) => policy.meet(key, fingerprint, record.bytes, holder),
                // Somebody who keeps no record has the key, or has just begun.
                (None, _) => {
                    Repeat::Refuse(Refusal::new(RefusalKind::InProgress, Some(key.namespace())))
                }
            };
            match repeat {
                Repeat::Replay(stored) => {
                    count("replayed");
                    return Err(replay(stored, parts, &terms.told));
                }
                Repeat::Refuse(refusal)
                    if refusal.kind() == RefusalKind::InProgress && waits && looks =>
                {
                    looks = false;
                }
                Repeat::Refuse(mut refusal) => {
                    if refusal.kind() == RefusalKind::InProgress
                        && let Some(hold) = route.stats.average_hold()
                    {
                        refusal = refusal.with_retry_after(hold);
                    }
                    count(refusal.kind().as_str());
                    return Err(self.refuse(refusal, parts, terms.told));
                }
                // An orphan of the same request whose bytes another version wrote.
                Repeat::Rerun if opening.orphans != Orphans::Replace => {
                    opening = opening.with_orphans(Orphans::Replace);
                }
                Repeat::Rerun => {
                    let refusal = Refusal::new(RefusalKind::OutcomeUnknown, Some(key.namespace()));
                    count(refusal.kind().as_str());
                    return Err(self.refuse(refusal, parts, terms.told));
                }
            }
        }
    }

    /// What is written when a request may begin.
    fn opening(&self, fingerprint: Fingerprint) -> Opening {
        let Settings { policy, limits, .. } = &*self.settings;
        let begun = Stored::new(fingerprint, StoredOutcome::Begun).encode();
        // Longer than it may run.
        let most = policy.lock().max_hold() + policy.ttl();
        let ttl = policy.record_ttl().max(most).min(limits.max_ttl);
        Opening::new(begun, ttl).with_orphans(match policy.on_crash() {
            OnCrash::Rerun => Orphans::ReplaceEqual,
            OnCrash::Refuse => Orphans::Keep,
        })
    }

    /// Runs the handler, and leaves what is to be left.
    async fn run<S, B, R>(
        self,
        mut beginning: Beginning,
        fingerprint: Fingerprint,
        terms: Terms,
        mut inner: S,
        mut parts: request::Parts,
        body: RequestBody<B>,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        R: Body,
        R::Error: Into<BoxError>,
    {
        let settings = self.settings.clone();
        let wants_head = settings.route.on_refuse.is_some();
        let head = wants_head.then(|| Box::new(parts.clone()));
        let hold = beginning.guard().hold().clone();
        let lost = hold.lease.dyn_lost();
        let ready = poll_fn(|cx| match lost.poll_holder(cx) {
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => inner.poll_ready(cx),
        })
        .await;
        ready?;
        if hold.loss_at_end(Instant::now()).is_some() {
            // It never ran, and another may run by now.
            let refusal = Refusal::new(RefusalKind::LockTimeout, Some(hold.key.namespace()));
            let response = settings.route.render(refusal, head.as_deref(), terms.told);
            return Ok(response.map(ResponseBody::refusal));
        }
        self.show(&beginning, &mut parts.extensions);
        self.progress.begins();
        beginning.begins();
        let aborts = settings.policy.lock().on_lost() == OnLost::Abort;
        let abort = || lost.get().filter(|_| aborts && !hold.is_taken());
        let called = {
            let mut call = pin!(inner.call(Request::from_parts(parts, body)));
            poll_fn(|cx| {
                // So that a loss wakes this.
                let _ = lost.poll_holder(cx);
                match abort() {
                    Some(loss) => Poll::Ready(Err(loss)),
                    None => call.as_mut().poll(cx).map(Ok),
                }
            })
            .await
        };
        let (response_head, body) = match called {
            // How far it came is not known, so its record stays open.
            Ok(response) => response?.into_parts(),
            Err(loss) => return Ok(self.lost(&beginning, head.as_deref(), terms.told, loss)),
        };
        let verdict = self.settings.policy.judge(&response_head);
        // A stream of events may never end, and its reader wants each when it happens.
        let body = if verdict == Verdict::Forget || is_event_stream(&response_head) {
            Collected::Part(Bytes::new(), Rest::Body(Box::pin(body)))
        } else {
            let limit = settings.policy.max_response();
            let collected = collect(body, limit, |cx| lost.poll_holder(cx).is_ready()).await;
            if let Some(loss) = abort() {
                return Ok(self.lost(&beginning, head.as_deref(), terms.told, loss));
            }
            collected
        };
        let outcome = Ended {
            head: response_head,
            body,
            verdict,
        };
        let mut response = self.leave(beginning, fingerprint, &terms, outcome).await;
        tell_applied(response.headers_mut(), terms.told.applied);
        Ok(response)
    }

    /// Shows the lock and the run to the handler.
    fn show(&self, beginning: &Beginning, extensions: &mut http::Extensions) {
        let outer = extensions.remove::<HeldLock>();
        self.progress.is_within(outer.clone());
        let hold = beginning.guard().hold().clone();
        let held = HeldLock::link(hold, 1, outer.map(Arc::new));
        if let Some(key) = extensions.get::<ClientKey>() {
            let rerun = beginning.previous().is_some();
            let run = FirstRun::new(key.clone(), held.clone(), rerun);
            extensions.insert(run);
        }
        extensions.insert(held);
    }

    fn lost<R>(
        &self,
        beginning: &Beginning,
        head: Option<&request::Parts>,
        told: Told,
        loss: Loss,
    ) -> Response<ResponseBody<R>> {
        let namespace = beginning.guard().key().namespace();
        let response = self.settings.route.lost(head, namespace, told, loss);
        response.map(ResponseBody::refusal)
    }

    /// Stores the response, or says why it is not, before the client gets it.
    async fn leave<R>(
        &self,
        beginning: Beginning,
        fingerprint: Fingerprint,
        terms: &Terms,
        ended: Ended<R>,
    ) -> Response<ResponseBody<R>> {
        let Settings { policy, route, .. } = &*self.settings;
        let Ended {
            mut head,
            body,
            verdict,
        } = ended;
        let namespace = beginning.guard().key().namespace().to_owned();
        let count = |outcome| count_idempotent(&namespace, &terms.route, outcome);
        let held = beginning.guard().hold().held_for(Instant::now());
        route.stats.record(held);
        // Of somebody whom the handler asked, not of us.
        head.headers.remove(IDEMPOTENT_REPLAYED);
        let verdict = match verdict {
            Verdict::ByTrailers => match &body {
                Collected::Whole(_, trailers) => policy.judge_trailers(trailers.as_deref()),
                // It was begun, and how it ends is not known.
                Collected::Part(..) => Verdict::Store(policy.record_ttl()),
            },
            verdict => verdict,
        };
        let Verdict::Store(ttl) = verdict else {
            // An inner layer says that nobody knows what happened; or an earlier run did not say, and
            // this one changed nothing about it.
            if is_unknown(&head) || (beginning.previous().is_some() && !is_decided(&head)) {
                count("unknown");
                beginning.leave_open().await;
            } else {
                count("forgotten");
                beginning.forget().await;
            }
            return Response::from_parts(head, body.into_body());
        };
        let ttl = ttl.min(self.settings.limits.max_ttl);
        let stored = match &body {
            Collected::Whole(bytes, trailers) => {
                self.stored(fingerprint, &head, bytes, trailers.as_deref())
            }
            Collected::Part(..) => None,
        };
        let tombstone = self.tombstone(fingerprint, &head);
        let keep = |bytes| Outcome::Keep { bytes, ttl };
        let saved = match (stored, tombstone) {
            // A store that has no room for all of it may have some for this.
            (Some(stored), less) => beginning.end(keep(stored), less.map(keep)).await,
            (None, Some(tombstone)) => {
                count("tombstone");
                beginning.end(keep(tombstone), None).await
            }
            (None, None) => {
                count("forgotten");
                beginning.end(Outcome::Forget, None).await
            }
        };
        if saved.is_err() {
            // Logged where it fails for good.
            count("unsaved");
        }
        Response::from_parts(head, body.into_body())
    }

    /// The record of a response; `None` if it is longer than the store takes.
    fn stored(
        &self,
        fingerprint: Fingerprint,
        head: &response::Parts,
        body: &Bytes,
        trailers: Option<&http::HeaderMap>,
    ) -> Option<Bytes> {
        let headers = self.settings.policy.stored_headers();
        let mut response = StoredResponse::new(head.status, body.clone());
        response.headers = headers.select(&head.headers);
        response.trailers = trailers.map(|trailers| Box::new(headers.select(trailers)));
        let stored = Stored::new(fingerprint, StoredOutcome::Response(response)).encode();
        (stored.len() <= self.settings.limits.max_bytes).then_some(stored)
    }

    /// The record of a response that cannot be replayed, if there is to be one.
    fn tombstone(&self, fingerprint: Fingerprint, head: &response::Parts) -> Option<Bytes> {
        let leaves = self.settings.policy.unreplayable() == Unreplayable::Tombstone;
        let original_status = head.status;
        let tombstone = StoredOutcome::Tombstone { original_status };
        leaves.then(|| Stored::new(fingerprint, tombstone).encode())
    }
}

/// How a handler ended.
struct Ended<R> {
    head: response::Parts,
    body: Collected<R>,
    verdict: Verdict,
}

/// Whether a layer inside answered that nobody knows how far the handler came.
fn is_unknown(head: &response::Parts) -> bool {
    let refusal = head.extensions.get::<Refusal>();
    refusal.is_some_and(|refusal| {
        matches!(
            refusal.kind(),
            RefusalKind::LockLost | RefusalKind::OutcomeUnknown
        )
    })
}

/// Whether the handler says itself that nothing is to be kept.
fn is_decided(head: &response::Parts) -> bool {
    matches!(head.extensions.get(), Some(Keep::No | Keep::For(_)))
}

fn replay<R>(
    stored: StoredResponse,
    parts: &request::Parts,
    told: &Told,
) -> Response<ResponseBody<R>> {
    let body = ResponseBody::read(stored.body, Rest::End(stored.trailers));
    let mut response = Response::new(body);
    *response.status_mut() = stored.status;
    *response.headers_mut() = stored.headers;
    mark_replayed(&parts.headers, response.headers_mut());
    tell_applied(response.headers_mut(), told.applied);
    response
}
