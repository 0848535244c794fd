//! Musts 9 and 13: keys of every kind, and nothing of them left.

use tokio::task::JoinSet;

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, ensure, request},
};
use crate::{
    backend::{LockBackend, Scope},
    key::LockKey,
    lease::Lease,
};

/// Keys of any bytes, some the beginning of others, all held at once by different owners.
pub(super) async fn keys_of_any_bytes<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let salt = format!("{:016x}", fastrand::u64(..));
    let values: Vec<Vec<u8>> = [
        b"".as_slice(),
        b"a",
        b"ab",
        b"a;",
        b"a/b",
        b"a/b/c",
        b"/",
        b"..",
        b"{a}",
        b"{a",
        b"a b",
        b"a\nb",
        b"\r\n",
        b"\0",
        b"a\0",
        b"*",
        b"[a-z]?",
        b"'; DROP TABLE locks; --",
        b"%00",
        b"%25",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        "\u{1f512}".as_bytes(),
        b"\xff\xfe",
        b"\xc3\x28",
    ]
    .iter()
    .map(|value| value.to_vec())
    .chain([vec![b'x'; 10_000], vec![b'x'; 10_001], vec![0xff; 5000]])
    .collect();
    let keys: Vec<_> = ["contract", "contract.a", "contract a", ""]
        .iter()
        .flat_map(|namespace| values.iter().map(move |value| (namespace, value)))
        .map(|(namespace, value)| LockKey::from_values(namespace, [salt.as_bytes(), value]))
        .collect();
    let mut leases = Vec::new();
    for key in &keys {
        match context.one.acquire(&request(key)).await {
            Ok(lease) => leases.push(lease),
            Err(error) => {
                return Err(Violation::new(
                    13,
                    format!("the free key `{}` was refused: {error}", key.as_str()),
                ));
            }
        }
    }
    for key in &keys {
        context
            .held(key, 13, &format!("named `{}`", key.as_str()))
            .await?;
        let holders = context.two.inspect(key).await?.holders.len();
        ensure!(
            holders == 1,
            13,
            "the key `{}` has {holders} holders",
            key.as_str()
        );
    }
    for lease in leases {
        lease.renew().await?;
        lease.release().await?;
    }
    for key in &keys {
        context.until_free(key, "after its release").await?;
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Many distinct keys, locked once each: nothing is left of them.
pub(super) async fn idle_keys_leave_nothing<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    const HELD: usize = 16;
    let count = context.options.keys;
    // Where a server is asked, several at once.
    let tasks = if context.capabilities.scope == Scope::Process {
        2
    } else {
        32
    };
    let salt = fastrand::u32(..);
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let backend = context.one.clone();
        running.spawn(async move {
            let mut held = Vec::with_capacity(HELD);
            for n in (task..count).step_by(tasks as usize) {
                let key = LockKey::new("contract", format_args!("{salt:08x}-{n}"));
                held.push(backend.acquire(&request(&key)).await?);
                if held.len() == HELD {
                    for lease in held.drain(..) {
                        lease.release().await?;
                    }
                    // The runtime of the test may have other things to do.
                    tokio::task::yield_now().await;
                }
            }
            for lease in held {
                lease.release().await?;
            }
            Ok::<_, Violation>(())
        });
    }
    while let Some(result) = running.join_next().await {
        result.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
    }
    if context.target.leftovers().await.is_none() {
        return Ok(Verdict::NotApplicable(
            "the target cannot count what is left",
        ));
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
