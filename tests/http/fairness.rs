//! Who is next: arrival order within one process, and `Batched`, which hands a grant on within the
//! process and still leaves nothing behind.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request, routing::post};
use tower_lock::{
    Fairness, FencingToken, HeldLock, LockKey, LockLayer, LockManager, LockPolicy, Wait,
};

use crate::{
    backends::{On, on_each_backend},
    counting::CountingBackend,
    flaky::{Gate, order, post_to, start, until, until_waiting},
    support::soon,
};

on_each_backend!(
    sixty_waiters_in_their_order,
    newcomers_starve_nobody,
    a_batch_is_one_grant_of_the_backend(batched),
    batches_of_two_processes(batched),
    storms_of_leaving_callers(threads),
);

fn batched(n: u32) -> Fairness {
    Fairness::Batched(NonZeroU32::new(n).unwrap())
}

/// In which order the requests ran, by their number and token.
type Ran = Arc<Mutex<Vec<(usize, FencingToken)>>>;

/// `POST /orders/{id}/pay` notes who it is, then goes through the gate.
fn noting(gate: &Gate, layer: LockLayer) -> (Router, Ran) {
    let ran = Ran::default();
    let note = ran.clone();
    let gate = gate.clone();
    let handler = move |held: HeldLock, request: Request| async move {
        let number = *request.extensions().get::<usize>().unwrap();
        note.lock().unwrap().push((number, held.fencing_token()));
        gate.pass().await;
    };
    let layer = layer.with_wait(Wait::Forever).with_max_waiters(1000);
    let app = Router::new().route("/orders/{id}/pay", post(handler).route_layer(layer));
    (app, ran)
}

fn numbered(number: usize) -> axum::http::Request<axum::body::Body> {
    let mut request = post_to("/orders/7/pay");
    request.extensions_mut().insert(number);
    request
}

fn grows(ran: &Ran) -> bool {
    ran.lock().unwrap().is_sorted_by(|a, b| a.1 < b.1)
}

/// So many requests stand in the queue: that of the process, or of the server, which is where
/// those arrive that a process does not keep in a row itself.
async fn until_queued(on: On, locks: &LockManager, fairness: Fairness, n: usize) {
    until_waiting(locks, n).await;
    let in_a_row = matches!(fairness, Fairness::Batched(n) if n.get() > 1);
    if on.is_here() || in_a_row {
        return;
    }
    until_at_backend(locks, n as u64).await;
}

