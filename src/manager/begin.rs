//! An acquire that looks at the record of its key, and an end that leaves one.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    AcquireError, AcquireErrorKind, Hold, LockGuard, LockManager, Shared,
    acquire::{Granted, Permit, Wish},
    nanos,
    observe::Observed,
    plan::lead,
    worker::in_time,
};
use crate::{
    backend::{DynLease, Found, Mode, WaitBound},
    error::{BackendError, BackendErrorKind, ConfigError},
    key::LockKey,
    lease::OwnerToken,
    record::{Opening, Outcome, Record, RecordLimits, Save},
};

/// What a request that asks for the lock and the record of a key gets.
pub(crate) enum Begun {
    /// The lock: it may begin.
    First(Beginning),
    /// A result, or an orphan that is to be kept.
    Record(Record),
    /// Another holds the key still.
    Held {
        open: Option<Record>,
        remaining: Option<Duration>,
    },
}

/// A lock whose holder has a record open. Dropped once the holder has begun, it is released and the
/// record stays open: nobody knows how far the holder came. Dropped before, nothing is left, unless
/// somebody else had begun earlier.
pub(crate) struct Beginning {
    guard: LockGuard,
    owner: OwnerToken,
    previous: Option<Record>,
    has_begun: bool,
    ended: bool,
}

impl Beginning {
    pub(crate) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// The orphan whose place it took.
    pub(crate) fn previous(&self) -> Option<&Record> {
        self.previous.as_ref()
    }

    /// From now on its holder may have had effects.
    pub(crate) fn begins(&mut self) {
        self.has_begun = true;
    }

    /// Leaves this, and releases the lock in the same step. Where the store fails it is tried again
    /// for as long as the lease lasts, from half of that on with `less`; the outcome of the first
    /// attempt is returned.
    ///
    /// # Cancellation safety
    ///
    /// It is done all the same.
    pub(crate) async fn end(
        mut self,
        outcome: Outcome,
        less: Option<Outcome>,
    ) -> Result<(), BackendError> {
        let told = self.send(outcome, less);
        told.await.unwrap_or_else(|_| {
            Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            ))
        })
    }

    /// Leaves nothing: its result is not to be kept. Waited for, so that a client that tries again at
    /// once does not meet what is left of it.
    pub(crate) async fn forget(self) {
        // Logged where it fails.
        let _ = self.end(Outcome::Forget, None).await;
    }

    /// Releases the lock and leaves the record open: how it ended is not known.
    pub(crate) async fn leave_open(mut self) {
        self.ended = true;
        if let Some(releasing) = self.guard.start_release() {
            // An error was logged, and the reaper repeats the release.
            let _ = releasing.await;
        }
    }

    fn send(
        &mut self,
        outcome: Outcome,
        less: Option<Outcome>,
    ) -> oneshot::Receiver<Result<(), BackendError>> {
        self.ended = true;
        let (tell, told) = oneshot::channel();
        let hold = self.guard.hold().clone();
        let shared = hold.shared.clone();
        // Not if the handler took it, or a shutdown: then only the record is ours.
        let releases = self.guard.claim();
        let save = Save {
            key: hold.key.clone(),
            owner: self.owner,
            token: hold.token,
            outcome,
        };
        let token = shared.releases.token();
        let end = EndOfHold { hold, releases };
        shared.runtime.clone().spawn(async move {
            let hold = &end.hold;
            let until = hold.lease.dyn_valid_until();
            let saving = hold.shared.save(save, less, releases, until, Some(tell));
            saving.await;
            drop(end);
            drop(token);
        });
        told
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        // Who takes an orphan's place without a word leaves it as it was.
        if !self.ended && !self.has_begun && self.previous.is_none() {
            drop(self.send(Outcome::Forget, None));
        }
    }
}

/// Ends a hold, also where a save panics.
struct EndOfHold {
    hold: Arc<Hold>,
    releases: bool,
}

impl Drop for EndOfHold {
    fn drop(&mut self) {
        let shared = &self.hold.shared;
        // After a save there is nothing left to do for it at the backend.
        if self.releases
            && let Some(release) = shared.end_hold(&self.hold)
        {
            shared.finish_release(self.hold.clone(), release);
        }
    }
}

/// A grant that nobody uses: its record is no orphan, since nobody began.
struct Unused {
    shared: Arc<Shared>,
    save: Option<Save>,
    /// Kept until the record is gone: who gets the lock before would take it for an orphan.
    lease: Option<Arc<dyn DynLease>>,
}

