//! What is left of a waiter when its caller is gone.

use std::sync::Arc;

use super::{super::session::Session, Stand, Waiter};
use crate::{lease::FencingToken, record::Results, sync::lock};

/// What has to be undone of an attempt.
pub(in super::super) struct Traces {
    pub(in super::super) stand: Option<Stand>,
    pub(in super::super) tainted: bool,
    pub(in super::super) session: Option<Arc<Session>>,
    pub(in super::super) opening: Option<i64>,
    pub(super) since: Option<FencingToken>,
    pub(super) results: Results,
    pub(super) came: i64,
    pub(super) evicted: bool,
}

impl Waiter {
    /// Its caller is gone. Whether anything of it is, or may come to be, at the server.
    pub(in super::super) fn leaves(&self) -> bool {
        let mut told = lock(&self.told);
        told.ticks = None;
        told.left = true;
        told.putting
            || told.tainted
            || told.stand.is_some()
            || told.older.is_some()
            || told.opening.is_some()
    }

    pub(in super::super) fn traces(&self) -> Traces {
        let told = lock(&self.told);
        Traces {
            stand: told.stand.clone(),
            tainted: told.tainted,
            session: told.session.clone(),
            opening: told.opening,
            since: told.since,
            results: told.results,
            came: told.came,
            evicted: told.evicted,
        }
    }
}
