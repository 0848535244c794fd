//! R9, R10, R12: owners that ask again, saves that release, and what stays.

use super::{
    Checked, Context, ContractTarget, Found, LockBackend, Save, Verdict, Violation, clean_up,
    ensure, forget, keep, lease, open_record, opening, orphan, record, refused, request, result,
    store,
};
use crate::{
    error::BackendErrorKind,
    lease::{FencingToken, Lease},
    record::{Opening, Orphans},
};

/// R9: the answer was lost, and the owner asks again.
pub(super) async fn owners_ask_again<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for is_orphan in [false, true] {
        let key = context.key();
        if is_orphan {
            orphan(context, &key, "orphan").await?;
        }
        let open = opening("mine").with_orphans(Orphans::Replace);
        let wish = context.patient(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
        let (unheard, previous) = lease(found, 4, "a free key")?;
        ensure!(
            previous.is_some() == is_orphan,
            6,
            "the orphan is {previous:?}"
        );
        let opened = one.dyn_load(&key).await?;
        // Of some backends the drop of one handle is the end of all.
        let mut handles = vec![unheard.clone()];
        for last in [false, true] {
            let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
            let (again, before) = lease(found, 9, "a holder that asks again")?;
            ensure!(
                again.fencing_token() == unheard.fencing_token(),
                9,
                "a holder that asked again got token {} after {}",
                again.fencing_token(),
                unheard.fencing_token()
            );
            ensure!(before == previous, 9, "{previous:?} became {before:?}");
            let record = two.dyn_load(&key).await?;
            ensure!(record == opened, 9, "{opened:?} became {record:?}");
            let token = again.fencing_token();
            handles.push(again);
            if last {
                one.dyn_save_and_release(&forget(&wish, token)).await?;
            }
        }
        drop((handles, unheard));
        context
            .until_free(&key, "after an owner asked again")
            .await?;
    }
    Ok(Verdict::Passed)
}

/// R10.
pub(super) async fn saving_releases<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for keeps in [true, false] {
        let key = context.key();
        let wish = request(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
        let (held, _) = lease(found, 4, "a new key")?;
        let token = held.fencing_token();
        let save = if keeps {
            keep(&wish, token, "result")
        } else {
            forget(&wish, token)
        };
        one.dyn_save_and_release(&save).await?;
        let next = context.two.acquire(&request(&key)).await;
        let next = next.map_err(|error| {
            Violation::new(10, format!("a key that was saved and released: {error}"))
        })?;
        held.release().await?;
        drop(held);
        context
            .held(&key, 10, "after the release of one that saved")
            .await?;
        next.renew().await?;
        next.release().await?;
    }
    // A lease that was saved and released is over, and not lost.
    let key = context.key();
    let wish = request(&key);
    let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
    let (held, _) = lease(found, 4, "a new key")?;
    let save = keep(&wish, held.fencing_token(), "result");
    one.dyn_save_and_release(&save).await?;
    ensure!(
        held.lost().get().is_none(),
        10,
        "a save that released is reported as a loss"
    );
    // Refused for its token, it is released all the same.
    let key = context.key();
    let last = Save::keep(
        key.clone(),
        request(&key).owner,
        FencingToken::MAX,
        "last",
        super::LONG,
    );
    one.dyn_save(&last).await?;
    let lock = request(&key);
    let held = context.two.acquire(&lock).await?;
    let lower = keep(&lock, held.fencing_token(), "lower");
    refused(two.dyn_save_and_release(&lower).await, 2, "below the token")?;
    context
        .until_free(&key, "after a save that was refused")
        .await?;
    let loaded = one.dyn_load(&key).await?;
    result(
        loaded.as_ref(),
        FencingToken::MAX,
        b"last",
        (2, "the record"),
    )?;
    Ok(Verdict::Passed)
}

