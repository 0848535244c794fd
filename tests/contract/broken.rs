//! A little lock with a switch for each way to be wrong.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tower_lock::{
    BackendError, BackendErrorKind, BoxError, FencingToken, Lease, LockBackend, LockKey, Loss,
    Mode, OwnerToken,
    backend::{AcquireRequest, Capabilities, HolderState, KeyState, Scope, WaitBound},
    contract::{ContractTarget, Options},
    lease::{LossSignal, valid_until},
};

/// A waiter that did not look for so long counts as hung.
const HUNG: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    NoOwnerCheckOnRelease,
    WakesBeforeDeleting,
    ChecksBeforeRegistering,
    WakesNobody,
    ExpiryFromTheReply,
    RepeatsTokens,
    TokensRestart,
    Barges,
    LeavesEntryOnDrop,
    LeavesGrantOnDrop,
    TrustsTheHung,
    NotIdempotent,
    QueuesTwice,
    IgnoresHolders,
    EndsEarly,
    HidesLoss,
    LateTimeout,
    KeepsKeys,
    CutsKeys,
    RenewsNothing,
}

impl Fault {
    /// Without its timer, a lost wake-up shows.
    fn has_no_timer(self) -> bool {
        matches!(
            self,
            Self::WakesBeforeDeleting | Self::ChecksBeforeRegistering | Self::WakesNobody
        )
    }
}

/// The server and its target.
#[derive(Clone)]
pub(crate) struct Rig {
    server: Arc<Mutex<Server>>,
    /// Counted under the lock; gaps in the tokens do no harm.
    looks: Arc<AtomicU64>,
    fault: Fault,
}

#[derive(Default)]
struct Server {
    keys: HashMap<String, Key>,
    tickets: u64,
    delay: Duration,
}

#[derive(Default)]
struct Key {
    holder: Option<Holder>,
    queue: VecDeque<Waiter>,
}

struct Holder {
    owner: OwnerToken,
    token: FencingToken,
    expiry: Instant,
}

struct Waiter {
    owner: OwnerToken,
    ticket: u64,
    seen: Instant,
    notify: Arc<Notify>,
}

impl Key {
    fn first_alive(&self, fault: Fault) -> Option<&Waiter> {
        let now = Instant::now();
        self.queue
            .iter()
            .find(|waiter| fault == Fault::TrustsTheHung || waiter.seen + HUNG > now)
    }

    fn wake(&self, fault: Fault) {
        if fault != Fault::WakesNobody
            && let Some(waiter) = self.first_alive(fault)
        {
            waiter.notify.notify_one();
        }
    }
}

impl Rig {
    pub(crate) fn new(fault: Fault) -> Self {
        Self {
            server: Arc::default(),
            looks: Arc::default(),
            fault,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, key: &LockKey) -> String {
        let name = key.as_str();
        let cut = if self.fault == Fault::CutsKeys {
            30
        } else {
            name.len()
        };
        name.chars().take(cut).collect()
    }

    /// Runs on the key's state, and clears it away if nobody is left.
    fn on<R>(&self, name: &str, section: impl FnOnce(&mut Key) -> R) -> R {
        let mut server = self.lock();
        let key = server.keys.entry(name.into()).or_default();
        let now = Instant::now();
        if key
            .holder
            .as_ref()
            .is_some_and(|holder| holder.expiry <= now)
        {
            key.holder = None;
        }
        let result = section(key);
        if key.holder.is_none() && key.queue.is_empty() && self.fault != Fault::KeepsKeys {
            server.keys.remove(name);
        }
        result
    }
}

impl ContractTarget for Rig {
    type Backend = Client;

    async fn connect(&self) -> Result<Client, BoxError> {
        Ok(Client {
            delay: self.lock().delay,
            rig: self.clone(),
        })
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.lock().keys.len() as u64)
    }

    async fn restart(&self) -> bool {
        if self.fault == Fault::TokensRestart {
            self.looks.store(0, Ordering::Relaxed);
        }
        true
    }

    async fn slow_replies(&self, delay: Duration) -> bool {
        self.lock().delay = delay;
        true
    }

    fn options(&self) -> Options {
        let mut options = Options::in_process();
        options.patience = Duration::from_secs(25);
        options.settle = Duration::from_secs(2);
        options.aborts = 1000;
        options.grants = 2000;
        options.keys = 2000;
        options
    }
}

pub(crate) struct Client {
    rig: Rig,
    delay: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// What one look at the server said.
enum Look {
    Granted(FencingToken),
    Refused,
    Wait(Instant),
}

/// Takes the queue entry out when the acquire ends.
struct Entry<'a> {
    rig: &'a Rig,
    name: &'a str,
    ticket: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if self.rig.fault == Fault::LeavesEntryOnDrop {
            return;
        }
        self.rig.on(self.name, |key| {
            key.queue.retain(|waiter| waiter.ticket != self.ticket);
            if key.holder.is_none() {
                key.wake(self.rig.fault);
            }
        });
    }
}

