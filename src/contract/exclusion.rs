//! Must 1: one holder at a time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::task::JoinSet;

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, a_moment, ensure},
};
use crate::{
    backend::{LockBackend, Order},
    lease::Lease,
};

const TASKS: usize = 64;
const ROUNDS: usize = 10;

/// 64 tasks of two clients on one key: never two inside, tokens in the order of holding.
pub(super) async fn exclusion<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let order = if context.capabilities.fifo {
        Order::Fifo
    } else {
        Order::Unfair
    };
    crowd(context, order).await
}

/// The same with `Order::Unfair`, which every backend has: everybody is served.
pub(super) async fn unfair<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    crowd(context, Order::Unfair).await
}

async fn crowd<T: ContractTarget>(context: &Context<'_, T>, order: Order) -> Checked {
    let key = context.key();
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicU64::new(0));
    let fencing = context.capabilities.fencing;
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let backend = if n % 2 == 0 {
            &context.one
        } else {
            &context.two
        };
        let (backend, inside, last) = (backend.clone(), inside.clone(), last.clone());
        let requests: Vec<_> = (0..ROUNDS)
            .map(|_| context.patient(&key).with_order(order))
            .collect();
        tasks.spawn(async move {
            for request in requests {
                let lease = backend.acquire(&request).await?;
                ensure!(
                    !inside.swap(true, Ordering::SeqCst),
                    1,
                    "two exclusive holders at the same time"
                );
                let token = lease.fencing_token().get();
                let before = last.swap(token, Ordering::SeqCst);
                ensure!(
                    !fencing || before < token,
                    3,
                    "token {token} was granted after {before}"
                );
                a_moment(3).await;
                ensure!(
                    inside.swap(false, Ordering::SeqCst),
                    1,
                    "another holder came and went meanwhile"
                );
                lease.release().await?;
            }
            Ok(())
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
    }
    context.until_free(&key, "after 64 tasks").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
