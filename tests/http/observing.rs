//! What an operator sees: one span for each lock, metrics by namespace and route, and never a key.

use std::time::Duration;

use axum::{Router, routing::post};
use tower_lock::{LockKey, LockManager, Wait, key::PathKey};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Gate, call, outcome, post_to, start, until_waiting},
    logs::{Logs, SpanSeen},
};

on_each_backend!(one_span_for_each_lock(paused), debug_output_holds_no_key,);

/// A value that must not turn up anywhere.
const SECRET: &str = "customer-4711";

fn app(locks: &LockManager, namespace: &str, gate: &Gate) -> Router {
    let gate = gate.clone();
    let layer = tower_lock::LockLayer::new(locks, PathKey::new(namespace, "id"))
        .with_wait(Duration::from_secs(5))
        .with_max_waiters(1);
    Router::new().route(
        "/orders/{id}/pay",
        post(move || async move { gate.pass().await }).route_layer(layer),
    )
}

fn path() -> String {
    format!("/orders/{SECRET}/pay")
}

/// What passes for a second: less of it where it has to be waited for.
fn second(on: On) -> Duration {
    Duration::from_millis(if on.is_here() { 1000 } else { 200 })
}

/// Whether this many milliseconds, or these seconds in milliseconds, were taken: exactly by a
/// paused clock, and no less by the real one.
fn took(on: On, millis: f64, seconds: u32) -> bool {
    let expected = (second(on) * seconds).as_millis() as f64;
    let late = if on.is_here() { 0.0 } else { 5000.0 };
    (expected..=expected + late).contains(&millis.round())
}

/// One request that holds for 2 s, one that waits for 1 s of it and is served, one that is refused
/// because there is no room to wait, and one that loses its lock after 3 s.
async fn traffic(on: On, locks: &LockManager, namespace: &str) {
    let gate = Gate::shut();
    let app = app(locks, namespace, &gate);
    let second = second(on);
    let first = start(&app, post_to(&path()));
    gate.until_inside(1).await;
    tokio::time::sleep(second).await;
    let next = start(&app, post_to(&path()));
    until_waiting(locks, 1).await;
    let full = call(&app, post_to(&path())).await;
    assert_eq!(outcome(&full), (429, "too-many-waiters"));
    tokio::time::sleep(second).await;
    gate.let_out(1);
    assert_eq!(first.await.unwrap().status(), 200);
    gate.until_inside(1).await;
    tokio::time::sleep(second * 3).await;
    locks
        .force_release(&LockKey::new(namespace, SECRET))
        .await
        .unwrap();
    assert_eq!(outcome(&next.await.unwrap()), (500, "lock-lost"));
}

fn millis(span: &SpanSeen, field: &str) -> Option<f64> {
    Some(span.fields.get(field)?.parse().expect("a number"))
}

async fn one_span_for_each_lock(on: On) {
    let logs = Logs::capture();
    let (_, locks) = on.rig().await;
    traffic(on, &locks, "spans").await;
    let mut spans: Vec<_> = logs
        .spans("lock")
        .into_iter()
        .filter(|span| span.fields["lock.namespace"] == "spans")
        .collect();
    spans.sort_by_key(|span| span.fields.get("lock.outcome").cloned());
    let expected = [
        ("force_released", 1, Some(3)),
        ("released", 0, Some(2)),
        ("too_many_waiters", 0, None),
    ];
    assert_eq!(spans.len(), expected.len(), "{spans:?}");
    for (span, (outcome, wait, hold)) in spans.iter().zip(expected) {
        assert_eq!(span.fields["lock.outcome"], outcome);
        let waited = millis(span, "lock.wait_ms").expect("always");
        assert!(took(on, waited, wait), "{span:?}");
        let held = millis(span, "lock.hold_ms");
        assert_eq!(held.is_some(), hold.is_some(), "{span:?}");
        assert!(held.is_none_or(|held| took(on, held, hold.expect("both"))));
    }
    let all = format!("{logs:?}");
    assert!(
        all.contains("lock lost") || all.contains("because its lock was lost"),
        "{all}"
    );
    assert!(!all.contains(SECRET), "a key got into the log:\n{all}");
}

/// With nobody listening there is no span to pay for, and nothing else changes.
#[tokio::test(start_paused = true)]
async fn nobody_listens() {
    let (_, locks) = On::Memory.rig().await;
    traffic(On::Memory, &locks, "silence").await;
}

