//! Keeps a request's locks until its response body has ended.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    config::Stats,
    session::{Guards, body_lost},
};
use crate::{error::BoxError, web::BodyWatch};

/// The locks of a response body. The body is polled between `enter` and `leave`, so the manager
/// knows when it is not, and a body that has had its time is never polled again.
pub(super) struct BodyEndWatch {
    guards: Guards,
    abort: bool,
    stats: Arc<Stats>,
}

impl BodyEndWatch {
    pub(super) fn new(guards: Guards, abort: bool, stats: Arc<Stats>) -> Self {
        Self {
            guards,
            abort,
            stats,
        }
    }
}

impl BodyWatch for BodyEndWatch {
    fn enter(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        if !self.abort {
            return Ok(());
        }
        let guards = self.guards.as_slice();
        for (entered, guard) in guards.iter().enumerate() {
            let hold = guard.hold();
            if hold.is_taken() {
                continue;
            }
            let lost = match hold.lease.dyn_lost().poll_holder(cx) {
                Poll::Ready(loss) => Some(loss),
                Poll::Pending if hold.enter_gate() => None,
                Poll::Pending => hold.lease.dyn_lost().get(),
            };
            if let Some(loss) = lost {
                for guard in &guards[..entered] {
                    let _ = guard.hold().leave_gate();
                }
                return Err(body_lost(loss));
            }
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<(), BoxError> {
        if !self.abort {
            return Ok(());
        }
        let mut result = Ok(());
        for guard in self.guards.as_slice() {
            let loss = guard.hold().leave_gate();
            if let (Some(loss), false) = (loss, guard.hold().is_taken()) {
                result = Err(body_lost(loss));
            }
        }
        result
    }

    fn finished(self: Box<Self>) {
        for guard in self.guards.as_slice() {
            self.stats.record(guard.hold().granted_at.elapsed());
            drop(guard.start_release());
        }
    }
}
