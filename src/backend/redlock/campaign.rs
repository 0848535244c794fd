//! One acquire, on the lock runtime: it asks, waits, asks again, and outlives its caller until
//! nothing of it is left.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{
    sync::{SemaphorePermit, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    attempt::{Grant, Refusal, Wish, attempt},
    client::{ANSWER, Client, Shared},
    lease::{Inner, RedLockLease},
    post::{Posts, Seat},
    room::Asker,
    undo::Undo,
    waiter::Waiter,
};
use crate::{
    backend::WaitBound,
    clock::jittered,
    error::{BackendError, BackendErrorKind},
};

/// How long the first waiter of a process lets a key go unasked for.
const CEILING: Duration = Duration::from_secs(1);
/// And how long the others.
const CEILING_BEHIND: Duration = Duration::from_secs(5);
/// How soon, at first, a key is asked for whose holder tells nobody of its release, or that nobody has.
const FOREIGN: Duration = Duration::from_millis(25);
/// How soon to ask when only some nodes say that the key is free: the others may say so yet, or
/// have told another waiter.
const SOON: Duration = Duration::from_millis(20);

pub(super) type Answer = oneshot::Sender<Result<RedLockLease, BackendError>>;

pub(super) struct Campaign {
    pub(super) client: Arc<Client>,
    pub(super) asker: Asker,
    pub(super) waiter: Arc<Waiter>,
    pub(super) seat: Seat,
    pub(super) wish: Wish,
    pub(super) wait: WaitBound,
}

impl Campaign {
    pub(super) async fn run(self, mut caller: Answer) {
        let shared = self.client.shared.clone();
        let mut posts = Posts::new(shared.nodes.len());
        let outcome = {
            let seeking = self.seek(&shared, &mut posts);
            tokio::select! {
                biased;
                () = caller.closed() => None,
                outcome = seeking => Some(outcome),
            }
        };
        shared.room.leave_line(&self.seat.names, &self.waiter);
        match outcome {
            Some(Ok(grant)) => match self.granted(grant, posts) {
                // Nobody may be there to take it: then it is dropped, and undone.
                Ok(lease) => drop(caller.send(Ok(lease))),
                Err((error, posts)) => {
                    self.undo(posts);
                    let _ = caller.send(Err(error));
                }
            },
            Some(Err(error)) => {
                // Mostly there is nothing. Else who asks next should not meet it.
                if posts.is_anything_left() {
                    self.undo(posts);
                } else {
                    shared.room.left(&self.asker);
                }
                let _ = caller.send(Err(error));
            }
            None => self.undo(posts),
        }
    }

    fn undo(&self, posts: Posts) {
        self.client.shared.room.leaves(&self.asker);
        self.client.undo(Undo {
            seat: self.seat.clone(),
            posts,
            asker: self.asker.clone(),
            done: None,
        });
    }

    fn granted(&self, grant: Grant, posts: Posts) -> Result<RedLockLease, (BackendError, Posts)> {
        let token = grant.token;
        let inner = Inner::new(
            self.client.clone(),
            self.seat.clone(),
            self.asker.clone(),
            &self.wish,
            grant,
        );
        let Some(inner) = inner else {
            let error = BackendError::new(
                BackendErrorKind::Misconfigured,
                "the token counter of a node is beyond all tokens",
            );
            return Err((error, posts));
        };
        inner.begin(posts);
        let inner = Arc::new(inner);
        self.client.shared.room.holds(&self.asker, &inner);
        if self.waiter.was_revoked(token) {
            inner.lose(crate::lease::Loss::ForceReleased);
        }
        Ok(RedLockLease { inner })
    }