/// R10: whoever looks sees it held, and then the result; never a free key in between.
pub(super) async fn nobody_comes_between<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let one = store(&*context.one)?;
    for _ in 0..30 {
        let key = context.key();
        let wish = request(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&opening("x"))).await;
        let (held, _) = lease(found, 4, "a new key")?;
        let token = held.fencing_token();
        let watchers: Vec<_> = (0..4)
            .map(|_| {
                let (two, key) = (context.two.clone(), key.clone());
                tokio::spawn(async move {
                    let two = store(&*two)?;
                    let mut looks = 0;
                    loop {
                        let (wish, open) = (request(&key), opening("y"));
                        match two.dyn_acquire_or_load(&wish, Some(&open)).await? {
                            Found::Held { .. } => {
                                looks += 1;
                                tokio::task::yield_now().await;
                            }
                            Found::Record(_) => return Ok(looks),
                            Found::Lease { .. } => {
                                return Err(Violation::new(10, "a key between lock and result"));
                            }
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(..5))).await;
        let saved = one
            .dyn_save_and_release(&keep(&wish, token, "result"))
            .await;
        if saved
            .as_ref()
            .is_err_and(|error| error.kind() == BackendErrorKind::Lost)
        {
            return Err(Violation::new(
                10,
                "another got the key of one that saves and releases",
            ));
        }
        saved?;
        for watcher in watchers {
            let looks: Result<u32, Violation> = watcher
                .await
                .map_err(|panic| Violation::new(0, format!("{panic}")))?;
            looks?;
        }
    }
    Ok(Verdict::Passed)
}

/// R12: who does not say how it ended leaves it open.
pub(super) async fn open_records_stay<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    for ending in ["released", "dropped", "taken away"] {
        let key = context.key();
        let found = one
            .dyn_acquire_or_load(&request(&key), Some(&opening("x")))
            .await;
        let (held, _) = lease(found, 4, "a new key")?;
        let token = held.fencing_token();
        match ending {
            "released" => {
                held.release().await?;
                held.release().await?;
            }
            "dropped" => drop(held),
            _ => {
                context.two.force_release(&key).await?;
                let renewed = held.renew().await.map_err(|error| error.kind());
                ensure!(
                    renewed == Err(BackendErrorKind::Lost),
                    8,
                    "a lease that was taken away was renewed: {renewed:?}"
                );
            }
        }
        context
            .until_free(&key, &format!("after it was {ending}"))
            .await?;
        let loaded = two.dyn_load(&key).await?;
        open_record(loaded.as_ref(), token, "x", (12, ending))?;
        let open = opening("x").with_orphans(Orphans::Keep);
        let found = two.dyn_acquire_or_load(&request(&key), Some(&open)).await;
        let kept = record(found, 6, "an orphan that is to be kept")?;
        open_record(Some(&kept), token, "x", (12, ending))?;
        clean_up(context, &key).await?;
    }
    Ok(Verdict::Passed)
}

/// R12: neither of what was forgotten, nor of what is over.
pub(super) async fn nothing_is_left<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let before_all = context.target.leftovers().await;
    let one = store(&*context.one)?;
    let short = context.short_ttl();
    for n in 0..500 {
        let key = context.key();
        let wish = request(&key);
        let open = Opening::new("x", short);
        let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
        let (held, previous) = lease(found, 4, "a new key")?;
        ensure!(previous.is_none(), 6, "a new key has an orphan");
        let token = held.fencing_token();
        match n % 3 {
            0 => one.dyn_save_and_release(&forget(&wish, token)).await?,
            1 => {
                let save = Save::keep(key, wish.owner, token, "result", short);
                one.dyn_save_and_release(&save).await?;
            }
            // An orphan, that somebody replaces and forgets.
            _ => {
                held.release().await?;
                let wish = request(&key);
                let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
                let (held, _) = lease(found, 6, "an orphan")?;
                let token = held.fencing_token();
                one.dyn_save_and_release(&forget(&wish, token)).await?;
                ensure!(
                    one.dyn_load(&key).await?.is_none(),
                    12,
                    "what was forgotten is there"
                );
            }
        }
    }
    tokio::time::sleep(short).await;
    // Stores that clean up as they write have something to write.
    for _ in 0..200 {
        let key = context.key();
        clean_up(context, &key).await?;
    }
    context.no_more_left(before_all, 12).await?;
    Ok(Verdict::Passed)
}
