//! R2, R3: who may save, and who not any more.

use super::{
    Checked, Context, ContractTarget, LockBackend, Save, Verdict, Violation, ensure, forget, keep,
    lease, open_record, opening, refused, request, result, store, until_over,
};
use crate::{
    backend::AcquireRequest,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{FencingToken, Lease},
};

/// A holder whose lease is over, as if it had been paused: what it would save by.
async fn paused<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
) -> Result<(AcquireRequest, FencingToken), Violation> {
    let wish = AcquireRequest::new(key.clone(), context.short_ttl());
    let found = store(&*context.one)?
        .dyn_acquire_or_load(&wish, Some(&opening("paused")))
        .await;
    let (held, _) = lease(found, 4, "a key that nobody holds")?;
    let token = held.fencing_token();
    // Still there, as that of a paused process.
    let over = until_over(context, key).await;
    drop(held);
    over.map(|()| (wish, token))
}

/// R2: after its successor has ended, whichever way.
pub(super) async fn stale_holders_write_nothing<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for (ending, must) in [("saved", 2), ("forgot", 2), ("left", 2), ("went again", 2)] {
        let why = format!("after its successor {ending}");
        let key = context.key();
        let (stale, token) = paused(context, &key).await?;
        let successor = request(&key);
        let found = two
            .dyn_acquire_or_load(&successor, Some(&opening("new")))
            .await;
        let (held, previous) = lease(found, 6, "an orphan")?;
        open_record(previous.as_ref(), token, "paused", (6, "the orphan"))?;
        let newer = held.fencing_token();
        ensure!(newer > token, 3, "token {newer} of a successor of {token}");
        match ending {
            "saved" => {
                two.dyn_save_and_release(&keep(&successor, newer, "new"))
                    .await?
            }
            "forgot" => two.dyn_save_and_release(&forget(&successor, newer)).await?,
            "left" => held.release().await?,
            _ => {
                two.dyn_save_and_release(&forget(&successor, newer)).await?;
                let third = request(&key);
                let found = two
                    .dyn_acquire_or_load(&third, Some(&opening("third")))
                    .await;
                let (held, previous) = lease(found, 6, "a key that was forgotten")?;
                ensure!(
                    previous.is_none(),
                    6,
                    "what was forgotten is there: {previous:?}"
                );
                let token = held.fencing_token();
                two.dyn_save_and_release(&forget(&third, token)).await?;
            }
        }
        let before = one.dyn_load(&key).await?;
        let late = keep(&stale, token, "late");
        refused(one.dyn_save(&late).await, must, &why)?;
        refused(one.dyn_save_and_release(&late).await, must, &why)?;
        // Whatever the answer is.
        let _ = one.dyn_save_and_release(&forget(&stale, token)).await;
        let after = two.dyn_load(&key).await?;
        ensure!(after == before, 2, "{before:?} became {after:?}, {why}");
        if ending == "saved" {
            result(after.as_ref(), newer, b"new", (2, "the successor's result"))?;
        } else {
            super::clean_up(context, &key).await?;
        }
        context.until_free(&key, &why).await?;
    }
    Ok(Verdict::Passed)
}

/// R2: while its successor holds, by whichever verb, or waits to be told that it does.
pub(super) async fn stale_holders_do_not_come_first<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for opens in [true, false] {
        let key = context.key();
        let (stale, token) = paused(context, &key).await?;
        let successor = request(&key);
        let held = if opens {
            let found = two
                .dyn_acquire_or_load(&successor, Some(&opening("new")))
                .await;
            lease(found, 6, "an orphan")?.0
        } else {
            let found = two.dyn_acquire_or_load(&successor, None).await;
            lease(found, 6, "an orphan, without an opening")?.0
        };
        let late = keep(&stale, token, "late");
        refused(one.dyn_save(&late).await, 2, "while its successor holds")?;
        refused(
            one.dyn_save_and_release(&late).await,
            2,
            "while its successor holds",
        )?;
        let _ = one.dyn_save_and_release(&forget(&stale, token)).await;
        context
            .held(&key, 2, "after saves of a stale holder")
            .await?;
        held.renew().await?;
        let newer = held.fencing_token();
        two.dyn_save_and_release(&keep(&successor, newer, "new"))
            .await?;
        let loaded = one.dyn_load(&key).await?;
        result(
            loaded.as_ref(),
            newer,
            b"new",
            (2, "the successor's result"),
        )?;
        refused(one.dyn_save(&late).await, 2, "after its successor saved")?;
    }
    // A plain lock is a successor too.
    let key = context.key();
    let (stale, token) = paused(context, &key).await?;
    let lock = context.two.acquire(&request(&key)).await?;
    let late = keep(&stale, token, "late");
    refused(one.dyn_save(&late).await, 2, "while another holds the lock")?;
    lock.release().await?;
    Ok(Verdict::Passed)
}

