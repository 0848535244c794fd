//! R1, R4, R6, R7, R11: what requests of a key find.

use tokio::task::JoinSet;

use super::{
    Bytes, Checked, Context, ContractTarget, Found, LONG, LockBackend, Opening, Save, Verdict,
    Violation, clean_up, ensure, forget, keep, lease, open_record, opening, orphan, record,
    request, result, store,
};
use crate::{
    backend::Mode,
    error::BackendErrorKind,
    lease::Lease,
    record::{Orphans, RecordState},
};

/// R1: any bytes, back as they were, until the end of their ttl.
pub(super) async fn records_are_kept_until_their_end<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let before_all = context.target.leftovers().await;
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..64 * 1024).map(|n| n as u8).collect();
    for bytes in [vec![], b"c 1 ".to_vec(), b"\r\n\0".to_vec(), all, large] {
        let key = context.key();
        ensure!(
            one.dyn_load(&key).await?.is_none(),
            1,
            "a new key has a record"
        );
        let wish = request(&key);
        let open = Opening::new(bytes.clone(), LONG);
        let found = one.dyn_acquire_or_load(&wish, Some(&open)).await;
        let (held, _) = lease(found, 4, "a new key")?;
        let opened = two.dyn_load(&key).await?;
        ensure!(
            opened.as_ref().is_some_and(|open| {
                open.state == RecordState::Open
                    && open.token == held.fencing_token()
                    && *open.bytes == *bytes
            }),
            1,
            "what was opened is {opened:?}"
        );
        let ttl = context.short_ttl();
        let (token, bytes) = (held.fencing_token(), Bytes::from(bytes));
        let save = Save::keep(key.clone(), wish.owner, token, bytes.clone(), ttl);
        let saved = tokio::time::Instant::now();
        one.dyn_save_and_release(&save).await?;
        let loaded = two.dyn_load(&key).await?;
        if saved.elapsed() < ttl {
            result(loaded.as_ref(), token, &bytes, (1, "what was saved"))?;
        }
        tokio::time::sleep(ttl + context.options.slack / 4).await;
        let after = two.dyn_load(&key).await?;
        ensure!(after.is_none(), 1, "a record outlives its ttl: {after:?}");
    }
    context.no_more_left(before_all, 12).await?;
    Ok(Verdict::Passed)
}

/// R4, R7: it runs, its duplicates do not; then they have its result.
pub(super) async fn a_first_request_runs<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let key = context.key();
    let (first, second) = (request(&key), request(&key));
    let open = opening("first");
    let found = one.dyn_acquire_or_load(&first, Some(&open)).await;
    let (held, previous) = lease(found, 4, "a new key")?;
    ensure!(
        previous.is_none(),
        6,
        "a new key has an orphan: {previous:?}"
    );
    let token = held.fencing_token();
    context.held(&key, 4, "by `acquire_or_load`").await?;
    match two
        .dyn_acquire_or_load(&second, Some(&opening("second")))
        .await?
    {
        Found::Held { open, .. } => {
            open_record(open.as_ref(), token, "first", (7, "what the holder opened"))?;
        }
        other => return Err(Violation::new(4, format!("a held key: {other:?}"))),
    }
    one.dyn_save_and_release(&keep(&first, token, "result"))
        .await?;
    for (store, open) in [(one, Some(&open)), (two, Some(&open)), (two, None)] {
        let found = store.dyn_acquire_or_load(&request(&key), open).await;
        let found = record(found, 4, "a key with a result")?;
        result(Some(&found), token, b"result", (4, "a key with a result"))?;
    }
    let state = context.two.inspect(&key).await?;
    ensure!(
        state.holders.is_empty() && state.waiters == 0,
        4,
        "something is held or waits beside a result"
    );
    // Who asks for the lock alone has it.
    let lock = context.two.acquire(&request(&key)).await?;
    ensure!(lock.fencing_token() > token, 4, "a token does not grow");
    lock.release().await?;
    Ok(Verdict::Passed)
}

