//! A key that is held.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Turn, watch},
    time::{Instant, timeout},
};

use super::{
    attempt::{Grant, Wish},
    client::{ANSWER, Client, Shared},
    node::Node,
    post::{Post, Posts, Seat},
    quorum::renewal::{Answer, Outcome, Places, Renewal},
    room::Asker,
    scripts::RENEW,
    undo::Undo,
};
use crate::{
    backend::redis::answer,
    error::{BackendError, BackendErrorKind},
    lease::{FencingToken, Lease, Loss, LossSignal},
    sync::lock,
};

/// A key held on a majority of the nodes. If it is dropped without [`release`](Lease::release), the
/// key is released in the background.
pub struct RedLockLease {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    client: Arc<Client>,
    seat: Seat,
    asker: Asker,
    token: FencingToken,
    tokens: u32,
    ttl: Duration,
    ttl_ms: u64,
    ends: Mutex<Instant>,
    lost: LossSignal,
    ballot: u32,
    place: Mutex<Place>,
    /// Where we have the key, as far as we heard. One renewal at a time.
    places: Turn<Places>,
    /// Whether the key is free of us.
    freed: Arc<watch::Sender<bool>>,
}

/// Where what was asked of the nodes is noted. What is being undone is never asked for again.
#[derive(Debug)]
enum Place {
    Here(Posts),
    /// With a renewal under way.
    Away,
    /// The same, which is to undo it when it comes back.
    Leaving,
    Gone,
}

impl Inner {
    /// `None` if the token is none.
    pub(super) fn new(
        client: Arc<Client>,
        seat: Seat,
        asker: Asker,
        wish: &Wish,
        grant: Grant,
    ) -> Option<Self> {
        Some(Self {
            client,
            seat,
            asker,
            token: FencingToken::new(grant.token)?,
            tokens: wish.tokens,
            ttl: wish.ttl,
            ttl_ms: wish.ttl_ms,
            ends: Mutex::new(grant.valid_until),
            lost: LossSignal::new(),
            ballot: grant.ballot,
            place: Mutex::new(Place::Gone),
            places: Turn::new(grant.places),
            freed: Arc::new(watch::Sender::new(false)),
        })
    }

    pub(super) fn begin(&self, posts: Posts) {
        *lock(&self.place) = Place::Here(posts);
    }

    /// Whether a node that says this token speaks of this grant: it may have only the one that was
    /// proposed, which was not above it.
    pub(super) fn is_of(&self, token: u64) -> bool {
        token <= self.token.get()
    }

    fn has_ended(&self) -> bool {
        *lock(&self.ends) <= Instant::now()
    }

    pub(super) fn lose(&self, loss: Loss) {
        self.lost.fire(loss);
    }

    /// Has it undone everywhere, from anywhere: it neither waits nor fails.
    fn leave(&self) {
        let mut place = lock(&self.place);
        match std::mem::replace(&mut *place, Place::Gone) {
            Place::Here(posts) => {
                drop(place);
                self.undo(posts);
            }
            Place::Away | Place::Leaving => *place = Place::Leaving,
            Place::Gone => {}
        }
    }

    fn undo(&self, posts: Posts) {
        self.client.shared.room.leaves(&self.asker);
        self.client.undo(Undo {
            seat: self.seat.clone(),
            posts,
            asker: self.asker.clone(),
            done: Some(self.freed.clone()),
        });
    }

    async fn renew(&self) -> Result<(), BackendError> {
        let mut places = self.places.lock().await;
        let mut posts = {
            let mut place = lock(&self.place);
            match std::mem::replace(&mut *place, Place::Away) {
                Place::Here(posts) => posts,
                other => {
                    // Released, or lost: then it was said.
                    *place = other;
                    return Err(lost());
                }
            }
        };
        let outcome = self.ask_all(&mut posts, &mut places).await;
        {
            let mut place = lock(&self.place);
            match std::mem::replace(&mut *place, Place::Gone) {
                Place::Away => *place = Place::Here(posts),
                _ => {
                    drop(place);
                    self.undo(posts);
                }
            }
        }
        let shared = &self.client.shared;
        match outcome {
            Outcome::Extended(valid_until) => {
                let until = self.seat.began + valid_until;
                let mut ends = lock(&self.ends);
                *ends = (*ends).max(until);
                Ok(())
            }
            Outcome::Lost => {
                // An operator who was the reason is heard of first.
                self.lost.fire(if self.has_ended() {
                    Loss::Expired
                } else {
                    Loss::Revoked
                });
                // Nodes that had it for nobody have it for us again.
                self.leave();
                Err(lost())
            }
            Outcome::Unknown | Outcome::Wait => Err(BackendError::new(
                BackendErrorKind::Unavailable,
                format!(
                    "too few of {} nodes answered a renewal in time",
                    shared.nodes.len()
                ),
            )),
        }
    }