impl Unused {
    fn is_taken(&mut self) {
        self.save = None;
        self.lease = None;
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let (Some(save), Some(lease)) = (self.save.take(), self.lease.take()) else {
            return;
        };
        let shared = self.shared.clone();
        let token = shared.releases.token();
        shared.runtime.clone().spawn(async move {
            let until = lease.dyn_valid_until();
            shared.save(save, None, true, until, None).await;
            drop(lease);
            drop(token);
        });
    }
}

impl LockManager {
    /// What the backend takes as a record.
    pub(crate) fn record_limits(&self) -> Result<RecordLimits, ConfigError> {
        match self.shared.backend.dyn_records() {
            Some(records) => Ok(records.dyn_limits()),
            None => Err(ConfigError::new(format!(
                "the {} backend keeps no records; accepted is one that does, such as memory or redis",
                self.capabilities().name
            ))),
        }
    }
}

impl Shared {
    /// Asks for the lock of a key, unless it has a record; without an `opening` for the lock alone,
    /// beside what stands there. Dropped, it leaves nothing behind.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        wish: &Wish,
        opening: Option<&Opening>,
    ) -> Result<Begun, AcquireError> {
        let mut observed = Observed::start(&wish.key, &wish.route);
        let asked = self.ask_records(wish, opening, &mut observed).await;
        let waited = wish.started.elapsed();
        match asked {
            Ok(Asked::Granted(granted)) => {
                let Fresh {
                    mut unused,
                    granted,
                    owner,
                    previous,
                    now,
                    suspended_before,
                    _permit,
                } = *granted;
                let guard = self.grant(wish, granted, now, suspended_before, observed)?;
                unused.is_taken();
                Ok(Begun::First(Beginning {
                    guard,
                    owner,
                    previous,
                    has_begun: false,
                    ended: false,
                }))
            }
            Ok(Asked::Record(record)) => {
                observed.recorded(waited);
                Ok(Begun::Record(record))
            }
            Ok(Asked::Held { open, remaining }) => {
                let kind = match wish.wait {
                    WaitBound::Fail => AcquireErrorKind::Contended,
                    _ => AcquireErrorKind::WaitTimedOut,
                };
                observed.refused(kind.as_str(), waited);
                Ok(Begun::Held { open, remaining })
            }
            Err(error) => {
                observed.refused(error.kind().as_str(), waited);
                Err(error)
            }
        }
    }

    /// The record of a key.
    pub(crate) async fn load(&self, key: &LockKey) -> Result<Option<Record>, AcquireError> {
        let Some(records) = self.backend.dyn_records() else {
            return Err(AcquireError::new(AcquireErrorKind::Config));
        };
        Ok(in_time(self.backend_timeout, records.dyn_load(key)).await?)
    }

    async fn ask_records<'a>(
        self: &'a Arc<Self>,
        wish: &'a Wish,
        opening: Option<&Opening>,
        observed: &mut Observed,
    ) -> Result<Asked<'a>, AcquireError> {
        let draining = || AcquireError::new(AcquireErrorKind::Draining);
        if self.closing.load(Ordering::SeqCst) {
            return Err(draining());
        }
        // Who does not wait is no waiter: repeated requests are not few.
        let permit = match wish.wait {
            WaitBound::Fail => None,
            _ => Some(Permit::new(self, wish)?),
        };
        observed.waiting();
        let Some(records) = self.backend.dyn_records() else {
            return Err(AcquireError::new(AcquireErrorKind::Config));
        };
        let suspended_before = self.suspended();
        let request = wish
            .plan
            .request(wish.key.clone(), Mode::Exclusive, wish.wait);
        let owner = request.owner;
        let wait = match wish.wait {
            WaitBound::Fail => Duration::ZERO,
            WaitBound::Until(deadline) => deadline.saturating_duration_since(Instant::now()),
            WaitBound::Forever => Duration::MAX,
        };
        let answer = async {
            match opening {
                Some(_) => records.dyn_acquire_or_load(&request, opening).await,
                None => held_or(self.backend.dyn_acquire(&request).await),
            }
        };
        let answer = in_time(wait.saturating_add(self.backend_timeout), answer);
        let found = match self.draining.run_until_cancelled(answer).await {
            Some(found) => found?,
            None => return Err(draining()),
        };
        let (lease, previous) = match found {
            Found::Record(record) => return Ok(Asked::Record(record)),
            Found::Held { open, remaining } => return Ok(Asked::Held { open, remaining }),
            Found::Lease { lease, previous } => (lease, previous),
        };
        let token = lease.dyn_fencing_token();
        let unused = Unused {
            shared: self.clone(),
            // An orphan whose place it took stays one: the lease alone is given back.
            save: previous
                .is_none()
                .then(|| Save::forget(wish.key.clone(), owner, token)),
            lease: Some(lease.clone()),
        };
        if self.closing.load(Ordering::SeqCst) {
            // Granted in the moment in which it was refused.
            return Err(draining());
        }
        // A grant that reached this task late is worth nothing to it.
        let slept = self.suspended().saturating_sub(suspended_before);
        let told = Duration::from_nanos(lead(nanos(wish.plan.ttl)));
        let now = Instant::now();
        if lease.dyn_lost().get().is_some() || now + told + slept >= lease.dyn_valid_until() {
            return Err(AcquireError::new(AcquireErrorKind::Lost));
        }
        Ok(Asked::Granted(Box::new(Fresh {
            unused,
            granted: Granted {
                lease,
                token,
                lineage: None,
            },
            owner,
            previous,
            now,
            suspended_before,
            _permit: permit,
        })))
    }

    /// Saves, again and again where the store fails: while the lease lasts, and for some time more, as
    /// nobody else may have begun.
    async fn save(
        &self,
        mut save: Save,
        mut less: Option<Outcome>,
        releases: bool,
        until: Instant,
        mut tell: Option<oneshot::Sender<Result<(), BackendError>>>,
    ) {
        let Some(records) = self.backend.dyn_records() else {
            return;
        };
        let now = Instant::now();
        let until = until.max(now + self.backend_timeout * 2);
        // A store that is away comes back, mostly; one that is full may take less.
        let less_from = now + until.saturating_duration_since(now) / 2;
        let mut delay = Duration::from_millis(20);
        loop {
            let saving = if releases {
                records.dyn_save_and_release(&save)
            } else {
                records.dyn_save(&save)
            };
            let result = in_time(self.backend_timeout, saving).await;
            let again = result.as_ref().is_err_and(|error| {
                (error.is_retryable() || less.is_some())
                    && error.kind() != BackendErrorKind::Lost
                    && Instant::now() + delay < until
            });
            let mut ends = !again;
            if let Err(error) = &result {
                let is_late = Instant::now() >= less_from || !error.is_retryable();
                if error.kind() != BackendErrorKind::Lost
                    && (ends || is_late)
                    && let Some(less) = less.take()
                {
                    save.outcome = less;
                    ends = false;
                } else if ends {
                    not_saved(&save, error);
                }
            }
            if let Some(tell) = tell.take() {
                // Its caller may be gone.
                let _ = tell.send(result);
            }
            if ends {
                return;
            }
            sleep(delay.mul_f64(0.5 + fastrand::f64())).await;
            delay = (delay * 2).min(Duration::from_secs(1));
        }
    }
}

