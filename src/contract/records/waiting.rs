//! R5: what those find who wait.

use std::{future::Future, pin::pin, time::Duration};

use tokio::task::JoinHandle;

use super::{
    Checked, Context, ContractTarget, Found, Lent, LockBackend, Record, Verdict, Violation, ensure,
    forget, keep, lease, open_record, opening, refused, request, result, store,
};
use crate::{
    backend::AcquireRequest,
    error::BackendErrorKind,
    key::LockKey,
    lease::Lease,
    record::{Opening, Orphans, Results},
};

type Waiting = JoinHandle<Result<Found<Lent>, Violation>>;

/// So many that wait, over both clients.
async fn crowd<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
    open: &Opening,
    count: usize,
) -> Result<Vec<(AcquireRequest, Waiting)>, Violation> {
    let before = context.one.inspect(key).await?.waiters;
    let crowd = (0..count).map(|n| {
        let backend = if n % 2 == 0 {
            &context.one
        } else {
            &context.two
        };
        let (backend, open) = (backend.clone(), open.clone());
        let wish = context.patient(key);
        let asked = wish.clone();
        let waiting = tokio::spawn(async move {
            let found = store(&*backend)?.dyn_acquire_or_load(&asked, Some(&open));
            Ok(found.await?)
        });
        (wish, waiting)
    });
    let crowd = crowd.collect();
    context.until_waiting(key, before + count as u64).await?;
    Ok(crowd)
}

/// What `work` comes to, while the holder renews.
async fn renewed<O>(
    held: &Lent,
    ttl: Duration,
    work: impl Future<Output = O>,
) -> Result<O, Violation> {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(ttl / 5, work.as_mut()).await {
            Ok(output) => return Ok(output),
            Err(_) => held.renew().await?,
        }
    }
}

/// What a wait comes to within `limit`.
async fn end(waiting: Waiting, limit: Duration) -> Result<Found<Lent>, Violation> {
    match tokio::time::timeout(limit, waiting).await {
        Ok(found) => found.map_err(|panic| Violation::new(0, format!("a wait: {panic}")))?,
        Err(_) => Err(Violation::new(
            5,
            format!("a wait did not end within {limit:?}"),
        )),
    }
}

async fn all_records(
    crowd: Vec<(AcquireRequest, Waiting)>,
    limit: Duration,
    check: impl Fn(&Record) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let started = tokio::time::Instant::now();
    for (_, waiting) in crowd {
        match end(waiting, limit.saturating_sub(started.elapsed())).await? {
            Found::Record(record) => check(&record)?,
            other => return Err(Violation::new(5, format!("{other:?} for who waited"))),
        }
    }
    Ok(())
}

/// Far less than a hand-off for each takes if one is slow, and nothing like a ttl.
pub(super) async fn a_result_wakes_all<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let one = store(&*context.one)?;
    for releases in [true, false] {
        let key = context.key();
        let wish = request(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
        let (held, _) = lease(found, 4, "a new key")?;
        let token = held.fencing_token();
        let crowd = crowd(context, &key, &opening("x"), 300).await?;
        let save = keep(&wish, token, "result");
        if releases {
            one.dyn_save_and_release(&save).await?;
        } else {
            // The lock is still held: they do not wait for that.
            one.dyn_save(&save).await?;
        }
        all_records(crowd, context.options.slack * 2, |record| {
            result(Some(record), token, b"result", (5, "for who waited"))
        })
        .await?;
        context.until_waiting(&key, 0).await?;
        if !releases {
            context.held(&key, 5, "beside its result").await?;
            held.release().await?;
        }
        context.until_free(&key, "after its result").await?;
    }
    Ok(Verdict::Passed)
}