    /// What all nodes say that answer in time.
    async fn ask_all(&self, posts: &mut Posts, places: &mut Places) -> Outcome {
        let shared: &Shared = &self.client.shared;
        let sent = self.seat.began.elapsed();
        let mut renewal = Renewal::new(places.clone(), self.ttl, sent);
        {
            let renewal = &mut renewal;
            let ask = |post, node| self.ask(post, node);
            let heard = move |node, answer| {
                renewal.answer(node, answer);
                false
            };
            let limit = shared.node_timeout(self.ttl);
            posts.round(shared, limit, ask, heard).await;
        }
        renewal.close();
        // Whoever may have had it meanwhile.
        let has_ended = self.has_ended();
        let outcome = renewal.outcome();
        *places = renewal.into_places();
        match outcome {
            Outcome::Extended(_) | Outcome::Unknown | Outcome::Wait if has_ended => Outcome::Lost,
            outcome => outcome,
        }
    }

    async fn ask(&self, post: &mut Post, node: &Node) -> Answer {
        let names = &self.seat.names;
        let answer = post.ask(node, &RENEW, false, |script, by_code, way| {
            let tombstone = way.looks.then(|| self.seat.tombstone());
            let mut keys = vec![
                &*names.lock,
                &*names.waiters,
                &*self.client.shared.node_name,
            ];
            keys.extend(tombstone.as_deref());
            let mut cmd = script.call(by_code, &keys);
            cmd.arg(&self.seat.owner).arg(&*self.seat.inbox);
            cmd.arg(self.ballot).arg(self.ttl_ms);
            cmd.arg(self.token.get());
            cmd
        });
        match answer.await.and_then(|answer| answer::int(&answer)) {
            Ok(1) => Answer::Renewed,
            Ok(2) => Answer::Added,
            Ok(0) => Answer::Lost,
            Ok(-2) => {
                node.abstained(&self.client.shared);
                Answer::Abstains
            }
            _ => Answer::Silent,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Lease for RedLockLease {
    fn fencing_token(&self) -> FencingToken {
        self.inner.token
    }

    fn reserved_tokens(&self) -> u32 {
        self.inner.tokens
    }

    fn valid_until(&self) -> Instant {
        *lock(&self.inner.ends)
    }

    /// Asks all nodes, and gives the key again to those that do not have it any more. Dropping the
    /// future stops nothing.
    async fn renew(&self) -> Result<(), BackendError> {
        let inner = self.inner.clone();
        let runtime = &self.inner.client.shared.lock_runtime;
        let renewed = runtime.spawn(async move { inner.renew().await });
        renewed.await.unwrap_or_else(|_| {
            Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            ))
        })
    }

    fn lost(&self) -> &LossSignal {
        &self.inner.lost
    }

    /// Done when the key is free on all nodes, or on a majority after the others had their time.
    async fn release(&self) -> Result<(), BackendError> {
        let mut freed = self.inner.freed.subscribe();
        self.inner.leave();
        let answer = {
            // The caller's runtime may be about to end.
            let _runtime = self.inner.client.shared.lock_runtime.enter();
            timeout(ANSWER, freed.wait_for(|freed| *freed))
        };
        match answer.await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "too few nodes answered a release in time",
            )),
        }
    }
}

fn lost() -> BackendError {
    BackendError::new(BackendErrorKind::Lost, "")
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl fmt::Debug for RedLockLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLockLease")
            .field("fencing_token", &self.inner.token)
            .field("lost", &self.inner.lost.get())
            .finish_non_exhaustive()
    }
}
