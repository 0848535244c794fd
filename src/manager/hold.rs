//! One grant to one caller, from acquire to release.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Shared,
    batch::Lineage,
    claim::{Gate, Owner, Releaser},
    nanos,
    observe::Observed,
    plan::{Plan, lead},
};
use crate::{
    backend::{DynLease, Mode},
    clock,
    key::LockKey,
    lease::{FencingToken, Loss},
    sync::lock,
};

/// `renew_at` while a renewal is under way.
const RENEWING: u64 = u64::MAX;

/// One grant to one caller. Times are nanoseconds since the manager's start: a held lock is small.
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: LockKey,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) lease: Arc<dyn DynLease>,
    pub(crate) plan: Arc<Plan>,
    ttl: u64,
    granted_at: u64,
    waited: u64,
    /// How long the machine had been suspended when the last acknowledged acquire or renewal was
    /// sent, at most: nanoseconds.
    suspended_before: AtomicU64,
    owner: Owner,
    gate: Gate,
    renew_at: AtomicU64,
    hold_until: AtomicU64,
    /// The end of the lease as it was last asked for: asking costs, and it only moves to later.
    valid_until: AtomicU64,
    until_end: Mutex<UntilEnd>,
}

/// What a hold gives away when it ends.
#[derive(Default)]
struct UntilEnd {
    /// The place in this process's own queue, under `Batched`.
    lineage: Option<Box<Lineage>>,
    observed: Observed,
}