/// What may be printed of the types that hold a key: the namespace, not the value.
async fn debug_output_holds_no_key(on: On) {
    let (backend, locks) = on.rig().await;
    let key = LockKey::new("debug", SECRET);
    let policy = tower_lock::LockPolicy::new().with_wait(Wait::Fail);
    let guard = locks.acquire(key.clone(), &policy).await.unwrap();
    let error = locks.acquire(key.clone(), &policy).await.unwrap_err();
    let texts = [
        format!("{key:?}"),
        format!("{guard:?}"),
        format!("{:?}", guard.held()),
        format!("{locks:?}"),
        format!("{backend:?}"),
        format!("{:?}", locks.inspect()),
        format!("{error:?} {error}"),
    ];
    for text in texts {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[cfg(feature = "metrics")]
mod metrics_seen {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
        Recorder, SharedString, Unit,
    };

    use super::{SECRET, took, traffic};
    use crate::backends::{On, on_each_backend};

    on_each_backend!(metrics_by_namespace_and_route(paused));

    /// All values that one metric with its labels was given, in order; a gauge's are its states.
    type Seen = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

    #[derive(Clone, Default)]
    struct Tape(Seen);

    struct One(String, Seen);

    impl One {
        fn push(&self, next: impl Fn(f64) -> f64) {
            let mut seen = self.1.lock().unwrap();
            let values = seen.entry(self.0.clone()).or_default();
            let last = values.last().copied().unwrap_or(0.0);
            values.push(next(last));
        }
    }

    impl CounterFn for One {
        fn increment(&self, value: u64) {
            self.push(|last| last + value as f64);
        }

        fn absolute(&self, value: u64) {
            self.push(|_| value as f64);
        }
    }

    impl GaugeFn for One {
        fn increment(&self, value: f64) {
            self.push(|last| last + value);
        }

        fn decrement(&self, value: f64) {
            self.push(|last| last - value);
        }

        fn set(&self, value: f64) {
            self.push(|_| value);
        }
    }

    impl HistogramFn for One {
        fn record(&self, value: f64) {
            self.push(|_| value);
        }
    }

    impl Tape {
        fn one(&self, key: &Key) -> Arc<One> {
            let labels: Vec<_> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let name = format!("{} {}", key.name(), labels.join(" "));
            Arc::new(One(name, self.0.clone()))
        }
    }

    impl Recorder for Tape {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.one(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.one(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.one(key))
        }
    }

    /// The wait, the hold, who holds and waits, what was refused and lost: each labelled by the
    /// namespace and the route's template.
    async fn metrics_by_namespace_and_route(on: On) {
        let tape = Tape::default();
        let _recorder = metrics::set_default_local_recorder(&tape);
        let backend = on.backend().await;
        // The recorder listens on this thread, so all is done here.
        let locks = backend.builder().renew_on_current_runtime().build();
        traffic(on, &locks, "metered").await;
        drop(locks);
        let seen = tape.0.lock().unwrap().clone();
        let get = |name: &str, reason: &str| {
            let key = format!("{name} namespace=metered route=/orders/{{id}}/pay{reason}");
            let values = seen
                .get(&key)
                .unwrap_or_else(|| panic!("no {key} in {seen:#?}"));
            values.clone()
        };
        for (name, expected) in [
            ("tower_lock_wait_seconds", [0, 1]),
            ("tower_lock_hold_seconds", [2, 3]),
        ] {
            let seen = get(name, "");
            assert_eq!(seen.len(), 2, "{name}: {seen:?}");
            for (seen, expected) in seen.iter().zip(expected) {
                assert!(took(on, seen * 1000.0, expected), "{name}: {seen}");
            }
        }
        let held = get("tower_lock_held", "");
        assert_eq!(held.iter().copied().fold(0.0, f64::max), 1.0, "{held:?}");
        assert_eq!(held.last(), Some(&0.0), "{held:?}");
        // Elsewhere, one that asks waits for the answer.
        let waiting = get("tower_lock_waiting", "");
        let expected = [1.0, 0.0].repeat(if on.is_here() { 1 } else { 2 });
        assert_eq!(waiting, expected);
        let reason = " reason=too_many_waiters";
        assert_eq!(get("tower_lock_refused_total", reason), [1.0]);
        let reason = " reason=force_released";
        assert_eq!(get("tower_lock_lost_total", reason), [1.0]);
        for name in seen.keys() {
            assert!(!name.contains(SECRET), "{name}");
        }
    }
}