/// An acquire's answer as that of one that looks at records.
fn held_or(
    acquired: Result<Arc<dyn DynLease>, BackendError>,
) -> Result<Found<Arc<dyn DynLease>>, BackendError> {
    match acquired {
        Ok(lease) => Ok(Found::Lease {
            lease,
            previous: None,
        }),
        Err(error) => match error.kind() {
            BackendErrorKind::Contended | BackendErrorKind::WaitTimedOut => Ok(Found::Held {
                open: None,
                remaining: error.remaining(),
            }),
            _ => Err(error),
        },
    }
}

fn not_saved(save: &Save, error: &BackendError) {
    tracing::warn!(
        target: "tower_lock",
        namespace = save.key.namespace(),
        kind = ?error.kind(),
        "how a request ended could not be saved; others find that it was begun, or nothing"
    );
}

/// What the backend answered.
enum Asked<'a> {
    Granted(Box<Fresh<'a>>),
    Record(Record),
    Held {
        open: Option<Record>,
        remaining: Option<Duration>,
    },
}

/// A grant that has no guard yet.
struct Fresh<'a> {
    unused: Unused,
    granted: Granted,
    owner: OwnerToken,
    previous: Option<Record>,
    now: Instant,
    suspended_before: Duration,
    /// Kept until the lock is registered, so that a shutdown sees one or the other.
    _permit: Option<Permit<'a>>,
}