async fn until_at_backend(locks: &LockManager, n: u64) {
    let key = LockKey::new("order", 7);
    let queued = async || {
        let state = locks.inspect_key(&key).await;
        state.expect("the backend is there").waiters
    };
    soon("it is queued", async {
        while queued().await != n {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Sixty waiters that came one after the other are served in that order, whatever fairness keeps
/// order in one process; every grant has a greater token.
async fn sixty_waiters_in_their_order(on: On) {
    const WAITERS: usize = 60;
    for fairness in on.fair([
        Fairness::BestAvailable,
        Fairness::Fifo,
        batched(7),
        batched(1),
    ]) {
        let (backend, locks) = on.rig().await;
        let gate = Gate::shut();
        let (app, ran) = noting(&gate, order(&locks).with_fairness(fairness));
        let mut tasks = vec![start(&app, numbered(0))];
        gate.until_inside(1).await;
        for number in 1..=WAITERS {
            tasks.push(start(&app, numbered(number)));
            until_waiting(&locks, number).await;
        }
        gate.let_out(WAITERS + 1);
        for task in tasks {
            assert_eq!(task.await.unwrap().status(), 200);
        }
        let order: Vec<_> = ran
            .lock()
            .unwrap()
            .iter()
            .map(|(number, _)| *number)
            .collect();
        assert_eq!(order, (0..=WAITERS).collect::<Vec<_>>(), "{fairness:?}");
        assert!(grows(&ran), "{fairness:?}");
        assert_eq!(gate.inside.most(), 1);
        backend.freed().await;
    }
}

/// Constant newcomers starve nobody: a waiter is served after those before it, however many come
/// after it.
async fn newcomers_starve_nobody(on: On) {
    for fairness in on.fair([Fairness::Fifo, batched(5)]) {
        let (backend, locks) = on.rig().await;
        let gate = Gate::shut();
        let (app, ran) = noting(&gate, order(&locks).with_fairness(fairness));
        let mut tasks: Vec<_> = (0..10)
            .map(|number| start(&app, numbered(number)))
            .collect();
        gate.until_inside(1).await;
        until_queued(on, &locks, fairness, 9).await;
        let early = start(&app, numbered(1000));
        until_queued(on, &locks, fairness, 10).await;
        for number in 10..100 {
            // One leaves, one comes: there are always ten that wait.
            tasks.push(start(&app, numbered(number)));
            until_waiting(&locks, 11).await;
            gate.let_out(1);
            until_waiting(&locks, 10).await;
            if early.is_finished() {
                break;
            }
        }
        let place = ran
            .lock()
            .unwrap()
            .iter()
            .position(|(number, _)| *number == 1000);
        assert_eq!(place, Some(10), "{fairness:?}");
        gate.let_out(1000);
        for task in tasks {
            assert_eq!(task.await.unwrap().status(), 200);
        }
        assert_eq!(early.await.unwrap().status(), 200);
        backend.freed().await;
    }
}

/// `Batched(n)` asks the backend once for n holders.
async fn a_batch_is_one_grant_of_the_backend(on: On) {
    if !on.batches() {
        return are_refused(on).await;
    }
    let backend = CountingBackend::on(on).await;
    let locks = backend.manager();
    let gate = Gate::shut();
    let (app, ran) = noting(&gate, order(&locks).with_fairness(batched(10)));
    let tasks: Vec<_> = (0..100)
        .map(|number| start(&app, numbered(number)))
        .collect();
    gate.until_inside(1).await;
    until_waiting(&locks, 99).await;
    gate.let_out(100);
    for task in tasks {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    assert_eq!(backend.acquires(), 10);
    until("all is released", || backend.is_empty()).await;
    assert_eq!(backend.releases(), [1; 10]);
    assert!(grows(&ran));
    assert_eq!(gate.inside.most(), 1);
}

/// Where grants cannot reserve tokens, a route that asks for batches is not built.
async fn are_refused(on: On) {
    let (_, locks) = on.rig().await;
    let policy = LockPolicy::new().with_fairness(batched(10));
    let refused = order(&locks).try_with_policy(policy);
    let error = refused.expect_err("tokens are numbered by the backend");
    assert!(error.to_string().contains("Batched"), "{error}");
}

/// Two processes (two managers of one backend) with batches: both get their turn after at most one
/// batch of the other, one holder at a time, and tokens grow over both.
async fn batches_of_two_processes(on: On) {
    if !on.batches() {
        return are_refused(on).await;
    }
    const EACH: usize = 40;
    const BATCH: u32 = 4;
    let backend = on.backend().await;
    let gate = Gate::shut();
    let ran = Ran::default();
    let mut tasks = Vec::new();
    let mut managers = Vec::new();
    for process in 0..2 {
        let locks = backend.elsewhere().await.manager();
        let layer = order(&locks).with_fairness(batched(BATCH));
        let layer = layer.with_wait(Wait::Forever).with_max_waiters(1000);
        let (note, inner) = (ran.clone(), gate.clone());
        let handler = move |held: HeldLock| async move {
            note.lock().unwrap().push((process, held.fencing_token()));
            inner.pass().await;
        };
        let app = Router::new().route("/orders/{id}/pay", post(handler).route_layer(layer));
        tasks.extend((0..EACH).map(|_| start(&app, post_to("/orders/7/pay"))));
        managers.push(locks);
        until_waiting(&managers[process], EACH - usize::from(process == 0)).await;
    }
    for done in 1..=EACH * 2 {
        until("the next is inside", || gate.inside.visits() == done).await;
        let left = {
            let ran = ran.lock().unwrap();
            let inside = ran[done - 1].0;
            EACH - ran.iter().filter(|(process, _)| *process != inside).count()
        };
        // The other process asks again when its batch is over, which takes a moment.
        until_at_backend(&managers[0], left.min(1) as u64).await;
        gate.let_out(1);
    }
    for task in tasks {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    let order: Vec<_> = ran
        .lock()
        .unwrap()
        .iter()
        .map(|(process, _)| *process)
        .collect();
    let mut turns: Vec<usize> = order.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
    // Nobody else is left at the end, so the last turn may be longer than a batch.
    turns.pop();
    assert!(
        turns.iter().all(|turn| *turn <= BATCH as usize),
        "{order:?}"
    );
    assert!(grows(&ran));
    assert_eq!(gate.inside.most(), 1);
    backend.freed().await;
}

/// Storms of callers that leave at any moment, on several threads: whoever stays is served, and
/// nothing is left, neither in the queues of the process nor in the backend.
async fn storms_of_leaving_callers(on: On) {
    for fairness in on.fair([Fairness::Fifo, batched(3)]) {
        let backend = on.backend().await;
        let locks = backend.manager();
        let gate = Gate::shut();
        gate.let_out(usize::MAX >> 4);
        let (app, ran) = noting(&gate, order(&locks).with_fairness(fairness));
        let tasks: Vec<_> = (0..600)
            .map(|number| {
                let task = start(&app, numbered(number));
                if number % 3 != 0 {
                    let abort = task.abort_handle();
                    tokio::spawn(async move {
                        for _ in 0..fastrand::u32(0..200) {
                            tokio::task::yield_now().await;
                        }
                        abort.abort();
                    });
                }
                (number, task)
            })
            .collect();
        for (number, task) in tasks {
            let served = tokio::time::timeout(Duration::from_secs(30), task).await;
            match served.expect("nobody hangs") {
                Ok(response) => assert_eq!(response.status(), 200),
                Err(error) => assert!(error.is_cancelled() && number % 3 != 0),
            }
        }
        until("nothing is left", || {
            backend.is_empty() && locks.inspect() == Default::default()
        })
        .await;
        assert_eq!(gate.inside.most(), 1, "{fairness:?}");
        assert!(grows(&ran), "{fairness:?}");
        let key = LockKey::new("order", 7);
        assert_eq!(locks.inspect_key(&key).await.unwrap().waiters, 0);
    }
}
