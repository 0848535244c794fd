//! Must 3: fencing tokens grow.

use super::{
    Checked, ContractTarget, Verdict,
    context::{Context, ensure, request},
};
use crate::{
    backend::LockBackend,
    lease::{FencingToken, Lease, OwnerToken},
};

const NO_FENCING: Verdict = Verdict::NotApplicable("the backend has no fencing tokens");

/// Many grants of one key, by two clients, released or taken over by another owner.
pub(super) async fn tokens_grow<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    if !context.capabilities.fencing {
        return Ok(NO_FENCING);
    }
    let key = context.key();
    let wish = request(&key);
    let mut last = None;
    for n in 0..context.options.grants {
        let backend = if n % 3 == 0 {
            &context.one
        } else {
            &context.two
        };
        let mut wish = wish.clone();
        wish.owner = OwnerToken::random();
        let lease = backend.acquire(&wish).await?;
        let token = lease.fencing_token();
        if let Some(last) = last.replace(token) {
            ensure!(token > last, 3, "grant {n} got token {token} after {last}");
        }
        ensure!(
            token <= FencingToken::MAX,
            3,
            "token {token} is beyond i64::MAX"
        );
        ensure!(
            lease.reserved_tokens() == 1,
            3,
            "a grant of one token reserved {}",
            lease.reserved_tokens()
        );
        lease.release().await?;
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Grants after a restart of the server have greater tokens than before.
pub(super) async fn tokens_grow_over_a_restart<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    if !context.capabilities.fencing {
        return Ok(NO_FENCING);
    }
    if !context.capabilities.survives.server_restart {
        return Ok(Verdict::NotApplicable("the backend survives no restart"));
    }
    let key = context.key();
    let mut before = None;
    for _ in 0..100 {
        let lease = context.one.acquire(&request(&key)).await?;
        before = Some(lease.fencing_token());
        lease.release().await?;
    }
    if !context.target.restart().await {
        return Ok(Verdict::NotApplicable(
            "the target cannot restart its server",
        ));
    }
    let client = context.target.connect().await?;
    let lease = client
        .acquire(&request(&key).with_wait(context.within(context.options.settle)))
        .await?;
    if let Some(before) = before {
        let after = lease.fencing_token();
        ensure!(
            after > before,
            3,
            "token {after} was granted after {before} and a restart"
        );
    }
    lease.release().await?;
    Ok(Verdict::Passed)
}

/// A range of tokens that one grant reserved is never given again.
pub(super) async fn reserved_tokens<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let wish = request(&key).with_tokens(32);
    if !context.capabilities.reserves_tokens {
        if let Ok(lease) = context.one.acquire(&wish).await {
            let reserved = lease.reserved_tokens();
            lease.release().await?;
            ensure!(
                reserved == 1,
                3,
                "a backend that reserves no tokens says that it reserved {reserved}"
            );
        }
        return Ok(Verdict::NotApplicable("the backend reserves no tokens"));
    }
    let mut end = 0;
    for _ in 0..100 {
        // Each grant is of a new owner.
        let mut wish = wish.clone();
        wish.owner = OwnerToken::random();
        let lease = context.one.acquire(&wish).await?;
        let first = lease.fencing_token().get();
        ensure!(
            lease.reserved_tokens() == 32,
            3,
            "{} tokens were reserved instead of 32",
            lease.reserved_tokens()
        );
        ensure!(first > end, 3, "token {first} is in an earlier range");
        end = first + 31;
        lease.release().await?;
        let single = context.two.acquire(&request(&key)).await?;
        let token = single.fencing_token().get();
        ensure!(token > end, 3, "token {token} is in an earlier range");
        end = token;
        single.release().await?;
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
