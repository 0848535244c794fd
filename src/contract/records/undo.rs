//! R8: what a dropped `acquire_or_load` leaves.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::{
    Checked, Context, ContractTarget, Found, Record, Verdict, Violation, clean_up, ensure, keep,
    lease, opening, orphan, request, result, store,
};
use crate::{
    contract::context::{a_moment, poll_once},
    key::LockKey,
};

/// No acquire has more await points than this.
const MOST_POLLS: usize = 40;

/// Waits until the key is free and its record is what it was before.
async fn until_undone<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
    before: &Option<Record>,
    why: &str,
) -> Result<(), Violation> {
    context.until_free(key, why).await?;
    let store = store(&*context.one)?;
    let start = Instant::now();
    loop {
        let record = store.dyn_load(key).await?;
        if record == *before {
            return Ok(());
        }
        ensure!(
            start.elapsed() < context.options.settle,
            8,
            "the record {before:?} is {record:?} {why}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Of a free key, at every await point; one that was never seen, and one with an orphan.
pub(super) async fn drop_of_a_first_request<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let two = store(&*context.two)?;
    let open = opening("dropped");
    for is_orphan in [false, true] {
        let mut ended = false;
        for polls in 0..MOST_POLLS {
            let key = context.key();
            if is_orphan {
                orphan(context, &key, "orphan").await?;
            }
            let before = two.dyn_load(&key).await?;
            let wish = context.patient(&key);
            let mut future = two.dyn_acquire_or_load(&wish, Some(&open));
            for _ in 0..polls {
                if let Some(found) = poll_once(future.as_mut()).await {
                    let (held, _) = lease(found, 4, "a free key")?;
                    drop(held);
                    ended = true;
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(future);
            let why = format!("after a first request was dropped at poll {polls}");
            if ended {
                // It had its lease, and may have begun.
                context.until_free(&key, &why).await?;
                clean_up(context, &key).await?;
                break;
            }
            until_undone(context, &key, &before, &why).await?;
            if is_orphan {
                clean_up(context, &key).await?;
            }
        }
        ensure!(
            ended,
            5,
            "a first request did not end within {MOST_POLLS} polls"
        );
    }
    Ok(Verdict::Passed)
}

/// Of a key that is held, and released or saved behind its back.
pub(super) async fn drop_of_a_wait<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let open = opening("dropped");
    for polls in 0..6 {
        for ending in ["stays", "leaves", "saves"] {
            let why = format!("after a wait was dropped at poll {polls}, as the holder {ending}");
            let key = context.key();
            let holder = request(&key);
            let found = one.dyn_acquire_or_load(&holder, Some(&opening("x"))).await;
            let (held, _) = lease(found, 4, "a new key")?;
            let token = held.dyn_fencing_token();
            let wish = context.patient(&key);
            let mut future = two.dyn_acquire_or_load(&wish, Some(&open));
            for _ in 0..polls {
                let early = poll_once(future.as_mut()).await;
                ensure!(early.is_none(), 5, "a wait ended early: {early:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            match ending {
                "stays" => {
                    drop(future);
                    context.until_waiting(&key, 0).await?;
                    held.dyn_release().await?;
                }
                "leaves" => {
                    held.dyn_release().await?;
                    a_moment(3).await;
                    // It may have come so far, and be dropped before it knows.
                    drop(future);
                }
                _ => {
                    let save = keep(&holder, token, "result");
                    one.dyn_save_and_release(&save).await?;
                    a_moment(3).await;
                    drop(future);
                }
            }
            let expected = if ending == "saves" {
                Record::new(crate::record::RecordState::Closed, token, "result")
            } else {
                Record::new(crate::record::RecordState::Open, token, "x")
            };
            until_undone(context, &key, &Some(expected), &why).await?;
            if ending != "saves" {
                clean_up(context, &key).await?;
            }
        }
    }
    Ok(Verdict::Passed)
}

/// Thousands, aborted at random; of a key that somebody ran, one did.
pub(super) async fn aborts_at_random<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    const TASKS: u32 = 32;
    const KEYS: usize = 24;
    let keys: Vec<_> = (0..KEYS).map(|_| context.key()).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let keys = keys.clone();
        let (one, two) = (context.one.clone(), context.two.clone());
        let aborts = context.options.aborts / 2 / TASKS + 1;
        let patient = context.patient(&keys[0]).wait;
        tasks.spawn(async move {
            let mut ran = Vec::new();
            let mut aborted = 0;
            while aborted < aborts {
                let n = fastrand::usize(..KEYS);
                let store = store(if fastrand::bool() { &*one } else { &*two })?;
                let mut wish = request(&keys[n]);
                if fastrand::bool() {
                    wish = wish.with_wait(patient);
                }
                let open = opening("x");
                let found = tokio::select! {
                    found = store.dyn_acquire_or_load(&wish, Some(&open)) => found?,
                    () = a_moment(12) => {
                        aborted += 1;
                        continue;
                    }
                };
                match found {
                    Found::Lease { lease, previous } => {
                        ensure!(
                            previous.is_none(),
                            8,
                            "an undone attempt looks like an orphan: {previous:?}"
                        );
                        a_moment(2).await;
                        let token = lease.dyn_fencing_token();
                        // Some leave, as if they had not run.
                        if fastrand::u8(..32) > 0 {
                            let forget = super::forget(&wish, token);
                            store.dyn_save_and_release(&forget).await?;
                        } else {
                            let save = keep(&wish, token, token.to_string());
                            store.dyn_save_and_release(&save).await?;
                            ran.push((n, token));
                        }
                    }
                    // Done with: the next one is as good.
                    Found::Record(_) => aborted += 1,
                    Found::Held { .. } => tokio::task::yield_now().await,
                }
            }
            Ok::<_, Violation>(ran)
        });
    }
    let mut ran = vec![None; KEYS];
    while let Some(done) = tasks.join_next().await {
        let done =
            done.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
        for (n, token) in done {
            let before = ran[n].replace(token);
            ensure!(before.is_none(), 4, "a key with a result was run again");
        }
    }
    let store = store(&*context.one)?;
    for (key, token) in keys.iter().zip(ran) {
        match token {
            None => until_undone(context, key, &None, "after random aborts").await?,
            Some(token) => {
                context.until_free(key, "after random aborts").await?;
                let loaded = store.dyn_load(key).await?;
                let bytes = token.to_string();
                result(loaded.as_ref(), token, bytes.as_bytes(), (4, "the result"))?;
            }
        }
    }
    Ok(Verdict::Passed)
}