fn accepted(saved: Result<(), BackendError>) -> Result<(), Violation> {
    match saved {
        Err(error) if error.kind() == BackendErrorKind::Lost => Err(Violation::new(
            3,
            "a late save was refused, and nobody came meanwhile",
        )),
        other => Ok(other?),
    }
}

/// R3: its lease is over, and nobody came.
pub(super) async fn holders_without_successors_save_late<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for forgets in [false, true] {
        let key = context.key();
        let (late, token) = paused(context, &key).await?;
        if forgets {
            accepted(one.dyn_save_and_release(&forget(&late, token)).await)?;
            let loaded = two.dyn_load(&key).await?;
            ensure!(loaded.is_none(), 3, "what was forgotten late is {loaded:?}");
        } else {
            accepted(one.dyn_save_and_release(&keep(&late, token, "late")).await)?;
            let loaded = two.dyn_load(&key).await?;
            result(loaded.as_ref(), token, b"late", (3, "a late result"))?;
        }
    }
    // Nor does anybody need to have been there: single flight opens nothing.
    let key = context.key();
    let wish = request(&key);
    let found = one.dyn_acquire_or_load(&wish, None).await;
    let (held, _) = lease(found, 4, "a new key")?;
    let loaded = two.dyn_load(&key).await?;
    ensure!(
        loaded.is_none(),
        6,
        "without an opening there is {loaded:?}"
    );
    let token = held.fencing_token();
    held.release().await?;
    accepted(one.dyn_save(&keep(&wish, token, "afterwards")).await)?;
    let loaded = two.dyn_load(&key).await?;
    result(loaded.as_ref(), token, b"afterwards", (3, "a late result"))?;
    Ok(Verdict::Passed)
}

/// R3.
pub(super) async fn saves_are_repeated<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let key = context.key();
    let wish = request(&key);
    let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
    let (held, _) = lease(found, 4, "a new key")?;
    let token = held.fencing_token();
    let first = keep(&wish, token, "first");
    one.dyn_save(&first).await?;
    context
        .held(&key, 3, "after a save without a release")
        .await?;
    held.renew().await?;
    let (second, forgets) = (keep(&wish, token, "second"), forget(&wish, token));
    for (n, (store, releases, save)) in [
        (one, false, &first),
        (two, false, &first),
        (one, false, &second),
        (one, false, &forgets),
        (one, true, &first),
        (one, true, &second),
        (two, true, &forgets),
    ]
    .into_iter()
    .enumerate()
    {
        let saved = if releases {
            store.dyn_save_and_release(save).await
        } else {
            store.dyn_save(save).await
        };
        if let Err(error) = saved {
            return Err(Violation::new(3, format!("save {n} of one token: {error}")));
        }
        let loaded = two.dyn_load(&key).await?;
        result(loaded.as_ref(), token, b"first", (3, "the first result"))?;
    }
    context
        .until_free(&key, "after saves that were repeated")
        .await?;
    // A later holder of the lock makes a new one.
    let lock = request(&key);
    let held = context.two.acquire(&lock).await?;
    let newer = held.fencing_token();
    two.dyn_save_and_release(&keep(&lock, newer, "newer"))
        .await?;
    let loaded = one.dyn_load(&key).await?;
    result(loaded.as_ref(), newer, b"newer", (3, "the newer result"))?;
    refused(one.dyn_save(&first).await, 2, "after a newer result")?;
    let never = Save::keep(
        key.clone(),
        lock.owner,
        FencingToken::MAX,
        "last",
        context.short_ttl(),
    );
    one.dyn_save(&never).await?;
    let loaded = one.dyn_load(&key).await?;
    ensure!(
        loaded.is_none_or(|record| record.token == FencingToken::MAX),
        3,
        "the highest token does not count"
    );
    Ok(Verdict::Passed)
}