/// Those who wait for the lock alone have it, in their turn.
pub(super) async fn locks_in_the_same_queue<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let one = store(&*context.one)?;
    let key = context.key();
    let wish = request(&key);
    let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
    let (held, _) = lease(found, 4, "a new key")?;
    let token = held.fencing_token();
    let early = crowd(context, &key, &opening("x"), 10).await?;
    let first = context.enqueue(context.patient(&key)).await?;
    let late = crowd(context, &key, &opening("x"), 10).await?;
    let second = context.enqueue(context.patient(&key)).await?;
    one.dyn_save_and_release(&keep(&wish, token, "result"))
        .await?;
    let limit = context.options.slack * 2;
    for crowd in [early, late] {
        all_records(crowd, limit, |record| {
            result(Some(record), token, b"result", (5, "for who waited"))
        })
        .await?;
    }
    // Without a queue the one that came later may be first.
    let deadline = tokio::time::Instant::now() + limit;
    let (mut first, mut second) = (first, second);
    while !context.capabilities.fifo && !first.is_finished() {
        if second.is_finished() || tokio::time::Instant::now() > deadline {
            std::mem::swap(&mut first, &mut second);
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let first = context.granted(first, limit, "the first lock").await?;
    ensure!(!second.is_finished(), 5, "two locks, or the wrong one");
    first.release().await?;
    let second = context.granted(second, limit, "the second lock").await?;
    second.release().await?;
    context.until_free(&key, "after all").await?;
    Ok(Verdict::Passed)
}

/// The holder forgets, leaves, or is gone: one of them runs, and the others have its result.
pub(super) async fn one_of_those_who_wait_takes_over<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let one = store(&*context.one)?;
    for ending in ["forgets", "leaves", "is gone"] {
        let key = context.key();
        let mut wish = request(&key);
        if ending == "is gone" {
            wish.ttl = context.short_ttl();
        }
        let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
        let (held, _) = lease(found, 4, "a new key")?;
        let token = held.fencing_token();
        let open = opening("x");
        let crowd = renewed(&held, wish.ttl, crowd(context, &key, &open, 20)).await??;
        match ending {
            "forgets" => one.dyn_save_and_release(&forget(&wish, token)).await?,
            "leaves" => held.release().await?,
            _ => {}
        }
        let limit = wish.ttl.min(context.short_ttl()) + context.options.hung_wait;
        let deadline = tokio::time::Instant::now() + limit + context.options.slack * 2;
        let mut ran = None;
        let mut rest = crowd;
        while ran.is_none() {
            ensure!(
                tokio::time::Instant::now() < deadline,
                5,
                "nobody took over from one who {ending}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(at) = rest.iter().position(|(_, waiting)| waiting.is_finished()) {
                let (wish, waiting) = rest.swap_remove(at);
                match end(waiting, limit).await? {
                    Found::Lease { lease, previous } => {
                        if ending == "forgets" {
                            ensure!(previous.is_none(), 6, "an orphan: {previous:?}");
                        } else {
                            let why = (6, "the orphan");
                            open_record(previous.as_ref(), token, "x", why)?;
                        }
                        ran = Some((wish, lease));
                    }
                    other => {
                        return Err(Violation::new(5, format!("{other:?} for who waited")));
                    }
                }
            }
        }
        let Some((wish, lease)) = ran else { continue };
        let again = lease.fencing_token();
        ensure!(again > token, 3, "token {again} after {token}");
        let state = context.one.inspect(&key).await?;
        ensure!(state.holders.len() == 1, 1, "{} hold", state.holders.len());
        one.dyn_save_and_release(&keep(&wish, again, "second"))
            .await?;
        all_records(rest, context.options.slack * 2, |record| {
            result(Some(record), again, b"second", (5, "for who waited on"))
        })
        .await?;
        drop(held);
        context.until_free(&key, "after its result").await?;
        let loaded = one.dyn_load(&key).await?;
        result(loaded.as_ref(), again, b"second", (2, "in the end"))?;
    }
    Ok(Verdict::Passed)
}

/// R6: when the holder is gone, all who wait are told of the orphan, and the queue is over.
pub(super) async fn kept_orphans_are_for_all<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let one = store(&*context.one)?;
    let key = context.key();
    let wish = AcquireRequest::new(key.clone(), context.short_ttl());
    let open = opening("x").with_orphans(Orphans::Keep);
    let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
    let (held, _) = lease(found, 4, "a new key")?;
    let token = held.fencing_token();
    let crowd = renewed(&held, wish.ttl, crowd(context, &key, &open, 50)).await??;
    let limit = context.short_ttl() + context.options.hung_wait;
    all_records(crowd, limit, |record| {
        open_record(Some(record), token, "x", (6, "the orphan"))
    })
    .await?;
    context.until_free(&key, "beside an orphan").await?;
    let lock = context.two.acquire(&request(&key)).await?;
    // Nobody may begin under a lock that somebody has.
    match one.dyn_acquire_or_load(&request(&key), Some(&open)).await? {
        Found::Held { open, .. } => {
            open_record(open.as_ref(), token, "x", (7, "the orphan"))?;
        }
        other => return Err(Violation::new(7, format!("a held key: {other:?}"))),
    }
    lock.release().await?;
    let renewed = held.renew().await.map_err(|error| error.kind());
    ensure!(
        renewed == Err(BackendErrorKind::Lost),
        8,
        "a lease that is over was renewed: {renewed:?}"
    );
    super::clean_up(context, &key).await?;
    Ok(Verdict::Passed)
}

