//! A request's way into its locks: keys, then admission, then the backend.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body::Body;

use super::{
    config::{Config, Terms},
    refuse::Answer,
    session::{Guards, Reentry, Session, reentry},
};
use crate::{
    error::BoxError,
    key::{BodyKeyExtractor, ExtractResult, Extraction, KeyExtractor, LockKey, LockKeys},
    manager::{AcquireErrorKind, HeldLock, LockGuard},
    web::{Refusal, RequestBody, buffer, grpc},
};

/// How far a request has come.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, moved twice"
)]
pub(super) enum Start<B> {
    /// To the handler, with its locks if it has any.
    Run(Request<B>, Option<Session>),
    /// To an answer that is not the handler's.
    Answer(Answer),
    /// It must wait: for a key, a body or a lock. Boxed, because most requests need not.
    Wait(Pin<Box<dyn Future<Output = Start<B>> + Send>>),
    /// Nowhere any more: the future has gone on.
    Taken,
}

/// Begins with a key from the head. A free key of an in-process backend is locked on return.
pub(super) fn from_head<B: Send + 'static>(
    config: &Arc<Config>,
    extractor: &dyn KeyExtractor,
    request: Request<B>,
) -> Start<B> {
    let (mut parts, body) = request.into_parts();
    match extractor.extract(&mut parts) {
        Extraction::Ready(result) => with_keys(config, parts, body, result),
        Extraction::Pending(extraction) => {
            let config = config.clone();
            Start::Wait(Box::pin(async move {
                let (parts, result) = extraction.await;
                with_keys(&config, parts, body, result)
            }))
        }
    }
}

/// Begins with a key from the body, which is buffered first.
pub(super) fn from_body<B>(
    config: &Arc<Config>,
    extractor: Arc<dyn BodyKeyExtractor>,
    request: Request<B>,
) -> Start<RequestBody<B>>
where
    B: Body + Send + 'static,
    B::Data: From<Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let config = config.clone();
    Start::Wait(Box::pin(async move {
        let (parts, body) = request.into_parts();
        match buffer(&parts.headers, body, extractor.max_body()).await {
            Ok(buffered) => {
                let result = extractor.extract(&parts, &buffered.bytes);
                with_keys(&config, parts, RequestBody::buffered(buffered), result)
            }
            Err(error) => {
                let refusal = Refusal::from_buffer_error(&error);
                let grpc = grpc::content_type(&parts.headers);
                let response = config.render(refusal, Some(&parts), grpc, None);
                Start::Answer(Answer::Refusal(response))
            }
        }
    }))
}

fn with_keys<B: Send + 'static>(
    config: &Arc<Config>,
    parts: Parts,
    body: B,
    keys: ExtractResult,
) -> Start<B> {
    match keys {
        Err(rejection) => Start::Answer(config.reject(rejection, &parts)),
        Ok(LockKeys::Skip) => Start::Run(Request::from_parts(parts, body), None),
        Ok(LockKeys::One(key)) => one(config, parts, body, key),
        Ok(LockKeys::Many(keys)) => {
            let terms = config.terms(&parts);
            Start::Wait(Box::pin(many(config.clone(), parts, body, keys, terms)))
        }
    }
}

fn one<B: Send + 'static>(config: &Arc<Config>, parts: Parts, body: B, key: LockKey) -> Start<B> {
    let terms = config.terms(&parts);
    match reentry(config, &parts, &key, terms.mode) {
        Reentry::None => {}
        Reentry::Reuse(held) => {
            return run(config, parts, body, Guards::None, vec![held], terms);
        }
        Reentry::Refuse(kind) => {
            let response = config.refuse_kind(
                kind,
                key.namespace(),
                terms.grpc.clone(),
                terms.applied,
                Some(&parts),
            );
            return Start::Answer(Answer::Refusal(response));
        }
    }
    let wish = config.wish(key, &terms);
    match config.manager.shared().try_now(&wish) {
        Some(Ok(guard)) => run(config, parts, body, Guards::One(guard), Vec::new(), terms),
        Some(Err(error)) => failed(config, parts, body, &error, &wish.key, terms),
        None => {
            let config = config.clone();
            Start::Wait(Box::pin(async move {
                let key = wish.key.clone();
                match config.manager.shared().acquire_queued(wish).await {
                    Ok(guard) => run(&config, parts, body, Guards::One(guard), Vec::new(), terms),
                    Err(error) => failed(&config, parts, body, &error, &key, terms),
                }
            }))
        }
    }
}

/// Several keys, already in canonical order so that two requests never wait for each other; all or none.
async fn many<B>(
    config: Arc<Config>,
    parts: Parts,
    body: B,
    keys: Vec<LockKey>,
    terms: Terms,
) -> Start<B> {
    let mut guards: Vec<LockGuard> = Vec::with_capacity(keys.len());
    let mut reused: Vec<HeldLock> = Vec::new();
    for key in keys {
        let answer = match reentry(&config, &parts, &key, terms.mode) {
            Reentry::Reuse(held) => {
                reused.push(held);
                continue;
            }
            Reentry::Refuse(kind) => Start::Answer(Answer::Refusal(config.refuse_kind(
                kind,
                key.namespace(),
                terms.grpc.clone(),
                terms.applied,
                Some(&parts),
            ))),
            Reentry::None => {
                let wish = config.wish(key.clone(), &terms);
                match config.manager.shared().acquire(wish).await {
                    Ok(guard) => {
                        guards.push(guard);
                        continue;
                    }
                    Err(error) => {
                        // All or nothing: what is held must be free before the answer goes out.
                        release_all(guards).await;
                        return failed(&config, parts, body, &error, &key, terms);
                    }
                }
            }
        };
        release_all(guards).await;
        return answer;
    }
    run(&config, parts, body, Guards::Many(guards), reused, terms)
}

async fn release_all(mut guards: Vec<LockGuard>) {
    while let Some(guard) = guards.pop() {
        // A failure is the reaper's to repeat; the client needs the first error.
        let _ = guard.release().await;
    }
}

fn run<B>(
    config: &Arc<Config>,
    mut parts: Parts,
    body: B,
    guards: Guards,
    reused: Vec<HeldLock>,
    terms: Terms,
) -> Start<B> {
    let session = Session::new(config.clone(), guards, terms, &parts);
    session.show(&mut parts, reused);
    Start::Run(Request::from_parts(parts, body), Some(session))
}

/// No lock: an answer, or the handler without it where the route says so.
fn failed<B>(
    config: &Arc<Config>,
    parts: Parts,
    body: B,
    error: &crate::manager::AcquireError,
    key: &LockKey,
    terms: Terms,
) -> Start<B> {
    let answer = config.refuse(error, key, &terms, &parts);
    if error.kind() == AcquireErrorKind::BackendUnavailable && config.policy.insecure_fail_open() {
        tracing::warn!(
            target: "tower_lock",
            namespace = key.namespace(),
            "the handler runs without its lock: the backend is unavailable and the route fails open"
        );
        return Start::Run(Request::from_parts(parts, body), None);
    }
    Start::Answer(answer)
}