/// R4: two hundred at once, with and without a wait, over two clients: one runs.
pub(super) async fn one_of_many_requests_runs<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let key = context.key();
    let mut tasks = JoinSet::new();
    for n in 0..200 {
        let backend = if n % 2 == 0 {
            &context.one
        } else {
            &context.two
        };
        let backend = backend.clone();
        let waits = n % 3 != 0;
        let wish = if waits {
            context.patient(&key)
        } else {
            request(&key)
        };
        tasks.spawn(async move {
            let store = store(&*backend)?;
            loop {
                match store
                    .dyn_acquire_or_load(&wish, Some(&opening("x")))
                    .await?
                {
                    Found::Lease { lease, .. } => {
                        tokio::task::yield_now().await;
                        let save = keep(&wish, lease.fencing_token(), format!("{n}"));
                        store.dyn_save_and_release(&save).await?;
                        return Ok::<_, Violation>((1, Bytes::from(format!("{n}"))));
                    }
                    Found::Record(record) => return Ok((0, record.bytes)),
                    Found::Held { .. } if waits => {
                        return Err(Violation::new(5, "a wait for a result ended without"));
                    }
                    Found::Held { .. } => tokio::task::yield_now().await,
                }
            }
        });
    }
    let (mut runs, mut results) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (ran, bytes) =
            done.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
        runs += ran;
        results.push(bytes);
    }
    ensure!(runs == 1, 4, "{runs} of 200 requests of a key ran");
    results.dedup();
    ensure!(results.len() == 1, 4, "requests have different results");
    let state = context.one.inspect(&key).await?;
    ensure!(
        state.holders.is_empty() && state.waiters == 0,
        5,
        "something is held or waits beside a result"
    );
    Ok(Verdict::Passed)
}

/// R7: with and without a wait, and nothing is left of those who were refused.
pub(super) async fn held_keys_are_told<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let before_all = context.target.leftovers().await;
    let (one, two) = (store(&*context.one)?, store(&*context.two)?);
    let (key, plain) = (context.key(), context.key());
    let first = request(&key);
    let found = one
        .dyn_acquire_or_load(&first, Some(&opening("first")))
        .await;
    let (held, _) = lease(found, 4, "a new key")?;
    let lock = context.one.acquire(&request(&plain)).await?;
    let short = context.options.slack / 4;
    for wait in [None, Some(short)] {
        let wish = |key| match wait {
            None => request(key),
            Some(wait) => request(key).with_wait(context.within(wait)),
        };
        for open in [Some(&opening("other")), None] {
            match two.dyn_acquire_or_load(&wish(&key), open).await? {
                Found::Held { open, remaining } => {
                    let token = held.fencing_token();
                    open_record(open.as_ref(), token, "first", (7, "what is open"))?;
                    ensure!(
                        remaining.is_none_or(|left| !left.is_zero() && left <= first.ttl),
                        7,
                        "{remaining:?} remain of a lease of {:?}",
                        first.ttl
                    );
                }
                other => return Err(Violation::new(7, format!("a held key: {other:?}"))),
            }
            match two.dyn_acquire_or_load(&wish(&plain), open).await? {
                Found::Held { open: None, .. } => {}
                other => return Err(Violation::new(7, format!("a held key: {other:?}"))),
            }
        }
    }
    context.until_waiting(&key, 0).await?;
    one.dyn_save_and_release(&forget(&first, held.fencing_token()))
        .await?;
    lock.release().await?;
    for key in [&key, &plain] {
        context.until_free(key, "after refusals").await?;
    }
    context.no_more_left(before_all, 7).await?;
    Ok(Verdict::Passed)
}