/// R4, R5: a result for those who came before its holder was done, and for nobody after them.
pub(super) async fn results_for_those_who_wait<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let key = context.key();
    let open = opening("x").with_results(Results::ForWaiting);
    let mut last: Option<(AcquireRequest, _)> = None;
    for bytes in ["first", "second"] {
        let wish = context.patient(&key);
        let found = two.dyn_acquire_or_load(&wish, Some(&open)).await;
        let (held, previous) = lease(found, 4, "a free key, whose result is for those who wait")?;
        ensure!(previous.is_none(), 6, "a result as an orphan: {previous:?}");
        let token = held.fencing_token();
        let opened = one.dyn_load(&key).await?;
        let why = (4, "what took a result's place");
        open_record(opened.as_ref(), token, "x", why)?;
        if let Some((wish, token)) = &last {
            let saved = one.dyn_save(&keep(wish, *token, "stale")).await;
            refused(saved, 2, "of a holder whose result was replaced")?;
        }
        let crowd = crowd(context, &key, &open, 30).await?;
        one.dyn_save_and_release(&keep(&wish, token, bytes)).await?;
        all_records(crowd, context.options.slack * 2, |record| {
            result(Some(record), token, bytes.as_bytes(), (5, "for who waited"))
        })
        .await?;
        last = Some((wish, token));
    }
    // Who waits for somebody else waited for none of them.
    let lock = context.one.acquire(&request(&key)).await?;
    let mut late = crowd(context, &key, &open, 1).await?;
    lock.release().await?;
    for (wish, waiting) in late.drain(..) {
        let found = end(waiting, context.options.slack * 2).await?;
        let (held, previous) = lease(Ok(found), 5, "after somebody who left nothing")?;
        ensure!(previous.is_none(), 6, "a result as an orphan: {previous:?}");
        one.dyn_save_and_release(&keep(&wish, held.fencing_token(), "third"))
            .await?;
        last = Some((wish, held.fencing_token()));
    }
    // One who comes in between does not take it from those who waited.
    for round in 0..5 {
        let wish = request(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
        let (held, _) = lease(found, 4, "a free key, whose result is for those who wait")?;
        let token = held.fencing_token();
        let crowd = crowd(context, &key, &open, 20).await?;
        one.dyn_save_and_release(&keep(&wish, token, "in time"))
            .await?;
        let newcomer = request(&key);
        let between = if round % 2 == 0 { one } else { two };
        let found = between.dyn_acquire_or_load(&newcomer, Some(&open)).await?;
        all_records(crowd, context.options.slack * 2, |record| {
            result(Some(record), token, b"in time", (5, "for who waited"))
        })
        .await?;
        last = Some((wish, token));
        if let Found::Lease { lease, .. } = found {
            let token = lease.fencing_token();
            let save = keep(&newcomer, token, "between");
            between.dyn_save_and_release(&save).await?;
            last = Some((newcomer, token));
        }
    }
    // Whoever took its place and says nothing leaves the fence.
    let wish = request(&key);
    let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
    let (held, _) = lease(found, 4, "a free key, whose result is for those who wait")?;
    one.dyn_save_and_release(&forget(&wish, held.fencing_token()))
        .await?;
    if let Some((wish, token)) = &last {
        let saved = two.dyn_save(&keep(wish, *token, "stale")).await;
        refused(
            saved,
            2,
            "of a holder whose result was replaced, and that forgotten",
        )?;
    }
    let loaded = two.dyn_load(&key).await?;
    ensure!(loaded.is_none(), 4, "a replaced result is back: {loaded:?}");
    context.until_free(&key, "in the end").await?;
    Ok(Verdict::Passed)
}