/// Undoes a grant whose reply nobody waits for any more.
struct Undo<'a> {
    rig: &'a Rig,
    name: &'a str,
    owner: Option<OwnerToken>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner
            && self.rig.fault != Fault::LeavesGrantOnDrop
        {
            free(self.rig, self.name, &owner, false);
        }
    }
}

/// How long the reply takes: at least one await point.
async fn reply(delay: Duration) {
    if delay.is_zero() {
        tokio::task::yield_now().await;
    } else {
        sleep(delay).await;
    }
}

/// Frees the key if this owner holds it, or whoever holds it.
fn free(rig: &Rig, name: &str, owner: &OwnerToken, anybody: bool) {
    rig.on(name, |key| {
        if key
            .holder
            .as_ref()
            .is_some_and(|holder| anybody || holder.owner == *owner)
        {
            key.holder = None;
            if rig.fault != Fault::WakesBeforeDeleting {
                key.wake(rig.fault);
            }
        }
    });
}

impl Client {
    fn look(&self, name: &str, request: &AcquireRequest, me: &Me) -> Look {
        let fault = self.rig.fault;
        let now = Instant::now();
        self.rig.on(name, |key| {
            let nth = self.rig.looks.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(holder) = &key.holder
                && holder.owner == request.owner
                && fault != Fault::NotIdempotent
            {
                return Look::Granted(holder.token);
            }
            let over = match request.wait {
                WaitBound::Fail => true,
                WaitBound::Until(at) if fault == Fault::LateTimeout => at + HUNG <= now,
                WaitBound::Until(at) => at <= now,
                WaitBound::Forever => false,
            };
            let mut mine = key
                .queue
                .iter()
                .position(|waiter| waiter.ticket == me.ticket);
            if !over && mine.is_none() {
                let same = key
                    .queue
                    .iter_mut()
                    .find(|waiter| waiter.owner == request.owner && fault != Fault::QueuesTwice);
                match same {
                    // A newer request of this owner has the place.
                    Some(_) if me.registered() => return Look::Refused,
                    Some(waiter) => {
                        waiter.ticket = me.ticket;
                        std::mem::replace(&mut waiter.notify, me.notify.clone()).notify_one();
                    }
                    None => key.queue.push_back(Waiter {
                        owner: request.owner,
                        ticket: me.ticket,
                        seen: now,
                        notify: me.notify.clone(),
                    }),
                }
                mine = key
                    .queue
                    .iter()
                    .position(|waiter| waiter.ticket == me.ticket);
                me.registered.store(true, Ordering::Relaxed);
            }
            if let Some(at) = mine {
                key.queue[at].seen = now;
            }
            let first = key
                .first_alive(fault)
                .is_none_or(|first| first.ticket == me.ticket);
            let free = key.holder.is_none() && (first || fault == Fault::Barges);
            if free || (fault == Fault::IgnoresHolders && nth.is_multiple_of(7)) {
                let number = if fault == Fault::RepeatsTokens {
                    nth / 50 + 1
                } else {
                    nth
                };
                let token = FencingToken::new(number).expect("small");
                let ttl = if fault == Fault::EndsEarly {
                    request.ttl / 2
                } else {
                    request.ttl
                };
                key.holder = Some(Holder {
                    owner: request.owner,
                    token,
                    expiry: now + ttl,
                });
                return Look::Granted(token);
            }
            if over {
                return Look::Refused;
            }
            let mut again = now
                + if fault.has_no_timer() {
                    HUNG * 60
                } else {
                    LOOK_AGAIN
                };
            if let Some(holder) = &key.holder {
                again = again.min(holder.expiry);
            }
            if let WaitBound::Until(at) = request.wait {
                again = again.min(at.max(now + Duration::from_millis(1)));
            }
            Look::Wait(again)
        })
    }
}

struct Me {
    ticket: u64,
    notify: Arc<Notify>,
    registered: AtomicBool,
}

impl Me {
    fn registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }
}