    /// Cancel safe: the posts know what is left.
    async fn seek(&self, shared: &Arc<Shared>, posts: &mut Posts) -> Result<Grant, BackendError> {
        let mut told = None;
        let seeking = self.until_granted(shared, posts, &mut told);
        match self.wait {
            WaitBound::Until(deadline) if self.wish.waits => {
                match timeout_at(deadline, seeking).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(match told {
                        Some(told) if !told.is_majority_there(shared) => {
                            unavailable(shared, &told.refusal)
                        }
                        Some(told) => told.contended(self.wait),
                        None => unheard(shared, self.wait),
                    }),
                }
            }
            _ => seeking.await,
        }
    }

    async fn until_granted(
        &self,
        shared: &Arc<Shared>,
        posts: &mut Posts,
        told: &mut Option<Told>,
    ) -> Result<Grant, BackendError> {
        let mut backoff = FOREIGN;
        let mut troubled: Option<Instant> = None;
        let mut ballot = 0;
        let mut is_free = false;
        loop {
            let turn = self.turn(shared, told.as_ref(), is_free).await?;
            is_free = false;
            self.waiter.asks();
            ballot += 1;
            let refusal = match attempt(shared, &self.seat, posts, &self.wish, ballot).await {
                Ok(grant) => return Ok(grant),
                Err(refusal) => refusal,
            };
            let told = told.insert(Told {
                refusal,
                at: Instant::now(),
            });
            let refusal = &told.refusal;
            let is_there = told.is_majority_there(shared);
            if !self.wish.waits && is_there {
                drop(turn);
                self.give_back(shared, posts).await;
                return Err(told.contended(self.wait));
            }
            // By the ballot and not by the owner: what comes late must not take a later vote away.
            let (limit, waits) = (shared.node_timeout(self.wish.ttl), self.wish.waits);
            posts
                .step_back(shared, limit, &self.seat, ballot, waits, refusal.got)
                .await;
            drop(turn);
            if is_there {
                troubled = None;
                is_free = self.until_worth_it(shared, refusal, &mut backoff).await?;
                continue;
            }
            // A connection may have broken just now; what is known to be away is not waited for.
            let since = *troubled.get_or_insert_with(Instant::now);
            let may_vote = shared.reachable().saturating_sub(refusal.abstained);
            if may_vote < shared.majority() || since.elapsed() >= ANSWER / 2 {
                self.give_back(shared, posts).await;
                return Err(unavailable(shared, refusal));
            }
            let pause = Instant::now() + jittered(SOON);
            tokio::select! {
                () = sleep_until(pause) => {}
                () = self.waiter.replaced() => return Err(replaced()),
            }
        }
    }

    /// Waits until this process has fewer rounds under way. `is_free`: so the nodes say.
    async fn turn<'a>(
        &self,
        shared: &'a Shared,
        told: Option<&Told>,
        is_free: bool,
    ) -> Result<SemaphorePermit<'a>, BackendError> {
        let at_once = || {
            let told = is_free.then(|| shared.told.try_acquire().ok()).flatten();
            told.or_else(|| shared.rounds.try_acquire().ok())
        };
        let turn = match at_once() {
            Some(turn) => turn,
            None => self.turn_comes(shared, told).await?,
        };
        match self.wait {
            // The turns of all whose time ends now come now, and each would ask for nothing.
            WaitBound::Until(deadline) if self.wish.waits && deadline <= Instant::now() => {
                drop(turn);
                pending().await
            }
            _ => Ok(turn),
        }
    }

    async fn turn_comes<'a>(
        &self,
        shared: &'a Shared,
        told: Option<&Told>,
    ) -> Result<SemaphorePermit<'a>, BackendError> {
        let patience = async {
            if self.wish.waits {
                // As long as it waits at all, which is seen to elsewhere.
                pending().await
            } else {
                sleep_until(self.seat.began + ANSWER).await;
            }
        };
        tokio::select! {
            biased;
            () = self.waiter.replaced() => Err(replaced()),
            // It is never closed.
            turn = shared.rounds.acquire() => turn.map_err(|_| replaced()),
            () = patience => Err(match told {
                Some(told) => unavailable(shared, &told.refusal),
                None => unheard(shared, self.wait),
            }),
        }
    }

    /// Before a refusal is told, so that who asks next does not meet what is left of this one.
    async fn give_back(&self, shared: &Shared, posts: &mut Posts) {
        let limit = shared.node_timeout(self.wish.ttl);
        let leaving = posts.leave(shared, &self.seat, true, || {});
        let _ = super::post::within(limit, leaving).await;
    }

    /// Waits until a majority may be had, or for as long as a lost message may delay. Whether as many
    /// nodes as are needed said that it may.
    async fn until_worth_it(
        &self,
        shared: &Shared,
        refusal: &Refusal,
        backoff: &mut Duration,
    ) -> Result<bool, BackendError> {
        let names = &self.seat.names;
        let asked = Instant::now();
        // All that others had, or as many as there have to be. Of the rest, which was given back just
        // now, others are told at the same time: it is no reason to ask before them.
        let needed = (refusal.held.count_ones() as usize).min(shared.majority());
        // Nobody has it, and it could not be had: its time was too short, say.
        let mut soon = (needed == 0).then_some(asked + jittered(*backoff));
        let told = loop {
            let mut until = asked + jittered(CEILING_BEHIND);
            if shared.room.stands_first(names, &self.waiter) {
                until = asked + jittered(CEILING);
                if let Some(after) = refusal.after {
                    // A key ends in the millisecond after its last one, and others may be here.
                    let after = after + Duration::from_millis(2) + jittered(SOON / 4);
                    until = until.min(asked + after);
                }
                if refusal.foreign {
                    until = until.min(asked + jittered(*backoff));
                }
            }
            let news = self.waiter.news(refusal.held);
            if news.replaced {
                return Err(replaced());
            }
            if needed > 0 && news.free >= needed {
                break true;
            }
            if news.any && soon.is_none() {
                soon = Some(Instant::now() + SOON.mul_f64(0.5 + fastrand::f64()));
            }
            until = soon.map_or(until, |soon| until.min(soon));
            tokio::select! {
                () = sleep_until(until) => break false,
                () = self.waiter.woken() => {}
            }
        };
        *backoff = if refusal.foreign || needed == 0 {
            (*backoff * 2).min(CEILING)
        } else {
            FOREIGN
        };
        Ok(told)
    }
}

