//! What an operator sees of a lock: one span each, and metrics. Labels are the namespace and the
//! route, never the key.

use std::{sync::Arc, time::Duration};

use tracing::{Span, field::Empty};

use crate::{key::LockKey, lease::Loss};

/// The route of a request as a label; empty outside HTTP.
pub(crate) type Route = Option<Arc<str>>;

/// One lock as it is observed, from the wish to the release.
#[derive(Default)]
pub(crate) struct Observed {
    /// Boxed and absent when nobody listens: a held lock stays small.
    span: Option<Box<Span>>,
    #[cfg(feature = "metrics")]
    labels: Vec<metrics::Label>,
    #[cfg(feature = "metrics")]
    gauge: Option<metrics::Gauge>,
}

impl Observed {
    pub(crate) fn start(key: &LockKey, route: &Route) -> Self {
        let span = || {
            tracing::info_span!(
                target: "tower_lock",
                "lock",
                "lock.namespace" = key.namespace(),
                "lock.wait_ms" = Empty,
                "lock.hold_ms" = Empty,
                "lock.outcome" = Empty,
            )
        };
        let listened = tracing::span_enabled!(target: "tower_lock", tracing::Level::INFO);
        #[cfg(not(feature = "metrics"))]
        let _ = route;
        Self {
            span: listened.then(|| Box::new(span())),
            #[cfg(feature = "metrics")]
            labels: vec![
                metrics::Label::new("namespace", key.namespace().to_owned()),
                metrics::Label::new(
                    "route",
                    route.clone().map_or_else(String::new, |r| r.to_string()),
                ),
            ],
            #[cfg(feature = "metrics")]
            gauge: None,
        }
    }

    /// Whether anybody wants to know; a clock need not be read for nobody.
    pub(crate) fn is_listened_to(&self) -> bool {
        cfg!(feature = "metrics") || self.span.is_some()
    }

    /// The request waits in the queue.
    pub(crate) fn waiting(&mut self) {
        #[cfg(feature = "metrics")]
        self.gauge("tower_lock_waiting");
    }

    pub(crate) fn granted(&mut self, waited: Duration) {
        if let Some(span) = &self.span {
            span.record("lock.wait_ms", millis(waited));
        }
        #[cfg(feature = "metrics")]
        {
            metrics::histogram!("tower_lock_wait_seconds", self.labels.clone()).record(waited);
            self.gauge("tower_lock_held");
        }
    }

    pub(crate) fn refused(mut self, reason: &'static str, waited: Duration) {
        if let Some(span) = self.span.take() {
            span.record("lock.wait_ms", millis(waited));
            span.record("lock.outcome", reason);
        }
        #[cfg(feature = "metrics")]
        {
            let mut labels = std::mem::take(&mut self.labels);
            labels.push(metrics::Label::new("reason", reason));
            metrics::counter!("tower_lock_refused_total", labels).increment(1);
        }
    }

    /// There was a record, so the lock was not needed.
    pub(crate) fn recorded(mut self, waited: Duration) {
        if let Some(span) = self.span.take() {
            span.record("lock.wait_ms", millis(waited));
            span.record("lock.outcome", "recorded");
        }
    }

    /// Released, or lost before.
    pub(crate) fn ended(mut self, held: Duration, loss: Option<Loss>) {
        if let Some(span) = self.span.take() {
            span.record("lock.hold_ms", millis(held));
            span.record("lock.outcome", loss.map_or("released", Loss::as_str));
        }
        #[cfg(feature = "metrics")]
        {
            metrics::histogram!("tower_lock_hold_seconds", self.labels.clone()).record(held);
            if let Some(loss) = loss {
                let mut labels = self.labels.clone();
                labels.push(metrics::Label::new("reason", loss.as_str()));
                metrics::counter!("tower_lock_lost_total", labels).increment(1);
            }
        }
    }

    #[cfg(feature = "metrics")]
    fn gauge(&mut self, name: &'static str) {
        self.gauge_end();
        let gauge = metrics::gauge!(name, self.labels.clone());
        gauge.increment(1.0);
        self.gauge = Some(gauge);
    }

    #[cfg(feature = "metrics")]
    fn gauge_end(&mut self) {
        if let Some(gauge) = self.gauge.take() {
            gauge.decrement(1.0);
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        // Neither refused nor ended: its caller left while it waited.
        if let Some(span) = &self.span {
            span.record("lock.outcome", "abandoned");
        }
        #[cfg(feature = "metrics")]
        self.gauge_end();
    }
}

/// What became of a request with an idempotency key.
pub(crate) fn count_idempotent(namespace: &str, route: &Route, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "tower_lock_idempotent_total",
        "namespace" => namespace.to_owned(),
        "route" => route.clone().map_or_else(String::new, |r| r.to_string()),
        "outcome" => outcome,
    )
    .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (namespace, route, outcome);
}

/// What became of a request behind a single flight.
pub(crate) fn count_flight(namespace: &str, route: &Route, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "tower_lock_single_flight_total",
        "namespace" => namespace.to_owned(),
        "route" => route.clone().map_or_else(String::new, |r| r.to_string()),
        "outcome" => outcome,
    )
    .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (namespace, route, outcome);
}

/// A response body that streams on after its lock was released at the head.
pub(crate) fn count_body_outlived(namespace: &str, route: &Route) {
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "tower_lock_body_outlived_lock_total",
        "namespace" => namespace.to_owned(),
        "route" => route.clone().map_or_else(String::new, |r| r.to_string()),
    )
    .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (namespace, route);
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
