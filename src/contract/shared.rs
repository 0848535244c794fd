//! Must 1 in shared mode: readers together, writers alone, nobody starves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, a_moment, ensure, request},
};
use crate::{
    backend::{LockBackend, Mode},
    error::BackendErrorKind,
    lease::{Lease, OwnerToken},
};

const NOT_SHARED: Verdict = Verdict::NotApplicable("the backend has no shared mode");

/// Readers hold together; a crowd of both never has a writer beside anybody.
pub(super) async fn readers_and_writers<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let reader = request(&key).with_mode(Mode::Shared);
    if !context.capabilities.shared {
        let refused = context.one.acquire(&reader).await.map_err(|e| e.kind());
        ensure!(
            matches!(refused, Err(BackendErrorKind::Unsupported)),
            1,
            "a backend without shared mode did not answer `Unsupported`"
        );
        return Ok(NOT_SHARED);
    }
    let first = context.one.acquire(&reader).await?;
    let mut other = reader.clone();
    other.owner = OwnerToken::random();
    let second = match context.two.acquire(&other).await {
        Ok(lease) => lease,
        Err(error) => {
            return Err(Violation::new(
                1,
                format!("a reader was kept from a reader's key: {error}"),
            ));
        }
    };
    context
        .held(&key, 1, "as a writer beside two readers")
        .await?;
    first.release().await?;
    context.held(&key, 1, "as a writer beside a reader").await?;
    second.release().await?;
    let writer = context.one.acquire(&request(&key)).await?;
    other.owner = OwnerToken::random();
    let beside = context.two.acquire(&other).await.map_err(|e| e.kind());
    ensure!(
        matches!(beside, Err(BackendErrorKind::Contended)),
        1,
        "a reader got a writer's key"
    );
    writer.release().await?;

    // -1: a writer is inside; n: so many readers are.
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..32 {
        let backend = if n % 2 == 0 {
            &context.one
        } else {
            &context.two
        };
        let (backend, inside) = (backend.clone(), inside.clone());
        let mode = if n % 4 == 0 {
            Mode::Exclusive
        } else {
            Mode::Shared
        };
        let wishes: Vec<_> = (0..10)
            .map(|_| context.patient(&key).with_mode(mode))
            .collect();
        tasks.spawn(async move {
            for wish in wishes {
                let lease = backend.acquire(&wish).await?;
                if mode == Mode::Exclusive {
                    let found = inside.fetch_sub(1, Ordering::SeqCst);
                    ensure!(found == 0, 1, "a writer beside another holder");
                    a_moment(3).await;
                    inside.fetch_add(1, Ordering::SeqCst);
                } else {
                    let found = inside.fetch_add(1, Ordering::SeqCst);
                    ensure!(found >= 0, 1, "a reader beside a writer");
                    a_moment(3).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                lease.release().await?;
            }
            Ok(())
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
    }
    context
        .until_free(&key, "after readers and writers")
        .await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// A writer gets in among readers that always overlap, and a reader among such writers.
pub(super) async fn nobody_starves<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    if !context.capabilities.shared {
        return Ok(NOT_SHARED);
    }
    for (crowd, lone) in [
        (Mode::Shared, Mode::Exclusive),
        (Mode::Exclusive, Mode::Shared),
    ] {
        let key = context.key();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let (backend, stop) = (context.one.clone(), stop.clone());
            let wish = context.patient(&key).with_mode(crowd);
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let mut wish = wish.clone();
                    wish.owner = OwnerToken::random();
                    let lease = backend.acquire(&wish).await?;
                    sleep(Duration::from_millis(fastrand::u64(2..10))).await;
                    lease.release().await?;
                }
                Ok::<_, Violation>(())
            });
        }
        sleep(Duration::from_millis(50)).await;
        let limit = Duration::from_secs(1) + context.options.slack * 2;
        let start = Instant::now();
        for _ in 0..3 {
            let wish = context.patient(&key).with_mode(lone);
            match tokio::time::timeout(limit, context.two.acquire(&wish)).await {
                Ok(lease) => lease?.release().await?,
                Err(_) => {
                    return Err(Violation::new(
                        5,
                        format!(
                            "{lone:?} starves among {crowd:?} holders: {:?}",
                            start.elapsed()
                        ),
                    ));
                }
            }
        }
        stop.store(true, Ordering::SeqCst);
        while let Some(result) = tasks.join_next().await {
            result.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
        }
        context.until_free(&key, "after a crowd").await?;
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