impl Hold {
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site each for grant and hand-off"
    )]
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: LockKey,
        mode: Mode,
        token: FencingToken,
        lease: Arc<dyn DynLease>,
        plan: Arc<Plan>,
        lineage: Option<Box<Lineage>>,
        waited: Duration,
        now: Instant,
        suspended_before: Duration,
        releaser: Releaser,
        observed: Observed,
    ) -> Self {
        let granted_at = shared.nanos(now);
        let valid_until = shared.nanos(lease.dyn_valid_until());
        let ttl = nanos(lineage.as_ref().map_or(plan.ttl, |l| l.ttl));
        let hold = Self {
            renew_at: AtomicU64::new(0),
            hold_until: AtomicU64::new(granted_at.saturating_add(nanos(plan.max_hold))),
            valid_until: AtomicU64::new(valid_until),
            owner: Owner::new(releaser),
            gate: Gate::new(),
            shared,
            key,
            mode,
            token,
            lease,
            ttl,
            plan,
            granted_at,
            waited: nanos(waited),
            suspended_before: AtomicU64::new(nanos(suspended_before)),
            until_end: Mutex::new(UntilEnd { lineage, observed }),
        };
        // When two thirds are left. A lease may have aged on its way to this holder, most of all
        // one that was handed on.
        let left = valid_until.saturating_sub(granted_at);
        let mut delay = left.saturating_sub(ttl / 3 * 2);
        if !hold.is_batched() {
            // A session that carries the lease may be shorter than the ttl: most requests are over
            // before a renewal is worth its while.
            delay = delay.max(left / 4);
        }
        hold.plan_renewal(delay.min(ttl / 3), granted_at);
        hold
    }

    fn is_batched(&self) -> bool {
        lock(&self.until_end).lineage.is_some()
    }

    /// The lease's, which under `Batched` another route may have asked for.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl)
    }

    /// How long the acquire took.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited)
    }

    /// For how long it has been held by then.
    pub(crate) fn held_for(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.shared.nanos(now).saturating_sub(self.granted_at))
    }

    /// When the worker must look at this lock next: a renewal, the longest hold, the loss.
    pub(crate) fn due(&self, suspended: Duration) -> Due {
        if self.lease.dyn_lost().get().is_some() {
            return Due {
                renew_at: u64::MAX,
                lose_at: u64::MAX,
            };
        }
        let told = self.ends(suspended).saturating_sub(lead(self.ttl));
        Due {
            renew_at: self.renew_at.load(Ordering::Acquire),
            lose_at: told.min(self.hold_until.load(Ordering::Acquire)),
        }
    }

    /// The loss that is due now, if any.
    pub(crate) fn loss_due(&self, now: u64, suspended: Duration) -> Option<Loss> {
        if now >= self.hold_until.load(Ordering::Acquire) {
            Some(Loss::MaxHold)
        } else if self.has_ended(now.saturating_add(lead(self.ttl)), suspended) {
            Some(Loss::Expired)
        } else {
            None
        }
    }

    /// Whether the lease has ended by then.
    fn has_ended(&self, by: u64, suspended: Duration) -> bool {
        if by < self.ends(suspended) {
            return false;
        }
        // A session's heartbeats may have moved the end without a renewal.
        self.look_at_lease();
        by >= self.ends(suspended)
    }

    fn look_at_lease(&self) {
        let end = self.shared.nanos(self.lease.dyn_valid_until());
        self.valid_until.fetch_max(end, Ordering::AcqRel);
    }

    /// The end of the lease, as last seen, on a clock that counts suspends.
    fn ends(&self, suspended: Duration) -> u64 {
        let before = self.suspended_before.load(Ordering::Acquire);
        let slept = nanos(suspended).saturating_sub(before);
        self.valid_until
            .load(Ordering::Acquire)
            .saturating_sub(slept)
    }

    pub(crate) fn suspended_before(&self) -> Duration {
        Duration::from_nanos(self.suspended_before.load(Ordering::Acquire))
    }

    /// A renewal was acknowledged that was sent when suspends had come to this.
    pub(crate) fn renewed(&self, suspended_before: Duration) {
        self.suspended_before
            .fetch_max(nanos(suspended_before), Ordering::AcqRel);
        self.look_at_lease();
    }

    /// Claims the renewal that is due; whoever claims it must call [`renew_in`](Self::renew_in).
    pub(crate) fn claim_renewal(&self, now: u64) -> bool {
        let due = self.renew_at.load(Ordering::Acquire);
        due <= now
            && self
                .renew_at
                .compare_exchange(due, RENEWING, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// Plans the next renewal: after `delay`, ± 10 %.
    pub(crate) fn renew_in(&self, delay: Duration, now: Instant) {
        self.plan_renewal(nanos(delay), self.shared.nanos(now));
    }

    fn plan_renewal(&self, delay: u64, now: u64) {
        let tenth = delay / 10;
        let jittered = delay - tenth + fastrand::u64(..=2 * tenth);
        // Never the mark of a renewal that is under way.
        let at = now.saturating_add(jittered).min(RENEWING - 1);
        self.renew_at.store(at, Ordering::Release);
    }

    /// Ends the hold at `until` if it would last longer.
    pub(crate) fn hold_at_most_until(&self, until: Instant) {
        let until = self.shared.nanos(until);
        self.hold_until.fetch_min(until, Ordering::AcqRel);
        if self.is_taken() {
            self.hold_for_max_hold();
        }
        self.shared.look_at(until);
    }

    /// The bound that `max_hold` sets: the end of a body does not bind a lock that left it.
    fn hold_for_max_hold(&self) {
        let until = self.granted_at.saturating_add(nanos(self.plan.max_hold));
        self.hold_until.store(until, Ordering::Release);
    }

    /// Moves the right to release; `true` for the one caller that must now release.
    pub(crate) fn begin_release(&self, releaser: Releaser) -> bool {
        self.owner.begin_release(releaser)
    }

    /// Moves the right to release to the handler, once.
    pub(crate) fn take(&self) -> bool {
        let taken = self.owner.take();
        if taken {
            self.hold_for_max_hold();
        }
        taken
    }

    pub(crate) fn is_layers(&self) -> bool {
        self.owner.is_layers()
    }

    /// Whether the lock left the middleware, even if it has been released since.
    pub(crate) fn is_taken(&self) -> bool {
        self.owner.is_taken()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.owner.is_released()
    }

    /// Whether the holder may act now.
    pub(crate) fn is_held(&self) -> bool {
        !self.is_released()
            && self.lease.dyn_lost().get().is_none()
            && !self.has_ended(self.shared.nanos(Instant::now()), clock::suspended())
    }

    /// Whether the lease ended although nobody has noticed yet; without a system call.
    pub(crate) fn loss_at_end(&self, now: Instant) -> Option<Loss> {
        let loss = self.lease.dyn_lost();
        if loss.get().is_none() && self.has_ended(self.shared.nanos(now), self.shared.suspended()) {
            loss.fire(Loss::Expired);
        }
        loss.get()
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.is_held() {
            let now = self.shared.nanos(Instant::now());
            Duration::from_nanos(self.ends(clock::suspended()).saturating_sub(now))
        } else {
            Duration::ZERO
        }
    }

    /// Lets the next of this process contend for the key: under `Batched`, a holder that does not
    /// look at its loss would keep it to itself, although its lease ends.
    pub(crate) fn leave_batch(&self) {
        let lineage = lock(&self.until_end).lineage.take();
        drop(lineage);
    }

    /// Reports a loss that the manager decides on.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        if self.is_released() {
            // Its lease may have been handed on.
            return false;
        }
        let first = self.lease.dyn_lost().fire(loss);
        self.leave_batch();
        if first {
            tracing::warn!(
                target: "tower_lock",
                namespace = self.key.namespace(),
                reason = loss.as_str(),
                held_ms = self.held_for(Instant::now()).as_millis() as u64,
                "lock lost"
            );
        }
        first
    }

    /// Opens the gate: the handler is done, its body streams on under the lock.
    pub(crate) fn open_gate(&self) {
        self.gate.open();
    }

    /// Enters a poll of the body; `false` if the gate was closed.
    pub(crate) fn enter_gate(&self) -> bool {
        self.gate.enter()
    }

    /// Leaves a poll of the body and returns the loss that happened meanwhile. Either this sees
    /// the loss, or whoever reports it finds the gate open: both sides write, then read.
    pub(crate) fn leave_gate(&self) -> Option<Loss> {
        self.gate.leave();
        self.lease.dyn_lost().get()
    }

    /// Closes an open gate that is not being polled.
    pub(crate) fn close_gate(&self) -> bool {
        self.gate.close()
    }

    /// Tells the observers that it is over, and gives away its place in this process's queue.
    pub(crate) fn end(&self) -> Option<Box<Lineage>> {
        let UntilEnd { lineage, observed } = std::mem::take(&mut *lock(&self.until_end));
        if observed.is_listened_to() {
            let held = self.held_for(Instant::now());
            observed.ended(held, self.lease.dyn_lost().get());
        }
        lineage
    }
}

/// The moments at which the worker must look, in nanoseconds since the manager's start.
pub(crate) struct Due {
    pub(crate) renew_at: u64,
    pub(crate) lose_at: u64,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("mode", &self.mode)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