/// What the nodes said last.
struct Told {
    refusal: Refusal,
    at: Instant,
}

impl Told {
    fn is_majority_there(&self, shared: &Shared) -> bool {
        self.refusal.voted >= shared.majority()
    }

    fn contended(&self, wait: WaitBound) -> BackendError {
        let kind = match wait {
            WaitBound::Fail => BackendErrorKind::Contended,
            _ => BackendErrorKind::WaitTimedOut,
        };
        let remaining = self.refusal.after;
        let remaining = remaining.map(|after| after.saturating_sub(self.at.elapsed()));
        BackendError::new(kind, "").with_remaining(remaining)
    }
}

fn unavailable(shared: &Shared, refusal: &Refusal) -> BackendError {
    let Refusal {
        voted, abstained, ..
    } = refusal;
    let all = shared.nodes.len();
    let trouble = refusal.trouble.clone();
    // A right that was taken away on a majority, say.
    let kind = if all - refusal.barred < shared.majority() {
        BackendErrorKind::Misconfigured
    } else {
        BackendErrorKind::Unavailable
    };
    let error = BackendError::new(
        kind,
        format!(
            "{voted} of {all} nodes voted, a majority is needed; {abstained} may have forgotten \
             what they granted, and vote again when the longest ttl has passed"
        ),
    );
    match trouble {
        Some(trouble) => error.with_source(BackendError::from(trouble)),
        None => error,
    }
}

/// Of one whose turn did not come.
fn unheard(shared: &Shared, wait: WaitBound) -> BackendError {
    if shared.reachable() < shared.majority() {
        return unavailable(shared, &Refusal::default());
    }
    match wait {
        WaitBound::Fail => BackendError::new(
            BackendErrorKind::Unavailable,
            "this process asks for more locks at once than the nodes answer in time",
        ),
        _ => BackendError::new(BackendErrorKind::WaitTimedOut, ""),
    }
}

fn replaced() -> BackendError {
    BackendError::new(
        BackendErrorKind::WaitTimedOut,
        "another acquire of the same owner took its place",
    )
}