/// R6.
pub(super) async fn orphans_as_the_opening_says<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    use Orphans::{Keep, Replace, ReplaceEqual};
    let two = store(&*context.two)?;
    for (orphans, bytes, replaces) in [
        (Replace, "same", true),
        (Replace, "other", true),
        (ReplaceEqual, "same", true),
        (ReplaceEqual, "other", false),
        (ReplaceEqual, "sam", false),
        (Keep, "same", false),
    ] {
        let key = context.key();
        let (_, token) = orphan(context, &key, "same").await?;
        let open = opening(bytes).with_orphans(orphans);
        let wish = request(&key);
        let found = two.dyn_acquire_or_load(&wish, Some(&open)).await;
        if replaces {
            let (held, previous) = lease(found, 6, "an orphan that is to be replaced")?;
            open_record(previous.as_ref(), token, "same", (6, "the orphan"))?;
            let opened = two.dyn_load(&key).await?;
            let mine = held.fencing_token();
            open_record(opened.as_ref(), mine, bytes, (6, "its replacement"))?;
            // The next one sees this one alone.
            held.release().await?;
            let found = two.dyn_acquire_or_load(&request(&key), Some(&open)).await;
            let (held, previous) = lease(found, 6, "an orphan that replaced one")?;
            open_record(previous.as_ref(), mine, bytes, (6, "the second orphan"))?;
            held.release().await?;
        } else {
            let kept = record(found, 6, "an orphan that is to be kept")?;
            open_record(Some(&kept), token, "same", (6, "the orphan"))?;
            context.until_free(&key, "beside an orphan").await?;
        }
        // Without an opening it is nobody's business, and stays.
        let before = two.dyn_load(&key).await?;
        let found = two.dyn_acquire_or_load(&request(&key), None).await;
        let (held, previous) = lease(found, 6, "an orphan, without an opening")?;
        ensure!(
            previous == before,
            6,
            "the orphan {before:?} is {previous:?}"
        );
        let after = two.dyn_load(&key).await?;
        ensure!(after == before, 6, "the orphan {before:?} became {after:?}");
        held.release().await?;
        clean_up(context, &key).await?;
    }
    Ok(Verdict::Passed)
}

/// R11.
pub(super) async fn limits_come_first<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let before_all = context.target.leftovers().await;
    let one = store(&*context.one)?;
    let limits = one.dyn_limits();
    let kind = |result: Result<(), crate::BackendError>| result.err().map(|error| error.kind());
    let key = context.key();
    let large = Bytes::from(vec![b'x'; limits.max_bytes + 1]);
    let beyond = limits.max_ttl + std::time::Duration::from_secs(1);
    let zero = std::time::Duration::ZERO;
    for (bytes, ttl, expected) in [
        (large, LONG, BackendErrorKind::TooLarge),
        (Bytes::new(), zero, BackendErrorKind::Unsupported),
        (Bytes::new(), beyond, BackendErrorKind::Unsupported),
    ] {
        let open = Opening::new(bytes.clone(), ttl);
        let found = one.dyn_acquire_or_load(&request(&key), Some(&open)).await;
        let found = kind(found.map(drop));
        ensure!(found == Some(expected), 11, "an opening beyond: {found:?}");
        let wish = request(&key);
        let found = one.dyn_acquire_or_load(&wish, Some(&opening(""))).await;
        let (held, _) = lease(found, 11, "after an opening beyond the limits")?;
        let token = held.fencing_token();
        let save = Save::keep(key.clone(), wish.owner, token, bytes, ttl);
        for saved in [
            one.dyn_save(&save).await,
            one.dyn_save_and_release(&save).await,
        ] {
            let saved = kind(saved);
            ensure!(saved == Some(expected), 11, "a save beyond: {saved:?}");
        }
        context
            .held(&key, 11, "after a save beyond the limits")
            .await?;
        one.dyn_save_and_release(&forget(&wish, token)).await?;
    }
    let shared = request(&key).with_mode(Mode::Shared);
    let found = one.dyn_acquire_or_load(&shared, None).await;
    let found = kind(found.map(drop));
    ensure!(
        found == Some(BackendErrorKind::Unsupported),
        11,
        "a shared request: {found:?}"
    );
    // The most that it takes, it takes.
    let wish = context.patient(&key);
    let found = one.dyn_acquire_or_load(&wish, Some(&opening(""))).await;
    let (held, _) = lease(found, 4, "a key that was forgotten")?;
    let bytes = vec![b'x'; limits.max_bytes];
    let token = held.fencing_token();
    let ttl = context.short_ttl();
    let most = Save::keep(key.clone(), wish.owner, token, bytes.clone(), ttl);
    let saved = tokio::time::Instant::now();
    one.dyn_save_and_release(&most).await?;
    let loaded = one.dyn_load(&key).await?;
    if saved.elapsed() < ttl {
        result(
            loaded.as_ref(),
            token,
            &bytes,
            (11, "the most that it takes"),
        )?;
    }
    context.no_more_left(before_all, 12).await?;
    Ok(Verdict::Passed)
}