impl LockBackend for Client {
    type Lease = Held;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("rig", Scope::Host);
        capabilities.fifo = true;
        capabilities.fencing = true;
        capabilities.survives.server_restart = true;
        capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Held, BackendError> {
        let fault = self.rig.fault;
        if request.mode == Mode::Shared {
            return Err(BackendError::new(BackendErrorKind::Unsupported, ""));
        }
        let name = self.rig.name(&request.key);
        let me = {
            let mut server = self.rig.lock();
            server.tickets += 1;
            Me {
                ticket: server.tickets,
                notify: Arc::default(),
                registered: false.into(),
            }
        };
        let sent = Instant::now();
        let entry = Entry {
            rig: &self.rig,
            name: &name,
            ticket: me.ticket,
        };
        if fault == Fault::ChecksBeforeRegistering
            && self.rig.on(&name, |key| key.holder.is_some())
            && request.wait != WaitBound::Fail
        {
            sleep(Duration::from_millis(5)).await;
            self.rig.on(&name, |key| {
                key.queue.push_back(Waiter {
                    owner: request.owner,
                    ticket: me.ticket,
                    seen: Instant::now(),
                    notify: me.notify.clone(),
                });
            });
            me.notify.notified().await;
        }
        let token = loop {
            match self.look(&name, request, &me) {
                Look::Granted(token) => break token,
                Look::Refused if request.wait == WaitBound::Fail => {
                    return Err(BackendError::new(BackendErrorKind::Contended, ""));
                }
                Look::Refused => {
                    return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
                }
                Look::Wait(until) => {
                    let _ = tokio::time::timeout_at(until, me.notify.notified()).await;
                }
            }
        };
        // The reply is on its way.
        let mut undo = Undo {
            rig: &self.rig,
            name: &name,
            owner: Some(request.owner),
        };
        drop(entry);
        reply(self.delay).await;
        undo.owner = None;
        drop(undo);
        let from = match fault {
            Fault::ExpiryFromTheReply => Instant::now(),
            // Not before the grant, of which the last look was the request.
            _ if me.registered() => Instant::now() - self.delay.max(Duration::from_millis(1)),
            _ => sent,
        };
        Ok(Held {
            rig: self.rig.clone(),
            delay: self.delay,
            name,
            owner: request.owner,
            token,
            ttl: request.ttl,
            valid_until: Mutex::new(valid_until(from, request.ttl)),
            lost: LossSignal::new(),
        })
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        let name = self.rig.name(key);
        loop {
            if !self.rig.on(&name, |key| key.holder.is_some()) {
                return Ok(());
            }
            match wait {
                WaitBound::Fail => {
                    return Err(BackendError::new(BackendErrorKind::Contended, ""));
                }
                WaitBound::Until(at) if at <= Instant::now() => {
                    return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
                }
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        let name = self.rig.name(key);
        let mut state = KeyState::free(name.clone());
        self.rig.on(&name, |key| {
            state.waiters = key.queue.len() as u64;
            state.holders.extend(key.holder.as_ref().map(|holder| {
                let mut state = HolderState::new(Mode::Exclusive);
                state.fencing_token = Some(holder.token);
                state
            }));
        });
        Ok(state)
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        let name = self.rig.name(key);
        Ok(self.rig.on(&name, |key| {
            let held = key.holder.take().is_some();
            key.wake(self.rig.fault);
            held
        }))
    }
}

pub(crate) struct Held {
    rig: Rig,
    delay: Duration,
    name: String,
    owner: OwnerToken,
    token: FencingToken,
    ttl: Duration,
    valid_until: Mutex<Instant>,
    lost: LossSignal,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Lease for Held {
    fn fencing_token(&self) -> FencingToken {
        self.token
    }

    fn reserved_tokens(&self) -> u32 {
        1
    }

    fn valid_until(&self) -> Instant {
        *self
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self) -> Result<(), BackendError> {
        let fault = self.rig.fault;
        let sent = Instant::now();
        let renewed = self.rig.on(&self.name, |key| {
            let holder = key
                .holder
                .as_mut()
                .filter(|holder| holder.owner == self.owner);
            if let Some(holder) = holder {
                if fault != Fault::RenewsNothing {
                    holder.expiry = sent + self.ttl;
                }
                return true;
            }
            fault == Fault::HidesLoss
        });
        reply(self.delay).await;
        if !renewed {
            self.lost.fire(Loss::Revoked);
            return Err(BackendError::new(BackendErrorKind::Lost, ""));
        }
        let from = if fault == Fault::ExpiryFromTheReply {
            Instant::now()
        } else {
            sent
        };
        *self
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = valid_until(from, self.ttl);
        Ok(())
    }

    fn lost(&self) -> &LossSignal {
        &self.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        let fault = self.rig.fault;
        if fault == Fault::WakesBeforeDeleting {
            self.rig.on(&self.name, |key| key.wake(fault));
            sleep(Duration::from_millis(5)).await;
        }
        let anybody = fault == Fault::NoOwnerCheckOnRelease;
        free(&self.rig, &self.name, &self.owner, anybody);
        Ok(())
    }
}
