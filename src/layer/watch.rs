//! Keeps a request's locks until its response body has ended.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::Instant;

use super::guards::Guards;
use crate::route::Stats;
use crate::{error::BoxError, lease::Loss, web::BodyWatch};

/// The locks of a response body. The body is polled between `poll_lost` and `left`, so the manager
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
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        if !self.abort {
            return Poll::Pending;
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
                return Poll::Ready(body_lost(loss));
            }
        }
        Poll::Pending
    }

    fn left(&mut self) -> Option<BoxError> {
        if !self.abort {
            return None;
        }
        let mut lost = None;
        for guard in self.guards.as_slice() {
            let loss = guard.hold().leave_gate();
            if let (Some(loss), false) = (loss, guard.hold().is_taken()) {
                lost = Some(body_lost(loss));
            }
        }
        lost
    }

    fn finished(self: Box<Self>) {
        for guard in self.guards.as_slice() {
            self.stats.record(guard.hold().held_for(Instant::now()));
            drop(guard.start_release());
        }
    }
}

/// The error that ends a body whose lock was lost.
fn body_lost(loss: Loss) -> BoxError {
    format!("the lock of this response was lost: {}", loss.as_str()).into()
}
