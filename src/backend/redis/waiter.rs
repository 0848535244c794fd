//! One acquire that waits, and what it is told.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OnceCell};

use super::{connection::Connection, opening::Stands};
use crate::sync::lock;

/// What stands under a key, which all who wait for its record here load together.
pub(super) type Together = Arc<OnceCell<Option<Stands>>>;

#[derive(Debug, Default)]
pub(super) struct Waiter {
    /// For a record too.
    pub(super) loads: bool,
    told: Mutex<Told>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Told {
    offer: Option<String>,
    recorded: Option<Together>,
    ask: bool,
    replaced: bool,
    /// The token of a grant that was taken away, perhaps before its answer came.
    revoked: Option<String>,
    asked: Option<Asked>,
}

/// Over which connection an attempt asked last, and whether an earlier ask may still come late.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) over: Arc<Connection>,
    pub(super) tainted: bool,
}

/// Why a waiter was woken.
#[derive(Debug)]
pub(super) enum News {
    /// It may have the key, if it confirms: with this token.
    Offer(String),
    /// There is a result, and its place in the queue is gone.
    Recorded(Together),
    /// It has to ask again.
    Ask,
    /// Another acquire of the same owner has taken its place.
    Replaced,
}

impl Waiter {
    pub(super) fn new(loads: bool) -> Self {
        Self {
            loads,
            ..Self::default()
        }
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.told));
        self.woken.notify_one();
    }

    pub(super) fn offer(&self, token: &str) {
        self.tell(|told| told.offer = Some(token.into()));
    }

    pub(super) fn recorded(&self, together: &Together) {
        self.tell(|told| told.recorded = Some(together.clone()));
    }

    pub(super) fn ask(&self) {
        self.tell(|told| told.ask = true);
    }

    pub(super) fn revoke(&self, token: &str) {
        self.tell(|told| {
            told.revoked = Some(token.into());
            told.ask = true;
        });
    }

    /// Tells it that another has taken its place, which has to know over what it asked.
    pub(super) fn replace(&self) -> Option<Asked> {
        let mut asked = None;
        self.tell(|told| {
            told.replaced = true;
            asked = told.asked.take();
        });
        asked
    }

    /// It is about to ask; `false` if another has taken its place.
    pub(super) fn asks(&self, asked: Asked) -> bool {
        let mut told = lock(&self.told);
        told.asked = Some(asked);
        !told.replaced
    }

    /// Whether the grant of this token was taken away.
    pub(super) fn was_revoked(&self, token: u64) -> bool {
        let told = lock(&self.told);
        told.revoked.as_deref().and_then(|t| t.parse().ok()) == Some(token)
    }

    /// Cancel safe: news that are not taken stay.
    pub(super) async fn news(&self) -> News {
        loop {
            {
                let mut told = lock(&self.told);
                if told.replaced {
                    return News::Replaced;
                }
                let (recorded, offer) = (told.recorded.take(), told.offer.take());
                match (recorded, offer) {
                    // Of which the server knows the order.
                    (Some(_), Some(_)) => return News::Ask,
                    (Some(together), None) => return News::Recorded(together),
                    (None, Some(token)) => return News::Offer(token),
                    (None, None) => {}
                }
                if std::mem::take(&mut told.ask) {
                    return News::Ask;
                }
            }
            // One task waits, and a permit is kept for it.
            self.woken.notified().await;
        }
    }
}
