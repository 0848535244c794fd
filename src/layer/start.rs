//! A request's way into its locks: keys, then admission, then the backend.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body::Body;

use super::{
    guards::Guards,
    session::{Reentry, Session, reentry},
};
use crate::{
    error::BoxError,
    key::{BodyKeyExtractor, ExtractResult, Extraction, KeyExtractor, LockKey, LockKeys},
    manager::{AcquireErrorKind, HeldLock, Wish},
    route::{Answer, Config, Terms, Told},
    web::{Refusal, RequestBody, buffer},
};

/// How far a request has come.
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
        Extraction::Ready(result) => {
            let way = way(config, &mut parts, result);
            go(config, parts, body, way)
        }
        Extraction::Pending(extraction) => {
            let config = config.clone();
            Start::Wait(Box::pin(async move {
                let (mut parts, result) = extraction.await;
                let way = way(&config, &mut parts, result);
                go(&config, parts, body, way)
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
        let (mut parts, body) = request.into_parts();
        match buffer(&parts.headers, body, extractor.max_body()).await {
            Ok(buffered) => {
                let result = extractor.extract(&parts, &buffered.bytes);
                let way = way(&config, &mut parts, result);
                go(&config, parts, RequestBody::buffered(buffered), way)
            }
            Err(error) => {
                let refusal = Refusal::from_buffer_error(&error);
                let told = Told::unwaited(&parts.headers);
                let response = config.render(refusal, Some(&parts), told);
                Start::Answer(Answer::Refusal(response))
            }
        }
    }))
}

/// What comes next for a request whose keys are known.
enum Way {
    /// The handler.
    Run(Option<Session>),
    /// Another answer than the handler's.
    Answer(Answer),
    /// The queue of its key.
    Queue(Wish, Terms),
    /// One key after the other.
    Several(Vec<LockKey>, Terms),
}

/// Decides by the head, in its place: a request is large, and moving it costs.
fn way(config: &Arc<Config>, parts: &mut Parts, keys: ExtractResult) -> Way {
    match keys {
        Err(rejection) => Way::Answer(config.reject(rejection, parts)),
        Ok(LockKeys::Skip) => Way::Run(None),
        Ok(LockKeys::One(key)) => one(config, parts, key),
        Ok(LockKeys::Many(keys)) => Way::Several(keys, config.terms(parts)),
    }
}

fn one(config: &Arc<Config>, parts: &mut Parts, key: LockKey) -> Way {
    let terms = config.terms(parts);
    match reentry(config, parts, &key, terms.mode) {
        Reentry::None => {}
        Reentry::Reuse(held) => {
            let session = show(config, parts, Guards::None, vec![held], terms);
            return Way::Run(Some(session));
        }
        Reentry::Refuse(kind) => {
            let response =
                config.refuse_kind(kind, key.namespace(), terms.told.clone(), Some(parts));
            return Way::Answer(Answer::Refusal(response));
        }
    }
    let wish = config.wish(key, &terms);
    match config.manager.shared().try_now(&wish, terms.started) {
        Some(Ok(guard)) => {
            let session = show(config, parts, Guards::One(guard), Vec::new(), terms);
            Way::Run(Some(session))
        }
        Some(Err(error)) => failed(config, parts, &error, &wish.key, terms),
        None => Way::Queue(wish, terms),
    }
}

fn go<B: Send + 'static>(config: &Arc<Config>, mut parts: Parts, body: B, way: Way) -> Start<B> {
    match way {
        Way::Run(session) => Start::Run(Request::from_parts(parts, body), session),
        Way::Answer(answer) => Start::Answer(answer),
        Way::Queue(wish, terms) => {
            let config = config.clone();
            Start::Wait(Box::pin(async move {
                let key = wish.key.clone();
                let way = match config.manager.shared().acquire_queued(wish).await {
                    Ok(guard) => Way::Run(Some(show(
                        &config,
                        &mut parts,
                        Guards::One(guard),
                        Vec::new(),
                        terms,
                    ))),
                    Err(error) => failed(&config, &parts, &error, &key, terms),
                };
                go(&config, parts, body, way)
            }))
        }
        Way::Several(keys, terms) => {
            let config = config.clone();
            Start::Wait(Box::pin(async move {
                let way = many(&config, &mut parts, keys, terms).await;
                go(&config, parts, body, way)
            }))
        }
    }
}

/// Several keys, already in canonical order so that two requests never wait for each other; all or none.
async fn many(config: &Arc<Config>, parts: &mut Parts, keys: Vec<LockKey>, terms: Terms) -> Way {
    let mut reused = Vec::new();
    let mut wishes = Vec::with_capacity(keys.len());
    for key in keys {
        match reentry(config, parts, &key, terms.mode) {
            Reentry::Reuse(held) => reused.push(held),
            Reentry::None => wishes.push(config.wish(key, &terms)),
            Reentry::Refuse(kind) => {
                let told = terms.told.clone();
                let response = config.refuse_kind(kind, key.namespace(), told, Some(parts));
                return Way::Answer(Answer::Refusal(response));
            }
        }
    }
    match config.manager.shared().acquire_all(wishes).await {
        Ok(guards) => {
            let guards = Guards::Many(guards);
            Way::Run(Some(show(config, parts, guards, reused, terms)))
        }
        Err((key, error)) => failed(config, parts, &error, &key, terms),
    }
}

/// The session of a request that holds its locks, which the handler sees from now on.
fn show(
    config: &Arc<Config>,
    parts: &mut Parts,
    guards: Guards,
    reused: Vec<HeldLock>,
    terms: Terms,
) -> Session {
    let session = Session::new(config.clone(), guards, terms, parts);
    session.show(parts, reused);
    session
}

/// No lock: an answer, or the handler without it where the route says so.
fn failed(
    config: &Arc<Config>,
    parts: &Parts,
    error: &crate::manager::AcquireError,
    key: &LockKey,
    terms: Terms,
) -> Way {
    config.log(error, key, parts);
    if error.kind() == AcquireErrorKind::BackendUnavailable && config.policy.insecure_fail_open() {
        tracing::warn!(
            target: "tower_lock",
            namespace = key.namespace(),
            "the handler runs without its lock: the route fails open"
        );
        return Way::Run(None);
    }
    Way::Answer(config.refuse(error, key, terms, parts))
}
